/* Products with packed weights on a card: how fast each kernel of src/device/cuda/product/product.h is, and whether all give
 * the same bits. Weights and activations are random. Nothing but a driver is needed where it runs:
 *
 *   nvcc -std=c++17 -O3 -fmad=false -Iinclude -Isrc -cudart static -gencode=arch=compute_90a,code=sm_90a \
 *        -o cuda_products bench/cuda_products.cu src/device/cuda/product/product*.cu src/device/cuda/product/groups.cu
 *   ./cuda_products [tokens [the form's name [kernel: few, some, many, wide]]]
 *   ./cuda_products price     what the canonical sum costs, as JSON: the same kernels without it, for one token and 2,048
 *
 * GB/s is of packed weights, read once; us is that of a product without the packing of its activations. */
#include "device/cuda/product/product.cuh"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PEAK = 798 }; /* TFLOP/s: bf16, 8192^3, measured on an H100 */

#define DO(e)                                                                           \
    do {                                                                                \
        const cudaError_t e_ = (e);                                                     \
        if (e_ != cudaSuccess) printf("%s: %s\n", #e, cudaGetErrorString(e_)), exit(1); \
    } while (0)
#define OK(e)                      \
    do {                           \
        if ((e) != QN_OK) exit(1); \
    } while (0)

qn_status qn_cuda_fail(qn_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
    return status;
}

qn_status qn_cuda_check(qn_cuda_context *c, cudaError_t e, const char *what)
{
    return e == cudaSuccess ? QN_OK : qn_cuda_fail(QN_E_DEVICE, "%s: %s", what, cudaGetErrorString(e));
}

void qn_cuda_note_op(qn_cuda_context *c, int op, int64_t grid, int block, size_t shared_bytes,
                     const void *work, size_t work_bytes)
{
}

/* ---- random data ----------------------------------------------------------------------------------------- */

static __device__ uint32_t random_of(uint64_t i)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return (uint32_t)(x >> 32);
}

/* An f16 number between 2^-7 and 2^-3, of either sign. */
static __device__ uint16_t half_of(uint32_t r)
{
    return (uint16_t)((r & 0x83ff) | (8 + (r >> 10 & 3)) << 10);
}

static __device__ uint16_t scale_half(const qn_cuda_weight &w, uint32_t r, int i)
{
    switch (w.form) {
    case QN_CUDA_K:
        return i < 128 ? r & 0x3f3f : half_of(r) & 0x7fff;
    case QN_CUDA_Q6K:
        return i < 128 ? (uint16_t)r : half_of(r);
    case QN_CUDA_MX:
        return (uint16_t)(0x7676 + (r & 0x0303));
    case QN_CUDA_NV:
        return (uint16_t)(0x3030 + (r & 0x0707));
    default:
        if (w.form == QN_CUDA_AFFINE && w.scale == QN_DTYPE_BF16) return (uint16_t)((r & 0x807f) | 0x3c00);
        if (w.form == QN_CUDA_AFFINE && w.scale == QN_DTYPE_F32) return i & 1 ? 0x3c80 : (uint16_t)r;
        return half_of(r);
    }
}

static __global__ void fill_weight(qn_cuda_weight w, uint64_t words)
{
    for (uint64_t i = blockIdx.x * 256ull + threadIdx.x; i < words; i += gridDim.x * 256ull) {
        const int at = (int)(i % (w.unit_bytes / 4)) * 4;
        const uint32_t r = random_of(i), q = random_of(~i);
        uint32_t out = r;
        if (w.form == QN_CUDA_F16)
            out = half_of(r) | (uint32_t)half_of(q) << 16;
        else if (at >= w.code_bytes)
            out = scale_half(w, r, (at - w.code_bytes) / 2) |
                  (uint32_t)scale_half(w, q, (at - w.code_bytes) / 2 + 1) << 16;
        ((uint32_t *)w.data)[i] = out;
    }
    const int64_t rows = w.n_parts * w.n_panels * QN_CUDA_PANEL;
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < rows && w.factor; i += gridDim.x * 256ll)
        w.factor[i] = 1.0f / 64;
}

