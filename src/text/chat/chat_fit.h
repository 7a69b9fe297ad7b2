/* Makes a conversation fit the model's chat template, by trying.
 *
 * Templates differ in what they take. One refuses ids of calls, one has no system message, one wants roles to
 * alternate, one leaves out what it does not know. The conversation is rendered with a unique word in the
 * place of each text; the result shows what the template refuses or leaves out. Then the changes in the table
 * of chat_fit.c are tried. The fewest that help are made, and each is reported. No family of models is known
 * by name.
 *
 * Invariant: a conversation that fits shows every text to the model. A text that stands elsewhere than it was
 * is told in a note. Otherwise the conversation is refused, and the sentence names the message that is not
 * shown.
 *
 * An ordinary chat costs nothing: qn_chat_fit_is_needed says whether a chat has something unusual. Others cost
 * one rendering of short texts, or two to twelve if the template does not take them as they are. Any thread.
 */
#ifndef QN_TEXT_CHAT_CHAT_FIT_H
#define QN_TEXT_CHAT_CHAT_FIT_H

#include <jansson.h>

#include "base/buf.h"
#include "text/tools/call_ids.h"
#include "text/tools/tool_calls.h"

/* Appends to *text what the template makes of messages, which must not end with an answer that is asked for
 * when continue_final is set. tools, variables and the template itself are the renderer's. */
typedef struct {
    qn_status (*render)(void *user, const json_t *messages, int continue_final, qn_buf *text);
    void *user;
} qn_chat_renderer;

/* What is found out once for a template. */
typedef struct {
    qn_call_id_form ids; /* the first form that it takes */
    int text_arguments;  /* it takes arguments of calls as text alone */
    int shows_system;    /* a system message at the beginning, with tools and without */
    /* How calls can be written into answers, if it shows none; NULL: not known. */
    const qn_call_format *calls;
} qn_chat_traits;

/* Tools for a rendering that probes, a JSON array: a function "probe" with a parameter "word". */
extern const char qn_chat_probe_tools[];
/* plain: without tools; with_tools: with those. format: of its answers. QN_E_NOMEM only; where the template fails, defaults
 * stay. */
qn_status qn_chat_traits_find(const qn_chat_renderer *plain, const qn_chat_renderer *with_tools,
                              qn_answer_format format, qn_chat_traits *out);

/* Is there anything that a template may not take? messages: of OpenAI's API, or as below; with_tools: the
 * request has some. */
int qn_chat_fit_is_needed(const json_t *messages, const qn_chat_traits *traits, int with_tools,
                          int continue_final);

enum { QN_CHAT_NOTES_MAX = 16, QN_CHAT_PARAM_MAX = 64 };

/* Something that was changed, or is not shown. */
typedef struct {
    char param[QN_CHAT_PARAM_MAX]; /* "messages[3].tool_calls[0]" */
    const char *message;           /* static */
} qn_chat_note;

typedef struct {
    json_t *messages; /* as the template takes them */
    qn_chat_note notes[QN_CHAT_NOTES_MAX];
    size_t n_notes;
    char param[QN_CHAT_PARAM_MAX]; /* after QN_E_ARG: what it is about */
} qn_chat_fitted;

/* messages: an array as chat_draft.h says, of the roles system, user, assistant and tool. QN_E_ARG: it cannot
 * be made to fit; the sentence is the template's own, or names the message that it does not show. The caller
 * calls qn_chat_fitted_free, also after a failure. */
qn_status qn_chat_fit(const json_t *messages, const qn_chat_traits *traits, int continue_final,
                      const qn_chat_renderer *renderer, qn_chat_fitted *out);
void qn_chat_fitted_free(qn_chat_fitted *f);

#endif
