/* What quern's kernels use of CUDA, for a processor: .cu files compiled by a C++ compiler run here, a block after
 * the other, the threads of a block as fibers of one thread of the system (emulate.cpp).
 *
 * A thread runs until it reaches something that the threads of a warp or of a block do together: __syncthreads,
 * __syncwarp, a shuffle, a vote, a product of fragments (mma.cuh), a named barrier. Then the next thread runs.
 * Stricter than a card: all lanes of a warp must reach the same thing (masks are not looked at), and a thread
 * that has returned never counts as one that arrived. If no thread can go on, the launch fails and says who
 * waits where; without NDEBUG it aborts.
 *
 * Launches of different threads of the system run one after the other: static arrays are the shared memory. */
#ifndef QN_DEVICE_CUDA_HOST_EMULATE_H
#define QN_DEVICE_CUDA_HOST_EMULATE_H

/* Before the keywords below, which some headers use as names of attributes. */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <type_traits>
#include <utility>

#include "device/cuda/host/runtime.h"

/* ---- keywords ------------------------------------------------------------------------------------------ */

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

/* ---- vectors ------------------------------------------------------------------------------------------- */

#define QN_VECTORS(type, name, align1, align2, align4)                   \
    struct __attribute__((aligned(align1))) name##1                      \
    {                                                                    \
        type x;                                                          \
    };                                                                   \
    struct __attribute__((aligned(align2))) name##2                      \
    {                                                                    \
        type x, y;                                                       \
    };                                                                   \
    struct name##3                                                       \
    {                                                                    \
        type x, y, z;                                                    \
    };                                                                   \
    struct __attribute__((aligned(align4))) name##4                      \
    {                                                                    \
        type x, y, z, w;                                                 \
    };                                                                   \
    static inline name##2 make_##name##2(type x, type y)                 \
    {                                                                    \
        return name##2 {x, y};                                           \
    }                                                                    \
    static inline name##3 make_##name##3(type x, type y, type z)         \
    {                                                                    \
        return name##3 {x, y, z};                                        \
    }                                                                    \
    static inline name##4 make_##name##4(type x, type y, type z, type w) \
    {                                                                    \
        return name##4 {x, y, z, w};                                     \
    }

QN_VECTORS(signed char, char, 1, 2, 4)
QN_VECTORS(unsigned char, uchar, 1, 2, 4)
QN_VECTORS(short, short, 2, 4, 8)
QN_VECTORS(unsigned short, ushort, 2, 4, 8)
QN_VECTORS(int, int, 4, 8, 16)
QN_VECTORS(unsigned, uint, 4, 8, 16)
QN_VECTORS(long long, longlong, 8, 16, 16)
QN_VECTORS(unsigned long long, ulonglong, 8, 16, 16)
QN_VECTORS(float, float, 4, 8, 16)
QN_VECTORS(double, double, 8, 16, 16)
#undef QN_VECTORS

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned nx = 1, unsigned ny = 1, unsigned nz = 1) : x(nx), y(ny), z(nz)
    {
    }
};

/* ---- launches ------------------------------------------------------------------------------------------ */

/* Of the thread that runs. Only x is used: the others are 0, or 1 for sizes. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
enum { warpSize = 32 };

/* Runs body(argument) as every thread of every block. kernel: for messages. */
cudaError_t qn_emulate_body(const void *kernel, void (*body)(void *), void *argument, unsigned grid,
                            int block, size_t shared_bytes);

/* kernel<<<grid, block, shared_bytes>>>(arguments...), done when it returns. */
template <class... P, class... A>
static inline cudaError_t qn_emulate(void (*kernel)(P...), unsigned grid, int block, size_t shared_bytes,
                                     A... arguments)
{
    if (qn_emulated_is_recording()) {
        auto later = [=] { return qn_emulate(kernel, grid, block, shared_bytes, arguments...); };
        return qn_emulated_keep([](void *p) { return (*(decltype(later) *)p)(); },
                                [](void *p) { delete (decltype(later) *)p; }, new decltype(later)(later));
    }
    auto call = [&] { kernel(arguments...); };
    return qn_emulate_body((const void *)kernel, [](void *p) { (*(decltype(call) *)p)(); }, &call, grid,
                           block, shared_bytes);
}

/* The block's dynamic shared memory, aligned to 128. 0xff before a block begins. */
char *qn_emulated_shared(void);

/* ---- what threads do together -------------------------------------------------------------------------- */

/* Waits until all lanes of the warp are here with the same name. The last one calls work(args of the lanes,
 * how many lanes there are) if it is not NULL. arg of a lane that a partial warp lacks: NULL. */
typedef void qn_emulated_work(void *const *args, int n_lanes);
void qn_emulated_warp(const char *name, void *arg, qn_emulated_work *work);
/* What lane `from` gave; 0xff bytes if the warp has no such lane. */
uint64_t qn_emulated_shuffle(uint64_t mine, int from);
unsigned qn_emulated_ballot(int is_true);
/* Waits until n threads are at barrier `id`, 0 to 15. __syncthreads is barrier 0. */
void qn_emulated_barrier(int id, int n_threads);
/* Lets other threads run until `is_done(arg)`; they are looked at again whenever qn_emulated_wake is called. */
void qn_emulated_until(const char *name, int (*is_done)(const void *arg, unsigned detail), const void *arg,
                       unsigned detail);
