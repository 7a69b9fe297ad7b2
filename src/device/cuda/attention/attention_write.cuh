/* The body that writes rows of keys and values into the pages of their sequences. */
#ifndef QN_DEVICE_CUDA_ATTENTION_ATTENTION_WRITE_CUH
#define QN_DEVICE_CUDA_ATTENTION_ATTENTION_WRITE_CUH

#include "device/cuda/attention/attention.cuh"
#include "device/cuda/attention/rope.cuh"
#include "device/cuda/step/step.h"

typedef struct {
    const float *x;
    int64_t stride; /* from row to row */
    int dim, n_blocks;
    size_t at, head_bytes,
        token_bytes; /* of the pages: where they begin, from head to head, from token to token */
} qn_write_kind;

typedef struct {
    char *base;
    size_t unit_bytes;
    qn_dtype dtype;
    int64_t n_rows, n_sequences, table_row;
    int kv_heads;
    qn_write_kind k, v;
    const int32_t *positions, *row_begin, *blocks;
    qn_rotate::work rotation; /* table not NULL: keys are rotated on their way; k.x is not read */
} qn_writing;

/* Lane i holds element i of 32. The codes and the scale are the CPU's. */
static __device__ void qn_write_block(qn_dtype dtype, char *to, float x)
{
    const int lane = threadIdx.x % 32, bits = dtype == QN_DTYPE_Q8_0 ? 8 : 4;
    if (bits == 4) x = qn_turn_block(x, 0.25f);
    const float largest = qn_warp_max(fabsf(x));
    float scale = largest / 127.0f;
    if (bits == 4) {
        const float has = qn_warp_max(x == largest ? 1.0f : 0.0f);
        scale = has > 0 ? largest / -8.0f : largest / 8.0f;
    }
    if (!(largest < INFINITY)) scale = NAN;
    const uint16_t half = qn_float_to_half(scale);
    scale = qn_half_to_float(half);
    const float inverse = scale != 0 && fabsf(scale) < INFINITY ? 1.0f / scale : 0.0f;
    const float low = bits == 8 ? -127.0f : -8.0f, high = bits == 8 ? 127.0f : 7.0f;
    float y = rintf(x * inverse);
    y = y != y ? 0.0f : fminf(high, fmaxf(low, y));
    const int code = (int)y, other = __shfl_xor_sync(0xffffffffu, code, 16);
    if (lane == 0) *(uint16_t *)to = half;
    if (bits == 8)
        to[2 + lane] = (char)code;
    else if (lane < 16)
        to[2 + lane] = (char)((code + 8) | (other + 8) << 4);
}

/* A warp for 32 elements of a key or a value. */
struct qn_write_rows {
    typedef qn_writing work;
    enum { OP = QN_OP_WRITE, BLOCK = 128 };

    static __device__ void run(const qn_body &b, const work &a)
    {
        const int lane = threadIdx.x % 32, n_blocks = a.k.n_blocks + a.v.n_blocks;
        int64_t at = b.block * (BLOCK / 32) + threadIdx.x / 32;
        int block = (int)(at % n_blocks);
        at /= n_blocks;
        const int head = (int)(at % a.kv_heads);
        const int64_t row = at / a.kv_heads;
        if (row >= a.n_rows) return; /* the whole warp */
        const qn_write_kind &w = block < a.k.n_blocks ? a.k : a.v;
        if (block >= a.k.n_blocks) block -= a.k.n_blocks;
        const int32_t *table = a.blocks + qn_sequence_of(a.row_begin, a.n_sequences, row) * a.table_row;
        const int64_t position = a.positions[row],
                      page = table[1 + position / QN_PAGE_TOKENS - qn_pages_before(table[0])];
        char *to = a.base + page * a.unit_bytes + w.at + head * w.head_bytes +
                   position % QN_PAGE_TOKENS * w.token_bytes;
        const int d = block * 32 + lane;
        float x = 0;
        if (d < w.dim)
            x = a.rotation.table && &w == &a.k ? qn_rotated(a.rotation, row, head, d)
                                               : w.x[row * w.stride + (int64_t)head * w.dim + d];
        if (a.dtype == QN_DTYPE_Q8_0 || a.dtype == QN_DTYPE_Q4_0) {
            qn_write_block(a.dtype, to + block * (a.dtype == QN_DTYPE_Q8_0 ? 34 : 18), x);
            return;
        }
        const int width = a.dtype == QN_DTYPE_F32 ? 4 : 2;
        if ((size_t)(d * width) >= w.token_bytes) return;
        if (a.dtype == QN_DTYPE_F32)
            ((float *)to)[d] = x;
        else
            ((uint16_t *)to)[d] = a.dtype == QN_DTYPE_F16 ? qn_float_to_half(x) : qn_float_bf16(x);
    }
};

#endif
