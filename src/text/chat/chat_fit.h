/* Makes a conversation fit the model's chat template, by trying.
 *
 * Templates differ in what they take: one refuses ids of calls, one has no system message, one wants roles to
 * alternate, one leaves out what it does not know. The conversation is rendered with a word of its own in the
 * place of each text, and the result shows what the template refuses or leaves out. Then the changes of
 * chat_fit.c's table are tried, and the fewest that help are made; each is reported. Invariant: a
 * conversation that fits shows every text to the model, in its place or in one that a note tells, or is
 * refused with the message that is not shown. No family of models is asked for by name.
 *
 * Ordinary chats cost nothing: qn_chat_fit_is_needed says which have something unusual. Others cost one
 * rendering of short texts, and two to twelve where the template does not take them as they are. Any thread.
 */
#ifndef QN_TEXT_CHAT_FIT_H
#define QN_TEXT_CHAT_FIT_H

#include <jansson.h>

#include "base/buf.h"
#include "text/tools/call_ids.h"

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
} qn_chat_traits;

/* Tools for a rendering that probes, a JSON array: a function "probe" with a parameter "word". */
extern const char qn_chat_probe_tools[];
/* plain: without tools; with_tools: with those. QN_E_NOMEM only; where the template fails, defaults stay. */
qn_status qn_chat_traits_find(const qn_chat_renderer *plain, const qn_chat_renderer *with_tools,
                              qn_chat_traits *out);

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
