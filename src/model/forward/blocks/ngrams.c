/* Embeddings of n-grams, as Qwen's 4-Exp adds them to the streams of a layer. Each head hashes the last tokens to a row
 * of a table; e being the rows of all heads, and every stream x_i normed by itself:
 *     g_i = sigmoid(sign(d) sqrt(max(|d|, 1e-6))),  d = norm(key e)_i . norm(x)_i / sqrt(hidden_size)
 *     v_i = g_i (value e),  out = v + silu(conv(norm(v)))
 * The taps of the convolution are ngram_size rows apart. Tokens before a row come from a convolution too, whose taps are
 * 0 or 1: so they are carried from step to step, saved and taken back as other states are. Ids below 2^24 are exact
 * in f32. */
#include <math.h>

#include "model/forward/blocks/blocks.h"

static const qn_weight_role none = QN_WEIGHT_ROLE_COUNT;

/* Channel c of n gives the row c places before: [n, n] taps. */
static qn_array *shifts(qn_scope *s, int64_t n)
{
    float taps[QN_NGRAM_MAX * QN_NGRAM_MAX] = {0};
    for (int64_t c = 0; c < n; c++) taps[(n - 1 - c) * n + c] = 1;
    return qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){n, n}, taps);
}

/* Where the layer keeps the tokens before, and behind them what its convolution sees. */
static int64_t offset_of(const qn_forward *f, int64_t layer)
{
    int64_t conv, rule;
    qn_layer_state_floats(f->config, layer, &conv, &rule);
    return conv - qn_ngram_state_floats(f->config);
}

/* The tokens before each row, [R, ngram_size] i32: column k has the token k places back. Where a sequence has none, the
 * state's 0 stands for the token that ends n-grams. */
static qn_array *tokens_before(qn_scope *s, const qn_forward *f, int64_t layer)
{
    const int64_t n = f->config->ngram.ngram_size, one = 1;
    const float end = (float)f->config->ngram.eos_token_id;
    qn_array *x = qn_sub(s, qn_astype(s, f->ids, QN_DTYPE_F32), qn_scalar(s, end));
    x = qn_mul(s, qn_reshape_rows(s, x, 1, &one), qn_ones(s, QN_DTYPE_F32, 1, &n));
    qn_array *in[5] = {x, shifts(s, n)};
    x = qn_block_recurrent(s, f, QN_PRIM_SHORT_CONV, (qn_params_recurrent){.offset = offset_of(f, layer)}, 2,
                           in, layer);
    return qn_astype(s, qn_add(s, x, qn_scalar(s, end)), QN_DTYPE_I32);
}

/* Arrays side by side: as many at once as a step takes. */
static qn_array *side_by_side(qn_scope *s, int64_t n, qn_array **parts)
{
    enum { AT_ONCE = 8 };
    while (n > 1) {
        int64_t made = 0;
        for (int64_t i = 0; i < n; i += AT_ONCE)
            parts[made++] = qn_concat(s, (int)(n - i < AT_ONCE ? n - i : AT_ONCE), parts + i);
        n = made;
    }
    return parts[0];
}

/* [R, ple_embed_dim]. */
static qn_array *embedded(qn_scope *s, const qn_forward *f, int64_t layer)
{
    const qn_ngram_config *n = &f->config->ngram;
    const qn_ngram_hash *h = &n->hashes[f->config->layers[layer].ngrams - 1];
    qn_array *heads[QN_NGRAM_HEADS_MAX], *table = qn_forward_weight(f, QN_WEIGHT_NGRAM_EMBED, layer);
    const qn_params p = {.hash_ids = {.end = n->eos_token_id}};
    qn_array *in[4] = {tokens_before(s, f, layer),
                       qn_from_data(s, QN_DTYPE_I64, 1, &n->ngram_size, h->multiplier),
                       qn_from_data(s, QN_DTYPE_I32, 1, &n->n_heads, h->size),
                       qn_from_data(s, QN_DTYPE_I32, 1, &n->n_heads, h->offset)};
    qn_array *ids = qn_apply(s, QN_PRIM_HASH_IDS, &p, 4, in, NULL, QN_DTYPE_I32);
    for (int64_t i = 0; i < n->n_heads; i++)
        heads[i] = qn_take(s, table, qn_reshape_rows(s, qn_slice_last(s, ids, i, 1), 0, NULL));
    return qn_label(s, side_by_side(s, n->n_heads, heads), "ngrams");
}

