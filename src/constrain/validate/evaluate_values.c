/* Keywords that look at the value alone: type, enum, const, bounds of numbers, texts. */
#include <stdio.h>
#include <string.h>

#include "constrain/validate/evaluate.h"

static const char *const kind_names[] = {"null",     "a boolean", "a number",
                                         "a string", "an array",  "an object"};

enum { SHOWN_BYTES = 80 };

/* A value for a message. */
typedef struct {
    qn_buf text;
} shown;

static const char *show(shown *s, const qn_value *v)
{
    qn_value_show(v, SHOWN_BYTES, &s->text);
    return s->text.data ? s->text.data : "?";
}

/* In draft 4 an integer is spelled without a fraction or exponent; later 1.0 is one. */
static int is_integer(const qn_subschema *s, const qn_value *v)
{
    if (v->kind != QN_VALUE_NUMBER) return 0;
    const char *text = v->number.text;
    size_t n = v->number.n_text;
    if (s->resource->draft == QN_DRAFT_4 &&
        (memchr(text, '.', n) || memchr(text, 'e', n) || memchr(text, 'E', n)))
        return 0;
    return qn_decimal_is_integer(&v->number);
}

static int check_type(qn_run *r, const qn_subschema *s, const qn_keyword_use *u, const qn_value *v)
{
    if (u->types & 1u << v->kind) return 1;
    if ((u->types & QN_TYPE_INTEGER) && is_integer(s, v)) return 1;
    if (!r->report) return 0;
    shown types = {0};
    qn_run_fail(r, u, v, "is %s, must be of type %s", kind_names[v->kind], show(&types, u->value));
    qn_buf_free(&types.text);
    return 0;
}

static int find_hash(qn_run *r, const qn_keyword_use *u, const qn_value *v)
{
    uint64_t hash = qn_value_hash(v, &r->steps);
    uint32_t low = 0, high = u->value->n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (u->sorted[middle].hash < hash)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < u->value->n && u->sorted[low].hash == hash; low++)
        if (qn_value_equal(&u->value->children[u->sorted[low].index], v, &r->steps)) return 1;
    return 0;
}

static int check_enum(qn_run *r, const qn_keyword_use *u, const qn_value *v)
{
    int found = 0;
    if (u->sorted)
        found = find_hash(r, u, v);
    else
        for (uint32_t i = 0; i < u->value->n && !found; i++)
            found = qn_value_equal(&u->value->children[i], v, &r->steps);
    if (!qn_run_step(r, 0) || found) return found;
    if (!r->report) return 0;
    shown value = {0}, all = {0};
    qn_run_fail(r, u, v, "is %s, must be one of %s", show(&value, v), show(&all, u->value));
    qn_buf_free(&value.text);
    qn_buf_free(&all.text);
    return 0;
}

static int check_const(qn_run *r, const qn_keyword_use *u, const qn_value *v)
{
    int equal = qn_value_equal(u->value, v, &r->steps);
    if (!qn_run_step(r, 0) || equal) return equal;
    if (!r->report) return 0;
    shown value = {0}, must = {0};
    qn_run_fail(r, u, v, "is %s, must be %s", show(&value, v), show(&must, u->value));
    qn_buf_free(&value.text);
    qn_buf_free(&must.text);
    return 0;
}

static int fail_number(qn_run *r, const qn_keyword_use *u, const qn_value *bound, const qn_value *v,
                       const char *must)
{
    if (!r->report) return 0;
    shown value = {0}, limit = {0};
    qn_run_fail(r, u, v, "is %s, must be %s %s", show(&value, v), must, show(&limit, bound));
    qn_buf_free(&value.text);
    qn_buf_free(&limit.text);
    return 0;
}

/* In draft 4 a boolean beside the bound says that it is exclusive. */
static int is_exclusive(const qn_subschema *s, qn_keyword kind)
{
    const qn_keyword_use *flag = qn_subschema_get(s, kind);
    return flag && flag->value->kind == QN_VALUE_BOOLEAN && flag->value->is_true;
}

