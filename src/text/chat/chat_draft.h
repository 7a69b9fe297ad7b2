/* A conversation while it is made to fit a template (chat_fit.h): the messages as they were given, changed in
 * ways that can be put together freely, and each with the place it had.
 *
 * Messages are those of templates, with two things as OpenAI's API has them: `arguments` of calls are texts
 * or values, as they came, and contents are texts (contents of another kind are left alone). What was given
 * is never changed: what differs is a copy. Any thread. */
#ifndef QN_TEXT_CHAT_CHAT_DRAFT_H
#define QN_TEXT_CHAT_CHAT_DRAFT_H

#include <jansson.h>

#include "base/buf.h"
#include "text/tools/call_ids.h"
#include "text/tools/tool_calls.h"

/* Changes; they are made in this order. */
enum {
    QN_CHAT_MAP_IDS = 1,          /* ids of calls become ids of `ids`; calls without one get one */
    QN_CHAT_EMPTY_ARGUMENTS = 2,  /* arguments that are no JSON object become {} */
    QN_CHAT_SPLIT_CALLS = 4,      /* a message with several calls becomes one for each, with its result */
    QN_CHAT_JOIN_SYSTEM = 8,      /* system messages become one, at the beginning */
    QN_CHAT_SYSTEM_TO_USER = 16,  /* their text goes in front of the first user message */
    QN_CHAT_JOIN_NEIGHBOURS = 32, /* neighbours of the same role become one message, but for results */
    QN_CHAT_WRITE_CALLS = 64      /* calls become text of their message, as the model writes them */
};

typedef struct {
    unsigned steps; /* QN_CHAT_MAP_IDS... */
    qn_call_id_form ids;
    const qn_call_format *calls; /* how WRITE_CALLS writes them */
    int text_arguments;          /* arguments go to the template as text, else as objects */
} qn_chat_changes;

/* Where a message was in what was given; of one that was joined: where its first part was. */
typedef struct {
    size_t message;
    size_t call; /* which of that message's calls is its first */
} qn_chat_origin;

typedef struct {
    json_t *messages;
    qn_chat_origin *origins; /* of each */
} qn_chat_draft;

/* given: an array of objects. Makes all changes but WRITE_CALLS. The caller calls qn_chat_draft_free, also after a failure
 * (QN_E_NOMEM). */
qn_status qn_chat_draft_make(const json_t *given, const qn_chat_changes *changes, qn_chat_draft *out);
/* WRITE_CALLS, if it is among the changes: behind the marks, which arguments get too. A message whose calls cannot be written
 * keeps them. Its contents are then for qn_template_render alone, as tool_writer.h says. */
qn_status qn_chat_draft_finish(qn_chat_draft *d, const qn_chat_changes *changes);
void qn_chat_draft_free(qn_chat_draft *d);

/* Does the call have arguments that are no JSON object? Absent and empty ones are {}. *is_bad untouched on
 * failure (QN_E_NOMEM). */
qn_status qn_chat_call_is_bad(const json_t *call, int *is_bad);

/* ---- finding out what a template shows ---- */

/* A text of a draft for which a unique word stands. */
typedef struct {
    size_t message; /* its index in what was given */
    int64_t call;   /* the index of the call whose argument it was; -1: the content */
    int is_shown;
} qn_chat_mark;

typedef struct {
    qn_chat_mark *marks;
    size_t n;
} qn_chat_marks;

/* Replaces contents and arguments in *d by words; those that are empty stay. The caller calls
 * qn_chat_marks_free, also after a failure (QN_E_NOMEM). */
qn_status qn_chat_draft_mark(qn_chat_draft *d, qn_chat_marks *out);
/* Sets is_shown of the marks that text has. Linear in its length. */
void qn_chat_marks_find(qn_chat_marks *m, const char *text, size_t n);
void qn_chat_marks_free(qn_chat_marks *m);

#endif
