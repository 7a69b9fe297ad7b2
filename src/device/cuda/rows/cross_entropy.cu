/* Losses of rows by a head, and their gradients, in f32, with no more of the logits at a time than ROWS rows by a
 * part of the vocabulary.
 *
 * A logit is one chain of multiply-adds. Blocks of QN_ROW_BLOCK logits lie at fixed places of the vocabulary; their
 * largest and their sum of exp are merged in a fixed order. The gradient computes the logits again: what the
 * softmax is divided by comes from the loss and the target's logit. */
#include "device/cuda/product/tile.cuh"
#include "prim/units.h"

constexpr int64_t ROWS = 1024,
                  PART = 4096; /* that are taken together; of the vocabulary, whose gradients scratch holds */
static_assert((int)QN_TILE_COLUMNS == (int)QN_ROW_BLOCK, "a tile's rows are blocks of logits");

typedef struct {
    const float *x, *plain; /* rows; a plain head, or NULL */
    const int32_t *targets;
    const float *losses, *d_losses; /* of the gradient */
    float *out;
    int64_t x_stride, target_stride, loss_stride, d_loss_stride;
    int64_t k, vocab, n_blocks, first, n; /* columns; rows [first, first + n) are taken now */
    float scale, softcap;
    float *largest, *total, *z; /* [n][n_blocks] twice; the targets' logits [n] */
    float *g;                   /* [n][PART], gradients by the part's products */
    int64_t begin, part;        /* of the vocabulary, and how much of it */
} work;

static __device__ __forceinline__ float head_value(const work &w, const qn_cuda_weight &head, int64_t v,
                                                   int64_t k)
{
    return w.plain ? w.plain[v * w.k + k] : qn_cuda_value(&head, 0, v, k);
}

/* -1: outside the vocabulary, no target. */
static __device__ __forceinline__ int64_t target_of(const work &w, int64_t r)
{
    const int32_t id = w.targets[(w.first + r) * w.target_stride];
    return id >= 0 && id < w.vocab ? id : -1;
}

/* The logit of a product; *slope: its derivative by that, without the scale. */
static __device__ __forceinline__ float finish(const work &w, float product, float *slope)
{
    float z = product * w.scale;
    *slope = 1;
    if (!(w.softcap > 0)) return z;
    const float t = tanhf(z * (1 / w.softcap));
    *slope = 1 - t * t;
    return t * w.softcap;
}

/* Products of the rows from `row` on with the vocabulary from v on. */
static __device__ __forceinline__ void find_products(const work &w, const qn_cuda_weight &head, int64_t row,
                                                     int64_t v, qn_tile_shared &shared, qn_tile_sums &sums)
{
    const float *x = w.x + (w.first + row) * w.x_stride;
    for (int r = 0; r < 8; r++)
        for (int c = 0; c < 8; c++) sums.x[r][c] = 0;
    qn_tile_multiply<true, true>(
        shared, [&](int i, int64_t p) { return x[i * w.x_stride + p]; }, w.n - row,
        [&](int i, int64_t p) { return head_value(w, head, v + i, p); }, w.vocab - v, w.k, sums);
}

/* ---- losses -------------------------------------------------------------------------------------------- */

/* Of 64 rows and a block: the largest logit of each row, the sum of exp beside it, the target's if it is here. */
static __global__ void __launch_bounds__(QN_TILE_THREADS)
    find_sums(const __grid_constant__ work w, const __grid_constant__ qn_cuda_weight head)
{
    __shared__ qn_tile_shared shared;
    const int64_t block = blockIdx.x % w.n_blocks, row = blockIdx.x / w.n_blocks * QN_TILE_ROWS,
                  v = block * QN_ROW_BLOCK;
    qn_tile_sums sums;
    find_products(w, head, row, v, shared, sums);
    QN_UNROLL
    for (int r = 0; r < 8; r++) {
        const int64_t own = row + qn_tile_row(r), target = own < w.n ? target_of(w, own) : -1;
        float most = -INFINITY, sum = 0, slope;
        for (int c = 0; c < 8; c++) {
            const int64_t at = v + qn_tile_column(c);
            if (at >= w.vocab) continue;
            sums.x[r][c] = finish(w, sums.x[r][c], &slope);
            most = qn_larger(most, sums.x[r][c]);
            if (at == target) w.z[own] = sums.x[r][c];
        }
        most = qn_warp_max(most);
        for (int c = 0; c < 8; c++)
            if (v + qn_tile_column(c) < w.vocab) sum += expf(sums.x[r][c] - most);
        sum = qn_warp_sum(sum);
        if (threadIdx.x % 32 || own >= w.n) continue;
        w.largest[own * w.n_blocks + block] = most;
        w.total[own * w.n_blocks + block] = sum;
    }
}

