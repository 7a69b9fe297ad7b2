/* A step of few rows as one kernel that stays on the card from the first op to the last: a block on each
 * multiprocessor, and barriers of all blocks where one op needs what others computed.
 *
 * Weights do not depend on anything, so one warp of each block brings those that the block will need through a
 * ring in shared memory, op after op, past every barrier: memory is read while the others still compute, or wait.
 * The other warps compute: products by panels (product.h's canonical sum), and all else by the bodies of the
 * kernels that compute it in a launch of its own, of which a block plays several. So the bits are theirs.
 *
 * A task is a chunk of a panel: it lies in one slot of the ring, and one warp sums it up. A slot is always the same
 * warp's: slots are filled in any order, and a warp that waited for another one's slot could take the filling before
 * its own for its own. A block has the panels
 * [i n / blocks, (i + 1) n / blocks) of each matrix. */
#include "device/cuda/panel.cuh"
#include "device/cuda/step_kernel.cuh"

#include <string.h>

enum { PRODUCER = QN_STEP_WARPS, ALL_THREADS = QN_STEP_THREADS + 32, KEPT = 16 };

/* ---- all blocks ---------------------------------------------------------------------------------------- */

/* By one thread: what this block's threads wrote before the barrier behind which it calls, all others may read. */
static __device__ __forceinline__ void arrive(unsigned *counter)
{
#ifndef QN_CUDA_HOST
    asm volatile("fence.acq_rel.gpu;\nred.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
#else
    ++*counter;
#endif
}

static __device__ __forceinline__ void await(unsigned *counter, unsigned target)
{
#ifndef QN_CUDA_HOST
    unsigned seen;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    while ((int)(seen - target) < 0);
#endif
}

/* ---- the ring ------------------------------------------------------------------------------------------ */

typedef struct {
    char *slots;
    qn_mbarrier *full, *empty;
    int n, bytes, n_warps;
} ring;

static __device__ __forceinline__ int begin_of(int n_panels, int block, int n_blocks)
{
    return (int)((int64_t)n_panels * block / n_blocks);
}

typedef struct {
    int slot;
    unsigned turn;
} ring_place;

static __device__ __forceinline__ void step_on(ring_place *at, int by, int n)
{
    at->slot += by;
    while (at->slot >= n) at->slot -= n, at->turn ^= 1;
}

static __device__ __forceinline__ void bring(const qn_step_stream &s, int panel, int chunk, const ring &r,
                                             ring_place *at)
{
    const unsigned bytes = (unsigned)(chunk == s.n_chunks - 1 ? s.last_bytes : s.chunk_bytes);
    qn_mbarrier_wait(&r.empty[at->slot], at->turn ^ 1);
    qn_mbarrier_expect(&r.full[at->slot], bytes);
    qn_copy_bulk(r.slots + at->slot * r.bytes,
                 s.data + (size_t)panel * (size_t)s.panel_bytes + (size_t)chunk * (size_t)s.chunk_bytes,
                 bytes, &r.full[at->slot]);
    step_on(at, 1, r.n);
}

/* The tasks of all products, in the order in which they are consumed. By one thread. */
static __device__ __forceinline__ void bring_all(const qn_step_plan &plan, const ring &r)
{
    ring_place at = {0, 0};
    for (int i = 0; i < plan.n_feeds; i++) {
        const qn_step_feed &f = plan.feeds[i];
        const int in_turn = f.is_interleaved ? f.n_matrices : 1;
        for (int first = 0; first < f.n_matrices; first += in_turn) {
            const int n_panels = f.stream[first].n_panels;
            const int end = begin_of(n_panels, blockIdx.x + 1, plan.n_blocks);
            for (int panel = begin_of(n_panels, blockIdx.x, plan.n_blocks); panel < end; panel++)
                for (int m = first; m < first + in_turn; m++) {
                    const qn_step_stream s = f.stream[m];
                    for (int chunk = 0; chunk < s.n_chunks; chunk++) bring(s, panel, chunk, r, &at);
                }
        }
    }
}

/* ---- activations --------------------------------------------------------------------------------------- */

/* Columns k to k + 3 of a packed row: word i of lane t of a tile of 64 columns holds columns 8 i + 2 t and the next,
 * and a lane's eight words lie side by side. */
static __device__ __forceinline__ void put_four(uint32_t *row, int k, const float *v, float down)
{
    uint32_t *to = row + k / 64 * 32 + k % 8 / 2 * 8 + k % 64 / 8;
    to[0] = qn_half2_pack(v[0] * down, v[1] * down);
    to[8] = qn_half2_pack(v[2] * down, v[3] * down);
}

static __device__ __forceinline__ void get_four(const float *x, int k, int n, float *v)
{
    float4 q = make_float4(0, 0, 0, 0);
    if (k < n) q = *(const float4 *)(x + k);
    v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
}

typedef struct {
    float root; /* 0: no norm */
    const float *factors;
    float offset;
} norming;

static __device__ __forceinline__ void norm_four(const norming &n, int k, int n_in, float *v)
{
    float f[4];
    if (n.root == 0) return;
    if (n.factors) get_four(n.factors, k, n_in, f);
    for (int e = 0; e < 4; e++) {
        v[e] *= n.root;
        if (n.factors) v[e] *= f[e] + n.offset;
    }
}

/* The largest of all threads, for all of them. NaN is passed over. */
static __device__ __forceinline__ float largest_of(const qn_body &b, float x)
{
    __shared__ float places[QN_STEP_TEAM / 32];
    for (int d = 16; d; d >>= 1) {
        const float y = __shfl_xor_sync(0xffffffffu, x, d);
        x = y > x ? y : x;
    }
    qn_body_sync(b);
    if (threadIdx.x % 32 == 0) places[threadIdx.x / 32] = x;
    qn_body_sync(b);
    for (int i = 0; i < QN_STEP_TEAM / 32; i++) x = places[i] > x ? places[i] : x;
    return x;
}

static __device__ __forceinline__ float larger_of_four(const float *v, float most)
{
    for (int e = 0; e < 4; e++) most = fabsf(v[e]) > most ? fabsf(v[e]) : most;
    return most;
}

/* Row r of a product's activations to shared memory, as pack_rows in product.cu and RMS_NORM have it. */
static __device__ __forceinline__ void pack_row(const qn_body &b, const qn_step_product &p, int r,
                                                uint32_t *to, float *scale)
{
    const float *x = p.x + r * p.x_row;
    float kept[KEPT][4], v[4], s = 0, most = 0;
    const int first = 4 * threadIdx.x, stride = 4 * QN_STEP_TEAM;
    norming n = {0, p.norm, p.offset};
    /* all loads are under way before the first is waited for */
    QN_UNROLL
    for (int q = 0; q < KEPT; q++) get_four(x, first + q * stride, p.n_in, kept[q]);
    if (p.has_norm) {
        QN_UNROLL
        for (int q = 0; q < KEPT; q++) {
            for (int e = 0; e < 4; e++) s = fmaf(kept[q][e], kept[q][e], s); /* zeros behind the row */
        }
        for (int k = first + KEPT * stride; k < p.n_in; k += stride) {
            get_four(x, k, p.n_in, v);
            for (int e = 0; e < 4; e++) s = fmaf(v[e], v[e], s);
        }
        n.root = 1.0f / sqrtf(qn_team_sum<true>(b, s) / (float)p.n_in + p.eps);
    }
    QN_UNROLL
    for (int q = 0; q < KEPT; q++) {
        if (q * stride < p.n_in) {
            norm_four(n, first + q * stride, p.n_in, kept[q]);
            most = larger_of_four(kept[q], most);
        }
    }
    for (int k = first + KEPT * stride; k < p.n_in; k += stride) {
        get_four(x, k, p.n_in, v);
        norm_four(n, k, p.n_in, v);
        most = larger_of_four(v, most);
    }
    const int e = qn_cuda_row_exponent(largest_of(b, most));
    const float down = ldexpf(1, -e);
    float *const normed = p.has_norm && blockIdx.x == 0 ? p.normed + (int64_t)r * p.n_in : NULL;
    if (threadIdx.x == 0) scale[r] = ldexpf(1, e);
    QN_UNROLL
    for (int q = 0; q < KEPT; q++) {
        const int k = first + q * stride;
        if (k < p.padded) put_four(to, k, kept[q], down);
        if (normed && k < p.n_in)
            *(float4 *)(normed + k) = make_float4(kept[q][0], kept[q][1], kept[q][2], kept[q][3]);
    }
    for (int k = first + KEPT * stride; k < p.padded; k += stride) {
        get_four(x, k, p.n_in, v);
        norm_four(n, k, p.n_in, v);
        put_four(to, k, v, down);
        if (normed && k < p.n_in) *(float4 *)(normed + k) = make_float4(v[0], v[1], v[2], v[3]);
    }
}

/* ---- a task -------------------------------------------------------------------------------------------- */

/* Tasks that a warp computes together, so that one's chain of products fills the gaps of the other's. */
enum { TOGETHER = 2 };
typedef struct {
    const char *units;
    const uint32_t *x; /* NULL: the lane's token does not exist */
    float inverse[2], acc[4];
} chunk_sum;

template <int FORM, int BITS, int N>
static __device__ __forceinline__ void sum_chunks(const qn_cuda_weight &w, int n_tiles, chunk_sum *c)
{
    const int lane = threadIdx.x % 32, last = w.unit_k / 64 - 1;
    int64_t unit = 0; /* bytes to the tile's unit */
    int in_unit = 0;
#pragma unroll 1
    for (int t = 0; t < n_tiles; t++) {
        uint32_t a[N][16], b[N][8];
        QN_UNROLL
        for (int n = 0; n < N; n++) {
            QN_UNROLL
            for (int i = 0; i < 8; i++) b[n][i] = 0;
            if (c[n].x) {
                const uint4 low = *(const uint4 *)(c[n].x + t * 32),
                            high = *(const uint4 *)(c[n].x + t * 32 + 4);
                b[n][0] = low.x, b[n][1] = low.y, b[n][2] = low.z, b[n][3] = low.w;
                b[n][4] = high.x, b[n][5] = high.y, b[n][6] = high.z, b[n][7] = high.w;
            }
            qn_tile_halves<FORM, BITS>(w, c[n].units + unit, in_unit, lane, c[n].inverse, a[n]);
        }
        QN_UNROLL
        for (int s = 0; s < 4; s++) QN_UNROLL
        for (int n = 0; n < N; n++) qn_mma_f16(c[n].acc, a[n] + 4 * s, b[n] + 2 * s);
        if (in_unit == last) {
            in_unit = 0;
            unit += w.unit_bytes;
        } else {
            in_unit++;
        }
    }
}

#define CHUNKS(form, bits)                        \
    case (form)*32 + (bits):                      \
        sum_chunks<form, bits, N>(w, n_tiles, c); \
        break
template <int N>
static __device__ __forceinline__ void sum_any(const qn_cuda_weight &w, int n_tiles, chunk_sum *c)
{
    switch (w.form * 32 + w.bits) {
        CHUNKS(QN_CUDA_F16, 16);
        CHUNKS(QN_CUDA_SCALED, 4);
        CHUNKS(QN_CUDA_SCALED, 5);
        CHUNKS(QN_CUDA_SCALED, 8);
        CHUNKS(QN_CUDA_AFFINE, 2);
        CHUNKS(QN_CUDA_AFFINE, 3);
        CHUNKS(QN_CUDA_AFFINE, 4);
        CHUNKS(QN_CUDA_AFFINE, 5);
        CHUNKS(QN_CUDA_AFFINE, 6);
        CHUNKS(QN_CUDA_AFFINE, 8);
        CHUNKS(QN_CUDA_K, 4);
        CHUNKS(QN_CUDA_K, 5);
        CHUNKS(QN_CUDA_Q6K, 6);
        CHUNKS(QN_CUDA_MX, 4);
        CHUNKS(QN_CUDA_NV, 4);
    }
}

static __device__ __forceinline__ void row_factors(const qn_cuda_weight &w, int panel, float inverse[2])
{
    const int in_sums = w.form == QN_CUDA_MX || (w.form == QN_CUDA_AFFINE && w.scale != QN_DTYPE_F16);
    for (int h = 0; h < 2; h++)
        inverse[h] =
            in_sums && w.factor ? 1 / w.factor[panel * QN_CUDA_PANEL + threadIdx.x % 32 / 4 + 8 * h] : 1;
}

/* ---- a product ----------------------------------------------------------------------------------------- */

static __device__ __forceinline__ float apply_first(int op, float x)
{
    switch (op) {
    case QN_PRIM_SILU:
        return op_SILU(x, 0);
    case QN_PRIM_GELU:
        return op_GELU(x, 0);
    case QN_PRIM_GELU_TANH:
        return op_GELU_TANH(x, 0);
    case QN_PRIM_SIGMOID:
        return op_SIGMOID(x, 0);
    default:
        return x;
    }
}

static __device__ __forceinline__ float apply_second(int op, float a, float b)
{
    return op == QN_PRIM_ADD ? a + b : op == QN_PRIM_SUB ? a - b : op == QN_PRIM_MUL ? a * b : a / b;
}

/* What a block has to do of some matrices that are gone through together. */
typedef struct {
    int first, n;   /* matrices */
    int panel, end; /* panels */
    int n_chunks;   /* of each, the same for all: they read the same columns */
} portion;

/* The sums of panels [panel, panel + n) of all matrices of a portion become results. */
static __device__ __forceinline__ void close_panels(const qn_step_product &p, const portion &o, int panel,
                                                    int n, const float *sums, const float *x_scale)
{
    const int per_panel = p.rows * QN_CUDA_PANEL;
    for (int i = threadIdx.x; i < n * per_panel; i += QN_STEP_THREADS) {
        const int at = i / per_panel, r = i % per_panel / QN_CUDA_PANEL;
        const int64_t line = (int64_t)(panel + at) * QN_CUDA_PANEL + i % QN_CUDA_PANEL;
        float y[QN_STEP_MATRICES];
        int is_there = 0;
        QN_UNROLL
        for (int m = 0; m < QN_STEP_MATRICES; m++) {
            y[m] = 0;
            if (m >= o.n) continue;
            const qn_step_matrix &matrix = p.matrix[o.first + m];
            const float *from = sums + (at * o.n + m) * o.n_chunks * per_panel + i % per_panel;
            float sum = 0;
            for (int c = 0; c < o.n_chunks; c++) sum += from[c * per_panel];
            float scale = x_scale[r];
            if (matrix.w.factor) scale *= matrix.w.factor[line];
            y[m] = sum * scale;
            is_there = line < matrix.w.n_out;
            if (is_there) matrix.out[r * matrix.out_stride + line] = y[m];
        }
        const qn_step_epilogue &e = p.epilogue;
        if (!is_there || !e.out) continue;
        const int64_t to = r * p.matrix[0].w.n_out + line;
        const float a = e.a_matrix < 0    ? e.a[to]
                        : e.a_matrix == 0 ? y[0]
                                          : y[1],
                    b = e.b_matrix < 0    ? e.b[to]
                        : e.b_matrix == 0 ? y[0]
                                          : y[1];
        e.out[to] = apply_second(e.second, apply_first(e.first, a), b);
    }
}

/* The form of what a warp multiplies with is the same for both tasks, or they go one after the other. */
static __device__ __forceinline__ int is_alike(const qn_cuda_weight &a, const qn_cuda_weight &b)
{
    return a.form == b.form && a.bits == b.bits && a.block == b.block && a.scale == b.scale;
}

/* Which columns of which panel a task is. */
typedef struct {
    int matrix, panel, chunk, n_tiles;
} task_place;

static __device__ __forceinline__ task_place place_of(const qn_step_product &p, const portion &o, int panel,
                                                      int task)
{
    const int per_panel = o.n * o.n_chunks, of_panel = task % per_panel, matrix = of_panel / o.n_chunks,
              chunk = of_panel - matrix * o.n_chunks, left = p.padded - chunk * QN_CUDA_CHUNK;
    return {o.first + matrix, panel + task / per_panel, chunk,
            (left < QN_CUDA_CHUNK ? left : QN_CUDA_CHUNK) / 64};
}

/* N tasks of a warp into sums; `place` is the first one's. */
template <int N>
static __device__ __forceinline__ void sum_tasks(const qn_step_product &p, const portion &o, const ring &r,
                                                 ring_place *mine, int panel, int task,
                                                 const task_place &place, const uint32_t *x, float *sums)
{
    const int lane = threadIdx.x % 32, per_task = p.rows * QN_CUDA_PANEL;
    const qn_cuda_weight &w = p.matrix[place.matrix].w;
    ring_place now = *mine;
    chunk_sum c[N];
    QN_UNROLL
    for (int i = 0; i < N; i++) {
        const task_place t = i ? place_of(p, o, panel, task + i * r.n_warps) : place;
        c[i].units = r.slots + now.slot * r.bytes;
        c[i].x = x ? x + t.chunk * (QN_CUDA_CHUNK / 2) : NULL;
        for (int e = 0; e < 4; e++) c[i].acc[e] = 0;
        row_factors(p.matrix[t.matrix].w, t.panel, c[i].inverse);
        qn_mbarrier_wait(&r.full[now.slot], now.turn);
        step_on(&now, r.n_warps, r.n);
    }
    sum_any<N>(w, place.n_tiles, c);
    __syncwarp();
    QN_UNROLL
    for (int i = 0; i < N; i++) {
        if (lane == 0) qn_mbarrier_arrive(&r.empty[mine->slot]);
        step_on(mine, r.n_warps, r.n);
        float *to = sums + (task + i * r.n_warps) * per_task + lane % 4 * 2 * QN_CUDA_PANEL + lane / 4;
        if (lane % 4 * 2 < p.rows) to[0] = c[i].acc[0], to[8] = c[i].acc[2];
        if (lane % 4 * 2 + 1 < p.rows) to[16] = c[i].acc[1], to[24] = c[i].acc[3];
    }
}

/* How many slots behind `slot` the next one of a warp lies. */
static __device__ __forceinline__ int behind(int warp, int slot, int n_warps)
{
    const int d = (warp - slot) % n_warps;
    return d < 0 ? d + n_warps : d;
}

/* Groups of panels whose sums fit; while some threads close one group, others begin the next. */
static __device__ __forceinline__ void multiply_portion(const qn_step_product &p, const portion &o,
                                                        const ring &r, ring_place *at, const uint32_t *area,
                                                        char *sums_memory, int sums_bytes,
                                                        const float *x_scale)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row_words = qn_step_row_words(p.padded);
    const int per_panel = o.n * o.n_chunks, per_task = p.rows * QN_CUDA_PANEL;
    const int most = sums_bytes / (per_panel * per_task * (int)sizeof(float));
    const uint32_t *x = lane / 4 < p.rows ? area + lane / 4 * row_words + lane % 4 * 8 : NULL;
    int buffer = 0, skipped = 0; /* tasks of this op behind the ring's place */
    ring_place mine = *at;
    step_on(&mine, behind(warp, at->slot, r.n_warps), r.n);
    for (int panel = o.panel; panel < o.end; panel += most, buffer ^= 1) {
        const int n = o.end - panel < most ? o.end - panel : most;
        float *sums = (float *)(sums_memory + buffer * sums_bytes);
        int task = warp < r.n_warps ? behind(warp, at->slot + skipped, r.n_warps) : n * per_panel;
        while (task < n * per_panel) {
            const task_place place = place_of(p, o, panel, task);
            /* two hold two slots at once: a warp must have so many */
            int two = r.n >= TOGETHER * r.n_warps && task + r.n_warps < n * per_panel;
            if (two) {
                const task_place next = place_of(p, o, panel, task + r.n_warps);
                two = next.n_tiles == place.n_tiles &&
                      is_alike(p.matrix[place.matrix].w, p.matrix[next.matrix].w);
            }
            if (two)
                sum_tasks<TOGETHER>(p, o, r, &mine, panel, task, place, x, sums);
            else
                sum_tasks<1>(p, o, r, &mine, panel, task, place, x, sums);
            task += two ? TOGETHER * r.n_warps : r.n_warps;
        }
        skipped += n * per_panel;
        qn_barrier(1, QN_STEP_THREADS);
        close_panels(p, o, panel, n, sums, x_scale);
    }
    step_on(at, skipped, r.n);
}

