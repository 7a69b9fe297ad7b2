#include "tests/ops_cases.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

/* ---- attributes and constants ------------------------------------------------------------------------- */

static json_int_t integer(qn_op_case *c, const char *key)
{
    return json_integer_value(json_object_get(c->attributes, key));
}

static float number(qn_op_case *c, const char *key)
{
    return (float)json_number_value(json_object_get(c->attributes, key));
}

static json_int_t element(qn_op_case *c, const char *key, int i)
{
    return json_integer_value(json_array_get(json_object_get(c->attributes, key), (size_t)i));
}

static int n_dims(const qn_array *a)
{
    return qn_array_shape(a)->n;
}

static int64_t dim(const qn_array *a, int i)
{
    return qn_array_shape(a)->dim[i < 0 ? i + n_dims(a) : i];
}

static int axis_of(qn_op_case *c, const qn_array *a)
{
    json_int_t axis = integer(c, "axis");
    return (int)(axis < 0 ? axis + n_dims(a) : axis);
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

static qn_array *constant(qn_op_case *c, float value)
{
    return qn_scalar(c->scope, value);
}

static qn_array *shaped(qn_op_case *c, qn_array *a, int n, const int64_t *dims)
{
    return qn_reshape_sym(c->scope, a, qn_shape_make(n, dims));
}

/* A matrix of 0 and 1: 1 where `is` holds. */
static qn_array *pattern(qn_op_case *c, int64_t rows, int64_t columns, float if_not, float if_so,
                         int (*is)(int64_t i, int64_t j, void *user), void *user)
{
    float *m = qn_alloc_array((size_t)(rows * columns), sizeof *m);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) m[i * columns + j] = is(i, j, user) ? if_so : if_not;
    qn_array *a = qn_from_data(c->scope, QN_DTYPE_F32, 2, (int64_t[]){rows, columns}, m);
    qn_free(m);
    return a;
}

static qn_array *swap(qn_op_case *c, qn_array *a, int x, int y)
{
    int32_t perm[QN_MAX_DIMS];
    for (int i = 0; i < n_dims(a); i++) perm[i] = i;
    perm[x] = y;
    perm[y] = x;
    return qn_permute(c->scope, a, perm);
}

static qn_array *to_last(qn_op_case *c, qn_array *a, int axis)
{
    return swap(c, a, axis, n_dims(a) - 1);
}

/* Elements first, first + step, ... of one axis, each `times` times. */
static qn_array *pick(qn_op_case *c, qn_array *a, int axis, int64_t first, int64_t step, int64_t times)
{
    int64_t n = (dim(a, axis) - first + step - 1) / step * times;
    int32_t ids[256];
    for (int64_t i = 0; i < n && i < 256; i++) ids[i] = (int32_t)(first + i / times * step);
    qn_array *which = qn_from_data(c->scope, QN_DTYPE_I32, 1, &n, ids);
    return swap(c, qn_take(c->scope, swap(c, a, 0, axis), which), 0, axis);
}

static qn_array *one_minus(qn_op_case *c, qn_array *a)
{
    return qn_sub(c->scope, constant(c, 1), a);
}

/* ---- element-wise ------------------------------------------------------------------------------------- */

static qn_array *build_where(qn_op_case *c)
{
    const qn_tensor_view *v = qn_safetensors_find(c->tensors, "where.condition");
    float m[1024];
    for (int64_t i = 0; i < v->n_elements && i < 1024; i++) m[i] = (float)((const int32_t *)v->data)[i];
    qn_array *yes = qn_from_data(c->scope, QN_DTYPE_F32, v->n_dims, v->shape, m);
    return qn_add(c->scope, qn_mul(c->scope, yes, c->in[0]), qn_mul(c->scope, one_minus(c, yes), c->in[1]));
}

static qn_array *build_clip(qn_op_case *c)
{
    qn_array *x = qn_binary(c->scope, QN_PRIM_MINIMUM, c->in[0], constant(c, number(c, "high")));
    return qn_binary(c->scope, QN_PRIM_MAXIMUM, x, constant(c, number(c, "low")));
}

