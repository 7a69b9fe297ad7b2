/* Products of rows with plain matrices that their ids name, and the sums of outer products that are the gradient by
 * these matrices: for training, where the matrices are factors of low rank. An output of GATHER_MM is one chain over
 * rising k, one of SCATTER_MM a chain over the matrix' pairs of row and choice in rising order. */
#include "device/cuda/kernel.cuh"

/* Vectors of rows, or of a row's choices. */
typedef struct {
    const float *data;
    int64_t row, choice; /* strides */
} vectors;

static vectors vectors_of(const qn_cuda_operand *o)
{
    const vectors v = {(const float *)o->data, o->stride[0], o->n == 3 ? o->stride[1] : 0};
    return v;
}

/* ---- products ------------------------------------------------------------------------------------------ */

/* A warp takes 32 outputs of one pair of row and choice. */
enum { BLOCK = 256, WARPS = BLOCK / 32 };

typedef struct {
    vectors x;
    const float *w;
    const int32_t *ids;
    float *out;
    int64_t w_stride, ids_row, top, n, k, pieces, n_warps; /* pieces: warps over n */
} gather_step;

/* Which outputs a warp computes. */
typedef struct {
    const float *x, *w;
    int64_t first;
    float *out; /* of the first one */
} outputs;

static __device__ __forceinline__ outputs outputs_of(const gather_step &p, int64_t warp)
{
    const int64_t pair = warp / p.pieces, row = pair / p.top, choice = pair % p.top,
                  first = warp % p.pieces * 32;
    const outputs o = {p.x.data + row * p.x.row + choice * p.x.choice,
                       p.w + p.ids[row * p.ids_row + choice] * p.w_stride, first, p.out + pair * p.n + first};
    return o;
}

/* The matrix is [k, n]: a lane reads its column. */
static __global__ void gather_columns(const gather_step p)
{
    const int64_t warp = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32;
    if (warp >= p.n_warps) return;
    const outputs o = outputs_of(p, warp);
    if (o.first + lane >= p.n) return;
    float sum = 0;
    for (int64_t k = 0; k < p.k; k++) sum = fmaf(o.x[k], o.w[k * p.n + o.first + lane], sum);
    o.out[lane] = sum;
}

/* The matrix is [n, k]: 32 rows of 32 columns at a time go through shared memory, so that a warp reads runs of
 * memory and a lane its row. */
static __global__ void gather_rows(const gather_step p)
{
    __shared__ float tiles[WARPS][32][33];
    __shared__ float values[WARPS][32];
    const int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32, is_there = at < p.n_warps;
    const outputs o = outputs_of(p, is_there ? at : 0);
    float(*tile)[33] = tiles[threadIdx.x / 32], *x = values[threadIdx.x / 32], sum = 0;
    for (int64_t k = 0; k < p.k; k += 32) {
        const int n = p.k - k < 32 ? (int)(p.k - k) : 32;
        for (int i = 0; i < 32; i++)
            tile[i][lane] = o.first + i < p.n && lane < n ? o.w[(o.first + i) * p.k + k + lane] : 0;
        x[lane] = lane < n ? o.x[k + lane] : 0;
        __syncwarp();
        for (int i = 0; i < n; i++) sum = fmaf(x[i], tile[lane][i], sum);
        __syncwarp();
    }
    if (is_there && o.first + lane < p.n) o.out[lane] = sum;
}

static qn_status gather_launch(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *x = &s->in[0], *ids = &s->in[2];
    gather_step p;
    p.x = vectors_of(x);
    p.w = (const float *)s->in[1].data, p.w_stride = s->in[1].stride[0];
    p.ids = (const int32_t *)ids->data, p.ids_row = ids->stride[0];
    p.out = (float *)s->out.data;
    p.top = ids->dim[1];
    p.n = s->out.dim[2];
    p.k = x->dim[x->n - 1];
    p.pieces = qn_blocks(p.n, 32);
    p.n_warps = s->out.dim[0] * p.top * p.pieces;
    if (s->in[1].weight) return qn_cuda_fail(QN_E_UNSUPPORTED, "device cuda: GATHER_MM takes plain matrices");
    return qn_cuda_begin(c, s->params->gather_mm.transposed ? gather_columns : gather_rows,
                         qn_blocks(p.n_warps, WARPS), BLOCK, 0, p);
}

extern const qn_cuda_prim qn_cuda_prim_GATHER_MM;
const qn_cuda_prim qn_cuda_prim_GATHER_MM = {gather_launch, NULL};

/* ---- sums of outer products ---------------------------------------------------------------------------- */

