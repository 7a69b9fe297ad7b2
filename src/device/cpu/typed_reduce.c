/* Along one axis: sums, products, extremes and their places, running sums and the like, of numbers of any
 * type. Elements go in rising order (falling for a scan in reverse) one after the other, f32 in double; a
 * line belongs to one worker. */
#include <math.h>

#include "device/cpu/wide.h"

/* Where the i-th line of an array lies: i counts the elements of `shape`, whose size along `axis` is taken
 * for 1. */
static int64_t line_at(const qn_cpu_run *run, const qn_shape *shape, int axis, const int64_t *stride,
                       int64_t i)
{
    int64_t at = 0;
    for (int d = shape->n - 1; d >= 0; d--) {
        if (d == axis) continue;
        const int64_t size = qn_shape_dim(shape, d, &run->sizes);
        at += i % size * stride[d];
        i /= size;
    }
    return at;
}

static int64_t lines_of(const qn_cpu_run *run, const qn_shape *shape, int axis)
{
    int64_t n = 1;
    for (int d = 0; d < shape->n; d++)
        if (d != axis) n *= qn_shape_dim(shape, d, &run->sizes);
    return n;
}

typedef enum { SUM, PROD, MAX, MIN } way;

static qn_wide start_of(way how, qn_dtype dtype)
{
    const qn_wide_kind kind = qn_wide_kind_of(dtype);
    const int bits = 8 * (int)qn_wide_bytes(dtype);
    qn_wide w = {0};
    if (kind == QN_WIDE_REAL) {
        w.f = how == SUM ? 0 : how == PROD ? 1 : how == MAX ? -(double)INFINITY : (double)INFINITY;
    } else if (how == PROD) {
        w.u = 1;
    } else if (how == MIN) {
        w.u = dtype == QN_DTYPE_BOOL ? 1 : UINT64_MAX >> (64 - bits + (kind == QN_WIDE_SIGNED));
    } else if (how == MAX && kind == QN_WIDE_SIGNED && dtype != QN_DTYPE_BOOL) {
        w.i = -(int64_t)(UINT64_MAX >> (65 - bits)) - 1;
    }
    return w;
}

static inline qn_wide join(way how, qn_wide_kind kind, qn_wide a, qn_wide b)
{
    switch (how) {
    case SUM:
        if (kind == QN_WIDE_REAL)
            a.f += b.f;
        else
            a.u += b.u;
        return a;
    case PROD:
        if (kind == QN_WIDE_REAL)
            a.f *= b.f;
        else
            a.u *= b.u;
        return a;
    case MAX:
        if (kind == QN_WIDE_REAL) return a.f != a.f ? a : b.f != b.f || b.f > a.f ? b : a;
        return (kind == QN_WIDE_SIGNED ? b.i > a.i : b.u > a.u) ? b : a;
    default:
        if (kind == QN_WIDE_REAL) return a.f != a.f ? a : b.f != b.f || b.f < a.f ? b : a;
        return (kind == QN_WIDE_SIGNED ? b.i < a.i : b.u < a.u) ? b : a;
    }
}

/* ---- one number of a line ----------------------------------------------------------------------------- */

void qn_cpu_typed_reduce(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *a = &s->plan.in[0], *o = &s->plan.out;
    const int axis = s->plan.params.reduce.axis;
    const way how = s->plan.prim == QN_PRIM_SUM    ? SUM
                    : s->plan.prim == QN_PRIM_PROD ? PROD
                    : s->plan.prim == QN_PRIM_MAX  ? MAX
                                                   : MIN;
    const qn_wide_kind kind = qn_wide_kind_of(a->dtype);
    const int64_t length = qn_shape_dim(&a->shape, axis, &run->sizes), stride = a->stride[axis],
                  bytes = (int64_t)qn_wide_bytes(a->dtype);
    int64_t begin, end;
    qn_wide tile[QN_WIDE_TILE];
    qn_cpu_share(run, lines_of(run, &a->shape, axis), &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const char *x = s->in[0] + line_at(run, &a->shape, axis, a->stride, i) * bytes;
        qn_wide r = start_of(how, a->dtype);
        for (int64_t at = 0; at < length; at += QN_WIDE_TILE) {
            const int64_t m = length - at < QN_WIDE_TILE ? length - at : QN_WIDE_TILE;
            qn_wide_load(a->dtype, x + at * stride * bytes, stride, m, tile);
            for (int64_t j = 0; j < m; j++) r = join(how, kind, r, tile[j]);
        }
        qn_wide_store(o->dtype, &r, 1, s->out + i * bytes, 1);
    }
}

