/* An array with a part of it replaced, and who wrote last to a place. */
#include <string.h>

#include "device/cpu/wide.h"

/* Copies an array of any strides (in bytes) to another, line by line. */
static void copy(int n, const int64_t *dim, const char *from, const int64_t *from_stride, char *to,
                 const int64_t *to_stride, size_t bytes)
{
    int64_t index[QN_MAX_DIMS] = {0};
    const int64_t length = n ? dim[n - 1] : 1, in = n ? from_stride[n - 1] : 0,
                  out = n ? to_stride[n - 1] : 0;
    for (int d = 0; d < n; d++)
        if (dim[d] == 0) return;
    for (;;) {
        int64_t a = 0, b = 0;
        for (int d = 0; d < n - 1; d++) {
            a += index[d] * from_stride[d];
            b += index[d] * to_stride[d];
        }
        if (in == (int64_t)bytes && out == in)
            memcpy(to + b, from + a, (size_t)length * bytes);
        else
            for (int64_t i = 0; i < length; i++) memcpy(to + b + i * out, from + a + i * in, bytes);
        int d = n - 2;
        while (d >= 0 && ++index[d] == dim[d]) index[d--] = 0;
        if (d < 0) return;
    }
}

static void in_bytes(const int64_t *stride, int n, int64_t bytes, int64_t *out)
{
    for (int d = 0; d < n; d++) out[d] = stride[d] * bytes;
}

static void update_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *o = &s->plan.out, *x = &s->plan.in[0], *u = &s->plan.in[1];
    const int n = o->shape.n;
    const int64_t bytes = (int64_t)qn_wide_bytes(o->dtype), *first = s->plan.params.slice.begin,
                  *step = s->plan.params.slice.step;
    int64_t begin, end, dim[QN_MAX_DIMS], from[QN_MAX_DIMS] = {0}, to[QN_MAX_DIMS] = {0}, place = 0;
    qn_cpu_share(run, qn_cpu_rows(run, o), &begin, &end);
    if (begin >= end) return;
    in_bytes(o->stride, n, bytes, to);
    in_bytes(x->stride, n, bytes, from);
    memcpy(dim, o->shape.dim, sizeof dim);
    dim[0] = end - begin;
    char *out = s->out + (n ? begin * to[0] : 0);
    copy(n, dim, s->in[0] + (n ? begin * from[0] : 0), from, out, to, (size_t)bytes);
    in_bytes(u->stride, n, bytes, from);
    memcpy(dim, u->shape.dim, sizeof dim);
    for (int d = 1; d < n; d++) {
        place += first[d] * to[d];
        to[d] *= step[d] ? step[d] : 1;
    }
    const int64_t rows = n ? qn_shape_dim(&u->shape, 0, &run->sizes) : 1;
    dim[0] = 1;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t row = n ? first[0] + i * (step[0] ? step[0] : 1) : 0;
        if (row < begin || row >= end) continue;
        copy(n, dim, s->in[1] + (n ? i * from[0] : 0), from,
             s->out + (n ? row * o->stride[0] * bytes : 0) + place, to, (size_t)bytes);
    }
}

const qn_cpu_prim qn_cpu_UPDATE = {update_run, NULL};

static void last_writer_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const int64_t k = s->plan.in[0].shape.dim[1], n = s->plan.out.shape.dim[1];
    int64_t begin, end;
    qn_cpu_share(run, qn_cpu_rows(run, &s->plan.out), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const int32_t *ids = (const int32_t *)(void *)s->in[0] + r * s->plan.in[0].stride[0];
        int32_t *out = (int32_t *)(void *)s->out + r * n;
        for (int64_t i = 0; i < n; i++) out[i] = -1;
        for (int64_t j = 0; j < k; j++)
            if (ids[j] >= 0 && ids[j] < n) out[ids[j]] = (int32_t)j;
    }
}

const qn_cpu_prim qn_cpu_LAST_WRITER = {last_writer_run, NULL};

/* Products of 64 bits wrap around. */
static void hash_ids_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const int64_t n = s->plan.in[0].shape.dim[1], heads = s->plan.out.shape.dim[1], each = heads / (n - 1);
    const uint64_t *by = (const uint64_t *)(const void *)s->in[1];
    const int32_t *sizes = (const int32_t *)(const void *)s->in[2],
                  *offsets = (const int32_t *)(const void *)s->in[3], end = s->plan.params.hash_ids.end;
    int64_t begin, stop;
    qn_cpu_share(run, qn_cpu_rows(run, &s->plan.out), &begin, &stop);
    for (int64_t r = begin; r < stop; r++) {
        const int32_t *tokens = (const int32_t *)(const void *)s->in[0] + r * s->plan.in[0].stride[0];
        int32_t *out = (int32_t *)(void *)s->out + r * heads;
        uint64_t hash = (uint64_t)tokens[0] * by[0];
        int is_cut = 0;
        for (int64_t k = 1; k < n; k++) {
            is_cut |= tokens[k] == end;
            hash ^= (uint64_t)(is_cut ? end : tokens[k]) * by[k];
            for (int64_t h = (k - 1) * each; h < k * each; h++)
                out[h] = offsets[h] + (int32_t)(hash % (uint64_t)sizes[h]);
        }
    }
}

const qn_cpu_prim qn_cpu_HASH_IDS = {hash_ids_run, NULL};
