/* Generation: a pull iterator that streams tokens.
 *
 * A generation is opened from a prompt, asked for one event after the other, and closed. Each row of the
 * prompt gives token events and then one end event with its reason. Texts of a row's events, joined, are
 * exactly the row's text; a token may bring no text (half a character, or the possible beginning of a stop
 * string, is held back) and the end event may bring the rest. Invariant: the tokens of a row depend on model,
 * prompt, options and seed alone, not on other rows or calls. One generation is used by one thread at a time,
 * except qn_generation_cancel: any thread. A function that is called while an event is computed (a probe,
 * notify) gets QN_E_ARG when it asks for the same generation's events; closed there it is freed when the call
 * under way returns. */
#ifndef QUERN_GENERATE_H
#define QUERN_GENERATE_H

#include <quern/constrain.h>
#include <quern/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Steps of the sampler chain, in the default order: X(NAME, "name"). Every filter sees the softmax of what
 * the one before left. TEMPERATURE is the dynamic temperature too. MIROSTAT must be the last step. */
#define QN_SAMPLER_LIST(X)              \
    X(REPEAT_PENALTY, "repeat_penalty") \
    X(DRY, "dry")                       \
    X(TOP_N_SIGMA, "top_n_sigma")       \
    X(TYPICAL_P, "typical_p")           \
    X(TOP_P, "top_p")                   \
    X(MIN_P, "min_p")                   \
    X(TOP_K, "top_k")                   \
    X(XTC, "xtc")                       \
    X(TEMPERATURE, "temperature")       \
    X(MIROSTAT, "mirostat")

typedef enum {
#define QN_SAMPLER_ENUM(name, text) QN_SAMPLER_##name,
    QN_SAMPLER_LIST(QN_SAMPLER_ENUM)
#undef QN_SAMPLER_ENUM
        QN_SAMPLER_COUNT
} qn_sampler_step;

/* Why a row ended: X(NAME, "name as in JSON"). */
#define QN_END_LIST(X)                                                                        \
    X(NONE, "none")               /* it has not */                                            \
    X(STOP, "stop")               /* a stop id; it is neither yielded nor part of the text */ \
    X(STOP_STRING, "stop_string") /* a stop string; the text ends before it */                \
    X(LENGTH, "length")           /* max_tokens, or the context is full */                    \
    X(CANCELLED, "cancelled")                                                                 \
    X(DEADLINE, "deadline")                                                                   \
    X(ERROR, "error")

typedef enum {
#define QN_END_ENUM(name, text) QN_END_##name,
    QN_END_LIST(QN_END_ENUM)
#undef QN_END_ENUM
} qn_end;

/* What is added to the logit of one token. */
typedef struct {
    int32_t id; /* of the vocabulary */
    float bias; /* -100 to 100, or -INFINITY: the token is never drawn */
} qn_logit_bias;

/* A beginning of a prompt that is to stay computed. */
typedef struct {
    int64_t n_tokens; /* from the first token on; 0: the whole prompt */
    int64_t ttl_ms;   /* above 0 */
} qn_prefix_pin;
enum { QN_PREFIX_PINS_MAX = 4 };

typedef void qn_notify_fn(void *user);

/* Read during qn_generation_open only. `qn_generate_options o = {0};` is greedy decoding until the model
 * stops or the context is full. QN_E_ARG names a field that is out of range. */
