/* Python's two ways to fill text in: '...' % values and '...'.format(values). The pattern's bytes keep their
 * provenance, the values' bytes theirs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja/big.h"
#include "text/jinja/run.h"

enum { WIDTH_MAX = 10000, PRECISION_MAX = 100, NUMBER_TEXT_MAX = 512 };

/* How one value is to be written. */
typedef struct {
    char type;                        /* 0: none given */
    char fill, align, sign, grouping; /* 0: none given */
    int alternate;
    int64_t width, precision; /* -1: none given */
} field;

/* Writes text with padding; the sign of a number may come before zeros. */
static void write_padded(qn_jbuild *b, const field *f, const qn_jstring *s, int is_number)
{
    qn_jstring copy = *s;
    copy.n_chars = -1;
    int64_t n = qn_jstring_length(&copy), missing = f->width > n ? f->width - n : 0;
    char align = f->align ? f->align : is_number ? '>' : '<', fill = f->fill ? f->fill : ' ';
    int64_t left = align == '>' ? missing : align == '^' ? missing / 2 : 0;
    size_t sign = align == '=' && s->n && (s->data[0] == '-' || s->data[0] == '+' || s->data[0] == ' ');
    qn_jbuild_part(b, s, 0, sign);
    qn_jbuild_fill(b, fill, align == '=' ? missing : left, 0);
    qn_jbuild_part(b, s, sign, s->n);
    if (align != '=') qn_jbuild_fill(b, fill, missing - left, 0);
}

/* Puts separators between groups of digits of the whole part. */
static void group_digits(char *text, size_t size, char separator, size_t n_group)
{
    size_t n = strlen(text), start = text[0] == '-' || text[0] == '+' || text[0] == ' ', digits = start;
    if (text[start] == '0' && text[start + 1] && strchr("xXob", text[start + 1])) digits = start += 2;
    while (digits < n && ((text[digits] >= '0' && text[digits] <= '9') ||
                          (n_group == 4 && strchr("abcdefABCDEF", text[digits]))))
        digits++;
    for (size_t at = digits; at > start + n_group && n + 1 < size;) {
        at -= n_group;
        memmove(text + at + 1, text + at, n - at + 1);
        text[at] = separator;
        n++;
    }
}

/* Sign, prefix, zeros and separators around the digits of a size. */
static void finish_int(const field *f, int negative, const char *digits, char *out, size_t size)
{
    const char *prefix = "";
    if (f->alternate)
        prefix = f->type == 'x'   ? "0x"
                 : f->type == 'X' ? "0X"
                 : f->type == 'o' ? "0o"
                 : f->type == 'b' ? "0b"
                                  : "";
    const char *sign = negative ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "";
    int zeros = f->precision > (int64_t)strlen(digits) ? (int)f->precision - (int)strlen(digits) : 0;
    snprintf(out, size, "%s%s%.*s%s", sign, prefix, zeros,
             "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
             "00000",
             digits);
    if (f->grouping) group_digits(out, size, f->grouping, f->type && strchr("xXob", f->type) ? 4 : 3);
}

static void int_text(const field *f, qn_jvalue v, char *out, size_t size)
{
    uint64_t magnitude = v.i < 0 ? 0 - (uint64_t)v.i : (uint64_t)v.i;
    char digits[80];
    int n = 0;
    if (f->type == 'b') {
        for (uint64_t m = magnitude; m || !n; m >>= 1) digits[n++] = (char)('0' + (m & 1));
        for (int i = 0; i < n / 2; i++) {
            char c = digits[i];
            digits[i] = digits[n - 1 - i];
            digits[n - 1 - i] = c;
        }
        digits[n] = 0;
    } else {
        const char *format = f->type == 'x'   ? "%llx"
                             : f->type == 'X' ? "%llX"
                             : f->type == 'o' ? "%llo"
                                              : "%llu";
        snprintf(digits, sizeof digits, format, (unsigned long long)magnitude);
    }
    finish_int(f, v.i < 0, digits, out, size);
}

