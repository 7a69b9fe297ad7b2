/* What building automata shares: the budget of one call, arrays that grow in an arena, and a set of rows that
 * gives equal rows one number. All lives in the arena of the work and dies with it. One thread at a time. */
#ifndef QN_CONSTRAIN_AUTOMATON_WORK_H
#define QN_CONSTRAIN_AUTOMATON_WORK_H

#include "base/arena.h"
#include "constrain/automaton/dfa.h"

enum { QN_DFA_BYTES_MAX = 256 << 20 }; /* of an arena, and of an automaton */

typedef struct {
    qn_arena arena;
    size_t pattern_bytes_max;
    int32_t depth_max, states_max;
    int64_t steps_max, steps;
} qn_dfa_work;

/* The limits with their defaults filled in, and an empty arena. */
void qn_dfa_work_begin(qn_dfa_work *w, const qn_dfa_limits *limits);
void qn_dfa_work_end(qn_dfa_work *w);
/* Counts n more steps. */
qn_status qn_dfa_work_steps(qn_dfa_work *w, int64_t n);
qn_status qn_dfa_work_states(const qn_dfa_work *w, int64_t n);
/* The steps that are left, for the calls below this one. */
qn_dfa_limits qn_dfa_work_limits(const qn_dfa_work *w);

/* An array of elements of size_bytes with room for n more; the old place is left to the arena. */
typedef struct {
    void *at;
    size_t n, capacity;
} qn_dfa_array;
qn_status qn_dfa_array_room(qn_dfa_work *w, qn_dfa_array *a, size_t n, size_t size_bytes);

/* Rows of 32-bit words of any lengths; each different row has a number, counted from 0. */
typedef struct {
    qn_dfa_array words, begins; /* uint32_t; size_t begin of each row, one more than rows */
    uint32_t *slots;            /* row + 1; 0: free */
    size_t n_slots;
} qn_dfa_rows;
/* *is_new may be NULL. */
qn_status qn_dfa_rows_add(qn_dfa_work *w, qn_dfa_rows *r, const uint32_t *row, size_t n, int32_t *id,
                          int *is_new);
static inline int32_t qn_dfa_rows_count(const qn_dfa_rows *r)
{
    return r->begins.n ? (int32_t)(r->begins.n - 1) : 0;
}
/* Valid until the next row is added. */
static inline const uint32_t *qn_dfa_rows_get(const qn_dfa_rows *r, int32_t id, size_t *n)
{
    const size_t *begins = r->begins.at;
    *n = begins[id + 1] - begins[id];
    return *n ? (const uint32_t *)r->words.at + begins[id] : NULL; /* rows that are all empty have no words */
}

/* An automaton that is being built: total or, with state 0 dead, sparse in what matters. */
typedef struct {
    int32_t n_states, n_classes;
    uint8_t class_of[256];
    const int32_t *next;    /* [n_states, n_classes]; state 0 is dead */
    const uint8_t *accepts; /* [n_states] */
    int32_t start;
} qn_dfa_draft;

/* Makes it minimal and numbers it. is_minimal: all states but 0 can be reached, none is dead, and no two are
 * equal, so that numbering suffices. */
qn_status qn_dfa_finish(qn_dfa_work *w, const qn_dfa_draft *d, int is_minimal, qn_dfa **out);

/* Minimises a complete automaton with any number of letters and several starts. State 0 is dead, and is so in
 * the result, whose state of each old state is in block [n_states]; *n_blocks counts them with the dead one. */
qn_status qn_dfa_minimise(qn_dfa_work *w, int32_t n_states, int32_t n_letters, const int32_t *next,
                          const uint8_t *accepts, const int32_t *starts, int32_t n_starts, int32_t *block,
                          int32_t *n_blocks);

#endif
