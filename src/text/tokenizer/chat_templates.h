/* The chat templates that a model's files hold, by name, as transformers finds them.
 *
 * The first place that has some is the only one that counts: chat_template.jinja ("default") with
 * additional_chat_templates/NAME.jinja; `chat_template` of tokenizer_config.json, which is a text ("default"), an
 * object name -> text, or a list of {"name", "template"}; chat_template.json and processor_config.json, which
 * processors of pictures have; the metadata of a GGUF. null is as if the key were not there. Of templates with the
 * same name the last counts. Only texts: what is wrong in one shows when it is parsed. Immutable; any thread. */
#ifndef QN_TEXT_TOKENIZER_CHAT_TEMPLATES_H
#define QN_TEXT_TOKENIZER_CHAT_TEMPLATES_H

#include "base/arena.h"
#include "format/source/source.h"

enum { QN_CHAT_TEMPLATES_MAX = 64 };

typedef struct {
    const char *name; /* "default", "tool_use", "rag" */
    const char *what; /* names it in messages: "tokenizer_config.json: chat_template" */
    const char *text;
    size_t n;
} qn_named_template;

typedef struct {
    qn_arena arena;
    qn_named_template rows[QN_CHAT_TEMPLATES_MAX];
    size_t n;
} qn_chat_templates;

/* Fills a zeroed *out; it is to be freed after a failure too. src is needed during the call only. QN_E_FORMAT: a
 * template is neither a text, a list nor an object. */
qn_status qn_chat_templates_read(qn_source *src, qn_chat_templates *out);
/* NULL: none of that name. */
const qn_named_template *qn_chat_templates_find(const qn_chat_templates *t, const char *name);
void qn_chat_templates_free(qn_chat_templates *t);

#endif
