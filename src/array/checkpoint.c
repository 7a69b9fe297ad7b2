/* Checkpoints: the gradient of a piece of the graph from that piece built a second time. Arrays of the second
 * one are younger than all that is there, so a plan computes them when the gradient comes to them, and the
 * first ones, which nobody else reads, leave their memory to others. */
#include "array/tape.h"
#include "base/mem.h"

qn_array *qn_checkpoint_from(qn_scope *s, qn_array *before, qn_array *out)
{
    if (!before || !out) return NULL;
    if (out->id <= before->id)
        return qn_scope_fail(s, qn_fail(QN_E_ARG, "the result of a checkpoint was made before its piece "
                                                  "began"));
    out->checkpoint = before->id;
    return out;
}

/* A piece and what it is made of. */
typedef struct {
    qn_tape_node **nodes; /* the arrays of the piece that matter, of the whole tape, inputs first */
    int64_t n;
    qn_array **ends; /* what they read that matters and is not of the piece */
    int n_ends;
} piece;

/* flags [t->n]: 1 for a node of the piece, 2 for an end. */
static void mark_piece(const qn_tape *t, const qn_array *out, char *flags)
{
    flags[qn_tape_find(t, out) - t->nodes] = 1;
    for (int64_t i = t->n - 1; i >= 0; i--) {
        qn_array *const *inputs;
        const int n_in = qn_tape_inputs(t->nodes[i].a, &inputs);
        for (int j = 0; flags[i] == 1 && j < n_in; j++) {
            const qn_tape_node *in = qn_tape_find(t, inputs[j]);
            if (!in || !in->depends) continue;
            flags[in - t->nodes] = in->leaf || in->a->id <= out->checkpoint ? 2 : 1;
        }
    }
}

static qn_status find_piece(const qn_tape *t, const qn_array *out, piece *p)
{
    char *flags = qn_calloc((size_t)t->n, 1);
    *p = (piece){.nodes = qn_alloc_array((size_t)t->n, sizeof *p->nodes),
                 .ends = qn_alloc_array((size_t)t->n, sizeof *p->ends)};
    if (flags && p->nodes && p->ends) {
        mark_piece(t, out, flags);
        for (int64_t i = 0; i < t->n; i++) {
            if (flags[i] == 1) p->nodes[p->n++] = &t->nodes[i];
            if (flags[i] == 2) p->ends[p->n_ends++] = t->nodes[i].a;
        }
    }
    qn_free(flags);
    return flags && p->nodes && p->ends ? QN_OK : QN_E_NOMEM;
}

/* What stands for `a` among the n arrays built anew so far, or a itself. */
static qn_array *newer(const piece *p, int64_t n, qn_array *const *again, qn_array *a)
{
    int64_t begin = 0, end = n; /* nodes are sorted by id */
    while (begin < end) {
        int64_t mid = begin + (end - begin) / 2;
        if (p->nodes[mid]->a->id < a->id)
            begin = mid + 1;
        else
            end = mid;
    }
    return begin < n && p->nodes[begin]->a == a ? again[begin] : a;
}

/* out once more. What does not matter to the gradient is taken as it is, also where it is of the piece. */
static qn_status build_again(qn_scope *s, const piece *p, qn_array **out)
{
    qn_array **again = qn_alloc_array((size_t)p->n, sizeof *again);
    if (!again) return QN_E_NOMEM;
    for (int64_t i = 0; i < p->n && s->status == QN_OK; i++) {
        const qn_array *a = p->nodes[i]->a;
        qn_array *in[QN_MAX_INPUTS], *own[QN_CUSTOM_INPUTS_MAX];
        for (int j = 0; j < a->n_in; j++) in[j] = newer(p, i, again, a->in[j]);
        again[i] = qn_again(s, a, in);
        for (int j = 0; a->custom && again[i] && j < a->custom->n_in; j++)
            own[j] = newer(p, i, again, a->custom->in[j]);
        if (a->custom && again[i])
            qn_customize(s, again[i], a->custom->gradient, a->custom->user, a->custom->n_in, own);
    }
    *out = again[p->n - 1]; /* the youngest */
    qn_free(again);
    return qn_scope_status(s);
}

qn_status qn_checkpoint_back(qn_scope *s, const qn_tape_node *n, const qn_tape *t)
{
    piece p;
    qn_array *again = NULL, **grads = NULL;
    qn_status status = find_piece(t, n->a, &p);
    if (status == QN_OK) status = build_again(s, &p, &again);
    if (status == QN_OK && !(grads = qn_calloc((size_t)p.n_ends + 1, sizeof *grads))) status = QN_E_NOMEM;
    if (status == QN_OK) status = qn_vjp(s, again, n->value, p.n_ends, p.ends, grads);
    for (int i = 0; i < p.n_ends && status == QN_OK; i++)
        if (grads[i]) qn_tape_add(s, qn_tape_find(t, p.ends[i]), grads[i]);
    qn_free(grads);
    qn_free(p.nodes);
    qn_free(p.ends);
    return status;
}
