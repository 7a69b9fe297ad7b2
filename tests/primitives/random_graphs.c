#include "tests/primitives/random_graphs.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"

enum { ELEMENTS = 1024, DIMS = 3 };

/* An array and what its numbers are below, absolutely. */
typedef struct {
    qn_array *a;
    double bound;
} value;

typedef struct {
    qn_graph_built *b;
    qn_scope *s;
    uint64_t seed, drawn;
    int64_t limit;
    value of[2]; /* the node's operands */
} builder;

/* ---- dice, words, shapes ------------------------------------------------------------------------------ */

static int64_t roll(builder *b, int64_t below)
{
    return (int64_t)(qn_random_bits(b->seed, b->drawn++) % (uint64_t)below);
}

static void say(qn_graph_built *b, const char *fmt, ...)
{
    const size_t at = strlen(b->text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(b->text + at, sizeof b->text - at, fmt, args);
    va_end(args);
}

/* Of one element where a primitive was refused. */
static qn_shape shape_of(value x)
{
    return x.a ? *qn_array_shape(x.a) : (qn_shape){.n = 1, .dim = {1}};
}

static int64_t elements(value x)
{
    const qn_shape shape = shape_of(x);
    return qn_shape_elements(&shape, NULL);
}

static qn_shape any_shape(builder *b)
{
    qn_shape s = {.n = 1 + (int)roll(b, DIMS)};
    for (int d = 0; d < s.n; d++) s.dim[d] = 1 + roll(b, b->limit);
    return s;
}

/* ---- primitives --------------------------------------------------------------------------------------- */

static value wished(builder *b, qn_prim prim, const qn_params *p, int n, const value *in,
                    const qn_shape *shape, qn_dtype dtype, double bound)
{
    qn_array *arrays[QN_MAX_INPUTS];
    for (int i = 0; i < n; i++) arrays[i] = in[i].a;
    b->b->n_prims++;
    b->b->used[prim] = 1;
    return (value){qn_apply(b->s, prim, p, n, arrays, shape, dtype), bound};
}

static value use(builder *b, qn_prim prim, const qn_params *p, int n, const value *in, double bound)
{
    return wished(b, prim, p, n, in, NULL, QN_DTYPE_F32, bound);
}

static value one(builder *b, qn_prim prim, value x, double bound)
{
    return use(b, prim, NULL, 1, &x, bound);
}

static value two(builder *b, qn_prim prim, value x, value y, double bound)
{
    return use(b, prim, NULL, 2, (value[]){x, y}, bound);
}

/* Given numbers from low to high. */
static value given(builder *b, double low, double high, qn_shape shape)
{
    float x[ELEMENTS];
    const int64_t n = qn_shape_elements(&shape, NULL);
    for (int64_t i = 0; i < n && i < ELEMENTS; i++)
        x[i] = (float)(low + (high - low) * qn_random_unit(b->seed, b->drawn++));
    return (value){qn_from_data(b->s, QN_DTYPE_F32, shape.n, shape.dim, x), fmax(fabs(low), fabs(high))};
}

static value given_like(builder *b, double low, double high, value x)
{
    return given(b, low, high, shape_of(x));
}

/* [rows, columns] (n 2) or [rows] (n 1) of integers from 0 to below; in a row all different if distinct. */
static value ids(builder *b, int n, int64_t rows, int64_t columns, int64_t below, int distinct)
{
    int32_t x[ELEMENTS], pool[ELEMENTS];
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t j = 0; j < below; j++) pool[j] = (int32_t)j;
        for (int64_t j = 0; j < columns; j++) {
            const int64_t from = distinct ? j + roll(b, below - j) : roll(b, below);
            x[r * columns + j] = pool[from];
            if (distinct) pool[from] = pool[j];
        }
    }
    return (value){qn_from_data(b->s, QN_DTYPE_I32, n, (int64_t[]){rows, columns}, x), (double)below};
}

/* x, or where it may be large its tanh. */
static value calm(builder *b, value x)
{
    return x.bound > 4 ? one(b, QN_PRIM_TANH, x, 1) : x;
}

