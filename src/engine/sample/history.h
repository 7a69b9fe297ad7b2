/* The last tokens of a sequence, for samplers that look back: the last `window` at least, side by side in
 * memory. Nothing is allocated after qn_history_new. One thread at a time. */
#ifndef QN_ENGINE_SAMPLE_HISTORY_H
#define QN_ENGINE_SAMPLE_HISTORY_H

#include <stdint.h>

#include "base/status.h"

typedef struct qn_history qn_history;

/* window: how many of the last tokens are kept, at least 1. */
qn_status qn_history_new(int64_t window, qn_history **out);
void qn_history_free(qn_history *h);
void qn_history_add(qn_history *h, int32_t id);
/* All that were ever added. */
int64_t qn_history_count(const qn_history *h);
/* The last of them, `most` or fewer, and how many in *n. Borrowed until the next add. */
const int32_t *qn_history_last(const qn_history *h, int64_t most, int64_t *n);

#endif
