/* Chains of element-wise primitives, tile by tile in L1; copies, casts and concatenation. */
#include <string.h>

#include "device/cpu/cpu.h"
#include "prim/convert.h"
#include "prim/dtype.h"
#include "quant/types.h"

enum { TILE = 512 };

static const int kernel_of[QN_PRIM_COUNT] = {
#define E(name, inputs) [QN_PRIM_##name] = QN_EW_##name,
#include "prim/primitives.def"
};

static qn_status fused_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                               size_t *shared_bytes)
{
    size_t need = (size_t)QN_FUSED_MAX * TILE * sizeof(float);
    if (*scratch_bytes < need) *scratch_bytes = need;
    return QN_OK;
}

/* Runs the chain over n elements; input i starts at in[i] and moves by step[i] (0 or 1). */
static void run_chain(const qn_cpu_run *run, const qn_cpu_step *s, const float *const *in,
                      const int64_t *step, float *out, int64_t n)
{
    const qn_fused_op *op = s->plan.params.fused.op;
    int n_ops = s->plan.params.fused.n;
    float *tiles = (float *)run->scratch;
    for (int64_t at = 0; at < n; at += TILE) {
        int64_t m = n - at < TILE ? n - at : TILE;
        for (int i = 0; i < n_ops; i++) {
            const float *arg[2];
            int64_t arg_step[2];
            int index[2] = {op[i].a, op[i].b};
            for (int k = 0; k < 2; k++) {
                if (index[k] >= 0) {
                    arg[k] = tiles + (int64_t)index[k] * TILE;
                    arg_step[k] = 1;
                } else {
                    int j = ~index[k];
                    arg[k] = in[j] + at * step[j];
                    arg_step[k] = step[j];
                }
            }
            float *to = i + 1 == n_ops ? out + at : tiles + (int64_t)i * TILE;
            run->kernels->ew[kernel_of[op[i].op]](to, arg[0], arg_step[0], arg[1], arg_step[1], m);
        }
    }
}

/* The first dimension of the longest tail over which every input is contiguous, or constant. */
static int inner_from(const qn_cpu_step *s, int64_t *step)
{
    int n = s->plan.out.shape.n, from = n;
    for (int i = 0; i < s->plan.n_in; i++) step[i] = -1;
    int64_t run = 1;
    for (int d = n - 1; d >= 0; d--) {
        int64_t size = s->plan.out.shape.dim[d];
        int single = size == 1 && !(d == 0 && qn_shape_is_symbolic(&s->plan.out.shape));
        int64_t next[QN_MAX_INPUTS];
        for (int i = 0; i < s->plan.n_in; i++) {
            int64_t stride = s->plan.in[i].stride[d];
            next[i] = step[i];
            if (single) continue;
            int64_t kind = stride == 0 ? 0 : stride == run ? 1 : 2;
            if (kind == 2 || (step[i] >= 0 && step[i] != kind)) return from;
            next[i] = kind;
        }
        memcpy(step, next, (size_t)s->plan.n_in * sizeof *step);
        run *= size;
        from = d;
    }
    return from;
}

static void fused_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *o = &s->plan.out;
    int64_t begin, end, step[QN_MAX_INPUTS];
    int n = o->shape.n, from = inner_from(s, step), n_in = s->plan.n_in;
    const float *in[QN_MAX_INPUTS];
    for (int i = 0; i < n_in; i++)
        if (step[i] < 0) step[i] = 0;
    qn_cpu_share(run, qn_cpu_rows(run, o), &begin, &end);
    if (begin >= end) return;
    int64_t row = qn_shape_row(&o->shape);
    if (from == 0) { /* one run over all of this worker's rows */
        for (int i = 0; i < n_in; i++) in[i] = (const float *)s->in[i] + begin * row * step[i];
        run_chain(run, s, in, step, (float *)s->out + begin * row, (end - begin) * row);
        return;
    }
    int64_t inner = 1, index[QN_MAX_DIMS] = {begin};
    for (int d = from; d < n; d++) inner *= o->shape.dim[d];
    for (float *out = (float *)s->out + begin * row; index[0] < end; out += inner) {
        for (int i = 0; i < n_in; i++) {
            int64_t at = 0;
            for (int d = 0; d < from; d++) at += index[d] * s->plan.in[i].stride[d];
            in[i] = (const float *)s->in[i] + at;
        }
        run_chain(run, s, in, step, out, inner);
        int d = from - 1;
        while (d > 0 && ++index[d] == o->shape.dim[d]) index[d--] = 0;
        if (d == 0) index[0]++;
    }
}

const qn_cpu_prim qn_cpu_FUSED = {fused_run, fused_prepare};

/* ---- copies ------------------------------------------------------------------------------------------- */

static void copy_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *o = &s->plan.out, *a = &s->plan.in[0];
    size_t size = qn_type_get(o->dtype)->block_bytes;
    int64_t begin, end, row = qn_shape_row(&o->shape), index[QN_MAX_DIMS] = {0};
    int n = o->shape.n;
    if (n == 0) {
        if (run->thread == 0) memcpy(s->out, s->in[0], size);
        return;
    }
    qn_cpu_share(run, qn_cpu_rows(run, o), &begin, &end);
    int64_t inner = n > 1 && a->stride[n - 1] == 1 ? a->shape.dim[n - 1] : 1;
    int outer = inner > 1 ? n - 1 : n;
    index[0] = begin;
    char *out = s->out + (size_t)(begin * row) * size;
    while (index[0] < end && row > 0) {
        int64_t at = 0;
        for (int d = 0; d < outer; d++) at += index[d] * a->stride[d];
        memcpy(out, s->in[0] + (size_t)at * size, (size_t)inner * size);
        out += (size_t)inner * size;
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
    size_t to = qn_type_get(o->dtype)->block_bytes, from = qn_type_get(a->dtype)->block_bytes;
    qn_cpu_share(run, qn_cpu_rows(run, o), &begin, &end);
    const int64_t stride = o->shape.n ? a->stride[0] : 0;
    int64_t lines = end - begin; /* rows that lie behind each other are one */
    if (stride == row && lines > 0) {
        row *= lines;
        lines = 1;
    }
    for (int64_t l = 0; l < lines; l++) {
        const char *x = s->in[0] + (size_t)((begin + l) * stride) * from;
        char *y = s->out + (size_t)(begin * qn_shape_row(&o->shape) + l * row) * to;
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
    size_t size = qn_type_get(o->dtype)->block_bytes;
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
            char *out = s->out + (size_t)((r * lines + l) * width) * size;
            for (int i = 0; i < s->plan.n_in; i++) {
                int64_t w = s->plan.in[i].shape.dim[n - 1];
                int64_t at = (n > 1 ? r * s->plan.in[i].stride[0] : 0) + l * w;
                memcpy(out, s->in[i] + (size_t)at * size, (size_t)w * size);
                out += (size_t)w * size;
            }
        }
}

const qn_cpu_prim qn_cpu_CONCAT = {concat_run, NULL};