static value reshaped(builder *b, value x, int n, const int64_t *dims)
{
    const qn_shape shape = qn_shape_make(n, dims), own = shape_of(x);
    if (qn_shape_equal(&own, &shape)) return x;
    return wished(b, QN_PRIM_RESHAPE, NULL, 1, &x, &shape, QN_DTYPE_F32, x.bound);
}

/* [rows, all of a row]: a vector is one row. */
static value as_matrix(builder *b, value x)
{
    const qn_shape s = shape_of(x);
    const int64_t rows = s.n > 1 ? s.dim[0] : 1;
    return reshaped(b, x, 2, (int64_t[]){rows, elements(x) / rows});
}

/* [rows, heads, the rest] */
static value as_heads(builder *b, value x)
{
    const qn_shape s = shape_of(x);
    if (s.n == 3) return x;
    return reshaped(b, x, 3, (int64_t[]){s.dim[0], 1, elements(x) / s.dim[0]});
}

/* ---- kinds: x, y are the node's operands -------------------------------------------------------------- */

static value node_SMOOTH(builder *b)
{
    static const qn_prim prims[] = {QN_PRIM_TANH, QN_PRIM_SIGMOID,  QN_PRIM_SIN,  QN_PRIM_COS,
                                    QN_PRIM_ERF,  QN_PRIM_SOFTPLUS, QN_PRIM_NEG,  QN_PRIM_ABS,
                                    QN_PRIM_SILU, QN_PRIM_GELU,     QN_PRIM_RELU, QN_PRIM_GELU_TANH};
    const value x = calm(b, b->of[0]);
    return one(b, prims[roll(b, 12)], x, x.bound + 1);
}

static value node_GROWING(builder *b)
{
    static const qn_prim prims[] = {QN_PRIM_EXP, QN_PRIM_EXPM1, QN_PRIM_SQUARE};
    const value x = calm(b, b->of[0]);
    return one(b, prims[roll(b, 3)], x, exp(x.bound));
}

/* Of what is from 0.5 on. */
static value node_POSITIVE(builder *b)
{
    static const qn_prim prims[] = {QN_PRIM_LOG, QN_PRIM_SQRT, QN_PRIM_RSQRT, QN_PRIM_RECIP, QN_PRIM_LOG1P};
    const value x = one(b, QN_PRIM_SQUARE, calm(b, b->of[0]), 16);
    return one(b, prims[roll(b, 5)], two(b, QN_PRIM_ADD, x, given_like(b, 0.5, 1.5, x), 18), 5);
}

/* Of one shape, or one that repeats in the other. */
static value node_PAIR(builder *b)
{
    static const qn_prim prims[] = {QN_PRIM_ADD, QN_PRIM_SUB,     QN_PRIM_MUL,    QN_PRIM_DIV,
                                    QN_PRIM_POW, QN_PRIM_MAXIMUM, QN_PRIM_MINIMUM};
    const qn_prim prim = prims[roll(b, 7)];
    const value x = calm(b, b->of[0]);
    const qn_shape a = shape_of(x), c = shape_of(b->of[1]);
    if (prim == QN_PRIM_POW) return two(b, prim, given_like(b, 0.5, 1.5, x), x, 16);
    qn_shape own = a;
    for (int d = 0; d < own.n; d++)
        if (roll(b, 4) == 0) own.dim[d] = 1;
    const value y =
        prim == QN_PRIM_DIV || !qn_shape_equal(&a, &c) ? given(b, 0.5, 2, own) : calm(b, b->of[1]);
    return two(b, prim, x, y, x.bound * fmax(2, y.bound) + y.bound);
}

static value node_FLOOR(builder *b)
{
    const value x = b->of[0];
    return two(b, QN_PRIM_ADD, x,
               one(b, roll(b, 2) ? QN_PRIM_FLOOR : QN_PRIM_ROUND, given_like(b, -3, 3, x), 3), x.bound + 3);
}

static value node_SELECT(builder *b)
{
    const value x = b->of[0], y = given_like(b, -1, 1, x);
    const qn_params p = {.compare = {.which = (int32_t)roll(b, QN_COMPARE_LE + 1)}};
    const value holds =
        use(b, QN_PRIM_COMPARE, &p, 2, (value[]){given_like(b, -1, 1, x), given_like(b, -1, 1, x)}, 1);
    return use(b, QN_PRIM_SELECT, NULL, 3, (value[]){holds, x, y}, fmax(1, x.bound));
}

