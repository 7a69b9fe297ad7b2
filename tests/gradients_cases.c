#include "tests/gradients_cases.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"

/* ---- dice --------------------------------------------------------------------------------------------- */

static int64_t roll(qn_gradient_case *c, int64_t below)
{
    return (int64_t)(qn_random_bits(c->seed, c->drawn++) % (uint64_t)below);
}

static double between(qn_gradient_case *c, double low, double high)
{
    return low + (high - low) * qn_random_unit(c->seed, c->drawn++);
}

/* 1 to the limit. */
static int64_t size(qn_gradient_case *c)
{
    return 1 + roll(c, c->limit);
}

static void say(qn_gradient_case *c, const char *fmt, ...)
{
    size_t at = strlen(c->text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(c->text + at, sizeof c->text - at, fmt, args);
    va_end(args);
}

/* ---- values ------------------------------------------------------------------------------------------- */

/* Where a function bends, both sides of a difference have to lie on the same piece: so far from there. */
typedef enum { ANY, POSITIVE, FROM_ZERO, APART, EVEN, ODD, NEGATIVE } values;

static void fill(qn_gradient_case *c, values how, qn_case_base *b)
{
    for (int64_t i = 0; i < b->n; i++) {
        double x = between(c, -1.5, 1.5);
        switch (how) {
        case ANY:
            break;
        case POSITIVE:
            x = 1.1 + 0.4 * x;
            break;
        case FROM_ZERO:
            x = copysign(0.3 + 0.7 * fabs(x), x);
            break;
        case APART:
            x = 0.25 * (double)(i - b->n / 2);
            break;
        case EVEN:
            x = 0.5 * round(4 * x);
            break;
        case ODD:
            x = 0.5 * round(4 * x) + 0.25;
            break;
        case NEGATIVE:
            x = -1 + 0.5 * x;
            break;
        }
        b->at[i] = (float)(round(256 * x) / 256); /* so that a step from it is exact, and f16 holds it */
    }
    for (int64_t i = b->n - 1; how == APART && i > 0; i--) {
        const int64_t j = roll(c, i + 1);
        const float x = b->at[i];
        b->at[i] = b->at[j];
        b->at[j] = x;
    }
}

/* ---- inputs ------------------------------------------------------------------------------------------- */

static qn_array *apply(qn_gradient_case *c, qn_prim prim, const qn_params *p, qn_array *a,
                       const qn_shape *shape)
{
    return qn_apply(c->scope, prim, p, 1, &a, shape, a ? qn_array_dtype(a) : QN_DTYPE_F32);
}

static qn_array *new_base(qn_gradient_case *c, values how, qn_shape shape)
{
    if (c->n_bases == QN_CASE_BASES || qn_shape_elements(&shape, NULL) > QN_CASE_ELEMENTS) return NULL;
    qn_case_base *b = &c->base[c->n_bases++];
    b->n = qn_shape_elements(&shape, NULL);
    b->input = qn_input(c->scope, QN_DTYPE_F32, shape);
    fill(c, how, b);
    char text[96];
    say(c, " %s", qn_shape_text(&shape, text, sizeof text));
    if (c->dtype == QN_DTYPE_F32) return b->input;
    return qn_apply(c->scope, QN_PRIM_CAST, NULL, 1, &b->input, NULL, c->dtype);
}

/* The base's dimension d becomes dimension perm[d] of the view. */
static qn_array *turned(qn_gradient_case *c, values how, qn_shape shape)
{
    qn_params p = {0};
    qn_shape base = shape;
    for (int d = 0; d < shape.n; d++) p.transpose.perm[d] = d;
    for (int d = shape.n - 1; d > 0; d--) {
        const int64_t j = roll(c, d + 1);
        const int32_t at = p.transpose.perm[d];
        p.transpose.perm[d] = p.transpose.perm[j];
        p.transpose.perm[j] = at;
    }
    for (int d = 0; d < shape.n; d++) base.dim[p.transpose.perm[d]] = shape.dim[d];
    qn_array *a = new_base(c, how, base);
    say(c, " turned");
    return apply(c, QN_PRIM_TRANSPOSE, &p, a, NULL);
}

static qn_array *cut(qn_gradient_case *c, values how, qn_shape shape)
{
    qn_params p = {0};
    qn_shape base = shape;
    for (int d = 0; d < shape.n; d++) {
        p.slice.begin[d] = roll(c, 3);
        base.dim[d] += p.slice.begin[d] + roll(c, 2);
    }
    if (qn_shape_elements(&base, NULL) > QN_CASE_ELEMENTS) return new_base(c, how, shape);
    qn_array *a = new_base(c, how, base);
    say(c, " cut");
    return apply(c, QN_PRIM_SLICE, &p, a, &shape);
}

static qn_array *repeated(qn_gradient_case *c, values how, qn_shape shape)
{
    qn_shape base = shape;
    for (int d = 0; d < shape.n; d++)
        if (roll(c, 2)) base.dim[d] = 1;
    while (base.n > 0 && base.dim[0] == 1 && roll(c, 2)) {
        base.n--;
        memmove(base.dim, base.dim + 1, (size_t)base.n * sizeof *base.dim);
    }
    qn_array *a = new_base(c, how, base);
    say(c, " repeated");
    return apply(c, QN_PRIM_BROADCAST, NULL, a, &shape);
}

/* Every other element: the first of each pair along a last dimension of two. */
static qn_array *strided(qn_gradient_case *c, values how, qn_shape shape)
{
    if (shape.n == QN_MAX_DIMS || shape.n == 0) return new_base(c, how, shape);
    qn_params p = {0};
    qn_shape base = shape, one = shape;
    base.dim[base.n++] = 2;
    one.dim[one.n++] = 1;
    p.slice.begin[shape.n] = roll(c, 2);
    qn_array *a = new_base(c, how, base);
    say(c, " strided");
    return apply(c, QN_PRIM_RESHAPE, NULL, apply(c, QN_PRIM_SLICE, &p, a, &one), &shape);
}

static qn_array *real_of(qn_gradient_case *c, values how, qn_shape shape)
{
    switch (roll(c, 6)) {
    case 0:
        return turned(c, how, shape);
    case 1:
        return cut(c, how, shape);
    case 2:
        return repeated(c, how, shape);
    case 3:
        return strided(c, how, shape);
    default:
        return new_base(c, how, shape);
    }
}

#define DIMS(...)                                                          \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) \
    {                                                                      \
        __VA_ARGS__                                                        \
    }

static qn_array *real(qn_gradient_case *c, values how, int n, const int64_t *dims)
{
    return real_of(c, how, qn_shape_make(n, dims));
}

static qn_shape any_shape(qn_gradient_case *c, int least, int most)
{
    qn_shape s = {.n = least + (int)roll(c, most - least + 1)};
    for (int d = 0; d < s.n; d++) s.dim[d] = size(c);
    return s;
}

static qn_array *constant(qn_gradient_case *c, qn_dtype dtype, const void *data, int n, const int64_t *dims)
{
    return qn_from_data(c->scope, dtype, n, dims, data);
}

static qn_array *whole_numbers(qn_gradient_case *c, const int32_t *x, int n, const int64_t *dims)
{
    return constant(c, QN_DTYPE_I32, x, n, dims);
}

static qn_array *fixed(qn_gradient_case *c, double low, double high, int n, const int64_t *dims)
{
    float x[QN_CASE_ELEMENTS];
    qn_shape s = qn_shape_make(n, dims);
    for (int64_t i = 0; i < qn_shape_elements(&s, NULL) && i < QN_CASE_ELEMENTS; i++)
        x[i] = (float)between(c, low, high);
    return constant(c, QN_DTYPE_F32, x, n, dims);
}

/* [rows, columns] numbers below `below`; in a row all different where distinct. */
static qn_array *indices(qn_gradient_case *c, int64_t rows, int64_t columns, int64_t below, int distinct,
                         int n)
{
    int32_t x[QN_CASE_ELEMENTS], pool[QN_CASE_ELEMENTS];
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t j = 0; j < below; j++) pool[j] = (int32_t)j;
        for (int64_t j = 0; j < columns; j++) {
            const int64_t from = distinct ? j + roll(c, below - j) : roll(c, below);
            x[r * columns + j] = pool[from];
            if (distinct) pool[from] = pool[j];
        }
    }
    return whole_numbers(c, x, n, (int64_t[]){rows, columns});
}

