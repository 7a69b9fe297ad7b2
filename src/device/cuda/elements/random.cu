/* RANDOM and DROPOUT: numbers that come from a key and a place, so the split over threads does not matter. The
 * bits are those of device/cpu/random.c and dropout.c. */
#include "device/cuda/kernel.cuh"

#define static static __device__
#include "base/random.h"
#undef static

enum { BLOCK = 256, BITS = 16, PLACES = 64 / BITS /* that share one draw of 64 bits */ };

/* ---- RANDOM -------------------------------------------------------------------------------------------- */

/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011): block i of a stream, four words. */
static __global__ void fill(uint32_t *out, int64_t n, const uint32_t *key, uint32_t stream, int is_f32)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    uint32_t c0 = (uint32_t)i, c1 = (uint32_t)(i >> 32), c2 = stream, c3 = 0, k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    const uint32_t words[4] = {c0, c1, c2, c3};
    for (int j = 0; j < 4; j++) {
        const int64_t at = 4 * i + j;
        const uint32_t w = words[j];
        if (at < n)
            out[at] = is_f32 ? qn_cuda_float_bits((float)(w >> 8) * 5.9604644775390625e-8f) : w; /* 2^-24 */
    }
}

static qn_status launch_random(qn_cuda_context *c, const qn_cuda_step *s)
{
    const int64_t n = qn_elements(&s->out);
    return qn_cuda_begin(c, fill, qn_blocks(n, 4 * BLOCK), BLOCK, 0, s->out.data, n, s->in[0].data,
                         s->params->random.stream, s->out.dtype == QN_DTYPE_F32);
}

extern const qn_cuda_prim qn_cuda_prim_RANDOM;
const qn_cuda_prim qn_cuda_prim_RANDOM = {launch_random, NULL};

/* ---- DROPOUT ------------------------------------------------------------------------------------------- */

/* n elements in rows that lie stride apart in x. A thread has the places of one draw. key[2] 0: nothing is
 * dropped. */
static __global__ void drop(float *out, const float *x, const int32_t *key, int64_t n, int64_t row,
                            int64_t stride, uint64_t stream, uint32_t below, float factor)
{
    const int64_t group = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    const uint64_t seed = qn_random_bits((uint64_t)(uint32_t)key[0] << 32 | (uint32_t)key[1], stream);
    uint64_t bits = qn_random_bits(seed, (uint64_t)group);
    for (int j = 0; j < PLACES; j++, bits >>= BITS) {
        const int64_t i = group * PLACES + j;
        if (i >= n) break;
        const float v = x[row == stride ? i : i / row * stride + i % row];
        out[i] = !key[2] ? v : (bits & ((1 << BITS) - 1)) < below ? 0 : v * factor;
    }
}

static qn_status launch_dropout(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *x = &s->in[0];
    const int64_t n = qn_elements(&s->out), row = s->out.n && s->out.dim[0] ? n / s->out.dim[0] : 1;
    const float rate = s->params->dropout.rate, factor = 1 / (1 - rate);
    return qn_cuda_begin(c, drop, qn_blocks(n, PLACES * BLOCK), BLOCK, 0, s->out.data, x->data, s->in[1].data,
                         n, row, x->n > 1 ? x->stride[0] : 1, s->params->dropout.stream,
                         (uint32_t)(rate * (1 << BITS) + 0.5f), factor);
}

extern const qn_cuda_prim qn_cuda_prim_DROPOUT;
const qn_cuda_prim qn_cuda_prim_DROPOUT = {launch_dropout, NULL};
