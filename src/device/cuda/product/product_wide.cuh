/* The third kernel of product.h: tiles of 128 tokens on the tensor cores of a warpgroup (sm_90a).
 *
 * A block is two warpgroups that multiply and one of which a warp fetches. A warpgroup owns 4 panels of weights, one a
 * warp, as operand A in registers; both share a tile of tokens as operand B in shared memory. Packed weights and
 * tokens come through two rings of stages, tokens 64 columns at a time, weights as many columns as make large
 * copies. While the products of one tile of 64 columns run, a warp unpacks the weights of the next one. As many
 * blocks run as there are multiprocessors, each with one piece of work after the other: the ring is filled for
 * the next piece while results are stored. */
#ifndef QN_DEVICE_CUDA_PRODUCT_PRODUCT_WIDE_CUH
#define QN_DEVICE_CUDA_PRODUCT_PRODUCT_WIDE_CUH

#include "device/cuda/product/panel.cuh"
#include "device/cuda/product/tokens.cuh"
#include "device/cuda/product/wgmma.cuh"

enum {
    QN_WIDE_WARPS = 8, /* that multiply */
    QN_WIDE_THREADS = (QN_WIDE_WARPS + 4) * 32,
    QN_WIDE_STAGES = 6, /* of tokens */
    QN_WIDE_STAGE_BYTES = QN_CUDA_WIDE * QN_CUDA_TILE_K * 2,
    QN_WIDE_BAND = 16, /* tiles of tokens that are computed with all weights before the next ones */
    QN_WIDE_LAG = 3    /* stages of gathered tokens that are on their way */
};
static_assert((int)QN_CUDA_WIDE == 2 * (int)QN_WGMMA_SUMS, "a tile of tokens is an operand B");

/* Stages of weights: tiles of 64 columns in one, and how many stages. */
template <int FORM> struct qn_wide_ring {
    static constexpr int TILES = FORM == QN_CUDA_F16 ? 1 : 4, STAGES = FORM == QN_CUDA_F16 ? 6 : 3;
};

/* Bytes of a panel in a stage of weights. */
template <int FORM> static __host__ __device__ __forceinline__ int qn_wide_pitch(const qn_cuda_weight &w)
{
    return qn_wide_ring<FORM>::TILES * QN_CUDA_TILE_K / w.unit_k * w.unit_bytes;
}

template <int FORM> static inline size_t qn_wide_shared_bytes(const qn_cuda_weight &w)
{
    return 1024 + QN_WIDE_STAGES * QN_WIDE_STAGE_BYTES +
           (size_t)(qn_wide_ring<FORM>::STAGES * QN_WIDE_WARPS * qn_wide_pitch<FORM>(w));
}

static inline int64_t qn_wide_works(const qn_cuda_product &p, int64_t n_tiles)
{
    return n_tiles * qn_blocks(p.w.n_panels, QN_WIDE_WARPS);
}

#ifdef QN_HAS_WGMMA

/* Barriers of a ring of N stages. A stage is full once, and empty once each warp that multiplies has let it go. */
template <int N> struct qn_ring {
    qn_mbarrier full[N], empty[N];
};

/* Where a warp is in a ring. */
struct qn_ring_place {
    int stage;
    unsigned parity; /* of the phase that ends when the stage is full */
};

template <int N> static __device__ __forceinline__ void qn_ring_next(qn_ring_place &at)
{
    if (++at.stage == N) at.stage = 0, at.parity ^= 1;
}

template <int N> static __device__ __forceinline__ void qn_ring_init(qn_ring<N> &ring)
{
    for (int i = 0; i < N; i++) {
        qn_mbarrier_init(&ring.full[i], 1);
        qn_mbarrier_init(&ring.empty[i], QN_WIDE_WARPS);
    }
}

/* What a block computes: a tile of tokens by 8 panels. */
struct qn_wide_work {
    qn_cuda_tokens tokens;
    int64_t panel; /* the first */
};

/* Pieces of work one behind the other share what they read, so that it stays in the second cache. */
static __device__ __forceinline__ qn_wide_work qn_wide_work_of(const qn_cuda_product &p, int64_t n_tiles,
                                                               int64_t i)
{
    const int64_t n_blocks = (p.w.n_panels + QN_WIDE_WARPS - 1) / QN_WIDE_WARPS,
                  first = i / (n_blocks * QN_WIDE_BAND) * QN_WIDE_BAND, rest = i - first * n_blocks,
                  width = n_tiles - first < QN_WIDE_BAND ? n_tiles - first : QN_WIDE_BAND;
    return {qn_tokens_of(p, first + rest % width, QN_CUDA_WIDE), rest / width * QN_WIDE_WARPS};
}