static qn_array *build_quick_gelu(qn_op_case *c)
{
    qn_array *x = c->in[0];
    return qn_mul(c->scope, x, qn_unary(c->scope, QN_PRIM_SIGMOID, qn_scale(c->scope, x, 1.702f)));
}

static qn_array *softcap(qn_op_case *c, qn_array *x, float cap)
{
    return qn_scale(c->scope, qn_unary(c->scope, QN_PRIM_TANH, qn_scale(c->scope, x, 1 / cap)), cap);
}

static qn_array *build_softcap(qn_op_case *c)
{
    return softcap(c, c->in[0], number(c, "cap"));
}

static qn_array *build_swiglu(qn_op_case *c)
{
    return qn_mul(c->scope, qn_unary(c->scope, QN_PRIM_SILU, c->in[0]), c->in[1]);
}

/* ---- along an axis ------------------------------------------------------------------------------------ */

static qn_array *build_sum(qn_op_case *c)
{
    qn_array *a = qn_sum(c->scope, c->in[0], axis_of(c, c->in[0]));
    qn_shape shape = {0}; /* without the axis */
    for (int i = 0; i < n_dims(c->in[0]); i++)
        if (i != axis_of(c, c->in[0])) shape.dim[shape.n++] = dim(c->in[0], i);
    return qn_reshape_sym(c->scope, a, shape);
}

static qn_array *build_mean_axes(qn_op_case *c)
{
    qn_array *a = c->in[0];
    json_t *axes = json_object_get(c->attributes, "axes");
    for (size_t i = 0; i < json_array_size(axes); i++) {
        int axis = (int)element(c, "axes", (int)i);
        a = qn_scale(c->scope, qn_sum(c->scope, a, axis), 1 / (float)dim(c->in[0], axis));
    }
    return a;
}

static qn_array *build_max(qn_op_case *c)
{
    return qn_max(c->scope, c->in[0], axis_of(c, c->in[0]));
}

static qn_array *build_min(qn_op_case *c)
{
    qn_array *a = qn_unary(c->scope, QN_PRIM_NEG, c->in[0]);
    return qn_unary(c->scope, QN_PRIM_NEG, qn_max(c->scope, a, axis_of(c, a)));
}

static qn_array *running_product(qn_op_case *c, int keep_all)
{
    qn_array *x = to_last(c, c->in[0], axis_of(c, c->in[0])), *parts[QN_MAX_INPUTS], *p = NULL;
    int n = (int)dim(x, -1);
    if (keep_all && n > QN_MAX_INPUTS) return NULL;
    for (int i = 0; i < n; i++) {
        qn_array *e = qn_slice_last(c->scope, x, i, 1);
        p = p ? qn_mul(c->scope, p, e) : e;
        if (keep_all) parts[i] = p;
    }
    return to_last(c, keep_all ? qn_concat(c->scope, n, parts) : p, axis_of(c, c->in[0]));
}

static qn_array *build_prod(qn_op_case *c)
{
    return running_product(c, 0);
}

static qn_array *build_cumprod(qn_op_case *c)
{
    return running_product(c, 1);
}

static qn_array *build_var(qn_op_case *c)
{
    int axis = axis_of(c, c->in[0]);
    float n = (float)dim(c->in[0], axis);
    qn_array *d = qn_sub(c->scope, c->in[0], qn_scale(c->scope, qn_sum(c->scope, c->in[0], axis), 1 / n));
    d = qn_sum(c->scope, qn_unary(c->scope, QN_PRIM_SQUARE, d), axis);
    return qn_scale(c->scope, d, 1 / (n - (float)integer(c, "ddof")));
}

static qn_array *build_logsumexp(qn_op_case *c)
{
    return qn_logsumexp(c->scope, to_last(c, c->in[0], axis_of(c, c->in[0])));
}

