/* What every .cu file of this folder begins with: CUDA's own headers, or for the host the emulation of what
 * kernels use of them (host/emulate.h), and the few things that all kernels share.
 *
 * Rules. A kernel's sums have a fixed order that depends on its own row's data alone: never on the number of
 * rows, the card, or which rows share a block. No atomics on floats. Compiled with -fmad=false: a multiply-add
 * is written fmaf. A launcher allocates nothing and does not wait. Threads of a block are numbered by
 * threadIdx.x alone. Kernels use __shared__ arrays, __syncthreads, __syncwarp, __shfl_*_sync with full warps,
 * and the functions below, nothing else, so that the emulation stays small. */
#ifndef QN_DEVICE_CUDA_KERNEL_CUH
#define QN_DEVICE_CUDA_KERNEL_CUH

#ifdef QN_CUDA_HOST
#include "device/cuda/host/emulate.h"
#else
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif
#include <math.h>
#include <stdint.h>

#include "device/cuda/shim.h"

/* ---- of the library (context.cu) ----------------------------------------------------------------------- */

struct qn_cuda_context {
    int i_card, n_sm, major, minor;
    struct qn_cuda_notes *notes; /* of a run that is being recorded; NULL: none is */
    cudaStream_t stream, beside; /* beside: copies to the host that nothing on the card waits for */
    cudaEvent_t begun;           /* what the last of these copies waits for */
    int is_lost;
    int has_wide;    /* it has wgmma (wgmma.cuh), and the library has code for that */
    char fault[160]; /* what lost it */
};

