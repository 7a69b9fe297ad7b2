/* Automata told by a function: the state is a small record, and all records that can be reached are numbered.
 * For languages that a program checks more easily than a regular expression says them (dates, numbers). */
#ifndef QN_CONSTRAIN_AUTOMATON_EXPLORE_H
#define QN_CONSTRAIN_AUTOMATON_EXPLORE_H

#include "constrain/automaton/work.h"

enum { QN_EXPLORE_WORDS_MAX = 16 };

typedef struct {
    const void *context;
    size_t n_words;    /* of a state: a struct of 4 * n_words bytes without padding */
    int32_t n_classes; /* class 0: bytes that lead nowhere */
    uint8_t class_of[256];
    /* Moves the state by a byte of the class; 0: nowhere. */
    int (*move)(const void *context, uint32_t *state, uint8_t byte);
    int (*accepts)(const void *context, const uint32_t *state);
} qn_explorer;

/* Classes: one for each byte of `single`; one for each pair of bytes lo, hi of `ranges`. */
void qn_explorer_classes(qn_explorer *e, const char *single, const char *ranges);
qn_status qn_dfa_explore(qn_dfa_work *w, const qn_explorer *e, const void *start, qn_dfa **out);

#endif
