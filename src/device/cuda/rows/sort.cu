/* The order of the elements of each line: ARG_SORT, and TOP_K, which is the head of it.
 *
 * An element is a key, which rises as elements come, and its index: no two are the same, so any way of sorting
 * is a stable one. A block sorts a chunk of a line in shared memory. Longer lines are merged in scratch, two
 * runs at a time: every element finds by bisection how many of the other run come before it. */
#include "device/cuda/elements/lines.cuh"

enum { CHUNK = 2048, THREADS = CHUNK / 2 };

typedef struct {
    qn_cuda_view x;
    int64_t n, n_lines, n_chunks, k; /* k: of the order so many are given */
    int n_padded;                    /* of a chunk, a power of two */
    int is_top, falling, rising;
    int32_t *out;
    uint64_t *key[2]; /* [n_lines][n], of runs; NULL: a chunk is the line */
    int32_t *index[2];
    uint8_t *chosen; /* [n_lines][n], of a rising TOP_K over more than one chunk */
} work;

typedef struct {
    uint64_t key;
    int32_t index;
} item;

static __device__ __forceinline__ bool comes_before(item a, item b)
{
    return a.key < b.key || (a.key == b.key && a.index < b.index);
}

/* ---- keys ---------------------------------------------------------------------------------------------- */

/* Rises with the number; NaN is above all numbers, and -0 is 0. */
static __device__ __forceinline__ uint64_t key_of(int kind, qn_wide x)
{
    const uint64_t sign = (uint64_t)1 << 63;
    if (kind == QN_WIDE_UNSIGNED) return x.u;
    if (kind == QN_WIDE_SIGNED) return x.u ^ sign;
    if (x.f != x.f) return UINT64_MAX;
    if (x.f == 0) return sign;
    return x.u & sign ? ~x.u : x.u | sign;
}

/* The same of f32 in 32 bits, falling. */
static __device__ __forceinline__ uint32_t falling_key(float x)
{
    const uint32_t u = qn_cuda_float_bits(x);
    if (x == 0) return 0x7fffffffu;
    return u >> 31 ? u : ~u & 0x7fffffffu;
}

/* TOP_K is what insertion into a sorted head of k gives. Nothing goes past a NaN in it, so that NaN among the
 * first k elements part the head: what comes before one stays before it. NaN behind them come last. */
static __device__ uint64_t top_key(const work &w, const float *line, int64_t j, int64_t n_nan)
{
    const int is_nan = line[j] != line[j];
    if (is_nan && j >= w.k) return UINT64_MAX;
    return (uint64_t)(2 * n_nan + is_nan) << 32 | (is_nan ? 0 : falling_key(line[j]));
}

/* NaN among [begin, end) of a line and its first k, counted by the block; all threads call it. */
static __device__ int64_t count_nan(const work &w, const float *line, int64_t begin, int64_t end,
                                    int *counter)
{
    if (threadIdx.x == 0) *counter = 0;
    __syncthreads();
    if (end > w.k) end = w.k;
    int n = 0;
    for (int64_t j = begin + threadIdx.x; j < end; j += blockDim.x) n += line[j] != line[j];
    if (n) atomicAdd(counter, n);
    __syncthreads();
    return *counter;
}

/* ---- a chunk ------------------------------------------------------------------------------------------- */

/* Batcher's bitonic sort of n elements, a power of two. */
static __device__ void sort_shared(uint64_t *key, int32_t *index, int n)
{
    for (int size = 2; size <= n; size *= 2)
        for (int d = size / 2; d; d >>= 1) {
            for (int p = threadIdx.x; p < n / 2; p += blockDim.x) {
                const int a = p / d * 2 * d + p % d, b = a + d;
                const item x = {key[a], index[a]}, y = {key[b], index[b]};
                if (comes_before(y, x) == ((a & size) == 0)) {
                    key[a] = y.key, index[a] = y.index;
                    key[b] = x.key, index[b] = x.index;
                }
            }
            __syncthreads();
        }
}

