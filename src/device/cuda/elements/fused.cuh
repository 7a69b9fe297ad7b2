/* The body of FUSED: chains of element-wise operations on f32. A thread computes one element, or four neighbours,
 * and goes through the chain once: the last result stays in registers, earlier ones that are used again lie in
 * shared memory. */
#ifndef QN_DEVICE_CUDA_ELEMENTS_FUSED_CUH
#define QN_DEVICE_CUDA_ELEMENTS_FUSED_CUH

#include "device/cuda/elements/math.cuh"
#include "device/cuda/elements/places.cuh"
#include "device/cuda/step/step.h"

enum { QN_CHAIN_BLOCK = 128, QN_NOT_KEPT = 255 };

typedef struct {
    uint8_t op, two;
    int8_t a, b;  /* >= 0: result of qn_instruction a; < 0: input ~a */
    uint8_t slot; /* where the result is kept; QN_NOT_KEPT: the next instruction alone uses it */
} qn_instruction;

typedef struct {
    float *out;
    const float *in[QN_MAX_INPUTS];
    int n_ops;
    qn_instruction op[QN_FUSED_MAX];
    qn_places<QN_MAX_INPUTS> places;
} qn_chain;

/* W neighbours. */
template <int W> struct alignas(4 * W) qn_lanes {
    float x[W];
};

/* ---- on the card --------------------------------------------------------------------------------------- */

template <int W>
static __device__ __forceinline__ qn_lanes<W> qn_load_lanes(const qn_chain &c, int k, const qn_indices &x)
{
    const float *p = c.in[k] + qn_place_in(c.places, k, x);
    if (c.places.stride[k][0]) return *(const qn_lanes<W> *)p;
    qn_lanes<W> v;
    QN_UNROLL
    for (int i = 0; i < W; i++) v.x[i] = *p;
    return v;
}

/* Kept results of a thread: kept[slot][W][QN_CHAIN_BLOCK], from its own first one on. */
template <int W> static __device__ __forceinline__ qn_lanes<W> qn_get_kept(const float *kept, int slot)
{
    qn_lanes<W> v;
    QN_UNROLL
    for (int w = 0; w < W; w++) v.x[w] = kept[(slot * W + w) * QN_CHAIN_BLOCK];
    return v;
}

template <int W>
static __device__ __forceinline__ void qn_put_kept(float *kept, int slot, const qn_lanes<W> &v)
{
    QN_UNROLL
    for (int w = 0; w < W; w++) kept[(slot * W + w) * QN_CHAIN_BLOCK] = v.x[w];
}

static __device__ __forceinline__ float qn_apply_op(int op, float a, float b)
{
    switch (op) {
#define E(name, inputs)  \
    case QN_PRIM_##name: \
        return op_##name(a, b);
#include "prim/elementwise.def"
    default:
        return a;
    }
}

template <int W> struct qn_any_chain {
    typedef qn_chain work;
    enum { OP = W == 1 ? QN_OP_CHAIN : 0 };

    static __device__ void run(const qn_body &b, const work &c)
    {
        const int64_t i = b.block * QN_CHAIN_BLOCK + threadIdx.x;
        if (i >= c.places.total) return;
        float *kept = (float *)b.shared + threadIdx.x;
        const qn_indices x = qn_indices_of(c.places, i);
        qn_lanes<W> t = {};
        for (int n = 0; n < c.n_ops; n++) {
            const qn_instruction op = c.op[n];
            qn_lanes<W> v[2];
            QN_UNROLL
            for (int side = 0; side < 2; side++) {
                const int from = side ? op.b : op.a;
                if (side && !op.two)
                    v[side] = v[0];
                else if (from < 0)
                    v[side] = qn_load_lanes<W>(c, ~from, x);
                else if (from == n - 1)
                    v[side] = t;
                else
                    v[side] = qn_get_kept<W>(kept, c.op[from].slot);
            }
            QN_UNROLL
            for (int w = 0; w < W; w++) t.x[w] = qn_apply_op(op.op, v[0].x[w], v[1].x[w]);
            if (op.slot != QN_NOT_KEPT) qn_put_kept<W>(kept, op.slot, t);
        }
        ((qn_lanes<W> *)c.out)[i] = t;
    }
};

#endif