typedef struct {
    int64_t max_tokens;   /* 0: no limit but the context */
    int64_t min_tokens;   /* before so many tokens no stop id is drawn; stop strings end a row all the same */
    float temperature;    /* 0 (the default) is greedy: the most likely token, the lower id on a tie */
    float top_p;          /* in (0, 1); 0 or 1: off */
    float min_p;          /* in (0, 1); 0: off */
    int32_t top_k;        /* 0: off */
    float repeat_penalty; /* > 0; 0 or 1: off. Over the distinct tokens of this row's prompt and output */
    /* repeat_penalty, presence_penalty and frequency_penalty look at the last so many tokens of the row, at
     * most at a context. 0 or -1: at all of them. */
    int32_t repeat_last_n;
    float typical_p;   /* locally typical sampling, in (0, 1); 0 or 1: off */
    float top_n_sigma; /* logits at least the largest less so many standard deviations; 0 or -1: off */
    /* XTC: with this probability, 0 to 1, a draw excludes the likeliest tokens. These are all whose
     * probability is at least xtc_threshold, 0 to 1, except the least likely of them. Probability 0: off;
     * threshold 0: 0.1. */
    float xtc_probability, xtc_threshold;
    /* Dynamic temperature: from temperature - range, at least 0, to temperature + range. Its place between
     * them is the entropy of the tokens that are left, divided by the largest entropy of so many tokens, to
     * the power of dynatemp_exponent. Range 0: off; exponent 0: 1. */
    float dynatemp_range, dynatemp_exponent;
    /* Mirostat keeps the surprise of the drawn tokens near tau bits; eta is its learning rate. 1 or 2: the
     * version; 0: off. tau 0: 5; eta 0: 0.1. */
    int32_t mirostat;
    float mirostat_tau, mirostat_eta;
    /* DRY: the logit of a token that would go on with a repetition of n >= dry_allowed_length tokens loses
     * dry_multiplier * dry_base^(n - dry_allowed_length). Multiplier 0: off. Base 0: 1.75; allowed length 0:
     * 2. DRY looks at the last dry_penalty_last_n tokens of the row, at most at a context; 0 or -1: a
     * context. No repetition goes past a token whose text contains a breaker, UTF-8. Breakers NULL: a line
     * end, ":", "\"" and "*". An empty list that is not NULL: no breakers. */
    float dry_multiplier, dry_base;
    int32_t dry_allowed_length, dry_penalty_last_n;
    const char *const *dry_sequence_breakers;
    size_t n_dry_sequence_breakers;
    /* Words and rows of ids that never come. The last id of a row is banned where the others of it stand
     * before. A word is banned as the tokenizer encodes it alone and behind a space. Each list has at most
     * QN_BAD_WORDS_MAX entries, each of at most QN_BAD_WORD_TOKENS_MAX tokens. */
    const char *const *bad_words;
    size_t n_bad_words;
    const qn_ids *bad_ids;
    size_t n_bad_ids;
    const int32_t *allowed_ids; /* no other token is drawn, stop ids neither. NULL: all may be */
    size_t n_allowed_ids;
    uint64_t seed; /* 0: a fresh one, reported by qn_generation_get_stats */
    /* n_sampler_order distinct steps; a step left out is off. NULL: the default order. */
    const qn_sampler_step *sampler_order;
    size_t n_sampler_order;
    const char *const *stop_strings; /* UTF-8, none empty */
    size_t n_stop_strings;
    const int32_t *stop_ids; /* besides the model's own */
    size_t n_stop_ids;
    int ignore_eos;      /* the model's own stop ids are yielded like any token */
    int64_t deadline_ms; /* from qn_generation_open on, waiting included. 0: none */
    /* Name of a LoRA adapter (adapter.h). NULL: the one that the model was opened with, if any; "none": none
     */
    const char *adapter;
    const char *const
        *row_adapters; /* one for each row of the prompt; an entry that is NULL means `adapter` */
    int rotate; /* at context_size go on with the last context_size tokens in sight, instead of QN_END_LENGTH;
                   recurrent layers go on from the state that all tokens before have made */
    /* Added to the model's logits before the sampler chain, whatever its order; an id that stands there twice
     * gets both. At most QN_LOGIT_BIAS_MAX of them. */
    const qn_logit_bias *logit_bias;
    size_t n_logit_bias;
    /* -2 to 2; 0: off. As OpenAI's API defines them (platform.openai.com, "Frequency and presence
     * penalties"): before the sampler chain the logit of a token that this row has generated c times so far
     * loses c * frequency_penalty, and presence_penalty where c > 0. Tokens of the prompt do not count. */
    float presence_penalty, frequency_penalty;
    int logprobs;           /* every token tells its log-probability */
    int32_t n_top_logprobs; /* and those of the so many likeliest; 0 to QN_TOP_LOGPROBS_MAX, above 0 needs
                               logprobs */
    /* The tokens of the prompts tell their log-probabilities, too (qn_generation_get_prompt_token), and those of the
     * so many likeliest; n_prompt_top_logprobs: 0 to QN_TOP_LOGPROBS_MAX, above 0 needs prompt_logprobs. Nothing of
     * such a prompt comes from a cached prefix. QN_E_ARG: nothing can follow the prompt; QN_E_UNSUPPORTED: it has
     * pictures. */
    int prompt_logprobs;
    int32_t n_prompt_top_logprobs;
    /* Log-probabilities are those of the distribution that the token was drawn from: what bias, penalties, form
     * and sampler chain leave. Tokens that they take out are not among the likeliest. Needs logprobs. */
    int post_sampling;
    /* Prompts that begin like one computed before are not computed anew as far as that goes; no bit depends
     * on it. no_prefix_cache: this generation neither uses nor leaves such prefixes. cache_salt: only
     * generations of the same salt share them; NULL: "". */
    int no_prefix_cache;
    const char *cache_salt;
    /* Prefixes of the prompt to keep for a time. The prompt has one row and no pictures. Other prefixes are evicted
     * first. When only kept ones are left and memory is needed, the oldest goes, so they never make a request fail. A
     * second request for the same prefix starts its time again. At most QN_PREFIX_PINS_MAX. They have no effect with
     * no_prefix_cache and in a backend without prefixes. QN_E_ARG: a prefix is longer than the prompt. */
    const qn_prefix_pin *pins;
    size_t n_pins;
    const char *tenant; /* for whom it runs: tenants of the same priority take turns. NULL: "" */
    int32_t priority; /* higher ones get places and memory first. 0 is usual; QN_PRIORITY_IDLE: it is computed
                         only while nobody else is */
    /* Speculation: up to so many tokens a step are guessed, from what the text repeats or by the draft model
     * (qn_model_options), computed with the next one, and kept as far as they come true. No bit depends on
     * it: every token is drawn as without it. It costs next to nothing where it does not pay: guesses are
     * computed only while that is faster, by measured times. 0: off; at most QN_DRAFT_TOKENS_MAX. Models with
     * recurrent layers never guess. */
    int32_t n_draft;
    /* The form of the answer (constrain.h), of this model. NULL: free. No other token is drawn, and stop ids
     * come only where the form may end; the row ends (QN_END_STOP) where nothing else may come. Text that the
     * form forces comes in the tokens that the tokenizer makes of it, whatever the sampling options say: they
     * concern drawn tokens alone. With ignore_eos the row goes on as long as the form may. An answer that
     * is complete has the form; one that max_tokens, a deadline or a stop string cut may not. */
    qn_constraint *constraint;
    /* Another form that the answer may have instead: a call of a tool or an object, say. Needs `constraint`. */
    qn_constraint *alternative;
    /* One for each row of the prompt; an entry that is NULL means `constraint`. Without `alternative`. */
    qn_constraint *const *row_constraints;
    /* Bounds the reasoning in the answer to a chat, of a model whose template shows how it marks reasoning. After so
     * many tokens of it the mark that ends it is forced, behind reasoning_message, and the answer goes on. 0: no
     * bound; negative: no token of reasoning. reasoning_message is plain text, UTF-8, up to 4,096 bytes; NULL: none.
     * Forced tokens count for max_tokens. No effect on texts and rows, nor where the model marks no reasoning. With a
     * bound nothing is guessed (n_draft). */
    int64_t max_reasoning_tokens;
    const char *reasoning_message;
    /* Called by a thread that computes, after a step in which this generation got something to read or
     * ended. It must do no more than wake somebody, and call nothing of the model. Not called any more when
     * qn_generation_close has returned. */
    qn_notify_fn *notify;
    void *notify_user;
    int notify_prompts; /* notify is called after each part of a prompt, too: n_computed_tokens rises */
} qn_generate_options;

