#include "array/tape.h"

#include <stdlib.h>

#include "base/mem.h"

int qn_is_real(const qn_array *a)
{
    return (a->dtype == QN_DTYPE_F32 || a->dtype == QN_DTYPE_F16 || a->dtype == QN_DTYPE_BF16) &&
           !(a->prim == QN_PRIM_DATA && a->buffer->layout != 0);
}

static int by_id(const void *x, const void *y)
{
    const qn_array *a = ((const qn_tape_node *)x)->a, *b = ((const qn_tape_node *)y)->a;
    return (a->id > b->id) - (a->id < b->id);
}

qn_tape_node *qn_tape_find(const qn_tape *t, const qn_array *a)
{
    qn_tape_node key = {.a = (qn_array *)a};
    return bsearch(&key, t->nodes, (size_t)t->n, sizeof key, by_id);
}

/* A mark holds its array's place plus one while nodes are collected; nested passes may leave any marks. */
static int is_known(const qn_tape *t, const qn_array *a)
{
    return a->mark > 0 && a->mark <= t->n && t->nodes[a->mark - 1].a == a;
}

static qn_status add(qn_tape *t, int64_t *capacity, qn_array *a)
{
    if (is_known(t, a) || !qn_is_real(a)) return QN_OK;
    if (t->n == *capacity) {
        int64_t more = *capacity ? 2 * *capacity : 64;
        qn_tape_node *nodes = qn_realloc(t->nodes, (size_t)more * sizeof *nodes);
        if (!nodes) return QN_E_NOMEM;
        t->nodes = nodes;
        *capacity = more;
    }
    t->nodes[t->n++] = (qn_tape_node){.a = a};
    a->mark = t->n;
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

qn_status qn_tape_new(qn_array *of, int n, qn_array *const *wrt, qn_tape *out)
{
    qn_tape t = {0};
    int64_t capacity = 0;
    qn_status status = add(&t, &capacity, of);
    for (int64_t i = 0; i < t.n && status == QN_OK; i++) {
        qn_array *a = t.nodes[i].a;
        t.nodes[i].leaf = t.nodes[i].depends = is_one_of(a, n, wrt);
        qn_array *const *in;
        int n_in = t.nodes[i].leaf ? 0 : qn_tape_inputs(a, &in);
        for (int j = 0; j < n_in && status == QN_OK; j++) status = add(&t, &capacity, in[j]);
    }
    if (status != QN_OK) {
        qn_free(t.nodes);
        return status;
    }
    if (t.n) qsort(t.nodes, (size_t)t.n, sizeof *t.nodes, by_id);
    for (int64_t i = 0; i < t.n; i++) {
        qn_array *const *in;
        int n_in = t.nodes[i].leaf ? 0 : qn_tape_inputs(t.nodes[i].a, &in);
        for (int j = 0; j < n_in; j++) {
            const qn_tape_node *node = qn_tape_find(&t, in[j]);
            t.nodes[i].depends |= node && node->depends;
        }
    }
    *out = t;
    return QN_OK;
}

void qn_tape_free(qn_tape *t)
{
    qn_free(t->nodes);
}
