/* The pre-tokenizer of a tokenizer.json: cuts a normalized text into the pieces within which the model may
 * merge. Built by one owner, then read-only: any thread, each with its own pieces and regex match. */
#ifndef QN_TEXT_TOKENIZER_SPLIT_PRETOKENIZE_H
#define QN_TEXT_TOKENIZER_SPLIT_PRETOKENIZE_H

#include <jansson.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/status.h"
#include "text/tokenizer/split/normalize.h"
#include "text/tokenizer/split/regex.h"

typedef struct qn_pretokenizer qn_pretokenizer;

/* Pieces of a text, in order: piece i is text.data[start[i] .. start[i] + length[i]). Zeroed is empty. */
typedef struct {
    qn_buf text;
    size_t *start, *length;
    size_t n, capacity;
} qn_pieces;
void qn_pieces_free(qn_pieces *p);

/* value: the file's "pre_tokenizer"; null and NULL give one that leaves the text whole. QN_E_UNSUPPORTED
 * names a component that is not known. */
qn_status qn_pretokenizer_from_json(const char *what, const json_t *value, qn_pretokenizer **out);
void qn_pretokenizer_free(qn_pretokenizer *p);
/* 1 when a ByteLevel step writes the text in the byte alphabet. */
int qn_pretokenizer_is_byte_level(const qn_pretokenizer *p);
/* For tests: 0 runs the expressions of splits that have a hand-written scanner. */
void qn_pretokenizer_set_fast(qn_pretokenizer *p, int fast);

/* Cuts pieces (usually one, which holds the text) further, in place; spare is working memory of the same
 * kind. place: of the first piece. */
qn_status qn_pretokenizer_run(const qn_pretokenizer *p, qn_regex_match *m, qn_text_place place,
                              qn_pieces *pieces, qn_pieces *spare);
/* Makes *p hold text[0..n) as one piece; none when n is 0. */
qn_status qn_pieces_set(qn_pieces *p, const char *text, size_t n);

#endif
