/* The normalizer of a tokenizer.json: text to text, step by step, before pre-tokenizing.
 * Built by one owner, then read-only: any thread, each with its own regex match. */
#ifndef QN_TEXT_TOKENIZER_SPLIT_NORMALIZE_H
#define QN_TEXT_TOKENIZER_SPLIT_NORMALIZE_H

#include <jansson.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/status.h"
#include "text/tokenizer/split/regex.h"

typedef struct qn_normalizer qn_normalizer;

/* value: the file's "normalizer"; null and NULL give one that changes nothing. what names the file.
 * QN_E_UNSUPPORTED names a component that is not known, QN_E_FORMAT a bad field. */
qn_status qn_normalizer_from_json(const char *what, const json_t *value, qn_normalizer **out);
void qn_normalizer_free(qn_normalizer *z);
/* 1 when it changes no text. */
int qn_normalizer_is_empty(const qn_normalizer *z);
/* text in, text out, valid UTF-8; spare is working memory of the same kind. goes_on: the text has more of it
 * before, so nothing is put in front. QN_E_FULL: it grew to more
 * than 64 times its size and what the steps' own texts bring, or beyond 2 GiB. */
qn_status qn_normalizer_run(const qn_normalizer *z, qn_regex_match *m, int goes_on, qn_buf *text,
                            qn_buf *spare);

/* "pattern" of a Replace or Split: {"String": "..."} or {"Regex": "..."}. *literal is borrowed from the JSON,
 * or NULL when *regex (owned by the caller) was made. */
qn_status qn_pattern_from_json(const char *what, const json_t *component, const char **literal, size_t *n,
                               qn_regex **regex);
/* The first place of needle in text[from..n); n when there is none, or when needle is empty. */
size_t qn_find_bytes(const char *text, size_t n, size_t from, const char *needle, size_t n_needle);

#endif
