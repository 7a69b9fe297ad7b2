/* Tools of dialects that describe them in another form than OpenAI's chat does, made to that form, which chat
 * templates know. One thread at a time. */
#ifndef QN_SERVER_CORE_FIELDS_TOOLS_H
#define QN_SERVER_CORE_FIELDS_TOOLS_H

#include "server/core/request.h"

/* A tool as sent: its members, borrowed; NULL or null: not given. */
typedef struct {
    const json_t *name, *description, *parameters, *strict;
} qn_tool_sent;

/* Appends a tool to r->own_tools. place and parameters_key name it in errors: "tools[2]", "input_schema". The
 * use of the tools is not decided here: r->tools is left alone. Returns 0, or the HTTP status of a refusal. */
int qn_tool_add(qn_api_request *r, const qn_tool_sent *tool, const char *place, const char *parameters_key,
                qn_api_error *error);
/* The request asks for a call, of any tool (name NULL) or of one. name is borrowed from the body. */
void qn_tool_force(qn_api_request *r, const char *name);

#endif
