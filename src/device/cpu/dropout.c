/* Dropout: a place's random bits come from a key and from where it is, so who computes it does not matter. */
#include <string.h>

#include "base/random.h"
#include "device/cpu/cpu.h"

enum { BITS = 16, PLACES = 64 / BITS /* that share one draw of 64 bits */ };

static void dropout_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *x = &s->plan.in[0], *o = &s->plan.out;
    const int32_t *key = (const int32_t *)s->in[1];
    const float rate = s->plan.params.dropout.rate, factor = 1 / (1 - rate);
    const uint64_t below = (uint64_t)(rate * (1 << BITS) + 0.5f),
                   seed = qn_random_bits((uint64_t)(uint32_t)key[0] << 32 | (uint32_t)key[1],
                                         (uint64_t)s->plan.params.dropout.stream);
    const int64_t row = qn_shape_row(&o->shape), stride = x->shape.n > 1 ? x->stride[0] : 1;
    int64_t begin, end;
    qn_cpu_share(run, qn_cpu_rows(run, o), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const float *from = (const float *)s->in[0] + r * stride;
        float *to = (float *)s->out + r * row;
        uint64_t bits = 0;
        if (!key[2]) {
            memcpy(to, from, (size_t)row * sizeof *to);
            continue;
        }
        for (int64_t i = 0; i < row; i++) {
            const uint64_t place = (uint64_t)(r * row + i);
            if (i == 0 || place % PLACES == 0)
                bits = qn_random_bits(seed, place / PLACES) >> (place % PLACES * BITS);
            to[i] = (bits & ((1 << BITS) - 1)) < below ? 0 : from[i] * factor;
            bits >>= BITS;
        }
    }
}

const qn_cpu_prim qn_cpu_DROPOUT = {dropout_run, NULL};