/* The gate of each stream, [R, hc_count, 1]. */
static qn_array *gates(qn_scope *s, const qn_forward *f, qn_array *e, qn_array *streams, int64_t layer)
{
    const int64_t n = f->config->hyper.hc_count, width = f->config->hidden_size;
    qn_array *key = qn_block_linear(s, f, e, QN_WEIGHT_NGRAM_KEY, none, layer);
    key = qn_block_stream_norm(s, f, key, QN_WEIGHT_NGRAM_KEY_NORM, layer);
    qn_array *query = qn_block_stream_norm(s, f, streams, QN_WEIGHT_NGRAM_QUERY_NORM, layer);
    qn_array *d = qn_reshape_rows(s, qn_mul(s, key, query), 2, (int64_t[]){n, width});
    d = qn_scale(s, qn_sum(s, d, 2), 1 / sqrtf((float)width));
    qn_array *size = qn_binary(s, QN_PRIM_MAXIMUM, qn_unary(s, QN_PRIM_ABS, d), qn_scalar(s, 1e-6f));
    return qn_unary(s, QN_PRIM_SIGMOID, qn_mul(s, qn_unary(s, QN_PRIM_SQRT, size), qn_sign(s, d)));
}

/* The kernel w [k, channels] with its taps ngram_size rows apart, and zeros between them. */
static qn_array *widened(qn_scope *s, const qn_forward *f, qn_array *w)
{
    const int64_t k = f->config->ngram.ple_conv_kernel_size, n = f->config->ngram.ngram_size,
                  width = f->config->hyper.hc_count * f->config->hidden_size;
    w = qn_pad(s, qn_reshape(s, w, 3, (int64_t[]){k, 1, width}), (int64_t[]){0, 0, 0},
               (int64_t[]){0, n - 1, 0}, 0);
    return qn_slice(s, qn_reshape(s, w, 2, (int64_t[]){k * n, width}), (int64_t[]){0, 0},
                    (int64_t[]){(k - 1) * n + 1, width}, NULL);
}

qn_array *qn_block_ngrams(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer)
{
    const qn_model_config *c = f->config;
    const int64_t width = c->hidden_size, all = c->hyper.hc_count * width, n = c->ngram.ngram_size;
    qn_array *e = embedded(s, f, layer);
    qn_array *v = qn_block_linear(s, f, e, QN_WEIGHT_NGRAM_VALUE, none, layer);
    v = qn_mul(s, qn_reshape_rows(s, v, 2, (int64_t[]){1, width}), gates(s, f, e, x, layer));
    v = qn_reshape_rows(s, v, 1, &all);
    qn_array *in[5] = {qn_block_stream_norm(s, f, v, QN_WEIGHT_NGRAM_CONV_NORM, layer),
                       widened(s, f, qn_forward_weight(f, QN_WEIGHT_NGRAM_CONV, layer))};
    qn_params_recurrent how = {.offset = offset_of(f, layer) + (n - 1) * n};
    qn_array *y = qn_block_recurrent(s, f, QN_PRIM_SHORT_CONV, how, 2, in, layer);
    y = qn_add(s, v, qn_unary(s, QN_PRIM_SILU, y));
    return qn_add(s, x, qn_reshape_rows(s, y, 2, (int64_t[]){c->hyper.hc_count, width}));
}
