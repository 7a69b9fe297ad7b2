/* What kernels of products use of a card beyond C: tensor cores, copies into shared memory that go on beside the
 * kernel, barriers of some warps. One name for both compilers: on a card instructions, on the host
 * their emulation (host/tensor.cpp, host/copies.cpp).
 *
 * Fragments of mma.m16n8k16, lane = 4 g + t: a[0] is row g, k = 2t and 2t + 1; a[1] row g + 8; a[2], a[3] the same
 * with k + 8. b[0] is column g, k = 2t and 2t + 1; b[1] with k + 8. d[0], d[1] are row g, columns 2t and 2t + 1;
 * d[2], d[3] row g + 8. */
#ifndef QN_DEVICE_CUDA_PRODUCT_MMA_CUH
#define QN_DEVICE_CUDA_PRODUCT_MMA_CUH

#include "device/cuda/kernel.cuh"

/* A barrier in shared memory that counts arrivals and bytes. The phase that a fresh one is in has parity 0:
 * waiting for parity 1 returns at once. */
struct __align__(8) qn_mbarrier
{
#ifdef QN_CUDA_HOST
    unsigned n_expected : 15, n_pending : 15, phase : 1;
    int bytes_pending;
#else
    unsigned long long bits;
#endif
};

#ifdef QN_CUDA_HOST

/* A lane's part of d += a * b, and the products of a warp: args are its lanes' parts. */
struct qn_emulated_fragments {
    float *d;
    const uint32_t *a, *b;
};
void qn_emulated_multiply(void *const *args, int n_lanes);

void qn_emulated_mma(float d[4], const uint32_t a[4], const uint32_t b[2]);
void qn_emulated_ldmatrix(uint32_t r[4], const void *row, int is_transposed);
void qn_emulated_copy(void *to, const void *from, int bytes_valid);
void qn_emulated_copy_commit(void);
void qn_emulated_copy_wait(int n);
void qn_emulated_mbarrier_init(qn_mbarrier *m, int n_arrivals);
void qn_emulated_mbarrier_arrive(qn_mbarrier *m, unsigned bytes);
void qn_emulated_mbarrier_wait(qn_mbarrier *m, unsigned parity);
void qn_emulated_bulk(void *to, const void *from, unsigned bytes, qn_mbarrier *m);

#else

static __device__ __forceinline__ unsigned qn_shared_address(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

#endif

/* ---- tensor cores -------------------------------------------------------------------------------------- */

/* d += a * b, [16, 16] * [16, 8], f16 with sums in f32. All lanes of a full warp. */
static __device__ __forceinline__ void qn_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
#ifdef QN_CUDA_HOST
    qn_emulated_mma(d, a, b);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/* Four 8 x 8 matrices of 16-bit elements from shared memory: lane 8 i + j gives the address of row j of matrix i,
 * 16 bytes. r[i] of a lane: elements 2t and 2t + 1 of row g of matrix i. */
static __device__ __forceinline__ void qn_ldmatrix_x4(uint32_t r[4], const void *row)
{
#ifdef QN_CUDA_HOST
    qn_emulated_ldmatrix(r, row, 0);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(qn_shared_address(row))
                 : "memory");
#endif
}

/* The same of the transposed matrices: r[i]: column g, rows 2t and 2t + 1. */
static __device__ __forceinline__ void qn_ldmatrix_x4_transposed(uint32_t r[4], const void *row)
{
#ifdef QN_CUDA_HOST
    qn_emulated_ldmatrix(r, row, 1);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(qn_shared_address(row))
                 : "memory");
#endif
}

/* ---- copies into shared memory ------------------------------------------------------------------------- */

/* Begins to copy 16 bytes, both sides aligned to 16; those from bytes_valid on become 0 and are not read. */
static __device__ __forceinline__ void qn_copy_async16(void *shared, const void *global, int bytes_valid)
{
#ifdef QN_CUDA_HOST
    qn_emulated_copy(shared, global, bytes_valid);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(qn_shared_address(shared)),
                 "l"(global), "r"(bytes_valid)
                 : "memory");
#endif
}

/* Ends a group: what this thread began since the last one. */
static __device__ __forceinline__ void qn_copy_async_commit(void)
{
#ifdef QN_CUDA_HOST
    qn_emulated_copy_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits for this thread's groups but the newest N. Other threads see the data after a barrier. */
template <int N> static __device__ __forceinline__ void qn_copy_async_wait(void)
{
#ifdef QN_CUDA_HOST
    qn_emulated_copy_wait(N);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

/* What is read once: it does not stay in the first cache. */
static __device__ __forceinline__ uint4 qn_load_stream(const uint4 *p)
{
#ifdef QN_CUDA_HOST
    return *p;
#else
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
#endif
}

/* ---- bulk copies (sm_90 and newer: elsewhere a kernel that reaches one of these faults) ------------------ */

#if defined(QN_CUDA_HOST) || !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define QN_BULK(instructions) instructions
#else
#define QN_BULK(instructions) __trap()
#endif

/* By one thread, before a __syncthreads. n_arrivals end a phase. */
static __device__ __forceinline__ void qn_mbarrier_init(qn_mbarrier *m, int n_arrivals)
{
#ifdef QN_CUDA_HOST
    qn_emulated_mbarrier_init(m, n_arrivals);
#else
    QN_BULK(
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(qn_shared_address(m)), "r"(n_arrivals)
                     : "memory"));
#endif
}

/* By the thread that initialised barriers, behind the last one. */
static __device__ __forceinline__ void qn_mbarrier_init_done(void)
{
#ifndef QN_CUDA_HOST
    QN_BULK(asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"));
#endif
}

/* Arrives, and lets the phase wait for so many bytes of bulk copies. */
static __device__ __forceinline__ void qn_mbarrier_expect(qn_mbarrier *m, unsigned bytes)
{
#ifdef QN_CUDA_HOST
    qn_emulated_mbarrier_arrive(m, bytes);
#else
    QN_BULK(asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(qn_shared_address(m)),
                         "r"(bytes)
                         : "memory"));
#endif
}

static __device__ __forceinline__ void qn_mbarrier_arrive(qn_mbarrier *m)
{
#ifdef QN_CUDA_HOST
    qn_emulated_mbarrier_arrive(m, 0);
#else
    QN_BULK(asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(qn_shared_address(m)) : "memory"));
#endif
}

/* Waits until the phase of this parity is over. */
static __device__ __forceinline__ void qn_mbarrier_wait(qn_mbarrier *m, unsigned parity)
{
#ifdef QN_CUDA_HOST
    qn_emulated_mbarrier_wait(m, parity);
#else
    QN_BULK(asm volatile("{\n"
                         ".reg .pred p;\n"
                         "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                         "@p bra done;\n"
                         "bra again;\n"
                         "done:\n"
                         "}" ::"r"(qn_shared_address(m)),
                         "r"(parity)
                         : "memory"));
#endif
}

/* Begins to copy bytes, a multiple of 16, both sides aligned to 16; m counts them when they are there. */
static __device__ __forceinline__ void qn_copy_bulk(void *shared, const void *global, unsigned bytes,
                                                    qn_mbarrier *m)
{
#ifdef QN_CUDA_HOST
    qn_emulated_bulk(shared, global, bytes, m);
#else
    QN_BULK(asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            qn_shared_address(shared)),
        "l"(global), "r"(bytes), "r"(qn_shared_address(m))
        : "memory"));
#endif
}

#endif
