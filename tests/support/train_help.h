/* What tests of training share: batches of random tokens, and numbers for adapters that do something. One
 * thread at a time. */
#ifndef QUERN_TESTS_TRAIN_HELP_H
#define QUERN_TESTS_TRAIN_HELP_H

#include "engine/machine/engine.h"
#include "train/step/trainer.h"

enum { QN_TEST_BATCH_SEQUENCES = 3, QN_TEST_BATCH_ROWS = 40 };

typedef struct {
    qn_train_batch batch;
    int32_t ids[QN_TEST_BATCH_ROWS], row_begin[QN_TEST_BATCH_SEQUENCES + 1];
    int32_t rows[QN_TEST_BATCH_ROWS], targets[QN_TEST_BATCH_ROWS];
} qn_test_batch;

/* Sequences of several lengths; nearly all of their tokens are targets. */
void qn_test_batch_draw(qn_test_batch *b, int64_t vocab_size, uint64_t seed);
/* Small random numbers in place of the first ones, which for B are zero; magnitudes change by up to a tenth.
 */
void qn_test_fill_factors(qn_trainable *t, uint64_t seed);
/* Writes an adapter of small random numbers for the model at base_path into folder path. */
void qn_test_make_adapter(const char *base_path, const qn_trainable_options *what, const char *path);
/* Exact logits [n_ids, *vocab_size] of random ids by the model at path with an adapter (NULL: none); qn_free.
 */
float *qn_test_logits_with(const char *path, const char *adapter, int64_t n_ids, int64_t *vocab_size);
/* The batch's mean loss by the engine with the adapter of this name. */
double qn_test_engine_loss(qn_engine *e, const char *adapter, const qn_train_batch *b);

#endif
