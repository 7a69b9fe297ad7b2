/* WordPiece (BERT): a word becomes the longest token that begins it, then the longest that goes on, and so
 * forth. A word that cannot be covered is one unk. Tokens that go on a word begin with a prefix, "##".
 * Built by one owner, then read-only: any thread. */
#ifndef QN_TEXT_TOKENIZER_MODEL_WORDPIECE_H
#define QN_TEXT_TOKENIZER_MODEL_WORDPIECE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/vocab.h"

typedef struct qn_wordpiece qn_wordpiece;

typedef struct {
    int32_t unk_id;     /* -1: a word that cannot be covered is a failure */
    uint64_t max_chars; /* words of more code points are unk */
    const char *prefix; /* of tokens that go on a word; copied */
    size_t n_prefix;
} qn_wordpiece_options;

/* vocab is borrowed and must be complete (flags too) before qn_wordpiece_finish. */
qn_status qn_wordpiece_new(const qn_vocab *vocab, const qn_wordpiece_options *options, qn_wordpiece **out);
void qn_wordpiece_free(qn_wordpiece *w);
/* Last step of building. Hidden tokens never come of text. */
qn_status qn_wordpiece_finish(qn_wordpiece *w);
/* Appends the ids of word[0..n), valid UTF-8, to *ids. QN_E_FORMAT: it needs an unk that is not there.
 * QN_E_UNSUPPORTED: tokens begin so much alike that the work would grow by the square of the word. */
qn_status qn_wordpiece_encode(const qn_wordpiece *w, const char *word, size_t n, qn_id_list *ids);

#endif
