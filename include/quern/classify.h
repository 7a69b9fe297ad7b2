/* Prefill without generation, over many prompts: the next token or its logits, how likely given answers are,
 * how well the model predicts a text, vectors for texts.
 *
 * Each function takes a list of prompts (as in generate.h; a prompt by rows has one row, and there are no
 * images). It calls fn once for each prompt, in the order of the list, on the calling thread. Pointers in a
 * result are valid during the call, and fn may use the model. A prompt that cannot be computed has its own
 * status and message and does not affect the others. If fn returns anything but QN_OK, the call ends and
 * returns it. A cancel that is set ends the call within a step, with QN_E_CANCELLED. QN_E_ARG: no prompts, or
 * an option out of range, by name. Invariant: a result depends only on model, prompt and options, bit for
 * bit, not on the rest of the list. Prompts are computed together as far as parallel_slots allows. Any
 * thread. */
#ifndef QUERN_CLASSIFY_H
#define QUERN_CLASSIFY_H

#include <quern/generate.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An answer: text, or token ids if ids is not NULL. A text is encoded by itself, without special tokens. It
 * must begin with a space if the whole text would have one there. */
typedef struct {
    const char *text;  /* UTF-8 */
    size_t text_bytes; /* 0: up to the NUL */
    const int32_t *ids;
    int64_t n_ids;
} qn_choice;

typedef struct {
    const qn_choice *choice; /* [n] */
    size_t n;                /* 1 to QN_CHOICES_MAX */
} qn_choices;

enum { QN_CHOICES_MAX = 1024 };

typedef struct {
    double logprob; /* natural logarithm of the probability that the model goes on from the prompt with this
                       answer: the sum over its tokens */
    double probability; /* exp(logprob), divided by the sum of it over all choices */
    int64_t n_tokens;
} qn_choice_score;

typedef struct {
    /* How the next token is drawn, whether with logprobs, the adapter, prefixes, tenant and priority. Options
     * about continuing from there (stops, deadline and the like) have no effect. bad_words and DRY are refused
     * (QN_E_UNSUPPORTED); bad_ids and allowed_ids work. NULL: greedy. */
    const qn_generate_options *sampling;
    int logits;                       /* results have the logits */
    qn_choices choices;               /* n 0: none are scored */
    const qn_choices *prompt_choices; /* one for each prompt, in place of choices; NULL: none */
    const qn_cancel *cancel;          /* NULL: none */
} qn_classify_options;

typedef struct {
    size_t i_prompt;
    qn_status status; /* QN_OK, or the fields below are zero but n_tokens */
    const char *message;
    int64_t n_tokens;          /* of the prompt; 0 where it could not be encoded */
    int32_t id;                /* drawn: the first token of a generation from this prompt */
    float logprob;             /* as in qn_token, with logprobs */
    const qn_top_logprob *top; /* [n_top] the same */
    int32_t n_top;
    const float *logits;            /* [vocab_size] at the prompt's last position; NULL: not asked for */
    const qn_choice_score *choices; /* [n_choices] in their order */
    size_t n_choices, best_choice;  /* the most probable, the first on a tie */
} qn_classify_result;
typedef qn_status qn_classify_fn(void *user, const qn_classify_result *result);

/* The token that follows each prompt, and the exact probabilities of given answers. A prompt's own tokens are
 * computed once for all its choices of one token, and once for all its choices if prefixes are kept. options
 * may be NULL. */
QN_API qn_status qn_classify(qn_model *model, const qn_prompt *prompts, size_t n_prompts,
                             const qn_classify_options *options, qn_classify_fn *fn, void *user);

typedef struct {
    const char *adapter;
    int64_t window; /* tokens that are looked at together; 0: the context */
    /* A text longer than the window is refused (QN_E_ARG) unless this gives the distance between the
     * beginnings of two windows. Then every token but the first is predicted once, in the first window that
     * holds it (the strided perplexity of Hugging Face). 1 to the window. If it equals the window, a window
     * does not see the one before, and its first token is not predicted. 0: refuse. */
    int64_t stride;
    int tokens; /* results have the ids and each token's logprob */
    /* As in qn_generate_options. Texts neither use nor leave prefixes. */
    const char *tenant;
    int32_t priority;
    const qn_cancel *cancel; /* NULL: none */
} qn_score_options;

