/* JSON's numbers within bounds as automata over their spelling. Any thread.
 *
 * No spelling outside of the bounds is accepted. Inside of them every spelling without an exponent is. Of those with
 * one, each is accepted if only bounds of 0 are asked for, and zero always. Else the exponent must stand behind one
 * digit, not 0, and a point with digits or none (1e-07, 1.5e+16). If the number is divided (integer, multiple_of), at
 * most 16 digits may follow the point; for integer, the exponent behind a point is 16 or more. All that Python's json.dumps
 * writes is among these. */
#ifndef QN_CONSTRAIN_AUTOMATON_NUMBERS_H
#define QN_CONSTRAIN_AUTOMATON_NUMBERS_H

#include "constrain/automaton/dfa.h"

/* Decimal texts as JSON spells numbers, or NULL. */
typedef struct {
    int integer; /* 1.0, -0 and 1e2 are integers */
    const char *minimum, *maximum, *exclusive_minimum, *exclusive_maximum, *multiple_of;
} qn_number_bounds;

/* QN_E_FORMAT: a bound is no number, or multiple_of is not above 0. QN_E_UNSUPPORTED: a limit. */
qn_status qn_dfa_number(const qn_number_bounds *b, const qn_dfa_limits *limits, qn_dfa **out);

#endif
