/* The words of the sampling options as token ids of one vocabulary: breakers of DRY, bad words, allowed ids.
 *
 * Bad words are encoded as they stand and behind a space. A breaker is every token whose text contains its
 * text; if there is none, the last token of its encoding. Immutable once made: samplers of all rows share
 * it, on any thread. */
#ifndef QN_ENGINE_SAMPLE_WORDS_H
#define QN_ENGINE_SAMPLE_WORDS_H

#include <quern/generate.h>

#include "base/status.h"
#include "text/tokenizer/tokenizer.h"

typedef struct qn_words qn_words;

/* The options have words, or look back over a window: qn_sampler_new needs the words then. */
int qn_words_are_needed(const qn_generate_options *o);
/* tokenizer NULL: there is none, and texts are refused. context: the most tokens that a window holds, at
 * least 1. QN_E_ARG names the field. *out is owned by the caller. */
qn_status qn_words_new(const qn_tokenizer *tokenizer, const qn_generate_options *o, int64_t n_vocab,
                       int64_t context, qn_words **out);
void qn_words_free(qn_words *w);

/* Of `window`, 0 or less: the context; at most the context. */
int64_t qn_words_window(const qn_words *w, int32_t window);
/* A bit for each token; NULL: no token breaks. */
const uint64_t *qn_words_breakers(const qn_words *w);
/* Most ids of a bad word; 0: there is none. */
int64_t qn_words_longest(const qn_words *w);
/* Whether logits are masked, and whether it is by a list of the only ones that are allowed. */
int qn_words_ban(const qn_words *w);
int qn_words_allow_few(const qn_words *w);
/* Writes -inf to the logits of all tokens that may not follow the last ones. last [n], the oldest first, are
 * at least the longest word's length less 1, or all tokens so far. */
void qn_words_mask(const qn_words *w, const int32_t *last, int64_t n, float *logits);

#endif
