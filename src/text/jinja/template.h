/* Chat templates: the model's own Jinja text, run by a sandboxed interpreter with transformers' environment.
 *
 * Rendering is a pure function of template, context and clock. A template reaches nothing outside: no files,
 * no other templates, no attributes beyond the known methods. Steps, output, memory and depth have budgets.
 *
 * The result says for every byte whether the template's author wrote it (trusted) or it came from the
 * caller's data, so that a tokenizer recognises special tokens in trusted bytes only: a message cannot forge
 * them.
 *
 * A parsed template may be rendered by several threads at once. */
#ifndef QN_TEXT_JINJA_TEMPLATE_H
#define QN_TEXT_JINJA_TEMPLATE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct qn_template qn_template;

/* In a string of the context this byte, which no UTF-8 has, is no text: the bytes behind it count as the template's, up to
 * the next such byte. Readers of JSON refuse it, so no caller can write it; text/chat/chat_draft.c does. */
enum { QN_TEMPLATE_SWITCH = (char)0xff };

/* text[0..n): at most 1 MiB of UTF-8. what names the template in messages ("tokenizer_config.json:
 * chat_template"), which go on with "line N: ". QN_E_FORMAT: bad syntax; QN_E_UNSUPPORTED: include, import
 * and the like. */
qn_status qn_template_parse(const char *what, const char *text, size_t n, qn_template **out);
/* NULL is accepted. */
void qn_template_free(qn_template *t);

/* Zero means the default. */
typedef struct {
    const char *now; /* "2026-03-14T15:09:26", what strftime_now sees; NULL: this machine's local time */
    const char *const *trusted; /* names of context variables whose strings count as the template's; NULL: the
                                   list of qn_template_trusted_names */
    size_t n_trusted;
    /* Budgets. They grow by 1 step, 16 bytes of memory and 1 of output for each byte of the context that the
     * template looks at, so that long conversations fit and hostile templates end within a tenth of a
     * second. */
    uint64_t steps_max; /* nodes evaluated and iterations; default 1,000,000 */
    size_t output_max;  /* bytes; default 8 MiB */
    size_t memory_max;  /* bytes; default 32 MiB */
    uint32_t depth_max; /* nested evaluation; default 1,000 */
} qn_render_options;

/* bos_token, eos_token, unk_token, pad_token, sep_token, cls_token, mask_token; ends with NULL. Only for
 * contexts where the caller himself put these in, from the tokenizer's configuration. */
extern const char *const qn_template_trusted_names[];

/* A run of bytes of one provenance. */
typedef struct {
    size_t offset, n;
    int trusted;
} qn_rendered_segment;

/* Bytes that {% generation %} enclosed: what the assistant says, for training masks. */
typedef struct {
    size_t offset, n;
} qn_rendered_span;

typedef struct {
    char *text; /* NUL after the last byte */
    size_t n;
    qn_rendered_segment *segments; /* cover the text in order, neighbours differ */
    size_t n_segments;
    qn_rendered_span *generations;
    size_t n_generations;
    char *raised; /* after a failure: the words of the template's raise_exception, else NULL */
} qn_rendered;

/* context: an object; its members are the template's variables (messages, tools, add_generation_prompt...).
 * Key order is kept; null is None; what is absent is undefined. o may be NULL. QN_E_FULL: a budget is spent.
 * QN_E_ARG: the template failed or raised; message "WHAT: line N: ...". On failure *out is empty but for
 * `raised`; the caller calls qn_rendered_free in every case. */
qn_status qn_template_render(const qn_template *t, const json_t *context, const qn_render_options *o,
                             qn_rendered *out);
void qn_rendered_free(qn_rendered *r);

/* Messages as transformers hands them to a template: a new array in which every message has lost its null
 * members and has `reasoning_content` as `thinking` too (where it has none). Everything else, such as content
 * as a list of parts, is left to the template. The members are shared with messages. *out is owned by the
 * caller (json_decref). QN_E_ARG: not an array of objects, or a message without a role; the sentence names
 * messages[i]. */
qn_status qn_template_prepare_messages(const json_t *messages, json_t **out);

#endif
