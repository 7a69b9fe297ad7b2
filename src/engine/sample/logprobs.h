/* Log-probabilities: natural logarithms of the softmax of one row of logits.
 *
 * The sum of exponentials is taken in blocks of QN_ROW_BLOCK in order of ids, so that the result depends on
 * the logits and, within the rounding of exp, on the instruction set alone. Nothing is allocated. Any thread.
 */
#ifndef QN_ENGINE_SAMPLE_LOGPROBS_H
#define QN_ENGINE_SAMPLE_LOGPROBS_H

#include <quern/generate.h>

#include "device/device.h"

/* What one row of logits [n_vocab] says of all its tokens. logits are borrowed. */
typedef struct {
    const qn_logits_kernels *kernels;
    const float *logits;
    int64_t n_vocab;
    double log_sum; /* logarithm of the sum of exp(logit) */
} qn_logprobs;

/* Reads logits [n_vocab]; -inf is a token that cannot come. kernels: the device's passes over logits, NULL:
 * the host's. QN_E_INTERNAL: a logit is NaN or +inf, or none is finite. */
qn_status qn_logprobs_read(const qn_logits_kernels *kernels, const float *logits, int64_t n_vocab,
                           qn_logprobs *out);
/* Of one token of the vocabulary, -inf for one that cannot come. */
double qn_logprobs_of(const qn_logprobs *l, int32_t id);
/* The n_top (at most QN_TOP_LOGPROBS_MAX) largest in falling order, the lower id first on a tie. Returns how
 * many there are: fewer only where fewer tokens can come. */
int32_t qn_logprobs_top(const qn_logprobs *l, int32_t n_top, qn_top_logprob *top);

#endif