static qn_array *build_softmax(qn_op_case *c)
{
    int axis = axis_of(c, c->in[0]);
    return to_last(c, qn_softmax(c->scope, to_last(c, c->in[0], axis)), axis);
}

static qn_array *build_log_softmax(qn_op_case *c)
{
    int axis = axis_of(c, c->in[0]);
    qn_array *x = to_last(c, c->in[0], axis);
    return to_last(c, qn_sub(c->scope, x, qn_logsumexp(c->scope, x)), axis);
}

typedef struct {
    int reverse, inclusive;
} direction;

static int is_summed(int64_t i, int64_t j, void *user)
{
    const direction *d = user;
    return (d->inclusive && i == j) || (d->reverse ? i > j : i < j);
}

static qn_array *build_cumsum(qn_op_case *c)
{
    int axis = axis_of(c, c->in[0]);
    direction d = {json_is_true(json_object_get(c->attributes, "reverse")),
                   json_is_true(json_object_get(c->attributes, "inclusive"))};
    qn_array *x = to_last(c, c->in[0], axis);
    qn_array *triangle = pattern(c, dim(x, -1), dim(x, -1), 0, 1, is_summed, &d);
    return to_last(c, qn_matmul(c->scope, x, triangle), axis);
}

static qn_array *build_sort(qn_op_case *c)
{
    qn_array *x = qn_unary(c->scope, QN_PRIM_NEG, c->in[0]);
    x = qn_take_along(c->scope, x, qn_top_k(c->scope, x, (int)dim(x, -1)));
    return qn_unary(c->scope, QN_PRIM_NEG, x);
}

static qn_array *build_topk(qn_op_case *c)
{
    return qn_take_along(c->scope, c->in[0], qn_top_k(c->scope, c->in[0], (int)integer(c, "k")));
}

/* ---- indices and views -------------------------------------------------------------------------------- */

static qn_array *build_take_along(qn_op_case *c)
{
    return qn_take_along(c->scope, c->in[0], tensor(c, "indices"));
}

static qn_array *build_take(qn_op_case *c)
{
    int axis = axis_of(c, c->in[0]);
    return swap(c, qn_take(c->scope, swap(c, c->in[0], 0, axis), tensor(c, "indices")), 0, axis);
}

static qn_array *scatter(qn_op_case *c, qn_prim prim, qn_array *x, int64_t n)
{
    qn_params p = {.scatter = {.n = n}};
    return qn_apply(c->scope, prim, &p, 2, (qn_array *[]){x, tensor(c, "indices")}, NULL, QN_DTYPE_F32);
}

static qn_array *build_scatter_add(qn_op_case *c)
{
    return qn_add(c->scope, c->in[0], scatter(c, QN_PRIM_SCATTER_ADD, c->in[1], dim(c->in[0], 0)));
}

static qn_array *set(qn_op_case *c, qn_prim prim, int64_t n)
{
    qn_array *ones = qn_broadcast_sym(c->scope, constant(c, 1), *qn_array_shape(c->in[1]));
    qn_array *kept = qn_mul(c->scope, c->in[0], one_minus(c, scatter(c, prim, ones, n)));
    return qn_add(c->scope, kept, scatter(c, prim, c->in[1], n));
}

static qn_array *build_scatter_set(qn_op_case *c)
{
    return set(c, QN_PRIM_SCATTER_ADD, dim(c->in[0], 0));
}

static qn_array *build_put_along(qn_op_case *c)
{
    return set(c, QN_PRIM_SCATTER_ALONG, dim(c->in[0], 1));
}

static qn_array *build_concat(qn_op_case *c)
{
    int axis = axis_of(c, c->in[0]);
    qn_array *parts[2] = {to_last(c, c->in[0], axis), to_last(c, c->in[1], axis)};
    return to_last(c, qn_concat(c->scope, 2, parts), axis);
}

static qn_array *build_slice_strided(qn_op_case *c)
{
    qn_array *a = c->in[0];
    for (int i = 0; i < n_dims(c->in[0]); i++)
        a = pick(c, a, i, element(c, "start", i), element(c, "step", i), 1);
    return a;
}

