/* How one API speaks of generated text: a struct of functions, for each route that generates.
 *
 * A dialect reads a body into a qn_api_request, and makes bytes of what choices have said (answer.h). It has no
 * part in when something is computed, sent or closed: completion.h. Constant data; functions that write run
 * on the loop, those that read on a worker. */
#ifndef QN_SERVER_CORE_DIALECT_H
#define QN_SERVER_CORE_DIALECT_H

#include "server/core/request.h"
#include "server/http/http_server.h"

typedef struct qn_completion qn_completion;
typedef struct qn_completion_choice qn_completion_choice;
typedef struct qn_dialect qn_dialect;

typedef struct {
    int64_t n_total, n_cached, n_done; /* tokens of the prompt; n_done: with the cached ones */
    double ms;                         /* of computing */
} qn_prompt_progress;

struct qn_dialect {
    /* Which dialect a body is of, where a path has several. NULL: this one. */
    const qn_dialect *(*choose)(const char *text, size_t n);
    /* Reads a body. Returns 0, or the HTTP status of a refusal. */
    int (*read)(const char *text, size_t n, const qn_api_request_limits *limits, qn_api_request *out,
                qn_api_error *error);
    /* Makes r->chat of what `read` left in r->messages, unless there is an r->prompt. The same. NULL: the dialect has
     * prompts, no chats. */
    int (*read_messages)(qn_api_request *r, qn_api_error *error);
    /* What needs the model: such as making r->prompt, of values that r->made owns. The name of the model is checked
     * before. The same. NULL: nothing. */
    int (*prepare)(const qn_server *s, qn_api_request *r, qn_api_error *error);
    /* Stores the answer as it is now, for a request with `store`. On a worker, while nothing else touches the completion.
     * NULL: the dialect stores nothing. */
    qn_status (*keep)(const qn_completion *c);
    /* Makes what takes long of an answer that has ended, for a request with `prompt_logprobs`. As `keep`. */
    qn_status (*make_rest)(qn_completion *c);
    const char *stream_type;  /* the content type of a stream */
    const char *stream_ping;  /* a frame for silences; NULL: a comment of server-sent events */
    const char *prompt_field; /* whose fault it is if the prompt is too long */
    size_t
        choice_bytes; /* of what the dialect remembers of each choice (`memory`), zeroed at the beginning */
    /* Appends a whole answer. */
    void (*write_whole)(const qn_completion *c, qn_buf *out);
    /* The rest appends to a stream, frames included. First of all, for each choice. */
    void (*write_begin)(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out);
    /* What choice->said has, after each token. Returns 1: all of it is written, or needs not be, and is
     * forgotten; 0: it stays, and comes again together with what is said next. */
    int (*write_delta)(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out);
    /* How much of the choice's prompt is computed, for a stream with return_progress: first what the cache had, then
     * each part, last the whole. NULL: the dialect does not say. */
    void (*write_progress)(const qn_completion *c, const qn_completion_choice *choice,
                           const qn_prompt_progress *progress, qn_buf *out);
    /* Why the choice ended, behind its last delta. */
    void (*write_finish)(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out);
    /* Once, when all choices have ended, or at once where nothing is asked. */
    void (*write_end)(const qn_completion *c, qn_buf *out);
};

#endif
