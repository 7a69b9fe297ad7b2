#include "tests/primitives/ops_cases.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

/* ---- attributes --------------------------------------------------------------------------------------- */

static json_int_t integer(qn_op_case *c, const char *key)
{
    return json_integer_value(json_object_get(c->attributes, key));
}

static double number(qn_op_case *c, const char *key)
{
    return json_number_value(json_object_get(c->attributes, key));
}

static int is_true(qn_op_case *c, const char *key)
{
    return json_is_true(json_object_get(c->attributes, key));
}

static int axis(qn_op_case *c)
{
    return (int)integer(c, "axis");
}

/* Up to the most dimensions of an array; returns how many there are. */
static int list(qn_op_case *c, const char *key, int64_t *out)
{
    json_t *a = json_object_get(c->attributes, key), *v;
    size_t i;
    json_array_foreach(a, i, v) if (i < QN_ARRAY_DIMS_MAX) out[i] = json_integer_value(v);
    return (int)json_array_size(a);
}

static int64_t dim(const qn_array *a, int i)
{
    return qn_array_dim(a, i);
}

qn_array *qn_op_tensor(qn_op_case *c, const char *name)
{
    const qn_tensor_view *v = qn_safetensors_find(c->tensors, name);
    if (!v) return NULL;
    return qn_from_data(c->scope, v->dtype, v->n_dims, v->shape, v->data);
}

static qn_array *tensor(qn_op_case *c, const char *key)
{
    const char *name = json_string_value(json_object_get(json_object_get(c->attributes, key), "tensor"));
    return name ? qn_op_tensor(c, name) : NULL;
}

/* ---- element by element ------------------------------------------------------------------------------- */

static qn_array *build_where(qn_op_case *c)
{
    return qn_where(c->scope, tensor(c, "condition"), c->in[0], c->in[1]);
}

static qn_array *build_clip(qn_op_case *c)
{
    return qn_clip(c->scope, c->in[0], number(c, "low"), number(c, "high"));
}

static qn_array *build_quick_gelu(qn_op_case *c)
{
    qn_array *x = c->in[0];
    return qn_mul(c->scope, x, qn_sigmoid(c->scope, qn_scale(c->scope, x, 1.702)));
}

static qn_array *build_softcap(qn_op_case *c)
{
    const double cap = number(c, "cap");
    return qn_scale(c->scope, qn_tanh(c->scope, qn_scale(c->scope, c->in[0], 1 / cap)), cap);
}

static qn_array *build_swiglu(qn_op_case *c)
{
    return qn_mul(c->scope, qn_silu(c->scope, c->in[0]), c->in[1]);
}

/* ---- along axes --------------------------------------------------------------------------------------- */

static qn_array *over(qn_op_case *c, qn_reduction how)
{
    const int at = axis(c);
    return qn_reduce(c->scope, how, c->in[0], 1, &at, is_true(c, "keepdims"));
}

static qn_array *build_sum(qn_op_case *c)
{
    return over(c, QN_REDUCE_SUM);
}

static qn_array *build_mean_axes(qn_op_case *c)
{
    int64_t axes[QN_ARRAY_DIMS_MAX];
    int at[QN_ARRAY_DIMS_MAX], n = list(c, "axes", axes);
    for (int i = 0; i < n; i++) at[i] = (int)axes[i];
    return qn_reduce(c->scope, QN_REDUCE_MEAN, c->in[0], n, at, is_true(c, "keepdims"));
}

static qn_array *build_max(qn_op_case *c)
{
    return over(c, QN_REDUCE_MAX);
}

static qn_array *build_min(qn_op_case *c)
{
    return over(c, QN_REDUCE_MIN);
}

static qn_array *build_prod(qn_op_case *c)
{
    return over(c, QN_REDUCE_PROD);
}

static qn_array *build_var(qn_op_case *c)
{
    return qn_var(c->scope, c->in[0], axis(c), (int)integer(c, "ddof"));
}

static qn_array *build_logsumexp(qn_op_case *c)
{
    return over(c, QN_REDUCE_LOGSUMEXP);
}

static qn_array *build_softmax(qn_op_case *c)
{
    return qn_softmax_axis(c->scope, c->in[0], axis(c));
}

static qn_array *build_log_softmax(qn_op_case *c)
{
    return qn_log_softmax(c->scope, c->in[0], axis(c));
}

static qn_array *build_cumsum(qn_op_case *c)
{
    return qn_cumulate(c->scope, QN_CUMSUM, c->in[0], axis(c), is_true(c, "reverse"),
                       !is_true(c, "inclusive"));
}

static qn_array *build_cumprod(qn_op_case *c)
{
    return qn_cumulate(c->scope, QN_CUMPROD, c->in[0], axis(c), 0, 0);
}