static __device__ __forceinline__ void multiply(const qn_step_product &p, const qn_step_plan &plan,
                                                const ring &r, ring_place *at, char *area, char *sums)
{
    __shared__ float x_scale[QN_STEP_ROWS];
    const qn_body b = {blockIdx.x, QN_STEP_TEAM, area};
    const int row_words = qn_step_row_words(p.padded), in_turn = p.is_interleaved ? p.n_matrices : 1;
    for (int i = 0; i < p.rows && threadIdx.x < QN_STEP_TEAM; i++)
        pack_row(b, p, i, (uint32_t *)area + i * row_words, x_scale);
    qn_barrier(1, QN_STEP_THREADS);
    for (int first = 0; first < p.n_matrices; first += in_turn) {
        const int n_panels = (int)p.matrix[first].w.n_panels;
        const portion o = {first, in_turn, begin_of(n_panels, blockIdx.x, plan.n_blocks),
                           begin_of(n_panels, blockIdx.x + 1, plan.n_blocks),
                           (p.padded + QN_CUDA_CHUNK - 1) / QN_CUDA_CHUNK};
        multiply_portion(p, o, r, at, (const uint32_t *)area, sums, plan.sums_bytes, x_scale);
        if (first + in_turn < p.n_matrices) qn_barrier(1, QN_STEP_THREADS); /* sums are read */
    }
}

