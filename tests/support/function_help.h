/* A model as a function of arrays (quern/finetune.h), opened for a test, with a few random ids. A failure ends the
 * running test. One thread at a time. */
#ifndef QUERN_TESTS_FUNCTION_HELP_H
#define QUERN_TESTS_FUNCTION_HELP_H

#include <quern/quern.h>

enum { QN_TEST_FUNCTION_N = 2, QN_TEST_FUNCTION_LENGTH = 23 };

typedef struct {
    qn_model *model;
    qn_finetune *f;
    qn_scope *scope; /* an inner one of f's */
    int64_t vocab_size;
    int32_t ids[QN_TEST_FUNCTION_N * QN_TEST_FUNCTION_LENGTH],
        targets[QN_TEST_FUNCTION_N * QN_TEST_FUNCTION_LENGTH];
} qn_test_function;

void qn_test_function_open_at(qn_test_function *t, const char *path, qn_model_options m,
                              qn_finetune_options o);
/* A model of the fixtures, with keys and values in f32. */
void qn_test_function_open(qn_test_function *t, const char *kind, qn_precision precision,
                           qn_finetune_options o);
void qn_test_function_close(qn_test_function *t);

/* ids as an array [N, LENGTH] of the scope. */
qn_array *qn_test_function_table(const qn_test_function *t, const int32_t *ids);
/* Of all elements. */
qn_array *qn_test_function_mean(qn_scope *s, qn_array *losses);
/* Random numbers for all trained arrays, so that factors do something. */
void qn_test_function_disturb(qn_test_function *t);
/* The *n numbers of an array, in row-major order: qn_free. */
float *qn_test_function_numbers(const qn_test_function *t, qn_array *a, int64_t *n);
/* Are these logits (hidden: hidden states) of t->ids, rows of `width`, the engine's to the bit? */
void qn_test_function_check_bits(const qn_test_function *t, const float *logits, int hidden, int64_t width,
                                 const char *adapter);

#endif