static __global__ void fill_floats(float *x, int64_t n)
{
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll)
        x[i] = (float)(int32_t)random_of(i ^ 0x5555555555ull) * 0x1p-31f;
}

static __global__ void count_different(const uint32_t *a, const uint32_t *b, int64_t n, int *count)
{
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll)
        if (a[i] != b[i]) atomicAdd(count, 1);
}

/* ---- a product ------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    qn_dtype dtype;
} form;

static const form forms[] = {{"f16", QN_DTYPE_F16},
                             {"q4_0", QN_DTYPE_Q4_0},
                             {"q8_0", QN_DTYPE_Q8_0},
                             {"q4_1", QN_DTYPE_Q4_1},
                             {"4-bit g64 bf16", QN_DTYPE_AFFINE4_G64_BF16},
                             {"q4_k", QN_DTYPE_Q4_K},
                             {"q6_k", QN_DTYPE_Q6_K},
                             {"mxfp4", QN_DTYPE_MXFP4},
                             {"nvfp4", QN_DTYPE_NVFP4}};
static const int shapes[][2] = {{28672, 4096}, {4096, 14336}, {6144, 4096}, {4096, 4096}};
enum { FEW, SOME, MANY, WIDE, N_KERNELS };
static const char *const kernels[] = {"few", "some", "many", "wide"};
static const int per_tile[] = {QN_CUDA_FEW, QN_CUDA_SOME, QN_CUDA_MANY, QN_CUDA_WIDE};

/* The kernel whose order of activations it takes. */
static int order_of(int kernel, int has_groups)
{
    return has_groups || kernel == FEW ? (int)MANY : kernel;
}

typedef struct {
    qn_cuda_context c;
    qn_cuda_weight w;
    int64_t tokens, rows, tiled; /* rows of x */
    float *x, *scale, *out[2];
    uint16_t *packed[N_KERNELS]; /* in a kernel's order; NULL of FEW */
    int *count;
    int32_t *ids, *pairs; /* experts: rows * top choices; NULL: none */
    qn_cuda_group *groups;
    int top;
} product;

static void *take(size_t bytes)
{
    void *p;
    DO(cudaMalloc(&p, bytes + 256));
    return p;
}

static product make(qn_dtype dtype, int64_t n_out, int64_t n_in, int64_t rows, int n_parts, int top)
{
    product t = {};
    cudaDeviceProp about;
    DO(cudaGetDeviceProperties(&about, 0));
    t.c.n_sm = about.multiProcessorCount;
    t.c.has_wide = about.major == 9;
    t.rows = rows, t.tokens = rows * top, t.top = top, t.tiled = qn_cuda_tiled_rows(rows);
    if (!qn_cuda_weight_plan(dtype, n_parts, n_out, n_in, &t.w)) exit(1);
    const size_t bytes = (size_t)n_parts * qn_cuda_part_bytes(&t.w);
    t.w.data = (char *)take(bytes);
    if (qn_cuda_has_factors(&t.w)) t.w.factor = (float *)take(qn_cuda_factor_bytes(&t.w));
    fill_weight<<<1024, 256>>>(t.w, bytes / 4);
    t.x = (float *)take(rows * n_in * 4);
    fill_floats<<<1024, 256>>>(t.x, rows * n_in);
    t.scale = (float *)take(rows * 4);
    for (int i = SOME; i < N_KERNELS; i++) t.packed[i] = (uint16_t *)take(t.tiled * qn_cuda_padded(&t.w) * 2);
    for (int i = 0; i < 2; i++) {
        t.out[i] = (float *)take(t.tokens * n_out * 4);
        DO(cudaMemset(t.out[i], 0xff, t.tokens * n_out * 4));
    }
    t.count = (int *)take(4);
    if (n_parts > 1) {
        int32_t *ids = (int32_t *)malloc(t.tokens * 4);
        for (int64_t i = 0; i < t.tokens; i++) /* some are chosen more often */
            ids[i] = (int32_t)((i * 2654435761u >> 7) % n_parts * ((i * 40503u >> 3) % 4 + 1) / 4);
        t.ids = (int32_t *)take(t.tokens * 4), t.pairs = (int32_t *)take(t.tokens * 4);
        t.groups = (qn_cuda_group *)take((t.tokens + n_parts) * sizeof(qn_cuda_group));
        DO(cudaMemcpy(t.ids, ids, t.tokens * 4, cudaMemcpyHostToDevice));
        free(ids);
    }
    DO(cudaDeviceSynchronize());
    return t;
}