static qn_array *build_sort(qn_op_case *c)
{
    return qn_sort(c->scope, c->in[0], axis(c), 0);
}

static qn_array *build_topk(qn_op_case *c)
{
    return qn_topk(c->scope, c->in[0], integer(c, "k"), axis(c), NULL);
}

/* ---- indices and shapes ------------------------------------------------------------------------------- */

static qn_array *build_take_along(qn_op_case *c)
{
    return qn_take_along_axis(c->scope, c->in[0], tensor(c, "indices"), axis(c));
}

static qn_array *build_take(qn_op_case *c)
{
    return qn_take_axis(c->scope, c->in[0], tensor(c, "indices"), axis(c));
}

static qn_array *build_scatter_add(qn_op_case *c)
{
    return qn_scatter_add(c->scope, c->in[0], tensor(c, "indices"), c->in[1], axis(c));
}

static qn_array *build_scatter_set(qn_op_case *c)
{
    return qn_scatter(c->scope, c->in[0], tensor(c, "indices"), c->in[1], axis(c));
}

static qn_array *build_put_along(qn_op_case *c)
{
    return qn_put_along_axis(c->scope, c->in[0], tensor(c, "indices"), c->in[1], axis(c));
}

static qn_array *build_concat(qn_op_case *c)
{
    return qn_concatenate(c->scope, 2, c->in, axis(c));
}

static qn_array *build_slice_strided(qn_op_case *c)
{
    int64_t begin[QN_ARRAY_DIMS_MAX], step[QN_ARRAY_DIMS_MAX], end[QN_ARRAY_DIMS_MAX];
    const int n = list(c, "start", begin);
    list(c, "step", step);
    for (int i = 0; i < n; i++) end[i] = QN_TO_END;
    return qn_slice(c->scope, c->in[0], begin, end, step);
}

static qn_array *build_pad(qn_op_case *c)
{
    int64_t low[QN_ARRAY_DIMS_MAX], high[QN_ARRAY_DIMS_MAX];
    list(c, "low", low);
    list(c, "high", high);
    return qn_pad(c->scope, c->in[0], low, high, 0);
}

static qn_array *build_transpose(qn_op_case *c)
{
    int64_t axes[QN_ARRAY_DIMS_MAX];
    int32_t perm[QN_ARRAY_DIMS_MAX];
    const int n = list(c, "axes", axes);
    for (int i = 0; i < n; i++) perm[i] = (int32_t)axes[i];
    return qn_permute(c->scope, c->in[0], perm);
}

static qn_array *build_reshape(qn_op_case *c)
{
    int64_t dims[QN_ARRAY_DIMS_MAX];
    const int n = list(c, "shape", dims);
    return qn_reshape(c->scope, c->in[0], n, dims);
}

static qn_array *build_repeat(qn_op_case *c)
{
    return qn_repeat(c->scope, c->in[0], integer(c, "repeats"), axis(c));
}

static qn_array *build_broadcast(qn_op_case *c)
{
    int64_t dims[QN_ARRAY_DIMS_MAX];
    const int n = list(c, "shape", dims);
    return qn_broadcast_to(c->scope, c->in[0], n, dims);
}

/* ---- products ----------------------------------------------------------------------------------------- */

static qn_array *build_matmul(qn_op_case *c)
{
    return qn_matmul(c->scope, c->in[0], c->in[1]);
}

static qn_array *build_linear_bias(qn_op_case *c)
{
    return qn_add(c->scope, qn_linear(c->scope, c->in[0], c->in[1]), c->in[2]);
}

static qn_array *build_outer(qn_op_case *c)
{
    return qn_mul(c->scope, qn_expand_dims(c->scope, c->in[0], 1), c->in[1]);
}

/* Weights [channels, 1, kernel]; causal: zeros stand before the first element alone. */
static qn_array *build_conv(qn_op_case *c)
{
    const int64_t channels = dim(c->in[1], 0), kernel = dim(c->in[1], 2);
    qn_array *x = qn_pad(c->scope, c->in[0], (int64_t[]){0, kernel - 1, 0}, (int64_t[]){0, 0, 0}, 0);
    return qn_conv1d(c->scope, x, qn_transpose(c->scope, c->in[1]), 1, 0, 1, channels);
}

static qn_array *build_lora(qn_op_case *c)
{
    qn_array *low = qn_linear(c->scope, qn_linear(c->scope, c->in[0], c->in[1]), c->in[2]);
    return qn_add(c->scope, qn_linear(c->scope, c->in[0], c->in[3]),
                  qn_scale(c->scope, low, number(c, "scale")));
}