static value to(builder *b, value x, qn_dtype dtype)
{
    return wished(b, QN_PRIM_CAST, NULL, 1, &x, NULL, dtype, x.bound);
}

static value node_CAST(builder *b)
{
    static const qn_dtype types[] = {QN_DTYPE_F16, QN_DTYPE_BF16, QN_DTYPE_I8, QN_DTYPE_U16, QN_DTYPE_I64};
    const value x = b->of[0], there = to(b, given_like(b, -9, 9, x), types[roll(b, 5)]);
    return two(b, QN_PRIM_ADD, x, to(b, there, QN_DTYPE_F32), x.bound + 9);
}

static value node_INTEGER(builder *b)
{
    static const qn_prim prims[] = {QN_PRIM_ADD, QN_PRIM_MUL, QN_PRIM_DIV, QN_PRIM_SUB, QN_PRIM_MAXIMUM};
    const value x = b->of[0], i = to(b, given_like(b, -9, 9, x), QN_DTYPE_I32);
    const value j = two(b, prims[roll(b, 5)], i, to(b, given_like(b, -3, 9, x), QN_DTYPE_I32), 81);
    return two(b, QN_PRIM_ADD, x, to(b, j, QN_DTYPE_F32), x.bound + 81);
}

static value node_REDUCE(builder *b)
{
    static const qn_prim prims[] = {QN_PRIM_SUM, QN_PRIM_MAX, QN_PRIM_MIN, QN_PRIM_PROD};
    const qn_prim prim = prims[roll(b, 4)];
    const value x = prim == QN_PRIM_PROD ? calm(b, b->of[0]) : b->of[0];
    const qn_shape s = shape_of(x);
    const qn_params p = {.reduce = {.axis = (int32_t)roll(b, s.n)}};
    const double n = (double)s.dim[p.reduce.axis];
    return use(b, prim, &p, 1, &x, prim == QN_PRIM_PROD ? pow(fmax(1, x.bound), n) : n * x.bound);
}

static value node_SCAN(builder *b)
{
    const value x = calm(b, b->of[0]);
    const qn_shape s = shape_of(x);
    const qn_params p = {.scan = {.axis = (int32_t)roll(b, s.n),
                                  .how = (int32_t)roll(b, QN_SCAN_MIN + 1),
                                  .reverse = (int32_t)roll(b, 2)}};
    const double n = (double)s.dim[p.scan.axis];
    return use(b, QN_PRIM_SCAN, &p, 1, &x,
               p.scan.how == QN_SCAN_PROD ? pow(fmax(1, x.bound), n) : n * x.bound);
}

static value node_NORM(builder *b)
{
    const value x = calm(b, b->of[0]);
    const qn_shape s = shape_of(x), last = qn_shape_make(1, &s.dim[s.n - 1]);
    const qn_params p = {.norm = {.eps = 0.05f, .offset = (float)roll(b, 2)}};
    const double bound = 3 * sqrt((double)last.dim[0]) + 1;
    switch (roll(b, 4)) {
    case 0:
        return one(b, QN_PRIM_SOFTMAX, x, 1);
    case 1:
        return use(b, QN_PRIM_RMS_NORM, &p, 1 + (int)roll(b, 2), (value[]){x, given(b, -2, 2, last)}, bound);
    case 2:
        return use(b, QN_PRIM_LAYER_NORM, &p, 1 + (int)roll(b, 3),
                   (value[]){x, given(b, -2, 2, last), given(b, -1, 1, last)}, bound);
    default:
        return use(b, QN_PRIM_RMS_NORM_GRAD, &p, 3,
                   (value[]){x, given_like(b, -1, 1, x), given(b, -2, 2, last)}, 100 * bound);
    }
}