static qn_array *zeros_beside(qn_op_case *c, qn_array *a, int64_t before, int64_t after)
{
    qn_array *parts[3];
    int n = 0;
    qn_shape shape = *qn_array_shape(a);
    shape.dim[shape.n - 1] = before;
    if (before) parts[n++] = qn_broadcast_sym(c->scope, constant(c, 0), shape);
    parts[n++] = a;
    shape.dim[shape.n - 1] = after;
    if (after) parts[n++] = qn_broadcast_sym(c->scope, constant(c, 0), shape);
    return qn_concat(c->scope, n, parts);
}

static qn_array *build_pad(qn_op_case *c)
{
    qn_array *a = c->in[0];
    for (int i = 0; i < n_dims(c->in[0]); i++)
        a = to_last(c, zeros_beside(c, to_last(c, a, i), element(c, "low", i), element(c, "high", i)), i);
    return a;
}

static qn_array *build_transpose(qn_op_case *c)
{
    int32_t perm[QN_MAX_DIMS];
    for (int i = 0; i < n_dims(c->in[0]); i++) perm[i] = (int32_t)element(c, "axes", i);
    return qn_permute(c->scope, c->in[0], perm);
}

static qn_array *build_reshape(qn_op_case *c)
{
    int64_t dims[QN_MAX_DIMS], total = qn_shape_elements(qn_array_shape(c->in[0]), NULL), known = 1;
    int n = (int)json_array_size(json_object_get(c->attributes, "shape"));
    for (int i = 0; i < n; i++) {
        dims[i] = element(c, "shape", i);
        if (dims[i] > 0) known *= dims[i];
    }
    for (int i = 0; i < n; i++)
        if (dims[i] < 0) dims[i] = total / known;
    return shaped(c, c->in[0], n, dims);
}

static qn_array *build_repeat(qn_op_case *c)
{
    return pick(c, c->in[0], axis_of(c, c->in[0]), 0, 1, integer(c, "repeats"));
}

static qn_array *build_broadcast(qn_op_case *c)
{
    int64_t dims[QN_MAX_DIMS];
    int n = (int)json_array_size(json_object_get(c->attributes, "shape"));
    for (int i = 0; i < n; i++) dims[i] = element(c, "shape", i);
    return qn_broadcast_sym(c->scope, c->in[0], qn_shape_make(n, dims));
}

/* ---- products ----------------------------------------------------------------------------------------- */

static qn_array *build_matmul(qn_op_case *c)
{
    return qn_matmul(c->scope, c->in[0], c->in[1]);
}

static qn_array *build_matmul_vector(qn_op_case *c)
{
    return qn_matmul(c->scope, shaped(c, c->in[0], 2, (int64_t[]){1, dim(c->in[0], 0)}), c->in[1]);
}

static qn_array *build_matmul_batched(qn_op_case *c)
{
    qn_array *a = c->in[0], *b = c->in[1];
    qn_shape shape = *qn_array_shape(a);
    shape.dim[shape.n - 2] = dim(b, -2);
    shape.dim[shape.n - 1] = dim(b, -1);
    return qn_matmul(c->scope, a, qn_broadcast_sym(c->scope, b, shape));
}

static qn_array *build_linear_bias(qn_op_case *c)
{
    return qn_add(c->scope, qn_linear(c->scope, c->in[0], c->in[1]), c->in[2]);
}

static qn_array *build_outer(qn_op_case *c)
{
    return qn_mul(c->scope, shaped(c, c->in[0], 2, (int64_t[]){dim(c->in[0], 0), 1}), c->in[1]);
}

