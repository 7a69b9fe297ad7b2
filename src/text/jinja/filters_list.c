#include "text/jinja/filters_list.h"

#include <string.h>

#include "text/jinja/case.h"

/* The items of v as an array, and a new list of the same size to fill. */
typedef struct {
    qn_jvalue *items;
    int64_t n;
    qn_jvalue list;
} sequence;

static qn_status open_sequence(qn_jrun *r, qn_jvalue v, qn_jshape shape, sequence *q)
{
    QN_TRY(qn_jvalue_items(&r->heap, v, &q->items, &q->n));
    QN_TRY(qn_jheap_step(&r->heap, (uint64_t)q->n));
    return qn_jlist_new(&r->heap, shape, q->n, v.user, &q->list);
}

static void put(sequence *q, qn_jvalue v)
{
    q->list.l->items[q->list.l->n++] = v;
}

static qn_status filter_list(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    sequence q;
    QN_TRY(qn_jargs_bind(r, "list", a, "", 0, NULL));
    QN_TRY(open_sequence(r, v, QN_JSHAPE_LIST, &q));
    for (int64_t i = 0; i < q.n; i++) put(&q, q.items[i]);
    *out = q.list;
    return QN_OK;
}

static qn_status filter_reverse(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    sequence q;
    QN_TRY(qn_jargs_bind(r, "reverse", a, "", 0, NULL));
    if (v.kind == QN_J_STRING) {
        const qn_jvalue none = {.kind = QN_J_MISSING}, bounds[3] = {none, none, qn_jint(-1, 0)};
        return qn_jgetslice(r, v, bounds, out);
    }
    QN_TRY(open_sequence(r, v, QN_JSHAPE_GENERATOR, &q));
    for (int64_t i = q.n; i-- > 0;) put(&q, q.items[i]);
    *out = q.list;
    return QN_OK;
}

static qn_status end_item(qn_jrun *r, qn_jvalue v, const qn_jargs *a, int last, qn_jvalue *out)
{
    qn_jvalue *items;
    int64_t n;
    QN_TRY(qn_jargs_bind(r, last ? "last" : "first", a, "", 0, NULL));
    if (v.kind == QN_J_LIST && v.l->shape == QN_JSHAPE_GENERATOR && !last && v.l->next < v.l->n) {
        *out = v.l->items[v.l->next++]; /* the rest can still be walked */
        return QN_OK;
    }
    if (last && v.kind == QN_J_LIST && v.l->shape == QN_JSHAPE_GENERATOR)
        return qn_fail(QN_E_ARG, "'generator' object is not reversible");
    QN_TRY(qn_jvalue_items(&r->heap, v, &items, &n));
    static const char why[] = "the end of an empty sequence";
    if (!n) return qn_jundefined(&r->heap, NULL, why, sizeof why - 1, 0, out);
    *out = items[last ? n - 1 : 0];
    return QN_OK;
}

static qn_status filter_first(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    return end_item(r, v, a, 0, out);
}

static qn_status filter_last(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    return end_item(r, v, a, 1, out);
}

static qn_status filter_join(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[2], *items, item;
    int64_t n;
    qn_jbuild b;
    QN_TRY(qn_jargs_bind(r, "join", a, "d attribute", 0, bound));
    QN_TRY(qn_jvalue_items(&r->heap, v, &items, &n));
    qn_jbuild_init(&b, &r->heap);
    for (int64_t i = 0; i < n && b.status == QN_OK; i++) {
        QN_TRY(qn_jheap_step(&r->heap, 1));
        if (i && bound[0].kind != QN_J_MISSING) QN_TRY(qn_jwrite_str(r, &b, bound[0]));
        QN_TRY(qn_jgetpath(r, items[i], bound[1], qn_jnone(), &item));
        QN_TRY(qn_jwrite_str(r, &b, item));
    }
    return qn_jbuild_take(&b, out);
}

static qn_status filter_items(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    static const qn_jstring name = {.data = "items", .n = 5};
    if (v.kind == QN_J_UNDEFINED) return qn_jlist_new(&r->heap, QN_JSHAPE_GENERATOR, 0, 0, out);
    if (v.kind != QN_J_DICT) return qn_fail(QN_E_ARG, "Can only get item pairs from a mapping.");
    QN_TRY(qn_jmethod_find(v, &name)(r, v, a, out));
    out->l->shape = QN_JSHAPE_GENERATOR;
    return QN_OK;
}

/* Sorting. */

