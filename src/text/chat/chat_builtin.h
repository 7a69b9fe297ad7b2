/* Built-in chat formats, for models that ship no template: the families' published shapes as Jinja texts, run
 * by the same interpreter. System text of the Gemma format goes in front of the first user turn, "assistant"
 * is written "model". No format adds a system prompt of its own; what a format
 * cannot write (tools but for Qwen, images) is refused. Static data; any thread. */
#ifndef QN_TEXT_CHAT_CHAT_BUILTIN_H
#define QN_TEXT_CHAT_CHAT_BUILTIN_H

#include <stddef.h>

typedef struct {
    const char *name;        /* "gemma", "qwen", "llama3": as given to --builtin */
    const char *text;        /* Jinja; bos_token is taken from the context when it is there */
    const char *end_of_turn; /* the token after which a reply is over */
} qn_chat_builtin;

/* All of them; the last has the name NULL. */
extern const qn_chat_builtin qn_chat_builtins[];

/* Names for messages: "gemma|qwen|llama3". */
extern const char *const qn_chat_builtin_names;

/* NULL: there is none of that name. */
const qn_chat_builtin *qn_chat_builtin_find(const char *name);

#endif