/* A warp a row: log of the sum over all blocks, less the target's logit. */
static __global__ void find_losses(work w)
{
    const int64_t r = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (r >= w.n) return;
    const float *largest = w.largest + r * w.n_blocks, *total = w.total + r * w.n_blocks;
    float most = -INFINITY, sum = 0;
    for (int64_t b = lane; b < w.n_blocks; b += 32) most = qn_larger(most, largest[b]);
    most = qn_warp_max(most);
    for (int64_t b = lane; b < w.n_blocks; b += 32) sum = fmaf(expf(largest[b] - most), total[b], sum);
    sum = qn_warp_sum(sum);
    if (lane == 0) w.out[w.first + r] = target_of(w, r) < 0 ? 0 : most + logf(sum) - w.z[r];
}

/* ---- gradients ----------------------------------------------------------------------------------------- */

/* A warp a row: the target's logit, by the chain that the tiles compute. */
static __global__ void find_target(const __grid_constant__ work w,
                                   const __grid_constant__ qn_cuda_weight head)
{
    const int64_t r = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (r >= w.n) return;
    const int64_t target = target_of(w, r);
    const float *x = w.x + (w.first + r) * w.x_stride;
    float sum = 0, slope;
    for (int64_t p = 0; p < w.k; p += 32) {
        const int is_in = target >= 0 && p + lane < w.k;
        const float a = is_in ? x[p + lane] : 0.0f, b = is_in ? head_value(w, head, target, p + lane) : 0.0f;
        for (int i = 0; i < 32; i++)
            sum = fmaf(__shfl_sync(0xffffffffu, a, i), __shfl_sync(0xffffffffu, b, i), sum);
    }
    if (lane == 0) w.z[r] = finish(w, sum, &slope);
}

/* Gradients by the products of 64 rows with a block of the part. */
static __global__ void __launch_bounds__(QN_TILE_THREADS)
    find_gradients(const __grid_constant__ work w, const __grid_constant__ qn_cuda_weight head)
{
    __shared__ qn_tile_shared shared;
    const int64_t n_blocks = (w.part + QN_ROW_BLOCK - 1) / QN_ROW_BLOCK;
    const int64_t row = blockIdx.x / n_blocks * QN_TILE_ROWS, at = blockIdx.x % n_blocks * QN_ROW_BLOCK;
    qn_tile_sums sums;
    find_products(w, head, row, w.begin + at, shared, sums);
    QN_UNROLL
    for (int r = 0; r < 8; r++) {
        const int64_t own = row + qn_tile_row(r), target = own < w.n ? target_of(w, own) : -1;
        if (own >= w.n) continue;
        const float factor = target < 0 ? 0 : w.d_losses[(w.first + own) * w.d_loss_stride] * w.scale;
        const float lse = target < 0 ? 0 : w.losses[(w.first + own) * w.loss_stride] + w.z[own];
        for (int c = 0; c < 8; c++) {
            const int64_t v = at + qn_tile_column(c);
            if (v >= w.part) continue;
            float slope, g = 0;
            if (target >= 0) {
                g = expf(finish(w, sums.x[r][c], &slope) - lse) - (w.begin + v == target ? 1.0f : 0.0f);
                g = g * slope * factor;
            }
            w.g[own * PART + v] = g;
        }
    }
}

