/* Filters on single values; those on sequences are in filters_list.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "text/jinja/big.h"
#include "text/jinja/case.h"
#include "text/jinja/filters_list.h"

static qn_status to_string(qn_jrun *r, qn_jvalue v, const qn_jargs *a, const char *name, qn_jvalue *out)
{
    QN_TRY(qn_jargs_bind(r, name, a, "", 0, NULL));
    return qn_jstr(r, v, out);
}

static qn_status filter_string(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    return to_string(r, v, a, "string", out);
}

static qn_status change_case(qn_jrun *r, qn_jvalue v, const qn_jargs *a, const char *name, qn_jcase what,
                             qn_jvalue *out)
{
    QN_TRY(to_string(r, v, a, name, &v));
    return qn_jcase_change(r, v.s, what, out);
}

static qn_status filter_upper(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    return change_case(r, v, a, "upper", QN_JCASE_UPPER, out);
}

static qn_status filter_lower(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    return change_case(r, v, a, "lower", QN_JCASE_LOWER, out);
}

static qn_status filter_capitalize(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    return change_case(r, v, a, "capitalize", QN_JCASE_CAPITALIZE, out);
}

static qn_status filter_title(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    return change_case(r, v, a, "title", QN_JCASE_HEADLINE, out);
}

/* Calls a method of str on the text of v. */
static qn_status as_method(qn_jrun *r, qn_jvalue v, const char *method, const qn_jargs *a, qn_jvalue *out)
{
    qn_jstring name = {.data = method, .n = strlen(method)};
    QN_TRY(qn_jstr(r, v, &v));
    return qn_jmethod_find(v, &name)(r, v, a, out);
}

static qn_status filter_trim(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    return as_method(r, v, "strip", a, out);
}

static qn_status filter_center(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[1];
    QN_TRY(qn_jargs_bind(r, "center", a, "width", 0, bound));
    if (bound[0].kind == QN_J_MISSING) bound[0] = qn_jint(80, 0);
    const qn_jargs width = {.items = bound, .n = 1};
    return as_method(r, v, "center", &width, out);
}

static qn_status filter_replace(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[3];
    int64_t count;
    QN_TRY(qn_jargs_bind(r, "replace", a, "old new count", 2, bound));
    QN_TRY(qn_jarg_int(bound[2], "replace: count", -1, &count));
    QN_TRY(qn_jstr(r, v, &v));
    QN_TRY(qn_jstr(r, bound[0], &bound[0]));
    QN_TRY(qn_jstr(r, bound[1], &bound[1]));
    return qn_jreplace(r, v.s, bound[0].s, bound[1].s, count, out);
}

static qn_status filter_format(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue values;
    QN_TRY(qn_jstr(r, v, &v));
    if (a->n && a->n_named)
        return qn_fail(QN_E_ARG, "format takes positional or keyword arguments, not both");
    if (a->n_named) {
        QN_TRY(qn_jdict_new(&r->heap, a->n_named, 0, &values));
        for (uint32_t i = 0; i < a->n_named; i++)
            QN_TRY(qn_jdict_set(&r->heap, values.d, a->names[i], a->named[i]));
    } else {
        QN_TRY(qn_jlist_new(&r->heap, QN_JSHAPE_TUPLE, a->n, 0, &values));
        if (a->n) memcpy(values.l->items, a->items, a->n * sizeof values);
        values.l->n = a->n;
    }
    return qn_jformat_percent(r, v.s, values, out);
}

static qn_status filter_default(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[2];
    QN_TRY(qn_jargs_bind(r, "default", a, "default_value boolean", 0, bound));
    *out = v;
    int replace = v.kind == QN_J_UNDEFINED || (qn_jvalue_truth(bound[1]) && !qn_jvalue_truth(v));
    if (!replace) return QN_OK;
    *out = bound[0];
    return bound[0].kind == QN_J_MISSING ? qn_jstring_borrow(&r->heap, "", 0, NULL, 0, out) : QN_OK;
}

