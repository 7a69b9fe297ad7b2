/* Values as text: str(), repr() and JSON, and JSON as values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/c_locale.h"
#include "base/json/json.h"
#include "text/jinja/big.h"
#include "text/jinja/run.h"
#include "text/jinja/template.h"

void qn_jfloat_repr(double f, char *out)
{
    char digits[40];
    if (isnan(f) || isinf(f)) {
        memcpy(out, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf", 5 - (isnan(f) || f > 0));
        return;
    }
    locale_t before = qn_c_locale_enter();
    for (int precision = 0; precision < 17; precision++) { /* the shortest that reads back as f */
        snprintf(digits, sizeof digits, "%.*e", precision, f);
        if (strtod(digits, NULL) == f) break;
    }
    qn_c_locale_leave(before);
    const char *mantissa = digits + (digits[0] == '-');
    const char *e = strchr(digits, 'e');
    int exponent = (int)strtol(e + 1, NULL, 10);
    char plain[24];
    int n = 0;
    for (const char *s = mantissa; s < e; s++)
        if (*s >= '0' && *s <= '9') plain[n++] = *s;
    plain[n] = 0;
    char *o = out;
    if (digits[0] == '-') *o++ = '-';
    if (exponent < -4 || exponent >= 16) {
        snprintf(o, 60, "%c%s%se%c%02d", plain[0], n > 1 ? "." : "", plain + 1, exponent < 0 ? '-' : '+',
                 abs(exponent));
    } else if (exponent < 0) {
        snprintf(o, 60, "0.%.*s%s", -exponent - 1, "0000", plain);
    } else {
        for (int i = 0; i <= exponent; i++) *o++ = i < n ? plain[i] : '0';
        snprintf(o, 40, ".%s", n > exponent + 1 ? plain + exponent + 1 : "0");
    }
}

/* Is it shown as it is by repr()? */
static int is_printable(uint32_t c)
{
    if (c < 127) return c >= 32;
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category != UTF8PROC_CATEGORY_CN &&
           (category < UTF8PROC_CATEGORY_ZS || category > UTF8PROC_CATEGORY_CO);
}

static void write_escape(qn_jbuild *b, const char *format, uint32_t c, int user)
{
    char text[16];
    snprintf(text, sizeof text, format, c);
    qn_jbuild_text(b, text, user);
}

