/* Keys and unique items that were written: the texts that another may not be.
 *
 * An other key of an object is no name of a member and no key so far; an item of a unique array is none so
 * far. While such a text is written, those taken texts count that begin with it. One thread at a time. */
#ifndef QN_CONSTRAIN_MACHINE_TAKEN_H
#define QN_CONSTRAIN_MACHINE_TAKEN_H

#include "constrain/machine/machine.h"

typedef struct {
    qn_text_ref *texts; /* [n] sorted, those that begin with the text so far */
    uint32_t n;
    size_t n_prefix; /* bytes so far */
    char *bytes;
} qn_taken;

/* QN_E_NOMEM. */
qn_status qn_taken_list(const qn_machine *m, const qn_frame *f, qn_taken *out);
void qn_taken_free(qn_taken *t);
/* The automaton of an other key or a unique item. */
int32_t qn_taken_dfa(const qn_machine *m, const qn_frame *f);
/* A place in a text of an automaton, with the texts [begin, end) of a list that share its `depth` bytes. */
typedef struct {
    uint32_t begin, end;
    size_t depth;
    int32_t state;
    uint32_t escape; /* escape.h */
} qn_taken_place;
/* 1: from a place, some text is left. counts: [states] qn_program_counts. */
int qn_taken_leaves_some(const qn_taken *t, const qn_taken_place *at, const qn_dfa *d,
                         const uint32_t *counts);

#endif
