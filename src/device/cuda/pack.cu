/* Packing weights on the card: a file's rows into the units of layout.h. */
#include "device/cuda/kernel.cuh"

/* The largest |element| of each row decides its factor: the power of two that brings it into [2^13, 2^14). */
static __device__ float element(const qn_cuda_weight &w, const qn_cuda_raw &raw, int64_t row, int64_t k)
{
    if (w.form == QN_CUDA_F16) return qn_cuda_raw_plain(&w, &raw, row, k);
    const int64_t first = row / QN_CUDA_PANEL * QN_CUDA_PANEL, unit = k / w.unit_k * w.unit_k;
    const int r = (int)(row - first), j = (int)(k - unit), n = QN_CUDA_PANEL, b = j / w.block;
    const unsigned code = qn_cuda_raw_code(&w, &raw, row, k);
    if (w.form == QN_CUDA_MX) {
        const int byte = b * n + r;
        const uint16_t pair = qn_cuda_raw_scale(&w, &raw, first, row + 1, unit, byte / 2);
        return qn_cuda_e8m0_half((uint8_t)(pair >> 8 * (byte & 1))) * (2 * qn_cuda_e2m1(code));
    }
    float v[2];
    for (int i = 0; i < 2; i++) {
        const int at = (2 * b + i) * n + r;
        if (w.scale == QN_DTYPE_F32) {
            const uint32_t low = qn_cuda_raw_scale(&w, &raw, first, row + 1, unit, 2 * at);
            v[i] = qn_cuda_bits_float(
                low | (uint32_t)qn_cuda_raw_scale(&w, &raw, first, row + 1, unit, 2 * at + 1) << 16);
        } else {
            v[i] = qn_bf16_float(qn_cuda_raw_scale(&w, &raw, first, row + 1, unit, at));
        }
    }
    /* neither a scale nor a bias may leave the range */
    const float x = fabsf(v[0] * (float)code + v[1]), scale = fabsf(v[0]), bias = fabsf(v[1]);
    return fmaxf(x, fmaxf(scale, bias));
}

static __global__ void find_factors(qn_cuda_weight w, qn_cuda_raw raw, int64_t part, int64_t first, int64_t n)
{
    const int64_t row = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= n) return;
    float largest = 0;
    for (int64_t k = threadIdx.x % 32; k < w.n_in; k += 32) {
        const float x = fabsf(element(w, raw, row, k));
        if (x > largest && x < INFINITY) largest = x;
    }
    largest = qn_warp_max(largest);
    if (threadIdx.x % 32) return;
    int e = 0; /* largest = f 2^e, f in [0.5, 1) */
    if (largest > 0) frexpf(largest, &e);
    e -= 14;
    if (e < -120) e = -120;
    w.factor[part * w.n_panels * QN_CUDA_PANEL + first + row] = ldexpf(1, e);
}

/* A thread a word; rows of raw begin with row `first` of the part, which is a multiple of 16. */
static __global__ void pack_units(qn_cuda_weight w, qn_cuda_raw raw, int64_t part, int64_t first, int64_t n)
{
    const int words = w.unit_bytes / 4;
    const int64_t panels = (n + QN_CUDA_PANEL - 1) / QN_CUDA_PANEL, total = panels * w.n_units * words;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < total;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int at = (int)(i % words);
        const int64_t unit = i / words % w.n_units, panel = i / words / w.n_units;
        const int64_t to = part * w.n_panels + first / QN_CUDA_PANEL + panel;
        float inverse[QN_CUDA_PANEL];
        const int has_factor = w.form == QN_CUDA_F16 && w.factor;
        if (has_factor)
            for (int r = 0; r < QN_CUDA_PANEL; r++)
                inverse[r] = panel * QN_CUDA_PANEL + r < n ? 1 / w.factor[to * QN_CUDA_PANEL + r] : 0;
        ((uint32_t *)(w.data + (size_t)(to * w.n_units + unit) * (size_t)w.unit_bytes))[at] =
            qn_cuda_pack_word(&w, &raw, panel * QN_CUDA_PANEL, n, unit * w.unit_k,
                              has_factor ? inverse : NULL, at);
    }
}

/* Rows past the last one have the factor 1. */
static __global__ void end_factors(qn_cuda_weight w, int64_t part)
{
    const int64_t row = w.n_out + threadIdx.x;
    if (row < w.n_panels * QN_CUDA_PANEL) w.factor[part * w.n_panels * QN_CUDA_PANEL + row] = 1;
}

/* Form F32: rows as they are. */
static __global__ void copy_rows(qn_cuda_weight w, qn_cuda_raw raw, int64_t part, int64_t first, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n * w.n_in;
         i += (int64_t)gridDim.x * blockDim.x)
        ((float *)w.data)[(part * w.n_out + first) * w.n_in + i] =
            qn_cuda_raw_plain(&w, &raw, i / w.n_in, i % w.n_in);
}

qn_status qn_cuda_pack(qn_cuda_context *c, const qn_cuda_weight *w, int64_t part, int64_t first, int64_t n,
                       const qn_cuda_raw *raw)
{
    if (c->is_lost)
        return qn_cuda_fail(QN_E_DEVICE, "device cuda: the card is lost to this process: %s", c->fault);
    const int64_t most = (int64_t)c->n_sm * 16;
    if (w->form == QN_CUDA_F32) {
        const int64_t blocks = qn_blocks(n * w->n_in, 256);
        return qn_cuda_begin(c, copy_rows, blocks < most ? blocks : most, 256, 0, *w, *raw, part, first, n);
    }
    qn_status status = QN_OK;
    if (w->factor) {
        status = qn_cuda_begin(c, find_factors, qn_blocks(n, 8), 256, 0, *w, *raw, part, first, n);
        if (status == QN_OK && first + n == w->n_out)
            status = qn_cuda_begin(c, end_factors, 1, 32, 0, *w, part);
    }
    const int64_t words = qn_blocks(n, QN_CUDA_PANEL) * w->n_units * (w->unit_bytes / 4),
                  blocks = qn_blocks(words, 256);
    if (status == QN_OK)
        status =
            qn_cuda_begin(c, pack_units, blocks < most ? blocks : most, 256, 0, *w, *raw, part, first, n);
    return status;
}