static qn_array *row_ids(qn_gradient_case *c, int64_t rows, int64_t below)
{
    int32_t ids[64];
    for (int64_t i = 0; i < rows; i++) ids[i] = (int32_t)roll(c, below);
    return whole_numbers(c, ids, 1, &rows);
}

/* Sequences of 1 to the limit rows; positions begin anywhere. Any of the outputs may be NULL. */
static int64_t ragged(qn_gradient_case *c, qn_array **row_begin, qn_array **positions)
{
    int32_t begin[8] = {0}, at[64];
    const int64_t n = 1 + roll(c, 2), ends = n + 1;
    for (int64_t i = 0; i < n; i++) {
        begin[i + 1] = begin[i] + (int32_t)size(c);
        const int32_t first = (int32_t)roll(c, 5);
        for (int32_t r = begin[i]; r < begin[i + 1]; r++) at[r] = first + r - begin[i];
    }
    const int64_t rows = begin[n];
    c->sizes.v[QN_SYM_R] = rows;
    c->sizes.v[QN_SYM_S] = n;
    say(c, " %lld sequence(s) of %lld rows", (long long)n, (long long)rows);
    *row_begin = whole_numbers(c, begin, 1, &ends);
    if (positions) *positions = whole_numbers(c, at, 1, &rows);
    return rows;
}

