/* Handles: sequences that stand still, for callers who keep the state of a model themselves.
 *
 * A handle is the tokens of a sequence and what was computed of them: pages and a slot of recurrent state. A
 * pass makes a new handle, which shares the pages of the old one and writes behind them; nothing that a
 * handle holds is ever changed, so all handles stay valid. Tokens lie in logs that forks share as far as they
 * agree. What a handle's sequence let go (pages behind a window, recurrent state in the middle) is computed
 * anew from the tokens by the pass that needs it. Objects and logs are kept for reuse: a pass from a handle
 * allocates nothing once there are enough of them.
 *
 * Any thread; passes wait until they have the engine. A handle may be used by several calls at once, and
 * must live until they return. */
#ifndef QN_ENGINE_CLIENTS_HANDLES_H
#define QN_ENGINE_CLIENTS_HANDLES_H

#include "engine/machine/engine.h"
#include "engine/schedule/scheduler.h"

typedef struct qn_handles qn_handles;
typedef struct qn_handle qn_handle;

/* engine and scheduler must outlive it. */
qn_status qn_handles_new(qn_engine *engine, qn_scheduler *scheduler, qn_handles **out);
/* No handle may live. NULL is accepted. */
void qn_handles_free(qn_handles *h);

/* The tokens of `from` (NULL: none) and then ids[0..n), n >= 1: the logits [vocab_size] of the last one,
 * written once, and the handle of all of them, owned by the caller. Untouched on failure, except logits.
 * QN_E_ARG: an id outside the vocabulary, or more tokens than the context; QN_E_FULL, QN_E_NOMEM: no room for
 * keys and values; QN_E_DEVICE: what the handle shares was computed by a pass that failed, or logits that are
 * not finite. */
qn_status qn_handle_forward(qn_handles *h, const qn_handle *from, const int32_t *ids, int64_t n,
                            float *logits, qn_handle **out);
/* A handle of the first keep tokens, 0 <= keep <= length. Nothing is computed. */
qn_status qn_handle_slice(qn_handles *h, const qn_handle *from, int64_t keep, qn_handle **out);
/* NULL is accepted. */
void qn_handle_free(qn_handles *h, qn_handle *handle);
int64_t qn_handle_length(const qn_handle *handle);

#endif
