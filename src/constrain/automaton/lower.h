/* From automata over classes of code points to automata over bytes of UTF-8. */
#ifndef QN_CONSTRAIN_AUTOMATON_LOWER_H
#define QN_CONSTRAIN_AUTOMATON_LOWER_H

#include "constrain/automaton/charset.h"
#include "constrain/automaton/work.h"

/* A partition of all code points: interval i is [begins[i], begins[i + 1]), of class classes[i]; -1: surrogates.
 * begins[0] is 0 and begins[n] is 0x110000. */
typedef struct {
    int32_t n, n_classes;
    uint32_t *begins;
    int32_t *classes;
} qn_code_classes;

/* next [n_states, n_classes] is minimal (as qn_dfa_minimise makes it), state 0 dead. */
qn_status qn_dfa_lower(qn_dfa_work *w, const qn_code_classes *classes, int32_t n_states, const int32_t *next,
                       const uint8_t *accepts, int32_t start, qn_dfa **out);

/* One character of a settled set. */
qn_status qn_dfa_of_charset(qn_dfa_work *w, const qn_charset *s, qn_dfa **out);

#endif