/* Keeps a sentence for the shim's error(), and returns status. */
qn_status qn_cuda_fail(qn_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* QN_OK for cudaSuccess; else a status whose sentence names `what`. A fault of a kernel makes c lost. */
qn_status qn_cuda_check(qn_cuda_context *c, cudaError_t e, const char *what);

/* What a primitive of this device is made of. */
typedef struct {
    qn_status (*launch)(qn_cuda_context *c, const qn_cuda_step *s);
    size_t (*scratch_bytes)(const qn_cuda_step *s); /* NULL: it needs none */
} qn_cuda_prim;

/* What the step kernel (step.cu) would be told, while a run is recorded. op 0: it cannot do this. */
void qn_cuda_note_op(qn_cuda_context *c, int op, int64_t grid, int block, size_t shared_bytes,
                     const void *work, size_t work_bytes);

/* Begins kernel<<<grid, block, shared_bytes>>>(arguments...). grid 0 begins nothing. */
template <class... P, class... A>
static inline qn_status qn_cuda_launch(qn_cuda_context *c, void (*kernel)(P...), int64_t grid, int block,
                                       size_t shared_bytes, A... arguments)
{
    if (grid <= 0) return QN_OK;
    if (grid > 0x7fffffff) return qn_cuda_fail(QN_E_ARG, "device cuda: a step is too large");
#ifdef QN_CUDA_HOST
    return qn_cuda_check(c, qn_emulate(kernel, (unsigned)grid, block, shared_bytes, (P)arguments...),
                         "kernel");
#else
    if (shared_bytes > 48 << 10) {
        const cudaError_t e = cudaFuncSetAttribute(
            (const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
        if (e != cudaSuccess) return qn_cuda_check(c, e, "kernel");
    }
    kernel<<<(unsigned)grid, block, shared_bytes, c->stream>>>((P)arguments...);
    return qn_cuda_check(c, cudaGetLastError(), "kernel");
#endif
}

/* The same for a kernel that the step kernel does not know. */
template <class... P, class... A>
static inline qn_status qn_cuda_begin(qn_cuda_context *c, void (*kernel)(P...), int64_t grid, int block,
                                      size_t shared_bytes, A... arguments)
{
    if (grid > 0) qn_cuda_note_op(c, 0, grid, block, shared_bytes, NULL, 0);
    return qn_cuda_launch(c, kernel, grid, block, shared_bytes, arguments...);
}

/* Dynamic shared memory of a block, aligned to 128. */
#ifdef QN_CUDA_HOST
#define QN_SHARED(name) char *const name = qn_emulated_shared()
#else
#define QN_SHARED(name) extern __shared__ __align__(128) char name[]
#endif

/* Before a loop: arrays that it indexes then stay in registers. */
#ifdef QN_CUDA_HOST
#define QN_UNROLL
#else
#define QN_UNROLL _Pragma("unroll")
#endif

/* ---- bodies -------------------------------------------------------------------------------------------- */

/* Where the body of a kernel runs: as a block of its own launch, or as one of the blocks that a block of the step
 * kernel (step.cu) plays one after the other. */
typedef struct {
    int64_t block;
    int threads;  /* threads [0, threads) run it, whole warps */
    char *shared; /* dynamic shared memory, aligned to 128 */
} qn_body;

/* Waits until n_threads, whole warps, are at barrier `id`: 1 to 15, 0 is __syncthreads. */
static __device__ __forceinline__ void qn_barrier(int id, int n_threads)
{
#ifdef QN_CUDA_HOST
    qn_emulated_barrier(id, n_threads);
#else
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
#endif
}

/* __syncthreads of a body. */
static __device__ __forceinline__ void qn_body_sync(const qn_body &b)
{
    qn_barrier(2, b.threads);
}

/* A body is a class B with a type `work`, a function run(body, work), and OP, its number in the step kernel, 0:
 * it has none. */
template <class B> static __global__ void qn_kernel_of(typename B::work w)
{
    QN_SHARED(shared);
    const qn_body b = {blockIdx.x, (int)blockDim.x, shared};
    B::run(b, w);
}

template <class B>
static inline qn_status qn_cuda_begin_body(qn_cuda_context *c, int64_t grid, int block, size_t shared_bytes,
                                           const typename B::work &w)
{
    qn_cuda_note_op(c, B::OP, grid, block, shared_bytes, &w, sizeof w);
    return qn_cuda_launch(c, qn_kernel_of<B>, grid, block, shared_bytes, w);
}

/* ---- shapes -------------------------------------------------------------------------------------------- */

/* A view as kernels take it: by value, sizes and strides in elements. */
typedef struct {
    char *data;
    qn_dtype dtype;
    int n;
    int64_t dim[QN_MAX_DIMS], stride[QN_MAX_DIMS];
} qn_cuda_view;

static inline qn_cuda_view qn_cuda_view_of(const qn_cuda_operand *o)
{
    qn_cuda_view v = {(char *)o->data, o->dtype, o->n};
    for (int i = 0; i < o->n; i++) v.dim[i] = o->dim[i], v.stride[i] = o->stride[i];
    return v;
}

static inline int64_t qn_elements(const qn_cuda_operand *o)
{
    int64_t n = 1;
    for (int i = 0; i < o->n; i++) n *= o->dim[i];
    return n;
}

/* The place, in elements from v.data, of element i in row-major order. */
static __device__ __forceinline__ int64_t qn_place(const qn_cuda_view &v, int64_t i)
{
    int64_t at = 0;
    for (int d = v.n - 1; d >= 0; d--) {
        at += i % v.dim[d] * v.stride[d];
        i /= v.dim[d];
    }
    return at;
}

static inline int64_t qn_blocks(int64_t n, int64_t per_block)
{
    return (n + per_block - 1) / per_block;
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ float qn_half_to_float(uint16_t h)
{
#ifdef QN_CUDA_HOST
    return qn_cuda_half_value(h);
#else
    return __half2float(__ushort_as_half(h));
#endif
}

static __device__ __forceinline__ uint16_t qn_float_to_half(float f)
{
#ifdef QN_CUDA_HOST
    return qn_cuda_to_half(f);
#else
    return __half_as_ushort(__float2half_rn(f));
#endif
}

static __device__ __forceinline__ float qn_bf16_float(uint16_t h)
{
    return qn_cuda_bits_float((uint32_t)h << 16);
}

/* Rounded to nearest even; NaN stays NaN. */
static __device__ __forceinline__ uint16_t qn_float_bf16(float f)
{
    const uint32_t u = qn_cuda_float_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

/* ---- sums over threads --------------------------------------------------------------------------------- */

/* Of a warp, by one fixed tree; every lane gets the result. */
static __device__ __forceinline__ float qn_warp_sum(float x)
{
    for (int d = 16; d; d >>= 1) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

/* NaN if one is NaN. */
static __device__ __forceinline__ float qn_larger(float a, float b)
{
    return a > b || a != a ? a : b;
}

static __device__ __forceinline__ float qn_warp_max(float x)
{
    for (int d = 16; d; d >>= 1) x = qn_larger(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

#endif
