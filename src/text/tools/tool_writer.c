#include "text/tools/tool_writer.h"

#include <string.h>

#include "base/json/json.h"
#include "base/json/json_value.h"
#include "text/jinja/template.h"
#include "text/tools/tool_formats.h"

int qn_tool_writer_knows(const qn_call_format *f)
{
    return f && f->open && !f->header.open && (f->body == QN_CALL_JSON || f->body == QN_CALL_PYTHON);
}

/* Of a call: the object, a new reference, or NULL. */
static json_t *arguments_of(const json_t *call)
{
    json_t *given = json_object_get(json_object_get(call, "function"), "arguments"), *read = NULL;
    if (json_is_object(given)) return json_incref(given);
    if (json_is_string(given) &&
        qn_json_parse_lenient("arguments", json_string_value(given), json_string_length(given), &read) ==
            QN_OK &&
        json_is_object(read))
        return read;
    json_decref(read);
    return NULL;
}

static int is_identifier(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_",
                      digits[] = "0123456789";
    if (!*text || !strchr(letters, *text)) return 0;
    for (; *text; text++)
        if (!strchr(letters, *text) && !strchr(digits, *text)) return 0;
    return 1;
}

/* ---- Python -------------------------------------------------------------------------------------------- */

static void put_python(const json_t *value, qn_buf *out)
{
    const char *key;
    json_t *member;
    size_t i, n = 0;
    if (qn_json_digits(value)) {
        qn_json_write_value(out, value);
    } else if (json_is_null(value)) {
        qn_buf_puts(out, "None");
    } else if (json_is_boolean(value)) {
        qn_buf_puts(out, json_is_true(value) ? "True" : "False");
    } else if (json_is_array(value)) {
        qn_buf_putc(out, '[');
        json_array_foreach(value, i, member)
        {
            if (i) qn_buf_puts(out, ", ");
            put_python(member, out);
        }
        qn_buf_putc(out, ']');
    } else if (json_is_object(value)) {
        qn_buf_putc(out, '{');
        json_object_foreach((json_t *)value, key, member)
        {
            if (n++) qn_buf_puts(out, ", ");
            qn_buf_json_string(out, key, strlen(key));
            qn_buf_puts(out, ": ");
            put_python(member, out);
        }
        qn_buf_putc(out, '}');
    } else {
        qn_json_write_value(out, value);
    }
}

static int put_python_call(const char *name, const json_t *arguments, qn_buf *out)
{
    const char *key;
    json_t *value;
    size_t n = 0;
    qn_buf_printf(out, "%s(", name);
    json_object_foreach((json_t *)arguments, key, value)
    {
        if (!is_identifier(key)) return 0;
        if (n++) qn_buf_puts(out, ", ");
        qn_buf_printf(out, "%s=", key);
        put_python(value, out);
    }
    qn_buf_putc(out, ')');
    return 1;
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void put_json_call(const qn_call_format *f, const char *name, const json_t *arguments, qn_buf *out)
{
    qn_buf_printf(out, "{\"%s\": ", f->name_key ? f->name_key : "name");
    qn_buf_json_string(out, name, strlen(name));
    qn_buf_printf(out, ", \"%s\": ", f->arguments_key ? f->arguments_key : "arguments");
    qn_json_write_value(out, arguments);
    qn_buf_putc(out, '}');
}

/* ---- calls --------------------------------------------------------------------------------------------- */

static void put_mark(const char *mark, qn_buf *out)
{
    if (!mark) return;
    qn_buf_putc(out, QN_TEMPLATE_SWITCH);
    qn_buf_puts(out, mark);
    qn_buf_putc(out, QN_TEMPLATE_SWITCH);
}

static int put_call(const qn_call_format *f, const json_t *call, qn_buf *out)
{
    const char *name = json_string_value(json_object_get(json_object_get(call, "function"), "name"));
    json_t *arguments = arguments_of(call);
    int is_written = name && arguments;
    if (is_written && f->body == QN_CALL_PYTHON)
        is_written = put_python_call(name, arguments, out);
    else if (is_written)
        put_json_call(f, name, arguments, out);
    json_decref(arguments);
    return is_written;
}

int qn_tool_writer_put(const qn_call_format *f, const json_t *calls, qn_buf *out)
{
    /* What is bare has no marks: they are part of the calls. */
    const char *open = f->is_bare ? NULL : f->open, *close = f->is_bare ? NULL : f->close;
    const int is_list = f->writes_array, is_lines = f->body == QN_CALL_PYTHON && !is_list;
    const char *between = close ? "\n" : "";
    qn_buf made = {0};
    int is_written = qn_tool_writer_knows(f);
    if (is_list || is_lines) put_mark(open, &made);
    if (is_list) qn_buf_putc(&made, '[');
    for (size_t i = 0; i < json_array_size(calls) && is_written; i++) {
        if (i) qn_buf_puts(&made, is_list ? ", " : "\n");
        if (!is_list && !is_lines) {
            put_mark(open, &made);
            qn_buf_puts(&made, between);
        }
        is_written = put_call(f, json_array_get(calls, i), &made);
        if (!is_list && !is_lines) {
            qn_buf_puts(&made, between);
            put_mark(close, &made);
        }
    }
    if (is_list) qn_buf_putc(&made, ']');
    if (is_list || is_lines) put_mark(close, &made);
    if (is_written) qn_buf_append(out, made.data, made.length);
    if (made.status != QN_OK && out->status == QN_OK) out->status = made.status;
    qn_buf_free(&made);
    return is_written;
}