/* An integer beyond 64 bits. *out lives as long as the heap. */
static qn_status big_text(qn_jheap *h, const field *f, const struct qn_jbig *v, char **out)
{
    const int base = f->type == 'b' ? 2 : f->type == 'o' ? 8 : f->type == 'x' || f->type == 'X' ? 16 : 10;
    char *digits;
    QN_TRY(qn_jbig_digits(h, v, base, &digits));
    for (char *c = digits; f->type == 'X' && *c; c++)
        if (*c >= 'a') *c = (char)(*c - 'a' + 'A');
    const size_t size = 2 * strlen(digits) + PRECISION_MAX + 8;
    char *text = qn_jheap_alloc(h, size, 1);
    if (!text) return h->status;
    if (f->grouping) QN_TRY(qn_jheap_step(h, size * size / 64));
    finish_int(f, v->negative, digits, text, size);
    *out = text;
    return QN_OK;
}

static void float_text(const field *f, double value, char *out, size_t size)
{
    char pattern[16];
    int precision = f->precision < 0 ? 6 : (int)f->precision, percent = f->type == '%';
    if (percent) value *= 100;
    if (!f->type && f->precision < 0) {
        qn_jfloat_repr(value, out);
    } else {
        char type = percent ? 'f' : f->type ? f->type : 'g';
        const char *flags = f->sign == '+' ? "+" : f->sign == ' ' ? " " : "";
        snprintf(pattern, sizeof pattern, "%%%s%s.*%c", flags, f->alternate ? "#" : "",
                 type == 'n' ? 'g' : type);
        snprintf(out, size, pattern, precision, value);
        if (percent) {
            size_t n = strlen(out);
            if (n + 1 < size) memcpy(out + n, "%", 2);
        }
    }
    if (f->grouping) group_digits(out, size, f->grouping, 3);
}

static qn_status write_number_field(qn_jrun *r, qn_jbuild *b, field *f, qn_jvalue v)
{
    char room[NUMBER_TEXT_MAX], *text = room;
    const int whole = !f->type || strchr("dxXobn", f->type);
    if (f->precision > PRECISION_MAX)
        return qn_fail(QN_E_ARG, "a precision above %d is not supported", PRECISION_MAX);
    if (f->grouping == ',' && f->type && strchr("xXobn", f->type))
        return qn_fail(QN_E_ARG, "Cannot specify ',' with '%c'.", f->type);
    if (whole && v.kind == QN_J_BIG) {
        QN_TRY(big_text(&r->heap, f, v.big, &text));
    } else if (whole && qn_jis_whole(v)) {
        int_text(f, v, room, sizeof room);
    } else {
        const double value = qn_jvalue_double(v);
        if (v.kind == QN_J_BIG && isinf(value)) return qn_fail(QN_E_ARG, "int too large to convert to float");
        float_text(f, value, room, sizeof room);
    }
    qn_jstring s = {.data = text, .n = strlen(text), .user = v.user, .n_chars = -1};
    write_padded(b, f, &s, 1);
    return b->status;
}

static qn_status write_string_field(qn_jrun *r, qn_jbuild *b, const field *f, qn_jvalue v)
{
    qn_jvalue s;
    QN_TRY(qn_jstr(r, v, &s));
    if (f->precision >= 0 && f->precision < qn_jstring_length(s.s))
        QN_TRY(qn_jstring_bytes(&r->heap, s.s, 0, qn_jstring_offset(s.s, f->precision), &s));
    write_padded(b, f, s.s, 0);
    return b->status;
}

static qn_status repr_value(qn_jrun *r, qn_jvalue v, qn_jvalue *out)
{
    qn_jbuild b;
    qn_jbuild_init(&b, &r->heap);
    QN_TRY(qn_jwrite_repr(r, &b, v));
    return qn_jbuild_take(&b, out);
}

/* '...' % values */

typedef struct {
    const qn_jstring *s;
    size_t at;
    qn_jvalue arguments;
    int64_t used;
} percent_state;

static qn_status next_argument(percent_state *p, qn_jvalue *out)
{
    int is_tuple = p->arguments.kind == QN_J_LIST && p->arguments.l->shape == QN_JSHAPE_TUPLE;
    int64_t n = is_tuple ? p->arguments.l->n : 1;
    if (p->used >= n) return qn_fail(QN_E_ARG, "not enough arguments for format string");
    *out = is_tuple ? p->arguments.l->items[p->used] : p->arguments;
    p->used++;
    return QN_OK;
}

