#include "tests/primitives/case_inputs.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"

/* ---- dice --------------------------------------------------------------------------------------------- */

int64_t qn_case_roll(qn_gradient_case *c, int64_t below)
{
    return (int64_t)(qn_random_bits(c->seed, c->drawn++) % (uint64_t)below);
}

static double between(qn_gradient_case *c, double low, double high)
{
    return low + (high - low) * qn_random_unit(c->seed, c->drawn++);
}

int64_t qn_case_size(qn_gradient_case *c)
{
    return 1 + qn_case_roll(c, c->limit);
}

void qn_case_say(qn_gradient_case *c, const char *fmt, ...)
{
    size_t at = strlen(c->text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(c->text + at, sizeof c->text - at, fmt, args);
    va_end(args);
}

/* ---- values ------------------------------------------------------------------------------------------- */

static void fill(qn_gradient_case *c, qn_real_values how, qn_case_base *b)
{
    for (int64_t i = 0; i < b->n; i++) {
        double x = between(c, -1.5, 1.5);
        switch (how) {
        case QN_REAL_ANY:
            break;
        case QN_REAL_POSITIVE:
            x = 1.1 + 0.4 * x;
            break;
        case QN_REAL_FROM_ZERO:
            x = copysign(0.3 + 0.7 * fabs(x), x);
            break;
        case QN_REAL_APART:
            x = 0.25 * (double)(i - b->n / 2);
            break;
        case QN_REAL_EVEN:
            x = 0.5 * round(4 * x);
            break;
        case QN_REAL_ODD:
            x = 0.5 * round(4 * x) + 0.25;
            break;
        case QN_REAL_NEGATIVE:
            x = -1 + 0.5 * x;
            break;
        }
        b->at[i] = (float)(round(256 * x) / 256); /* so that a step from it is exact, and f16 holds it */
    }
    for (int64_t i = b->n - 1; how == QN_REAL_APART && i > 0; i--) {
        const int64_t j = qn_case_roll(c, i + 1);
        const float x = b->at[i];
        b->at[i] = b->at[j];
        b->at[j] = x;
    }
}

/* ---- inputs ------------------------------------------------------------------------------------------- */

qn_array *qn_case_apply(qn_gradient_case *c, qn_prim prim, const qn_params *p, qn_array *a,
                        const qn_shape *shape)
{
    return qn_apply(c->scope, prim, p, 1, &a, shape, a ? qn_array_dtype(a) : QN_DTYPE_F32);
}

qn_array *qn_case_new_base(qn_gradient_case *c, qn_real_values how, qn_shape shape)
{
    if (c->n_bases == QN_CASE_BASES || qn_shape_elements(&shape, NULL) > QN_CASE_ELEMENTS) return NULL;
    qn_case_base *b = &c->base[c->n_bases++];
    b->n = qn_shape_elements(&shape, NULL);
    b->input = qn_input(c->scope, QN_DTYPE_F32, shape);
    fill(c, how, b);
    char text[96];
    qn_case_say(c, " %s", qn_shape_text(&shape, text, sizeof text));
    if (c->dtype == QN_DTYPE_F32) return b->input;
    return qn_apply(c->scope, QN_PRIM_CAST, NULL, 1, &b->input, NULL, c->dtype);
}

/* The base's dimension d becomes dimension perm[d] of the view. */
qn_array *qn_case_turned(qn_gradient_case *c, qn_real_values how, qn_shape shape)
{
    qn_params p = {0};
    qn_shape base = shape;
    for (int d = 0; d < shape.n; d++) p.transpose.perm[d] = d;
    for (int d = shape.n - 1; d > 0; d--) {
        const int64_t j = qn_case_roll(c, d + 1);
        const int32_t at = p.transpose.perm[d];
        p.transpose.perm[d] = p.transpose.perm[j];
        p.transpose.perm[j] = at;
    }
    for (int d = 0; d < shape.n; d++) base.dim[p.transpose.perm[d]] = shape.dim[d];
    qn_array *a = qn_case_new_base(c, how, base);
    qn_case_say(c, " turned");
    return qn_case_apply(c, QN_PRIM_TRANSPOSE, &p, a, NULL);
}

qn_array *qn_case_cut(qn_gradient_case *c, qn_real_values how, qn_shape shape)
{
    qn_params p = {0};
    qn_shape base = shape;
    for (int d = 0; d < shape.n; d++) {
        p.slice.begin[d] = qn_case_roll(c, 3);
        base.dim[d] += p.slice.begin[d] + qn_case_roll(c, 2);
    }
    if (qn_shape_elements(&base, NULL) > QN_CASE_ELEMENTS) return qn_case_new_base(c, how, shape);
    qn_array *a = qn_case_new_base(c, how, base);
    qn_case_say(c, " cut");
    return qn_case_apply(c, QN_PRIM_SLICE, &p, a, &shape);
}

qn_array *qn_case_repeated(qn_gradient_case *c, qn_real_values how, qn_shape shape)
{
    qn_shape base = shape;
    for (int d = 0; d < shape.n; d++)
        if (qn_case_roll(c, 2)) base.dim[d] = 1;
    while (base.n > 0 && base.dim[0] == 1 && qn_case_roll(c, 2)) {
        base.n--;
        memmove(base.dim, base.dim + 1, (size_t)base.n * sizeof *base.dim);
    }
    qn_array *a = qn_case_new_base(c, how, base);
    qn_case_say(c, " repeated");
    return qn_case_apply(c, QN_PRIM_BROADCAST, NULL, a, &shape);
}

/* Every other element: the first of each pair along a last dimension of two. */
static qn_array *strided(qn_gradient_case *c, qn_real_values how, qn_shape shape)
{
    if (shape.n == QN_MAX_DIMS || shape.n == 0) return qn_case_new_base(c, how, shape);
    qn_params p = {0};
    qn_shape base = shape, one = shape;
    base.dim[base.n++] = 2;
    one.dim[one.n++] = 1;
    p.slice.begin[shape.n] = qn_case_roll(c, 2);
    qn_array *a = qn_case_new_base(c, how, base);
    qn_case_say(c, " strided");
    return qn_case_apply(c, QN_PRIM_RESHAPE, NULL, qn_case_apply(c, QN_PRIM_SLICE, &p, a, &one), &shape);
}

qn_array *qn_case_real_as(qn_gradient_case *c, qn_real_values how, qn_shape shape)
{
    switch (qn_case_roll(c, 6)) {
    case 0:
        return qn_case_turned(c, how, shape);
    case 1:
        return qn_case_cut(c, how, shape);
    case 2:
        return qn_case_repeated(c, how, shape);
    case 3:
        return strided(c, how, shape);
    default:
        return qn_case_new_base(c, how, shape);
    }
}

qn_array *qn_case_reals(qn_gradient_case *c, qn_real_values how, int n, const int64_t *dims)
{
    return qn_case_real_as(c, how, qn_shape_make(n, dims));
}

qn_shape qn_case_shape(qn_gradient_case *c, int least, int most)
{
    qn_shape s = {.n = least + (int)qn_case_roll(c, most - least + 1)};
    for (int d = 0; d < s.n; d++) s.dim[d] = qn_case_size(c);
    return s;
}

qn_array *qn_case_constant(qn_gradient_case *c, qn_dtype dtype, const void *data, int n, const int64_t *dims)
{
    return qn_from_data(c->scope, dtype, n, dims, data);
}

qn_array *qn_case_whole(qn_gradient_case *c, const int32_t *x, int n, const int64_t *dims)
{
    return qn_case_constant(c, QN_DTYPE_I32, x, n, dims);
}

qn_array *qn_case_fixed(qn_gradient_case *c, double low, double high, int n, const int64_t *dims)
{
    float x[QN_CASE_ELEMENTS];
    qn_shape s = qn_shape_make(n, dims);
    for (int64_t i = 0; i < qn_shape_elements(&s, NULL) && i < QN_CASE_ELEMENTS; i++)
        x[i] = (float)between(c, low, high);
    return qn_case_constant(c, QN_DTYPE_F32, x, n, dims);
}

qn_array *qn_case_indices(qn_gradient_case *c, int64_t rows, int64_t columns, int64_t below, int distinct,
                          int n)
{
    int32_t x[QN_CASE_ELEMENTS], pool[QN_CASE_ELEMENTS];
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t j = 0; j < below; j++) pool[j] = (int32_t)j;
        for (int64_t j = 0; j < columns; j++) {
            const int64_t from = distinct ? j + qn_case_roll(c, below - j) : qn_case_roll(c, below);
            x[r * columns + j] = pool[from];
            if (distinct) pool[from] = pool[j];
        }
    }
    return qn_case_whole(c, x, n, (int64_t[]){rows, columns});
}

