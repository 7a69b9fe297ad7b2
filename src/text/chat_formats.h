/* Chat formats for models that ship none, as Jinja templates. Constant data. */
#ifndef QN_TEXT_CHAT_FORMATS_H
#define QN_TEXT_CHAT_FORMATS_H

/* The template of "gemma", "qwen" (ChatML) or "llama3"; NULL: no such format. */
const char *qn_chat_format_get(const char *name);
/* Names for messages: "gemma|qwen|llama3". */
extern const char *const qn_chat_format_names;

#endif