static value node_VIEW(builder *b)
{
    value x = b->of[0];
    qn_shape s = shape_of(x), to = s;
    qn_params p = {0};
    switch (roll(b, 4)) {
    case 0:
        for (int d = 0; d < s.n; d++) p.transpose.perm[d] = (int32_t)((d + 1) % s.n);
        return use(b, QN_PRIM_TRANSPOSE, &p, 1, &x, x.bound);
    case 1:
        for (int d = 0; d < s.n; d++) {
            const int64_t begin = roll(b, s.dim[d]), step = roll(b, 2) ? 1 : roll(b, 2) ? 2 : -1;
            p.slice.begin[d] = begin;
            p.slice.step[d] = step;
            to.dim[d] = 1 + roll(b, step < 0 ? begin + 1 : (s.dim[d] - begin - 1) / step + 1);
        }
        return wished(b, QN_PRIM_SLICE, &p, 1, &x, &to, QN_DTYPE_F32, x.bound);
    case 2:
        for (int d = 0; d < s.n; d++)
            if (s.dim[d] == 1 && 3 * qn_shape_elements(&to, NULL) <= ELEMENTS) to.dim[d] = 3;
        return wished(b, QN_PRIM_BROADCAST, NULL, 1, &x, &to, QN_DTYPE_F32, x.bound);
    default:
        if (s.n == 1) return one(b, QN_PRIM_COPY, x, x.bound);
        return reshaped(b, x, 1, (int64_t[]){elements(x)});
    }
}

static value node_STRIDED(builder *b)
{
    const value x = b->of[0];
    const int64_t n = elements(x), width = 1 + roll(b, n);
    const qn_shape to = qn_shape_make(2, (int64_t[]){n - width + 1, width});
    const qn_params p = {.strided = {.stride = {1, 1}}}; /* windows that overlap */
    if (to.dim[0] * width > ELEMENTS) return one(b, QN_PRIM_COPY, x, x.bound);
    return wished(b, QN_PRIM_STRIDED, &p, 1, &x, &to, QN_DTYPE_F32, x.bound);
}

static value node_CONCAT(builder *b)
{
    const value x = b->of[0];
    qn_shape s = shape_of(x);
    s.dim[s.n - 1] = 1 + roll(b, 3);
    if (4 * elements(x) > ELEMENTS) return one(b, QN_PRIM_COPY, x, x.bound);
    return two(b, QN_PRIM_CONCAT, x, given(b, -1, 1, s), fmax(1, x.bound));
}

static value node_UPDATE(builder *b)
{
    const value x = b->of[0];
    const qn_shape s = shape_of(x);
    qn_shape part = s;
    qn_params p = {0};
    for (int d = 0; d < s.n; d++) {
        p.slice.begin[d] = roll(b, s.dim[d]);
        p.slice.step[d] = roll(b, 2) ? 1 : -1;
        part.dim[d] = 1 + roll(b, p.slice.step[d] < 0 ? p.slice.begin[d] + 1 : s.dim[d] - p.slice.begin[d]);
    }
    return use(b, QN_PRIM_UPDATE, &p, 2, (value[]){x, given(b, -1, 1, part)}, fmax(1, x.bound));
}

static value node_MATMUL(builder *b)
{
    const value x = calm(b, b->of[0]);
    const qn_shape s = shape_of(x);
    const int64_t k = s.dim[s.n - 1], n = 1 + roll(b, b->limit);
    if (n * elements(x) > ELEMENTS) return one(b, QN_PRIM_COPY, x, x.bound);
    if (s.n < 2) {
        const value m = as_matrix(b, x);
        return two(b, QN_PRIM_MATMUL_ROWS, m, given(b, -1, 1, qn_shape_make(2, (int64_t[]){1, n})), x.bound);
    }
    return two(b, QN_PRIM_MATMUL, x, given(b, -1, 1, qn_shape_make(2, (int64_t[]){k, n})),
               (double)k * x.bound);
}

static value node_TAKE(builder *b)
{
    const value x = b->of[0];
    const qn_shape s = shape_of(x);
    const int64_t n = 1 + roll(b, b->limit);
    if (n * elements(x) > ELEMENTS) return one(b, QN_PRIM_COPY, x, x.bound);
    if (roll(b, 2)) {
        const qn_params p = {.scatter = {.n = n}};
        const value rows = ids(b, 1, s.dim[0], 1, n, 0);
        return use(b, QN_PRIM_SCATTER_ADD, &p, 2, (value[]){x, rows}, x.bound * (double)s.dim[0]);
    }
    return two(b, QN_PRIM_TAKE, x, ids(b, 1, n, 1, s.dim[0], 0), x.bound);
}