static void repr_char(qn_jbuild *b, const qn_jstring *s, size_t i, size_t n, uint32_t c, char quote)
{
    int user = qn_jstring_user_at(s, i);
    if (c == (uint32_t)quote || c == '\\') qn_jbuild_bytes(b, "\\", 1, user);
    if (c == '\n' || c == '\r' || c == '\t')
        qn_jbuild_text(b, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t", user);
    else if (is_printable(c))
        qn_jbuild_part(b, s, i, i + n);
    else
        write_escape(b, c < 256 ? "\\x%02x" : c < 65536 ? "\\u%04x" : "\\U%08x", c, user);
}

static void repr_string(qn_jbuild *b, const qn_jstring *s, int user)
{
    char quote = s->n && memchr(s->data, '\'', s->n) && !memchr(s->data, '"', s->n) ? '"' : '\'';
    qn_jbuild_bytes(b, &quote, 1, user);
    for (size_t i = 0, n; i < s->n; i += n) {
        uint32_t c;
        n = qn_jdecode(s->data + i, s->n - i, &c);
        repr_char(b, s, i, n, c, quote);
    }
    qn_jbuild_bytes(b, &quote, 1, user);
}

static qn_status repr_list(qn_jrun *r, qn_jbuild *b, qn_jvalue v)
{
    static const char *const before[] = {"[",           "(", "(", "range(", "dict_keys([", "dict_values([",
                                         "dict_items(["};
    static const char *const after[] = {"]", ")", ")", ")", "])", "])", "])"};
    const qn_jlist *l = v.l;
    if (l->shape == QN_JSHAPE_GENERATOR)
        return qn_fail(QN_E_ARG, "a generator cannot be printed; use the list filter");
    qn_jbuild_text(b, before[l->shape], v.user);
    if (l->shape == QN_JSHAPE_RANGE) {
        char text[80];
        int64_t step = 1, from = l->n ? l->items[0].i : 0;
        if (l->n > 1 && __builtin_sub_overflow(l->items[1].i, from, &step))
            return qn_fail(QN_E_ARG, "an integer does not fit into 64 bits");
        int n = snprintf(text, sizeof text, "%lld, %lld", (long long)from, (long long)l->stop);
        if (step != 1) snprintf(text + n, sizeof text - (size_t)n, ", %lld", (long long)step);
        qn_jbuild_text(b, text, v.user);
    } else {
        for (int64_t i = 0; i < l->n; i++) {
            if (i) qn_jbuild_text(b, ", ", v.user);
            QN_TRY(qn_jwrite_repr(r, b, l->items[i]));
        }
        if (l->n == 1 && (l->shape == QN_JSHAPE_TUPLE || l->shape == QN_JSHAPE_GROUP))
            qn_jbuild_text(b, ",", v.user);
    }
    qn_jbuild_text(b, after[l->shape], v.user);
    return b->status;
}

static qn_status repr_dict(qn_jrun *r, qn_jbuild *b, qn_jvalue v)
{
    if (v.kind == QN_J_NAMESPACE) qn_jbuild_text(b, "<Namespace ", v.user);
    qn_jbuild_text(b, "{", v.user);
    for (uint32_t i = 0; i < v.d->n; i++) {
        if (i) qn_jbuild_text(b, ", ", v.user);
        QN_TRY(qn_jwrite_repr(r, b, v.d->keys[i]));
        qn_jbuild_text(b, ": ", v.user);
        QN_TRY(qn_jwrite_repr(r, b, v.d->values[i]));
    }
    qn_jbuild_text(b, v.kind == QN_J_NAMESPACE ? "}>" : "}", v.user);
    return b->status;
}

static void write_number(qn_jbuild *b, qn_jvalue v)
{
    char text[64];
    if (v.kind == QN_J_FLOAT)
        qn_jfloat_repr(v.f, text);
    else
        snprintf(text, sizeof text, "%lld", (long long)v.i);
    qn_jbuild_text(b, text, v.user);
}

qn_status qn_jwrite_repr(qn_jrun *r, qn_jbuild *b, qn_jvalue v)
{
    qn_status status = QN_OK;
    QN_TRY(qn_jheap_step(&r->heap, 1));
    switch ((qn_jkind)v.kind) {
    case QN_J_MISSING:
    case QN_J_UNDEFINED:
        qn_jbuild_text(b, "Undefined", 0);
        break;
    case QN_J_NONE:
        qn_jbuild_text(b, "None", v.user);
        break;
    case QN_J_BOOL:
        qn_jbuild_text(b, v.i ? "True" : "False", v.user);
        break;
    case QN_J_BIG:
        qn_jbig_write(b, v.big, v.user);
        break;
    case QN_J_INT:
    case QN_J_FLOAT:
        write_number(b, v);
        break;
    case QN_J_STRING:
        repr_string(b, v.s, v.user);
        break;
    case QN_J_LIST:
    case QN_J_DICT:
    case QN_J_NAMESPACE:
        QN_TRY(qn_jheap_enter(&r->heap));
        status = v.kind == QN_J_LIST ? repr_list(r, b, v) : repr_dict(r, b, v);
        if (status != QN_OK) return status;
        qn_jheap_leave(&r->heap);
        break;
    default:
        return qn_fail(QN_E_ARG, "a '%s' object cannot be printed", qn_jvalue_type(v));
    }
    return b->status;
}

qn_status qn_jwrite_str(qn_jrun *r, qn_jbuild *b, qn_jvalue v)
{
    if (v.kind == QN_J_STRING) {
        qn_jbuild_string(b, v.s);
        return b->status;
    }
    if (v.kind == QN_J_UNDEFINED || v.kind == QN_J_MISSING) return QN_OK;
    return qn_jwrite_repr(r, b, v);
}

qn_status qn_jstr(qn_jrun *r, qn_jvalue v, qn_jvalue *out)
{
    if (v.kind == QN_J_STRING) {
        *out = v;
        return QN_OK;
    }
    qn_jbuild b;
    qn_jbuild_init(&b, &r->heap);
    QN_TRY(qn_jwrite_str(r, &b, v));
    return qn_jbuild_take(&b, out);
}

/* JSON, as json.dumps writes it. */

typedef struct {
    qn_jrun *run;
    qn_jbuild *b;
    int ascii, sort;
    int has_indent;
    const qn_jstring *indent;                         /* of one level */
    const qn_jstring *item_separator, *key_separator; /* NULL: the usual */
} json_writer;

static qn_status write_json(json_writer *w, qn_jvalue v, int level);

static void quote_char(json_writer *w, const qn_jstring *s, size_t i, size_t n, uint32_t c)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    int user = qn_jstring_user_at(s, i);
    const char *plain = c ? strchr(from, c < 128 ? (int)c : 'x') : NULL;
    if (plain && c < 128) {
        char escape[2] = {'\\', to[plain - from]};
        qn_jbuild_bytes(w->b, escape, 2, user);
    } else if (c < 32 || (w->ascii && c > 126 && c < 65536)) {
        write_escape(w->b, "\\u%04x", c, user);
    } else if (w->ascii && c >= 65536) {
        write_escape(w->b, "\\u%04x", 0xD800 + ((c - 0x10000) >> 10), user);
        write_escape(w->b, "\\u%04x", 0xDC00 + ((c - 0x10000) & 0x3FF), user);
    } else {
        qn_jbuild_part(w->b, s, i, i + n);
    }
}

