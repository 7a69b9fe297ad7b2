/* The order of the elements of each line: a stable merge sort of keys that rise as the elements do. */
#include <string.h>

#include "device/cpu/wide.h"

typedef struct {
    uint64_t key;
    int64_t index;
} item;

enum { RUN = 12 }; /* elements that are sorted by insertion */

/* Rises with the number; NaN is above all numbers, and -0 is 0. */
static uint64_t key_of(qn_wide_kind kind, qn_wide x)
{
    const uint64_t sign = UINT64_C(1) << 63;
    if (kind == QN_WIDE_UNSIGNED) return x.u;
    if (kind == QN_WIDE_SIGNED) return x.u ^ sign;
    if (x.f != x.f) return UINT64_MAX;
    if (x.f == 0) return sign;
    return x.u & sign ? ~x.u : x.u | sign;
}

static void sort(item *a, item *b, int64_t n)
{
    for (int64_t from = 0; from < n; from += RUN) {
        const int64_t to = n - from < RUN ? n : from + RUN;
        for (int64_t i = from + 1; i < to; i++) {
            const item x = a[i];
            int64_t at = i;
            for (; at > from && a[at - 1].key > x.key; at--) a[at] = a[at - 1];
            a[at] = x;
        }
    }
    for (int64_t width = RUN; width < n; width *= 2) {
        for (int64_t from = 0; from < n; from += 2 * width) {
            const int64_t mid = n - from < width ? n : from + width, to = n - mid < width ? n : mid + width;
            int64_t i = from, j = mid;
            for (int64_t at = from; at < to; at++)
                b[at] = j == to || (i < mid && a[i].key <= a[j].key) ? a[i++] : a[j++];
        }
        memcpy(a, b, (size_t)n * sizeof *a);
    }
}

static void arg_sort_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *x = &s->plan.in[0];
    const int n = x->shape.n, falling = s->plan.params.sort.falling;
    const int64_t length = qn_shape_dim(&x->shape, n - 1, &run->sizes),
                  bytes = (int64_t)qn_wide_bytes(x->dtype);
    const qn_wide_kind kind = qn_wide_kind_of(x->dtype);
    int64_t begin, end, lines = 1;
    item *a = (item *)(void *)run->scratch, *b = a + length;
    for (int d = 0; d < n - 1; d++) lines *= qn_shape_dim(&x->shape, d, &run->sizes);
    qn_cpu_share(run, lines, &begin, &end);
    for (int64_t l = begin; l < end; l++) {
        int64_t at = 0, rest = l;
        for (int d = n - 2; d >= 0; d--) {
            const int64_t size = qn_shape_dim(&x->shape, d, &run->sizes);
            at += rest % size * x->stride[d];
            rest /= size;
        }
        for (int64_t i = 0; i < length; i++) {
            qn_wide w;
            qn_wide_load(x->dtype, s->in[0] + (at + i * x->stride[n - 1]) * bytes, 1, 1, &w);
            a[i] = (item){falling ? ~key_of(kind, w) : key_of(kind, w), i};
        }
        sort(a, b, length);
        int32_t *out = (int32_t *)(void *)s->out + l * length;
        for (int64_t i = 0; i < length; i++) out[i] = (int32_t)a[i].index;
    }
}

static qn_status arg_sort_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                                  size_t *shared_bytes)
{
    const qn_shape *x = &step->plan.in[0].shape;
    const size_t need = 2 * (size_t)qn_shape_dim(x, x->n - 1, &plan->max) * sizeof(item);
    if (*scratch_bytes < need) *scratch_bytes = need;
    return QN_OK;
}

const qn_cpu_prim qn_cpu_ARG_SORT = {arg_sort_run, arg_sort_prepare};
