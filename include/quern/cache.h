/* The state that a model computed of tokens, in the hands of callers: handles.
 *
 * A qn_cache is a handle of the first n tokens of a sequence. A pass from it gives logits and a new handle;
 * the old one stays valid, so that any number of continuations can be tried from one beginning, and they
 * share the memory of what they have in common. A handle is a number, not an address: one that was freed,
 * whose model was closed, of another model or of no model at all is refused by an error and never followed.
 *
 * Any thread. A handle may be used by several calls at once. Closing a model ends its handles. Handles hold
 * the adapter that they were computed with (it cannot be unloaded meanwhile), and memory of keys and values
 * that others could use: free what is not needed. */
#ifndef QUERN_CACHE_H
#define QUERN_CACHE_H

#include <quern/generate.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Never defined: it points to nothing. */
typedef struct qn_cache qn_cache;

/* Computes ids[0..n_ids) behind the tokens of cache (NULL: none, with the model's default adapter) and writes
 * the logits of the last one, float32, once into logits, which holds logits_capacity numbers: vocab_size or
 * more. *out is the handle of all tokens, owned by the caller: qn_cache_free. Bits are those of the same
 * tokens in one piece. From a handle with what it needs the call allocates nothing. On failure *out is
 * untouched and logits hold nothing of use; cache is as it was. QN_E_ARG: a buffer that is too small, an
 * empty or too long row, an id outside the vocabulary, a handle that is none of this model's; QN_E_FULL,
 * QN_E_NOMEM: no room for keys and values; QN_E_DEVICE: the handle is poisoned (a pass failed that computed
 * some of it), or the logits are not finite. */
QN_API qn_status qn_forward_with_cache(qn_model *model, const int32_t *ids, int64_t n_ids,
                                       const qn_cache *cache, float *logits, int64_t logits_capacity,
                                       qn_cache **out);
/* A handle of the first keep tokens, 0 to the length, owned by the caller: qn_cache_free. Nothing is
 * computed; what the layers let go of (behind a sliding window, in recurrent layers) the next pass computes
 * anew. */
QN_API qn_status qn_cache_slice(const qn_cache *cache, int64_t keep, qn_cache **out);
/* Tokens. */
QN_API qn_status qn_cache_get_length(const qn_cache *cache, int64_t *out);
/* NULL, and what is no handle any more, are accepted. */
QN_API void qn_cache_free(qn_cache *cache);

#ifdef __cplusplus
}
#endif
#endif
