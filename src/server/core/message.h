/* Messages in the form that chat templates know, and that text/chat/chat_fit.h takes: an object of role,
 * content and tool_calls. Dialects make them of what clients send, the look-ahead of what a model said.
 *
 * Values that are taken are owned by the function, also if it fails. A failure is always lack of memory. Any
 * thread. */
#ifndef QN_SERVER_CORE_MESSAGE_H
#define QN_SERVER_CORE_MESSAGE_H

#include <jansson.h>
#include <stddef.h>

/* A text[0..n) of valid UTF-8; NULL: failed. */
json_t *qn_message_text(const char *text, size_t n);
/* Sets a key; returns 0, or -1: failed. The value is taken, and NULL fails. */
int qn_message_set(json_t *object, const char *key, json_t *value);
/* {role, content}; NULL: failed. content is taken, and NULL fails. */
json_t *qn_message_new(const char *role, json_t *content);
/* Appends {id, type, function: {name, arguments}} to the message's tool_calls. id and arguments may be NULL:
 * there are none. All values are borrowed and shared. Returns 0, or -1: failed. */
int qn_message_add_call(json_t *message, const json_t *id, const json_t *name, const json_t *arguments);

#endif
