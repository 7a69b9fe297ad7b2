/* What a model computes on the way against the golden values of its fixture: hidden states, keys and
 * attention probabilities of one prompt. The last are computed here, from the queries and keys that were
 * seen, by the formula of the reference. Failures end the running test. */
#ifndef QUERN_TESTS_GOLDEN_STATES_H
#define QUERN_TESTS_GOLDEN_STATES_H

#include "engine/machine/encode.h"
#include "format/safetensors/safetensors.h"

/* Largest differences, each as a share of the largest value of its tensor, and of how many tensors. */
typedef struct {
    double hidden, keys, attention;
    int n_hidden, n_keys, n_attention;
    char first[32]; /* the first tensor that leaves the tolerance, as it is computed: "keys.2"; "": none */
} qn_golden_errors;

/* Of hidden states, keys and attention. */
extern const double qn_golden_states_tolerance;

/* The largest difference of logits that the README of the fixtures allows a kind in float32. */
double qn_golden_tolerance(const char *kind);
/* The largest difference of the logits of prompt i, which is computed in one step. errors (NULL: not wanted):
 * of what was computed on the way; every tensor that is stored must have been seen. */
double qn_golden_logits(qn_engine *e, const qn_safetensors *st, int i, qn_golden_errors *errors);
/* Where what a kind makes of its picture lies: features, logits and greedy tokens. expected.safetensors, or a file
 * of tests/golden/images where what is stored there is wrong (tools/picture_golden.py). The caller closes it. */
qn_safetensors *qn_golden_picture(const char *kind);
/* "prompt2" and "ids": the tensor "prompt2.ids", which must be there. */
const qn_tensor_view *qn_golden_tensor(const qn_safetensors *st, const char *prompt, const char *what);
/* Of an encoder: the largest difference of the hidden states (want "last_hidden") of a prompt ("prompt2"), or of its
 * scores (want "score"). errors: as above. */
double qn_golden_encoded(qn_engine *e, const qn_safetensors *st, const char *prompt, const char *want,
                         qn_golden_errors *errors);
/* The greedy continuation of prompt i from scratch, one decode step a token, is the golden one; up to a token
 * whose logit is at most `margin` above the golden one's: what follows that is another text. */
void qn_golden_greedy(qn_engine *e, const qn_safetensors *st, int i, double margin, const char *kind);

#endif
