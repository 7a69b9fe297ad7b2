#include "cli/constrain/instance_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void qn_instance_write_string(const char *text, size_t n, qn_buf *out)
{
    static const char escapes[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    qn_buf_putc(out, '"');
    for (size_t i = 0; i < n; i++) {
        const char *e = NULL;
        for (size_t k = 0; k + 1 < sizeof escapes && !e; k += 2)
            if (escapes[k] == text[i]) e = &escapes[k + 1];
        if (e) {
            qn_buf_putc(out, '\\');
            qn_buf_putc(out, *e);
        } else if ((unsigned char)text[i] < 0x20) {
            qn_buf_printf(out, "\\u%04x", (unsigned)(unsigned char)text[i]);
        } else {
            qn_buf_putc(out, text[i]);
        }
    }
    qn_buf_putc(out, '"');
}

/* As repr of a Python float: the fewest digits that read as it, an exponent below 1e-4 and from 1e16. */
static void write_float(double value, qn_buf *out)
{
    char digits[40] = "";
    int exponent = 0, n = 0;
    if (isinf(value)) {
        qn_buf_puts(out, value < 0 ? "-Infinity" : "Infinity");
        return;
    }
    for (int precision = 0; precision <= 16; precision++) {
        qn_buf text = {0};
        qn_buf_printf(&text, "%.*e", precision, fabs(value));
        int same = text.data && strtod(text.data, NULL) == fabs(value);
        for (n = 0, exponent = 0; same && text.data[exponent] && text.data[exponent] != 'e'; exponent++)
            if (text.data[exponent] >= '0' && text.data[exponent] <= '9') digits[n++] = text.data[exponent];
        if (same) exponent = (int)strtol(text.data + exponent + 1, NULL, 10);
        qn_buf_free(&text);
        if (same) break;
    }
    while (n > 1 && digits[n - 1] == '0') n--;
    if (signbit(value)) qn_buf_putc(out, '-');
    if (exponent < -4 || exponent >= 16) {
        qn_buf_putc(out, digits[0]);
        if (n > 1) qn_buf_putc(out, '.');
        qn_buf_append(out, digits + 1, (size_t)(n - 1));
        qn_buf_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) qn_buf_puts(out, "0.");
    for (int i = exponent < 0 ? exponent + 1 : 0; i < n || i <= exponent + 1; i++) {
        if (exponent >= 0 && i == exponent + 1) qn_buf_putc(out, '.');
        qn_buf_putc(out, i >= 0 && i < n ? digits[i] : '0');
    }
}

static void write_number(const qn_value *v, qn_buf *out)
{
    const char *text = v->number.text;
    size_t n = v->number.n_text;
    if (memchr(text, '.', n) || memchr(text, 'e', n) || memchr(text, 'E', n)) {
        qn_buf copy = {0};
        qn_buf_append(&copy, text, n);
        write_float(copy.data ? strtod(copy.data, NULL) : 0, out);
        if (copy.status != QN_OK && out->status == QN_OK) out->status = copy.status;
        qn_buf_free(&copy);
    } else if (!v->number.n_digits) {
        qn_buf_putc(out, '0'); /* -0 is an int */
    } else {
        qn_buf_append(out, text, n);
    }
}

static void new_line(int indent, int level, qn_buf *out)
{
    qn_buf_putc(out, '\n');
    for (int i = 0; i < indent * level; i++) qn_buf_putc(out, ' ');
}

static void write(const qn_value *v, int indent, int level, qn_buf *out)
{
    switch ((qn_value_kind)v->kind) {
    case QN_VALUE_NULL:
        qn_buf_puts(out, "null");
        return;
    case QN_VALUE_BOOLEAN:
        qn_buf_puts(out, v->is_true ? "true" : "false");
        return;
    case QN_VALUE_NUMBER:
        write_number(v, out);
        return;
    case QN_VALUE_STRING:
        qn_instance_write_string(v->text, v->n, out);
        return;
    case QN_VALUE_ARRAY:
    case QN_VALUE_OBJECT:
        break;
    }
    int is_object = v->kind == QN_VALUE_OBJECT;
    qn_buf_putc(out, is_object ? '{' : '[');
    for (uint32_t i = 0; i < v->n; i++) {
        if (i) qn_buf_puts(out, indent < 0 ? ", " : ",");
        if (indent >= 0) new_line(indent, level + 1, out);
        if (is_object) {
            qn_instance_write_string(v->children[i].key, v->children[i].key_bytes, out);
            qn_buf_puts(out, ": ");
        }
        write(&v->children[i], indent, level + 1, out);
    }
    if (v->n && indent >= 0) new_line(indent, level, out);
    qn_buf_putc(out, is_object ? '}' : ']');
}

void qn_instance_write(const qn_value *v, int indent, qn_buf *out)
{
    write(v, indent, 0, out);
}