static qn_status filter_length(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    int64_t n;
    QN_TRY(qn_jargs_bind(r, "length", a, "", 0, NULL));
    QN_TRY(qn_jvalue_length(&r->heap, v, &n));
    *out = qn_jint(n, 0);
    return QN_OK;
}

static qn_status filter_indent(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[3], lines;
    qn_jbuild b, spaces;
    int64_t width;
    QN_TRY(qn_jargs_bind(r, "indent", a, "width first blank", 0, bound));
    int first = qn_jvalue_truth(bound[1]), blank = qn_jvalue_truth(bound[2]);
    if (bound[0].kind != QN_J_STRING) {
        QN_TRY(qn_jarg_int(bound[0], "indent: width", 4, &width));
        qn_jbuild_init(&spaces, &r->heap);
        spaces.limit_bytes = r->output_max;
        qn_jbuild_fill(&spaces, ' ', width, 0);
        QN_TRY(qn_jbuild_take(&spaces, &bound[0]));
    }
    if (v.kind != QN_J_STRING)
        return qn_fail(QN_E_ARG, "indent: expected a string, not %s", qn_jvalue_type(v));
    qn_jbuild_init(&b, &r->heap);
    qn_jbuild_string(&b, v.s);
    qn_jbuild_text(&b, "\n", 0);
    QN_TRY(qn_jbuild_take(&b, &v));
    QN_TRY(qn_jsplitlines(r, v.s, 0, &lines));
    qn_jbuild_init(&b, &r->heap);
    for (int64_t i = 0; i < lines.l->n; i++) {
        const qn_jstring *line = lines.l->items[i].s;
        if (i) qn_jbuild_text(&b, "\n", 0);
        if (i ? blank || line->n : first) qn_jbuild_string(&b, bound[0].s);
        qn_jbuild_string(&b, line);
    }
    return qn_jbuild_take(&b, out);
}

static qn_status filter_truncate(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[4], part;
    int64_t length, leeway;
    qn_jstring *s, *end, dots = {.data = "...", .n = 3, .n_chars = 3};
    qn_jbuild b;
    QN_TRY(qn_jargs_bind(r, "truncate", a, "length killwords end leeway", 0, bound));
    QN_TRY(qn_jarg_int(bound[0], "truncate: length", 255, &length));
    QN_TRY(qn_jarg_int(bound[3], "truncate: leeway", 5, &leeway));
    QN_TRY(qn_jarg_string(v, "truncate: the value", &s));
    end = bound[2].kind == QN_J_STRING ? bound[2].s : &dots;
    if (length < qn_jstring_length(end) || leeway < 0 || leeway > (1 << 30) || length > (1 << 30))
        return qn_fail(QN_E_ARG, "truncate: bad length or leeway");
    int64_t n = qn_jstring_length(s), kept = length - qn_jstring_length(end);
    *out = v;
    if (n <= length + leeway) return QN_OK;
    size_t to = qn_jstring_offset(s, kept);
    if (!qn_jvalue_truth(bound[1]))
        for (size_t i = to; i-- > 0;)
            if (s->data[i] == ' ') {
                to = i;
                break;
            }
    QN_TRY(qn_jstring_bytes(&r->heap, s, 0, to, &part));
    qn_jbuild_init(&b, &r->heap);
    qn_jbuild_string(&b, part.s);
    qn_jbuild_string(&b, end);
    return qn_jbuild_take(&b, out);
}

static qn_status filter_wordcount(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    int64_t count = 0;
    int inside = 0;
    QN_TRY(to_string(r, v, a, "wordcount", &v));
    QN_TRY(qn_jheap_walk(&r->heap, v.s->n));
    for (size_t i = 0; i < v.s->n; i++) {
        unsigned char c = (unsigned char)v.s->data[i];
        int word = c >= 128 || c == '_' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
        count += word && !inside;
        inside = word;
    }
    *out = qn_jint(count, 0);
    return QN_OK;
}