#define QN_PRIORITY_IDLE INT32_MIN
/* Tokens that a generation's row may be ahead of its reader. */
enum { QN_TOKENS_AHEAD = 32 };

enum { QN_LOGIT_BIAS_MAX = 1024, QN_TOP_LOGPROBS_MAX = 20, QN_DRAFT_TOKENS_MAX = 15 };
enum { QN_BAD_WORDS_MAX = 1024, QN_BAD_WORD_TOKENS_MAX = 256, QN_DRY_BREAKERS_MAX = 64 };

/* A token and the natural logarithm of its probability: of the softmax of the model's own logits, before
 * bias, penalties, temperature and filters. */
typedef struct {
    int32_t id;
    float logprob;
} qn_top_logprob;

typedef struct {
    const char *role;    /* "system", "user", "assistant", "tool" */
    const char *content; /* UTF-8 */
} qn_message;

/* A chat that is parsed once and used for many calls. Immutable; any thread. */
typedef struct qn_conversation qn_conversation;

/* The three texts are those of a qn_prompt; the last two may be NULL. *out is owned by the caller:
 * qn_conversation_free. QN_E_FORMAT, QN_E_ARG: the message begins with the name of the text. */
QN_API qn_status qn_conversation_new(const char *messages_json, const char *tools_json,
                                     const char *variables_json, qn_conversation **out);
