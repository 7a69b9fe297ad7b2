#include "text/jinja/value.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "text/jinja/big.h"
#include "text/jinja/run.h"

void *qn_jheap_alloc(qn_jheap *h, size_t count, size_t size_bytes)
{
    size_t n;
    if (!qn_mul_size(count, size_bytes, &n)) {
        h->status = qn_fail(QN_E_FULL, "memory budget of %zu bytes is used up", h->arena.limit_bytes);
        return NULL;
    }
    if (h->arena.limit_bytes && n > h->arena.limit_bytes) {
        h->status = qn_fail(QN_E_FULL, "memory budget of %zu bytes is used up", h->arena.limit_bytes);
        return NULL;
    }
    size_t before = h->arena.total_bytes;
    void *p = qn_arena_alloc(&h->arena, n);
    if (!p) {
        /* The arena takes blocks of at most 1 MiB or one large piece: near the limit it was the limit. */
        size_t most = before + n + (2u << 20);
        h->status = h->arena.limit_bytes && most > h->arena.limit_bytes ? QN_E_FULL : QN_E_NOMEM;
    }
    return p;
}

qn_status qn_jheap_step(qn_jheap *h, uint64_t n)
{
    h->steps += n;
    if (h->steps > h->steps_max)
        return qn_fail(QN_E_FULL, "the template needs more than %llu steps",
                       (unsigned long long)h->steps_max);
    return QN_OK;
}

qn_status qn_jheap_scan(qn_jheap *h, size_t n_bytes)
{
    return qn_jheap_step(h, n_bytes / 64);
}

qn_status qn_jheap_search(qn_jheap *h, size_t n_bytes)
{
    return qn_jheap_step(h, n_bytes / 8);
}

qn_status qn_jheap_walk(qn_jheap *h, size_t n_bytes)
{
    return qn_jheap_step(h, n_bytes / 2);
}

void qn_jheap_grant(qn_jheap *h, size_t n_bytes)
{
    size_t n = n_bytes < SIZE_MAX / 64 ? n_bytes : SIZE_MAX / 64;
    if (h->arena.limit_bytes && h->arena.limit_bytes < SIZE_MAX / 2) h->arena.limit_bytes += n * 16;
    if (h->steps_max < UINT64_MAX / 2) h->steps_max += n;
}

qn_status qn_jheap_enter(qn_jheap *h)
{
    if (h->depth >= h->depth_max)
        return qn_fail(QN_E_FULL, "the template nests or recurses deeper than %u levels", h->depth_max);
    h->depth++;
    return QN_OK;
}

void qn_jheap_leave(qn_jheap *h)
{
    h->depth--;
}

const char *qn_jvalue_type(qn_jvalue v)
{
    static const char *const shapes[] = {"list",      "tuple",       "tuple",      "range",
                                         "dict_keys", "dict_values", "dict_items", "generator"};
    switch ((qn_jkind)v.kind) {
    case QN_J_MISSING:
    case QN_J_UNDEFINED:
        return "Undefined";
    case QN_J_NONE:
        return "NoneType";
    case QN_J_BOOL:
        return "bool";
    case QN_J_INT:
    case QN_J_BIG:
        return "int";
    case QN_J_FLOAT:
        return "float";
    case QN_J_STRING:
        return "str";
    case QN_J_LIST:
        return shapes[v.l->shape];
    case QN_J_DICT:
        return "dict";
    case QN_J_NAMESPACE:
        return "Namespace";
    case QN_J_LOOP:
        return "LoopContext";
    case QN_J_MACRO:
        return "Macro";
    case QN_J_FUNCTION:
        return "function";
    case QN_J_METHOD:
        return "builtin_function_or_method";
    case QN_J_CYCLER:
        return "Cycler";
    case QN_J_JOINER:
        return "Joiner";
    }
    return "object";
}

