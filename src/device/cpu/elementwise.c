/* Copies, casts and concatenation. */
#include <string.h>

#include "device/cpu/cpu.h"
#include "prim/convert.h"
#include "prim/dtype.h"
#include "quant/types.h"

/* ---- copies ------------------------------------------------------------------------------------------- */

static void copy_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *o = &s->plan.out, *a = &s->plan.in[0];
    const int64_t size = (int64_t)qn_type_get(o->dtype)->block_bytes;
    int64_t begin, end, row = qn_shape_row(&o->shape), index[QN_MAX_DIMS] = {0};
    int n = o->shape.n;
    if (n == 0) {
        if (run->thread == 0) memcpy(s->out, s->in[0], (size_t)size);
        return;
    }
    qn_cpu_share(run, qn_cpu_rows(run, o), &begin, &end);
    int64_t inner = n > 1 && a->stride[n - 1] == 1 ? a->shape.dim[n - 1] : 1;
    int outer = inner > 1 ? n - 1 : n;
    index[0] = begin;
    char *out = s->out + begin * row * size;
    while (index[0] < end && row > 0) {
        int64_t at = 0;
        for (int d = 0; d < outer; d++) at += index[d] * a->stride[d];
        if (inner == 1 && size == 4)
            memcpy(out, s->in[0] + at * 4, 4);
        else
            memcpy(out, s->in[0] + at * size, (size_t)(inner * size));
        out += inner * size;
        int d = outer - 1;
        while (d > 0 && ++index[d] == o->shape.dim[d]) index[d--] = 0;
        if (d == 0) index[0]++;
    }
}

const qn_cpu_prim qn_cpu_COPY = {copy_run, NULL};

static int is_half(qn_dtype d)
{
    return d == QN_DTYPE_F16 || d == QN_DTYPE_BF16;
}

static void cast_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *o = &s->plan.out, *a = &s->plan.in[0];
    int64_t begin, end, row = qn_shape_row(&o->shape);
    const int64_t to = (int64_t)qn_type_get(o->dtype)->block_bytes,
                  from = (int64_t)qn_type_get(a->dtype)->block_bytes;
    qn_cpu_share(run, qn_cpu_rows(run, o), &begin, &end);
    const int64_t stride = o->shape.n ? a->stride[0] : 0;
    int64_t lines = end - begin; /* rows that lie behind each other are one */
    if (stride == row && lines > 0) {
        row *= lines;
        lines = 1;
    }
    for (int64_t l = 0; l < lines; l++) {
        const char *x = s->in[0] + (begin + l) * stride * from;
        char *y = s->out + (begin * qn_shape_row(&o->shape) + l * row) * to;
        if (o->dtype == QN_DTYPE_F32 && is_half(a->dtype))
            run->kernels->to_f32(a->dtype, x, (float *)y, row);
        else if (a->dtype == QN_DTYPE_F32 && is_half(o->dtype))
            run->kernels->from_f32(o->dtype, (const float *)x, y, row);
        else
            qn_convert(a->dtype, x, o->dtype, y, row);
    }
}

static qn_status cast_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                              size_t *shared_bytes)
{
    qn_dtype from = step->plan.in[0].dtype, to = step->plan.out.dtype;
    const qn_plan_slot *slot = &plan->slots[step->plan.in[0].slot];
    if (!qn_dtype_is_plain(from) || !qn_dtype_is_plain(to) || (slot->buffer && slot->buffer->layout != 0))
        return qn_fail(QN_E_UNSUPPORTED, "cast from %s to %s", qn_dtype_name(from), qn_dtype_name(to));
    return QN_OK;
}

const qn_cpu_prim qn_cpu_CAST = {cast_run, cast_prepare};

static void concat_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *o = &s->plan.out;
    int n = o->shape.n;
    const int64_t size = (int64_t)qn_type_get(o->dtype)->block_bytes;
    int64_t begin, end, lines = 1, width = o->shape.dim[n - 1];
    for (int d = 1; d < n - 1; d++) lines *= o->shape.dim[d];
    if (n == 1) { /* a vector is one line */
        if (run->thread != 0) return;
        begin = 0;
        end = 1;
    } else {
        qn_cpu_share(run, qn_cpu_rows(run, o), &begin, &end);
    }
    for (int64_t r = begin; r < end; r++)
        for (int64_t l = 0; l < lines; l++) {
            char *out = s->out + (r * lines + l) * width * size;
            for (int i = 0; i < s->plan.n_in; i++) {
                int64_t w = s->plan.in[i].shape.dim[n - 1];
                int64_t at = (n > 1 ? r * s->plan.in[i].stride[0] : 0) + l * w;
                memcpy(out, s->in[i] + at * size, (size_t)(w * size));
                out += w * size;
            }
        }
}

const qn_cpu_prim qn_cpu_CONCAT = {concat_run, NULL};
