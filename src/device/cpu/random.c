/* Random bits of a key: Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as
 * 1, 2, 3"). Word i of a stream is word i % 4 of the block whose counter is (i / 4 low, i / 4 high, stream,
 * 0): who computes it does not matter. */
#include "device/cpu/cpu.h"

static void block_of(const uint32_t key[2], uint64_t i, uint32_t stream, uint32_t out[4])
{
    uint32_t c[4] = {(uint32_t)i, (uint32_t)(i >> 32), stream, 0}, k[2] = {key[0], key[1]};
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * c[0], b = (uint64_t)0xcd9e8d57u * c[2];
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b,
                                  (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};
        for (int j = 0; j < 4; j++) c[j] = next[j];
        k[0] += 0x9e3779b9u;
        k[1] += 0xbb67ae85u;
    }
    for (int j = 0; j < 4; j++) out[j] = c[j];
}

static void random_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *o = &s->plan.out;
    const uint32_t *key = (const uint32_t *)(const void *)s->in[0],
                   stream = (uint32_t)s->plan.params.random.stream;
    const int64_t row = qn_shape_row(&o->shape);
    int64_t begin, end;
    uint32_t words[4] = {0};
    qn_cpu_share(run, qn_cpu_rows(run, o), &begin, &end);
    for (int64_t i = begin * row; i < end * row; i++) {
        if (i == begin * row || i % 4 == 0) block_of(key, (uint64_t)i / 4, stream, words);
        if (o->dtype == QN_DTYPE_F32)
            ((float *)(void *)s->out)[i] = (float)(words[i % 4] >> 8) * 0x1p-24f;
        else
            ((uint32_t *)(void *)s->out)[i] = words[i % 4];
    }
}

const qn_cpu_prim qn_cpu_RANDOM = {random_run, NULL};
