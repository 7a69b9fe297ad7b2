/* A chat that was parsed: its messages, the tools and the variables of its template. Immutable; any thread. */
#ifndef QN_TEXT_CHAT_CONVERSATION_H
#define QN_TEXT_CHAT_CONVERSATION_H

#include <jansson.h>
#include <quern/generate.h>

#include "base/buf.h"

struct qn_conversation {
    json_t *messages;  /* an array */
    json_t *tools;     /* an array; NULL: none */
    json_t *variables; /* an object; NULL: none */
};

/* Parses the three texts of a qn_prompt; the last two may be NULL. QN_E_FORMAT, QN_E_ARG: the message begins
 * with the field's name. */
qn_status qn_conversation_parse(const char *messages_json, const char *tools_json, const char *variables_json,
                                qn_conversation **out);
/* A conversation of messages of plain text. n_images: parts that stand before the text of the last one; message_images, if not NULL: before
 * each.
 * QN_E_ARG: a message without role or content; QN_E_FORMAT: not UTF-8. */
qn_status qn_conversation_of(const qn_message *messages, size_t n_messages, size_t n_images,
                             const size_t *message_images, const char *tools_json, const char *variables_json,
                             qn_conversation **out);
/* Appends the messages as a JSON array. */
qn_status qn_conversation_write(const qn_conversation *c, qn_buf *out);
void qn_conversation_drop(qn_conversation *c); /* NULL is accepted */
/* What a template renders: the variables with the messages and tools among them. *out: json_decref. */
qn_status qn_conversation_request(const qn_conversation *c, int continue_final, json_t **out);

#endif