static qn_array *call(qn_gradient_case *c, qn_prim prim, const qn_params *p, int n, qn_array *const *in)
{
    return qn_apply(c->scope, prim, p, n, in, NULL, QN_DTYPE_F32);
}

/* ---- views and copies --------------------------------------------------------------------------------- */

static qn_array *make_RESHAPE(qn_gradient_case *c)
{
    qn_shape shape = any_shape(c, 1, 3), flat = {.n = 1, .dim = {qn_shape_elements(&shape, NULL)}};
    return apply(c, QN_PRIM_RESHAPE, NULL, real_of(c, ANY, shape), &flat);
}

static qn_array *make_TRANSPOSE(qn_gradient_case *c)
{
    return turned(c, ANY, any_shape(c, 1, 4));
}

/* Where elements of a shape lie in a larger array, by steps in either direction; *whole: its shape. */
static void by_steps(qn_gradient_case *c, qn_shape shape, qn_params *p, qn_shape *whole)
{
    *whole = shape;
    for (int d = 0; d < shape.n; d++) {
        const int64_t step = 1 + roll(c, 2), reach = (shape.dim[d] - 1) * step, before = roll(c, 2);
        const int back = roll(c, 3) == 0;
        whole->dim[d] = before + reach + 1 + roll(c, 2);
        p->slice.begin[d] = back ? before + reach : before;
        p->slice.step[d] = back ? -step : step;
        say(c, " %lld:%lld", (long long)p->slice.begin[d], (long long)p->slice.step[d]);
    }
    if (2 * qn_shape_elements(whole, NULL) <= QN_CASE_ELEMENTS) return;
    *p = (qn_params){0};
    *whole = shape;
    say(c, " or all of it");
}

static qn_array *make_SLICE(qn_gradient_case *c)
{
    qn_shape shape = any_shape(c, 1, 3), whole;
    if (roll(c, 2)) return cut(c, ANY, shape);
    qn_params p = {0};
    by_steps(c, shape, &p, &whole);
    return apply(c, QN_PRIM_SLICE, &p, real_of(c, ANY, whole), &shape);
}

static qn_array *make_UPDATE(qn_gradient_case *c)
{
    qn_shape shape = any_shape(c, 1, 3), whole;
    qn_params p = {0};
    by_steps(c, shape, &p, &whole);
    qn_array *x = real_of(c, ANY, whole);
    return call(c, QN_PRIM_UPDATE, &p, 2, (qn_array *[]){x, real_of(c, ANY, shape)});
}

/* Strides of any sign, and 0: elements may come several times. */
static qn_array *make_STRIDED(qn_gradient_case *c)
{
    const qn_shape base = any_shape(c, 1, 3), shape = any_shape(c, 1, 3);
    const int64_t n = qn_shape_elements(&base, NULL);
    qn_params p = {0};
    int64_t low = 0, high = 0;
    for (int d = 0; d < shape.n; d++) {
        const int64_t room = n - 1 - (high - low), most = shape.dim[d] > 1 ? room / (shape.dim[d] - 1) : 3;
        const int64_t stride = most > 0 ? roll(c, most + 1) : 0, reach = stride * (shape.dim[d] - 1);
        const int back = (int)roll(c, 2);
        p.strided.stride[d] = back ? -stride : stride;
        if (back)
            low -= reach;
        else
            high += reach;
        say(c, " stride %lld", (long long)p.strided.stride[d]);
    }
    p.strided.offset = -low + roll(c, n - (high - low));
    return apply(c, QN_PRIM_STRIDED, &p, real_of(c, ANY, base), &shape);
}

static qn_array *make_SELECT(qn_gradient_case *c)
{
    const qn_shape shape = any_shape(c, 1, 3);
    uint8_t holds[QN_CASE_ELEMENTS];
    for (int64_t i = 0; i < qn_shape_elements(&shape, NULL); i++) holds[i] = (uint8_t)roll(c, 2);
    qn_array *condition = constant(c, QN_DTYPE_BOOL, holds, shape.n, shape.dim);
    qn_shape one = shape;
    one.dim[roll(c, shape.n)] = 1;
    qn_array *a = real_of(c, ANY, roll(c, 2) ? shape : one);
    return call(c, QN_PRIM_SELECT, NULL, 3, (qn_array *[]){condition, a, real_of(c, ANY, shape)});
}

static qn_array *make_BROADCAST(qn_gradient_case *c)
{
    return repeated(c, ANY, any_shape(c, 1, 4));
}

static qn_array *make_COPY(qn_gradient_case *c)
{
    return apply(c, QN_PRIM_COPY, NULL, real_of(c, ANY, any_shape(c, 1, 3)), NULL);
}