int qn_jvalue_truth(qn_jvalue v)
{
    switch ((qn_jkind)v.kind) {
    case QN_J_MISSING:
    case QN_J_UNDEFINED:
    case QN_J_NONE:
        return 0;
    case QN_J_BOOL:
    case QN_J_INT:
        return v.i != 0;
    case QN_J_BIG:
        return 1;
    case QN_J_FLOAT:
        return v.f != 0;
    case QN_J_STRING:
        return v.s->n != 0;
    case QN_J_LIST:
        return v.l->shape == QN_JSHAPE_GENERATOR || v.l->n != 0;
    case QN_J_DICT:
        return v.d->n != 0;
    default:
        return 1;
    }
}

double qn_jvalue_double(qn_jvalue v)
{
    return v.kind == QN_J_FLOAT ? v.f : v.kind == QN_J_BIG ? qn_jbig_double(v.big) : (double)v.i;
}

qn_status qn_jfail_undefined(qn_jvalue v)
{
    const qn_jhint *u = v.hint;
    if (!u) return qn_fail(QN_E_ARG, "a value is undefined");
    int n = u->n > 200 ? 200 : (int)u->n;
    if (!u->owner) return qn_fail(QN_E_ARG, "'%.*s' is undefined", n, u->name);
    if (u->is_element) {
        const int is_none = strcmp(u->owner, "NoneType") == 0;
        return qn_fail(QN_E_ARG, "%s%s has no element %.*s", is_none ? "None" : u->owner,
                       is_none ? "" : " object", n, u->name);
    }
    if (u->unsafe)
        return qn_fail(QN_E_ARG, "access to attribute '%.*s' of '%s' object is unsafe", n, u->name, u->owner);
    if (strcmp(u->owner, "NoneType") == 0)
        return qn_fail(QN_E_ARG, "'None' has no attribute '%.*s'", n, u->name);
    return qn_fail(QN_E_ARG, "'%s object' has no attribute '%.*s'", u->owner, n, u->name);
}

qn_status qn_jundefined(qn_jheap *h, const char *owner, const char *name, size_t n, int unsafe,
                        qn_jvalue *out)
{
    qn_jhint *u = qn_jheap_alloc(h, 1, sizeof *u);
    if (!u) return h->status;
    *u = (qn_jhint){.owner = owner, .name = name, .n = n, .unsafe = unsafe};
    *out = (qn_jvalue){.kind = QN_J_UNDEFINED, .hint = u};
    return QN_OK;
}

