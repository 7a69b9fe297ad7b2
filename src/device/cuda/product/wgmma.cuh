/* Products of a warpgroup (sm_90a): four warps multiply 64 rows, each 16 of them, by 128 columns that lie in shared
 * memory, while they do other things. Elsewhere a kernel that reaches one of these is compiled without it.
 *
 * Operand A is in registers: a warp's fragments are those of mma.m16n8k16 (mma.cuh). Operand B is a tile
 * [128 columns][64 of k] of f16 at a place aligned to 1,024 bytes: rows of 128 bytes, in row r the piece c of 16
 * bytes lies at place c ^ r % 8 (the 128-byte swizzle). acc[4 j + i] is d[i] of columns 8 j to 8 j + 7. */
#ifndef QN_DEVICE_CUDA_PRODUCT_WGMMA_CUH
#define QN_DEVICE_CUDA_PRODUCT_WGMMA_CUH

#include "device/cuda/product/mma.cuh"

enum { QN_WGMMA_SUMS = 64 }; /* 128 columns */

#if defined(QN_CUDA_HOST) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define QN_HAS_WGMMA 1
#endif

#ifdef QN_HAS_WGMMA
#ifdef QN_CUDA_HOST

void qn_emulated_wgmma(float *acc, const uint32_t a[4], const void *b, int adds);
void qn_emulated_wgmma_commit(void);
void qn_emulated_wgmma_wait(int n);

#else

#define QN_8(x, i) x(i), x(i + 1), x(i + 2), x(i + 3), x(i + 4), x(i + 5), x(i + 6), x(i + 7)
#define QN_64(x) \
    QN_8(x, 0), QN_8(x, 8), QN_8(x, 16), QN_8(x, 24), QN_8(x, 32), QN_8(x, 40), QN_8(x, 48), QN_8(x, 56)
#define QN_SUM(i) "+f"(acc[i])

/* Of a tile of operand B; columns of k from step * 16 on are step * 32 bytes behind. */
static __device__ __forceinline__ uint64_t qn_wgmma_tile(const void *b)
{
    return (uint64_t)((qn_shared_address(b) & 0x3ffff) >> 4) | (uint64_t)1 << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

#endif

/* Before the first product, and whenever registers of one were written by other instructions. */
static __device__ __forceinline__ void qn_wgmma_fence(void)
{
#ifndef QN_CUDA_HOST
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

/* Begins acc (or 0, unless adds) + a * b: step 0 to 3 of a tile. Neither a nor acc is touched before a wait. */
static __device__ __forceinline__ void qn_wgmma(float acc[QN_WGMMA_SUMS], const uint32_t a[4], const void *b,
                                                int step, int adds)
{
#ifdef QN_CUDA_HOST
    qn_emulated_wgmma(acc, a, (const char *)b + step * 32, adds);
#else
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n"
                 "}"
                 : QN_64(QN_SUM)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(qn_wgmma_tile(b) + step * 2), "r"(adds));
#endif
}

/* Ends a group: what was begun since the last one. */
static __device__ __forceinline__ void qn_wgmma_commit(void)
{
#ifdef QN_CUDA_HOST
    qn_emulated_wgmma_commit();
#else
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

/* Waits for all groups: acc is there, and this warp has read its operands. */
static __device__ __forceinline__ void qn_wgmma_wait(float acc[QN_WGMMA_SUMS])
{
#ifdef QN_CUDA_HOST
    (void)acc;
    qn_emulated_wgmma_wait(0);
#else
    asm volatile("wgmma.wait_group.sync.aligned 0;" : QN_64(QN_SUM)::"memory");
#endif
}

/* What this thread wrote into shared memory by other means than bulk copies is seen by products behind a barrier. */
static __device__ __forceinline__ void qn_wgmma_publish(void)
{
#ifndef QN_CUDA_HOST
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* A warpgroup takes registers up to N a thread, or gives those above N back: first thing in one branch of a kernel
 * that has a cap on them. */
template <int N> static __device__ __forceinline__ void qn_more_registers(void)
{
#ifndef QN_CUDA_HOST
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

template <int N> static __device__ __forceinline__ void qn_fewer_registers(void)
{
#ifndef QN_CUDA_HOST
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

#endif
#endif