static __device__ __forceinline__ int64_t qn_wide_panel(const qn_cuda_product &p, const qn_wide_work &work,
                                                        int warp)
{
    const int64_t panel = work.panel + warp;
    return work.tokens.part * p.w.n_panels + (panel < p.w.n_panels ? panel : p.w.n_panels - 1);
}

/* ---- the warp that fetches ------------------------------------------------------------------------------- */

/* A stage of weights from column tile k_tile on: each panel's units. */
template <int FORM>
static __device__ __forceinline__ void qn_wide_fetch_weights(const qn_cuda_product &p,
                                                             const qn_wide_work &work, int k_tile, int lane,
                                                             char *to, qn_mbarrier *full)
{
    const int pitch = qn_wide_pitch<FORM>(p.w);
    const int64_t unit = (int64_t)k_tile * QN_CUDA_TILE_K / p.w.unit_k;
    const int64_t left = (p.w.n_units - unit) * p.w.unit_bytes;
    const unsigned bytes = left < pitch ? (unsigned)left : (unsigned)pitch;
    if (lane == 0) qn_mbarrier_expect(full, QN_WIDE_WARPS * bytes);
    __syncwarp();
    if (lane >= QN_WIDE_WARPS) return;
    const char *from =
        p.w.data + (size_t)(qn_wide_panel(p, work, lane) * p.w.n_units + unit) * (size_t)p.w.unit_bytes;
    qn_copy_bulk(to + lane * pitch, from, bytes, full);
}

/* A stage of gathered tokens; rows that a tile lacks are 0. rows: of x. */
static __device__ __forceinline__ void qn_wide_gather(const qn_cuda_product &p, int n, const int32_t *rows,
                                                      int k_tile, int lane, char *to)
{
    const int piece = lane % 8;
    const uint16_t *from = p.x + k_tile * QN_CUDA_TILE_K + piece * 8;
#pragma unroll 8
    for (int row = lane / 8; row < QN_CUDA_WIDE; row += 4)
        qn_copy_async16(to + row * 128 + (piece ^ row % 8) * 16, from + rows[row] * p.x_stride,
                        row < n ? 16 : 0);
    qn_copy_async_commit();
}

/* The stage that was begun LAG stages ago is there. */
template <int LAG> static __device__ __forceinline__ void qn_wide_gathered(int lane, qn_mbarrier *full)
{
    qn_copy_async_wait<LAG>();
    qn_wgmma_publish();
    __syncwarp();
    if (lane == 0) qn_mbarrier_arrive(full);
}

template <int FORM>
static __device__ __forceinline__ void
qn_wide_fetch(const qn_cuda_product &p, int64_t n_tiles, char *tokens, char *weights, int32_t *rows,
              qn_ring<QN_WIDE_STAGES> &token_ring, qn_ring<qn_wide_ring<FORM>::STAGES> &weight_ring)
{
    constexpr int TILES = qn_wide_ring<FORM>::TILES, STAGES = qn_wide_ring<FORM>::STAGES;
    const int lane = threadIdx.x % 32, n_k = (int)(p.w.n_units * p.w.unit_k / QN_CUDA_TILE_K);
    const int64_t n_works = n_tiles * ((p.w.n_panels + QN_WIDE_WARPS - 1) / QN_WIDE_WARPS);
    qn_ring_place t = {0, 0}, w = {0, 0};
    for (int64_t i = blockIdx.x; i < n_works; i += gridDim.x) {
        const qn_wide_work work = qn_wide_work_of(p, n_tiles, i);
        const int n = (int)work.tokens.n;
        if (!n) continue;
        if (!p.x_tiled) {
            for (int row = lane; row < QN_CUDA_WIDE; row += 32)
                rows[row] = row < n ? (int32_t)qn_token_in(work.tokens, row) : 0;
            __syncwarp();
        }
        const unsigned tile_bytes = (unsigned)(n + 7) / 8 * 1024;
        int waiting = t.stage; /* gathered tokens: the oldest stage that is on its way */
        for (int k = 0; k < n_k; k++) {
            if (k % TILES == 0) {
                qn_mbarrier_wait(&weight_ring.empty[w.stage], w.parity ^ 1);
                qn_wide_fetch_weights<FORM>(p, work, k, lane,
                                            weights + w.stage * QN_WIDE_WARPS * qn_wide_pitch<FORM>(p.w),
                                            &weight_ring.full[w.stage]);
                qn_ring_next<STAGES>(w);
            }
            qn_mbarrier_wait(&token_ring.empty[t.stage], t.parity ^ 1);
            char *to = tokens + t.stage * QN_WIDE_STAGE_BYTES;
            if (p.x_tiled) {
                if (lane == 0) {
                    qn_mbarrier_expect(&token_ring.full[t.stage], tile_bytes);
                    qn_copy_bulk(to, p.x + (k * p.x_tiled + work.tokens.first) * QN_CUDA_TILE_K, tile_bytes,
                                 &token_ring.full[t.stage]);
                }
            } else {
                qn_wide_gather(p, n, rows, k, lane, to);
                if (k >= QN_WIDE_LAG) {
                    qn_wide_gathered<QN_WIDE_LAG>(lane, &token_ring.full[waiting]);
                    waiting = waiting + 1 == QN_WIDE_STAGES ? 0 : waiting + 1;
                }
            }
            qn_ring_next<QN_WIDE_STAGES>(t);
        }
        if (p.x_tiled) continue;
        while (waiting != t.stage) {
            qn_wide_gathered<0>(lane, &token_ring.full[waiting]);
            waiting = waiting + 1 == QN_WIDE_STAGES ? 0 : waiting + 1;
        }
    }
}

