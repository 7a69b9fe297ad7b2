/* `quern constrain check`: what a schema enforces, what is refused, and why an instance is not allowed. */
#ifndef QN_CLI_CONSTRAIN_CONSTRAIN_CHECK_H
#define QN_CLI_CONSTRAIN_CONSTRAIN_CHECK_H

#include "base/status.h"
#include "text/tokenizer/tokenizer.h"

/* Prints what there is to say about the schema's file, and about an instance's if there is one (else NULL).
 * *is_good: the schema can be enforced, and the instance is allowed. A file that cannot be read or is no JSON is
 * a failure. */
qn_status qn_constrain_check(const char *schema, const char *instance, const qn_tokenizer *t, int json,
                             int *is_good);

#endif
