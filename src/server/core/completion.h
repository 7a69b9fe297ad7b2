/* A request for text, from its body to its last token; what /v1/chat/completions and /v1/completions share.
 *
 * Life: a worker reads the body and opens a generation for each choice (completion_open.c); the loop polls
 * them and writes what comes (completion.c, completion_write.c); a worker closes them. The client may go at
 * any time: then all generations are cancelled. Invariant: a generation is touched by one thread at a time,
 * by a worker until the job that opened it is done, by the loop until the job that closes it is pushed. */
#ifndef QN_SERVER_COMPLETION_H
#define QN_SERVER_COMPLETION_H

#include "server/core/request.h"
#include "server/core/state.h"
#include "server/http/exchange.h"
#include "text/tools/tool_calls.h"

typedef struct {
    qn_generation *generation;
    int64_t index;
    qn_answer *answer;      /* takes calls and reasoning out of a chat's text; NULL: it is text alone */
    qn_buf text, reasoning; /* of a stream: what is not sent yet */
    qn_buf calls;           /* JSON objects with commas; of a stream: those that are not sent, a line each */
    qn_buf arguments;       /* of the call that is read; of a stream: those that are not in `calls` yet */
    int32_t call_index;     /* of these arguments */
    int n_calls;
    int is_cut;                   /* after the one call that it may have */
    qn_buf logprobs;              /* entries, JSON with commas; of /v1/completions the tokens */
    qn_buf values, tops, offsets; /* of /v1/completions */
    int64_t n_characters;
    int64_t n_tokens, last_token_ns;
    const char *finish; /* "stop"; NULL: not yet */
} qn_completion_choice;

/* What the first choice of a chat says, whole, as a client sends it back: for look_ahead.h. Without the
 * reasoning, which clients leave out as a rule. */
typedef struct {
    qn_buf content, calls; /* calls: JSON objects with commas */
    qn_buf arguments;      /* of the call that is read */
    qn_buf ids;            /* int32_t: its tokens */
} qn_said;

typedef struct {
    qn_ready ready; /* first: the loop finds the completion by it */
    qn_job job;     /* opens, later closes */
    qn_exchange *ex;
    qn_request request;
    qn_api_error error; /* of opening; status 0: none */
    enum { QN_COMPLETION_OPENING, QN_COMPLETION_RUNNING, QN_COMPLETION_CLOSING } phase;
    atomic_int is_gone; /* the client went while a worker opens */
    char id[40];
    qn_buf model; /* its name as clients know it */
    qn_buf salt, tenant;
    int64_t created_s;
    qn_completion_choice *choices;
    size_t n_choices, n_running;
    int64_t n_prompt_tokens, n_cached_tokens, n_generated_tokens;
    int keeps_said;
    qn_said said;
} qn_completion;

/* Begins the exchange's completion; it goes on by itself. route: QN_REQUEST_CHAT or QN_REQUEST_COMPLETIONS.
 */
void qn_completion_begin(qn_exchange *ex, unsigned route);

/* On a worker: from the body to open generations, or to an error with none left open. */
void qn_completion_open(qn_completion *c);
/* The name of a model, "NAME" or "NAME+ADAPTER", with "none" for the model alone where it has adapters;
 * *adapter is borrowed from it, NULL: the default. Returns 0, or the HTTP status of a refusal. Any thread. */
int qn_completion_check_model(const qn_server *s, const char *model, const char **adapter,
                              qn_api_error *error);

void qn_said_free(qn_said *said);

/* Writing, into a buffer for one event or answer. */
/* The first chunk of a choice: its role, and what is reported. */
void qn_completion_write_begin(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out);
/* A chunk of what a choice has that was not sent yet: text, or an object of one call. 0: nothing is left. */
int qn_completion_write_delta(const qn_completion *c, qn_completion_choice *choice, qn_buf *out);
/* The last chunk of a choice: why it ended. */
void qn_completion_write_finish(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out);
/* Begins an object in `calls` of a stream, with the index of the call. */
void qn_completion_open_call(qn_completion_choice *choice);
/* What waits in `arguments` of a stream becomes an object in `calls`. */
void qn_completion_end_piece(qn_completion_choice *choice);
/* A chunk with the usage alone. */
void qn_completion_write_usage(const qn_completion *c, qn_buf *out);
/* The whole answer. */
void qn_completion_write_whole(const qn_completion *c, qn_buf *out);
/* Takes the log-probabilities of a token over. */
void qn_completion_keep_logprobs(const qn_completion *c, qn_completion_choice *choice, const qn_token *token);

#endif
