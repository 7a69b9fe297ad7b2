/* Where the elements of inputs of any strides lie, for kernels whose output is contiguous and has one thread for
 * an element or a few neighbours. The host joins dimensions that follow one another in all inputs; so most
 * steps have one dimension left and a kernel divides nothing. */
#ifndef QN_DEVICE_CUDA_ELEMENTS_PLACES_CUH
#define QN_DEVICE_CUDA_ELEMENTS_PLACES_CUH

#include "device/cuda/kernel.cuh"

/* Before a loop: arrays that it indexes then stay in registers. */
#ifdef QN_CUDA_HOST
#define QN_UNROLL
#else
#define QN_UNROLL _Pragma("unroll")
#endif

/* Elements are numbered in row-major order. Dimension 0 is the innermost one here. */
template <int N> struct qn_places {
    int n, is_small; /* dimensions, 1 or more; is_small: numbers of elements fit 31 bits */
    int64_t total;
    int64_t dim[QN_MAX_DIMS];
    int64_t stride[N][QN_MAX_DIMS];
};

/* Of n_in inputs that have the output's shape. */
template <int N> static inline qn_places<N> qn_places_of(const qn_cuda_step *s, int n_in)
{
    qn_places<N> p = {};
    const qn_cuda_operand *o = &s->out;
    p.total = qn_elements(o);
    p.is_small = p.total < INT32_MAX;
    for (int d = o->n - 1; d >= 0 && p.total; d--) {
        if (o->dim[d] == 1) continue;
        const int last = p.n - 1;
        int joins = p.n > 0;
        for (int k = 0; k < n_in && joins; k++) joins = s->in[k].stride[d] == p.stride[k][last] * p.dim[last];
        if (joins) {
            p.dim[last] *= o->dim[d];
            continue;
        }
        for (int k = 0; k < n_in; k++) p.stride[k][p.n] = s->in[k].stride[d];
        p.dim[p.n++] = o->dim[d];
    }
    if (!p.n) p.dim[p.n++] = 1;
    return p;
}

/* 1: groups of `width` neighbours lie side by side in input k, or are one element, and begin at multiples of
 * width * size bytes. */
template <int N>
static inline int qn_places_in_groups(const qn_places<N> &p, int k, const void *data, int width, int size)
{
    const int repeats = p.stride[k][0] == 0;
    if (p.total % width || p.dim[0] % width || (!repeats && p.stride[k][0] != 1)) return 0;
    if (repeats) return 1;
    for (int d = 1; d < p.n; d++)
        if (p.stride[k][d] % width) return 0;
    return (uintptr_t)data % (uintptr_t)(width * size) == 0;
}

/* Makes groups of `width` neighbours the elements: strides are still those of single elements. */
template <int N> static inline void qn_places_group(qn_places<N> *p, int width)
{
    p->total /= width;
    p->dim[0] /= width;
    for (int k = 0; k < N; k++) p->stride[k][0] *= width;
}

/* The indices of element i < total in all dimensions; those that do not exist are 0. */
typedef struct {
    int64_t at[QN_MAX_DIMS];
} qn_indices;

template <int N> static __device__ __forceinline__ qn_indices qn_indices_of(const qn_places<N> &p, int64_t i)
{
    qn_indices x;
    QN_UNROLL
    for (int d = 0; d < QN_MAX_DIMS; d++) {
        x.at[d] = i;
        if (d + 1 < p.n) {
            const int64_t next = p.is_small ? (int64_t)((uint32_t)i / (uint32_t)p.dim[d]) : i / p.dim[d];
            x.at[d] = i - next * p.dim[d];
            i = next;
        } else {
            i = 0;
        }
    }
    return x;
}

/* The place of an element in input k, in elements from its first one. */
template <int N>
static __device__ __forceinline__ int64_t qn_place_in(const qn_places<N> &p, int k, const qn_indices &x)
{
    int64_t at = 0;
    QN_UNROLL
    for (int d = 0; d < QN_MAX_DIMS; d++) {
        if (d < p.n) at += x.at[d] * p.stride[k][d];
    }
    return at;
}

#endif