/* Is b before a? Keys without an order may still be equal, as undefined ones are. */
static qn_status is_before(qn_jrun *r, qn_jvalue b, qn_jvalue a, int reverse, int *before)
{
    int order, equal = 0;
    if (a.kind == b.kind && !qn_jis_number(a) && a.kind != QN_J_STRING)
        QN_TRY(qn_jvalue_equal(&r->heap, a, b, &equal));
    *before = 0;
    if (equal) return QN_OK;
    QN_TRY(qn_jvalue_compare(&r->heap, b, a, &order));
    *before = reverse ? order == 1 : order < 0;
    return QN_OK;
}

static qn_status merge(qn_jrun *r, const qn_jvalue *keys, int64_t *places, int64_t *spare, int64_t n,
                       int reverse)
{
    if (n < 2) return QN_OK;
    int64_t half = n / 2, i = 0, j = half, k = 0;
    QN_TRY(merge(r, keys, places, spare, half, reverse));
    QN_TRY(merge(r, keys, places + half, spare, n - half, reverse));
    while (i < half && j < n) {
        int take_right;
        QN_TRY(is_before(r, keys[places[j]], keys[places[i]], reverse, &take_right));
        spare[k++] = take_right ? places[j++] : places[i++];
    }
    while (i < half) spare[k++] = places[i++];
    memcpy(places, spare, (size_t)k * sizeof *places);
    return QN_OK;
}

qn_status qn_jsort(qn_jrun *r, const qn_jvalue *keys, int64_t *places, int64_t n, int reverse)
{
    int64_t *spare = qn_jheap_alloc(&r->heap, (size_t)n, sizeof *spare);
    if (!spare) return r->heap.status;
    return merge(r, keys, places, spare, n, reverse);
}

/* The key by which a filter compares an item: an attribute of it, in lower case unless that matters. */
static qn_status make_key(qn_jrun *r, qn_jvalue item, qn_jvalue attribute, int case_sensitive, qn_jvalue *out)
{
    QN_TRY(qn_jgetpath(r, item, attribute, qn_jnone(), out));
    if (!case_sensitive && out->kind == QN_J_STRING) return qn_jcase_change(r, out->s, QN_JCASE_LOWER, out);
    return QN_OK;
}

/* Several attributes with commas between them make a tuple. */
static qn_status make_keys(qn_jrun *r, qn_jvalue item, qn_jvalue attribute, int case_sensitive,
                           qn_jvalue *out)
{
    qn_jvalue parts, *names, comma;
    int64_t n;
    if (attribute.kind != QN_J_STRING || !memchr(attribute.s->data, ',', attribute.s->n))
        return make_key(r, item, attribute, case_sensitive, out);
    static const qn_jstring split = {.data = "split", .n = 5};
    QN_TRY(qn_jstring_borrow(&r->heap, ",", 1, NULL, 0, &comma));
    const qn_jargs a = {.items = &comma, .n = 1};
    QN_TRY(qn_jmethod_find(attribute, &split)(r, attribute, &a, &parts));
    names = parts.l->items;
    n = parts.l->n;
    QN_TRY(qn_jlist_new(&r->heap, QN_JSHAPE_TUPLE, n, 0, out));
    for (int64_t i = 0; i < n; i++) QN_TRY(make_key(r, item, names[i], case_sensitive, &out->l->items[i]));
    out->l->n = n;
    return QN_OK;
}

/* Keys of all items and their places in sorted order. */
static qn_status sort_items(qn_jrun *r, const sequence *q, qn_jvalue attribute, int case_sensitive,
                            int reverse, qn_jvalue **keys, int64_t **places)
{
    *keys = qn_jheap_alloc(&r->heap, (size_t)q->n, sizeof **keys);
    *places = *keys ? qn_jheap_alloc(&r->heap, (size_t)q->n, sizeof **places) : NULL;
    if (!*places) return r->heap.status;
    for (int64_t i = 0; i < q->n; i++) {
        (*places)[i] = i;
        QN_TRY(make_keys(r, q->items[i], attribute, case_sensitive, &(*keys)[i]));
    }
    return qn_jsort(r, *keys, *places, q->n, reverse);
}

static qn_status filter_sort(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[3], *keys;
    int64_t *places;
    sequence q;
    QN_TRY(qn_jargs_bind(r, "sort", a, "reverse case_sensitive attribute", 0, bound));
    QN_TRY(open_sequence(r, v, QN_JSHAPE_LIST, &q));
    QN_TRY(sort_items(r, &q, bound[2], qn_jvalue_truth(bound[1]), qn_jvalue_truth(bound[0]), &keys, &places));
    for (int64_t i = 0; i < q.n; i++) put(&q, q.items[places[i]]);
    *out = q.list;
    return QN_OK;
}