static qn_array *make_CAST(qn_gradient_case *c)
{
    return apply(c, QN_PRIM_CAST, NULL, real_of(c, ANY, any_shape(c, 1, 3)), NULL);
}

static qn_array *make_DROPOUT(qn_gradient_case *c)
{
    const int64_t three = 3;
    qn_params p = {.dropout = {.rate = 0.3f, .stream = roll(c, 100)}};
    qn_array *x = real_of(c, ANY, any_shape(c, 1, 3));
    return call(c, QN_PRIM_DROPOUT, &p, 2,
                (qn_array *[]){x, whole_numbers(c, (int32_t[]){(int32_t)roll(c, 1000), 5, 1}, 1, &three)});
}

static qn_array *make_CONCAT(qn_gradient_case *c)
{
    qn_shape shape = any_shape(c, 1, 3);
    qn_array *parts[3];
    const int n = 1 + (int)roll(c, 3);
    for (int i = 0; i < n; i++) {
        shape.dim[shape.n - 1] = size(c);
        parts[i] = real_of(c, ANY, shape);
    }
    if (n > 1 && roll(c, 4) == 0) parts[n - 1] = parts[0]; /* one that comes twice */
    return call(c, QN_PRIM_CONCAT, NULL, n, parts);
}

/* ---- along an axis ------------------------------------------------------------------------------------ */

static qn_array *reduced(qn_gradient_case *c, qn_prim prim, values how)
{
    qn_shape shape = any_shape(c, 1, 3);
    qn_params p = {.reduce = {.axis = (int32_t)roll(c, shape.n)}};
    qn_array *x = real_of(c, how, shape);
    say(c, " axis %d", p.reduce.axis);
    return call(c, prim, &p, 1, &x);
}

static qn_array *make_SUM(qn_gradient_case *c)
{
    return reduced(c, QN_PRIM_SUM, ANY);
}

static qn_array *make_MAX(qn_gradient_case *c)
{
    return reduced(c, QN_PRIM_MAX, APART);
}

static qn_array *make_MIN(qn_gradient_case *c)
{
    return reduced(c, QN_PRIM_MIN, APART);
}

static qn_array *make_PROD(qn_gradient_case *c)
{
    return reduced(c, QN_PRIM_PROD, ANY);
}

static qn_array *make_SCAN(qn_gradient_case *c)
{
    const qn_shape shape = any_shape(c, 1, 3);
    qn_params p = {.scan = {.axis = (int32_t)roll(c, shape.n),
                            .how = (int32_t)roll(c, QN_SCAN_MIN + 1),
                            .reverse = (int32_t)roll(c, 2)}};
    const int is_extreme = p.scan.how == QN_SCAN_MAX || p.scan.how == QN_SCAN_MIN;
    p.scan.exclusive = !is_extreme && roll(c, 2); /* the first of those would be infinite */
    say(c, " axis %d, how %d, reverse %d, exclusive %d", p.scan.axis, p.scan.how, p.scan.reverse,
        p.scan.exclusive);
    qn_array *x = real_of(c, is_extreme ? APART : ANY, shape);
    return call(c, QN_PRIM_SCAN, &p, 1, &x);
}

static qn_array *make_SOFTMAX(qn_gradient_case *c)
{
    qn_array *x = real_of(c, ANY, any_shape(c, 1, 3));
    return call(c, QN_PRIM_SOFTMAX, NULL, 1, &x);
}

/* x, then `same` arrays of its shape, then up to `vectors` of its last dimension. */
static qn_array *normed(qn_gradient_case *c, qn_prim prim, int same, int vectors)
{
    qn_shape shape = any_shape(c, 1, 3);
    qn_params p = {.norm = {.eps = 0.05f, .offset = roll(c, 2) ? 1.0f : 0}};
    qn_array *in[4] = {real_of(c, ANY, shape)};
    int n = 1;
    for (int i = 0; i < same; i++) in[n++] = real_of(c, ANY, shape);
    for (int64_t i = roll(c, vectors + 1); i > 0; i--) in[n++] = real(c, ANY, 1, &shape.dim[shape.n - 1]);
    return call(c, prim, &p, n, in);
}

static qn_array *make_RMS_NORM(qn_gradient_case *c)
{
    return normed(c, QN_PRIM_RMS_NORM, 0, 1);
}

static qn_array *make_RMS_NORM_GRAD(qn_gradient_case *c)
{
    return normed(c, QN_PRIM_RMS_NORM_GRAD, 1, 1);
}

static qn_array *make_LAYER_NORM(qn_gradient_case *c)
{
    return normed(c, QN_PRIM_LAYER_NORM, 0, 2);
}

/* ---- rope --------------------------------------------------------------------------------------------- */