const qn_cpu_prim qn_cpu_MIN = {qn_cpu_typed_reduce, NULL};
const qn_cpu_prim qn_cpu_PROD = {qn_cpu_typed_reduce, NULL};

/* The first of the largest, or smallest; the first NaN where there is one. */
static void arg_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *a = &s->plan.in[0];
    const int axis = s->plan.params.reduce.axis;
    const way how = s->plan.params.reduce.least ? MIN : MAX;
    const qn_wide_kind kind = qn_wide_kind_of(a->dtype);
    const int64_t length = qn_shape_dim(&a->shape, axis, &run->sizes), stride = a->stride[axis],
                  bytes = (int64_t)qn_wide_bytes(a->dtype);
    int64_t begin, end;
    qn_wide tile[QN_WIDE_TILE];
    qn_cpu_share(run, lines_of(run, &a->shape, axis), &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const char *x = s->in[0] + line_at(run, &a->shape, axis, a->stride, i) * bytes;
        int64_t where = 0;
        qn_wide best = {0};
        for (int64_t at = 0; at < length; at += QN_WIDE_TILE) {
            const int64_t m = length - at < QN_WIDE_TILE ? length - at : QN_WIDE_TILE;
            qn_wide_load(a->dtype, x + at * stride * bytes, stride, m, tile);
            if (at == 0) best = tile[0];
            for (int64_t j = 0; j < m; j++) {
                const qn_wide r = join(how, kind, best, tile[j]);
                if (r.u == best.u) continue;
                where = at + j;
                best = r;
            }
        }
        ((int32_t *)(void *)s->out)[i] = (int32_t)where;
    }
}

const qn_cpu_prim qn_cpu_ARG_MAX = {arg_run, NULL};

/* ---- all numbers of a line ---------------------------------------------------------------------------- */

static void scan_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    static const way ways[] = {
        [QN_SCAN_SUM] = SUM, [QN_SCAN_PROD] = PROD, [QN_SCAN_MAX] = MAX, [QN_SCAN_MIN] = MIN};
    const qn_operand *a = &s->plan.in[0], *o = &s->plan.out;
    const int axis = s->plan.params.scan.axis, reverse = s->plan.params.scan.reverse,
              exclusive = s->plan.params.scan.exclusive;
    const way how = ways[s->plan.params.scan.how];
    const qn_wide_kind kind = qn_wide_kind_of(a->dtype);
    const int64_t length = qn_shape_dim(&a->shape, axis, &run->sizes),
                  bytes = (int64_t)qn_wide_bytes(a->dtype), first = reverse ? length - 1 : 0;
    const int64_t in_stride = reverse ? -a->stride[axis] : a->stride[axis],
                  out_stride = reverse ? -o->stride[axis] : o->stride[axis];
    int64_t begin, end;
    qn_wide tile[QN_WIDE_TILE];
    qn_cpu_share(run, lines_of(run, &a->shape, axis), &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const char *x =
            s->in[0] + (line_at(run, &a->shape, axis, a->stride, i) + first * a->stride[axis]) * bytes;
        char *y = s->out + (line_at(run, &o->shape, axis, o->stride, i) + first * o->stride[axis]) * bytes;
        qn_wide r = start_of(how, a->dtype);
        for (int64_t at = 0; at < length; at += QN_WIDE_TILE) {
            const int64_t m = length - at < QN_WIDE_TILE ? length - at : QN_WIDE_TILE;
            qn_wide_load(a->dtype, x + at * in_stride * bytes, in_stride, m, tile);
            for (int64_t j = 0; j < m; j++) {
                const qn_wide before = r;
                r = join(how, kind, r, tile[j]);
                tile[j] = exclusive ? before : r;
            }
            qn_wide_store(o->dtype, tile, m, y + at * out_stride * bytes, out_stride);
        }
    }
}

const qn_cpu_prim qn_cpu_SCAN = {scan_run, NULL};
