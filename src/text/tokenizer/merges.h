/* Adds a list of merges, given as texts, to a model. Three look-ups and one insertion a merge miss the cache
 * each time, so merges are gathered in groups whose memory is asked for ahead. One owner. */
#ifndef QN_TEXT_TOKENIZER_MERGES_H
#define QN_TEXT_TOKENIZER_MERGES_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/vocab.h"

enum { QN_MERGES_GROUP = 32 };

typedef struct {
    const char *what; /* names the file in messages */
    const qn_vocab *vocab;
    qn_bpe *bpe;
    uint32_t rank; /* of the first merge of the group */
    int n;
    qn_buf text; /* the group's merges, left and right token of each without a gap */
    size_t start[QN_MERGES_GROUP], n_left[QN_MERGES_GROUP], length[QN_MERGES_GROUP];
} qn_merges;

/* The next merge of the list; set what, vocab and bpe of a zeroed qn_merges first. QN_E_FORMAT: this one or
 * one before it names a token that is not in the vocabulary. */
qn_status qn_merges_add(qn_merges *m, const char *left, size_t n_left, const char *right, size_t n_right);
/* After the last one. */
qn_status qn_merges_finish(qn_merges *m);
/* Frees the group's memory. */
void qn_merges_free(qn_merges *m);

#endif