qn_status qn_jescape(qn_jrun *r, const qn_jstring *s, qn_jvalue *out)
{
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    qn_jbuild b;
    QN_TRY(qn_jheap_walk(&r->heap, s->n));
    qn_jbuild_init(&b, &r->heap);
    for (size_t i = 0; i < s->n && b.status == QN_OK; i++) {
        const char *hit = s->data[i] ? strchr(from, s->data[i]) : NULL;
        if (hit)
            qn_jbuild_text(&b, to[hit - from], qn_jstring_user_at(s, i));
        else
            qn_jbuild_part(&b, s, i, i + 1);
    }
    QN_TRY(qn_jbuild_take(&b, out));
    out->s->safe = 1;
    return QN_OK;
}

static qn_status filter_forceescape(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    QN_TRY(to_string(r, v, a, "escape", &v));
    return qn_jescape(r, v.s, out);
}

static qn_status filter_escape(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    if (v.kind != QN_J_STRING || !v.s->safe) return filter_forceescape(r, v, a, out);
    *out = v;
    return qn_jargs_bind(r, "escape", a, "", 0, NULL);
}

static qn_status filter_safe(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    QN_TRY(to_string(r, v, a, "safe", &v));
    QN_TRY(qn_jstring_bytes(&r->heap, v.s, 0, v.s->n, out));
    out->s->safe = 1;
    return QN_OK;
}

/* Percent escapes; in_query: of a key or value, where a slash is escaped and a space is a plus. */
static void put_quoted(qn_jbuild *b, const qn_jstring *s, int in_query)
{
    static const char hex[] = "0123456789ABCDEF";
    for (size_t i = 0; i < s->n && b->status == QN_OK; i++) {
        unsigned char c = (unsigned char)s->data[i];
        char escape[3] = {'%', hex[c >> 4], hex[c & 15]};
        int plain = (c >= '0' && c <= '9') || (c < 128 && (c | 32) >= 'a' && (c | 32) <= 'z') ||
                    (c && strchr(in_query ? "_.-~" : "_.-~/", c));
        if (plain)
            qn_jbuild_part(b, s, i, i + 1);
        else if (in_query && c == ' ')
            qn_jbuild_bytes(b, "+", 1, qn_jstring_user_at(s, i));
        else
            qn_jbuild_bytes(b, escape, 3, qn_jstring_user_at(s, i));
    }
}

static qn_status put_pair(qn_jrun *r, qn_jbuild *b, qn_jvalue key, qn_jvalue value)
{
    QN_TRY(qn_jstr(r, key, &key));
    QN_TRY(qn_jstr(r, value, &value));
    QN_TRY(qn_jheap_walk(&r->heap, key.s->n + value.s->n));
    if (b->n) qn_jbuild_text(b, "&", 0);
    put_quoted(b, key.s, 1);
    qn_jbuild_text(b, "=", 0);
    put_quoted(b, value.s, 1);
    return b->status;
}

static qn_status put_pairs(qn_jrun *r, qn_jbuild *b, qn_jvalue v)
{
    qn_jvalue *items, *pair;
    int64_t n, n_pair;
    if (v.kind == QN_J_DICT) {
        for (uint32_t i = 0; i < v.d->n; i++) QN_TRY(put_pair(r, b, v.d->keys[i], v.d->values[i]));
        return QN_OK;
    }
    QN_TRY(qn_jvalue_items(&r->heap, v, &items, &n));
    for (int64_t i = 0; i < n; i++) {
        if (items[i].kind != QN_J_LIST && items[i].kind != QN_J_DICT && items[i].kind != QN_J_STRING)
            return qn_fail(QN_E_ARG, "cannot unpack non-iterable %s object", qn_jvalue_type(items[i]));
        QN_TRY(qn_jvalue_items(&r->heap, items[i], &pair, &n_pair));
        if (n_pair < 2)
            return qn_fail(QN_E_ARG, "not enough values to unpack (expected 2, got %lld)", (long long)n_pair);
        if (n_pair > 2) return qn_fail(QN_E_ARG, "too many values to unpack (expected 2)");
        QN_TRY(put_pair(r, b, pair[0], pair[1]));
    }
    return QN_OK;
}