typedef struct {
    size_t i_prompt;
    qn_status status; /* QN_OK, or the fields below are zero but n_tokens */
    const char *message;
    int64_t n_tokens;       /* of the text; 0 where it could not be encoded */
    int64_t n_scored;       /* of these, predicted: the first is not */
    double logprob;         /* natural logarithm of their probability, each given those before it: the sum */
    double perplexity;      /* exp(-logprob / n_scored) */
    const int32_t *ids;     /* [n_tokens], where they were asked for */
    const double *logprobs; /* [n_tokens] the same; NaN for a token that is not predicted */
} qn_score_result;
typedef qn_status qn_score_fn(void *user, const qn_score_result *result);

/* How probable each text is under the model. A text of one token has nothing to predict (QN_E_ARG as its
 * status). options may be NULL. */
QN_API qn_status qn_score(qn_model *model, const qn_prompt *prompts, size_t n_prompts,
                          const qn_score_options *options, qn_score_fn *fn, void *user);

/* Which hidden states after the final norm make the vector: X(NAME, "name"). */
#define QN_POOLING_LIST(X)                                                                                 \
    X(OWN, "own")                    /* as the model's files say (1_Pooling/config.json), else the mean */ \
    X(MEAN, "mean")                  /* the mean over all tokens */                                        \
    X(LAST, "last")                  /* that of the last token */                                          \
    X(CLS, "cls")                    /* that of the first: where models have [CLS] */                      \
    X(MAX, "max")                    /* the largest of each number */                                      \
    X(WEIGHTED_MEAN, "weightedmean") /* the first token counts once, the second twice, .. */               \
    X(MEAN_SQRT, "mean-sqrt")        /* the sum, divided by the root of the number of tokens */

typedef enum {
#define QN_POOLING_ENUM(name, text) QN_POOLING_##name,
    QN_POOLING_LIST(QN_POOLING_ENUM)
#undef QN_POOLING_ENUM
        QN_POOLING_COUNT
} qn_pooling;

typedef struct {
    qn_pooling pooling; /* QN_POOLING_OWN by default. Linear layers of the model run behind any */
    int normalise; /* to a Euclidean length of 1, as a model's own Normalize does; a vector of zeros stays one */
    const char *
        prompt_name; /* of a prompt of the model that stands before each text; "": none. NULL: the model's default
                                prompt, if it names one. Ids stay as they are */
    int64_t dimensions; /* only so many numbers of each vector, before it is normalised; 0: all */
    int truncate; /* 1: a text with too many tokens loses those at its end, but not what the tokenizer puts behind it;
                     0: its status is QN_E_ARG */
    /* As in qn_generate_options. Texts neither use nor leave prefixes. */
    const char *adapter, *tenant;
    int32_t priority;
    const qn_cancel *cancel; /* NULL: none */
} qn_embed_options;

typedef struct {
    size_t i_prompt;
    qn_status status; /* QN_OK, or vector is NULL */
    const char *message;
    int64_t n_tokens;    /* of the text; 0 where it could not be encoded */
    const float *vector; /* [n_values] */
    int64_t n_values;    /* `dimensions`, else what the model's linear layers give, else its encoded_size */
    int64_t n_cut;       /* tokens that the text lost (truncate) */
} qn_embed_result;
typedef qn_status qn_embed_fn(void *user, const qn_embed_result *result);

/* What a model's own files say of vectors for texts (modules.json and the files that it names). Borrowed from the
 * model. */
typedef struct {
    uint32_t
        poolings; /* bits 1 << qn_pooling; 0: not said. The vectors of several stand one behind the other: cls,
                          max, mean, mean-sqrt, weightedmean, last */
    int leaves_prompt_out; /* a prompt's tokens do not count */
    int normalises;
    int64_t n_pooled, n_values; /* numbers before and behind linear layers; both 0: there are none */
    int64_t max_tokens;         /* of a text; 0: as many as the context */
    size_t n_prompts;
    const char *const *prompt_names, *const *prompts; /* [n_prompts] */
    const char *default_prompt_name;                  /* NULL: none */
} qn_embedding_info;

/* All zero for a model whose files say nothing. */
QN_API qn_status qn_model_get_embedding_info(qn_model *model, qn_embedding_info *out);

/* A vector for each text. options may be NULL. */
QN_API qn_status qn_embed(qn_model *model, const qn_prompt *prompts, size_t n_prompts,
                          const qn_embed_options *options, qn_embed_fn *fn, void *user);
/* "mean". Static storage. */
QN_API const char *qn_pooling_name(qn_pooling pooling);

#ifdef __cplusplus
}
#endif
#endif