static qn_array *angles(qn_gradient_case *c, int64_t rows, int64_t half, qn_array *frequencies)
{
    int32_t at[64];
    qn_params p = {.rope = {.factor = 1.25f}};
    for (int64_t r = 0; r < rows; r++) at[r] = (int32_t)roll(c, 20);
    qn_array *positions = whole_numbers(c, at, 1, &rows);
    if (!frequencies) frequencies = fixed(c, 0, 1, 1, &half);
    return call(c, QN_PRIM_ROPE_TABLE, &p, 2, (qn_array *[]){positions, frequencies});
}

static qn_array *make_ROPE(qn_gradient_case *c)
{
    const int64_t rows = size(c), half = size(c), rest = roll(c, 3);
    qn_params p = {.rope = {.interleaved = (int32_t)roll(c, 2)}};
    qn_array *x = real(c, ANY, DIMS(rows, size(c), 2 * half + rest));
    return call(c, QN_PRIM_ROPE, &p, 2, (qn_array *[]){x, angles(c, rows, half, NULL)});
}

static qn_array *make_ROPE_TABLE(qn_gradient_case *c)
{
    const int64_t half = size(c);
    return angles(c, size(c), half, new_base(c, POSITIVE, qn_shape_make(1, &half)));
}

/* ---- products ----------------------------------------------------------------------------------------- */

static qn_array *make_MATMUL(qn_gradient_case *c)
{
    qn_shape a = any_shape(c, 2, 4), b = a;
    if (roll(c, 2)) { /* one matrix for all */
        b.n = 2;
        b.dim[1] = size(c);
    } else {
        b.dim[b.n - 1] = size(c);
    }
    b.dim[b.n - 2] = a.dim[a.n - 1];
    qn_array *x = real_of(c, ANY, a);
    return call(c, QN_PRIM_MATMUL, NULL, 2, (qn_array *[]){x, real_of(c, ANY, b)});
}

static qn_array *make_MATMUL_ROWS(qn_gradient_case *c)
{
    const int64_t rows = size(c);
    qn_array *a = real(c, ANY, DIMS(rows, size(c))), *b = real(c, ANY, DIMS(rows, size(c)));
    return call(c, QN_PRIM_MATMUL_ROWS, NULL, 2, (qn_array *[]){a, b});
}

enum { EXPERTS = 3, WIDTH = 32 };

static qn_array *weights(qn_gradient_case *c)
{
    static float rows[EXPERTS][WIDTH * WIDTH];
    qn_weight_part part[EXPERTS];
    for (int64_t m = 0; m < EXPERTS; m++) {
        for (int64_t i = 0; i < WIDTH * WIDTH; i++)
            rows[m][i] = (float)qn_random_unit(11, (uint64_t)(m * WIDTH * WIDTH + i)) - 0.5f;
        part[m] = (qn_weight_part){.data = rows[m]};
    }
    const qn_weight w = {
        .dtype = QN_DTYPE_F32, .n_parts = EXPERTS, .n_out = WIDTH, .n_in = WIDTH, .parts = part};
    qn_buffer *b = NULL;
    if (c->device->ops->import_weights(c->device, 1, &w, &b) != QN_OK) return NULL;
    qn_array *a = qn_from_buffer(c->scope, w.dtype, qn_shape_make(3, (int64_t[]){EXPERTS, WIDTH, WIDTH}), b);
    qn_buffer_release(b);
    return a;
}

static qn_array *make_EXPERTS(qn_gradient_case *c)
{
    const int64_t rows = 1 + roll(c, 2), top = 1 + roll(c, 2), has_bias = roll(c, 2);
    qn_params p = {.experts = {(int32_t)has_bias}};
    qn_array *x = roll(c, 2) ? real(c, ANY, DIMS(rows, WIDTH)) : real(c, ANY, DIMS(rows, top, WIDTH));
    qn_array *ids = indices(c, rows, top, EXPERTS, 1, 2), *w = weights(c);
    qn_array *bias = has_bias ? fixed(c, -1, 1, DIMS(EXPERTS, WIDTH)) : NULL;
    return call(c, QN_PRIM_EXPERTS, &p, has_bias ? 4 : 3, (qn_array *[]){x, w, ids, bias});
}

static qn_array *make_EXPERTS_SUM(qn_gradient_case *c)
{
    const int64_t rows = 1 + roll(c, 2), top = 1 + roll(c, 2), has_bias = roll(c, 2);
    qn_params p = {.experts = {(int32_t)has_bias}};
    qn_array *x = real(c, ANY, DIMS(rows, top, WIDTH)), *share = real(c, POSITIVE, DIMS(rows, top));
    qn_array *ids = indices(c, rows, top, EXPERTS, 1, 2), *w = weights(c);
    qn_array *bias = has_bias ? fixed(c, -1, 1, DIMS(EXPERTS, WIDTH)) : NULL;
    return call(c, QN_PRIM_EXPERTS_SUM, &p, has_bias ? 5 : 4, (qn_array *[]){x, w, ids, share, bias});
}