static value node_ALONG(builder *b)
{
    const value x = as_matrix(b, b->of[0]);
    const qn_shape s = shape_of(x);
    const int64_t rows = s.dim[0], n = s.dim[1];
    const qn_params more = {.scatter = {.n = n + 2}},
                    k = {.top_k = {.k = 1 + (int32_t)roll(b, n), .rising = 1}};
    const qn_params sort = {.sort = {.falling = (int32_t)roll(b, 2)}};
    switch (rows * (2 * n + 2) <= ELEMENTS ? roll(b, 5) : 0) {
    case 0:
        return two(b, QN_PRIM_TAKE_ALONG, x,
                   use(b, QN_PRIM_ARG_SORT, &sort, 1, (value[]){given_like(b, -1, 1, x)}, 0), x.bound);
    case 1:
        return two(b, QN_PRIM_TAKE_ALONG, x,
                   use(b, QN_PRIM_TOP_K, &k, 1, (value[]){given_like(b, -1, 1, x)}, 0), x.bound);
    case 2: { /* nobody writes everywhere: the first place is -1 then */
        const value last = use(b, QN_PRIM_LAST_WRITER, &more, 1, (value[]){ids(b, 2, rows, n, n + 2, 0)}, 0);
        return use(b, QN_PRIM_CONCAT, NULL, 2, (value[]){x, to(b, last, QN_DTYPE_F32)}, fmax(x.bound, 40));
    }
    default:
        return use(b, QN_PRIM_SCATTER_ALONG, &more, 2, (value[]){x, ids(b, 2, rows, n, n + 2, 1)}, x.bound);
    }
}

static value node_PLACE(builder *b)
{
    const value x = b->of[0];
    const qn_shape s = shape_of(x);
    const qn_params p = {.reduce = {.axis = (int32_t)roll(b, s.n), .least = (int32_t)roll(b, 2)}};
    const value where = use(b, QN_PRIM_ARG_MAX, &p, 1, (value[]){given_like(b, -1, 1, x)}, 0);
    return two(b, QN_PRIM_ADD, x, to(b, where, QN_DTYPE_F32), x.bound + (double)s.dim[p.reduce.axis]);
}

static value node_RANDOM(builder *b)
{
    const value x = b->of[0];
    const qn_shape s = shape_of(x);
    const int64_t n2 = 2, n3 = 3;
    if (roll(b, 2)) {
        const qn_params p = {.dropout = {.rate = 0.5f, .stream = roll(b, 9)}};
        const int32_t key[3] = {(int32_t)roll(b, 1000), 1, 1};
        return use(b, QN_PRIM_DROPOUT, &p, 2,
                   (value[]){x, {qn_from_data(b->s, QN_DTYPE_I32, 1, &n3, key), 0}}, 2 * x.bound);
    }
    const uint32_t key[2] = {(uint32_t)roll(b, 1000), 7};
    const value k = {qn_from_data(b->s, QN_DTYPE_U32, 1, &n2, key), 0};
    const qn_params p = {.random = {.stream = (int32_t)roll(b, 2)}};
    return two(b, QN_PRIM_MUL, x, wished(b, QN_PRIM_RANDOM, &p, 1, &k, &s, QN_DTYPE_F32, 1), x.bound);
}

static value node_ROPE(builder *b)
{
    const value x = as_heads(b, b->of[0]);
    const qn_shape s = shape_of(x);
    const int64_t half = s.dim[2] / 2;
    if (half == 0) return one(b, QN_PRIM_COPY, x, x.bound);
    const qn_params p = {.rope = {.factor = 0.8f}}, turn = {.rope = {.interleaved = (int32_t)roll(b, 2)}};
    const value table =
        use(b, QN_PRIM_ROPE_TABLE, &p, 2,
            (value[]){ids(b, 1, s.dim[0], 1, 50, 0), given(b, 0, 1, qn_shape_make(1, &half))}, 1);
    return use(b, QN_PRIM_ROPE, &turn, 2, (value[]){x, table}, 2 * x.bound);
}

