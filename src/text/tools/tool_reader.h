/* The text of calls, read while the model writes it: names, ids and arguments come out as JSON. Part of
 * tool_calls.c, which finds where in an answer calls begin.
 *
 * A call is announced as soon as its name is known and its arguments begin; from then on the arguments leave
 * in pieces. What was said always is the beginning of a JSON object, and what is said does not depend on how
 * the text was cut. An id counts if it stands before the arguments. Members that appear twice stay as the
 * model wrote them. One thread at a time per reader. */
#ifndef QN_TEXT_TOOLS_TOOL_READER_H
#define QN_TEXT_TOOLS_TOOL_READER_H

#include "base/buf.h"
#include "base/json/json_steps.h"
#include "text/tools/tool_formats.h"

/* Takes an event: CALL_BEGIN with text[0..n) the name and its id ("": none), CALL_ARGUMENTS, CALL_END. */
typedef qn_status qn_call_sink(void *user, qn_answer_kind kind, const char *text, size_t n, const char *id);

typedef enum {
    QN_CALLS_MORE, /* all that can be read was read */
    QN_CALLS_END,  /* the calls are complete, the mark that ends them is read as well */
    QN_CALLS_BAD   /* no calls continue so */
} qn_calls_result;

typedef struct {
    const qn_call_format *format;
    const json_t *tools; /* of the request, borrowed */
    qn_call_sink *put;
    void *user;
    size_t limit_bytes;          /* of text that is held back; set by the owner, as put and user */
    int step;                    /* what is read next */
    qn_buf name, id;             /* of the call that is read */
    qn_buf key;                  /* of the member that is read */
    qn_buf kept;                 /* arguments that came before the name */
    qn_buf piece;                /* of arguments, about to be said */
    int is_announced, is_ended;  /* of the call that is read */
    int n_ended;                 /* calls of this text that ended */
    int has_header;              /* a header said the name, the text is the arguments */
    int in_array, is_nested;     /* JSON, PYTHON: inside [...]; inside {"function": {...}} */
    int is_key_text;             /* JSON: what the key that was read stands for */
    int is_fenced;               /* NAMED: the arguments stand between ``` */
    int n_members;               /* TAGS, KEYS: of the arguments so far */
    int value_type;              /* TAGS, KEYS: of the member that is read */
    size_t stepped;              /* TAGS, KEYS: bytes of the value that `json` has seen */
    int takes_first, has_passed; /* TAGS, KEYS: the first mark ends the value; one was in a string */
    int is_braced;               /* LOOSE: {{...}} */
    int after;                   /* the step behind the arguments or the value */
    int depth;                   /* LOOSE, PYTHON: open brackets */
    char closers[QN_JSON_DEPTH_MAX];
    char quote;         /* PYTHON: of the text that is read */
    int n_quotes;       /* 1 or 3 of them; 0: it has not begun */
    qn_json_steps json; /* the value that is read */
    /* the text at hand, while it is read */
    const char *text;
    size_t n, at;
    size_t scanned; /* bytes behind `at` that are not what is looked for */
    size_t held;    /* bytes that were read before, since something was said last */
    int is_final;
    int has_said;
    size_t said_at; /* where `at` was when something was said last */
} qn_call_reader;

/* Begins a text. name: a header said it and the text is the arguments; else NULL. r must be zeroed before its
 * first use. */
qn_status qn_call_reader_begin(qn_call_reader *r, const qn_call_format *format, const json_t *tools,
                               const char *name);
void qn_call_reader_free(qn_call_reader *r);
/* Reads on in text[0..n), which begins with the bytes that the call before did not use. is_final: nothing
 * follows. *used: bytes that were read. *said: bytes of these that have become events, at most *used; -1:
 * nothing was said. */
qn_status qn_call_reader_read(qn_call_reader *r, const char *text, size_t n, int is_final,
                              qn_calls_result *result, size_t *used, int64_t *said);
/* The text of an announced call breaks off: ends the call. */
qn_status qn_call_reader_cut(qn_call_reader *r);

#endif
