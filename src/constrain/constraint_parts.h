/* The inside of constraints and matchers. See constraint.h. */
#ifndef QN_CONSTRAIN_CONSTRAINT_PARTS_H
#define QN_CONSTRAIN_CONSTRAINT_PARTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "constrain/constraint.h"
#include "constrain/machine/machine.h"
#include "constrain/machine/mask.h"

struct qn_constraint {
    atomic_int n_references;
    pthread_mutex_t lock; /* of all below that changes in use: program, machine, masks, matchers */
    int has_lock;
    qn_vocabulary *v;
    qn_constraint_limits limits;
    qn_program program;
    qn_machine machine;
    qn_masks masks;
    uint32_t start;
    qn_matcher *matchers; /* all of them */
    qn_constraint_note *notes;
    size_t n_notes, notes_room;
    qn_constraint_source source; /* its texts lie in the arena */
    qn_schema *validator;        /* NULL: none so far */
    int has_validator;           /* it was asked for */
    qn_arena arena;              /* of the source's texts, and of notes */
};

struct qn_matcher {
    qn_constraint *c;
    qn_matcher *next, *previous;
    uint32_t state;
    uint8_t has_ended; /* an end id was accepted */
    uint8_t has_lines; /* a line ended between values */
};

/* A JSON schema compiled into the constraint's program, its notes taken over. */
qn_status qn_constraint_compile_schema(qn_constraint *c, const char *text, size_t n, int32_t *value);
/* Strings are copied. */
qn_status qn_constraint_add_note(qn_constraint *c, const char *pointer, const char *keyword,
                                 const char *message);

#endif
