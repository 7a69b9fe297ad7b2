/* The formats of the JSON schema drafts as automata over the text of the string. Any thread.
 *
 * No text is accepted that the format refuses, except by idn-email, whose domain is held to letters, marks and digits
 * that IDNA nearly takes. These texts are refused although they are valid: labels of a hostname that begin with
 * "xn--" (what they stand for is not checked); a hostname of more than 60 labels, or an email's domain of more than
 * 15; a leap second at an offset that is no multiple of 15 minutes; an address literal of an email that is neither
 * IPv4 nor IPv6. An email's local part has at most 64 bytes. */
#ifndef QN_CONSTRAIN_AUTOMATON_FORMATS_H
#define QN_CONSTRAIN_AUTOMATON_FORMATS_H

#include "constrain/automaton/dfa.h"

/* QN_E_NOT_FOUND: no format of the drafts has this name (an annotation then). QN_E_UNSUPPORTED: one that no
 * automaton decides (regex, idn-hostname). */
qn_status qn_dfa_format(const char *name, const qn_dfa_limits *limits, qn_dfa **out);
/* The formats that take long to make (email, hostname, times, URIs: a few MB) are kept for the process. This drops them,
 * while no other thread asks for a format: for tests that count memory. */
void qn_dfa_formats_forget(void);
/* The strings that draft 7 takes under contentEncoding or contentMediaType: base64 with its padding and perhaps line
 * ends between groups of four. QN_E_NOT_FOUND: an annotation. QN_E_UNSUPPORTED: JSON, which no automaton decides. */
qn_status qn_dfa_content(const char *keyword, const char *value, const qn_dfa_limits *limits, qn_dfa **out);

#endif
