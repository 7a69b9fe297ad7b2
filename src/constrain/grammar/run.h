/* A recogniser of a grammar, byte by byte, with states that are numbers: copying one costs nothing.
 *
 * A state is a set of threads. A thread is inside of a terminal of a right side; behind its last symbol it returns
 * to a frame: the places where the callers of its rule go on. A rule called at the very end of a right side returns
 * where its caller would, so repetitions return to the frame they began with. States and frames are hash-consed:
 * what was met once is found again, and steps are remembered. Left recursion and empty texts need nothing special
 * (J. Earley, 1970; P. Leo's shortcut, 1991).
 *
 * State 0 is the dead one. From each other state some text leads to an end. One thread at a time. */
#ifndef QN_CONSTRAIN_GRAMMAR_RUN_H
#define QN_CONSTRAIN_GRAMMAR_RUN_H

#include "constrain/grammar/grammar.h"

typedef struct {
    int32_t states_max; /* 0: 200,000 */
    int32_t items_max;  /* threads, waits and places of one state; 0: 4,000 */
    int32_t work_max;   /* places that one step goes on from; 0: 50,000 */
    size_t bytes_max;   /* 0: 256 MiB */
} qn_grammar_run_limits;

typedef struct qn_grammar_run qn_grammar_run;

/* Keeps a reference to g. */
qn_status qn_grammar_run_new(qn_grammar *g, const qn_grammar_run_limits *limits, qn_grammar_run **out);
void qn_grammar_run_free(qn_grammar_run *r);

/* The state where every text begins. */
uint32_t qn_grammar_run_start(const qn_grammar_run *r);
/* *out: the state behind a byte; 0: it may not come. QN_E_FULL: a limit; states stay valid, and so does r. */
qn_status qn_grammar_run_step(qn_grammar_run *r, uint32_t state, uint8_t byte, uint32_t *out);
/* May the text end here? */
int qn_grammar_run_may_end(const qn_grammar_run *r, uint32_t state);
/* Bytes of one class lead from any state to one and the same. */
uint8_t qn_grammar_run_class(const qn_grammar_run *r, uint8_t byte);

uint32_t qn_grammar_run_states(const qn_grammar_run *r);
size_t qn_grammar_run_bytes(const qn_grammar_run *r);
/* Forgets all states but those that keep [n] need, which get their new numbers. */
qn_status qn_grammar_run_sweep(qn_grammar_run *r, uint32_t *const *keep, size_t n);

#endif