static qn_status percent_number(percent_state *p, int64_t *out)
{
    *out = 0;
    if (p->at < p->s->n && p->s->data[p->at] == '*') {
        qn_jvalue v;
        p->at++;
        QN_TRY(next_argument(p, &v));
        QN_TRY(qn_jarg_int(v, "a width or precision", 0, out));
    } else {
        for (; p->at < p->s->n && p->s->data[p->at] >= '0' && p->s->data[p->at] <= '9' && *out <= WIDTH_MAX;
             p->at++)
            *out = *out * 10 + (p->s->data[p->at] - '0');
    }
    if (*out > WIDTH_MAX || *out < -WIDTH_MAX)
        return qn_fail(QN_E_ARG, "a width above %d is not supported", WIDTH_MAX);
    return QN_OK;
}

static qn_status percent_key(qn_jrun *r, percent_state *p, qn_jvalue *value)
{
    size_t from = ++p->at;
    while (p->at < p->s->n && p->s->data[p->at] != ')') p->at++;
    if (p->at == p->s->n) return qn_fail(QN_E_ARG, "incomplete format key");
    if (p->arguments.kind != QN_J_DICT) return qn_fail(QN_E_ARG, "format requires a mapping");
    qn_jvalue key, *found;
    QN_TRY(qn_jstring_bytes(&r->heap, p->s, from, p->at++, &key));
    QN_TRY(qn_jdict_get(&r->heap, p->arguments.d, key, &found));
    if (!found) return qn_fail(QN_E_ARG, "the mapping lacks a key of the format string");
    *value = *found;
    return QN_OK;
}

static qn_status percent_value(qn_jrun *r, qn_jbuild *b, field *f, qn_jvalue v)
{
    if (f->type == 's') return write_string_field(r, b, f, v);
    if (f->type == 'r' || f->type == 'a') {
        QN_TRY(repr_value(r, v, &v));
        return write_string_field(r, b, f, v);
    }
    if (f->type == 'c' && v.kind == QN_J_STRING && qn_jstring_length(v.s) == 1)
        return write_string_field(r, b, f, v);
    if (v.kind == QN_J_UNDEFINED) return qn_jfail_undefined(v);
    if (!qn_jis_number(v))
        return qn_fail(QN_E_ARG, "%%%c format: a number is required, not %s", f->type, qn_jvalue_type(v));
    if (f->type == 'i' || f->type == 'u') f->type = 'd';
    if (strchr("dxXo", f->type) && v.kind == QN_J_FLOAT) {
        if (f->type != 'd' || !(fabs(v.f) < 9e18))
            return qn_fail(QN_E_ARG, "%%%c format: an integer is required, not float", f->type);
        v = qn_jint((int64_t)v.f, v.user);
    }
    if (!strchr("dxXoeEfFgG", f->type))
        return qn_fail(QN_E_ARG, "unsupported format character '%c'", f->type);
    return write_number_field(r, b, f, v);
}

/* One % directive; p->at stands after the percent sign. */
static qn_status percent_field(qn_jrun *r, qn_jbuild *b, percent_state *p)
{
    field f = {.width = -1, .precision = -1, .align = '>'};
    qn_jvalue value = {.kind = QN_J_MISSING};
    const qn_jstring *s = p->s;
    if (p->at < s->n && s->data[p->at] == '(') QN_TRY(percent_key(r, p, &value));
    for (int left = 0; p->at < s->n && s->data[p->at] && strchr("-+ #0", s->data[p->at]); p->at++) {
        char c = s->data[p->at];
        if (c == '-') left = 1;
        if (c == '+' || (c == ' ' && !f.sign)) f.sign = c;
        if (c == '#') f.alternate = 1;
        if (c == '0') f.fill = '0';
        f.align = left ? '<' : f.fill ? '=' : '>';
        if (left) f.fill = 0;
    }
    QN_TRY(percent_number(p, &f.width));
    if (f.width < 0) {
        f.align = '<';
        f.width = -f.width;
    }
    if (p->at < s->n && s->data[p->at] == '.') {
        p->at++;
        QN_TRY(percent_number(p, &f.precision));
    }
    if (p->at == s->n) return qn_fail(QN_E_ARG, "incomplete format");
    f.type = s->data[p->at++];
    if (f.type == '%') {
        qn_jbuild_part(b, s, p->at - 1, p->at);
        return b->status;
    }
    if ((f.type == 's' || f.type == 'r') && f.align == '=') {
        f.align = '>';
        f.fill = 0;
    }
    if (value.kind == QN_J_MISSING) QN_TRY(next_argument(p, &value));
    return percent_value(r, b, &f, value);
}

