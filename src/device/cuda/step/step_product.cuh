/* Products in the step kernel (step.cu): the ring through which weights come, rows packed by every block for itself,
 * and tasks.
 *
 * A task is a chunk of a panel: it lies in one slot of the ring, and one warp sums it up. A slot is always the same
 * warp's: slots are filled in any order, and a warp that waited for another one's slot could take the filling before
 * its own for its own. The panels of all matrices of a product are one list, and a block has its share of it. */
#ifndef QN_DEVICE_CUDA_STEP_STEP_PRODUCT_CUH
#define QN_DEVICE_CUDA_STEP_STEP_PRODUCT_CUH

#include "device/cuda/product/panel.cuh"
#include "device/cuda/step/step_kernel.cuh"

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

/* Panels of matrices that lie one behind the other: the one that panel *at is of; *at becomes its number there. */
template <class M> static __device__ __forceinline__ int matrix_of_panel(const M &m, int n_matrices, int *at)
{
    int i = 0;
    for (; i + 1 < n_matrices && *at >= m.panels(i); i++) *at -= m.panels(i);
    return i;
}

struct feed_panels {
    const qn_step_feed &f;
    __device__ int panels(int i) const
    {
        return f.stream[i].n_panels;
    }
};

/* The tasks of all products, in the order in which they are consumed. By one thread. */
static __device__ __forceinline__ void bring_all(const qn_step_plan &plan, const ring &r)
{
    ring_place at = {0, 0};
    for (int i = 0; i < plan.n_feeds; i++) {
        const qn_step_feed &f = plan.feeds[i];
        int n_panels = 0;
        for (int m = 0; m < (f.is_interleaved ? 1 : f.n_matrices); m++) n_panels += f.stream[m].n_panels;
        const int end = begin_of(n_panels, blockIdx.x + 1, plan.n_blocks);
        for (int panel = begin_of(n_panels, blockIdx.x, plan.n_blocks); panel < end; panel++) {
            int of_matrix = panel,
                m = f.is_interleaved ? 0 : matrix_of_panel(feed_panels{f}, f.n_matrices, &of_matrix);
            const int last = f.is_interleaved ? f.n_matrices - 1 : m;
            for (; m <= last; m++) {
                const qn_step_stream s = f.stream[m];
                for (int chunk = 0; chunk < s.n_chunks; chunk++) bring(s, of_matrix, chunk, r, &at);
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

/* Row r of a product's activations to shared memory, as pack_rows in product.cu and RMS_NORM have it. A thread keeps
 * 4 * KEPT columns, NORMED also their factors: all loads are under way before the first is waited for. Longer rows
 * are read again. */
template <int KEPT, bool NORMED>
static __device__ __forceinline__ void pack_row(const qn_body &b, const qn_step_product &p, int r,
                                                uint32_t *to, float *scale)
{
    const float *x = p.x + r * p.x_row;
    float kept[KEPT][4], factors[NORMED ? KEPT : 1][4], v[4], s = 0, most = 0;
    const int first = 4 * threadIdx.x, stride = 4 * QN_STEP_TEAM;
    norming n = {0, p.norm, p.offset};
    QN_UNROLL
    for (int q = 0; q < KEPT; q++) {
        get_four(x, first + q * stride, p.n_in, kept[q]);
        if (NORMED && p.norm) get_four(p.norm, first + q * stride, p.n_in, factors[NORMED ? q : 0]);
    }
    if (NORMED) {
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
        for (int e = 0; NORMED && e < 4; e++) {
            kept[q][e] *= n.root;
            if (p.norm) kept[q][e] *= factors[NORMED ? q : 0][e] + p.offset;
        }
        most = larger_of_four(kept[q], most);
    }
    for (int k = first + KEPT * stride; k < p.n_in; k += stride) {
        get_four(x, k, p.n_in, v);
        norm_four(n, k, p.n_in, v);
        most = larger_of_four(v, most);
    }
    const int e = qn_cuda_row_exponent(largest_of(b, most));
    const float down = qn_cuda_power_of_two(-e);
    float *const normed = NORMED && p.normed && blockIdx.x == 0 ? p.normed + (int64_t)r * p.n_in : NULL;
    if (threadIdx.x == 0) scale[r] = qn_cuda_power_of_two(e);
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

static __device__ __forceinline__ void pack_rows(const qn_body &b, const qn_step_product &p, uint32_t *to,
                                                 float *scale)
{
    const int row_words = qn_step_row_words(p.padded);
    for (int i = 0; i < p.rows; i++, to += row_words) {
        if (p.has_norm)
            pack_row<4, true>(b, p, i, to, scale);
        else if (p.n_in <= 4 * 4 * QN_STEP_TEAM)
            pack_row<4, false>(b, p, i, to, scale);
        else
            pack_row<16, false>(b, p, i, to, scale);
    }
}

/* ---- a task -------------------------------------------------------------------------------------------- */

/* The chain of a chunk. x: of the lane's token, NULL: it does not exist. */
template <int FORM, int BITS>
static __device__ __forceinline__ void sum_chunk(const qn_cuda_weight &w, int n_tiles, const char *units,
                                                 const uint32_t *x, const float inverse[2], float acc[4])
{
    const int lane = threadIdx.x % 32, last = w.unit_k / 64 - 1;
    int in_unit = 0;
#pragma unroll 1
    for (int t = 0; t < n_tiles; t++) {
        uint32_t a[16], b[8];
        QN_UNROLL
        for (int i = 0; i < 8; i++) b[i] = 0;
        if (x) {
            const uint4 low = *(const uint4 *)(x + t * 32), high = *(const uint4 *)(x + t * 32 + 4);
            b[0] = low.x, b[1] = low.y, b[2] = low.z, b[3] = low.w;
            b[4] = high.x, b[5] = high.y, b[6] = high.z, b[7] = high.w;
        }
        qn_tile_halves<FORM, BITS>(w, units, in_unit, lane, inverse, a);
        QN_UNROLL
        for (int s = 0; s < 4; s++) qn_mma_f16(acc, a + 4 * s, b + 2 * s);
        if (in_unit == last) {
            in_unit = 0;
            units += w.unit_bytes;
        } else {
            in_unit++;
        }
    }
}

#define CHUNK(form, bits)                                          \
    case (form)*32 + (bits):                                       \
        sum_chunk<form, bits>(w, n_tiles, units, x, inverse, acc); \
        break
static __device__ __forceinline__ void sum_any(const qn_cuda_weight &w, int n_tiles, const char *units,
                                               const uint32_t *x, const float inverse[2], float acc[4])
{
    switch (w.form * 32 + w.bits) {
        CHUNK(QN_CUDA_F16, 16);
        CHUNK(QN_CUDA_SCALED, 4);
        CHUNK(QN_CUDA_SCALED, 5);
        CHUNK(QN_CUDA_SCALED, 8);
        CHUNK(QN_CUDA_AFFINE, 2);
        CHUNK(QN_CUDA_AFFINE, 3);
        CHUNK(QN_CUDA_AFFINE, 4);
        CHUNK(QN_CUDA_AFFINE, 5);
        CHUNK(QN_CUDA_AFFINE, 6);
        CHUNK(QN_CUDA_AFFINE, 8);
        CHUNK(QN_CUDA_K, 4);
        CHUNK(QN_CUDA_K, 5);
        CHUNK(QN_CUDA_Q6K, 6);
        CHUNK(QN_CUDA_MX, 4);
        CHUNK(QN_CUDA_NV, 4);
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

/* Panels [panel, end) are a block's, of all matrices in turn (in_turn of them), or of one behind the other. */
typedef struct {
    int in_turn, n_chunks;
    int panel, end;
} portion;

struct product_panels {
    const qn_step_product &p;
    __device__ int panels(int i) const
    {
        return (int)p.matrix[i].w.n_panels;
    }
};

/* The first of the matrices that a panel of a portion is of; *panel becomes its number there. */
static __device__ __forceinline__ int first_matrix(const qn_step_product &p, int *panel)
{
    return p.is_interleaved ? 0 : matrix_of_panel(product_panels{p}, p.n_matrices, panel);
}

/* The sums of panels [panel, panel + n) of a portion become results. */
static __device__ __forceinline__ void close_panels(const qn_step_product &p, const portion &o, int panel,
                                                    int n, const float *sums, const float *x_scale)
{
    const int per_panel = p.rows * QN_CUDA_PANEL;
    for (int i = threadIdx.x; i < n * per_panel; i += QN_STEP_THREADS) {
        const int at = i / per_panel, r = i % per_panel / QN_CUDA_PANEL;
        int of_matrix = panel + at;
        const int first = first_matrix(p, &of_matrix);
        const int64_t line = (int64_t)of_matrix * QN_CUDA_PANEL + i % QN_CUDA_PANEL;
        float y[2] = {0, 0};
        int is_there = 0;
        QN_UNROLL
        for (int m = 0; m < 2; m++) {
            if (m >= o.in_turn) continue;
            const qn_step_matrix &matrix = p.matrix[first + m];
            const float *from = sums + (at * o.in_turn + m) * o.n_chunks * per_panel + i % per_panel;
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

/* A warp's next task: the panel of the portion, chunk by chunk of its matrices, and what it is of the matrices. */
typedef struct {
    int panel, of_panel;
    int matrix, of_matrix;
} task_walk;

static __device__ __forceinline__ void walk_on(const qn_step_product &p, int per_panel, task_walk *w, int by)
{
    w->of_panel += by;
    if (w->of_panel < per_panel) return;
    for (; w->of_panel >= per_panel; w->of_panel -= per_panel) w->panel++;
    w->of_matrix = w->panel;
    w->matrix = first_matrix(p, &w->of_matrix);
}

/* A task of a warp, in the slot at `now`, into sums. */
static __device__ __forceinline__ void sum_task(const qn_step_product &p, const ring &r,
                                                const ring_place &now, const task_walk &t, int n_chunks,
                                                const uint32_t *x, float *sums)
{
    const int lane = threadIdx.x % 32, token = lane % 4 * 2;
    const int is_second = t.of_panel >= n_chunks, chunk = is_second ? t.of_panel - n_chunks : t.of_panel;
    const int left = p.padded - chunk * QN_CUDA_CHUNK,
              n_tiles = (left < QN_CUDA_CHUNK ? left : QN_CUDA_CHUNK) / 64;
    const qn_cuda_weight &w = p.matrix[t.matrix + is_second].w;
    float inverse[2], acc[4] = {0, 0, 0, 0};
    row_factors(w, t.of_matrix, inverse);
    qn_mbarrier_wait(&r.full[now.slot], now.turn);
    sum_any(w, n_tiles, r.slots + now.slot * r.bytes, x ? x + chunk * (QN_CUDA_CHUNK / 2) : NULL, inverse,
            acc);
    __syncwarp();
    if (lane == 0) qn_mbarrier_arrive(&r.empty[now.slot]);
    float *to = sums + token * QN_CUDA_PANEL + lane / 4;
    if (token < p.rows) to[0] = acc[0], to[8] = acc[2];
    if (token + 1 < p.rows) to[16] = acc[1], to[24] = acc[3];
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
    const int per_panel = o.in_turn * o.n_chunks, per_task = p.rows * QN_CUDA_PANEL;
    const int most = sums_bytes / (per_panel * per_task * (int)sizeof(float));
    const uint32_t *x = lane / 4 < p.rows ? area + lane / 4 * row_words + lane % 4 * 8 : NULL;
    int buffer = 0, skipped = 0; /* tasks of this op behind the ring's place */
    ring_place mine = *at;
    task_walk next = {o.panel, 0, 0, o.panel};
    const int lead = behind(warp, at->slot, r.n_warps);
    next.matrix = first_matrix(p, &next.of_matrix);
    step_on(&mine, lead, r.n);
    walk_on(p, per_panel, &next, lead);
    if (warp >= r.n_warps) next.panel = o.end;
    for (int panel = o.panel; panel < o.end; panel += most, buffer ^= 1) {
        const int n = o.end - panel < most ? o.end - panel : most;
        float *sums = (float *)(sums_memory + buffer * sums_bytes);
        while (next.panel < panel + n) {
            float *to = sums + ((next.panel - panel) * per_panel + next.of_panel) * per_task;
            sum_task(p, r, mine, next, o.n_chunks, x, to);
            step_on(&mine, r.n_warps, r.n);
            walk_on(p, per_panel, &next, r.n_warps);
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
    const int in_turn = p.is_interleaved ? p.n_matrices : 1;
    if (threadIdx.x < QN_STEP_TEAM) pack_rows(b, p, (uint32_t *)area, x_scale);
    qn_barrier(1, QN_STEP_THREADS);
    int n_panels = 0;
    for (int m = 0; m < (p.is_interleaved ? 1 : p.n_matrices); m++) n_panels += (int)p.matrix[m].w.n_panels;
    const portion o = {in_turn, (p.padded + QN_CUDA_CHUNK - 1) / QN_CUDA_CHUNK,
                       begin_of(n_panels, blockIdx.x, plan.n_blocks),
                       begin_of(n_panels, blockIdx.x + 1, plan.n_blocks)};
    multiply_portion(p, o, r, at, (const uint32_t *)area, sums, plan.sums_bytes, x_scale);
}

#endif
