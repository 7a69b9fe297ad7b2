/* Calls of tools as a family's models write them: the other direction of tool_reader.h, for templates that show no calls.
 * Pure functions: any thread. */
#ifndef QN_TEXT_TOOLS_TOOL_WRITER_H
#define QN_TEXT_TOOLS_TOOL_WRITER_H

#include <jansson.h>

#include "base/buf.h"
#include "text/tools/tool_calls.h"

/* 1: calls of this format can be written. It is so for JSON and Python in marks; not for headers and tags. */
int qn_tool_writer_knows(const qn_call_format *f);

/* Appends the calls, which are those of a message: objects with a function, whose name is a text and whose arguments are an
 * object, or its JSON as text. Marks of the format stand between two bytes QN_TEMPLATE_SWITCH (text/jinja/template.h): they are tokens
 * of the model, and what the caller gave is not. Returns 0 and appends nothing if one of the calls cannot be written so.
 * *out keeps the first failure of memory. */
int qn_tool_writer_put(const qn_call_format *f, const json_t *calls, qn_buf *out);

#endif
