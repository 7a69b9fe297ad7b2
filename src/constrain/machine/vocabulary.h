/* The tokens of a tokenizer as a trie of bytes, made once per model for the masks of constraints.
 *
 * Nodes lie in depth-first order, each with the place behind its subtree, so a walk is a scan with jumps.
 * Special tokens stand below the byte 0xff, which no text holds: text never becomes one, and a language that
 * wants one asks for 0xff and its text. Tokens without bytes, other tokens with a byte 0xff, and end ids are in
 * no language. Immutable but for
 * its count of references, which is atomic: any thread may read it. */
#ifndef QN_CONSTRAIN_MACHINE_VOCABULARY_H
#define QN_CONSTRAIN_MACHINE_VOCABULARY_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "text/tokenizer/tokenizer.h"

typedef struct qn_vocabulary qn_vocabulary;

/* The byte before the text of a special token. */
enum { QN_VOCABULARY_SPECIAL = 0xff };

/* The tokenizer must outlive the vocabulary. end_ids (may be none) end an answer. QN_E_NOMEM. */
qn_status qn_vocabulary_new(const qn_tokenizer *t, const int32_t *end_ids, size_t n_end_ids,
                            qn_vocabulary **out);
qn_vocabulary *qn_vocabulary_retain(qn_vocabulary *v);
void qn_vocabulary_release(qn_vocabulary *v);
/* Words of 32 bits of a mask: one bit for each id below qn_tokenizer_vocab_size. */
size_t qn_vocabulary_mask_words(const qn_vocabulary *v);
size_t qn_vocabulary_bytes(const qn_vocabulary *v);

#endif