qn_array *qn_case_row_ids(qn_gradient_case *c, int64_t rows, int64_t below)
{
    int32_t ids[64];
    for (int64_t i = 0; i < rows; i++) ids[i] = (int32_t)qn_case_roll(c, below);
    return qn_case_whole(c, ids, 1, &rows);
}

int64_t qn_case_ragged(qn_gradient_case *c, qn_array **row_begin, qn_array **positions)
{
    int32_t begin[8] = {0}, at[64];
    const int64_t n = 1 + qn_case_roll(c, 2), ends = n + 1;
    for (int64_t i = 0; i < n; i++) {
        begin[i + 1] = begin[i] + (int32_t)qn_case_size(c);
        const int32_t first = (int32_t)qn_case_roll(c, 5);
        for (int32_t r = begin[i]; r < begin[i + 1]; r++) at[r] = first + r - begin[i];
    }
    const int64_t rows = begin[n];
    c->sizes.v[QN_SYM_R] = rows;
    c->sizes.v[QN_SYM_S] = n;
    qn_case_say(c, " %lld sequence(s) of %lld rows", (long long)n, (long long)rows);
    *row_begin = qn_case_whole(c, begin, 1, &ends);
    if (positions) *positions = qn_case_whole(c, at, 1, &rows);
    return rows;
}

qn_array *qn_case_call(qn_gradient_case *c, qn_prim prim, const qn_params *p, int n, qn_array *const *in)
{
    return qn_apply(c->scope, prim, p, n, in, NULL, QN_DTYPE_F32);
}

qn_array *qn_case_real(qn_gradient_case *c, qn_shape shape)
{
    return qn_case_real_as(c, QN_REAL_ANY, shape);
}
