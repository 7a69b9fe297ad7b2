/* Tool calls as a language: the marks of the model's own format around names and arguments by the tools'
 * schemas. */
#ifndef QN_CONSTRAIN_TOOLS_H
#define QN_CONSTRAIN_TOOLS_H

#include "constrain/constraint.h"

/* The graph node where the answer begins. A tool that is not strict and whose schema is refused is held to any
 * JSON object, with a note. QN_E_FORMAT: no list of tools. QN_E_UNSUPPORTED: a strict tool's schema is refused,
 * or the format of the calls cannot be enforced. */
qn_status qn_tools_compile(qn_constraint *c, const qn_constraint_source *s, uint32_t *node);
/* For a family whose messages have headers: reasoning, then a message that is the form which begins at the node
 * `form`. The answer begins inside a header. */
qn_status qn_tools_put_form(qn_constraint *c, const qn_call_format *f, uint32_t form, uint32_t *out);
/* Where in such an answer the form begins. */
size_t qn_tools_find_form(const qn_call_format *f, const char *text, size_t n);

#endif
