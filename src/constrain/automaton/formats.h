/* The formats of the JSON schema drafts as automata over the text of the string. Any thread. */
#ifndef QN_CONSTRAIN_AUTOMATON_FORMATS_H
#define QN_CONSTRAIN_AUTOMATON_FORMATS_H

#include "constrain/automaton/dfa.h"

/* QN_E_NOT_FOUND: no format of the drafts has this name (an annotation then). QN_E_UNSUPPORTED: one that no
 * automaton decides (regex, idn-hostname). */
qn_status qn_dfa_format(const char *name, const qn_dfa_limits *limits, qn_dfa **out);

#endif
