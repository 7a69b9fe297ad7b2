/* A tiny llama with random weights of one type: for what must hold for every weight type. */
#ifndef QUERN_TESTS_TYPED_MODEL_H
#define QUERN_TESTS_TYPED_MODEL_H

#include <quern/dtype.h>

/* Ids are below this; no multiple of a panel. */
enum { QN_TEST_TYPED_VOCAB = 155 };

/* Types a linear weight may have; ends with QN_DTYPE_COUNT. */
extern const qn_dtype qn_test_weight_types[];

/* Writes folder/TYPE.gguf (2 layers, hidden size 256, 4 heads over 2, a head of its own, no tokenizer) and
 * returns its path, as qn_test_path does. MLX's types (affine, mxfp4, nvfp4): the directory folder/TYPE
 * (tests/devices/mlx_model.h). The same bytes every time. A failure fails the
 * running test. */
const char *qn_test_typed_model(const char *folder, qn_dtype type);

#endif
