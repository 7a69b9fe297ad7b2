/* The regular expressions that tokenizers ship, run by PCRE2 with limits.
 *
 * Patterns are written for Oniguruma; where PCRE2 reads one differently it is translated (\s, \w, \h, line
 * anchors, nested and intersected character classes) or refused. A compiled expression is read-only: any
 * thread, each with its own match. */
#ifndef QN_TEXT_REGEX_H
#define QN_TEXT_REGEX_H

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
/* The first match in text[from..n), which is valid UTF-8, at or after from; look-behind sees text from 0.
 * *found says whether there is one. QN_E_UNSUPPORTED: the expression needs more steps than allowed. */
qn_status qn_regex_find(const qn_regex *r, qn_regex_match *m, const char *text, size_t n, size_t from,
                        int *found, size_t *start, size_t *end);

#endif
