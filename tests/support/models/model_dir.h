/* Copies of a fixture's model directory with changes, for tests of what happens when files say other things;
 * and opening what a directory says of its weights. */
#ifndef QUERN_TESTS_MODEL_DIR_H
#define QUERN_TESTS_MODEL_DIR_H

#include <jansson.h>

#include "model/weights/weights.h"

/* One change to the tensors of a copy; a list ends with tensor NULL. */
typedef struct {
    const char *tensor;
    enum {
        QN_TEST_DROP,    /* leave it out */
        QN_TEST_COPY,    /* write it a second time, as `name` */
        QN_TEST_FLATTEN, /* write it with the shape [1, elements] */
        QN_TEST_RETYPE   /* write it as integers of the same size */
    } edit;
    const char *name;
} qn_test_tensor_edit;

enum { QN_TEST_DIR_MAX = 4096 };

/* Makes a directory in the system's place for such things and writes its path into dir[QN_TEST_DIR_MAX]. All
 * files are links into `from` but config.json, to which patch (JSON text, NULL: none) was applied as a merge
 * patch (RFC 7386: null deletes a key, but "null" with the quotes sets null), and, when edits is not NULL,
 * the tensors, which are written anew as one model.safetensors. A failure fails the running test. */
void qn_test_model_copy(const char *from, const char *patch, const qn_test_tensor_edit *edits, char *dir);
/* Applies such a patch. */
void qn_test_merge_patch(json_t *object, const char *patch);
/* Deletes such a directory. */
void qn_test_model_remove(const char *dir);

/* Source and configuration of a path; the source is closed again. */
qn_status qn_test_config(const char *path, qn_model_config *out);
/* The same of a copy of a fixture with a patch to its config.json. */
qn_status qn_test_config_patched(const char *fixture, const char *patch, qn_model_config *out);

typedef struct {
    qn_source *src;
    qn_model_config config;
    qn_weights *weights;
} qn_test_weights;

/* Source, configuration and weights of a path; *out is untouched when one of them fails. */
qn_status qn_test_weights_open(const char *path, qn_test_weights *out);
void qn_test_weights_close(qn_test_weights *m);
/* Opens them again and again while the n-th allocation fails, n = 1, 2, ..., until none does (at most 2,000
 * times): each failure is QN_E_NOMEM, and nothing is left behind. */
void qn_test_weights_run_out(const char *path);

#endif
