/* LoRA adapters that a test makes up, or reads and bends before it writes them anew. Failures end the running
 * test. */
#ifndef QUERN_TESTS_ADAPTER_DIR_H
#define QUERN_TESTS_ADAPTER_DIR_H

#include <jansson.h>
#include <quern/dtype.h>
#include <stdint.h>

#include "model/adapter/adapter_config.h"

enum { QN_TEST_ADAPTER_TENSORS = 512, QN_TEST_ADAPTER_NAME = 160 };

typedef struct {
    char name[QN_TEST_ADAPTER_NAME]; /* as in PEFT's file */
    int n_dims;
    int64_t shape[3];
    float *values;
    qn_dtype dtype; /* written as F32, F16 or BF16; anything else is written as zeros of that type */
} qn_test_adapter_tensor;

typedef struct {
    json_t *config; /* PEFT's */
    qn_test_adapter_tensor tensors[QN_TEST_ADAPTER_TENSORS];
    size_t n;
} qn_test_adapter;

/* With a configuration of rank and alpha, without tensors. */
qn_test_adapter *qn_test_adapter_new(int64_t rank, double alpha);
/* All of a folder in PEFT's layout, of f32. */
qn_test_adapter *qn_test_adapter_read(const char *dir);
void qn_test_adapter_free(qn_test_adapter *a);

/* A pair of random matrices for "model.layers.0.self_attn.q_proj" and the like. */
void qn_test_adapter_add(qn_test_adapter *a, const char *module, int64_t rank, int64_t n_in, int64_t n_out,
                         uint64_t seed);
/* Magnitudes of about `size` for the module, for DoRA; the configuration says so then. */
void qn_test_adapter_add_magnitudes(qn_test_adapter *a, const char *module, int64_t n_out, float size,
                                    uint64_t seed);
/* A tensor of zeros. */
qn_test_adapter_tensor *qn_test_adapter_add_tensor(qn_test_adapter *a, const char *name, int n_dims,
                                                   const int64_t *shape);
/* The first tensor with this in its name. */
qn_test_adapter_tensor *qn_test_adapter_find(qn_test_adapter *a, const char *part);
void qn_test_adapter_drop(qn_test_adapter *a, qn_test_adapter_tensor *t);
/* A merge patch of JSON text to the configuration. */
void qn_test_adapter_patch(qn_test_adapter *a, const char *patch);

/* Writes folder/name, a folder of the layout, and returns its path, as qn_test_path does. MLX: matrices
 * transposed; the configuration's r, and lora_alpha / r as scale. */
const char *qn_test_adapter_write(const qn_test_adapter *a, const char *folder, const char *name,
                                  qn_adapter_layout layout);

#endif
