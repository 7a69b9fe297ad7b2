/* Sets of code points as sorted ranges that neither touch nor overlap. Surrogates are in no set: no valid text
 * holds them. The ranges live in the arena of the work. One thread at a time. */
#ifndef QN_CONSTRAIN_AUTOMATON_CHARSET_H
#define QN_CONSTRAIN_AUTOMATON_CHARSET_H

#include "constrain/automaton/work.h"

typedef struct {
    uint32_t lo, hi; /* both in the range */
} qn_code_range;

/* Ranges may be added in any order; qn_charset_settle sorts them. */
typedef struct {
    qn_dfa_array ranges; /* qn_code_range */
} qn_charset;

enum { QN_CODE_MAX = 0x10ffff };

static inline const qn_code_range *qn_charset_ranges(const qn_charset *s)
{
    return s->ranges.at;
}
qn_status qn_charset_add(qn_dfa_work *w, qn_charset *s, uint32_t lo, uint32_t hi);
/* Of a settled set or any list of ranges. */
qn_status qn_charset_add_ranges(qn_dfa_work *w, qn_charset *s, const qn_code_range *ranges, size_t n);
/* Sorts, joins what touches, drops surrogates. */
qn_status qn_charset_settle(qn_dfa_work *w, qn_charset *s);
/* All code points that a settled set does not hold. */
qn_status qn_charset_invert(qn_dfa_work *w, qn_charset *s);
/* Adds the other case of each ASCII letter; settles. */
qn_status qn_charset_fold(qn_dfa_work *w, qn_charset *s);
/* The set of \p{...}: "L", "Letter", "Script=Greek", "sc=Grek", "gc=Lu", "Alphabetic". QN_E_FORMAT: no such
 * name. QN_E_UNSUPPORTED: Script_Extensions. */
qn_status qn_charset_add_property(qn_dfa_work *w, qn_charset *s, const char *name, size_t n);

#endif
