#include "train/step/update.h"

#include "base/random.h"

/* Of bf16, that are updated together. */
enum { UPDATE_NUMBERS = 1024 };

void qn_trainable_update(qn_trainable *t, int64_t i, const qn_update *u, const float *g, float *m, float *v)
{
    qn_trainable_array *a = &t->arrays[i];
    float some[UPDATE_NUMBERS];
    if (a->data) {
        qn_optimizer_step(u->optimizer, u->step, u->rate, u->g_scale, a->n, a->data, g, m, v);
        return;
    }
    const uint64_t key = qn_random_bits(qn_random_bits(t->options.seed, (uint64_t)u->step), (uint64_t)i);
    for (int64_t k = 0; k < a->n; k += UPDATE_NUMBERS) {
        const int64_t n = a->n - k < UPDATE_NUMBERS ? a->n - k : UPDATE_NUMBERS;
        qn_trainable_read(a, k, n, some);
        qn_optimizer_step(u->optimizer, u->step, u->rate, u->g_scale, n, some, g + k, m ? m + k : NULL,
                          v ? v + k : NULL);
        qn_trainable_write_drawn(a, k, n, some, key);
    }
}