static qn_array *make_LORA(qn_gradient_case *c)
{
    static const qn_lora_pair none; /* adds nothing */
    const int64_t rows = size(c);
    qn_array *x = real(c, ANY, DIMS(rows, size(c))), *y = real(c, ANY, DIMS(rows, size(c)));
    return qn_lora(c->scope, &(qn_params_lora){&none, 1}, x, y, row_ids(c, rows, 1));
}

/* ---- rows by index ------------------------------------------------------------------------------------ */

static qn_array *make_TAKE(qn_gradient_case *c)
{
    qn_shape table = any_shape(c, 1, 3);
    qn_array *x = real_of(c, ANY, table);
    return call(c, QN_PRIM_TAKE, NULL, 2, (qn_array *[]){x, row_ids(c, size(c), table.dim[0])});
}

static qn_array *make_SCATTER_ADD(qn_gradient_case *c)
{
    qn_shape rows = any_shape(c, 1, 3);
    qn_params p = {.scatter = {.n = size(c)}};
    qn_array *x = real_of(c, ANY, rows);
    return call(c, QN_PRIM_SCATTER_ADD, &p, 2, (qn_array *[]){x, row_ids(c, rows.dim[0], p.scatter.n)});
}

static qn_array *make_TAKE_ALONG(qn_gradient_case *c)
{
    const int64_t rows = size(c), n = size(c);
    qn_array *x = real(c, ANY, DIMS(rows, n));
    return call(c, QN_PRIM_TAKE_ALONG, NULL, 2, (qn_array *[]){x, indices(c, rows, size(c), n, 0, 2)});
}

static qn_array *make_SCATTER_ALONG(qn_gradient_case *c)
{
    const int64_t rows = size(c), k = size(c);
    qn_params p = {.scatter = {.n = k + roll(c, 3)}};
    qn_array *x = real(c, ANY, DIMS(rows, k));
    return call(c, QN_PRIM_SCATTER_ALONG, &p, 2, (qn_array *[]){x, indices(c, rows, k, p.scatter.n, 1, 2)});
}

/* ---- sequences ---------------------------------------------------------------------------------------- */

static qn_array *make_ATTEND(qn_gradient_case *c)
{
    qn_array *row_begin, *positions, *in[6];
    const int64_t rows = ragged(c, &row_begin, &positions), kv = 1 + roll(c, 2), dim = size(c);
    const int64_t heads = kv * (1 + roll(c, 2));
    qn_params p = {.attend = {.scale = 0.7f, .has_sinks = (int32_t)roll(c, 2), .whole = roll(c, 3) == 0}};
    if (!p.attend.whole && roll(c, 2)) p.attend.window = 1 + roll(c, 3);
    if (roll(c, 2)) p.attend.softcap = 2;
    in[0] = real(c, ANY, DIMS(rows, heads, dim));
    in[1] = real(c, ANY, DIMS(rows, kv, dim));
    in[2] = real(c, ANY, DIMS(rows, kv, size(c)));
    in[3] = positions;
    in[4] = row_begin;
    if (p.attend.has_sinks) in[5] = fixed(c, -1, 1, 1, &heads);
    say(c, " window %lld softcap %g whole %d sinks %d", (long long)p.attend.window, (double)p.attend.softcap,
        p.attend.whole, p.attend.has_sinks);
    return call(c, QN_PRIM_ATTEND, &p, p.attend.has_sinks ? 6 : 5, in);
}

static qn_array *make_SHORT_CONV(qn_gradient_case *c)
{
    qn_array *row_begin;
    const int64_t rows = ragged(c, &row_begin, NULL), channels = size(c);
    qn_array *x = real(c, ANY, DIMS(rows, channels)), *w = real(c, ANY, DIMS(1 + size(c), channels));
    return call(c, QN_PRIM_SHORT_CONV, NULL, 3, (qn_array *[]){x, w, row_begin});
}

static qn_array *make_GATED_DELTA(qn_gradient_case *c)
{
    qn_array *row_begin, *in[6];
    const int64_t rows = ragged(c, &row_begin, NULL), keys = 1 + roll(c, 2), dk = size(c);
    const int64_t heads = keys * (1 + roll(c, 2));
    in[0] = real(c, ANY, DIMS(rows, keys, dk));
    in[1] = real(c, ANY, DIMS(rows, keys, dk));
    in[2] = real(c, ANY, DIMS(rows, heads, size(c)));
    in[3] = real(c, NEGATIVE, DIMS(rows, heads));
    in[4] = real(c, POSITIVE, DIMS(rows, heads));
    in[5] = row_begin;
    return call(c, QN_PRIM_GATED_DELTA, NULL, 6, in);
}

