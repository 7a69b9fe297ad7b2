/* DRY, "don't repeat yourself" (p-e-w, text-generation-webui, pull request 5677): a token is made unlikely if
 * it would go on with a repetition.
 *
 * Definition. t[0..N) are the last tokens. For each place i at which t[i] = t[N-1], i < N-1, n is the largest
 * length at which t[i-n+1..i] equals t[N-n..N-1] and holds no breaker. The token t[i+1], unless it is a
 * breaker, loses multiplier * base^(n - allowed_length) if n >= allowed_length; of several places the
 * longest counts. A loss is bounded, so that no logit becomes infinite.
 *
 * All matches are found in one pass, by the Z algorithm over the reversed tokens. Nothing is allocated after
 * qn_dry_new. One thread at a time. */
#ifndef QN_ENGINE_SAMPLE_DRY_H
#define QN_ENGINE_SAMPLE_DRY_H

#include <stdint.h>

#include "base/status.h"

typedef struct qn_dry qn_dry;

/* breakers: a bit for each token of the vocabulary, borrowed; NULL: none. */
typedef struct {
    float multiplier, base;
    int64_t allowed_length, window;
    const uint64_t *breakers;
} qn_dry_options;

qn_status qn_dry_new(const qn_dry_options *o, qn_dry **out);
void qn_dry_free(qn_dry *d);
/* tokens [n], the oldest first, n at most the window. *ids and *amounts are borrowed until the next call; ids
 * rise strictly. Returns how many. */
int64_t qn_dry_find(qn_dry *d, const int32_t *tokens, int64_t n, const int32_t **ids, const float **amounts);

#endif
