/* Attention of the heads of a layer: one primitive, or products and a softmax under an explicit mask. */
#include <math.h>

#include "model/forward/blocks/blocks.h"

/* x [N * L, heads, dim] as [N, heads, L, dim]. */
static qn_array *by_sequence(qn_scope *s, qn_array *x, int64_t n, int64_t length)
{
    if (!x) return NULL;
    const int64_t *dim = qn_array_shape(x)->dim;
    return qn_swap_axes(s, qn_reshape(s, x, 4, (int64_t[]){n, length, dim[1], dim[2]}), 1, 2);
}

/* The mask with -INFINITY where a key lies behind the window of its query. */
static qn_array *within_window(qn_scope *s, qn_array *mask, int64_t length, int64_t window)
{
    qn_array *at = qn_arange(s, QN_DTYPE_I32, 0, (double)length, 1);
    qn_array *first = qn_sub(s, qn_expand_dims(s, at, 1), qn_full(s, QN_DTYPE_I32, 0, NULL, (double)window));
    qn_array *is_seen = qn_gt(s, qn_expand_dims(s, at, 0), first);
    return qn_where(s, is_seen, mask, qn_number_like(s, mask, -INFINITY));
}

/* The mask with -INFINITY where a key lies before the chunk of its query. Quotients of positions below 2^24 are cut
 * right in f32. */
static qn_array *within_chunk(qn_scope *s, qn_array *mask, int64_t length, int64_t chunk)
{
    qn_array *at = qn_div(s, qn_arange(s, QN_DTYPE_F32, 0, (double)length, 1), qn_scalar(s, (float)chunk));
    at = qn_unary(s, QN_PRIM_FLOOR, at);
    qn_array *is_before = qn_gt(s, qn_expand_dims(s, at, 1), qn_expand_dims(s, at, 0));
    return qn_where(s, is_before, qn_number_like(s, mask, -INFINITY), mask);
}

static qn_array *masked(qn_scope *s, qn_array *mask, const qn_params_attend *p, qn_array *q, qn_array *k,
                        qn_array *v, qn_array *sinks)
{
    if (!q) return NULL;
    const int64_t n = qn_array_shape(mask)->dim[0], length = qn_array_shape(mask)->dim[3];
    const qn_sdpa_options o = {.scale = p->scale, .softcap = p->softcap, .sinks = sinks};
    if (p->window > 0 && p->window < length) mask = within_window(s, mask, length, p->window);
    if (p->chunk > 0 && p->chunk < length) mask = within_chunk(s, mask, length, p->chunk);
    qn_array *x = qn_sdpa(s, by_sequence(s, q, n, length), by_sequence(s, k, n, length),
                          by_sequence(s, v, n, length), mask, &o);
    if (!x) return NULL;
    const int64_t *dim = qn_array_shape(x)->dim;
    return qn_reshape(s, qn_swap_axes(s, x, 1, 2), 3, (int64_t[]){n * length, dim[1], dim[3]});
}

qn_array *qn_block_attend(qn_scope *s, const qn_forward *f, const qn_params_attend *p, int group, qn_array *q,
                          qn_array *k, qn_array *v, qn_array *sinks, qn_array *chosen)
{
    qn_array *o = f->mask ? masked(s, f->mask, p, q, k, v, sinks)
                          : qn_attend_chosen(s, p, q, k, v, f->positions, f->row_begin, f->blocks[group],
                                             sinks, chosen);
    return qn_label(s, o, "attend");
}
