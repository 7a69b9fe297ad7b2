/* Lines of f32 and the teams of threads that compute them, four neighbours a thread, and the body of RMS_NORM.
 *
 * A team of threads computes a line: a warp where lines are narrow, else a block of QN_WIDE_TEAM. Thread t holds
 * elements 4 (t + k n) to 4 (t + k n) + 3 for k = 0, 1, ..., whether they are read 16 bytes at a time or one by
 * one, and sums are joined by one tree, so that a line's bits depend on its numbers alone. */
#ifndef QN_DEVICE_CUDA_ROWS_LINES4_CUH
#define QN_DEVICE_CUDA_ROWS_LINES4_CUH

#include "device/cuda/kernel.cuh"
#include "device/cuda/step/step.h"

/* Up to this width a warp; so many warps of a block; threads for wider lines. */
enum { QN_NARROW = 512, QN_TEAMS = 4, QN_WIDE_TEAM = 256 };

typedef struct {
    const float *x, *g, *w, *b; /* NULL: there is none */
    float *out;
    int64_t width, lines, total, x_stride, g_stride; /* lines of a row, and of all */
    float eps, offset;
} qn_lines;

/* A thread's place in its team. */
typedef struct {
    int t, n;
} qn_team;

template <bool WIDE> static __device__ __forceinline__ qn_team qn_own_team(const qn_body &b)
{
    qn_team team = {(int)threadIdx.x % 32, 32};
    if (WIDE) team = {(int)threadIdx.x, b.threads};
    return team;
}

template <bool WIDE> static __device__ __forceinline__ int64_t qn_own_line(const qn_body &b)
{
    return WIDE ? b.block : b.block * QN_TEAMS + threadIdx.x / 32;
}

/* Of all threads of a team, for all of them. */
template <bool WIDE> static __device__ __forceinline__ float qn_team_sum(const qn_body &b, float x)
{
    x = qn_warp_sum(x);
    if (!WIDE) return x;
    __shared__ float places[32];
    const int warp = threadIdx.x / 32, n = b.threads / 32;
    qn_body_sync(b); /* the one before has been read */
    if (threadIdx.x % 32 == 0) places[warp] = x;
    qn_body_sync(b);
    return qn_warp_sum((int)threadIdx.x % 32 < n ? places[threadIdx.x % 32] : 0.0f);
}

template <bool WIDE> static __device__ __forceinline__ float qn_team_max(const qn_body &b, float x)
{
    x = qn_warp_max(x);
    if (!WIDE) return x;
    __shared__ float places[32];
    const int warp = threadIdx.x / 32, n = b.threads / 32;
    qn_body_sync(b);
    if (threadIdx.x % 32 == 0) places[warp] = x;
    qn_body_sync(b);
    return qn_warp_max((int)threadIdx.x % 32 < n ? places[threadIdx.x % 32] : -INFINITY);
}

/* Four neighbours, those behind the end `other`. VEC: p + i is aligned to 16, and there are four. */
template <bool VEC>
static __device__ __forceinline__ void qn_load4(const float *p, int64_t i, int64_t n, float other, float *v)
{
    if (VEC) {
        const float4 q = *(const float4 *)(p + i);
        v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
    } else {
        for (int e = 0; e < 4; e++) v[e] = i + e < n ? p[i + e] : other;
    }
}

template <bool VEC>
static __device__ __forceinline__ void qn_store4(float *p, int64_t i, int64_t n, const float *v)
{
    if (VEC) {
        *(float4 *)(p + i) = make_float4(v[0], v[1], v[2], v[3]);
    } else {
        for (int e = 0; e < 4; e++)
            if (i + e < n) p[i + e] = v[e];
    }
}

static __device__ __forceinline__ const float *qn_line_of(const qn_lines &w, const float *x, int64_t stride,
                                                          int64_t line)
{
    return x + line / w.lines * stride + line % w.lines * w.width;
}

#define QN_EACH4(w, team) for (int64_t i = 4 * (team).t; i < (w).width; i += 4 * (team).n)

template <bool WIDE, bool VEC> struct qn_rms_norm {
    typedef qn_lines work;
    enum { OP = WIDE ? (VEC ? QN_OP_RMS_WIDE : 0) : VEC ? QN_OP_RMS_NARROW : 0 };

    static __device__ void run(const qn_body &b, const work &w)
    {
        const int64_t line = qn_own_line<WIDE>(b);
        if (line >= w.total) return; /* a whole team */
        const qn_team me = qn_own_team<WIDE>(b);
        const float *x = qn_line_of(w, w.x, w.x_stride, line);
        float *out = w.out + line * w.width, v[4], f[4], s = 0;
        QN_EACH4(w, me)
        {
            qn_load4<VEC>(x, i, w.width, 0, v);
            for (int e = 0; e < 4; e++) s = fmaf(v[e], v[e], s);
        }
        const float r = 1.0f / sqrtf(qn_team_sum<WIDE>(b, s) / (float)w.width + w.eps);
        QN_EACH4(w, me)
        {
            qn_load4<VEC>(x, i, w.width, 0, v);
            if (w.w) qn_load4<VEC>(w.w, i, w.width, 0, f);
            for (int e = 0; e < 4; e++) {
                v[e] *= r;
                if (w.w) v[e] *= f[e] + w.offset;
            }
            qn_store4<VEC>(out, i, w.width, v);
        }
    }
};

#endif
