/* The text side of a model: its tokenizer and its chat template, from whichever of the model's files has
 * them.
 *
 * Tokenizer: tokenizer.json, else GGUF metadata. Template: the caller's, else the model's (chat_templates.h): for
 * requests with a list of tools "tool_use" if it has that, else "default"; without any a built-in format chosen by the turn tokens of the vocabulary
 * (Gemma, Qwen, Llama 3). Special tokens come from the template's own text alone; what a message says is
 * plain text, byte by byte. Immutable after opening: any thread. */
#ifndef QN_TEXT_CHAT_CHAT_H
#define QN_TEXT_CHAT_CHAT_H

#include <jansson.h>

#include "base/buf.h"
#include "format/source/source.h"
#include "text/jinja/template.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tools/tool_calls.h"

typedef struct qn_chat_text qn_chat_text;

typedef struct {
    const char *pre_regex;     /* replaces the GGUF's named pre-tokenizer; NULL: none */
    const char *chat_template; /* replaces the model's own; NULL: none */
} qn_chat_text_options;

/* src is needed during the call only; options may be NULL. QN_E_NOT_FOUND: no tokenizer; and the parsers'
 * statuses. */
qn_status qn_chat_text_open(qn_source *src, const qn_chat_text_options *options, qn_chat_text **out);
void qn_chat_text_close(qn_chat_text *c);
const qn_tokenizer *qn_chat_text_tokenizer(const qn_chat_text *c);
/* 1 when there is a template, also if it does not serve every request. */
int qn_chat_text_has_template(const qn_chat_text *c);
/* The built-in format that stands for the template which the model's files lack: "gemma"; NULL: it is not
 * one. Static storage. */
const char *qn_chat_text_builtin(const qn_chat_text *c);
/* Where the model's own template is: "chat_template.jinja", "tokenizer_config.json: chat_template". NULL: it has
 * none, or the caller's stands for it. Borrowed. */
const char *qn_chat_text_origin(const qn_chat_text *c);
/* How the model writes calls and reasoning in answers to requests with or without tools. */
qn_answer_format qn_chat_text_answer_format(const qn_chat_text *c, int with_tools);

/* In which bytes of a rendered chat special tokens are recognised. */
typedef enum {
    QN_CHAT_TRUST_TEMPLATE, /* in those of the template itself: a message cannot forge one */
    QN_CHAT_TRUST_ALL       /* everywhere, as transformers does; for comparison with it */
} qn_chat_trust;

/* Renders request: an object with "messages" and, as wanted, "tools", "add_generation_prompt", "now" and
 * further variables. Message keys that are null are left out first. With "continue_final_message" true the
 * text ends with that of the last message (chat_continue.h). Appends the text to *text; *ids (qn_free) are
 * those of the text. Either may be NULL (n_ids then too). QN_E_UNSUPPORTED: no template. QN_E_ARG: messages
 * of another form, or the template refuses; the message is then its own. */
qn_status qn_chat_text_render(const qn_chat_text *c, const json_t *request, qn_chat_trust trust, qn_buf *text,
                              int32_t **ids, size_t *n_ids);
/* The rendered text with where its bytes come from and which of them the template marks as the assistant's.
 * The caller calls qn_rendered_free; on failure *out is empty. Statuses as above. */
qn_status qn_chat_text_render_parts(const qn_chat_text *c, const json_t *request, qn_rendered *out);
/* Ids of such a text, special tokens out of the template's bytes only; cuts, n_cuts and at as for
 * qn_tokenizer_encode_cut. */
qn_status qn_chat_text_encode(const qn_chat_text *c, const qn_rendered *rendered, const size_t *cuts,
                              size_t n_cuts, size_t *at, int32_t **ids, size_t *n_ids);

#endif