/* The order of an int and a float without rounding the int. 2: the float is NaN. */
static int compare_int_float(int64_t i, double f)
{
    if (isnan(f)) return 2;
    if (f >= 9223372036854775808.0) return -1;
    if (f < -9223372036854775808.0) return 1;
    int64_t whole = (int64_t)f;
    if (i != whole) return i < whole ? -1 : 1;
    double rest = f - (double)whole;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

static int compare_numbers(qn_jvalue a, qn_jvalue b)
{
    if (a.kind == QN_J_BIG || b.kind == QN_J_BIG) {
        if (a.kind != QN_J_FLOAT && b.kind != QN_J_FLOAT) return qn_jbig_compare(a, b);
        const double x = qn_jvalue_double(a), y = qn_jvalue_double(b);
        return isnan(x) || isnan(y) ? 2 : x < y ? -1 : x > y;
    }
    if (a.kind == QN_J_FLOAT && b.kind == QN_J_FLOAT) {
        if (isnan(a.f) || isnan(b.f)) return 2;
        return a.f < b.f ? -1 : a.f > b.f;
    }
    if (a.kind == QN_J_FLOAT) {
        int order = compare_int_float(b.i, a.f);
        return order == 2 ? 2 : -order;
    }
    if (b.kind == QN_J_FLOAT) return compare_int_float(a.i, b.f);
    return a.i < b.i ? -1 : a.i > b.i;
}

static int compare_strings(const qn_jstring *a, const qn_jstring *b)
{
    size_t n = a->n < b->n ? a->n : b->n;
    int order = n ? memcmp(a->data, b->data, n) : 0;
    if (order) return order < 0 ? -1 : 1;
    return a->n < b->n ? -1 : a->n > b->n;
}

static qn_status equal_lists(qn_jheap *h, const qn_jlist *a, const qn_jlist *b, int *equal)
{
    *equal = a == b;
    if (a == b || a->n != b->n || a->shape == QN_JSHAPE_GENERATOR || b->shape == QN_JSHAPE_GENERATOR)
        return QN_OK;
    if (a->shape != b->shape && !(qn_jis_tuple(a) && qn_jis_tuple(b))) return QN_OK;
    for (int64_t i = 0; i < a->n; i++) {
        QN_TRY(qn_jvalue_equal(h, a->items[i], b->items[i], equal));
        if (!*equal) return QN_OK;
    }
    *equal = 1;
    return QN_OK;
}

static qn_status equal_dicts(qn_jheap *h, const qn_jdict *a, const qn_jdict *b, int *equal)
{
    *equal = a == b;
    if (a == b || a->n != b->n) return QN_OK;
    for (uint32_t i = 0; i < a->n; i++) {
        qn_jvalue *other;
        QN_TRY(qn_jdict_get(h, b, a->keys[i], &other));
        if (!other) return QN_OK;
        QN_TRY(qn_jvalue_equal(h, a->values[i], *other, equal));
        if (!*equal) return QN_OK;
    }
    *equal = 1;
    return QN_OK;
}

qn_status qn_jvalue_equal(qn_jheap *h, qn_jvalue a, qn_jvalue b, int *equal)
{
    QN_TRY(qn_jheap_step(h, 1));
    if (qn_jis_number(a) && qn_jis_number(b)) {
        *equal = compare_numbers(a, b) == 0;
        return QN_OK;
    }
    *equal = 0;
    if (a.kind != b.kind) return QN_OK;
    qn_status status = QN_OK;
    switch ((qn_jkind)a.kind) {
    case QN_J_MISSING:
    case QN_J_UNDEFINED:
    case QN_J_NONE:
        *equal = 1;
        return QN_OK;
    case QN_J_STRING:
        if (a.s->n != b.s->n) return QN_OK;
        QN_TRY(qn_jheap_scan(h, a.s->n));
        *equal = a.s->n == 0 || memcmp(a.s->data, b.s->data, a.s->n) == 0;
        return QN_OK;
    case QN_J_LIST:
    case QN_J_DICT:
        QN_TRY(qn_jheap_enter(h));
        status = a.kind == QN_J_LIST ? equal_lists(h, a.l, b.l, equal) : equal_dicts(h, a.d, b.d, equal);
        qn_jheap_leave(h);
        return status;
    default:
        *equal = a.o == b.o;
        return QN_OK;
    }
}

qn_status qn_jvalue_compare(qn_jheap *h, qn_jvalue a, qn_jvalue b, int *order)
{
    QN_TRY(qn_jheap_step(h, 1));
    if (a.kind == QN_J_UNDEFINED) return qn_jfail_undefined(a);
    if (b.kind == QN_J_UNDEFINED) return qn_jfail_undefined(b);
    if (qn_jis_number(a) && qn_jis_number(b)) {
        *order = compare_numbers(a, b);
        return QN_OK;
    }
    if (a.kind == QN_J_STRING && b.kind == QN_J_STRING) {
        QN_TRY(qn_jheap_scan(h, a.s->n < b.s->n ? a.s->n : b.s->n));
        *order = compare_strings(a.s, b.s);
        return QN_OK;
    }
    if (a.kind == QN_J_LIST && b.kind == QN_J_LIST && qn_jis_tuple(a.l) == qn_jis_tuple(b.l) &&
        (qn_jis_tuple(a.l) || (a.l->shape == QN_JSHAPE_LIST && b.l->shape == QN_JSHAPE_LIST))) {
        int64_t n = a.l->n < b.l->n ? a.l->n : b.l->n;
        qn_status status = qn_jheap_enter(h);
        for (int64_t i = 0; i < n && status == QN_OK; i++) {
            int equal;
            status = qn_jvalue_equal(h, a.l->items[i], b.l->items[i], &equal);
            if (status != QN_OK || equal) continue;
            status = qn_jvalue_compare(h, a.l->items[i], b.l->items[i], order);
            qn_jheap_leave(h);
            return status;
        }
        if (status != QN_OK) return status;
        qn_jheap_leave(h);
        *order = a.l->n < b.l->n ? -1 : a.l->n > b.l->n;
        return QN_OK;
    }
    return qn_fail(QN_E_ARG, "'%s' and '%s' cannot be ordered", qn_jvalue_type(a), qn_jvalue_type(b));
}

qn_status qn_jvalue_contains(qn_jheap *h, qn_jvalue haystack, qn_jvalue needle, int *found)
{
    *found = 0;
    if (haystack.kind == QN_J_STRING) {
        if (needle.kind != QN_J_STRING)
            return qn_fail(QN_E_ARG, "'in <string>' requires string as left operand, not %s",
                           qn_jvalue_type(needle));
        QN_TRY(qn_jheap_search(h, haystack.s->n));
        *found = qn_jstring_find(haystack.s, needle.s, 0) != SIZE_MAX;
        return QN_OK;
    }
    if (haystack.kind == QN_J_DICT) {
        qn_jvalue *value;
        QN_TRY(qn_jdict_get(h, haystack.d, needle, &value));
        *found = value != NULL;
        return QN_OK;
    }
    qn_jvalue *items;
    int64_t n;
    QN_TRY(qn_jvalue_items(h, haystack, &items, &n));
    for (int64_t i = 0; i < n && !*found; i++) QN_TRY(qn_jvalue_equal(h, items[i], needle, found));
    return QN_OK;
}

qn_status qn_jvalue_items(qn_jheap *h, qn_jvalue v, qn_jvalue **items, int64_t *n)
{
    *items = NULL;
    *n = 0;
    if (v.kind == QN_J_UNDEFINED) return v.hint && v.hint->unsafe ? qn_jfail_undefined(v) : QN_OK;
    if (v.kind == QN_J_LIST) {
        *items = v.l->items + v.l->next;
        *n = v.l->n - v.l->next;
        if (v.l->shape == QN_JSHAPE_GENERATOR) v.l->next = v.l->n;
        return QN_OK;
    }
    if (v.kind == QN_J_DICT) {
        *items = v.d->keys;
        *n = v.d->n;
        return QN_OK;
    }
    if (v.kind != QN_J_STRING) return qn_fail(QN_E_ARG, "'%s' object is not iterable", qn_jvalue_type(v));
    int64_t count = qn_jstring_length(v.s);
    QN_TRY(qn_jheap_step(h, (uint64_t)count));
    qn_jvalue *chars = qn_jheap_alloc(h, (size_t)count, sizeof *chars);
    if (!chars) return h->status;
    size_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t c;
        size_t length = qn_jdecode(v.s->data + at, v.s->n - at, &c);
        QN_TRY(qn_jstring_bytes(h, v.s, at, at + length, &chars[i]));
        at += length;
    }
    *items = chars;
    *n = count;
    return QN_OK;
}