static void quote_string(json_writer *w, const qn_jstring *s, int user)
{
    qn_jbuild_text(w->b, "\"", user);
    for (size_t i = 0, n; i < s->n && w->b->status == QN_OK; i += n) {
        uint32_t c;
        n = qn_jdecode(s->data + i, s->n - i, &c);
        quote_char(w, s, i, n, c);
    }
    qn_jbuild_text(w->b, "\"", user);
}

static void json_newline(json_writer *w, int level, int user)
{
    if (!w->has_indent) return;
    qn_jbuild_text(w->b, "\n", user);
    for (int i = 0; i < level; i++) qn_jbuild_string(w->b, w->indent);
}

/* What stands between two items of a container. */
static void json_separator(json_writer *w, int level, int user)
{
    if (w->item_separator)
        qn_jbuild_string(w->b, w->item_separator);
    else
        qn_jbuild_text(w->b, w->has_indent ? "," : ", ", user);
    json_newline(w, level, user);
}

static qn_status json_list(json_writer *w, qn_jvalue v, int level)
{
    if (v.l->shape > QN_JSHAPE_GROUP)
        return qn_fail(QN_E_ARG, "Object of type %s is not JSON serializable", qn_jvalue_type(v));
    qn_jbuild_text(w->b, "[", v.user);
    for (int64_t i = 0; i < v.l->n; i++) {
        if (i)
            json_separator(w, level + 1, v.user);
        else
            json_newline(w, level + 1, v.user);
        QN_TRY(write_json(w, v.l->items[i], level + 1));
    }
    if (v.l->n) json_newline(w, level, v.user);
    qn_jbuild_text(w->b, "]", v.user);
    return w->b->status;
}

static qn_status json_key(json_writer *w, qn_jvalue key, int user)
{
    if (key.kind == QN_J_STRING) {
        quote_string(w, key.s, user);
        return w->b->status;
    }
    if (key.kind != QN_J_NONE && !qn_jis_number(key))
        return qn_fail(QN_E_ARG, "keys must be str, int, float, bool or None, not %s", qn_jvalue_type(key));
    qn_jbuild_text(w->b, "\"", user);
    QN_TRY(write_json(w, key, 0));
    qn_jbuild_text(w->b, "\"", user);
    return w->b->status;
}

