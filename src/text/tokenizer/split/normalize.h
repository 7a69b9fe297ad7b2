/* The normalizer of a tokenizer.json: text to text, step by step, before pre-tokenizing.
 * Built by one owner, then read-only: any thread, each with its own regex match. */
#ifndef QN_TEXT_TOKENIZER_SPLIT_NORMALIZE_H
#define QN_TEXT_TOKENIZER_SPLIT_NORMALIZE_H

#include <jansson.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/status.h"
#include "text/tokenizer/split/piece_rules.h"
#include "text/tokenizer/split/regex.h"

/* What lies before a text. */
typedef enum {
    QN_AFTER_TOKEN,   /* an added token */
    QN_AFTER_NOTHING, /* it begins the whole (Metaspace's prepend_scheme "first") */
    QN_AFTER_TEXT     /* more of it: nothing is put in front */
} qn_text_place;

typedef struct qn_normalizer qn_normalizer;

/* value: the file's "normalizer"; null and NULL give one that changes nothing. what names the file.
 * QN_E_UNSUPPORTED names a component that is not known, QN_E_FORMAT a bad field. */
qn_status qn_normalizer_from_json(const char *what, const json_t *value, qn_normalizer **out);
/* SentencePiece's rules, taken (*rules is empty then) on success. */
qn_status qn_normalizer_for_pieces(qn_piece_rules *rules, qn_normalizer **out);
void qn_normalizer_free(qn_normalizer *z);
/* 1 when it changes no text. */
int qn_normalizer_is_empty(const qn_normalizer *z);
/* text in, text out, valid UTF-8; spare is working memory of the same kind. QN_E_FULL: it grew to more
 * than 64 times its size and what the steps' own texts bring, or beyond 2 GiB. */
qn_status qn_normalizer_run(const qn_normalizer *z, qn_regex_match *m, qn_text_place place, qn_buf *text,
                            qn_buf *spare);

/* "pattern" of a Replace or Split: {"String": "..."} or {"Regex": "..."}. *literal is borrowed from the JSON,
 * or NULL when *regex (owned by the caller) was made. */
qn_status qn_pattern_from_json(const char *what, const json_t *component, const char **literal, size_t *n,
                               qn_regex **regex);
/* The first place of needle in text[from..n); n when there is none, or when needle is empty. */
size_t qn_find_bytes(const char *text, size_t n, size_t from, const char *needle, size_t n_needle);

#endif
