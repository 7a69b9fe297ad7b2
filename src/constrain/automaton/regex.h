/* Regular expressions of ECMA-262 (flag u) as automata over UTF-8.
 *
 * All of the syntax that describes a regular language is taken: classes, \d \w \s, \p{...} (general categories,
 * scripts, a few binary properties), escapes, groups, alternatives, quantifiers, ^ $ \b \B anywhere,
 * look-ahead anywhere, look-behind outside look-ahead. Lazy quantifiers describe the same language as greedy
 * ones. What is no pattern with the flag u and one without it (\- or a lone brace) means what it means without
 * it (Annex B), as implementations of JSON schema have it. Any thread. */
#ifndef QN_CONSTRAIN_AUTOMATON_REGEX_H
#define QN_CONSTRAIN_AUTOMATON_REGEX_H

#include "constrain/automaton/dfa.h"

enum {
    QN_REGEX_SEARCH = 0,      /* texts that contain a match, as JSON schema's pattern has it */
    QN_REGEX_WHOLE = 1,       /* texts that match from begin to end */
    QN_REGEX_IGNORE_CASE = 2, /* the flag i, for ASCII and simple pairs of letters */
    QN_REGEX_DOT_ALL = 4,     /* the flag s */
};

/* QN_E_FORMAT: no regular expression, with the place. QN_E_UNSUPPORTED: not regular (back references), not
 * taken (some look-behind), or a limit; the message says which. */
qn_status qn_dfa_regex(const char *pattern, size_t n, unsigned flags, const qn_dfa_limits *limits,
                       qn_dfa **out);

#endif