static qn_status json_dict(json_writer *w, qn_jvalue v, int level)
{
    const qn_jdict *d = v.d;
    int64_t *places = qn_jheap_alloc(&w->run->heap, d->n, sizeof *places);
    if (!places) return w->run->heap.status;
    for (uint32_t i = 0; i < d->n; i++) places[i] = i;
    if (w->sort) QN_TRY(qn_jsort(w->run, d->keys, places, d->n, 0));
    qn_jbuild_text(w->b, "{", v.user);
    for (uint32_t i = 0; i < d->n; i++) {
        if (i)
            json_separator(w, level + 1, v.user);
        else
            json_newline(w, level + 1, v.user);
        QN_TRY(json_key(w, d->keys[places[i]], v.user));
        if (w->key_separator)
            qn_jbuild_string(w->b, w->key_separator);
        else
            qn_jbuild_text(w->b, ": ", v.user);
        QN_TRY(write_json(w, d->values[places[i]], level + 1));
    }
    if (d->n) json_newline(w, level, v.user);
    qn_jbuild_text(w->b, "}", v.user);
    return w->b->status;
}

static qn_status write_json(json_writer *w, qn_jvalue v, int level)
{
    qn_status status;
    QN_TRY(qn_jheap_step(&w->run->heap, 1));
    switch ((qn_jkind)v.kind) {
    case QN_J_NONE:
        qn_jbuild_text(w->b, "null", v.user);
        break;
    case QN_J_BOOL:
        qn_jbuild_text(w->b, v.i ? "true" : "false", v.user);
        break;
    case QN_J_BIG:
        qn_jbig_write(w->b, v.big, v.user);
        break;
    case QN_J_INT:
        write_number(w->b, v);
        break;
    case QN_J_FLOAT:
        if (isnan(v.f) || isinf(v.f))
            qn_jbuild_text(w->b, isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity", v.user);
        else
            write_number(w->b, v);
        break;
    case QN_J_STRING:
        quote_string(w, v.s, v.user);
        break;
    case QN_J_LIST:
    case QN_J_DICT:
        QN_TRY(qn_jheap_enter(&w->run->heap));
        status = v.kind == QN_J_LIST ? json_list(w, v, level) : json_dict(w, v, level);
        if (status != QN_OK) return status;
        qn_jheap_leave(&w->run->heap);
        break;
    default:
        return qn_fail(QN_E_ARG, "Object of type %s is not JSON serializable", qn_jvalue_type(v));
    }
    return w->b->status;
}

static qn_status json_separators(json_writer *w, qn_jvalue v)
{
    if (v.kind == QN_J_MISSING || v.kind == QN_J_NONE) return QN_OK;
    if (v.kind != QN_J_LIST || v.l->n != 2 || v.l->items[0].kind != QN_J_STRING ||
        v.l->items[1].kind != QN_J_STRING)
        return qn_fail(QN_E_ARG, "tojson: separators must be two strings");
    w->item_separator = v.l->items[0].s;
    w->key_separator = v.l->items[1].s;
    return QN_OK;
}

qn_status qn_jfilter_tojson(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[4], indent = qn_jnone();
    qn_jbuild b, spaces;
    QN_TRY(qn_jargs_bind(r, "tojson", a, "ensure_ascii indent separators sort_keys", 0, bound));
    qn_jbuild_init(&b, &r->heap);
    json_writer w = {
        .run = r, .b = &b, .ascii = qn_jvalue_truth(bound[0]), .sort = qn_jvalue_truth(bound[3])};
    QN_TRY(json_separators(&w, bound[2]));
    if (bound[1].kind == QN_J_STRING) {
        indent = bound[1];
    } else if (bound[1].kind != QN_J_MISSING && bound[1].kind != QN_J_NONE) {
        if (!qn_jis_whole(bound[1]) || bound[1].i > 1000) return qn_fail(QN_E_ARG, "tojson: bad indent");
        qn_jbuild_init(&spaces, &r->heap);
        qn_jbuild_fill(&spaces, ' ', bound[1].i, 0);
        QN_TRY(qn_jbuild_take(&spaces, &indent));
    }
    w.has_indent = indent.kind == QN_J_STRING;
    w.indent = w.has_indent ? indent.s : NULL;
    QN_TRY(write_json(&w, v, 0));
    return qn_jbuild_take(&b, out);
}

/* JSON to values. */

/* The budgets grow with n bytes of the context. */
static void grant(qn_jrun *r, size_t n)
{
    qn_jheap_grant(&r->heap, n);
    r->output_max += n < SIZE_MAX / 2 - r->output_max ? n : 0;
    r->main_out.limit_bytes = r->output_max;
    r->out->limit_bytes = r->output_max;
}

static qn_status dict_from_json(qn_jrun *r, const json_t *json, int user, qn_jvalue *out)
{
    size_t n = json_object_size(json);
    if (n > UINT32_MAX / 4) return qn_fail(QN_E_FULL, "an object of the context has too many keys");
    QN_TRY(qn_jdict_new(&r->heap, (uint32_t)n, user, out));
    json_t *object = (json_t *)json; /* jansson's iterator takes no const; it changes nothing */
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        qn_jvalue key, value;
        grant(r, 8 + json_object_iter_key_len(at));
        QN_TRY(qn_jstring_borrow(&r->heap, json_object_iter_key(at), json_object_iter_key_len(at), NULL, user,
                                 &key));
        QN_TRY(qn_jfrom_json(r, json_object_iter_value(at), user, &value));
        QN_TRY(qn_jdict_set(&r->heap, out->d, key, value));
    }
    return QN_OK;
}

