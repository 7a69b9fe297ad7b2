/* What a model computes on the way against the golden values of its fixture: hidden states, keys and
 * attention probabilities of one prompt. The last are computed here, from the queries and keys that were
 * seen, by the formula of the reference. Failures end the running test. */
#ifndef QUERN_TESTS_GOLDEN_STATES_H
#define QUERN_TESTS_GOLDEN_STATES_H

#include "engine/engine.h"
#include "format/safetensors.h"

enum { QN_GOLDEN_LAYERS_MAX = 64 };

/* Rows of one layer, [rows, heads, dim]. */
typedef struct {
    float *data;
    int64_t heads, dim, rows;
} qn_golden_rows;

/* Largest differences, each as a share of the largest value of its tensor, and of how many tensors. */
typedef struct {
    double hidden, keys, attention;
    int n_hidden, n_keys, n_attention;
} qn_golden_errors;

typedef struct {
    const qn_safetensors *st; /* hidden.I, keys.I and attention.I */
    const qn_model_config *config;
    int64_t first, n_rows, head_first; /* where the rows of this chunk begin, and their number */
    qn_golden_errors errors;
    qn_golden_rows queries[QN_GOLDEN_LAYERS_MAX], keys[QN_GOLDEN_LAYERS_MAX];
} qn_golden_states;

/* A probe (qn_engine_set_probe) for the steps that compute the prompt; user is a qn_golden_states with st and
 * config set and all else zero. */
void qn_golden_probe(void *user, const char *label, qn_prim prim, const void *data, const qn_operand *out,
                     const qn_sizes *sizes);
/* After these steps: compares attention, checks that every tensor that is stored was seen, and frees. */
void qn_golden_finish(qn_golden_states *s);

#endif
