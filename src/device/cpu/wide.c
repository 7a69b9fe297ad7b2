#include "device/cpu/wide.h"

#include <string.h>

#include "quant/types.h"

qn_wide_kind qn_wide_kind_of(qn_dtype dtype)
{
    switch (dtype) {
    case QN_DTYPE_U8:
    case QN_DTYPE_U16:
    case QN_DTYPE_U32:
    case QN_DTYPE_U64:
        return QN_WIDE_UNSIGNED;
    case QN_DTYPE_F16:
    case QN_DTYPE_BF16:
    case QN_DTYPE_F32:
    case QN_DTYPE_F64:
        return QN_WIDE_REAL;
    default:
        return QN_WIDE_SIGNED;
    }
}

size_t qn_wide_bytes(qn_dtype dtype)
{
    return qn_type_get(dtype)->block_bytes;
}

/* ---- one type ----------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) qn_wide get(qn_dtype dtype, const char *from)
{
    union {
        uint8_t u8;
        uint16_t u16;
        uint32_t u32;
        uint64_t u64;
        int8_t i8;
        int16_t i16;
        int32_t i32;
        int64_t i64;
        float f32;
        double f64;
    } v;
    qn_wide w = {0};
    switch (dtype) {
    case QN_DTYPE_BOOL:
        memcpy(&v, from, 1);
        w.i = v.u8 != 0;
        break;
    case QN_DTYPE_U8:
        memcpy(&v, from, 1);
        w.u = v.u8;
        break;
    case QN_DTYPE_U16:
        memcpy(&v, from, 2);
        w.u = v.u16;
        break;
    case QN_DTYPE_U32:
        memcpy(&v, from, 4);
        w.u = v.u32;
        break;
    case QN_DTYPE_U64:
        memcpy(&v, from, 8);
        w.u = v.u64;
        break;
    case QN_DTYPE_I8:
        memcpy(&v, from, 1);
        w.i = v.i8;
        break;
    case QN_DTYPE_I16:
        memcpy(&v, from, 2);
        w.i = v.i16;
        break;
    case QN_DTYPE_I32:
        memcpy(&v, from, 4);
        w.i = v.i32;
        break;
    case QN_DTYPE_I64:
        memcpy(&v, from, 8);
        w.i = v.i64;
        break;
    case QN_DTYPE_F16:
        memcpy(&v, from, 2);
        w.f = (double)qn_f16_to_f32(v.u16);
        break;
    case QN_DTYPE_BF16:
        memcpy(&v, from, 2);
        w.f = (double)qn_bf16_to_f32(v.u16);
        break;
    case QN_DTYPE_F32:
        memcpy(&v, from, 4);
        w.f = (double)v.f32;
        break;
    default:
        memcpy(&v, from, 8);
        w.f = v.f64;
        break;
    }
    return w;
}

/* Integers are cut to their low bits; a double that is no float is rounded. */
static inline __attribute__((always_inline)) void put(qn_dtype dtype, qn_wide w, char *to)
{
    float f;
    uint16_t h;
    uint8_t b;
    switch (dtype) {
    case QN_DTYPE_BOOL:
        b = w.i != 0;
        memcpy(to, &b, 1);
        break;
    case QN_DTYPE_U8:
    case QN_DTYPE_I8:
        b = (uint8_t)w.u;
        memcpy(to, &b, 1);
        break;
    case QN_DTYPE_U16:
    case QN_DTYPE_I16:
        h = (uint16_t)w.u;
        memcpy(to, &h, 2);
        break;
    case QN_DTYPE_U32:
    case QN_DTYPE_I32: {
        uint32_t u = (uint32_t)w.u;
        memcpy(to, &u, 4);
        break;
    }
    case QN_DTYPE_F16:
        h = qn_f32_to_f16((float)w.f);
        memcpy(to, &h, 2);
        break;
    case QN_DTYPE_BF16:
        h = qn_f32_to_bf16((float)w.f);
        memcpy(to, &h, 2);
        break;
    case QN_DTYPE_F32:
        f = (float)w.f;
        memcpy(to, &f, 4);
        break;
    default: /* U64, I64, F64 */
        memcpy(to, &w, 8);
        break;
    }
}

/* ---- lines of one type: the type is a constant in each loop ------------------------------------------- */

static inline __attribute__((always_inline)) void load(qn_dtype dtype, int64_t bytes, const char *from,
                                                       int64_t stride, int64_t n, qn_wide *to)
{
    for (int64_t i = 0; i < n; i++) to[i] = get(dtype, from + i * stride * bytes);
}

static inline __attribute__((always_inline)) void store(qn_dtype dtype, int64_t bytes, const qn_wide *from,
                                                        int64_t n, char *to, int64_t stride)
{
    for (int64_t i = 0; i < n; i++) put(dtype, from[i], to + i * stride * bytes);
}

