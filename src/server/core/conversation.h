/* A chat as the library takes it: the messages of a request, made to fit the model's template
 * (text/chat/chat_fit.h). They are JSON values from the request's body to the template. On a worker, or on any
 * thread that may render. */
#ifndef QN_SERVER_CORE_CONVERSATION_H
#define QN_SERVER_CORE_CONVERSATION_H

#include "server/core/request.h"
#include "server/core/state.h"
#include "text/chat/conversation.h"

/* `prompt` borrows the conversation, which holds its own references to JSON values. Zeroed, it is valid. */
typedef struct {
    qn_prompt prompt;
    qn_conversation chat;
} qn_chat_prompt;

/* What the chat template of a model takes, found by rendering a few short chats. QN_E_NOMEM only. */
qn_status qn_conversation_find_traits(const qn_model *model, const qn_model_info *info, qn_chat_traits *out);
/* Makes a prompt of r->chat in *out, which must be zeroed: of the messages that are there now, which must not
 * be changed while it is used; what was changed is added to the request's warnings. Returns
 * 0, or the HTTP status of a refusal. */
int qn_chat_prompt_write(const qn_server *s, qn_api_request *r, qn_chat_prompt *out, qn_api_error *error);
void qn_chat_prompt_free(qn_chat_prompt *p);

#endif