/* ---- bodies -------------------------------------------------------------------------------------------- */

template <class B> static __device__ __forceinline__ void play(const qn_step_op &o, int n_blocks, char *area)
{
    if ((int)threadIdx.x >= o.threads) return;
    int64_t i = (int)blockIdx.x - o.first;
    if (i < 0) i += n_blocks;
    for (; i < o.grid; i += n_blocks) {
        const qn_body b = {i, o.threads, area};
        B::run(b, *(const typename B::work *)o.work);
    }
}

/* A function of its own, since it needs most registers: inside the kernel all else would spill. area_at: where in
 * the shared memory it may work. */
template <int P> static __device__ __noinline__ void attend(const qn_step_op &o, int n_blocks, int area_at)
{
    QN_SHARED(shared);
    if (threadIdx.x >= QN_ATTEND_THREADS) return;
    const qn_attend_op &op = *(const qn_attend_op *)o.work;
    int64_t i = (int)blockIdx.x - o.first;
    if (i < 0) i += n_blocks;
    /* few positions: a head a block, so that more blocks have work */
    if ((int64_t)op.a.kv_heads * op.a.past * (op.a.positions[0] / QN_GROUP + 1) * 2 < n_blocks) {
        for (; i < op.single_grid; i += n_blocks) {
            qn_attend_few<1>(op.single, i, shared + area_at);
            qn_barrier(2, QN_ATTEND_THREADS);
        }
        return;
    }
    for (; i < o.grid; i += n_blocks) {
        qn_attend_few<P>(op.a, i, shared + area_at);
        qn_barrier(2, QN_ATTEND_THREADS);
    }
}

