#include "tests/primitives/other_cases.h"

static qn_array *make_INPUT(qn_gradient_case *c)
{
    return qn_case_real(c, qn_case_shape(c, 0, 3));
}

static qn_array *make_DATA(qn_gradient_case *c)
{
    const qn_shape shape = qn_case_shape(c, 0, 3);
    float x[QN_CASE_ELEMENTS];
    for (int64_t i = 0; i < qn_shape_elements(&shape, NULL) && i < QN_CASE_ELEMENTS; i++)
        x[i] = (float)qn_case_roll(c, 1000) / 8;
    return qn_astype(c->scope, qn_from_data(c->scope, QN_DTYPE_F32, shape.n, shape.dim, x), c->dtype);
}

/* Several that the planner makes one of: what they are computed in there is f32. */
static qn_array *make_FUSED(qn_gradient_case *c)
{
    static const qn_prim one[] = {QN_PRIM_TANH, QN_PRIM_SIGMOID, QN_PRIM_ABS,  QN_PRIM_NEG,
                                  QN_PRIM_GELU, QN_PRIM_SILU,    QN_PRIM_RELU, QN_PRIM_ERF},
                         two[] = {QN_PRIM_ADD, QN_PRIM_SUB, QN_PRIM_MUL, QN_PRIM_MAXIMUM};
    const qn_shape shape = qn_case_shape(c, 0, 3);
    qn_array *x = qn_case_real(c, shape), *first = x;
    for (int64_t n = 2 + qn_case_roll(c, 8); n > 0; n--) {
        qn_array *y = NULL;
        if (qn_case_roll(c, 2)) {
            x = qn_case_call(c, one[qn_case_roll(c, 8)], NULL, 1, &x);
            continue;
        }
        if (c->n_bases + 1 < QN_CASE_BASES && qn_case_roll(c, 2)) y = qn_case_real(c, shape);
        qn_array *in[2] = {x, y ? y : first};
        const int swapped = (int)qn_case_roll(c, 2);
        x = qn_case_call(c, two[qn_case_roll(c, 4)], NULL, 2, (qn_array *[]){in[swapped], in[!swapped]});
    }
    return x;
}

static qn_array *make_COMPARE(qn_gradient_case *c)
{
    const qn_shape shape = qn_case_shape(c, 0, 4);
    qn_shape own = shape;
    for (int d = 0; d < own.n; d++)
        if (qn_case_roll(c, 4) == 0) own.dim[d] = 1;
    const qn_params p = {.compare = {.which = (int32_t)qn_case_roll(c, QN_COMPARE_LE + 1)}};
    qn_array *a = qn_case_real(c, shape);
    return qn_case_call(c, QN_PRIM_COMPARE, &p, 2, (qn_array *[]){a, qn_case_real(c, own)});
}

static qn_array *make_ARG_MAX(qn_gradient_case *c)
{
    const qn_shape shape = qn_case_shape(c, 1, 3);
    const qn_params p = {
        .reduce = {.axis = (int32_t)qn_case_roll(c, shape.n), .least = (int32_t)qn_case_roll(c, 2)}};
    qn_array *x = qn_case_real(c, shape);
    return qn_case_call(c, QN_PRIM_ARG_MAX, &p, 1, &x);
}

/* Extremes without the element itself among them, which begin with an infinity. */
static qn_array *make_SCAN(qn_gradient_case *c)
{
    const qn_shape shape = qn_case_shape(c, 1, 3);
    const qn_params p = {.scan = {.axis = (int32_t)qn_case_roll(c, shape.n),
                                  .how = (int32_t)qn_case_roll(c, QN_SCAN_MIN + 1),
                                  .reverse = (int32_t)qn_case_roll(c, 2),
                                  .exclusive = (int32_t)qn_case_roll(c, 2)}};
    qn_array *x = qn_case_real(c, shape);
    return qn_case_call(c, QN_PRIM_SCAN, &p, 1, &x);
}

static qn_array *make_ARG_SORT(qn_gradient_case *c)
{
    const qn_params p = {.sort = {.falling = (int32_t)qn_case_roll(c, 2)}};
    qn_array *x = qn_case_real(c, qn_case_shape(c, 1, 3));
    return qn_case_call(c, QN_PRIM_ARG_SORT, &p, 1, &x);
}

static qn_array *make_TOP_K(qn_gradient_case *c)
{
    const qn_shape shape = qn_case_shape(c, 2, 2);
    const qn_params p = {
        .top_k = {.k = 1 + (int32_t)qn_case_roll(c, shape.dim[1]), .rising = (int32_t)qn_case_roll(c, 2)}};
    qn_array *x = qn_case_real(c, shape);
    return qn_case_call(c, QN_PRIM_TOP_K, &p, 1, &x);
}