void qn_wide_load(qn_dtype dtype, const char *from, int64_t stride, int64_t n, qn_wide *to)
{
    switch (dtype) {
    case QN_DTYPE_BOOL:
        load(QN_DTYPE_BOOL, 1, from, stride, n, to);
        break;
    case QN_DTYPE_U8:
        load(QN_DTYPE_U8, 1, from, stride, n, to);
        break;
    case QN_DTYPE_U16:
        load(QN_DTYPE_U16, 2, from, stride, n, to);
        break;
    case QN_DTYPE_U32:
        load(QN_DTYPE_U32, 4, from, stride, n, to);
        break;
    case QN_DTYPE_U64:
        load(QN_DTYPE_U64, 8, from, stride, n, to);
        break;
    case QN_DTYPE_I8:
        load(QN_DTYPE_I8, 1, from, stride, n, to);
        break;
    case QN_DTYPE_I16:
        load(QN_DTYPE_I16, 2, from, stride, n, to);
        break;
    case QN_DTYPE_I32:
        load(QN_DTYPE_I32, 4, from, stride, n, to);
        break;
    case QN_DTYPE_I64:
        load(QN_DTYPE_I64, 8, from, stride, n, to);
        break;
    case QN_DTYPE_F16:
        load(QN_DTYPE_F16, 2, from, stride, n, to);
        break;
    case QN_DTYPE_BF16:
        load(QN_DTYPE_BF16, 2, from, stride, n, to);
        break;
    case QN_DTYPE_F32:
        load(QN_DTYPE_F32, 4, from, stride, n, to);
        break;
    default:
        load(QN_DTYPE_F64, 8, from, stride, n, to);
        break;
    }
}

void qn_wide_store(qn_dtype dtype, const qn_wide *from, int64_t n, char *to, int64_t stride)
{
    switch (dtype) {
    case QN_DTYPE_BOOL:
        store(QN_DTYPE_BOOL, 1, from, n, to, stride);
        break;
    case QN_DTYPE_U8:
    case QN_DTYPE_I8:
        store(QN_DTYPE_I8, 1, from, n, to, stride);
        break;
    case QN_DTYPE_U16:
    case QN_DTYPE_I16:
        store(QN_DTYPE_I16, 2, from, n, to, stride);
        break;
    case QN_DTYPE_U32:
    case QN_DTYPE_I32:
        store(QN_DTYPE_I32, 4, from, n, to, stride);
        break;
    case QN_DTYPE_F16:
        store(QN_DTYPE_F16, 2, from, n, to, stride);
        break;
    case QN_DTYPE_BF16:
        store(QN_DTYPE_BF16, 2, from, n, to, stride);
        break;
    case QN_DTYPE_F32:
        store(QN_DTYPE_F32, 4, from, n, to, stride);
        break;
    default:
        store(QN_DTYPE_F64, 8, from, n, to, stride);
        break;
    }
}

/* ---- lines of a step ---------------------------------------------------------------------------------- */

/* The first dimension from which on all of an input lies one stride apart, as the output does. */
static int line_from(const qn_operand *o, const qn_operand *in, int n_in)
{
    int from = o->shape.n - 1;
    for (; from > 0; from--)
        for (int k = 0; k < n_in; k++)
            if (in[k].stride[from - 1] != in[k].stride[from] * o->shape.dim[from]) return from;
    return from < 0 ? 0 : from;
}

void qn_wide_each_line(const qn_cpu_run *run, const qn_cpu_step *s, qn_wide_line *fn)
{
    const qn_operand *o = &s->plan.out;
    const int n = o->shape.n, n_in = s->plan.n_in;
    int64_t begin, end, stride[QN_MAX_INPUTS] = {0}, index[QN_MAX_DIMS] = {0}, length = 1;
    const int64_t row = qn_shape_row(&o->shape), out_bytes = (int64_t)qn_wide_bytes(o->dtype);
    char *in[QN_MAX_INPUTS];
    qn_cpu_share(run, qn_cpu_rows(run, o), &begin, &end);
    if (begin >= end || row == 0) return;
    const int from = line_from(o, s->plan.in, n_in);
    for (int k = 0; k < n_in && n; k++) stride[k] = s->plan.in[k].stride[n - 1];
    for (int d = from; d < n; d++) length *= d == 0 ? end - begin : o->shape.dim[d];
    index[0] = begin;
    char *out = s->out + begin * row * out_bytes;
    for (int64_t left = (end - begin) * row; left > 0; left -= length, out += length * out_bytes) {
        for (int k = 0; k < n_in; k++) {
            int64_t at = 0;
            for (int d = 0; d < (from ? from : n > 0); d++) at += index[d] * s->plan.in[k].stride[d];
            in[k] = s->in[k] + at * (int64_t)qn_wide_bytes(s->plan.in[k].dtype);
        }
        fn(run, s, out, in, stride, length);
        int d = from - 1;
        while (d > 0 && ++index[d] == o->shape.dim[d]) index[d--] = 0;
        if (d == 0) index[0]++;
    }
}