qn_status qn_jformat_percent(qn_jrun *r, const qn_jstring *format, qn_jvalue arguments, qn_jvalue *out)
{
    percent_state p = {.s = format, .arguments = arguments};
    qn_jbuild b;
    qn_jbuild_init(&b, &r->heap);
    while (p.at < format->n && b.status == QN_OK) {
        const char *hit = memchr(format->data + p.at, '%', format->n - p.at);
        size_t to = hit ? (size_t)(hit - format->data) : format->n;
        qn_jbuild_part(&b, format, p.at, to);
        p.at = to + 1;
        if (!hit) break;
        QN_TRY(qn_jheap_step(&r->heap, 1));
        QN_TRY(percent_field(r, &b, &p));
    }
    int is_tuple = arguments.kind == QN_J_LIST && arguments.l->shape == QN_JSHAPE_TUPLE;
    int left_over = is_tuple ? p.used < arguments.l->n
                             : !p.used && arguments.kind != QN_J_DICT && arguments.kind != QN_J_LIST &&
                                   arguments.kind != QN_J_UNDEFINED;
    if (left_over) return qn_fail(QN_E_ARG, "not all arguments converted during string formatting");
    return qn_jbuild_take(&b, out);
}

/* '...'.format(values) */

static qn_status parse_spec(const char *s, size_t n, field *f)
{
    size_t i = 0;
    *f = (field){.width = -1, .precision = -1};
    if (n >= 2 && s[1] && strchr("<>^=", s[1])) {
        f->fill = s[0];
        f->align = s[1];
        i = 2;
    } else if (n && s[0] && strchr("<>^=", s[0])) {
        f->align = s[i++];
    }
    if (i < n && (s[i] == '+' || s[i] == '-' || s[i] == ' ')) f->sign = s[i++];
    if (i < n && s[i] == '#') f->alternate = (int)++i;
    if (i < n && s[i] == '0') {
        if (!f->align) f->align = '=';
        if (!f->fill) f->fill = '0';
        i++;
    }
    for (; i < n && s[i] >= '0' && s[i] <= '9'; i++) {
        f->width = (f->width < 0 ? 0 : f->width) * 10 + (s[i] - '0');
        if (f->width > WIDTH_MAX) return qn_fail(QN_E_ARG, "a width above %d is not supported", WIDTH_MAX);
    }
    if (i < n && (s[i] == ',' || s[i] == '_')) f->grouping = s[i++];
    if (i < n && s[i] == '.') {
        f->precision = 0;
        for (i++; i < n && s[i] >= '0' && s[i] <= '9'; i++) {
            f->precision = f->precision * 10 + (s[i] - '0');
            if (f->precision > WIDTH_MAX)
                return qn_fail(QN_E_ARG, "a precision above %d is not supported", WIDTH_MAX);
        }
    }
    if (i < n) f->type = s[i++];
    if (i < n || (f->type && !strchr("sdxXobeEfFgGn%", f->type)))
        return qn_fail(QN_E_ARG, "invalid format specifier");
    return QN_OK;
}

static qn_status write_formatted(qn_jrun *r, qn_jbuild *b, qn_jvalue v, const char *spec, size_t n)
{
    field f;
    QN_TRY(parse_spec(spec, n, &f));
    if (n && v.kind == QN_J_UNDEFINED) return qn_jfail_undefined(v);
    if (n && v.kind != QN_J_STRING && !qn_jis_number(v))
        return qn_fail(QN_E_ARG, "unsupported format string passed to %s", qn_jvalue_type(v));
    if (!n || v.kind == QN_J_STRING || (v.kind == QN_J_BOOL && !f.type)) {
        if (f.type && f.type != 's')
            return qn_fail(QN_E_ARG, "unknown format code '%c' for a string", f.type);
        return write_string_field(r, b, &f, v);
    }
    if (f.type == 's' || (v.kind == QN_J_FLOAT && f.type && strchr("dxXob", f.type)))
        return qn_fail(QN_E_ARG, "unknown format code '%c' for a number", f.type);
    return write_number_field(r, b, &f, v);
}

typedef struct {
    qn_jrun *run;
    const qn_jargs *a;
    int64_t next; /* of {} */
} format_state;

