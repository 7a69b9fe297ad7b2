/* Values without a rule: any JSON value, any object, and the automaton of any number. */
#ifndef QN_CONSTRAIN_JSON_ANY_H
#define QN_CONSTRAIN_JSON_ANY_H

#include "constrain/machine/program.h"

/* The value of any JSON value; one per program. */
qn_status qn_any_value(qn_program *p, int32_t *out);
/* The value of any object. */
qn_status qn_any_object(qn_program *p, int32_t *out);

#endif
