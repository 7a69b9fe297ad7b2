#include "tests/train_help.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "model/adapters.h"
#include "tests/engine_help.h"

void qn_test_batch_draw(qn_test_batch *b, int64_t vocab_size, uint64_t seed)
{
    static const int32_t lengths[QN_TEST_BATCH_SEQUENCES] = {17, 5, 18};
    int32_t at = 0;
    *b = (qn_test_batch){.batch = {.n_sequences = QN_TEST_BATCH_SEQUENCES}};
    for (int s = 0; s < QN_TEST_BATCH_SEQUENCES; s++) {
        b->row_begin[s] = at;
        for (int32_t i = 0; i < lengths[s]; i++, at++) {
            b->ids[at] = (int32_t)(qn_random_bits(seed, (uint64_t)at) % (uint64_t)vocab_size);
            if (i < 2) continue;
            b->rows[b->batch.n_targets] = at - 1;
            b->targets[b->batch.n_targets++] = b->ids[at];
        }
    }
    b->row_begin[QN_TEST_BATCH_SEQUENCES] = at;
    b->batch.n_rows = at;
    b->batch.ids = b->ids;
    b->batch.row_begin = b->row_begin;
    b->batch.rows = b->rows;
    b->batch.targets = b->targets;
}

void qn_test_fill_factors(qn_trainable *t, uint64_t seed)
{
    for (int64_t i = 0; i < t->n; i++) {
        qn_trainable_array *a = &t->arrays[i];
        const int is_magnitude = strstr(a->name, "magnitude") != NULL;
        for (int64_t k = 0; k < a->n; k++) {
            const double x = 2 * qn_random_unit(seed + (uint64_t)i, (uint64_t)k) - 1;
            a->data[k] = (float)(is_magnitude ? a->data[k] * (1 + 0.1 * x) : 0.2 * x);
        }
    }
}

typedef struct {
    const qn_train_batch *batch;
    int32_t begin; /* row of the batch at which the sequence begins */
    int64_t vocab_size;
    double sum;
} losses;

static qn_status add_losses(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    losses *l = user;
    for (int64_t i = 0; i < l->batch->n_targets; i++) {
        const int64_t row = l->batch->rows[i] - l->begin - first;
        if (row < 0 || row >= n) continue;
        const float *x = logits + row * l->vocab_size;
        double sum = 0;
        for (int64_t k = 0; k < l->vocab_size; k++) sum += exp((double)x[k]);
        l->sum += log(sum) - (double)x[l->batch->targets[i]];
    }
    return QN_OK;
}

double qn_test_engine_loss(qn_engine *e, const char *adapter, const qn_train_batch *b)
{
    losses l = {.batch = b, .vocab_size = qn_engine_config(e)->vocab_size};
    for (int64_t s = 0; s < b->n_sequences; s++) {
        int32_t id;
        const int32_t n = b->row_begin[s + 1] - b->row_begin[s];
        qn_test_ok(qn_adapters_hold(qn_engine_adapters(e), adapter, &id));
        qn_sequence *sequence = qn_test_sequence(e);
        qn_sequence_set_adapter(sequence, id);
        l.begin = b->row_begin[s];
        qn_feed feed = {sequence, b->ids + l.begin, n, QN_LOGITS_ALL};
        qn_test_ok(qn_engine_step(e, 1, &feed, add_losses, NULL, &l));
        qn_sequence_free(sequence);
        qn_adapters_release(qn_engine_adapters(e), id);
    }
    return l.sum / (double)b->n_targets;
}
