/* The public functions of chats that are parsed once. */
#include "text/chat/conversation.h"

qn_status qn_conversation_new(const char *messages_json, const char *tools_json, const char *variables_json,
                              qn_conversation **out)
{
    if (!messages_json || !out)
        return qn_fail(QN_E_ARG, "qn_conversation_new: messages_json and out are needed");
    return qn_conversation_parse(messages_json, tools_json, variables_json, out);
}

qn_status qn_conversation_get_json(const qn_conversation *c, char **messages_json)
{
    qn_buf b = {0};
    if (!c || !messages_json) return qn_fail(QN_E_ARG, "qn_conversation_get_json: an argument is NULL");
    const qn_status status = qn_conversation_write(c, &b);
    char *text = status == QN_OK ? qn_buf_take(&b, NULL) : NULL;
    qn_buf_free(&b);
    if (status == QN_OK && !text) return QN_E_NOMEM;
    if (status == QN_OK) *messages_json = text;
    return status;
}

void qn_conversation_free(qn_conversation *c)
{
    qn_conversation_drop(c);
}