static qn_array *build_conv(qn_op_case *c)
{
    int64_t length = dim(c->in[0], 1), channels = dim(c->in[1], 0), kernel = dim(c->in[1], 2);
    qn_array *x = zeros_beside(c, swap(c, c->in[0], 1, 2), kernel - 1, 0), *sum = NULL;
    qn_array *w = shaped(c, c->in[1], 2, (int64_t[]){channels, kernel});
    for (int64_t k = 0; k < kernel; k++) {
        qn_array *part =
            qn_mul(c->scope, qn_slice_last(c->scope, x, k, length), qn_slice_last(c->scope, w, k, 1));
        sum = sum ? qn_add(c->scope, sum, part) : part;
    }
    return swap(c, sum, 1, 2);
}

static qn_array *build_lora(qn_op_case *c)
{
    qn_array *low = qn_linear(c->scope, qn_linear(c->scope, c->in[0], c->in[1]), c->in[2]);
    return qn_add(c->scope, qn_linear(c->scope, c->in[0], c->in[3]),
                  qn_scale(c->scope, low, number(c, "scale")));
}

static qn_array *build_embedding_tied(qn_op_case *c)
{
    return qn_linear(c->scope, qn_take(c->scope, c->in[0], tensor(c, "indices")), c->in[0]);
}

static qn_array *build_cross_entropy(qn_op_case *c)
{
    qn_array *x = c->in[0];
    int64_t rows = dim(x, 0);
    qn_array *targets = shaped(c, tensor(c, "targets"), 2, (int64_t[]){rows, 1});
    qn_array *loss = qn_sub(c->scope, qn_logsumexp(c->scope, x), qn_take_along(c->scope, x, targets));
    return qn_scale(c->scope, qn_sum(c->scope, loss, 0), 1 / (float)rows);
}

/* ---- norms, rotation, attention ----------------------------------------------------------------------- */

static qn_array *build_rms_norm(qn_op_case *c)
{
    return qn_rms_norm(c->scope, c->in[0], c->in[1], number(c, "eps"), 0);
}

static qn_array *build_rms_norm_one_plus(qn_op_case *c)
{
    return qn_rms_norm(c->scope, c->in[0], c->in[1], number(c, "eps"), 1);
}

static qn_array *build_layer_norm(qn_op_case *c)
{
    qn_params p = {.norm = {.eps = number(c, "eps")}};
    return qn_apply(c->scope, QN_PRIM_LAYER_NORM, &p, 3, c->in, NULL, QN_DTYPE_F32);
}

/* [batch, heads, length, dim] <-> [batch * length, heads, dim] */
static qn_array *as_rows(qn_op_case *c, qn_array *x)
{
    return shaped(c, swap(c, x, 1, 2), 3, (int64_t[]){dim(x, 0) * dim(x, 2), dim(x, 1), dim(x, 3)});
}

static qn_array *from_rows(qn_op_case *c, qn_array *x, int64_t batch)
{
    int64_t shape[4] = {batch, dim(x, 0) / batch, dim(x, 1), dim(x, 2)};
    return swap(c, shaped(c, x, 4, shape), 1, 2);
}

static qn_array *numbers(qn_op_case *c, int64_t n, int64_t modulus, int64_t offset)
{
    int32_t ids[256];
    for (int64_t i = 0; i < n && i < 256; i++) ids[i] = (int32_t)(i % modulus + offset);
    return qn_from_data(c->scope, QN_DTYPE_I32, 1, &n, ids);
}

static qn_array *rope(qn_op_case *c, int interleaved)
{
    qn_array *x = as_rows(c, c->in[0]);
    int64_t half = dim(x, 2) / 2, length = dim(c->in[0], 2);
    float frequencies[256];
    for (int64_t i = 0; i < half && i < 256; i++)
        frequencies[i] = (float)pow(number(c, "base"), -(double)i / (double)half);
    qn_array *f = qn_from_data(c->scope, QN_DTYPE_F32, 1, &half, frequencies);
    qn_array *positions = numbers(c, dim(x, 0), length, integer(c, "offset"));
    x = qn_rope(c->scope, x, qn_rope_table(c->scope, positions, f, 1), interleaved);
    return from_rows(c, x, dim(c->in[0], 0));
}