qn_status qn_jvalue_length(qn_jheap *h, qn_jvalue v, int64_t *n)
{
    switch ((qn_jkind)v.kind) {
    case QN_J_UNDEFINED:
        *n = 0;
        return QN_OK;
    case QN_J_STRING:
        *n = qn_jstring_length(v.s);
        return QN_OK;
    case QN_J_DICT:
        *n = v.d->n;
        return QN_OK;
    case QN_J_LIST:
        if (v.l->shape == QN_JSHAPE_GENERATOR) break;
        *n = v.l->n;
        return QN_OK;
    case QN_J_LOOP:
        *n = v.o->loop.n;
        return QN_OK;
    default:
        break;
    }
    return qn_fail(QN_E_ARG, "object of type '%s' has no len()", qn_jvalue_type(v));
}

qn_status qn_jlist_new(qn_jheap *h, qn_jshape shape, int64_t capacity, int user, qn_jvalue *out)
{
    qn_jlist *l = qn_jheap_alloc(h, 1, sizeof *l);
    qn_jvalue *items = l ? qn_jheap_alloc(h, (size_t)capacity, sizeof *items) : NULL;
    if (!items) return h->status;
    *l = (qn_jlist){.items = items, .shape = shape};
    *out = (qn_jvalue){.kind = QN_J_LIST, .user = user != 0, .l = l};
    return QN_OK;
}