/* ---- warps that multiply --------------------------------------------------------------------------------- */

static __device__ __forceinline__ void qn_wide_store(const qn_cuda_product &p, const qn_wide_work &work,
                                                     int warp, int lane, const float total[QN_WGMMA_SUMS])
{
    const qn_cuda_tokens &t = work.tokens;
    const int64_t row = (work.panel + warp) * QN_CUDA_PANEL + lane / 4;
    const int n_rows = row >= p.w.n_out ? 0 : row + 8 >= p.w.n_out ? 1 : 2;
    float factor[2] = {1, 1}, bias[2] = {0, 0};
    QN_UNROLL
    for (int h = 0; h < 2; h++) {
        if (h < n_rows && p.w.factor)
            factor[h] = p.w.factor[t.part * p.w.n_panels * QN_CUDA_PANEL + row + 8 * h];
        if (h < n_rows && p.bias) bias[h] = p.bias[t.part * p.w.n_out + row + 8 * h];
    }
    const int has_bias = p.bias != NULL;
    const auto store = [&](int j, int i, float scale, float *out) {
        QN_UNROLL
        for (int h = 0; h < 2; h++) {
            float y = total[4 * j + 2 * h + i] * (scale * factor[h]);
            if (has_bias) y += bias[h];
            if (h < n_rows) out[8 * h] = y;
        }
    };
    if (t.pairs) {
        QN_UNROLL
        for (int j = 0; j < QN_CUDA_WIDE / 8; j++) QN_UNROLL
        for (int i = 0; i < 2; i++) {
            const int token = j * 8 + lane % 4 * 2 + i;
            if (token >= t.n) continue;
            const int32_t pair = t.pairs[t.first + token];
            store(j, i, p.x_scale[pair / t.x_share], p.out + pair * p.out_stride + row);
        }
        return;
    }
    const float *scale = p.x_scale + t.first + lane % 4 * 2;
    float *out = p.out + (t.first + lane % 4 * 2) * p.out_stride + row;
    QN_UNROLL
    for (int j = 0; j < QN_CUDA_WIDE / 8; j++) QN_UNROLL
    for (int i = 0; i < 2; i++)
        if (j * 8 + lane % 4 * 2 + i < t.n) store(j, i, scale[j * 8 + i], out + (j * 8 + i) * p.out_stride);
}