/* The value that a name like `0`, `x`, `x.y`, `x[0]` means. */
static qn_status format_value(format_state *p, const qn_jstring *s, size_t from, size_t to, qn_jvalue *out)
{
    size_t end = from;
    while (end < to && s->data[end] != '.' && s->data[end] != '[') end++;
    int64_t number = 0;
    int digits = end - from < 10;
    for (size_t i = from; i < end && digits; i++) {
        digits = s->data[i] >= '0' && s->data[i] <= '9';
        number = number * 10 + (s->data[i] - '0');
    }
    if (end == from) number = p->next++;
    if (digits) {
        if (number >= p->a->n)
            return qn_fail(QN_E_ARG, "format: there is no argument %lld", (long long)number);
        *out = p->a->items[number];
    } else {
        out->kind = QN_J_MISSING;
        for (uint32_t i = 0; i < p->a->n_named; i++) {
            const qn_jstring *name = p->a->names[i].s;
            if (name->n == end - from && memcmp(name->data, s->data + from, name->n) == 0)
                *out = p->a->named[i];
        }
        if (out->kind == QN_J_MISSING)
            return qn_fail(QN_E_ARG, "format: there is no argument '%.*s'",
                           end - from > 60 ? 60 : (int)(end - from), s->data + from);
    }
    while (end < to) {
        int bracket = s->data[end++] == '[';
        size_t start = end;
        qn_jvalue key;
        while (end < to && (bracket ? s->data[end] != ']' : s->data[end] != '.' && s->data[end] != '['))
            end++;
        if (end == start || (bracket && end == to))
            return qn_fail(QN_E_ARG, "format: an empty or open attribute");
        QN_TRY(qn_jstring_bytes(&p->run->heap, s, start, end, &key));
        QN_TRY(bracket ? qn_jgetpath(p->run, *out, key, qn_jnone(), out)
                       : qn_jgetattr(p->run, *out, key.s, out));
        end += (size_t)bracket;
    }
    return QN_OK;
}

/* The field between braces, s[from, to). */
static qn_status format_field(format_state *p, qn_jbuild *b, const qn_jstring *s, size_t from, size_t to)
{
    size_t name_end = from, spec = to;
    qn_jvalue v;
    while (name_end < to && s->data[name_end] != '!' && s->data[name_end] != ':') name_end++;
    QN_TRY(format_value(p, s, from, name_end, &v));
    size_t at = name_end;
    if (at < to && s->data[at] == '!') {
        char conversion = at + 1 < to ? s->data[at + 1] : 0;
        if (conversion != 's' && conversion != 'r') return qn_fail(QN_E_ARG, "format: bad conversion");
        QN_TRY(conversion == 's' ? qn_jstr(p->run, v, &v) : repr_value(p->run, v, &v));
        at += 2;
    }
    if (at < to) {
        if (s->data[at] != ':') return qn_fail(QN_E_ARG, "format: expected ':' after the conversion");
        spec = at + 1;
    }
    if (memchr(s->data + spec, '{', to - spec)) return qn_fail(QN_E_UNSUPPORTED, "format: nested fields");
    return write_formatted(p->run, b, v, s->data + spec, to - spec);
}

qn_status qn_jmethod_format(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    const qn_jstring *s = self.s;
    format_state p = {.run = r, .a = a};
    qn_jbuild b;
    qn_jbuild_init(&b, &r->heap);
    for (size_t i = 0; i < s->n && b.status == QN_OK;) {
        size_t to = i;
        while (to < s->n && s->data[to] != '{' && s->data[to] != '}') to++;
        qn_jbuild_part(&b, s, i, to);
        if (to == s->n) break;
        QN_TRY(qn_jheap_step(&r->heap, 1));
        if (to + 1 < s->n && s->data[to + 1] == s->data[to]) {
            qn_jbuild_part(&b, s, to, to + 1);
            i = to + 2;
            continue;
        }
        if (s->data[to] == '}') return qn_fail(QN_E_ARG, "single '}' encountered in format string");
        const char *end = memchr(s->data + to, '}', s->n - to);
        if (!end) return qn_fail(QN_E_ARG, "expected '}' before end of format string");
        i = (size_t)(end - s->data);
        QN_TRY(format_field(&p, &b, s, to + 1, i));
        i++;
    }
    return qn_jbuild_take(&b, out);
}
