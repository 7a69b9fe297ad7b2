#include "tests/support/train_help.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/random.h"
#include "model/adapter/adapters.h"
#include "tests/support/engine_help.h"
#include "train/files/trainable_file.h"

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

void qn_test_make_adapter(const char *base_path, const qn_trainable_options *what, const char *path)
{
    qn_train_base base;
    qn_trainer *t = NULL;
    const qn_trainer_options o = {.trainable = *what, .max_rows = 4, .max_sequences = 1};
    qn_test_ok(qn_train_base_open(base_path, NULL, 2, 0, &base));
    qn_test_ok(qn_trainer_new(&base, &o, &t));
    qn_test_fill_factors(qn_trainer_trainable(t), 5);
    qn_test_ok(qn_trainable_save(qn_trainer_trainable(t), &base, path, NULL));
    qn_trainer_free(t);
    qn_train_base_close(&base);
}

typedef struct {
    float *out;
    int64_t vocab_size;
} copies;

static qn_status copy_logits(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    const copies *c = user;
    memcpy(c->out + first * c->vocab_size, logits, (size_t)(n * c->vocab_size) * sizeof *logits);
    return QN_OK;
}

float *qn_test_logits_with(const char *path, const char *adapter, int64_t n_ids, int64_t *vocab_size)
{
    qn_buf notes = {0};
    int32_t id = -1, *ids = qn_alloc_array((size_t)n_ids, sizeof *ids);
    qn_engine *e = qn_test_engine(
        path, NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT, .max_rows = 64, .n_threads = 2});
    *vocab_size = qn_engine_config(e)->vocab_size;
    copies c = {qn_alloc_array((size_t)(n_ids * *vocab_size), sizeof(float)), *vocab_size};
    for (int64_t i = 0; i < n_ids; i++)
        ids[i] = (int32_t)(qn_random_bits(3, (uint64_t)i) % (uint64_t)*vocab_size);
    if (adapter) qn_test_ok(qn_engine_adapter_load(e, "it", adapter, 1, &notes));
    qn_sequence *s = qn_test_sequence(e);
    qn_test_ok(qn_adapters_hold(qn_engine_adapters(e), adapter ? "it" : "none", &id));
    qn_sequence_set_adapter(s, id);
    qn_feed feed = {s, ids, n_ids, QN_LOGITS_ALL};
    qn_test_ok(qn_engine_step(e, 1, &feed, copy_logits, NULL, &c));
    qn_sequence_free(s);
    qn_adapters_release(qn_engine_adapters(e), id);
    qn_engine_close(e);
    qn_buf_free(&notes);
    qn_free(ids);
    return c.out;
}