static __device__ __forceinline__ void move_sums(float *out, int64_t stride, int64_t n_rows,
                                                 int64_t n_columns, qn_tile_sums &sums, bool stores)
{
    for (int r = 0; r < 8; r++)
        for (int c = 0; c < 8; c++) {
            const int row = qn_tile_row(r), column = qn_tile_column(c);
            const bool is_in = row < n_rows && column < n_columns;
            if (stores && is_in) out[row * stride + column] = sums.x[r][c];
            if (!stores) sums.x[r][c] = is_in ? out[row * stride + column] : 0.0f;
        }
}

/* Rows' gradients += those by the part's products times the part of the head; the first part begins at 0. */
static __global__ void __launch_bounds__(QN_TILE_THREADS)
    add_by_rows(const __grid_constant__ work w, const __grid_constant__ qn_cuda_weight head)
{
    __shared__ qn_tile_shared shared;
    const int64_t n_tiles = (w.k + QN_TILE_COLUMNS - 1) / QN_TILE_COLUMNS;
    const int64_t row = blockIdx.x / n_tiles * QN_TILE_ROWS, k = blockIdx.x % n_tiles * QN_TILE_COLUMNS;
    const float *g = w.g + row * PART;
    float *out = w.out + (w.first + row) * w.k + k;
    qn_tile_sums sums;
    move_sums(out, w.k, w.begin ? w.n - row : 0, w.k - k, sums, false);
    qn_tile_multiply<true, false>(
        shared, [&](int i, int64_t p) { return g[i * PART + p]; }, w.n - row,
        [&](int i, int64_t p) { return head_value(w, head, w.begin + p, k + i); }, w.k - k, w.part, sums);
    move_sums(out, w.k, w.n - row, w.k - k, sums, true);
}

/* The part's rows of the head's gradient += transpose of those by its products times the rows. */
static __global__ void __launch_bounds__(QN_TILE_THREADS) add_by_head(const __grid_constant__ work w)
{
    __shared__ qn_tile_shared shared;
    const int64_t n_tiles = (w.k + QN_TILE_COLUMNS - 1) / QN_TILE_COLUMNS;
    const int64_t v = blockIdx.x / n_tiles * QN_TILE_ROWS, k = blockIdx.x % n_tiles * QN_TILE_COLUMNS;
    const float *x = w.x + w.first * w.x_stride + k;
    float *out = w.out + (w.begin + v) * w.k + k;
    qn_tile_sums sums;
    move_sums(out, w.k, w.first ? w.part - v : 0, w.k - k, sums, false);
    qn_tile_multiply<false, false>(
        shared, [&](int i, int64_t p) { return w.g[p * PART + v + i]; }, w.part - v,
        [&](int i, int64_t p) { return x[p * w.x_stride + i]; }, w.k - k, w.n, sums);
    move_sums(out, w.k, w.part - v, w.k - k, sums, true);
}

/* ---- launching ----------------------------------------------------------------------------------------- */

static work work_of(const qn_cuda_step *s)
{
    const qn_cuda_operand *head = &s->in[1];
    const qn_params_cross_entropy *p = &s->params->cross_entropy;
    work w = {};
    w.x = (const float *)s->in[0].data;
    w.plain = head->weight ? NULL : (const float *)head->data;
    w.targets = (const int32_t *)s->in[2].data;
    w.x_stride = s->in[0].stride[0];
    w.target_stride = s->in[2].stride[0];
    if (s->n_in > 4) {
        w.losses = (const float *)s->in[3].data;
        w.loss_stride = s->in[3].stride[0];
        w.d_losses = (const float *)s->in[4].data;
        w.d_loss_stride = s->in[4].stride[0];
    }
    w.out = (float *)s->out.data;
    w.k = head->dim[1];
    w.vocab = head->dim[0];
    w.n_blocks = qn_blocks(w.vocab, QN_ROW_BLOCK);
    w.scale = p->scale;
    w.softcap = p->softcap;
    return w;
}

