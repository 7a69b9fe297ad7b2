/* What a client asks for, whatever the dialect. A dialect reads a body into it (request_fields.h).
 *
 * A qn_api_request owns the JSON that its strings and values are borrowed from. No sockets, no model. One thread
 * at a time. */
#ifndef QN_SERVER_CORE_REQUEST_H
#define QN_SERVER_CORE_REQUEST_H

#include <jansson.h>
#include <quern/generate.h>

#include "server/core/held.h"
#include "server/http/api_error.h"

enum {
    QN_REQUEST_N_MAX = 32,
    QN_REQUEST_CHOICES_MAX = 128, /* prompts times n */
    QN_REQUEST_STOP_MAX = 16,
    QN_REQUEST_STOP_BYTES_MAX = 1024,
    QN_REQUEST_STOP_IDS_MAX = 64,
    QN_REQUEST_BIAS_MAX = 1024,
    QN_REQUEST_TOP_LOGPROBS_MAX = 20,
    QN_REQUEST_BREAKERS_MAX = 64,
    QN_REQUEST_BAD_WORDS_MAX = 256,
    QN_REQUEST_MESSAGES_MAX = 4096,
    QN_REQUEST_TOOLS_MAX = 128,
    QN_REQUEST_PICTURES_MAX = 64,
    QN_REQUEST_PIXELS_MAX = 1 << 26, /* of all pictures; 192 MiB */
};

/* What of the model and of the server bounds a request. */
typedef struct {
    int64_t vocab_size;
    float default_temperature, default_top_p; /* negative: the model names none */
    int32_t default_top_k;
    int allow_template_kwargs;
    float default_min_p, default_typical_p, default_repeat_penalty; /* 0: the model names none */
    uint64_t default_seed;                                          /* 0: a fresh one */
    int64_t default_max_tokens;                                     /* 0: as the API has it */
    const qn_ids *default_bad_ids;
    size_t n_default_bad_ids;
    int64_t context_size;
    int has_chat_template, has_reasoning; /* of the model; has_reasoning: in a form that is known */
    int bounds_reasoning;                 /* the reasoning of its answers can be bounded */
    int takes_pictures;
    qn_held *held;   /* where requests count their memory; NULL: nowhere */
    int lenient;     /* unknown fields are reported, not refused */
    int has_store;   /* the server stores what it makes */
    int64_t n_slots; /* that requests can name; 0: none */
} qn_api_request_limits;

/* The form of the answers, before it is compiled. */
typedef struct {
    const char *param; /* the field that asks for it; NULL: the answers are free. Static storage */
    qn_constraint_kind kind;
    qn_buf text;
} qn_api_request_form;

/* A place in a chat up to which its prompt is to stay cached. */
typedef struct {
    size_t n_messages; /* of r->chat, with the one that has the place; 0: behind the tools */
    size_t n_text;     /* bytes of that message's text; SIZE_MAX: all of the message */
    int64_t ttl_ms;    /* 0: the request's */
} qn_cache_mark;