/* ---- losses ------------------------------------------------------------------------------------------- */

static int losses_in(qn_gradient_case *c, qn_params *p, qn_array **in)
{
    const int64_t rows = size(c), k = size(c), vocab = 1 + size(c);
    p->cross_entropy.scale = 0.75f;
    p->cross_entropy.softcap = roll(c, 2) ? 3 : 0;
    in[0] = real(c, ANY, DIMS(rows, k));
    in[1] = real(c, ANY, DIMS(vocab, k));
    in[2] = indices(c, rows, 1, vocab, 0, 1 + (int)roll(c, 2));
    return (int)rows;
}

static qn_array *make_CROSS_ENTROPY(qn_gradient_case *c)
{
    qn_params p = {0};
    qn_array *in[3];
    losses_in(c, &p, in);
    return call(c, QN_PRIM_CROSS_ENTROPY, &p, 3, in);
}

static qn_array *make_CROSS_ENTROPY_GRAD(qn_gradient_case *c)
{
    qn_params p = {0};
    qn_array *in[5];
    const int64_t rows = losses_in(c, &p, in);
    p.cross_entropy.which = (int32_t)roll(c, 2);
    in[3] = real(c, POSITIVE, DIMS(rows, 1));
    in[4] = real(c, ANY, DIMS(rows, 1));
    say(c, " which %d", p.cross_entropy.which);
    return call(c, QN_PRIM_CROSS_ENTROPY_GRAD, &p, 5, in);
}

/* ---- gradients of the second order, which are refused -------------------------------------------------- */

static qn_array *first_gradient(qn_gradient_case *c, qn_array *y)
{
    qn_array *g = NULL;
    if (!y || qn_vjp(c->scope, y, y, 1, &c->base[0].input, &g) != QN_OK) return NULL;
    return g;
}

static qn_array *make_ATTEND_GRAD(qn_gradient_case *c)
{
    return first_gradient(c, make_ATTEND(c));
}

static qn_array *make_EXPERTS_GRAD(qn_gradient_case *c)
{
    return first_gradient(c, make_EXPERTS(c));
}

static qn_array *make_SHORT_CONV_GRAD(qn_gradient_case *c)
{
    return first_gradient(c, make_SHORT_CONV(c));
}

static qn_array *make_GATED_DELTA_GRAD(qn_gradient_case *c)
{
    return first_gradient(c, make_GATED_DELTA(c));
}

/* ---- element-wise ------------------------------------------------------------------------------------- */

static const struct {
    qn_prim prim;
    values of[2];
} elementwise[] = {
    {QN_PRIM_NEG, {ANY}},           {QN_PRIM_ABS, {FROM_ZERO}},      {QN_PRIM_EXP, {ANY}},
    {QN_PRIM_LOG, {POSITIVE}},      {QN_PRIM_SQRT, {POSITIVE}},      {QN_PRIM_RSQRT, {POSITIVE}},
    {QN_PRIM_SQUARE, {ANY}},        {QN_PRIM_RECIP, {FROM_ZERO}},    {QN_PRIM_SIN, {ANY}},
    {QN_PRIM_COS, {ANY}},           {QN_PRIM_TANH, {ANY}},           {QN_PRIM_ERF, {ANY}},
    {QN_PRIM_SIGMOID, {ANY}},       {QN_PRIM_SOFTPLUS, {ANY}},       {QN_PRIM_SILU, {ANY}},
    {QN_PRIM_GELU, {ANY}},          {QN_PRIM_GELU_TANH, {ANY}},      {QN_PRIM_RELU, {FROM_ZERO}},
    {QN_PRIM_FLOOR, {ODD}},         {QN_PRIM_ROUND, {ODD}},          {QN_PRIM_LOG1P, {POSITIVE}},
    {QN_PRIM_EXPM1, {ANY}},         {QN_PRIM_ADD, {ANY, ANY}},       {QN_PRIM_SUB, {ANY, ANY}},
    {QN_PRIM_MUL, {ANY, ANY}},      {QN_PRIM_DIV, {ANY, FROM_ZERO}}, {QN_PRIM_MAXIMUM, {EVEN, ODD}},
    {QN_PRIM_MINIMUM, {ODD, EVEN}}, {QN_PRIM_POW, {POSITIVE, ANY}},
};

/* Inputs of one shape, or of shapes that go together. */
static qn_array *make_elementwise(qn_gradient_case *c, qn_prim prim)
{
    qn_array *in[2] = {NULL};
    const int n = qn_prim_get(prim)->elementwise_inputs;
    for (size_t i = 0; i < sizeof elementwise / sizeof *elementwise; i++) {
        if (elementwise[i].prim != prim) continue;
        qn_shape shape = any_shape(c, 0, 4);
        for (int k = 0; k < n; k++) {
            qn_shape own = shape;
            for (int d = 0; d < own.n && k == 1; d++)
                if (roll(c, 4) == 0) own.dim[d] = 1;
            in[k] = real_of(c, elementwise[i].of[k], own);
        }
        return call(c, prim, NULL, n, in);
    }
    return NULL;
}