static int64_t most_rows(const qn_cuda_step *s)
{
    return s->in[0].dim[0] < ROWS ? s->in[0].dim[0] : ROWS;
}

static size_t losses_scratch(const qn_cuda_step *s)
{
    return (size_t)(most_rows(s) * (2 * qn_blocks(s->in[1].dim[0], QN_ROW_BLOCK) + 1)) * sizeof(float);
}

static size_t gradient_scratch(const qn_cuda_step *s)
{
    return (size_t)(most_rows(s) * (PART + 1)) * sizeof(float);
}

static qn_status check_head(const qn_cuda_step *s)
{
    const qn_cuda_operand *head = &s->in[1];
    if (head->weight || head->dtype == QN_DTYPE_F32) return QN_OK;
    return qn_cuda_fail(QN_E_UNSUPPORTED, "device cuda: cross entropy by a plain head that is not f32");
}

static qn_status launch_losses(qn_cuda_context *c, const qn_cuda_step *s)
{
    work w = work_of(s);
    const qn_cuda_weight none = {}, *head = s->in[1].weight ? s->in[1].weight : &none;
    const int64_t rows = s->in[0].dim[0];
    qn_status status = check_head(s);
    for (w.first = 0; status == QN_OK && w.first < rows; w.first += ROWS) {
        w.n = rows - w.first < ROWS ? rows - w.first : ROWS;
        w.largest = (float *)s->scratch;
        w.total = w.largest + w.n * w.n_blocks;
        w.z = w.total + w.n * w.n_blocks;
        status = qn_cuda_begin(c, find_sums, qn_blocks(w.n, QN_TILE_ROWS) * w.n_blocks, QN_TILE_THREADS, 0, w,
                               *head);
        if (status == QN_OK) status = qn_cuda_begin(c, find_losses, qn_blocks(w.n, 4), 128, 0, w);
    }
    return status;
}

static qn_status launch_gradient(qn_cuda_context *c, const qn_cuda_step *s)
{
    work w = work_of(s);
    const qn_cuda_weight none = {}, *head = s->in[1].weight ? s->in[1].weight : &none;
    const int64_t rows = s->in[0].dim[0], k_tiles = qn_blocks(w.k, QN_TILE_COLUMNS);
    const int by_head = s->params->cross_entropy.which;
    qn_status status = check_head(s);
    /* of no rows a head's gradient is 0 */
    for (w.first = 0; status == QN_OK && (w.first < rows || (by_head && !w.first)); w.first += ROWS) {
        w.n = rows - w.first < ROWS ? rows - w.first : ROWS;
        w.g = (float *)s->scratch;
        w.z = w.g + w.n * PART;
        const int64_t row_tiles = qn_blocks(w.n, QN_TILE_ROWS);
        status = qn_cuda_begin(c, find_target, qn_blocks(w.n, 4), 128, 0, w, *head);
        for (w.begin = 0; status == QN_OK && w.begin < w.vocab; w.begin += PART) {
            w.part = w.vocab - w.begin < PART ? w.vocab - w.begin : PART;
            status = qn_cuda_begin(c, find_gradients, row_tiles * qn_blocks(w.part, QN_ROW_BLOCK),
                                   QN_TILE_THREADS, 0, w, *head);
            if (status != QN_OK) break;
            status = by_head
                         ? qn_cuda_begin(c, add_by_head, qn_blocks(w.part, QN_TILE_ROWS) * k_tiles,
                                         QN_TILE_THREADS, 0, w)
                         : qn_cuda_begin(c, add_by_rows, row_tiles * k_tiles, QN_TILE_THREADS, 0, w, *head);
        }
    }
    return status;
}

extern const qn_cuda_prim qn_cuda_prim_CROSS_ENTROPY, qn_cuda_prim_CROSS_ENTROPY_GRAD;
const qn_cuda_prim qn_cuda_prim_CROSS_ENTROPY = {launch_losses, losses_scratch};
const qn_cuda_prim qn_cuda_prim_CROSS_ENTROPY_GRAD = {launch_gradient, gradient_scratch};