/* Elements [begin, begin + n_padded) of a line, what it lacks last. */
static __device__ void load_chunk(const work &w, int64_t line, int64_t begin, uint64_t *key, int32_t *index,
                                  int *counter)
{
    const int64_t end = begin + w.n_padded < w.n ? begin + w.n_padded : w.n;
    const int kind = qn_wide_kind_of(w.x.dtype);
    const int64_t at = qn_line_place(w.x, w.x.n - 1, line), stride = w.x.stride[w.x.n - 1];
    const float *x = (const float *)w.x.data + at;
    int64_t n_before = 0, n_here = 0;
    if (w.is_top) {
        n_before = count_nan(w, x, 0, begin, counter);
        __syncthreads();
        n_here = count_nan(w, x, begin, end, counter);
    }
    for (int i = threadIdx.x; i < w.n_padded; i += blockDim.x) {
        const int64_t j = begin + i;
        key[i] = UINT64_MAX;
        index[i] = INT32_MAX;
        if (j >= end) continue;
        index[i] = (int32_t)j;
        if (!w.is_top) {
            const uint64_t up = key_of(kind, qn_wide_get(w.x.dtype, w.x.data, at + j * stride));
            key[i] = w.falling ? ~up : up;
            continue;
        }
        int64_t n = n_before;
        for (int64_t l = begin; n_here && l < j && l < w.k; l++) n += x[l] != x[l];
        key[i] = top_key(w, x, j, n);
    }
    __syncthreads();
}

static __global__ void sort_chunks(work w)
{
    __shared__ uint64_t key[CHUNK];
    __shared__ int32_t index[CHUNK];
    __shared__ int counter;
    const int64_t line = blockIdx.x / w.n_chunks, begin = blockIdx.x % w.n_chunks * CHUNK;
    load_chunk(w, line, begin, key, index, &counter);
    sort_shared(key, index, w.n_padded);
    if (w.n_chunks > 1) {
        for (int i = threadIdx.x; i < CHUNK && begin + i < w.n; i += blockDim.x) {
            w.key[0][line * w.n + begin + i] = key[i];
            w.index[0][line * w.n + begin + i] = index[i];
        }
        return;
    }
    if (w.rising) { /* once more, the first k by their indices */
        int n = 1;
        while (n < w.k) n *= 2;
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            key[i] = 0;
            if (i >= w.k) index[i] = INT32_MAX;
        }
        __syncthreads();
        sort_shared(key, index, n);
    }
    for (int i = threadIdx.x; i < w.k; i += blockDim.x) w.out[line * w.k + i] = index[i];
}

/* ---- longer lines -------------------------------------------------------------------------------------- */

/* How many of the run [begin, end) come before x. */
static __device__ int64_t count_before(const uint64_t *key, const int32_t *index, int64_t begin, int64_t end,
                                       item x)
{
    int64_t low = begin, high = end;
    while (low < high) {
        const int64_t mid = low + (high - low) / 2;
        if (comes_before((item){key[mid], index[mid]}, x))
            low = mid + 1;
        else
            high = mid;
    }
    return low - begin;
}

/* Runs of `width` of side `from` become runs of twice that on the other side, or, last, the result. */
static __global__ void merge_runs(work w, int from, int64_t width, int last)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= w.n_lines * w.n) return;
    const int64_t line = i / w.n, j = i % w.n, run = j / width, first = run / 2 * 2 * width;
    const int64_t begin = (run ^ 1) * width < w.n ? (run ^ 1) * width : w.n,
                  end = begin + width < w.n ? begin + width : w.n;
    const uint64_t *key = w.key[from] + line * w.n;
    const int32_t *index = w.index[from] + line * w.n;
    const item x = {key[j], index[j]};
    const int64_t to = first + j % width + count_before(key, index, begin, end, x);
    if (!last) {
        w.key[from ^ 1][line * w.n + to] = x.key;
        w.index[from ^ 1][line * w.n + to] = x.index;
    } else if (w.rising) {
        w.chosen[line * w.n + x.index] = to < w.k;
    } else if (to < w.k) {
        w.out[line * w.k + to] = x.index;
    }
}