static qn_array *build_embedding_tied(qn_op_case *c)
{
    return qn_linear(c->scope, qn_take_axis(c->scope, c->in[0], tensor(c, "indices"), 0), c->in[0]);
}

static qn_array *build_cross_entropy(qn_op_case *c)
{
    qn_array *targets = qn_expand_dims(c->scope, tensor(c, "targets"), 1);
    qn_array *chosen = qn_take_along_axis(c->scope, qn_log_softmax(c->scope, c->in[0], -1), targets, 1);
    return qn_neg(c->scope, qn_reduce(c->scope, QN_REDUCE_MEAN, chosen, 0, NULL, 0));
}

/* ---- norms, rotation, attention ----------------------------------------------------------------------- */

static qn_array *build_rms_norm(qn_op_case *c)
{
    return qn_rms_norm(c->scope, c->in[0], c->in[1], (float)number(c, "eps"), 0);
}

static qn_array *build_rms_norm_one_plus(qn_op_case *c)
{
    return qn_rms_norm(c->scope, c->in[0], c->in[1], (float)number(c, "eps"), 1);
}

static qn_array *build_layer_norm(qn_op_case *c)
{
    return qn_layer_norm(c->scope, c->in[0], c->in[1], c->in[2], (float)number(c, "eps"));
}

static qn_array *rope(qn_op_case *c, int interleaved)
{
    const qn_rotary_options o = {
        .interleaved = interleaved, .base = (float)number(c, "base"), .offset = integer(c, "offset")};
    return qn_rotary(c->scope, c->in[0], &o);
}

static qn_array *build_rope_half(qn_op_case *c)
{
    return rope(c, 0);
}

static qn_array *build_rope_pairs(qn_op_case *c)
{
    return rope(c, 1);
}

static qn_array *build_sdpa(qn_op_case *c)
{
    const qn_sdpa_options o = {.scale = (float)number(c, "scale"),
                               .causal = is_true(c, "causal"),
                               .window = integer(c, "window"),
                               .softcap = (float)number(c, "softcap")};
    return qn_sdpa(c->scope, c->in[0], c->in[1], c->in[2], tensor(c, "mask"), &o);
}

/* ---- the same by one primitive ------------------------------------------------------------------------ */

/* [batch, heads, length, dim] <-> [batch * length, heads, dim] */
static qn_array *as_rows(qn_op_case *c, qn_array *x)
{
    return qn_flatten(c->scope, qn_swap_axes(c->scope, x, 1, 2), 0, 1);
}

static qn_array *from_rows(qn_op_case *c, qn_array *x, int64_t batch)
{
    x = qn_reshape(c->scope, x, 4, (int64_t[]){batch, -1, dim(x, 1), dim(x, 2)});
    return qn_swap_axes(c->scope, x, 1, 2);
}

static qn_array *fused_sdpa(qn_op_case *c)
{
    qn_scope *s = c->scope;
    qn_array *q = as_rows(c, c->in[0]);
    const int64_t batch = dim(c->in[0], 0), length = dim(c->in[0], 2), n = batch + 1;
    int32_t begin[64];
    for (int64_t i = 0; i < n && i < 64; i++) begin[i] = (int32_t)(i * length);
    const qn_params_attend p = {.window = integer(c, "window"),
                                .scale = (float)number(c, "scale"),
                                .softcap = (float)number(c, "softcap")};
    qn_array *positions = qn_tile(s, qn_arange(s, QN_DTYPE_I32, 0, (double)length, 1), &batch);
    qn_array *o = qn_attend(s, &p, q, as_rows(c, c->in[1]), as_rows(c, c->in[2]), positions,
                            qn_from_data(s, QN_DTYPE_I32, 1, &n, begin), NULL, NULL);
    return from_rows(c, o, batch);
}

/* ---- the list ----------------------------------------------------------------------------------------- */