static qn_array *build_rope_half(qn_op_case *c)
{
    return rope(c, 0);
}

static qn_array *build_rope_pairs(qn_op_case *c)
{
    return rope(c, 1);
}

typedef struct {
    int64_t late, window;
} mask;

static int is_hidden(int64_t i, int64_t j, void *user)
{
    const mask *m = user;
    i += m->late;
    return j > i || (m->window && j <= i - m->window);
}

/* softmax(scale q k^T + mask) v in small steps; heads of k and v are repeated for those of q. */
static qn_array *build_sdpa(qn_op_case *c)
{
    qn_array *q = c->in[0], *kv[2] = {c->in[1], c->in[2]};
    int64_t n = dim(q, 2), m = dim(kv[0], 2), shared = dim(q, 1) / dim(kv[0], 1);
    for (int i = 0; i < 2 && shared > 1; i++) {
        int64_t b = dim(kv[i], 0), h = dim(kv[i], 1), d = dim(kv[i], 3);
        qn_array *x = shaped(c, kv[i], 5, (int64_t[]){b, h, 1, m, d});
        x = qn_broadcast_sym(c->scope, x, qn_shape_make(5, (int64_t[]){b, h, shared, m, d}));
        kv[i] = shaped(c, x, 4, (int64_t[]){b, h * shared, m, d});
    }
    qn_array *scores =
        qn_scale(c->scope, qn_matmul(c->scope, q, qn_transpose(c->scope, kv[0])), number(c, "scale"));
    if (json_object_get(c->attributes, "softcap")) scores = softcap(c, scores, number(c, "softcap"));
    mask what = {m - n, integer(c, "window")};
    qn_array *add = tensor(c, "mask");
    if (!add) add = pattern(c, n, m, 0, -INFINITY, is_hidden, &what);
    return qn_matmul(c->scope, qn_softmax(c->scope, qn_add(c->scope, scores, add)), kv[1]);
}

static qn_array *fused_sdpa(qn_op_case *c)
{
    qn_array *q = as_rows(c, c->in[0]);
    int64_t batch = dim(c->in[0], 0), length = dim(c->in[0], 2), n = batch + 1;
    int32_t begin[64];
    for (int64_t i = 0; i < n && i < 64; i++) begin[i] = (int32_t)(i * length);
    qn_params_attend p = {
        .window = integer(c, "window"), .scale = number(c, "scale"), .softcap = number(c, "softcap")};
    qn_array *o = qn_attend(c->scope, &p, q, as_rows(c, c->in[1]), as_rows(c, c->in[2]),
                            numbers(c, dim(q, 0), length, 0),
                            qn_from_data(c->scope, QN_DTYPE_I32, 1, &n, begin), NULL, NULL);
    return from_rows(c, o, batch);
}

/* ---- the list ----------------------------------------------------------------------------------------- */