static qn_status filter_dictsort(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[3], *keys;
    int64_t *places;
    sequence q;
    qn_jargs none = {0};
    QN_TRY(qn_jargs_bind(r, "dictsort", a, "case_sensitive by reverse", 0, bound));
    if (v.kind == QN_J_UNDEFINED) return qn_jfail_undefined(v);
    if (v.kind != QN_J_DICT) return qn_fail(QN_E_ARG, "dictsort: expected a dict, not %s", qn_jvalue_type(v));
    int by_value = bound[1].kind == QN_J_STRING && qn_jstring_is(bound[1].s, "value");
    if (!by_value && bound[1].kind != QN_J_MISSING &&
        !(bound[1].kind == QN_J_STRING && qn_jstring_is(bound[1].s, "key")))
        return qn_fail(QN_E_ARG, "You can only sort by either \"key\" or \"value\"");
    QN_TRY(filter_items(r, v, &none, &v));
    QN_TRY(open_sequence(r, v, QN_JSHAPE_LIST, &q));
    QN_TRY(sort_items(r, &q, qn_jint(by_value, 0), qn_jvalue_truth(bound[0]), qn_jvalue_truth(bound[2]),
                      &keys, &places));
    for (int64_t i = 0; i < q.n; i++) put(&q, q.items[places[i]]);
    *out = q.list;
    return QN_OK;
}

static qn_status filter_groupby(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[3], *keys, group;
    int64_t *places;
    sequence q;
    QN_TRY(qn_jargs_bind(r, "groupby", a, "attribute default case_sensitive", 1, bound));
    int case_sensitive = qn_jvalue_truth(bound[2]);
    QN_TRY(open_sequence(r, v, QN_JSHAPE_LIST, &q));
    keys = qn_jheap_alloc(&r->heap, (size_t)q.n, sizeof *keys);
    places = keys ? qn_jheap_alloc(&r->heap, (size_t)q.n, sizeof *places) : NULL;
    if (!places) return r->heap.status;
    for (int64_t i = 0; i < q.n; i++) {
        places[i] = i;
        QN_TRY(qn_jgetpath(r, q.items[i], bound[0], bound[1], &keys[i]));
        QN_TRY(make_key(r, keys[i], qn_jnone(), case_sensitive, &keys[i]));
    }
    QN_TRY(qn_jsort(r, keys, places, q.n, 0));
    for (int64_t i = 0, end; i < q.n; i = end) {
        int equal = 1;
        for (end = i + 1; end < q.n; end++) {
            QN_TRY(qn_jvalue_equal(&r->heap, keys[places[i]], keys[places[end]], &equal));
            if (!equal) break;
        }
        QN_TRY(qn_jlist_new(&r->heap, QN_JSHAPE_GROUP, 2, v.user, &group));
        QN_TRY(qn_jgetpath(r, q.items[places[i]], bound[0], bound[1], &group.l->items[0]));
        QN_TRY(qn_jlist_new(&r->heap, QN_JSHAPE_LIST, end - i, v.user, &group.l->items[1]));
        for (int64_t j = i; j < end; j++) group.l->items[1].l->items[j - i] = q.items[places[j]];
        group.l->items[1].l->n = end - i;
        group.l->n = 2;
        put(&q, group);
    }
    *out = q.list;
    return QN_OK;
}

static qn_status filter_unique(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[2], seen, key, *known;
    sequence q;
    QN_TRY(qn_jargs_bind(r, "unique", a, "case_sensitive attribute", 0, bound));
    QN_TRY(open_sequence(r, v, QN_JSHAPE_GENERATOR, &q));
    QN_TRY(qn_jdict_new(&r->heap, 0, 0, &seen));
    for (int64_t i = 0; i < q.n; i++) {
        QN_TRY(make_key(r, q.items[i], bound[1], qn_jvalue_truth(bound[0]), &key));
        QN_TRY(qn_jdict_get(&r->heap, seen.d, key, &known));
        if (known) continue;
        QN_TRY(qn_jdict_set(&r->heap, seen.d, key, qn_jnone()));
        put(&q, q.items[i]);
    }
    *out = q.list;
    return QN_OK;
}

