/* JSON schemas compiled to values of a constraint's program. */
#ifndef QN_CONSTRAIN_JSON_SCHEMA_H
#define QN_CONSTRAIN_JSON_SCHEMA_H

#include <stddef.h>
#include <stdint.h>

#include "constrain/machine/program.h"

/* Called for what is accepted and not enforced. Strings are borrowed during the call. */
typedef qn_status qn_schema_noted(void *context, const char *pointer, const char *keyword,
                                  const char *message);

typedef struct {
    int depth_max;     /* of brackets */
    int64_t steps_max; /* of the compiler */
    qn_schema_noted *note;
    void *context;
} qn_schema_options;

/* The value of the whole schema. QN_E_FORMAT: no schema. QN_E_UNSUPPORTED: it cannot be enforced, passes a
 * limit, or nothing satisfies it. */
qn_status qn_schema_compile(qn_program *p, const char *text, size_t n, const qn_schema_options *options,
                            int32_t *value);

#endif
