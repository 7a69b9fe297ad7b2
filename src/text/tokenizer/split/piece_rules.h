/* SentencePiece's normalisation of a text: the map of characters, white space, and user-defined pieces, which
 * pass as they are. Built by one owner, then read-only: any thread. */
#ifndef QN_TEXT_TOKENIZER_SPLIT_PIECE_RULES_H
#define QN_TEXT_TOKENIZER_SPLIT_PIECE_RULES_H

#include <stddef.h>

#include "base/buf.h"
#include "text/tokenizer/model/trie.h"
#include "text/tokenizer/split/charsmap.h"

/* Zeroed has no rule. */
typedef struct {
    qn_charsmap map;
    qn_trie whole; /* user-defined pieces; searched only if has_whole */
    int has_whole;
    int dummy_prefix;    /* a space is put before the text, */
    int prefix_once;     /* but not after an added token */
    int space_is_suffix; /* or behind it */
    int remove_spaces;   /* at both ends, and all but one between words */
    int escape_spaces;   /* a space is written U+2581 */
} qn_piece_rules;

void qn_piece_rules_free(qn_piece_rules *r);
/* Appends what text[0..n), valid UTF-8, becomes. prefix: a space may be put before it. middle: there is more text
 * before, so spaces at the begin stay. */
void qn_piece_rules_run(const qn_piece_rules *r, const char *text, size_t n, int prefix, int middle,
                        qn_buf *out);
/* Bytes of the longest user-defined piece that begins text[0..n); 0: none does. */
size_t qn_longest_whole(const qn_trie *whole, const char *text, size_t n);

#endif