static void drop(product *t)
{
    void *all[] = {t->w.data,       t->w.factor,     t->x,           t->scale, t->out[0],
                   t->out[1],       t->count,        t->ids,         t->pairs, t->groups,
                   t->packed[SOME], t->packed[MANY], t->packed[WIDE]};
    for (void *p : all) DO(cudaFree(p));
}

static void pack(product *t, int kernel)
{
    OK(qn_cuda_pack_rows(&t->c, t->x, qn_cuda_rows{1, t->w.n_in, 0}, t->rows, t->w.n_in,
                         qn_cuda_padded(&t->w), kernel == MANY ? 0 : t->tiled, per_tile[kernel],
                         t->packed[kernel], t->scale));
}

static qn_cuda_product product_of(product *t, int kernel, int out)
{
    qn_cuda_product p = {};
    const int order = order_of(kernel, t->groups != NULL);
    p.w = t->w;
    p.n_tokens = t->tokens;
    p.x_stride = qn_cuda_padded(&t->w);
    p.x = t->packed[order];
    p.x_tiled = order == MANY ? 0 : t->tiled;
    p.x_scale = t->scale;
    p.out = t->out[out];
    p.out_stride = t->w.n_out;
    p.x_share = t->top;
    if (t->groups) {
        p.groups = t->groups, p.pairs = t->pairs;
        p.n_groups = qn_cuda_most_groups(t->tokens, t->w.n_parts, per_tile[kernel]);
    }
    return p;
}

static void multiply(product *t, int kernel, int out)
{
    const qn_cuda_product p = product_of(t, kernel, out);
    OK(qn_cuda_product_begin(&t->c, &p, per_tile[kernel]));
}

static void group(product *t, int kernel)
{
    if (t->groups)
        OK(qn_cuda_group_pairs(&t->c, t->ids, t->top, t->top, t->tokens, t->w.n_parts, per_tile[kernel],
                               t->groups, t->pairs));
}

/* ---- times ----------------------------------------------------------------------------------------------- */

static float time_of(void (*begin)(product *, int, int), product *t, int a, int b)
{
    cudaEvent_t from, to;
    DO(cudaEventCreate(&from));
    DO(cudaEventCreate(&to));
    float ms = 0;
    int n = 2;
    for (int round = 0; round < 2; round++) {
        DO(cudaEventRecord(from, 0));
        for (int i = 0; i < n; i++) begin(t, a, b);
        DO(cudaEventRecord(to, 0));
        DO(cudaEventSynchronize(to));
        DO(cudaEventElapsedTime(&ms, from, to));
        ms /= (float)n;
        n = (int)(30 / (ms + 1e-3f)) + 3; /* some 30 ms */
    }
    DO(cudaEventDestroy(from));
    DO(cudaEventDestroy(to));
    return ms * 1e3f;
}

static void pack_begin(product *t, int kernel, int unused)
{
    (void)unused;
    pack(t, kernel);
}

static int different(product *t)
{
    int count;
    DO(cudaMemset(t->count, 0, 4));
    count_different<<<1024, 256>>>((uint32_t *)t->out[0], (uint32_t *)t->out[1], t->tokens * t->w.n_out,
                                   t->count);
    DO(cudaMemcpy(&count, t->count, 4, cudaMemcpyDeviceToHost));
    return count;
}