static const qn_op_entry entries[] = {
    {"add_broadcast", NULL, NULL, qn_add, NULL},
    {"sub", NULL, NULL, qn_sub, NULL},
    {"mul_broadcast", NULL, NULL, qn_mul, NULL},
    {"div", NULL, NULL, qn_div, NULL},
    {"power", NULL, NULL, qn_pow, NULL},
    {"exp", NULL, qn_exp, NULL, NULL},
    {"log", NULL, qn_ln, NULL, NULL},
    {"sqrt", NULL, qn_sqrt, NULL, NULL},
    {"rsqrt", NULL, qn_rsqrt, NULL, NULL},
    {"square", NULL, qn_square, NULL, NULL},
    {"abs", NULL, qn_abs, NULL, NULL},
    {"sin", NULL, qn_sin, NULL, NULL},
    {"cos", NULL, qn_cos, NULL, NULL},
    {"tanh", NULL, qn_tanh, NULL, NULL},
    {"sigmoid", NULL, qn_sigmoid, NULL, NULL},
    {"erf", NULL, qn_erf, NULL, NULL},
    {"maximum", NULL, NULL, qn_maximum, NULL},
    {"minimum", NULL, NULL, qn_minimum, NULL},
    {"relu", NULL, qn_relu, NULL, NULL},
    {"silu", NULL, qn_silu, NULL, NULL},
    {"gelu_erf", NULL, qn_gelu, NULL, NULL},
    {"gelu_tanh", NULL, qn_gelu_tanh, NULL, NULL},
    {"softplus", NULL, qn_softplus, NULL, NULL},
    {"where", build_where, NULL, NULL, NULL},
    {"clip", build_clip, NULL, NULL, NULL},
    {"quick_gelu", build_quick_gelu, NULL, NULL, NULL},
    {"softcap", build_softcap, NULL, NULL, NULL},
    {"swiglu", build_swiglu, NULL, NULL, NULL},
    {"sum_axis", build_sum, NULL, NULL, NULL},
    {"mean_axes_keepdims", build_mean_axes, NULL, NULL, NULL},
    {"max_axis", build_max, NULL, NULL, NULL},
    {"min_axis", build_min, NULL, NULL, NULL},
    {"prod_axis", build_prod, NULL, NULL, NULL},
    {"var_axis", build_var, NULL, NULL, NULL},
    {"logsumexp", build_logsumexp, NULL, NULL, NULL},
    {"softmax", build_softmax, NULL, NULL, NULL},
    {"softmax_axis0", build_softmax, NULL, NULL, NULL},
    {"log_softmax", build_log_softmax, NULL, NULL, NULL},
    {"cumsum", build_cumsum, NULL, NULL, NULL},
    {"cumsum_reverse_exclusive", build_cumsum, NULL, NULL, NULL},
    {"cumprod", build_cumprod, NULL, NULL, NULL},
    {"sort", build_sort, NULL, NULL, NULL},
    {"topk", build_topk, NULL, NULL, NULL},
    {"take_along_axis", build_take_along, NULL, NULL, NULL},
    {"take_rows", build_take, NULL, NULL, NULL},
    {"take_axis1", build_take, NULL, NULL, NULL},
    {"scatter_add_rows", build_scatter_add, NULL, NULL, NULL},
    {"scatter_set_rows", build_scatter_set, NULL, NULL, NULL},
    {"put_along_axis", build_put_along, NULL, NULL, NULL},
    {"concat", build_concat, NULL, NULL, NULL},
    {"slice_strided", build_slice_strided, NULL, NULL, NULL},
    {"pad", build_pad, NULL, NULL, NULL},
    {"transpose", build_transpose, NULL, NULL, NULL},
    {"reshape", build_reshape, NULL, NULL, NULL},
    {"repeat", build_repeat, NULL, NULL, NULL},
    {"broadcast_to", build_broadcast, NULL, NULL, NULL},
    {"matmul", build_matmul, NULL, NULL, NULL},
    {"matmul_vector", build_matmul, NULL, NULL, NULL},
    {"matmul_batched", build_matmul, NULL, NULL, NULL},
    {"linear_bias", build_linear_bias, NULL, NULL, NULL},
    {"outer", build_outer, NULL, NULL, NULL},
    {"conv1d_depthwise_causal", build_conv, NULL, NULL, NULL},
    {"lora_linear", build_lora, NULL, NULL, NULL},
    {"embedding_tied", build_embedding_tied, NULL, NULL, NULL},
    {"cross_entropy_mean", build_cross_entropy, NULL, NULL, NULL},
    {"rms_norm", build_rms_norm, NULL, NULL, NULL},
    {"rms_norm_one_plus_weight", build_rms_norm_one_plus, NULL, NULL, NULL},
    {"layer_norm", build_layer_norm, NULL, NULL, NULL},
    {"rope_half", build_rope_half, NULL, NULL, NULL},
    {"rope_pairs", build_rope_pairs, NULL, NULL, NULL},
    {"sdpa_causal", build_sdpa, NULL, NULL, fused_sdpa},
    {"sdpa_causal_gqa", build_sdpa, NULL, NULL, fused_sdpa},
    {"sdpa_additive_mask", build_sdpa, NULL, NULL, NULL},
    {"sdpa_causal_offset", build_sdpa, NULL, NULL, NULL},
    {"sdpa_sliding_window", build_sdpa, NULL, NULL, fused_sdpa},
    {"sdpa_softcap", build_sdpa, NULL, NULL, fused_sdpa},
};

const qn_op_entry *qn_op_find(const char *name)
{
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (strcmp(entries[i].name, name) == 0) return &entries[i];
    return NULL;
}