/* ---- the table ---------------------------------------------------------------------------------------- */

#define ROW(name)                                    \
    {                                                \
        QN_PRIM_##name, QN_CASE_NUMBERS, make_##name \
    }
#define REFUSED(name)                                \
    {                                                \
        QN_PRIM_##name, QN_CASE_REFUSED, make_##name \
    }

static const qn_case_row rows[] = {
    {QN_PRIM_DATA, QN_CASE_NOTHING, NULL},
    {QN_PRIM_INPUT, QN_CASE_NOTHING, NULL},
    {QN_PRIM_FUSED, QN_CASE_NOTHING, NULL},
    {QN_PRIM_TOP_K, QN_CASE_NOTHING, NULL},
    {QN_PRIM_COMPARE, QN_CASE_NOTHING, NULL},
    {QN_PRIM_ARG_MAX, QN_CASE_NOTHING, NULL},
    {QN_PRIM_ARG_SORT, QN_CASE_NOTHING, NULL},
    {QN_PRIM_LAST_WRITER, QN_CASE_NOTHING, NULL},
    {QN_PRIM_RANDOM, QN_CASE_NOTHING, NULL},
    ROW(RESHAPE),
    ROW(TRANSPOSE),
    ROW(SLICE),
    ROW(STRIDED),
    ROW(BROADCAST),
    ROW(COPY),
    ROW(CAST),
    ROW(DROPOUT),
    ROW(CONCAT),
    ROW(SELECT),
    ROW(UPDATE),
    ROW(SUM),
    ROW(MAX),
    ROW(MIN),
    ROW(PROD),
    ROW(SCAN),
    ROW(SOFTMAX),
    ROW(RMS_NORM),
    ROW(RMS_NORM_GRAD),
    ROW(LAYER_NORM),
    ROW(ROPE),
    REFUSED(ROPE_TABLE),
    ROW(MATMUL),
    ROW(MATMUL_ROWS),
    ROW(TAKE),
    ROW(SCATTER_ADD),
    ROW(TAKE_ALONG),
    ROW(SCATTER_ALONG),
    ROW(ATTEND),
    REFUSED(ATTEND_GRAD),
    ROW(CROSS_ENTROPY),
    ROW(CROSS_ENTROPY_GRAD),
    REFUSED(LORA),
    ROW(EXPERTS),
    ROW(EXPERTS_SUM),
    REFUSED(EXPERTS_GRAD),
    ROW(SHORT_CONV),
    REFUSED(SHORT_CONV_GRAD),
    ROW(GATED_DELTA),
    REFUSED(GATED_DELTA_GRAD),
};

const qn_case_row *qn_case_find(qn_prim prim)
{
    static qn_case_row found;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].prim == prim) return &rows[i];
    for (size_t i = 0; i < sizeof elementwise / sizeof *elementwise; i++)
        if (elementwise[i].prim == prim) {
            found = (qn_case_row){prim, QN_CASE_NUMBERS, NULL};
            return &found;
        }
    return NULL;
}

/* The result as it is, turned, or summed over its first dimension: so that the gradient that comes back is a
 * view as well. */
static qn_array *behind(qn_gradient_case *c, qn_array *y)
{
    const int n = y ? qn_array_shape(y)->n : 0;
    qn_params p = {0};
    switch (n ? roll(c, 4) : 0) {
    case 1:
        for (int d = 0; d < n; d++) p.transpose.perm[d] = (d + 1) % n;
        say(c, ", result turned");
        return apply(c, QN_PRIM_TRANSPOSE, &p, y, NULL);
    case 2:
        if (qn_array_dtype(y) != QN_DTYPE_F32)
            y = qn_apply(c->scope, QN_PRIM_CAST, NULL, 1, &y, NULL, QN_DTYPE_F32);
        say(c, ", result summed");
        return apply(c, QN_PRIM_SUM, &p, y, NULL);
    default:
        return y;
    }
}

qn_array *qn_case_make(qn_gradient_case *c, const qn_case_row *row)
{
    qn_array *y = row->make ? row->make(c) : make_elementwise(c, row->prim);
    return row->kind == QN_CASE_NUMBERS && !c->as_it_is ? behind(c, y) : y;
}

int64_t qn_case_roll(qn_gradient_case *c, int64_t below)
{
    return roll(c, below);
}

qn_array *qn_case_real(qn_gradient_case *c, qn_shape shape)
{
    return real_of(c, ANY, shape);
}