static int check_number(qn_run *r, const qn_subschema *s, const qn_keyword_use *u, const qn_value *v)
{
    if (v->kind != QN_VALUE_NUMBER || u->value->kind != QN_VALUE_NUMBER) return 1;
    if (!qn_run_step(r, v->number.n_digits / 16)) return 0;
    if (u->kind == QN_KEYWORD_MULTIPLE_OF) {
        int64_t steps = 0;
        /* The work is known before: it is bounded by the digits of both. */
        if (!qn_run_step(r, (int64_t)v->number.n_digits * (u->value->number.n_digits / 9 + 1) / 16)) return 0;
        return qn_decimal_is_multiple(&v->number, &u->value->number, &steps) ||
               fail_number(r, u, u->value, v, "a multiple of");
    }
    int order = qn_decimal_compare(&v->number, &u->value->number);
    switch ((qn_keyword)u->kind) {
    case QN_KEYWORD_MAXIMUM:
        if (is_exclusive(s, QN_KEYWORD_EXCLUSIVE_MAXIMUM))
            return order < 0 || fail_number(r, u, u->value, v, "less than");
        return order <= 0 || fail_number(r, u, u->value, v, "at most");
    case QN_KEYWORD_MINIMUM:
        if (is_exclusive(s, QN_KEYWORD_EXCLUSIVE_MINIMUM))
            return order > 0 || fail_number(r, u, u->value, v, "more than");
        return order >= 0 || fail_number(r, u, u->value, v, "at least");
    case QN_KEYWORD_EXCLUSIVE_MAXIMUM:
        return order < 0 || fail_number(r, u, u->value, v, "less than");
    default:
        return order > 0 || fail_number(r, u, u->value, v, "more than");
    }
}

static int check_text(qn_run *r, const qn_keyword_use *u, const qn_value *v)
{
    if (v->kind != QN_VALUE_STRING) return 1;
    if (!qn_run_step(r, v->n / 64)) return 0;
    if (u->kind == QN_KEYWORD_MAX_LENGTH || u->kind == QN_KEYWORD_MIN_LENGTH) {
        int64_t length = qn_value_length(v);
        if (u->kind == QN_KEYWORD_MAX_LENGTH)
            return length <= u->count || qn_run_fail(r, u, v, "has %lld characters, must have at most %lld",
                                                     (long long)length, (long long)u->count);
        return length >= u->count || qn_run_fail(r, u, v, "has %lld characters, must have at least %lld",
                                                 (long long)length, (long long)u->count);
    }
    if (!u->automaton || qn_dfa_accepts(u->automaton, v->text, v->n)) return 1;
    if (!r->report) return 0;
    shown value = {0}, must = {0};
    qn_run_fail(r, u, v,
                qn_keyword_is_format((qn_keyword)u->kind) ? "is %s, which has not the format %s"
                                                          : "is %s, which does not match %s",
                show(&value, v), show(&must, u->value));
    qn_buf_free(&value.text);
    qn_buf_free(&must.text);
    return 0;
}

int qn_run_plain(qn_run *r, const qn_subschema *s, const qn_keyword_use *u, const qn_value *v)
{
    switch ((qn_keyword)u->kind) {
    case QN_KEYWORD_TYPE:
        return check_type(r, s, u, v);
    case QN_KEYWORD_ENUM:
        return check_enum(r, u, v);
    case QN_KEYWORD_CONST:
        return check_const(r, u, v);
    case QN_KEYWORD_MAX_LENGTH:
    case QN_KEYWORD_MIN_LENGTH:
    case QN_KEYWORD_PATTERN:
    case QN_KEYWORD_FORMAT:
    case QN_KEYWORD_CONTENT_ENCODING:
    case QN_KEYWORD_CONTENT_MEDIA_TYPE:
        return check_text(r, u, v);
    default:
        return check_number(r, s, u, v);
    }
}
