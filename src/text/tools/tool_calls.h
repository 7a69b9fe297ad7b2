/* A model's answer, taken apart as it comes: content, reasoning, and calls of tools.
 *
 * How a family writes these is data (tool_formats.c), chosen by what the model's own template contains. Text
 * goes in by deltas of any size and events come out. Invariant: the events of an answer, with neighbouring
 * texts joined, do not depend on how it was cut, so a streamed answer and a whole one are the same. An answer
 * without marks comes out as it went in; white space beside a mark goes away with it.
 *
 * A call is announced as soon as its name is known and its arguments begin; these leave as the model writes
 * them, and what has left always is the beginning of one JSON object. Text that looks like a call and is none
 * comes back as content, every byte of it, with is_malformed set. A call that breaks off after it was
 * announced ends there: its CALL_END is malformed, and the bytes behind come back as content. Nothing fails
 * for the sake of a call. Memory is bounded by limit_bytes. One thread at a time per parser; formats are
 * static. */
#ifndef QN_TEXT_TOOLS_TOOL_CALLS_H
#define QN_TEXT_TOOLS_TOOL_CALLS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct qn_call_format qn_call_format;
typedef struct qn_reasoning_format qn_reasoning_format;

enum { QN_REASONING_TEXT_MAX = 96 };

/* Static storage; NULL: the family does not write such a thing. */
typedef struct {
    const qn_call_format *calls;
    const qn_reasoning_format *reasoning;
} qn_answer_format;

/* What the answers to a template's prompts look like, by the text of the template. */
qn_answer_format qn_answer_format_choose(const char *chat_template, size_t n);
/* "hermes", "qwen_coder", ...; "none". */
const char *qn_answer_format_name(qn_answer_format format);
/* What opens reasoning: "<think>"; "": it has none. */
const char *qn_answer_reasoning_mark(qn_answer_format format);
/* The formats of these two names; what is not known is left out. */
qn_answer_format qn_answer_format_find(const char *name, const char *reasoning_mark);

/* How a family writes reasoning. */
typedef struct {
    char open[QN_REASONING_TEXT_MAX], close[QN_REASONING_TEXT_MAX]; /* what stands before and behind it */
    char end[QN_REASONING_TEXT_MAX]; /* close, and what opens the answer behind it */
} qn_reasoning_marks;
/* Returns 0 if the family has no reasoning that is known here. */
int qn_answer_get_reasoning_marks(qn_answer_format format, qn_reasoning_marks *out);

/* Do the family's messages have headers, which say what is reasoning, content or a call? */
int qn_answer_has_headers(qn_answer_format format);
/* Does the answer to this rendered prompt begin inside the header of a message? 0 for families without headers. */
int qn_answer_begins_in_header(qn_answer_format format, const char *prompt, size_t n);

typedef enum {
    QN_ANSWER_CONTENT,
    QN_ANSWER_REASONING,
    QN_ANSWER_CALL_BEGIN,     /* text: the name; id: the model's own name of the call, or "" */
    QN_ANSWER_CALL_ARGUMENTS, /* text: the next part of a JSON object, whole characters */
    QN_ANSWER_CALL_END        /* is_malformed: the object is not complete */
} qn_answer_kind;

typedef struct {
    qn_answer_kind kind;
    int32_t index;    /* of the call, from 0 */
    int is_malformed; /* content that a call was expected in; a call that broke off */
    const char *text; /* [n], NUL after the last byte only where the kind is CALL_BEGIN */
    size_t n;
    const char *id; /* CALL_BEGIN: NUL-terminated */
} qn_answer_event;

/* Zero means the default. */
typedef struct {
    qn_answer_format format;
    const json_t *tools; /* of the request, an array; borrowed while the parser lives. NULL: no calls are
                            looked for. Their schemas say which values are strings where a format does not */
    const char
        *prompt; /* the rendered prompt, needed during the call: its end says where the answer begins */
    size_t prompt_bytes;
    size_t limit_bytes; /* of a call's text that is held back; default 1 MiB */
} qn_answer_options;

typedef struct qn_answer qn_answer;

/* *out is owned by the caller: qn_answer_free. */
qn_status qn_answer_new(const qn_answer_options *options, qn_answer **out);
void qn_answer_free(qn_answer *a);
/* The next bytes of the answer, best whole characters. Drops the events so far. QN_E_NOMEM. */
qn_status qn_answer_feed(qn_answer *a, const char *text, size_t n);
/* The answer ends: what was held back becomes events, as after a feed. */
qn_status qn_answer_finish(qn_answer *a);
/* Events of the last feed or finish, valid until the next. */
const qn_answer_event *qn_answer_get_events(const qn_answer *a, size_t *n);
/* Is what came last part of the reasoning, which has not ended? */
int qn_answer_is_reasoning(const qn_answer *a);
/* Of the whole answer so far. */
int32_t qn_answer_count_calls(const qn_answer *a);
int32_t qn_answer_count_malformed(const qn_answer *a);

#endif