static qn_array *make_INDEX_BLOCKS(qn_gradient_case *c)
{
    qn_array *row_begin, *positions, *in[5];
    const int64_t rows = qn_case_ragged(c, &row_begin, &positions), heads = 1 + qn_case_roll(c, 3),
                  dim = qn_case_size(c);
    const qn_params p = {.index = {.has_weights = (int32_t)qn_case_roll(c, 2),
                                   .top = 1 + (int32_t)qn_case_roll(c, 3),
                                   .scale = 0.7f,
                                   .block = 1 + qn_case_roll(c, 3),
                                   .window = qn_case_roll(c, 2) ? 1 + qn_case_roll(c, 8) : 0}};
    in[0] = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, heads, dim));
    in[1] = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, dim));
    in[2] = positions;
    in[3] = row_begin;
    if (p.index.has_weights) in[4] = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, heads));
    return qn_case_call(c, QN_PRIM_INDEX_BLOCKS, &p, p.index.has_weights ? 5 : 4, in);
}

/* Some of the ids lie outside. */
static qn_array *make_LAST_WRITER(qn_gradient_case *c)
{
    const qn_shape shape = qn_case_shape(c, 2, 2);
    const qn_params p = {.scatter = {.n = qn_case_roll(c, 2 * c->limit)}};
    int32_t ids[QN_CASE_ELEMENTS];
    for (int64_t i = 0; i < qn_shape_elements(&shape, NULL) && i < QN_CASE_ELEMENTS; i++)
        ids[i] = (int32_t)qn_case_roll(c, p.scatter.n + 2) - 1;
    qn_array *x = qn_from_data(c->scope, QN_DTYPE_I32, shape.n, shape.dim, ids);
    return qn_case_call(c, QN_PRIM_LAST_WRITER, &p, 1, &x);
}

/* Products beyond 64 bits, n-grams that are cut, and heads of all sizes. */
static qn_array *make_HASH_IDS(qn_gradient_case *c)
{
    enum { MOST = 4, HEADS = 6 };
    const int64_t rows = 1 + qn_case_roll(c, 5), n = 2 + qn_case_roll(c, MOST - 1),
                  heads = (n - 1) * (1 + qn_case_roll(c, HEADS / MOST + 1));
    const qn_params p = {.hash_ids = {.end = (int32_t)qn_case_roll(c, 4)}};
    int32_t tokens[5 * MOST], sizes[2 * MOST], offsets[2 * MOST];
    int64_t by[MOST];
    for (int64_t i = 0; i < rows * n; i++)
        tokens[i] = (int32_t)qn_case_roll(c, qn_case_roll(c, 2) ? 4 : INT64_C(1) << 31);
    for (int64_t i = 0; i < n; i++) by[i] = qn_case_roll(c, INT64_MAX);
    for (int64_t i = 0; i < heads; i++) {
        sizes[i] = (int32_t)(1 + qn_case_roll(c, qn_case_roll(c, 2) ? 100 : INT32_MAX / 2));
        offsets[i] = (int32_t)qn_case_roll(c, INT32_MAX / 2);
    }
    qn_array *in[4] = {qn_from_data(c->scope, QN_DTYPE_I32, 2, (const int64_t[]){rows, n}, tokens),
                       qn_from_data(c->scope, QN_DTYPE_I64, 1, &n, by),
                       qn_from_data(c->scope, QN_DTYPE_I32, 1, &heads, sizes),
                       qn_from_data(c->scope, QN_DTYPE_I32, 1, &heads, offsets)};
    return qn_case_call(c, QN_PRIM_HASH_IDS, &p, 4, in);
}

static qn_array *make_RANDOM(qn_gradient_case *c)
{
    const qn_shape shape = qn_case_shape(c, 0, 4);
    const qn_params p = {.random = {.stream = (int32_t)qn_case_roll(c, 2)}};
    const uint32_t key[2] = {(uint32_t)qn_case_roll(c, INT64_C(1) << 32),
                             (uint32_t)qn_case_roll(c, INT64_C(1) << 32)};
    qn_array *k = qn_from_data(c->scope, QN_DTYPE_U32, 1, (const int64_t[]){2}, key);
    return qn_apply(c->scope, QN_PRIM_RANDOM, &p, 1, &k, &shape,
                    qn_case_roll(c, 2) ? QN_DTYPE_U32 : QN_DTYPE_F32);
}

static qn_array *(*const make[QN_PRIM_COUNT])(qn_gradient_case *c) = {
    [QN_PRIM_DATA] = make_DATA,         [QN_PRIM_INPUT] = make_INPUT,
    [QN_PRIM_FUSED] = make_FUSED,       [QN_PRIM_COMPARE] = make_COMPARE,
    [QN_PRIM_ARG_MAX] = make_ARG_MAX,   [QN_PRIM_ARG_SORT] = make_ARG_SORT,
    [QN_PRIM_TOP_K] = make_TOP_K,       [QN_PRIM_LAST_WRITER] = make_LAST_WRITER,
    [QN_PRIM_SCAN] = make_SCAN,         [QN_PRIM_RANDOM] = make_RANDOM,
    [QN_PRIM_HASH_IDS] = make_HASH_IDS, [QN_PRIM_INDEX_BLOCKS] = make_INDEX_BLOCKS,
};

int qn_other_case_has(qn_prim prim)
{
    return make[prim] != NULL;
}

qn_array *qn_other_case_make(qn_gradient_case *c, qn_prim prim)
{
    return make[prim](c);
}