static __device__ __forceinline__ void play_op(const qn_step_op &o, const qn_step_plan &plan, const ring &r,
                                               ring_place *at, char *area, char *sums)
{
    const int n = plan.n_blocks;
    switch (o.op) {
    case QN_OP_TAKE:
        play<qn_take_packed>(o, n, area);
        break;
    case QN_OP_ANGLES:
        play<qn_find_angles>(o, n, area);
        break;
    case QN_OP_RMS_NARROW:
        play<qn_rms_norm<false, true>>(o, n, area);
        break;
    case QN_OP_RMS_WIDE:
        play<qn_rms_norm<true, true>>(o, n, area);
        break;
    case QN_OP_ROTATE:
        play<qn_rotate>(o, n, area);
        break;
    case QN_OP_CHAIN:
        play<qn_any_chain<1>>(o, n, area);
        break;
    case QN_OP_WRITE:
        play<qn_write_rows>(o, n, area);
        break;
    case QN_OP_MERGE:
        play<qn_merge_groups>(o, n, area);
        break;
    case QN_OP_ATTEND: {
        const int pairs = ((const qn_attend_op *)o.work)->pairs;
        if (pairs == 1)
            attend<1>(o, n, plan.n_slots * plan.slot_bytes);
        else if (pairs == 4)
            attend<4>(o, n, plan.n_slots * plan.slot_bytes);
        else
            attend<8>(o, n, plan.n_slots * plan.slot_bytes);
        break;
    }
    case QN_OP_PRODUCT:
        multiply(*(const qn_step_product *)o.work, plan, r, at, area, sums);
        break;
    }
}

