/* Probes: functions that are called at named points of a model's work.
 *
 * A probe is registered with a mask of points. If no probe asks for a point, the engine only tests one word.
 * token, step and cache cost less than 1% of a step when a probe asks for them. layer, attention and router
 * show values within a step: the threads wait for each other at these points only, and no bit changes. Calls
 * come from the threads that work for the model, one at a time per model. Pointers in an event are valid
 * during the call. A function must be short. On the same model it may call only functions that read figures.
 * Adding and removing probes from within a call is refused (QN_E_ARG); functions that compute or close must
 * not be called. Snapshots (attention.h) are not shown. */
#ifndef QUERN_PROBE_H
#define QUERN_PROBE_H

#include <quern/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The points: X(NAME, "name"). */
#define QN_PROBE_LIST(X)                                                                      \
    X(TOKEN, "token")         /* a token was drawn for a sequence */                          \
    X(STEP, "step")           /* a step of the engine over one or more sequences has ended */ \
    X(LAYER, "layer")         /* a layer's output is computed */                              \
    X(ATTENTION, "attention") /* a layer of attention is computed */                          \
    X(ROUTER, "router")       /* a layer's experts are chosen and computed */                 \
    X(CACHE, "cache")         /* a prefix was looked up or kept, or pages were evicted or poisoned */

typedef enum {
#define QN_PROBE_ENUM(name, text) QN_PROBE_##name,
    QN_PROBE_LIST(QN_PROBE_ENUM)
#undef QN_PROBE_ENUM
        QN_PROBE_COUNT
} qn_probe_point;

/* What happened to the prefix tree: X(NAME, "name"). */
#define QN_CACHE_EVENT_LIST(X)                                                      \
    X(HIT, "hit")       /* n_tokens of a prompt of n_prompt_tokens were found */    \
    X(MISS, "miss")     /* none of n_prompt_tokens was found */                     \
    X(INSERT, "insert") /* n_tokens of a sequence are in the tree now */            \
    X(EVICT, "evict")   /* size_bytes were evicted since the last event, or ever */ \
    X(POISON, "poison") /* state that a request wrote is not used any more: a step failed */

typedef enum {
#define QN_CACHE_EVENT_ENUM(name, text) QN_CACHE_EVENT_##name,
    QN_CACHE_EVENT_LIST(QN_CACHE_EVENT_ENUM)
#undef QN_CACHE_EVENT_ENUM
} qn_cache_event;

/* The rows of a step: tokens of n_sequences sequences, each one's together and in rising positions. */
typedef struct {
    int64_t n_rows, n_sequences;
    const int32_t *ids, *positions; /* [n_rows] */
    const int32_t *row_begin; /* [n_sequences + 1]: sequence i has rows [row_begin[i], row_begin[i + 1]) */
} qn_probe_rows;

typedef struct {
    uint64_t request; /* number of the request, from 1 on in order of arrival */
    int64_t row;      /* of its prompt */
    int64_t position; /* of the token in its sequence, prompt included */
    int32_t id;
    float logprob; /* of the token under the model, before the sampler's filters; NaN: was not computed */
} qn_probe_token;

typedef struct {
    uint64_t number;                /* of the step, from 1 on */
    int64_t n_rows, n_prefill_rows; /* tokens computed; of them, of prompts */
    int64_t n_sequences, n_waiting; /* in the step; requests that have no place */
    int64_t ns;                     /* wall-clock nanoseconds */
} qn_probe_step;

typedef struct {
    qn_probe_rows rows;
    int64_t layer;       /* 0: the embedding, scaled; n: the output of layer n, counted from 1 */
    int64_t hidden_size; /* of all streams together where a model has hyper-connections */
    const float *hidden; /* [n_rows, hidden_size]: the residual stream, or the streams beside each other */
} qn_probe_layer;

/* Queries and keys as attention uses them: after their norms and RoPE. In a layer of latent attention keys
 * are the latent and the rotated part, and queries are in the latent's space. */
typedef struct {
    qn_probe_rows rows;
    int64_t layer; /* counted from 0 */
    int64_t num_attention_heads, num_key_value_heads, head_dim, v_head_dim;
    int64_t window;       /* position p sees (p - window, p]; 0: all of [0, p] */
    int64_t chunk;        /* > 0: of these the positions in p's own chunk of so many */
    const float *queries; /* [n_rows, num_attention_heads, head_dim], a row queries_stride elements apart */
    const float *keys;    /* [n_rows, num_key_value_heads, head_dim], a row keys_stride apart */
    int64_t queries_stride, keys_stride;
    const float *output; /* [n_rows, num_attention_heads, v_head_dim]: the values, weighed */
    /* Where an index chooses: of what lies before its last whole block of `block` positions a row sees the blocks with
     * these numbers alone, [n_rows, n_chosen], a row chosen_stride apart, rising, -1 behind the last; with no_tail
     * nothing behind that block. NULL: all. */
    const int32_t *chosen;
    int64_t n_chosen, chosen_stride, block;
    int no_tail;
} qn_probe_attention;

typedef struct {
    qn_probe_rows rows;
    int64_t layer; /* counted from 0 */
    int64_t num_experts_per_tok;
    const int32_t *ids;   /* [n_rows, num_experts_per_tok] experts, each row's rising */
    const float *weights; /* [n_rows, num_experts_per_tok]: what each one's output is multiplied by */
} qn_probe_router;

typedef struct {
    qn_cache_event event;
    uint64_t request; /* 0: none */
    int64_t n_tokens, n_prompt_tokens;
    size_t size_bytes;
} qn_probe_cache;

typedef struct {
    qn_probe_point point;
    const qn_probe_token *token; /* the one that the point names is there, the others are NULL */
    const qn_probe_step *step;
    const qn_probe_layer *layer;
    const qn_probe_attention *attention;
    const qn_probe_router *router;
    const qn_probe_cache *cache;
} qn_probe_event;

typedef void qn_probe_event_fn(void *user, const qn_probe_event *event);

enum { QN_PROBES_MAX = 16, QN_PROBE_ALL = (1 << QN_PROBE_COUNT) - 1 };

/* Calls fn at the points in mask, a sum of 1 << QN_PROBE_STEP and the like, until the probe is removed or the
 * model is closed. Waits for the end of the current step. *probe (may be NULL): the probe's number. QN_E_ARG:
 * an empty mask, an unknown point, or a call from within a probe; QN_E_FULL: QN_PROBES_MAX probes exist;
 * QN_E_UNSUPPORTED: the backend has no probes. */
QN_API qn_status qn_probe_add(qn_model *model, uint32_t mask, qn_probe_event_fn *fn, void *user,
                              int64_t *probe);
/* No call of the probe is running when it returns, and none follows. QN_E_NOT_FOUND: there is no probe with
 * this number. */
QN_API qn_status qn_probe_remove(qn_model *model, int64_t probe);

/* "attention"; "hit". Static storage. */
QN_API const char *qn_probe_point_name(qn_probe_point point);
QN_API const char *qn_cache_event_name(qn_cache_event event);

#ifdef __cplusplus
}
#endif
#endif
