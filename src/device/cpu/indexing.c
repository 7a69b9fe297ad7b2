/* Rows by ids, elements along a row, the largest k. Ids that come from a user are checked before they get
 * here. */
#include <string.h>

#include "device/cpu/wide.h"
#include "quant/types.h"

static void take_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *t = &s->plan.in[0];
    const int32_t *ids = (const int32_t *)s->in[1];
    const int64_t bytes = (int64_t)qn_wide_bytes(t->dtype);
    int64_t begin, end, row = qn_shape_row(&t->shape);
    qn_cpu_share(run, qn_cpu_rows(run, &s->plan.out), &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        float *out = (float *)s->out + i * row;
        if (s->weight) {
            qn_cpu_warm(run->kernels, s->weight, 0, ids[i] / QN_PANEL, ids[i] / QN_PANEL + 1, run->scratch);
            run->kernels->unpack_row(t->dtype, row, s->weight->data, ids[i], out);
            continue;
        }
        const char *from = s->in[0] + ids[i] * (t->shape.n > 1 ? t->stride[0] : 1) * bytes;
        if (t->dtype == s->plan.out.dtype)
            memcpy(s->out + i * row * bytes, from, (size_t)(row * bytes));
        else
            run->kernels->to_f32(t->dtype, from, out, row);
    }
}

static qn_status take_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                              size_t *shared_bytes)
{
    const qn_operand *t = &step->plan.in[0];
    const qn_plan_slot *slot = &plan->slots[t->slot];
    if (slot->buffer && slot->buffer->layout == QN_CPU_LAYOUT_PANELS) {
        if (t->offset || t->shape.n != 2 || t->stride[0] != t->shape.dim[1] || t->stride[1] != 1)
            return qn_fail(QN_E_UNSUPPORTED, "take from a part of a packed weight");
        step->weight = slot->buffer;
        size_t need = qn_cpu_warm_scratch_bytes(step->weight);
        if (*scratch_bytes < need) *scratch_bytes = need;
    } else if (t->dtype > QN_DTYPE_F64) {
        return qn_fail(QN_E_UNSUPPORTED, "take from %s", qn_dtype_name(t->dtype));
    }
    return QN_OK;
}

const qn_cpu_prim qn_cpu_TAKE = {take_run, take_prepare};

/* to[0..n) += from[0..n), of numbers that are not f32 */
static void add_typed(qn_dtype dtype, char *to, const char *from, int64_t n)
{
    const qn_wide_kind kind = qn_wide_kind_of(dtype);
    const int64_t bytes = (int64_t)qn_wide_bytes(dtype);
    qn_wide a[QN_WIDE_TILE], b[QN_WIDE_TILE];
    for (int64_t at = 0; at < n; at += QN_WIDE_TILE) {
        const int64_t m = n - at < QN_WIDE_TILE ? n - at : QN_WIDE_TILE;
        qn_wide_load(dtype, to + at * bytes, 1, m, a);
        qn_wide_load(dtype, from + at * bytes, 1, m, b);
        for (int64_t i = 0; i < m; i++) {
            if (kind == QN_WIDE_REAL)
                a[i].f += b[i].f;
            else
                a[i].u += b[i].u;
        }
        qn_wide_store(dtype, a, m, to + at * bytes, 1);
    }
}

static void scatter_add_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *x = &s->plan.in[0];
    const int32_t *ids = (const int32_t *)s->in[1];
    int64_t begin, end, row = qn_shape_row(&x->shape), n = qn_cpu_rows(run, x),
                        bytes = (int64_t)qn_wide_bytes(x->dtype);
    qn_cpu_share(run, qn_cpu_rows(run, &s->plan.out), &begin, &end);
    memset(s->out + begin * row * bytes, 0, (size_t)((end - begin) * row * bytes));
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < begin || ids[i] >= end) continue;
        char *out = s->out + ids[i] * row * bytes;
        const char *from = s->in[0] + i * (x->shape.n > 1 ? x->stride[0] : 1) * bytes;
        if (x->dtype == QN_DTYPE_F32)
            run->kernels->ew[QN_EW_ADD]((float *)out, (const float *)out, 1, (const float *)from, 1, row);
        else
            add_typed(x->dtype, out, from, row);
    }
}

const qn_cpu_prim qn_cpu_SCATTER_ADD = {scatter_add_run, NULL};

static void take_along_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const int64_t k = s->plan.out.shape.dim[1], bytes = (int64_t)qn_wide_bytes(s->plan.out.dtype);
    int64_t begin, end;
    qn_cpu_share(run, qn_cpu_rows(run, &s->plan.out), &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const int32_t *ids = (const int32_t *)s->in[1] + i * s->plan.in[1].stride[0];
        const char *from = s->in[0] + i * s->plan.in[0].stride[0] * bytes;
        char *out = s->out + i * k * bytes;
        if (bytes == 4)
            for (int64_t j = 0; j < k; j++) memcpy(out + j * 4, from + (int64_t)ids[j] * 4, 4);
        else
            for (int64_t j = 0; j < k; j++) memcpy(out + j * bytes, from + ids[j] * bytes, (size_t)bytes);
    }
}

const qn_cpu_prim qn_cpu_TAKE_ALONG = {take_along_run, NULL};

static void scatter_along_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const int64_t n = s->plan.out.shape.dim[1], k = s->plan.in[0].shape.dim[1],
                  bytes = (int64_t)qn_wide_bytes(s->plan.out.dtype);
    int64_t begin, end;
    qn_cpu_share(run, qn_cpu_rows(run, &s->plan.out), &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const int32_t *ids = (const int32_t *)s->in[1] + i * s->plan.in[1].stride[0];
        const char *from = s->in[0] + i * s->plan.in[0].stride[0] * bytes;
        char *out = s->out + i * n * bytes;
        memset(out, 0, (size_t)(n * bytes));
        for (int64_t j = 0; j < k; j++) {
            if (s->plan.out.dtype == QN_DTYPE_F32)
                ((float *)out)[ids[j]] += ((const float *)from)[j];
            else
                add_typed(s->plan.out.dtype, out + ids[j] * bytes, from + j * bytes, 1);
        }
    }
}

const qn_cpu_prim qn_cpu_SCATTER_ALONG = {scatter_along_run, NULL};

static void top_k_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *x = &s->plan.in[0];
    int64_t begin, end, n = x->shape.dim[1], k = s->plan.out.shape.dim[1];
    qn_cpu_share(run, qn_cpu_rows(run, &s->plan.out), &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const float *v = (const float *)s->in[0] + i * x->stride[0];
        int32_t *out = (int32_t *)s->out + i * k;
        int64_t have = 0;
        for (int64_t j = 0; j < n;
             j++) { /* insertion into the sorted head; equal values keep the lower index first */
            int64_t at = have;
            while (at > 0 && v[j] > v[out[at - 1]]) at--;
            if (at >= k) continue;
            int64_t last = have < k ? have : k - 1;
            memmove(out + at + 1, out + at, (size_t)(last - at) * sizeof *out);
            out[at] = (int32_t)j;
            if (have < k) have++;
        }
        for (int64_t j = 1; j < k && s->plan.params.top_k.rising; j++) {
            int32_t id = out[j];
            int64_t at = j;
            for (; at > 0 && out[at - 1] > id; at--) out[at] = out[at - 1];
            out[at] = id;
        }
    }
}

const qn_cpu_prim qn_cpu_TOP_K = {top_k_run, NULL};