static __global__ void __launch_bounds__(ALL_THREADS, 1) play_step(qn_step_plan plan)
{
    QN_SHARED(shared);
    __shared__ qn_mbarrier full[QN_STEP_SLOTS], empty[QN_STEP_SLOTS];
    __shared__ __align__(16) uint32_t ops[2][sizeof(qn_step_op) / 4];
    enum { WORDS = sizeof(qn_step_op) / 4 };
    static_assert((int)WORDS <= (int)QN_STEP_THREADS, "a thread fetches a word of the next op");
    const ring r = {shared, full, empty, plan.n_slots, plan.slot_bytes, plan.n_warps};
    char *const area = shared + plan.n_slots * plan.slot_bytes, *const sums = area + plan.area_bytes;
    if (threadIdx.x == 0) {
        for (int i = 0; i < plan.n_slots; i++) {
            qn_mbarrier_init(&full[i], 1);
            qn_mbarrier_init(&empty[i], 1);
        }
        qn_mbarrier_init_done();
    }
    if (threadIdx.x < WORDS) ops[0][threadIdx.x] = ((const uint32_t *)plan.ops)[threadIdx.x];
    __syncthreads();
    if (threadIdx.x / 32 == PRODUCER) {
        if (threadIdx.x % 32 == 0) bring_all(plan, r);
        return;
    }
    ring_place at = {0, 0};
    unsigned target = plan.base;
    for (int i = 0; i < plan.n_ops; i++) {
        const qn_step_op &o = *(const qn_step_op *)ops[i & 1];
        uint32_t next = 0;
        if (i + 1 < plan.n_ops && threadIdx.x < WORDS)
            next = ((const uint32_t *)(plan.ops + i + 1))[threadIdx.x];
        if (o.waits && i) {
            target += (unsigned)plan.n_blocks;
            if (threadIdx.x == 0) {
                arrive(plan.counter);
                await(plan.counter, target);
            }
            qn_barrier(1, QN_STEP_THREADS);
        }
        play_op(o, plan, r, &at, area, sums);
        if (threadIdx.x < WORDS) ops[(i + 1) & 1][threadIdx.x] = next;
        qn_barrier(1, QN_STEP_THREADS);
    }
}