static qn_status extreme(qn_jrun *r, qn_jvalue v, const qn_jargs *a, int largest, qn_jvalue *out)
{
    qn_jvalue bound[2], *items, key, best_key;
    int64_t n, best = 0;
    QN_TRY(qn_jargs_bind(r, largest ? "max" : "min", a, "case_sensitive attribute", 0, bound));
    QN_TRY(qn_jvalue_items(&r->heap, v, &items, &n));
    static const char why[] = "the extreme of an empty sequence";
    if (!n) return qn_jundefined(&r->heap, NULL, why, sizeof why - 1, 0, out);
    QN_TRY(make_key(r, items[0], bound[1], qn_jvalue_truth(bound[0]), &best_key));
    for (int64_t i = 1; i < n; i++) {
        int order;
        QN_TRY(make_key(r, items[i], bound[1], qn_jvalue_truth(bound[0]), &key));
        QN_TRY(qn_jvalue_compare(&r->heap, key, best_key, &order));
        if (largest ? order != 1 : order >= 0) continue;
        best = i;
        best_key = key;
    }
    *out = items[best];
    return QN_OK;
}

static qn_status filter_min(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    return extreme(r, v, a, 0, out);
}

static qn_status filter_max(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    return extreme(r, v, a, 1, out);
}

static qn_status filter_sum(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[2], *items, item, total;
    int64_t n;
    QN_TRY(qn_jargs_bind(r, "sum", a, "attribute start", 0, bound));
    QN_TRY(qn_jvalue_items(&r->heap, v, &items, &n));
    total = bound[1].kind == QN_J_MISSING ? qn_jint(0, 0) : bound[1];
    if (total.kind == QN_J_STRING) return qn_fail(QN_E_ARG, "sum cannot add strings; use join");
    for (int64_t i = 0; i < n; i++) {
        QN_TRY(qn_jheap_step(&r->heap, 1));
        QN_TRY(qn_jgetpath(r, items[i], bound[0], qn_jnone(), &item));
        QN_TRY(qn_jbinary(r, '+', total, item, &total));
    }
    *out = total;
    return QN_OK;
}

/* Items in rows: batch fills one row after the other, slice makes a number of rows of nearly equal length. */

static qn_status put_row(qn_jrun *r, sequence *q, int64_t from, int64_t to, int64_t fill, qn_jvalue filler)
{
    qn_jvalue row;
    QN_TRY(qn_jheap_step(&r->heap, (uint64_t)(to - from + fill)));
    QN_TRY(qn_jlist_new(&r->heap, QN_JSHAPE_LIST, to - from + fill, 0, &row));
    for (int64_t i = from; i < to; i++) row.l->items[row.l->n++] = q->items[i];
    for (int64_t i = 0; i < fill; i++) row.l->items[row.l->n++] = filler;
    put(q, row);
    return QN_OK;
}

static qn_status filter_batch(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[2];
    int64_t size;
    sequence q;
    QN_TRY(qn_jargs_bind(r, "batch", a, "linecount fill_with", 1, bound));
    QN_TRY(qn_jarg_int(bound[0], "batch: the size", 0, &size));
    if (size < 1) return qn_fail(QN_E_ARG, "batch: the size must be at least 1");
    QN_TRY(open_sequence(r, v, QN_JSHAPE_GENERATOR, &q));
    int fills = bound[1].kind != QN_J_MISSING && bound[1].kind != QN_J_NONE;
    for (int64_t i = 0; i < q.n;) {
        int64_t to = q.n - i > size ? i + size : q.n;
        QN_TRY(put_row(r, &q, i, to, fills ? size - (to - i) : 0, bound[1]));
        i = to;
    }
    *out = q.list;
    return QN_OK;
}

static qn_status filter_slice(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[2];
    int64_t slices, from = 0;
    sequence q;
    QN_TRY(qn_jargs_bind(r, "slice", a, "slices fill_with", 1, bound));
    QN_TRY(qn_jarg_int(bound[0], "slice: the number", 0, &slices));
    if (slices < 1) return qn_fail(QN_E_ARG, "slice: the number must be at least 1");
    QN_TRY(open_sequence(r, v, QN_JSHAPE_GENERATOR, &q));
    QN_TRY(qn_jheap_step(&r->heap, (uint64_t)slices));
    QN_TRY(qn_jlist_new(&r->heap, QN_JSHAPE_GENERATOR, slices, v.user, &q.list));
    int fills = bound[1].kind != QN_J_MISSING && bound[1].kind != QN_J_NONE;
    for (int64_t i = 0; i < slices; i++) {
        int64_t to = from + q.n / slices + (i < q.n % slices);
        QN_TRY(put_row(r, &q, from, to, fills && i >= q.n % slices, bound[1]));
        from = to;
    }
    *out = q.list;
    return QN_OK;
}

