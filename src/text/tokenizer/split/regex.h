/* The regular expressions that tokenizers ship, run by PCRE2 with limits.
 *
 * Patterns are written for Oniguruma; where PCRE2 reads one differently it is translated (\s, \w, \h, line
 * anchors, nested and intersected character classes) or refused. A compiled expression is read-only: any
 * thread, each with its own match. */
#ifndef QN_TEXT_TOKENIZER_SPLIT_REGEX_H
#define QN_TEXT_TOKENIZER_SPLIT_REGEX_H

#include <stddef.h>

#include "base/status.h"

typedef struct qn_regex qn_regex;
typedef struct qn_regex_match qn_regex_match;

/* QN_E_FORMAT: not a regular expression; QN_E_UNSUPPORTED: one that cannot be run as it was meant. */
qn_status qn_regex_new(const char *pattern, size_t n, qn_regex **out);
void qn_regex_free(qn_regex *r);
/* As given. */
const char *qn_regex_pattern(const qn_regex *r, size_t *n);

qn_regex_match *qn_regex_match_new(void);
void qn_regex_match_free(qn_regex_match *m);
/* A walk over the matches in a text, left to right, without overlaps; an empty match right behind another
 * match is none. Zero it at the start of a text. */
typedef struct {
    size_t from;     /* where to look next */
    int matched;     /* there was a match, */
    size_t last_end; /* which ended here */
    size_t seen;     /* bytes looked at beyond the usual, for the limit */
} qn_regex_walk;
/* The next match in text[0..n), which is valid UTF-8. *found says whether there is one. QN_E_UNSUPPORTED: the
 * expression needs more steps than allowed, or looks so far ahead from so many places that the work would
 * grow by the square of the text. */
qn_status qn_regex_next(const qn_regex *r, qn_regex_match *m, const char *text, size_t n, qn_regex_walk *w,
                        int *found, size_t *start, size_t *end);

#endif