/* ---- on the host --------------------------------------------------------------------------------------- */

int qn_step_runs_on(const qn_cuda_context *c)
{
#ifdef QN_CUDA_HOST
    return 1;
#else
    return c->major == 9;
#endif
}

int qn_step_can_attend(const qn_attend_op *a)
{
    return qn_can_attend_few(&a->a, a->dtype, a->pairs);
}

int qn_step_can_multiply(const qn_step_product *p)
{
    return p->rows <= QN_STEP_ROWS && p->n_in % 4 == 0 && p->x_row % 4 == 0 && (uintptr_t)p->x % 16 == 0 &&
           p->matrix[0].w.unit_bytes % 16 == 0;
}

int qn_step_knows_pair(int first, int second)
{
    return (first == QN_PRIM_COPY || first == QN_PRIM_SILU || first == QN_PRIM_GELU ||
            first == QN_PRIM_GELU_TANH || first == QN_PRIM_SIGMOID) &&
           (second == QN_PRIM_ADD || second == QN_PRIM_SUB || second == QN_PRIM_MUL || second == QN_PRIM_DIV);
}

qn_status qn_step_launch(qn_cuda_context *c, const qn_step_plan *plan)
{
#ifdef QN_CUDA_HOST
    return qn_cuda_launch(c, play_step, plan->n_blocks, ALL_THREADS, plan->shared_bytes, *plan);
#else
    cudaError_t e = cudaFuncSetAttribute((const void *)play_step, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)plan->shared_bytes);
    void *arguments[] = {(void *)plan};
    if (e == cudaSuccess)
        e = cudaLaunchCooperativeKernel((const void *)play_step, dim3((unsigned)plan->n_blocks),
                                        dim3(ALL_THREADS), arguments, plan->shared_bytes, c->stream);
    return qn_cuda_check(c, e, "a step");
#endif
}