static qn_status list_from_json(qn_jrun *r, const json_t *json, int user, qn_jvalue *out)
{
    size_t n = json_array_size(json);
    QN_TRY(qn_jlist_new(&r->heap, QN_JSHAPE_LIST, (int64_t)n, user, out));
    for (size_t i = 0; i < n; i++) QN_TRY(qn_jfrom_json(r, json_array_get(json, i), user, &out->l->items[i]));
    out->l->n = (int64_t)n;
    return QN_OK;
}

static qn_status exact_from_json(qn_jrun *r, const char *digits, int user, qn_jvalue *out)
{
    const int negative = digits[0] == '-';
    const size_t n = strlen(digits) - (size_t)negative;
    grant(r, 8 + n);
    QN_TRY(qn_jbig_parse(&r->heap, digits + negative, n, 10, user, out));
    return negative ? qn_jbig_binary(&r->heap, '-', qn_jint(0, user), *out, out) : QN_OK;
}

/* QN_TEMPLATE_SWITCH in text switches between bytes of the caller and of the template's author. */
static qn_status switched_text(qn_jrun *r, const char *text, size_t n, qn_jvalue *out)
{
    char *data = qn_jheap_alloc(&r->heap, n, 1);
    uint8_t *mask = qn_jheap_alloc(&r->heap, n, 1), user = 1;
    size_t length = 0;
    if (!data || !mask) return r->heap.status;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == QN_TEMPLATE_SWITCH) {
            user ^= 1;
            continue;
        }
        data[length] = text[i];
        mask[length++] = user;
    }
    return qn_jstring_borrow(&r->heap, data, length, mask, 1, out);
}

static qn_status text_from_json(qn_jrun *r, const json_t *json, int user, qn_jvalue *out)
{
    const char *text = json_string_value(json);
    const size_t n = json_string_length(json);
    if (user && memchr(text, QN_TEMPLATE_SWITCH, n)) return switched_text(r, text, n, out);
    return qn_jstring_borrow(&r->heap, text, n, NULL, user, out);
}

qn_status qn_jfrom_json(qn_jrun *r, const json_t *json, int user, qn_jvalue *out)
{
    qn_status status;
    const char *digits = qn_json_digits(json);
    grant(r, 8 + json_string_length(json)); /* 0 for what is no string */
    if (digits) return exact_from_json(r, digits, user, out);
    switch (json_typeof(json)) {
    case JSON_NULL:
        *out = qn_jnone();
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = qn_jbool(json_is_true(json), 0);
        break;
    case JSON_INTEGER:
        *out = qn_jint(json_integer_value(json), 0);
        break;
    case JSON_REAL:
        *out = qn_jfloat(json_real_value(json), 0);
        break;
    case JSON_STRING:
        return text_from_json(r, json, user, out);
    default:
        QN_TRY(qn_jheap_enter(&r->heap));
        status =
            json_is_object(json) ? dict_from_json(r, json, user, out) : list_from_json(r, json, user, out);
        if (status != QN_OK) return status;
        qn_jheap_leave(&r->heap);
        return QN_OK;
    }
    out->user = user != 0;
    return QN_OK;
}