static qn_status filter_urlencode(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jbuild b;
    qn_jbuild_init(&b, &r->heap);
    if (v.kind == QN_J_DICT || v.kind == QN_J_LIST) {
        QN_TRY(qn_jargs_bind(r, "urlencode", a, "", 0, NULL));
        QN_TRY(put_pairs(r, &b, v));
        return qn_jbuild_take(&b, out);
    }
    QN_TRY(to_string(r, v, a, "urlencode", &v));
    QN_TRY(qn_jheap_walk(&r->heap, v.s->n));
    put_quoted(&b, v.s, 0);
    return qn_jbuild_take(&b, out);
}

/* Numbers. */

/* int() of text with surrounding white space and single underscores; base 2, 8, 16 may have their prefix. */
static int parse_int(const qn_jstring *s, int64_t base, int64_t *out)
{
    size_t i = 0, n = s->n;
    while (i < n && qn_jspace((unsigned char)s->data[i])) i++;
    while (n > i && qn_jspace((unsigned char)s->data[n - 1])) n--;
    int negative = i < n && s->data[i] == '-', digits = 0;
    i += i < n && (s->data[i] == '-' || s->data[i] == '+');
    if (n - i > 2 && s->data[i] == '0') {
        char mark = (char)(s->data[i + 1] | 32);
        if ((mark == 'x' && base == 16) || (mark == 'o' && base == 8) || (mark == 'b' && base == 2)) i += 2;
    }
    int64_t value = 0;
    for (; i < n; i++) {
        char c = s->data[i];
        if (c == '_' && digits && i + 1 < n && s->data[i + 1] != '_') continue;
        int digit = c >= '0' && c <= '9'                 ? c - '0'
                    : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10
                                                         : 99;
        if (digit >= base) return 0;
        if (__builtin_mul_overflow(value, base, &value) || __builtin_sub_overflow(value, digit, &value))
            return 0;
        digits++;
    }
    if (!digits || (!negative && value == INT64_MIN)) return 0;
    *out = negative ? value : -value;
    return 1;
}

static int parse_float(const qn_jstring *s, double *out)
{
    char text[128];
    size_t i = 0, n = s->n, length = 0;
    while (i < n && qn_jspace((unsigned char)s->data[i])) i++;
    while (n > i && qn_jspace((unsigned char)s->data[n - 1])) n--;
    if (i == n || n - i >= sizeof text) return 0;
    for (; i < n; i++) {
        char c = s->data[i];
        if (!c || c == 'x' || c == 'X' || c == 'p' || c == '(') return 0; /* strtod would take hexadecimal */
        if (c != '_') text[length++] = c;
    }
    text[length] = 0;
    char *end;
    *out = qn_parse_real(text, &end);
    return end == text + length;
}

static int whole_of(double f, int64_t *out)
{
    if (!(fabs(f) < 9223372036854775808.0)) return 0;
    *out = (int64_t)f;
    return 1;
}

/* The whole part of a float beyond 64 bits, exactly. */
static qn_status whole_big(qn_jrun *r, qn_jvalue v, qn_jvalue *out)
{
    char text[400];
    snprintf(text, sizeof text, "%.0f", fabs(v.f));
    QN_TRY(qn_jbig_parse(&r->heap, text, strlen(text), 10, v.user, out));
    return v.f < 0 ? qn_jnegate(r, *out, out) : QN_OK;
}

/* The digits of a text that is a whole number of base 10, with its sign and white space before them. */
static size_t digits_of(const qn_jstring *s, size_t *begin, int *negative)
{
    size_t i = 0, n = s->n;
    while (i < n && qn_jspace((unsigned char)s->data[i])) i++;
    while (n > i && qn_jspace((unsigned char)s->data[n - 1])) n--;
    *negative = i < n && s->data[i] == '-';
    i += i < n && (s->data[i] == '-' || s->data[i] == '+');
    *begin = i;
    while (i < n && s->data[i] >= '0' && s->data[i] <= '9') i++;
    return i == n ? n - *begin : 0;
}

