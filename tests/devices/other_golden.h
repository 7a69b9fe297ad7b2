/* A model of tests/golden/mlx, on the CPU or another device, against mlx_lm's own logits: tools/make_mlx_*.py
 * made both. */
#ifndef QN_TESTS_DEVICES_OTHER_GOLDEN_H
#define QN_TESTS_DEVICES_OTHER_GOLDEN_H

#include "engine/machine/engine.h"

/* On every instruction set, with every precision. */
void qn_test_other_golden(const char *folder);
/* On one of them, or on the device of the options; set NULL: the best one. */
void qn_test_other_golden_with(const char *folder, const char *set, qn_engine_options o);

#endif
