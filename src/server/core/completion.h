/* A request for text, from its body to its last token, whatever the dialect.
 *
 * Life: a worker reads the body and opens a generation for each choice (completion_open.c); the loop polls
 * them, collects what they say, and has the dialect write it (completion.c); a worker closes them. The client
 * may go at any time: then all generations are cancelled. Invariant: a generation is touched by one thread at
 * a time, by a worker until the job that opened it is done, by the loop until the job that closes it is
 * pushed. */
#ifndef QN_SERVER_CORE_COMPLETION_H
#define QN_SERVER_CORE_COMPLETION_H

#include "server/core/answer.h"
#include "server/core/dialect.h"
#include "server/core/state.h"
#include "server/http/exchange.h"

struct qn_completion_choice {
    qn_generation *generation;
    int64_t index;
    qn_answer *parser; /* takes calls and reasoning out of a chat's text; NULL: it is text alone */
    qn_said said;      /* of a stream: what is not written yet */
    int n_calls;
    int is_cut; /* after the one call that it may have */
    int64_t n_tokens, last_token_ns;
    int has_progress; /* some was written; n_done: of the last */
    int64_t n_done;
    int64_t n_reasoning_tokens; /* after which the answer was in its reasoning */
    qn_finish finish;
    /* Once it has ended: how; the stop string, borrowed of the request, or NULL; the stop id, or -1. */
    qn_end end;
    const char *stop_string;
    int32_t stop_id;
    qn_buf prompt_ids;      /* int32_t; with return_ids, of the first choice of each prompt */
    int has_prompt;         /* an echo with log-probabilities: the prompt's tokens are said */
    qn_buf prompt_logprobs; /* JSON, made by the dialect's make_rest */
    void *memory;           /* of the dialect: choice_bytes of it */
};

struct qn_completion {
    qn_ready ready; /* first: the loop finds the completion by it */
    qn_job job;     /* opens, later closes */
    qn_exchange *ex;
    const qn_dialect *dialect;
    qn_api_request request;
    qn_api_error error; /* of opening; status 0: none */
    /* KEEPING: the answer is whole, and a worker stores it, or makes the rest of it, before it is sent. */
    enum { QN_COMPLETION_OPENING, QN_COMPLETION_RUNNING, QN_COMPLETION_KEEPING, QN_COMPLETION_CLOSING } phase;
    /* What the dialect stores and shows as the state of the answer. */
    enum { QN_ANSWER_GOES_ON, QN_ANSWER_ENDED, QN_ANSWER_FAILED, QN_ANSWER_CANCELLED } state;
    qn_status keep_status; /* of the last `keep` */
    int is_stored;         /* its beginning is stored, of one in the background */
    int is_kept;           /* its end is stored */
    int is_rest_made;
    struct qn_completion *next_background;
    qn_buf shown;       /* of an answer in the background that closes: what was stored last */
    atomic_int is_gone; /* the client went while a worker opens */
    qn_buf model;       /* its name as clients know it */
    qn_buf salt, tenant;
    int64_t created_s;
    qn_completion_choice *choices;
    size_t n_choices, n_running;
    int64_t n_prompt_tokens, n_cached_tokens, n_generated_tokens, n_reasoning_tokens;
    /* Of the first choice: its slot, -1 without one, and the tokens of its prompt and answer (int32_t). */
    int64_t slot;
    int has_slot_answer,
        is_slot_given; /* tokens of the answer are there; it was given back with all of them */
    qn_buf slot_ids;
    qn_prefix_pin pins[QN_PREFIX_PINS_MAX]; /* prefixes of the prompt that are to stay (prefix_pins.h) */
    size_t n_pins;
    /* What the first choice of a chat says, whole, for look_ahead.h: without the reasoning, which clients
     * leave out as a rule when they send it back; and its tokens (int32_t). */
    int keeps_said;
    qn_said said;
    qn_buf said_ids;
};

/* Begins the exchange's completion; it goes on by itself. */
void qn_completion_begin(qn_exchange *ex, const qn_dialect *dialect);

/* Cancels an answer in the background. */
void qn_completion_cancel(qn_completion *c);
/* Ends all answers in the background: they failed. */
void qn_completion_drop_background(qn_server *s);

/* On a worker: from the body to open generations, or to an error with none left open. */
void qn_completion_open(qn_completion *c);
/* Compiles the constraints of the request's answers into its options. Returns 0, or the HTTP status of a refusal. */
int qn_completion_constrain(qn_completion *c);
/* Appends the salt of prefixes that requests with this API key (an index, or -1) and cache_salt (may be NULL) share;
 * nothing if they are everybody's. Any thread. */
void qn_completion_write_salt(const qn_server *s, int key, const char *cache_salt, qn_buf *out);
/* The name of a model, "NAME", "NAME+ADAPTER" or "ADAPTER", with "none" for the model alone where it has adapters;
 * *adapter is borrowed from it, NULL: the default. Returns 0, or the HTTP status of a refusal. Any thread. */
int qn_completion_check_model(const qn_server *s, const char *model, const char **adapter,
                              qn_api_error *error);
/* The same for a request that is to be answered: unless the server is strict, the model answers to any name, and
 * *name, which answers show, is borrowed from the request or the server. A name of the model with an adapter that
 * it does not have is refused in either case. */
int qn_completion_choose_model(const qn_server *s, qn_api_request *r, const char **name, const char **adapter,
                               qn_api_error *error);

#endif
