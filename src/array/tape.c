#include "array/tape.h"

#include <stdlib.h>

#include "base/mem.h"
#include "prim/convert.h"
#include "prim/dtype.h"

int qn_is_real(const qn_array *a)
{
    return qn_dtype_is_float(a->dtype) && qn_is_plain(a);
}

int qn_is_plain(const qn_array *a)
{
    if (!qn_dtype_is_plain(a->dtype)) return 0;
    while (a->n_in == 1 && qn_prim_get(a->prim)->kind == QN_CLASS_SOURCE) a = a->in[0]; /* a view */
    return a->prim != QN_PRIM_DATA || a->buffer->layout == 0;
}

static int by_id(const void *x, const void *y)
{
    const qn_array *a = *(qn_array *const *)x, *b = *(qn_array *const *)y;
    return (a->id > b->id) - (a->id < b->id);
}

/* Most graphs were made in one go: then their ids have few holes, and each array has its place in a row of
 * them. */
qn_status qn_sort_by_id(qn_array **list, int64_t n)
{
    uint64_t low = UINT64_MAX, high = 0;
    for (int64_t i = 0; i < n; i++) {
        if (list[i]->id < low) low = list[i]->id;
        if (list[i]->id > high) high = list[i]->id;
    }
    if (n < 2) return QN_OK;
    if (high - low >= 8 * (uint64_t)n) {
        qsort(list, (size_t)n, sizeof *list, by_id);
        return QN_OK;
    }
    const int64_t range = (int64_t)(high - low) + 1;
    qn_array **row = qn_calloc((size_t)range, sizeof *row);
    if (!row) return QN_E_NOMEM;
    for (int64_t i = 0; i < n; i++) row[list[i]->id - low] = list[i];
    for (int64_t i = 0, k = 0; i < range; i++)
        if (row[i]) list[k++] = row[i];
    qn_free(row);
    return QN_OK;
}

static int is_at(const qn_tape *t, const qn_array *a)
{
    return a->mark > 0 && a->mark <= t->n && t->nodes[a->mark - 1].a == a;
}

/* Marks hold places plus one, unless a pass within this one left others. */
qn_tape_node *qn_tape_find(const qn_tape *t, const qn_array *a)
{
    if (is_at(t, a)) return &t->nodes[a->mark - 1];
    int64_t low = 0, high = t->n;
    while (low < high) {
        const int64_t mid = low + (high - low) / 2;
        if (t->nodes[mid].a->id < a->id)
            low = mid + 1;
        else
            high = mid;
    }
    return low < t->n && t->nodes[low].a == a ? &t->nodes[low] : NULL;
}

typedef struct {
    qn_array **items;
    int64_t n, capacity;
} list;

/* Real numbers that are not there yet. */
static qn_status add(list *l, qn_array *a)
{
    if ((a->mark > 0 && a->mark <= l->n && l->items[a->mark - 1] == a) || !qn_is_real(a)) return QN_OK;
    if (l->n == l->capacity) {
        int64_t more = l->capacity ? 2 * l->capacity : 64;
        qn_array **items = qn_realloc(l->items, (size_t)more * sizeof *items);
        if (!items) return QN_E_NOMEM;
        l->items = items;
        l->capacity = more;
    }
    l->items[l->n++] = a;
    a->mark = l->n;
    return QN_OK;
}

static int is_one_of(const qn_array *a, int n, qn_array *const *list)
{
    for (int i = 0; i < n; i++)
        if (list[i] == a) return 1;
    return 0;
}

int qn_tape_inputs(const qn_array *a, qn_array *const **in)
{
    *in = a->custom ? a->custom->in : a->in;
    return a->stops ? 0 : a->custom ? a->custom->n_in : a->n_in;
}

static qn_status collect(qn_array *of, int n, qn_array *const *wrt, list *l)
{
    QN_TRY(add(l, of));
    for (int64_t i = 0; i < l->n; i++) {
        qn_array *const *in;
        int n_in = is_one_of(l->items[i], n, wrt) ? 0 : qn_tape_inputs(l->items[i], &in);
        for (int j = 0; j < n_in; j++) QN_TRY(add(l, in[j]));
    }
    return qn_sort_by_id(l->items, l->n);
}

qn_status qn_tape_new(qn_array *of, int n, qn_array *const *wrt, qn_tape *out)
{
    list l = {0};
    qn_status status = collect(of, n, wrt, &l);
    qn_tape t = {.nodes = status == QN_OK ? qn_alloc_array((size_t)l.n + 1, sizeof *t.nodes) : NULL,
                 .n = l.n};
    if (!t.nodes) {
        qn_free(l.items);
        return QN_E_NOMEM;
    }
    for (int64_t i = 0; i < t.n; i++) {
        qn_array *a = l.items[i], *const * in;
        const int leaf = is_one_of(a, n, wrt), n_in = leaf ? 0 : qn_tape_inputs(a, &in);
        qn_tape_node *node = &t.nodes[i];
        *node = (qn_tape_node){.a = a, .leaf = leaf, .depends = leaf};
        a->mark = i + 1;
        for (int j = 0; j < n_in && !node->depends; j++) { /* inputs have been here */
            const int64_t at = in[j]->mark - 1;
            node->depends = at >= 0 && at < i && t.nodes[at].a == in[j] && t.nodes[at].depends;
        }
    }
    qn_free(l.items);
    *out = t;
    return QN_OK;
}

void qn_tape_free(qn_tape *t)
{
    qn_free(t->nodes);
}