typedef struct {
    unsigned route;                    /* a bit of the dialect */
    qn_held *held;                     /* NULL: none */
    size_t held_bytes, held_for_texts; /* the second: of the first, until qn_api_request_let_texts */
    json_t *body;
    const char *model;     /* NULL: not given */
    qn_generate_options o; /* complete, but for the seeds of choices behind the first */
    int64_t n;             /* choices for each prompt; 0: nothing is asked, and nothing is computed */
    int stream, include_usage;
    int64_t ping_ms; /* of silence before a comment; 0: none; -1: not given */
    int logprobs;
    int64_t top_logprobs;
    int post_sampling;      /* log-probabilities are those after sampling */
    const json_t *messages; /* of a chat, as sent; NULL: it is none */
    const json_t *system;   /* of a dialect that has it apart: what stands before the messages, as sent */
    json_t *chat;           /* owned: the same as chat templates take them (message.h). NULL: not made yet */
    qn_image *pictures;     /* owned: those of the chat, in the order of their places (content.h) */
    size_t n_pictures;
    int64_t n_pixels; /* of all */
    int takes_pictures;
    const json_t *tools, *template_kwargs; /* of a chat. tools NULL: none, or not to be used */
    json_t *own_tools; /* owned: tools of another form, made to OpenAI's; `tools` borrows them. NULL: none */
    int64_t reasoning_budget;      /* tokens of reasoning; -1: no limit */
    const char *reasoning_message; /* said before its end is forced; NULL: nothing */
    const char *budget_param;      /* the field that set the budget; NULL: none did. Static storage */
    int thinking;                  /* is the model to think? -1: as its template has it */
    const char *reasoning_effort;
    int one_tool_call;
    qn_tool_calls_mode tool_calls;
    const char *tool_name;       /* NAMED */
    const json_t *allowed_tools; /* those that may be called, by name; NULL: all */
    qn_buf callable;             /* the tools that may be called, as JSON; empty without tools */
    qn_api_request_form form;
    qn_constraint *constraints[2]; /* of the answers, compiled, owned; `o` has them */
    /* Where the client marks what is to be cached (fields/cache_marks.h): places, and the whole prompt. */
    qn_cache_mark marks[QN_PREFIX_PINS_MAX];
    size_t n_marks;
    int keep_whole, no_whole; /* no_whole: places alone count */
    int64_t keep_ttl_ms;      /* of the whole prompt, and of places without a time; 0: not given */
    int continue_final, add_generation_prompt; /* chat; -1: not given */
    int is_only_shown;                         /* the chat is rendered, and not answered */
    int plain_reasoning;                       /* what the model thinks stays in its text */
    const json_t *prompt;                      /* a prompt or several, no chat, whatever the dialect */
    int special;                               /* special tokens in texts of `prompt` are recognised */
    json_t
        *made; /* owned: what a dialect made of the body and other members are borrowed from; NULL: nothing */
    int echo;  /* what a choice says begins with its prompt */
    int include_stop;        /* and ends with the stop string that ended it */
    int return_ids;          /* choices have the ids of their prompts and tokens */
    int keep_tokens;         /* what choices say has their tokens, without log-probabilities too */
    int64_t prompt_logprobs; /* so many of each token of the prompt, beside its own; -1: not asked for */
    int only_prompt;         /* the prompt is computed, and no answer is shown: max_tokens is 1 */
    int store;               /* the answer is to be stored; -1: not given */
    int background;          /* nobody waits for the answer, which is stored */
    int key;                 /* the API key that was shown, or -1 */
    const char *previous_id; /* of the stored answer that the input goes on from; NULL: none */
    json_t *history;         /* owned: what came before the input. NULL: nothing */
    const char *input_file_id, *endpoint, *completion_window; /* of a batch */
    const json_t *metadata;
    const char *adapter_name, *adapter_path; /* of an adapter to be loaded or unloaded; NULL: not given */
    double adapter_scale;
    const char *cache_name, *cache_file, *api_key; /* of /v1/cache; NULL: not given */
    const json_t *input;                           /* embeddings, decisions */
    const json_t *questions;                       /* decisions */
    const json_t *query, *documents, *texts;       /* rerankers */
    const char *instruction;                       /* the same; NULL: the usual one */
    int64_t top_n;                                 /* the same; 0: all */
    int returns_texts, raw_scores;                 /* the same; returns_texts -1: not given */
    int truncates;                                 /* embeddings: texts that are too long are cut */
    int no_normalise;                              /* embeddings: vectors keep their length */
    int base64;
    int64_t dimensions;      /* 0: not given */
    const char *prompt_name; /* of a model's prompt before texts that are embedded; NULL: not given */
    const char *cache_salt;
    int64_t slot; /* that the request names; -1: none */
    int64_t priority;
    /* As sent, of one dialect or another; it says what they mean. */
    const json_t *options, *think, *suffix, *prefix, *extra, *fields, *context, *images, *tokens, *content;
    int raw, wants_progress, wants_timings, wants_pieces, adds_special, is_plain;
    qn_buf warnings; /* JSON objects {"param", "message"}, with commas; empty: none */
    /* As sent; `o` is made of these at the end. */
    double temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int64_t max_tokens, max_completion_tokens, n_predict; /* 0: not given; -1: no limit */
    int64_t top_k, seed;
    int has_seed, cache_prompt;
    const char *stop[QN_REQUEST_STOP_MAX];
    size_t n_stop;
    int32_t stop_ids[QN_REQUEST_STOP_IDS_MAX];
    size_t n_stop_ids;
    qn_logit_bias bias[QN_REQUEST_BIAS_MAX];
    size_t n_bias;
    const json_t *bias_sent; /* of a dialect that takes texts too, which need the tokenizer. NULL: none */
    /* Of steps of the chain; 0: the library's default, but -1 of the windows, which 0 turns off. */
    double typical_p, top_n_sigma, xtc_probability, xtc_threshold, dynatemp_range, dynatemp_exponent;
    double mirostat_tau, mirostat_eta, dry_multiplier, dry_base;
    int64_t mirostat, dry_allowed_length, dry_penalty_last_n, repeat_last_n;
    qn_sampler_step steps[QN_SAMPLER_COUNT];
    size_t n_steps;
    int has_steps, has_breakers;
    const char *breakers[QN_REQUEST_BREAKERS_MAX], *bad_words[QN_REQUEST_BAD_WORDS_MAX];
    size_t n_breakers, n_bad_words, n_bad_ids;
    qn_ids
        bad_ids[QN_REQUEST_BAD_WORDS_MAX]; /* their ids lie one behind the other in `ids` until `o` is made */
    qn_buf ids, allowed_ids;               /* int32_t */
    qn_buf end_ids; /* the same, of a dialect that shows them: with ignore_eos the model's own stop ids */
} qn_api_request;

/* Nothing is asked yet: the defaults. */
void qn_api_request_start(qn_api_request *r, unsigned route);
/* Makes `o` of the numbers as sent. */
void qn_api_request_set_options(qn_api_request *r, const qn_api_request_limits *limits);
void qn_api_request_free(qn_api_request *r);
/* Counts memory that goes with the request. Returns 0, or the HTTP status of a refusal: there is no room. */
int qn_api_request_hold(qn_api_request *r, size_t size_bytes, qn_api_error *error);
/* The same of what a tokenizer needs for text that is long: values, or the texts in them. */
int qn_api_request_hold_texts(qn_api_request *r, const json_t *value, qn_api_error *error);
/* No text is tokenized any more. */
void qn_api_request_let_texts(qn_api_request *r);
/* Reports that what `param` asks for is not done, or in another way. */
void qn_api_request_warn(qn_api_request *r, const char *param, const char *message);

/* One prompt; it must stay where it is while it is used. Zeroed, it is valid; the ids are to be freed. */
typedef struct {
    qn_prompt prompt;
    qn_ids row;
    qn_buf ids; /* int32_t */
} qn_api_request_prompt;

/* Of "prompt" or "input" (field), which may be one prompt or an array of them. */
size_t qn_api_request_count_prompts(const json_t *value);
/* Reads the i-th. Returns 0, or the HTTP status of a refusal. */
int qn_api_request_get_prompt(const json_t *value, size_t i, const char *field, int64_t vocab_size,
                              qn_api_request_prompt *out, qn_api_error *error);
/* "context_length_exceeded", with both counts. Returns 400. */
int qn_api_request_fail_length(const char *field, int64_t n_tokens, int64_t context_size,
                               qn_api_error *error);

#endif
