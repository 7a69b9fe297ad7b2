/* One run of a schema over a value: what the keywords say, seen from inside of this folder.
 *
 * A keyword's function returns 1 if the value satisfies it. It returns 0 if not, after qn_run_fail, or if the run
 * is over (status is set: a limit, no memory). Marks are one byte for each child of the value: 1 if some keyword
 * has evaluated it (unevaluatedItems, unevaluatedProperties). They lie on a stack that moves as it grows, so they
 * are known by their offset. */
#ifndef QN_CONSTRAIN_VALIDATE_EVALUATE_H
#define QN_CONSTRAIN_VALIDATE_EVALUATE_H

#include "constrain/validate/schema.h"

#define QN_NO_MARKS SIZE_MAX

typedef struct {
    const qn_schema *schema;
    qn_schema_report *report; /* NULL: nobody wants to know why */
    int is_probe;             /* the report is for a message about alternatives */
    qn_status status;
    int64_t steps; /* left */
    int32_t depth;
    const qn_resource **scope; /* [depth_max + 1] the resources entered, outermost first */
    int32_t n_scope;
    qn_buf marks;
} qn_run;

/* Is v valid by s? Marks what s evaluated, if it is. */
int qn_run_apply(qn_run *r, const qn_subschema *s, const qn_value *v, size_t marks);
/* Takes n steps; 0: none are left, and the run is over. */
int qn_run_step(qn_run *r, int64_t n);
void qn_run_mark(qn_run *r, size_t marks, uint32_t child);
void qn_run_mark_all(qn_run *r, size_t marks, uint32_t first, uint32_t n);
/* Reports that v does not satisfy u. Returns 0. */
int qn_run_fail(qn_run *r, const qn_keyword_use *u, const qn_value *v, const char *fmt, ...) QN_PRINTF(4, 5);
int qn_run_stop(qn_run *r, qn_status status);
/* 1: a keyword that failed need not be followed by others. */
int qn_run_is_over(const qn_run *r);

/* evaluate_values.c: type, enum, const, numbers, strings. */
int qn_run_plain(qn_run *r, const qn_subschema *s, const qn_keyword_use *u, const qn_value *v);
/* evaluate_children.c: arrays and objects. */
int qn_run_children(qn_run *r, const qn_subschema *s, const qn_keyword_use *u, const qn_value *v,
                    size_t marks);

#endif
