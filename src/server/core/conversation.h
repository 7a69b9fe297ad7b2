/* A chat as the library takes it: the messages of a request, made to fit the model's template
 * (text/chat/chat_fit.h). They are JSON values up to here; they become text once, for qn_prompt. On a worker,
 * or on any thread that may render. */
#ifndef QN_SERVER_CORE_CONVERSATION_H
#define QN_SERVER_CORE_CONVERSATION_H

#include "server/core/request.h"
#include "server/core/state.h"

/* `prompt` borrows from the rest and from the request. Zeroed, it is valid. */
typedef struct {
    qn_prompt prompt;
    qn_buf messages, variables;
    char *tools; /* foreign: jansson's */
} qn_chat_prompt;

/* What the chat template of a model takes, found by rendering a few short chats. QN_E_NOMEM only. */
qn_status qn_conversation_find_traits(const qn_model *model, qn_chat_traits *out);
/* Writes r->chat to *out, which must be empty; what was changed is added to the request's warnings. Returns
 * 0, or the HTTP status of a refusal. */
int qn_chat_prompt_write(const qn_server *s, qn_api_request *r, qn_chat_prompt *out, qn_api_error *error);
void qn_chat_prompt_free(qn_chat_prompt *p);

#endif
