/* A JSON value as Python's json.dumps writes it (ensure_ascii False): the form in which models have seen most
 * JSON, and in which instances are tried against constraints. Any thread. */
#ifndef QN_CLI_CONSTRAIN_INSTANCE_TEXT_H
#define QN_CLI_CONSTRAIN_INSTANCE_TEXT_H

#include "base/buf.h"
#include "constrain/validate/value.h"

/* Appends v. indent < 0: one line, with ", " and ": "; else lines, each level indented by so many spaces. A
 * number with a point or an exponent is written as the float that Python reads it as. */
void qn_instance_write(const qn_value *v, int indent, qn_buf *out);
/* Appends a string with its quotes. */
void qn_instance_write_string(const char *text, size_t n, qn_buf *out);

#endif
