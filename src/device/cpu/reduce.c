/* Sums and maxima over one axis. Over the last axis: the kernels' 16 lanes; over another one: line after line
 * in rising order. */
#include <string.h>

#include "device/cpu/wide.h"

static void reduce(const qn_cpu_run *run, const qn_cpu_step *s, int is_max)
{
    const qn_operand *a = &s->plan.in[0], *o = &s->plan.out;
    int n = a->shape.n, axis = s->plan.params.reduce.axis;
    if (a->dtype != QN_DTYPE_F32) {
        qn_cpu_typed_reduce(run, s);
        return;
    }
    int64_t length = qn_shape_dim(&a->shape, axis, &run->sizes),
            total = qn_shape_elements(&o->shape, &run->sizes), begin, end;
    qn_cpu_share(run, total, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t rest = i, at = 0;
        for (int d = n - 1; d >= 0; d--) {
            int64_t size = qn_shape_dim(&o->shape, d, &run->sizes);
            at += rest % size * a->stride[d];
            rest /= size;
        }
        const float *x = (const float *)s->in[0] + at;
        int64_t stride = a->stride[axis];
        float r;
        if (stride == 1) {
            r = is_max ? run->kernels->max(x, length) : run->kernels->sum(x, length);
        } else {
            r = is_max ? x[0] : 0;
            for (int64_t j = 0; j < length; j++) {
                float v = x[j * stride];
                r = !is_max ? r + v : v > r || v != v ? v : r;
            }
        }
        ((float *)s->out)[i] = r;
    }
}

static void sum_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    reduce(run, s, 0);
}

static void max_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    reduce(run, s, 1);
}

const qn_cpu_prim qn_cpu_SUM = {sum_run, NULL};
const qn_cpu_prim qn_cpu_MAX = {max_run, NULL};