template <int FORM, int BITS, int CHUNK>
static __device__ __forceinline__ void
qn_wide_multiply(const qn_cuda_product &p, int64_t n_tiles, const char *tokens, const char *weights,
                 qn_ring<QN_WIDE_STAGES> &token_ring, qn_ring<qn_wide_ring<FORM>::STAGES> &weight_ring)
{
    constexpr int TILES = qn_wide_ring<FORM>::TILES, STAGES = qn_wide_ring<FORM>::STAGES,
                  PER_CHUNK = CHUNK / QN_CUDA_TILE_K;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int n_k = (int)(p.w.n_units * p.w.unit_k / QN_CUDA_TILE_K), pitch = qn_wide_pitch<FORM>(p.w);
    const int unit_shift = p.w.unit_k == 64 ? 0 : p.w.unit_k == 128 ? 1 : 2; /* tiles of a unit */
    const int64_t n_works = n_tiles * ((p.w.n_panels + QN_WIDE_WARPS - 1) / QN_WIDE_WARPS);
    qn_ring_place t = {0, 0}, w = {0, 0};
    float inverse[2], acc[QN_WGMMA_SUMS], total[QN_WGMMA_SUMS];
    uint32_t a[2][16];
    QN_UNROLL
    for (int i = 0; i < QN_WGMMA_SUMS; i++) acc[i] = 0;

    /* Unpacks column tile k of this warp's panel. */
    const auto unpack = [&](int k, uint32_t out[16]) {
        const int in_stage = k % TILES, in_unit = in_stage & ((1 << unit_shift) - 1);
        if (in_stage == 0) qn_mbarrier_wait(&weight_ring.full[w.stage], w.parity);
        const char *unit =
            weights + (w.stage * QN_WIDE_WARPS + warp) * pitch + (in_stage >> unit_shift) * p.w.unit_bytes;
        qn_tile_halves<FORM, BITS>(p.w, unit, in_unit, lane, inverse, out);
        if (in_stage == TILES - 1 || k == n_k - 1) {
            __syncwarp();
            if (lane == 0) qn_mbarrier_arrive(&weight_ring.empty[w.stage]);
            qn_ring_next<STAGES>(w);
        }
    };
    /* Multiplies column tile k and unpacks the next one. */
    const auto step = [&](int k, const uint32_t now[16], uint32_t next[16]) {
        qn_mbarrier_wait(&token_ring.full[t.stage], t.parity);
        const char *tile = tokens + t.stage * QN_WIDE_STAGE_BYTES;
        qn_wgmma_fence();
        QN_UNROLL
        for (int s = 0; s < 4; s++) qn_wgmma(acc, now + 4 * s, tile, s, s || k % PER_CHUNK);
        qn_wgmma_commit();
        if (k + 1 < n_k) unpack(k + 1, next);
        qn_wgmma_wait(acc);
        if (lane == 0) qn_mbarrier_arrive(&token_ring.empty[t.stage]);
        qn_ring_next<QN_WIDE_STAGES>(t);
        if (k % PER_CHUNK == PER_CHUNK - 1 || k == n_k - 1) {
            QN_UNROLL
            for (int i = 0; i < QN_WGMMA_SUMS; i++) total[i] += acc[i];
        }
    };

    for (int64_t i = blockIdx.x; i < n_works; i += gridDim.x) {
        const qn_wide_work work = qn_wide_work_of(p, n_tiles, i);
        if (!work.tokens.n) continue;
        qn_row_factors(p.w, qn_wide_panel(p, work, warp), lane, inverse);
        QN_UNROLL
        for (int j = 0; j < QN_WGMMA_SUMS; j++) total[j] = 0;
        unpack(0, a[0]);
        for (int k = 0; k < n_k; k += 2) {
            step(k, a[0], a[1]);
            if (k + 1 < n_k) step(k + 1, a[1], a[0]);
        }
        qn_wide_store(p, work, warp, lane, total);
    }
}

#endif

/* CHUNK: another than that of the canonical sum is for measuring what that costs. */
template <int FORM, int BITS, int CHUNK = QN_CUDA_CHUNK>
static __global__ void __launch_bounds__(QN_WIDE_THREADS, 1)
    qn_product_wide(qn_cuda_product p, int64_t n_tiles)
{
#ifdef QN_HAS_WGMMA
    QN_SHARED(shared); /* stages of tokens, aligned to 1,024, then stages of weights */
    __shared__ qn_ring<QN_WIDE_STAGES> token_ring;
    __shared__ qn_ring<qn_wide_ring<FORM>::STAGES> weight_ring;
    __shared__ int32_t rows[QN_CUDA_WIDE];
    char *tokens = shared + (1024 - (uintptr_t)shared % 1024) % 1024;
    char *weights = tokens + QN_WIDE_STAGES * QN_WIDE_STAGE_BYTES;
    if (threadIdx.x == 0) {
        qn_ring_init(token_ring);
        qn_ring_init(weight_ring);
        qn_mbarrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < QN_WIDE_WARPS * 32) {
        qn_more_registers<232>();
        qn_wide_multiply<FORM, BITS, CHUNK>(p, n_tiles, tokens, weights, token_ring, weight_ring);
    } else {
        qn_fewer_registers<40>();
        if (threadIdx.x < QN_WIDE_WARPS * 32 + 32)
            qn_wide_fetch<FORM>(p, n_tiles, tokens, weights, rows, token_ring, weight_ring);
    }
#endif
}

#endif