/* The chosen indices of a line, rising: a thread a run of neighbours. */
static __global__ void list_chosen(work w)
{
    __shared__ int32_t count[THREADS];
    const int64_t each = (w.n + THREADS - 1) / THREADS, begin = threadIdx.x * each,
                  end = begin + each < w.n ? begin + each : w.n;
    const uint8_t *chosen = w.chosen + (int64_t)blockIdx.x * w.n;
    int32_t n = 0;
    for (int64_t j = begin; j < end; j++) n += chosen[j];
    count[threadIdx.x] = n;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 0, sum = 0; i < THREADS; i++) {
            const int here = count[i];
            count[i] = sum;
            sum += here;
        }
    __syncthreads();
    int32_t *out = w.out + (int64_t)blockIdx.x * w.k + count[threadIdx.x];
    for (int64_t j = begin; j < end; j++)
        if (chosen[j]) *out++ = (int32_t)j;
}

/* ---- launching ----------------------------------------------------------------------------------------- */

static work work_of(const qn_cuda_step *s)
{
    const qn_cuda_operand *x = &s->in[0];
    work w = {};
    w.x = qn_cuda_view_of(x);
    w.n = w.k = x->dim[x->n - 1];
    w.n_lines = qn_lines(x, x->n - 1);
    w.n_chunks = qn_blocks(w.n, CHUNK);
    w.n_padded = 2;
    while (w.n_padded < w.n && w.n_padded < CHUNK) w.n_padded *= 2;
    if (s->prim == QN_PRIM_TOP_K) {
        w.is_top = 1;
        w.k = s->params->top_k.k;
        w.rising = s->params->top_k.rising;
    } else {
        w.falling = s->params->sort.falling;
    }
    w.out = (int32_t *)s->out.data;
    return w;
}

/* Both sides' keys, both sides' indices, then what is chosen. */
static size_t scratch_bytes(const qn_cuda_step *s)
{
    const work w = work_of(s);
    const size_t per_element = 2 * (sizeof **w.key + sizeof **w.index) + sizeof *w.chosen;
    return w.n_chunks > 1 ? (size_t)(w.n_lines * w.n) * per_element : 0;
}

static qn_status launch_sort(qn_cuda_context *c, const qn_cuda_step *s)
{
    work w = work_of(s);
    const int64_t all = w.n_lines * w.n;
    if (all == 0) return QN_OK;
    if (w.n_chunks > 1) {
        w.key[0] = (uint64_t *)s->scratch;
        w.key[1] = w.key[0] + all;
        w.index[0] = (int32_t *)(w.key[1] + all);
        w.index[1] = w.index[0] + all;
        w.chosen = (uint8_t *)(w.index[1] + all);
    }
    const int threads = w.n_padded / 2 < 32 ? 32 : w.n_padded / 2;
    qn_status status = qn_cuda_begin(c, sort_chunks, w.n_lines * w.n_chunks, threads, 0, w);
    int from = 0;
    for (int64_t width = CHUNK; status == QN_OK && width < w.n; width *= 2, from ^= 1)
        status = qn_cuda_begin(c, merge_runs, qn_blocks(all, 256), 256, 0, w, from, width, 2 * width >= w.n);
    if (status == QN_OK && w.n_chunks > 1 && w.rising)
        status = qn_cuda_begin(c, list_chosen, w.n_lines, THREADS, 0, w);
    return status;
}

extern const qn_cuda_prim qn_cuda_prim_ARG_SORT, qn_cuda_prim_TOP_K;
const qn_cuda_prim qn_cuda_prim_ARG_SORT = {launch_sort, scratch_bytes};
const qn_cuda_prim qn_cuda_prim_TOP_K = {launch_sort, scratch_bytes};
