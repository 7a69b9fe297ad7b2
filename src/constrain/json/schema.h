/* JSON schemas compiled to values of a constraint's program. */
#ifndef QN_CONSTRAIN_JSON_SCHEMA_H
#define QN_CONSTRAIN_JSON_SCHEMA_H

#include "constrain/constraint.h"

/* The value of the whole schema. Adds notes. QN_E_FORMAT: no schema. QN_E_UNSUPPORTED: it cannot be enforced,
 * passes a limit, or nothing satisfies it. */
qn_status qn_schema_compile(qn_constraint *c, const char *text, size_t n, int32_t *value);

#endif