static int is_big_text(const qn_jstring *s, int64_t base)
{
    size_t begin;
    int negative;
    return base == 10 && digits_of(s, &begin, &negative) > 18;
}

static qn_status parse_big(qn_jrun *r, qn_jvalue v, int64_t base, qn_jvalue *out)
{
    size_t begin;
    int negative;
    const size_t n = digits_of(v.s, &begin, &negative);
    QN_TRY(qn_jbig_parse(&r->heap, v.s->data + begin, n, (int)base, v.user, out));
    return negative ? qn_jnegate(r, *out, out) : QN_OK;
}

static qn_status filter_int(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[2];
    int64_t base, i = 0;
    double f;
    QN_TRY(qn_jargs_bind(r, "int", a, "default base", 0, bound));
    QN_TRY(qn_jarg_int(bound[1], "int: base", 10, &base));
    if (base < 2 || base > 36) return qn_fail(QN_E_ARG, "int: the base must be 2 to 36");
    if (v.kind == QN_J_UNDEFINED) return qn_jfail_undefined(v);
    int known = 0;
    if (v.kind == QN_J_STRING) {
        known = parse_int(v.s, base, &i);
        if (!known && !is_big_text(v.s, base) && parse_float(v.s, &f) && !isnan(f) && !isinf(f))
            v = qn_jfloat(f, v.user);
    }
    if (v.kind == QN_J_STRING && !known && is_big_text(v.s, base)) return parse_big(r, v, base, out);
    if (v.kind == QN_J_BIG) {
        *out = v;
        return QN_OK;
    }
    if (qn_jis_whole(v)) {
        known = 1;
        i = v.i;
    }
    if (v.kind == QN_J_FLOAT) {
        if (isinf(v.f)) return qn_fail(QN_E_ARG, "cannot convert float infinity to integer");
        if (!isnan(v.f) && !whole_of(v.f, &i)) return whole_big(r, v, out);
        known = !isnan(v.f);
    }
    *out = known ? qn_jint(i, v.user) : bound[0].kind == QN_J_MISSING ? qn_jint(0, 0) : bound[0];
    return QN_OK;
}

static qn_status filter_float(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[1];
    double f;
    QN_TRY(qn_jargs_bind(r, "float", a, "default", 0, bound));
    if (v.kind == QN_J_UNDEFINED) return qn_jfail_undefined(v);
    *out = bound[0].kind == QN_J_MISSING ? qn_jfloat(0, 0) : bound[0];
    if (qn_jis_number(v)) *out = qn_jfloat(qn_jvalue_double(v), v.user);
    if (v.kind == QN_J_STRING && parse_float(v.s, &f)) *out = qn_jfloat(f, v.user);
    return QN_OK;
}

static qn_status filter_abs(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    QN_TRY(qn_jargs_bind(r, "abs", a, "", 0, NULL));
    if (v.kind == QN_J_FLOAT) {
        *out = qn_jfloat(fabs(v.f), v.user);
        return QN_OK;
    }
    *out = v;
    if (v.kind == QN_J_BIG) return v.big->negative ? qn_jnegate(r, v, out) : QN_OK;
    if (!qn_jis_whole(v) || v.i < 0) return qn_jnegate(r, v, out);
    *out = qn_jint(v.i, v.user);
    return QN_OK;
}