/* map, select, reject, selectattr, rejectattr */

/* The arguments behind the first. */
static qn_jargs rest_of(const qn_jargs *a)
{
    qn_jargs rest = *a;
    rest.items++;
    rest.n--;
    return rest;
}

static qn_status filter_map(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    sequence q;
    qn_jvalue bound[2], item;
    qn_jstring *name;
    if (!qn_jvalue_truth(v)) return qn_jlist_new(&r->heap, QN_JSHAPE_GENERATOR, 0, 0, out);
    QN_TRY(open_sequence(r, v, QN_JSHAPE_GENERATOR, &q));
    *out = q.list;
    if (!a->n) {
        QN_TRY(qn_jargs_bind(r, "map", a, "attribute default", 1, bound));
        for (int64_t i = 0; i < q.n; i++) {
            QN_TRY(qn_jgetpath(r, q.items[i], bound[0], bound[1], &item));
            put(&q, item);
        }
        return QN_OK;
    }
    QN_TRY(qn_jarg_string(a->items[0], "map: the filter's name", &name));
    const void *filter = qn_jfilter_find(name);
    if (!filter)
        return qn_fail(QN_E_ARG, "no filter named '%.*s'", name->n > 60 ? 60 : (int)name->n, name->data);
    const qn_jargs rest = rest_of(a);
    QN_TRY(qn_jheap_enter(&r->heap));
    for (int64_t i = 0; i < q.n; i++) {
        QN_TRY(qn_jfilter_call(r, filter, q.items[i], &rest, &item));
        put(&q, item);
    }
    qn_jheap_leave(&r->heap);
    return QN_OK;
}

static qn_status choose(qn_jrun *r, qn_jvalue v, const qn_jargs *a, int by_attribute, int wanted,
                        qn_jvalue *out)
{
    sequence q;
    qn_jvalue attribute = qn_jnone(), item;
    qn_jargs rest = *a;
    qn_jstring *name;
    const void *test = NULL;
    if (!qn_jvalue_truth(v)) return qn_jlist_new(&r->heap, QN_JSHAPE_GENERATOR, 0, 0, out);
    if (by_attribute) {
        if (!a->n) return qn_fail(QN_E_ARG, "Missing parameter for attribute name");
        attribute = a->items[0];
        rest = rest_of(a);
    }
    if (rest.n) {
        QN_TRY(qn_jarg_string(rest.items[0], "the test's name", &name));
        test = qn_jtest_find(name);
        if (!test)
            return qn_fail(QN_E_ARG, "no test named '%.*s'", name->n > 60 ? 60 : (int)name->n, name->data);
        rest = rest_of(&rest);
    }
    QN_TRY(open_sequence(r, v, QN_JSHAPE_GENERATOR, &q));
    for (int64_t i = 0; i < q.n; i++) {
        int truth;
        QN_TRY(qn_jgetpath(r, q.items[i], attribute, qn_jnone(), &item));
        if (test)
            QN_TRY(qn_jtest_call(r, test, item, &rest, &truth));
        else
            truth = qn_jvalue_truth(item);
        if (truth == wanted) put(&q, q.items[i]);
    }
    *out = q.list;
    return QN_OK;
}

static qn_status filter_select(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    return choose(r, v, a, 0, 1, out);
}

static qn_status filter_reject(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    return choose(r, v, a, 0, 0, out);
}

static qn_status filter_selectattr(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    return choose(r, v, a, 1, 1, out);
}

static qn_status filter_rejectattr(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    return choose(r, v, a, 1, 0, out);
}

static const qn_jfunction_row list_filters[] = {
    {"list", filter_list},
    {"join", filter_join},
    {"first", filter_first},
    {"last", filter_last},
    {"items", filter_items},
    {"map", filter_map},
    {"select", filter_select},
    {"reject", filter_reject},
    {"selectattr", filter_selectattr},
    {"rejectattr", filter_rejectattr},
    {"sort", filter_sort},
    {"dictsort", filter_dictsort},
    {"groupby", filter_groupby},
    {"unique", filter_unique},
    {"reverse", filter_reverse},
    {"min", filter_min},
    {"max", filter_max},
    {"sum", filter_sum},
    {"batch", filter_batch},
    {"slice", filter_slice},
};

const qn_jfunction_row *qn_jlist_filter_find(const qn_jstring *name)
{
    return qn_jrow_find(list_filters, sizeof list_filters / sizeof *list_filters, name);
}
