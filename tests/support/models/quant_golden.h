/* Quantised models against golden values: every file of the fixtures' quant/gguf_models and directory of
 * quant/mlx_models. One thread. */
#ifndef QUERN_TESTS_QUANT_GOLDEN_H
#define QUERN_TESTS_QUANT_GOLDEN_H

#include "engine/machine/engine.h"

/* "gguf_models/NAME" for NAME.gguf, "mlx_models/NAME" for a directory; NULL ends. */
extern const char *const qn_test_quant_kinds[];

/* Opens the model with these options (and instruction set, NULL: as the environment says) and compares its
 * logits, and with EXACT what it writes greedily. name: of the set or device, for messages. */
void qn_test_quant_golden(const char *kind, const char *name, const char *set, qn_engine_options o);

#endif