/* The messages as JSON; qn_buffer_free. */
QN_API qn_status qn_conversation_get_json(const qn_conversation *c, char **messages_json);
/* After the calls that use it. NULL is accepted. */
QN_API void qn_conversation_free(qn_conversation *c);

/* What to go on from: exactly one of text, rows, messages, messages_json and conversation. Borrowed during
 * qn_generation_open only. A prompt that does not fit the context is refused (QN_E_ARG, both counts); it is
 * never cut. */
typedef struct {
    const char *text; /* raw text, UTF-8, NUL-terminated unless text_bytes says how long it is; no template is
                         applied */
    size_t text_bytes;  /* 0: up to the NUL */
    int special;        /* recognise special tokens in text; off: they are plain text */
    int no_bos;         /* leave out what the tokenizer puts around a whole text */
    const qn_ids *rows; /* token ids as they are; several rows run together */
    int64_t n_rows;
    const qn_message
        *messages; /* a chat, through the model's template; special tokens in contents are plain text */
    size_t n_messages;
    const char *messages_json; /* the same as a JSON array, for contents that are not plain strings */
    const qn_conversation *conversation; /* the same, parsed; it has its own tools and variables */
    /* Pictures, for a model that takes them (QN_E_UNSUPPORTED else; QN_E_ARG names what does not fit). With
     * messages they stand before the text of the last one, or where message_images says; in messages_json parts of the type "image" say
     * where, and in a text or in rows the model's own image token, one for each, in order; a text or chat
     * with a place and no image is refused. Several rows take none. */
    const qn_image *images;
    size_t n_images;
    const size_t
        *message_images; /* [n_messages]: how many stand before each text, in order; NULL: all in the last */
    const char *tools_json;     /* chats: JSON array of tools, or NULL */
    const char *variables_json; /* chats: JSON object of further template variables, {"enable_thinking":
                                   false}, or NULL */
    /* Chats: the answer goes on from the last message, whatever its role, instead of beginning a new one: the
     * prompt ends with the text of that message. QN_E_ARG: the template does not show that text as it is. */
    int continue_final;
    qn_constraint *constraint; /* the form of the answers to this prompt; NULL: that of the options */
} qn_prompt;

typedef struct {
    int64_t row;      /* index into rows; 0 for texts and chats */
    int32_t id;       /* -1 in an end event */
    int64_t position; /* of the token in its sequence, prompt included */
    const char
        *text; /* [text_bytes] valid UTF-8, NUL-terminated, valid until the next call on the generation */
    size_t text_bytes;
    qn_end end; /* QN_END_NONE: a token. Else the row's last event */
    /* What ended the row. QN_END_STOP_STRING: 1 + the index of the stop string. QN_END_STOP: 1 + the stop id.
     * 0: nothing of the kind, or the backend does not say. */
    int32_t stop;
    /* With logprobs: of the token, as in qn_top_logprob; and of the n_top likeliest in falling order, the
     * lower id first on a tie, valid as long as text. Fewer than n_top_logprobs only where fewer tokens can
     * come. */
    float logprob;
    const qn_top_logprob *top;
    int32_t n_top;
} qn_token;

/* A token of a prompt, with prompt_logprobs. */
typedef struct {
    int32_t id;
    float logprob; /* as in qn_top_logprob, behind the tokens before it; NaN at position 0 */
    int32_t rank;  /* 1: the likeliest token there, the lower id on a tie; 0 at position 0 */
    /* Of the n_top likeliest in falling order, the lower id first on a tie; valid until qn_generation_close. */
    const qn_top_logprob *top;
    int32_t n_top;
} qn_prompt_token;