/* All rows as one sequence. */
static value row_begin(builder *b, int64_t rows)
{
    const int64_t ends = 2;
    return (value){qn_from_data(b->s, QN_DTYPE_I32, 1, &ends, (const int32_t[]){0, (int32_t)rows}), 0};
}

static value node_SEQUENCE(builder *b)
{
    const value x = calm(b, b->of[0]);
    if (roll(b, 2)) {
        const value m = as_matrix(b, x);
        const qn_shape s = shape_of(m), w = qn_shape_make(2, (int64_t[]){1 + roll(b, 3), s.dim[1]});
        if (s.dim[1] * 3 > ELEMENTS) return one(b, QN_PRIM_COPY, m, x.bound);
        return use(b, QN_PRIM_SHORT_CONV, NULL, 3, (value[]){m, given(b, -1, 1, w), row_begin(b, s.dim[0])},
                   3 * x.bound);
    }
    const value h = as_heads(b, x);
    const qn_shape s = shape_of(h), numbers = qn_shape_make(2, s.dim);
    if (roll(b, 2)) { /* of small keys: what large ones write grows from row to row */
        const value k = two(b, QN_PRIM_MUL, h, given(b, 0.05, 0.15, s), 0.15 * x.bound);
        const qn_params p = {.recurrent = {.additive = (int32_t)roll(b, 2)}};
        const value g = roll(b, 2) ? given(b, -1, 0, numbers) : given(b, 0, 1, s);
        return use(b, QN_PRIM_GATED_DELTA, &p, 6,
                   (value[]){h, k, h, g, given(b, 0, 1, numbers), row_begin(b, s.dim[0])}, 100);
    }
    int32_t at[ELEMENTS];
    for (int64_t i = 0; i < s.dim[0]; i++) at[i] = (int32_t)i;
    const value positions = {qn_from_data(b->s, QN_DTYPE_I32, 1, s.dim, at), 0};
    const qn_params p = {.attend = {.scale = 0.3f, .whole = (int32_t)roll(b, 2)}};
    return use(b, QN_PRIM_ATTEND, &p, 5, (value[]){h, h, h, positions, row_begin(b, s.dim[0])}, x.bound);
}

static value node_LOSS(builder *b)
{
    const value x = as_matrix(b, calm(b, b->of[0]));
    const qn_shape s = shape_of(x);
    const int64_t vocabulary = 2 + roll(b, b->limit);
    if (vocabulary * s.dim[1] > ELEMENTS) return one(b, QN_PRIM_COPY, x, x.bound);
    const qn_params p = {.cross_entropy = {.scale = 0.75f}};
    const value head = given(b, -1, 1, qn_shape_make(2, (int64_t[]){vocabulary, s.dim[1]}));
    return use(b, QN_PRIM_CROSS_ENTROPY, &p, 3, (value[]){x, head, ids(b, 1, s.dim[0], 1, vocabulary, 0)},
               4 * (double)s.dim[1] + 9);
}

/* The most primitives that a node of the kind is made of; one at the least. */
#define KINDS(X)   \
    X(SMOOTH, 2)   \
    X(GROWING, 2)  \
    X(POSITIVE, 4) \
    X(PAIR, 3)     \
    X(FLOOR, 2)    \
    X(SELECT, 2)   \
    X(CAST, 3)     \
    X(INTEGER, 5)  \
    X(REDUCE, 2)   \
    X(SCAN, 2)     \
    X(NORM, 2)     \
    X(VIEW, 1)     \
    X(STRIDED, 1)  \
    X(CONCAT, 1)   \
    X(UPDATE, 1)   \
    X(MATMUL, 3)   \
    X(TAKE, 1)     \
    X(ALONG, 4)    \
    X(PLACE, 3)    \
    X(RANDOM, 2)   \
    X(ROPE, 3)     \
    X(SEQUENCE, 4) \
    X(LOSS, 3)

static const struct {
    const char *name;
    value (*make)(builder *b);
    int most;
} kinds[] = {
#define KIND(name, most) {#name, node_##name, most},
    KINDS(KIND)
#undef KIND
};
enum { N_KINDS = sizeof kinds / sizeof *kinds, MOST_OF_A_NODE = 5 };

int qn_graph_kinds(void)
{
    return N_KINDS;
}