static const qn_op_entry entries[] = {
    {"add_broadcast", NULL, QN_PRIM_ADD, NULL},
    {"sub", NULL, QN_PRIM_SUB, NULL},
    {"mul_broadcast", NULL, QN_PRIM_MUL, NULL},
    {"div", NULL, QN_PRIM_DIV, NULL},
    {"power", NULL, QN_PRIM_POW, NULL},
    {"exp", NULL, QN_PRIM_EXP, NULL},
    {"log", NULL, QN_PRIM_LOG, NULL},
    {"sqrt", NULL, QN_PRIM_SQRT, NULL},
    {"rsqrt", NULL, QN_PRIM_RSQRT, NULL},
    {"square", NULL, QN_PRIM_SQUARE, NULL},
    {"abs", NULL, QN_PRIM_ABS, NULL},
    {"sin", NULL, QN_PRIM_SIN, NULL},
    {"cos", NULL, QN_PRIM_COS, NULL},
    {"tanh", NULL, QN_PRIM_TANH, NULL},
    {"sigmoid", NULL, QN_PRIM_SIGMOID, NULL},
    {"erf", NULL, QN_PRIM_ERF, NULL},
    {"maximum", NULL, QN_PRIM_MAXIMUM, NULL},
    {"minimum", NULL, QN_PRIM_MINIMUM, NULL},
    {"relu", NULL, QN_PRIM_RELU, NULL},
    {"silu", NULL, QN_PRIM_SILU, NULL},
    {"gelu_erf", NULL, QN_PRIM_GELU, NULL},
    {"gelu_tanh", NULL, QN_PRIM_GELU_TANH, NULL},
    {"softplus", NULL, QN_PRIM_SOFTPLUS, NULL},
    {"where", build_where, 0, NULL},
    {"clip", build_clip, 0, NULL},
    {"quick_gelu", build_quick_gelu, 0, NULL},
    {"softcap", build_softcap, 0, NULL},
    {"swiglu", build_swiglu, 0, NULL},
    {"sum_axis", build_sum, 0, NULL},
    {"mean_axes_keepdims", build_mean_axes, 0, NULL},
    {"max_axis", build_max, 0, NULL},
    {"min_axis", build_min, 0, NULL},
    {"prod_axis", build_prod, 0, NULL},
    {"var_axis", build_var, 0, NULL},
    {"logsumexp", build_logsumexp, 0, NULL},
    {"softmax", build_softmax, 0, NULL},
    {"softmax_axis0", build_softmax, 0, NULL},
    {"log_softmax", build_log_softmax, 0, NULL},
    {"cumsum", build_cumsum, 0, NULL},
    {"cumsum_reverse_exclusive", build_cumsum, 0, NULL},
    {"cumprod", build_cumprod, 0, NULL},
    {"sort", build_sort, 0, NULL},
    {"topk", build_topk, 0, NULL},
    {"take_along_axis", build_take_along, 0, NULL},
    {"take_rows", build_take, 0, NULL},
    {"take_axis1", build_take, 0, NULL},
    {"scatter_add_rows", build_scatter_add, 0, NULL},
    {"scatter_set_rows", build_scatter_set, 0, NULL},
    {"put_along_axis", build_put_along, 0, NULL},
    {"concat", build_concat, 0, NULL},
    {"slice_strided", build_slice_strided, 0, NULL},
    {"pad", build_pad, 0, NULL},
    {"transpose", build_transpose, 0, NULL},
    {"reshape", build_reshape, 0, NULL},
    {"repeat", build_repeat, 0, NULL},
    {"broadcast_to", build_broadcast, 0, NULL},
    {"matmul", build_matmul, 0, NULL},
    {"matmul_vector", build_matmul_vector, 0, NULL},
    {"matmul_batched", build_matmul_batched, 0, NULL},
    {"linear_bias", build_linear_bias, 0, NULL},
    {"outer", build_outer, 0, NULL},
    {"conv1d_depthwise_causal", build_conv, 0, NULL},
    {"lora_linear", build_lora, 0, NULL},
    {"embedding_tied", build_embedding_tied, 0, NULL},
    {"cross_entropy_mean", build_cross_entropy, 0, NULL},
    {"rms_norm", build_rms_norm, 0, NULL},
    {"rms_norm_one_plus_weight", build_rms_norm_one_plus, 0, NULL},
    {"layer_norm", build_layer_norm, 0, NULL},
    {"rope_half", build_rope_half, 0, NULL},
    {"rope_pairs", build_rope_pairs, 0, NULL},
    {"sdpa_causal", build_sdpa, 0, fused_sdpa},
    {"sdpa_causal_gqa", build_sdpa, 0, fused_sdpa},
    {"sdpa_additive_mask", build_sdpa, 0, NULL},
    {"sdpa_causal_offset", build_sdpa, 0, NULL},
    {"sdpa_sliding_window", build_sdpa, 0, fused_sdpa},
    {"sdpa_softcap", build_sdpa, 0, fused_sdpa},
};

const qn_op_entry *qn_op_find(const char *name)
{
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (strcmp(entries[i].name, name) == 0) return &entries[i];
    return NULL;
}