void qn_emulated_wake(void);
/* Ends the launch: prints why and who waits where. */
[[noreturn]] void qn_emulated_give_up(const char *why);
/* Drops the copies that a block began and never waited for (copies.cpp). */
void qn_emulated_forget_copies(unsigned n_threads);
/* The same of products of warpgroups (wgmma.cpp). */
void qn_emulated_forget_products(unsigned n_threads);

static inline void __syncthreads(void)
{
    qn_emulated_barrier(0, (int)blockDim.x);
}

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    (void)mask;
    qn_emulated_warp("__syncwarp", NULL, NULL);
}

static inline void __threadfence(void)
{
}

static inline void __threadfence_block(void)
{
}

static inline unsigned __ballot_sync(unsigned mask, int is_true)
{
    (void)mask;
    return qn_emulated_ballot(is_true);
}

static inline int __any_sync(unsigned mask, int is_true)
{
    (void)mask;
    return qn_emulated_ballot(is_true) != 0;
}

static inline int __all_sync(unsigned mask, int is_true)
{
    (void)mask;
    return qn_emulated_ballot(!is_true) == 0;
}

template <class T> static inline T qn_emulated_from(T x, int from)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof x);
    bits = qn_emulated_shuffle(bits, from);
    memcpy(&x, &bits, sizeof x);
    return x;
}

template <class T> static inline T __shfl_sync(unsigned mask, T x, int from, int width = 32)
{
    (void)mask;
    const int lane = (int)(threadIdx.x % 32);
    return qn_emulated_from(x, (lane & ~(width - 1)) + (from & (width - 1)));
}

template <class T> static inline T __shfl_xor_sync(unsigned mask, T x, int bits, int width = 32)
{
    (void)mask;
    const int lane = (int)(threadIdx.x % 32), from = lane ^ bits;
    return qn_emulated_from(x, from < (lane & ~(width - 1)) + width ? from : lane);
}

template <class T> static inline T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    (void)mask;
    const int lane = (int)(threadIdx.x % 32), from = lane + (int)by;
    return qn_emulated_from(x, from < (lane & ~(width - 1)) + width ? from : lane);
}

template <class T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    (void)mask;
    const int lane = (int)(threadIdx.x % 32), from = lane - (int)by;
    return qn_emulated_from(x, from >= (lane & ~(width - 1)) ? from : lane);
}

/* ---- single threads ------------------------------------------------------------------------------------ */

#define QN_ATOMIC(name, type, expression)    \
    static inline type name(type *p, type x) \
    {                                        \
        const type old = *p;                 \
        *p = expression;                     \
        return old;                          \
    }
#define QN_ATOMICS(type)                                         \
    QN_ATOMIC(atomicAdd, type, old + x)                          \
    QN_ATOMIC(atomicMax, type, old > x ? old : x)                \
    QN_ATOMIC(atomicMin, type, old < x ? old : x)                \
    QN_ATOMIC(atomicOr, type, old | x)                           \
    QN_ATOMIC(atomicAnd, type, old &x)                           \
    QN_ATOMIC(atomicExch, type, x)                               \
    static inline type atomicCAS(type *p, type expected, type x) \
    {                                                            \
        const type old = *p;                                     \
        if (old == expected) *p = x;                             \
        return old;                                              \
    }
QN_ATOMICS(int)
QN_ATOMICS(unsigned)
QN_ATOMICS(unsigned long long)
#undef QN_ATOMICS
#undef QN_ATOMIC

#define QN_MIN_MAX(type)                   \
    static inline type min(type a, type b) \
    {                                      \
        return b < a ? b : a;              \
    }                                      \
    static inline type max(type a, type b) \
    {                                      \
        return a < b ? b : a;              \
    }
QN_MIN_MAX(int)
QN_MIN_MAX(unsigned)
QN_MIN_MAX(long)
QN_MIN_MAX(unsigned long)
QN_MIN_MAX(long long)
QN_MIN_MAX(unsigned long long)
#undef QN_MIN_MAX

static inline float min(float a, float b)
{
    return fminf(a, b);
}

static inline float max(float a, float b)
{
    return fmaxf(a, b);
}

static inline double min(double a, double b)
{
    return fmin(a, b);
}

static inline double max(double a, double b)
{
    return fmax(a, b);
}

template <class To, class From> static inline To qn_emulated_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

static inline unsigned __float_as_uint(float x)
{
    return qn_emulated_bits<unsigned>(x);
}

static inline int __float_as_int(float x)
{
    return qn_emulated_bits<int>(x);
}

static inline float __uint_as_float(unsigned x)
{
    return qn_emulated_bits<float>(x);
}

static inline float __int_as_float(int x)
{
    return qn_emulated_bits<float>(x);
}

static inline long long __double_as_longlong(double x)
{
    return qn_emulated_bits<long long>(x);
}

static inline double __longlong_as_double(long long x)
{
    return qn_emulated_bits<double>(x);
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}

static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}

static inline int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

static inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}

static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}

static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

static inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}

template <class T> static inline T __ldcs(const T *p)
{
    return *p;
}

template <class T> static inline T __ldcg(const T *p)
{
    return *p;
}

#endif