static void run(const form *f, int64_t n_out, int64_t n_in, int64_t rows, int n_parts, int top,
                const char *only)
{
    product t = make(f->dtype, n_out, n_in, rows, n_parts, top);
    for (int k = SOME; k < N_KERNELS; k++) pack(&t, k);
    const double flop = 2.0 * (double)t.tokens * (double)n_out * (double)n_in;
    printf("%-14s %5d x %5d, %4d tokens%s", f->name, (int)n_out, (int)n_in, (int)t.tokens,
           n_parts > 1 ? " of experts" : "");
    if (!only && n_parts == 1)
        printf("; packed in %.0f, %.0f us", time_of(pack_begin, &t, MANY, 0),
               time_of(pack_begin, &t, WIDE, 0));
    group(&t, MANY);
    multiply(&t, MANY, 0);
    const int first = t.tokens <= 64 ? (int)FEW : (int)SOME;
    for (int k = first; k < N_KERNELS; k++) {
        if ((only && strcmp(only, kernels[k])) || (k == SOME && t.groups)) continue;
        group(&t, k);
        const float us = time_of(multiply, &t, k, 1);
        printf("; %s %.0f us, %.0f TFLOP/s, %.0f%%, %.0f GB/s", kernels[k], us, flop / us * 1e-6,
               flop / us * 1e-4 / PEAK, (double)n_parts * (double)qn_cuda_part_bytes(&t.w) / us * 1e-3);
        if (!only) printf(", %d differ", different(&t));
    }
    printf("\n");
    DO(cudaDeviceSynchronize());
    drop(&t);
}

/* ---- the price of the same bits -------------------------------------------------------------------------- */

/* qn_product_few for one chain a warp: what a warp multiplies is summed where it is, and the warps' sums are joined.
 * The order depends on the number of warps, so other kernels would have other bits. */
template <int FORM, int BITS> static __global__ void __launch_bounds__(256) free_few(qn_cuda_product p)
{
    __shared__ float sums[8][128];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t panel = blockIdx.x;
    const qn_cuda_tokens t = qn_tokens_of(p, 0, QN_CUDA_FEW);
    const int64_t padded = p.w.n_units * p.w.unit_k;
    float inverse[2], acc[4] = {0, 0, 0, 0};
    qn_row_factors(p.w, panel, lane, inverse);
    const int has_token = lane / 4 < t.n;
    const uint32_t *x = (const uint32_t *)(p.x + (has_token ? lane / 4 : 0) * p.x_stride) + lane % 4;
    const char *units = p.w.data + (size_t)(panel * p.w.n_units) * (size_t)p.w.unit_bytes;
    for (int64_t begin = warp * QN_CUDA_CHUNK; begin < padded; begin += 8 * QN_CUDA_CHUNK) {
        const int64_t end = begin + QN_CUDA_CHUNK < padded ? begin + QN_CUDA_CHUNK : padded;
#pragma unroll 2
        for (int64_t k = begin; k < end; k += QN_CUDA_TILE_K) {
            uint32_t a[16], b[8];
#pragma unroll
            for (int i = 0; i < 8; i++) b[i] = has_token ? x[k / 2 + 4 * i] : 0;
            qn_tile_halves<FORM, BITS>(p.w, units + (size_t)(k / p.w.unit_k) * (size_t)p.w.unit_bytes,
                                       (int)(k % p.w.unit_k) / QN_CUDA_TILE_K, lane, inverse, a);
#pragma unroll
            for (int s = 0; s < 4; s++) qn_mma_f16(acc, a + 4 * s, b + 2 * s);
        }
    }
    float *to = sums[warp] + lane % 4 * 32 + lane / 4;
    to[0] = acc[0], to[16] = acc[1], to[8] = acc[2], to[24] = acc[3];
    __syncthreads();
    const int row = threadIdx.x % 16, token = threadIdx.x / 16;
    if (threadIdx.x < 128 && token < t.n && panel * QN_CUDA_PANEL + row < p.w.n_out) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) sum += sums[i][threadIdx.x];
        qn_store_product(p, t, panel * QN_CUDA_PANEL + row, token, sum);
    }
}