static qn_status filter_round(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[2];
    int64_t precision;
    QN_TRY(qn_jargs_bind(r, "round", a, "precision method", 0, bound));
    QN_TRY(qn_jarg_int(bound[0], "round: precision", 0, &precision));
    if (!qn_jis_number(v)) return qn_fail(QN_E_ARG, "round: expected a number, not %s", qn_jvalue_type(v));
    if (precision < -300 || precision > 300) return qn_fail(QN_E_ARG, "round: bad precision");
    double f = qn_jvalue_double(v), scale = pow(10, (double)precision);
    int ceiling = bound[1].kind == QN_J_STRING && qn_jstring_is(bound[1].s, "ceil");
    int down = bound[1].kind == QN_J_STRING && qn_jstring_is(bound[1].s, "floor");
    if (ceiling || down) {
        *out = qn_jfloat((ceiling ? ceil(f * scale) : floor(f * scale)) / scale, v.user);
        return QN_OK;
    }
    if (bound[1].kind != QN_J_MISSING &&
        !(bound[1].kind == QN_J_STRING && qn_jstring_is(bound[1].s, "common")))
        return qn_fail(QN_E_ARG, "round: method must be common, ceil or floor");
    if (v.kind == QN_J_BIG && precision < 0)
        return qn_fail(QN_E_UNSUPPORTED, "round: an integer beyond 64 bits with a negative precision");
    if (v.kind == QN_J_BIG) {
        *out = v;
        return QN_OK;
    }
    if (qn_jis_whole(v) && precision >= 0) {
        *out = qn_jint(v.i, v.user);
        return QN_OK;
    }
    if (precision > 0) { /* decimal rounding of the exact value, as Python does it */
        char text[700];
        locale_t before = qn_c_locale_enter();
        snprintf(text, sizeof text, "%.*f", (int)precision, f);
        f = strtod(text, NULL);
        qn_c_locale_leave(before);
    } else {
        f = nearbyint(f * scale) / scale;
    }
    int64_t whole = 0;
    if (qn_jis_whole(v) && !whole_of(f, &whole))
        return qn_fail(QN_E_ARG, "an integer does not fit into 64 bits");
    *out = qn_jis_whole(v) ? qn_jint(whole, v.user) : qn_jfloat(f, v.user);
    return QN_OK;
}

static qn_status filter_attr(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[1];
    qn_jstring *name;
    QN_TRY(qn_jargs_bind(r, "attr", a, "name", 1, bound));
    QN_TRY(qn_jarg_string(bound[0], "attr: the name", &name));
    if (v.kind == QN_J_DICT && !qn_jmethod_find(v, name) &&
        !(name->n > 1 && memcmp(name->data, "__", 2) == 0))
        return qn_jundefined(&r->heap, "dict", name->data, name->n, 0, out);
    return qn_jgetattr(r, v, name, out);
}

static const qn_jfunction_row value_filters[] = {
    {"tojson", qn_jfilter_tojson},
    {"trim", filter_trim},
    {"length", filter_length},
    {"count", filter_length},
    {"default", filter_default},
    {"d", filter_default},
    {"string", filter_string},
    {"safe", filter_safe},
    {"upper", filter_upper},
    {"lower", filter_lower},
    {"capitalize", filter_capitalize},
    {"title", filter_title},
    {"replace", filter_replace},
    {"format", filter_format},
    {"indent", filter_indent},
    {"int", filter_int},
    {"float", filter_float},
    {"abs", filter_abs},
    {"round", filter_round},
    {"escape", filter_escape},
    {"e", filter_escape},
    {"forceescape", filter_forceescape},
    {"urlencode", filter_urlencode},
    {"truncate", filter_truncate},
    {"wordcount", filter_wordcount},
    {"wordwrap", qn_jfilter_wordwrap},
    {"pprint", qn_jfilter_pprint},
    {"center", filter_center},
    {"attr", filter_attr},
};

const void *qn_jfilter_find(const qn_jstring *name)
{
    const qn_jfunction_row *row =
        qn_jrow_find(value_filters, sizeof value_filters / sizeof *value_filters, name);
    return row ? row : qn_jlist_filter_find(name);
}

qn_status qn_jfilter_call(qn_jrun *r, const void *filter, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    const qn_jfunction_row *row = filter;
    QN_TRY(qn_jheap_step(&r->heap, 1));
    if (v.kind == QN_J_UNDEFINED && v.hint && v.hint->unsafe && row->fn != filter_default)
        return qn_jfail_undefined(v);
    return row->fn(r, v, a, out);
}