typedef struct {
    vectors a, b;
    const int32_t *ids;
    float *out;
    int32_t *ranges, *pairs; /* ranges [n_matrices][2]: where a matrix' pairs begin and how many they are */
    int64_t ids_row, n, k, pieces; /* pieces: blocks over a matrix */
    int n_matrices, n_pairs, top;
} scatter_step;

/* A block lists the pairs of one matrix in rising order, behind those of the matrices before it. A thread looks at a
 * run of pairs. */
static __global__ void scatter_list(const scatter_step p)
{
    __shared__ int less[BLOCK], equal[BLOCK];
    const int matrix = (int)blockIdx.x, t = (int)threadIdx.x, run = (p.n_pairs + BLOCK - 1) / BLOCK;
    const int begin = t * run < p.n_pairs ? t * run : p.n_pairs,
              end = begin + run < p.n_pairs ? begin + run : p.n_pairs;
    int n_less = 0, n_equal = 0;
    for (int i = begin; i < end; i++) {
        const int32_t id = p.ids[i / p.top * p.ids_row + i % p.top];
        n_less += id < matrix;
        n_equal += id == matrix;
    }
    less[t] = n_less;
    equal[t] = n_equal;
    __syncthreads();
    int all_less = 0, before = 0, all = 0;
    for (int i = 0; i < BLOCK; i++) {
        all_less += less[i];
        before += i < t ? equal[i] : 0;
        all += equal[i];
    }
    int32_t *to = p.pairs + all_less + before;
    for (int i = begin; i < end && n_equal; i++)
        if (p.ids[i / p.top * p.ids_row + i % p.top] == matrix) *to++ = i;
    if (t == 0) {
        p.ranges[2 * matrix] = all_less;
        p.ranges[2 * matrix + 1] = all;
    }
}

/* A thread sums one element of a matrix. */
static __global__ void scatter_sum(const scatter_step p)
{
    __shared__ int64_t from_a[BLOCK], from_b[BLOCK];
    const int64_t matrix = blockIdx.x / p.pieces, at = blockIdx.x % p.pieces * BLOCK + threadIdx.x;
    const int32_t *pairs = p.pairs + p.ranges[2 * matrix];
    const int n_pairs = p.ranges[2 * matrix + 1], is_there = at < p.n * p.k;
    const int64_t i = is_there ? at / p.k : 0, j = is_there ? at % p.k : 0;
    float sum = 0;
    for (int first = 0; first < n_pairs; first += BLOCK) {
        const int n = n_pairs - first < BLOCK ? n_pairs - first : BLOCK, t = (int)threadIdx.x;
        if (t < n) {
            const int row = pairs[first + t] / p.top, choice = pairs[first + t] % p.top;
            from_a[t] = row * p.a.row + choice * p.a.choice;
            from_b[t] = row * p.b.row + choice * p.b.choice;
        }
        __syncthreads();
        for (int m = 0; m < n; m++) sum = fmaf(p.a.data[from_a[m] + i], p.b.data[from_b[m] + j], sum);
        __syncthreads();
    }
    if (is_there) p.out[matrix * p.n * p.k + at] = sum;
}

static qn_status scatter_launch(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *ids = &s->in[2];
    scatter_step p;
    p.a = vectors_of(&s->in[0]);
    p.b = vectors_of(&s->in[1]);
    p.ids = (const int32_t *)ids->data, p.ids_row = ids->stride[0];
    p.out = (float *)s->out.data;
    p.n_matrices = (int)s->out.dim[0], p.n = s->out.dim[1], p.k = s->out.dim[2];
    p.top = (int)ids->dim[1];
    p.n_pairs = (int)(ids->dim[0] * ids->dim[1]);
    p.ranges = (int32_t *)s->scratch;
    p.pairs = p.ranges + 2 * (int64_t)p.n_matrices;
    p.pieces = qn_blocks(p.n * p.k, BLOCK);
    const qn_status status = qn_cuda_begin(c, scatter_list, p.n_matrices, BLOCK, 0, p);
    if (status != QN_OK) return status;
    return qn_cuda_begin(c, scatter_sum, p.n_matrices * p.pieces, BLOCK, 0, p);
}

static size_t scatter_scratch(const qn_cuda_step *s)
{
    return (size_t)(2 * s->out.dim[0] + s->in[2].dim[0] * s->in[2].dim[1]) * sizeof(int32_t);
}

extern const qn_cuda_prim qn_cuda_prim_SCATTER_MM;
const qn_cuda_prim qn_cuda_prim_SCATTER_MM = {scatter_launch, scatter_scratch};
