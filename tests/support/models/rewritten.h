/* A fixture's model in memory: its tensors are changed, and it is written in another form. Failures end the
 * running test. */
#ifndef QUERN_TESTS_REWRITTEN_H
#define QUERN_TESTS_REWRITTEN_H

#include "engine/machine/engine.h"

enum { QN_TEST_REWRITTEN_TENSORS = 512, QN_TEST_REWRITTEN_NAME = 96 };

/* A tensor and its bytes, as a file has them. */
typedef struct {
    char name[QN_TEST_REWRITTEN_NAME];
    qn_dtype dtype;
    int n_dims;
    int64_t shape[4];
    char *data;
    size_t size_bytes;
} qn_test_copy_of;

typedef struct {
    const char *fixture; /* its directory */
    qn_test_copy_of t[QN_TEST_REWRITTEN_TENSORS];
    int n;
    qn_model_config config;
    int32_t ids[64]; /* of prompt 1 */
    int64_t n_ids;
} qn_test_rewritten;

/* kind: a folder of models/. */
qn_test_rewritten *qn_test_rewritten_read(const char *kind);
void qn_test_rewritten_free(qn_test_rewritten *m);

/* The tensor named fmt, which may have two numbers in it. Valid until one is added or dropped. */
qn_test_copy_of *qn_test_rewritten_find(qn_test_rewritten *m, const char *fmt, int a, int b);
/* A new one, of zeros. */
qn_test_copy_of *qn_test_rewritten_add(qn_test_rewritten *m, const char *name, qn_dtype dtype, int n_dims,
                                       const int64_t *shape);
void qn_test_rewritten_drop(qn_test_rewritten *m, qn_test_copy_of *t);
int64_t qn_test_copy_elements(const qn_test_copy_of *t);
/* Its numbers; test_free. */
float *qn_test_copy_floats(const qn_test_copy_of *t);

/* folder becomes a directory with the fixture's config.json, patched (tests/support/models/model_dir.h), and the
 * tensors. */
const char *qn_test_rewritten_write(const qn_test_rewritten *m, const char *folder, const char *patch);
/* The largest difference of the logits that two models give for the ids; 0: all bits are equal. */
double qn_test_rewritten_difference(const qn_test_rewritten *m, const char *a, const char *b,
                                    qn_precision precision);

#endif
