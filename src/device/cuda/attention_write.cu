/* Rows of keys and values into the pages of their sequences. */
#include "device/cuda/attention.cuh"

typedef struct {
    const float *x;
    int64_t stride; /* from row to row */
    int dim, n_blocks;
    size_t at, head_bytes,
        token_bytes; /* of the pages: where they begin, from head to head, from token to token */
} kind;

typedef struct {
    char *base;
    size_t unit_bytes;
    qn_dtype dtype;
    int64_t n_rows, n_sequences, table_row;
    int kv_heads;
    kind k, v;
    const int32_t *positions, *row_begin, *blocks;
} writing;

/* Lane i holds element i of 32. The codes and the scale are the CPU's. */
static __device__ void write_block(qn_dtype dtype, char *to, float x)
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
static __global__ void write_rows(writing a)
{
    const int lane = threadIdx.x % 32, n_blocks = a.k.n_blocks + a.v.n_blocks;
    int64_t at = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int block = (int)(at % n_blocks);
    at /= n_blocks;
    const int head = (int)(at % a.kv_heads);
    const int64_t row = at / a.kv_heads;
    if (row >= a.n_rows) return; /* the whole warp */
    const kind &w = block < a.k.n_blocks ? a.k : a.v;
    if (block >= a.k.n_blocks) block -= a.k.n_blocks;
    const int32_t *table = a.blocks + qn_sequence_of(a.row_begin, a.n_sequences, row) * a.table_row;
    const int64_t position = a.positions[row], page = table[1 + position / QN_PAGE_TOKENS - table[0]];
    char *to =
        a.base + page * a.unit_bytes + w.at + head * w.head_bytes + position % QN_PAGE_TOKENS * w.token_bytes;
    const int d = block * 32 + lane;
    const float x = d < w.dim ? w.x[row * w.stride + (int64_t)head * w.dim + d] : 0.0f;
    if (a.dtype == QN_DTYPE_Q8_0 || a.dtype == QN_DTYPE_Q4_0) {
        write_block(a.dtype, to + block * (a.dtype == QN_DTYPE_Q8_0 ? 34 : 18), x);
        return;
    }
    const int width = a.dtype == QN_DTYPE_F32 ? 4 : 2;
    if ((size_t)(d * width) >= w.token_bytes) return;
    if (a.dtype == QN_DTYPE_F32)
        ((float *)to)[d] = x;
    else
        ((uint16_t *)to)[d] = a.dtype == QN_DTYPE_F16 ? qn_float_to_half(x) : qn_float_bf16(x);
}

qn_status qn_cuda_write_pages(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_state *p = &s->state;
    const qn_cuda_operand *k = &s->in[1], *v = &s->in[2];
    writing a = {p->base, p->unit_bytes, p->dtype, k->dim[0], s->in[4].dim[0] - 1, s->in[5].stride[0]};
    a.kv_heads = (int)p->kv_heads;
    a.positions = (const int32_t *)s->in[3].data;
    a.row_begin = (const int32_t *)s->in[4].data;
    a.blocks = (const int32_t *)s->in[5].data;
    a.k = {(const float *)k->data, k->stride[0], (int)p->head_dim, (int)qn_blocks(p->head_dim, 32)};
    a.k.token_bytes = qn_cuda_token_bytes(p->dtype, p->head_dim);
    a.k.head_bytes = a.k.token_bytes * QN_PAGE_TOKENS;
    if (!p->v_in_k) {
        a.v = {(const float *)v->data, v->stride[0], (int)p->v_dim, (int)qn_blocks(p->v_dim, 32)};
        a.v.at = a.k.head_bytes * (size_t)p->kv_heads;
        a.v.token_bytes = qn_cuda_token_bytes(p->dtype, p->v_dim);
        a.v.head_bytes = a.v.token_bytes * QN_PAGE_TOKENS;
    }
    const int64_t warps = a.n_rows * a.kv_heads * (a.k.n_blocks + a.v.n_blocks);
    return qn_cuda_begin(c, write_rows, qn_blocks(warps, 4), 128, 0, a);
}