enum { ALL_COLUMNS = 1 << 20 }; /* one chunk, however wide a matrix is */

template <int FORM, int BITS> static void multiply_free(product *t, int kernel, int out)
{
    qn_cuda_product p = product_of(t, kernel, out);
    if (kernel == FEW) {
        OK(qn_cuda_launch(&t->c, free_few<FORM, BITS>, p.w.n_panels, 256, 0, p));
        return;
    }
    const int64_t tiles = qn_blocks(p.n_tokens, QN_CUDA_WIDE), works = qn_wide_works(p, tiles);
    OK(qn_cuda_launch(&t->c, qn_product_wide<FORM, BITS, ALL_COLUMNS>, works < t->c.n_sm ? works : t->c.n_sm,
                      QN_WIDE_THREADS, qn_wide_shared_bytes<FORM>(p.w), p, tiles));
}

/* The largest difference of two outputs, as a share of the largest number. */
static double off_by(const product *t)
{
    const size_t n = (size_t)(t->tokens * t->w.n_out);
    float *a = (float *)malloc(n * 4), *b = (float *)malloc(n * 4), most = 0, off = 0;
    DO(cudaMemcpy(a, t->out[0], n * 4, cudaMemcpyDeviceToHost));
    DO(cudaMemcpy(b, t->out[1], n * 4, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++) {
        most = fmaxf(most, fabsf(a[i]));
        off = fmaxf(off, isnan(b[i]) ? INFINITY : fabsf(a[i] - b[i]));
    }
    free(a), free(b);
    return off / most;
}

typedef void multiplier(product *t, int kernel, int out);

static void price(const char *name, qn_dtype dtype, multiplier *multiply_freely)
{
    for (int kernel = FEW; kernel <= WIDE; kernel += WIDE) {
        double sums[2] = {0, 0}, off = 0;
        const int64_t tokens = kernel == FEW ? 1 : 2048;
        for (const auto &s : shapes) {
            product t = make(dtype, s[0], s[1], tokens, 1, 1);
            for (int k = SOME; k < N_KERNELS; k++) pack(&t, k);
            double best[2] = {INFINITY, INFINITY};
            for (int round = 0; round < 5; round++) { /* in turns: the card's clock changes */
                best[0] = fmin(best[0], time_of(multiply, &t, kernel, 0));
                best[1] = fmin(best[1], time_of(multiply_freely, &t, kernel, 1));
            }
            off = fmax(off, off_by(&t));
            for (int i = 0; i < 2; i++) sums[i] += best[i];
            drop(&t);
        }
        printf("{\"work\": \"%s\", \"form\": \"%s\", \"us\": %.1f, \"free_us\": %.1f, \"ratio\": %.3f, "
               "\"off\": %.1e}\n",
               kernel == FEW ? "decode" : "prefill", name, sums[0], sums[1], sums[0] / sums[1], off);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "price")) {
        setvbuf(stdout, NULL, _IONBF, 0);
        price("f16", QN_DTYPE_F16, multiply_free<QN_CUDA_F16, 16>);
        price("q4_0", QN_DTYPE_Q4_0, multiply_free<QN_CUDA_SCALED, 4>);
        price("q8_0", QN_DTYPE_Q8_0, multiply_free<QN_CUDA_SCALED, 8>);
        return 0;
    }
    const int64_t tokens = argc > 1 ? strtol(argv[1], NULL, 10) : 2048;
    const char *name = argc > 2 ? argv[2] : NULL, *only = argc > 3 ? argv[3] : NULL;
    setvbuf(stdout, NULL, _IONBF, 0);
    for (const form &f : forms) {
        if (name && strcmp(name, f.name)) continue;
        for (const auto &s : shapes) run(&f, s[0], s[1], tokens, 1, 1, only);
        if (only) continue;
        run(&f, 1000, 1472, 333, 1, 1, only);
        run(&f, 200, 4160, 129, 1, 1, only);
        run(&f, 2880, 2880, tokens, 16, 4, only);
        run(&f, 1000, 1472, 150, 5, 3, only);
    }
    return 0;
}