const char *qn_graph_kind_name(int kind)
{
    return kinds[kind].name;
}

/* ---- graphs ------------------------------------------------------------------------------------------- */

void qn_graph_random(uint64_t seed, qn_graph *out)
{
    uint64_t drawn = 0;
    *out = (qn_graph){.limit = 2 + (int64_t)(qn_random_bits(seed, drawn++) % 5)};
    const int wish =
        QN_GRAPH_LEAST + (int)(qn_random_bits(seed, drawn++) % (QN_GRAPH_MOST - QN_GRAPH_LEAST + 1));
    int most = 0;
    while (out->n < QN_GRAPH_NODES && out->n < wish && most + MOST_OF_A_NODE <= QN_GRAPH_MOST) {
        qn_graph_node *node = &out->node[out->n];
        node->kind = (int)(qn_random_bits(seed, drawn++) % N_KINDS);
        node->seed = qn_random_bits(seed, drawn++);
        for (int k = 0; k < 2; k++) { /* mostly what was made last, so that graphs are deep */
            const uint64_t dice = qn_random_bits(seed, drawn++);
            const int back = dice % 3 ? 1 : 1 + (int)(dice / 3 % (uint64_t)(out->n + 1));
            node->of[k] = out->n - back;
        }
        most += kinds[node->kind].most;
        out->n++;
    }
}

void qn_graph_build(const qn_graph *g, qn_scope *s, qn_graph_built *out)
{
    value made[QN_GRAPH_NODES];
    int uses[QN_GRAPH_NODES] = {0};
    const int wrong = out->wrong;
    *out = (qn_graph_built){.wrong = wrong};
    for (int i = 0; i < g->n; i++) {
        const qn_graph_node *node = &g->node[i];
        builder b = {.b = out, .s = s, .seed = node->seed, .limit = g->limit};
        char shape[96];
        for (int k = 0; k < 2; k++) {
            const int of = node->of[k];
            b.of[k] = of >= 0 ? made[of] : given(&b, -1.5, 1.5, any_shape(&b));
            if (of >= 0) uses[of]++;
        }
        made[i] = kinds[node->kind].make(&b);
        if (!made[i].a) return;
        if (node->kind == wrong) made[i].a = qn_add(s, made[i].a, qn_scalar(s, 0.01f));
        const qn_shape result = shape_of(made[i]);
        say(out, "  %d = %s(%d, %d) seed %llu -> %s\n", i, kinds[node->kind].name, node->of[0], node->of[1],
            (unsigned long long)node->seed, qn_shape_text(&result, shape, sizeof shape));
    }
    for (int i = 0; i < g->n; i++)
        if (!uses[i]) out->out[out->n_out++] = made[i].a;
}

/* ---- making smaller ----------------------------------------------------------------------------------- */

/* Who used the node uses what it used. */
static void leave_out(qn_graph *g, int which)
{
    const int instead = g->node[which].of[0];
    g->n--;
    for (int i = which; i < g->n; i++) {
        g->node[i] = g->node[i + 1];
        for (int k = 0; k < 2; k++) {
            int *of = &g->node[i].of[k];
            *of = *of == which ? instead : *of > which ? *of - 1 : *of;
        }
    }
}

static int takes(qn_graph *g, const qn_graph *smaller, qn_graph_fails *fails, void *user)
{
    if (!fails(user, smaller)) return 0;
    *g = *smaller;
    return 1;
}

void qn_graph_shrink(qn_graph *g, qn_graph_fails *fails, void *user)
{
    for (int changed = 1; changed;) {
        changed = 0;
        for (int i = g->n - 1; i >= 0 && g->n > 1; i--) {
            qn_graph smaller = *g;
            leave_out(&smaller, i);
            changed |= takes(g, &smaller, fails, user);
        }
        for (int i = 0; i < 2 * g->n; i++) {
            qn_graph smaller = *g;
            if (g->node[i / 2].of[i % 2] < 0) continue;
            smaller.node[i / 2].of[i % 2] = -1;
            changed |= takes(g, &smaller, fails, user);
        }
        if (g->limit > 1) {
            qn_graph smaller = *g;
            smaller.limit--;
            changed |= takes(g, &smaller, fails, user);
        }
    }
}