typedef struct {
    int64_t n_prompt_tokens, n_generated_tokens; /* of all rows */
    int64_t n_cached_tokens; /* of the prompts', those that were not computed but came from prefixes */
    /* Of the prompts', those that are computed or cached so far; 0: the backend does not say. */
    int64_t n_computed_tokens;
    double prefill_ms, decode_ms;                         /* wall-clock; the first token belongs to prefill */
    double prefill_tokens_per_sec, decode_tokens_per_sec; /* 0 before there is something to measure; cached
                                                             tokens do not count */
    /* Wall-clock from qn_generation_open: until the first row got its place, and to the first token; 0: not
     * yet. */
    double queue_ms, first_token_ms;
    int64_t n_drafted_tokens, n_accepted_tokens; /* guesses that were computed, and that came true */
    uint64_t seed;
} qn_generation_stats;

typedef struct qn_generation qn_generation;

/* Checks prompt and options, encodes, and takes a place in the model's queue. It is computed by whoever waits
 * for an event of the model, or by the model's own thread (`background`), up to 32 tokens ahead of its
 * reader. options may be NULL. QN_E_FULL: max_queue. *out is owned by the caller: qn_generation_close. */
QN_API qn_status qn_generation_open(qn_model *model, const qn_prompt *prompt,
                                    const qn_generate_options *options, qn_generation **out);
/* Raw text (NUL-terminated); else as qn_generation_open. *out is owned by the caller: qn_generation_close. */
QN_API qn_status qn_generate(qn_model *model, const char *text, const qn_generate_options *options,
                             qn_generation **out);
/* A chat; else as qn_generation_open. QN_E_UNSUPPORTED: the model has no chat template. *out is owned by the
 * caller: qn_generation_close. */
QN_API qn_status qn_chat(qn_model *model, const qn_message *messages, size_t n_messages,
                         const qn_generate_options *options, qn_generation **out);

/* Blocks until the next event. QN_OK fills *out. Once the last row has ended, every further call returns
 * QN_OK with that row's end event again, its text empty. A failure ends one row: its status is returned, its
 * message set, and *out holds the row with QN_END_ERROR; other rows go on with the next call. Cancellation
 * and deadline are noticed within one token or prefill chunk and end the rows with their reason, not with a
 * status. QN_E_CLOSED: the model was closed.
 */
QN_API qn_status qn_generation_next(qn_generation *generation, qn_token *out);
/* The same for who must not wait: *is_there is 0, and *out empty, when there is no event yet. Nothing is
 * computed by it: the model must have been opened with `background` (QN_E_ARG else). */
QN_API qn_status qn_generation_poll(qn_generation *generation, qn_token *out, int *is_there);
/* Asks the generation to end. Any thread, any time while the handle lives; safe in a signal handler. */
QN_API void qn_generation_cancel(qn_generation *generation);
/* Counts and times so far, and the seed; also after the end. */
QN_API qn_status qn_generation_get_stats(const qn_generation *generation, qn_generation_stats *out);
/* The token of a row's prompt at a position, once an event of the row was given: prompt_logprobs asks for it. QN_E_ARG:
 * it was not asked for, the prompt has no such token, or it is not computed. QN_E_UNSUPPORTED: the backend has none. */
QN_API qn_status qn_generation_get_prompt_token(const qn_generation *generation, int64_t row,
                                                int64_t position, qn_prompt_token *out);
/* Frees the generation and its place. NULL is accepted. */
QN_API void qn_generation_close(qn_generation *generation);

/* Text and ids that the model's template makes of a chat, with the generation prompt. Either output may be
 * NULL; each is owned by the caller (qn_buffer_free). */
QN_API qn_status qn_chat_render(const qn_model *model, const qn_prompt *prompt, char **text, int32_t **ids,
                                int64_t *n_ids);

/* "stop_string"; "top_p". Static storage. */
QN_API const char *qn_end_name(qn_end end);
QN_API const char *qn_sampler_step_name(qn_sampler_step step);
/* name[0..n): a step's name, or llama.cpp's: "penalties", "typ_p", "typical". Returns 0 if there is no such
 * step. */
QN_API int qn_sampler_step_from_name(const char *name, size_t n, qn_sampler_step *out);

#ifdef __cplusplus
}
#endif
#endif
