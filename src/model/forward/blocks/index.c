/* The index that chooses blocks for attention. A row's key and queries, of a projection each, decide: so their products
 * are exact, as a router's are. A convolution brings the rows of a block together at its last one, and carries those of a
 * block that is not whole from step to step; what it gives at other rows is never looked at.
 *
 *     MEAN:   key = rotated(norm(sum of k_j / n)), by the position of the block's first row
 *     GATED:  key = sum of softmax_j(g_j + place_j) k_j in each channel, where k_j is normed before */
#include <math.h>

#include "model/config/blocks/index_config.h"
#include "model/forward/blocks/blocks.h"

static qn_array *exactly(qn_scope *s, const qn_forward *f, qn_array *x, qn_weight_role role, int64_t layer)
{
    qn_array *y = qn_linear_exact(s, x, qn_forward_weight(f, role, layer));
    return qn_block_adapted(s, f, x, y, role, layer);
}

static qn_array *gathered(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer)
{
    qn_array *in[5] = {x, qn_parameters_index_taps(f->parameters)};
    return qn_block_recurrent(s, f, QN_PRIM_SHORT_CONV, (qn_params_recurrent){.offset = 0}, 2, in, layer);
}

static qn_array *column(qn_scope *s, qn_array *positions)
{
    return qn_reshape_rows(s, qn_astype(s, positions, QN_DTYPE_F32), 1, (int64_t[]){1});
}

/* Positions of the rows in f32, less n. */
static qn_array *rows_before(qn_scope *s, qn_array *positions, int64_t n)
{
    qn_array *x = qn_sub(s, qn_astype(s, positions, QN_DTYPE_F32), qn_scalar(s, (float)n));
    return qn_astype(s, x, QN_DTYPE_I32);
}

/* Number i of rows x as positions [R]. */
static qn_array *position_at(qn_scope *s, qn_array *x, int64_t i)
{
    x = qn_reshape_rows(s, qn_slice_last(s, x, i, 1), 0, NULL);
    return qn_astype(s, x, QN_DTYPE_I32);
}

static qn_array *mean_key(qn_scope *s, const qn_forward *f, qn_array *k, int64_t layer)
{
    const qn_model_config *c = f->config;
    const int64_t dim = c->index.index_head_dim, before = c->index.index_kpool - 1;
    const int rope = c->layers[layer].rope, sections = c->rope[0].mrope_section[0] != 0;
    qn_forward first = *f; /* with the positions of the blocks' first rows */
    qn_array *parts[1 + QN_ROPE_SECTIONS] = {k};
    for (int i = 0; sections && i < QN_ROPE_SECTIONS; i++) parts[1 + i] = column(s, f->rope_positions[i]);
    if (sections) k = qn_concat(s, 1 + QN_ROPE_SECTIONS, parts);
    qn_array *pooled = gathered(s, f, k, layer);
    for (int i = 0; sections && i < QN_ROPE_SECTIONS; i++)
        first.rope_positions[i] = position_at(s, pooled, dim + i);
    first.positions = rows_before(s, f->positions, before);
    if (sections) pooled = qn_slice_last(s, pooled, 0, dim);
    pooled = qn_block_norm(s, f, pooled, QN_WEIGHT_INDEX_K_NORM, layer);
    if (rope == QN_ROPE_NONE) return pooled;
    pooled = qn_reshape_rows(s, pooled, 2, (int64_t[]){1, dim});
    pooled = qn_rope(s, pooled, qn_block_rope(s, &first, rope), c->rope_interleaved);
    return qn_reshape_rows(s, pooled, 1, &dim);
}

/* x [R, n] as [R, n * places], each number once for each place. */
static qn_array *repeated(qn_scope *s, qn_array *x, int64_t n, int64_t places)
{
    x = qn_reshape_rows(s, x, 2, (int64_t[]){n, 1});
    if (!x) return NULL;
    qn_shape shape = *qn_array_shape(x);
    shape.dim[2] = places;
    return qn_reshape_rows(s, qn_broadcast_sym(s, x, shape), 1, (int64_t[]){n * places});
}

static qn_array *gated_key(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *k, int64_t layer)
{
    const int64_t dim = f->config->index.index_head_dim, places = f->config->index.index_kpool;
    const float eps = 1e-6f; /* the default of the reference's class, which is given none */
    k = qn_layer_norm(s, k, qn_forward_weight(f, QN_WEIGHT_INDEX_K_NORM, layer),
                      qn_forward_weight(f, QN_WEIGHT_INDEX_K_NORM_BIAS, layer), eps);
    qn_array *gate = exactly(s, f, x, QN_WEIGHT_INDEX_GATE, layer);
    qn_array *both = qn_concat(s, 2, (qn_array *[]){k, gate});
    both = gathered(s, f, repeated(s, both, 2 * dim, places), layer);
    k = qn_reshape_rows(s, qn_slice_last(s, both, 0, dim * places), 2, (int64_t[]){dim, places});
    gate =
        qn_reshape_rows(s, qn_slice_last(s, both, dim * places, dim * places), 2, (int64_t[]){dim, places});
    qn_array *place = qn_forward_weight(f, QN_WEIGHT_INDEX_PLACES, layer);
    place = place ? qn_transpose(s, qn_reshape(s, place, 2, (int64_t[]){places, dim})) : NULL;
    gate = gate ? qn_add(s, gate, qn_broadcast_sym(s, place, *qn_array_shape(gate))) : NULL;
    k = qn_sum(s, qn_mul(s, k, qn_softmax(s, gate)), 2);
    return qn_reshape_rows(s, k, 1, &dim);
}

static qn_array *queries(qn_scope *s, const qn_forward *f, qn_array *q, qn_array *table, int64_t layer)
{
    const qn_index_config *c = &f->config->index;
    q = exactly(s, f, q, QN_WEIGHT_INDEX_Q, layer);
    q = qn_reshape_rows(s, q, 2, (int64_t[]){c->index_n_heads, c->index_head_dim});
    if (c->pool != QN_INDEX_MEAN) return q;
    q = qn_block_norm(s, f, q, QN_WEIGHT_INDEX_Q_NORM, layer);
    return table ? qn_rope(s, q, table, f->config->rope_interleaved) : q;
}

qn_array *qn_block_index(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *q,
                         const qn_block_positions *at, int64_t layer)
{
    const qn_index_config *c = &f->config->index;
    const int gated = c->pool == QN_INDEX_GATED, group = f->groups->index_group;
    qn_array *k = exactly(s, f, x, QN_WEIGHT_INDEX_K, layer), *weights = NULL;
    k = gated ? gated_key(s, f, x, k, layer) : mean_key(s, f, k, layer);
    if (gated) {
        weights = exactly(s, f, x, QN_WEIGHT_INDEX_HEADS, layer);
        weights = qn_scale(s, weights, 1 / sqrtf((float)c->index_n_heads));
    }
    const qn_params_index p = {.state = group < 0 ? NULL : f->state[group],
                               .layer = f->groups->index_place[layer],
                               .has_weights = gated,
                               .top = (int32_t)(c->index_topk / c->index_kpool),
                               .scale = 1 / sqrtf((float)c->index_head_dim),
                               .block = c->index_kpool,
                               .window = qn_block_window(f, layer)};
    q = queries(s, f, q, at->table, layer);
    k = qn_index_blocks(s, &p, q, k, f->positions, f->row_begin, group < 0 ? NULL : f->blocks[group],
                        weights);
    return qn_label(s, k, "index");
}

void qn_block_choose(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *q, const qn_block_positions *at,
                     qn_block_kv *kv, qn_params_attend *p, int64_t layer)
{
    const qn_layer_config *l = &f->config->layers[layer];
    if (!l->indexed) return;
    if (l->index_layer == layer) kv->chosen = qn_block_index(s, f, x, q, at, layer);
    p->block = f->config->index.index_kpool;
    p->no_tail = f->config->index.no_tail;
}
