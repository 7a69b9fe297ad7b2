/* The native backend's model, for the files that make the backend up. */
#ifndef QN_BACKEND_NATIVE_NATIVE_PARTS_H
#define QN_BACKEND_NATIVE_NATIVE_PARTS_H

#include <pthread.h>
#include <quern/backend.h>

#include "backend/text/model_text.h"
#include "base/buf.h"
#include "constrain/constraint.h"
#include "engine/clients/handles.h"
#include "engine/machine/fingerprint.h"
#include "engine/schedule/reasoning.h"
#include "engine/schedule/scheduler.h"
#include "model/config/sampling_defaults.h"
#include "model/sentence/sentence.h"
#include "text/chat/chat.h"

/* Read-only once it is open, but for the speeds and the constraints. */
typedef struct {
    char *path, *file; /* file: of qn_model_options; NULL: none was named */
    char *mmproj;      /* of the vision tower of a GGUF; NULL: none */
    const char *backend;
    qn_engine *engine;
    qn_engine *draft; /* of the smaller model that guesses; NULL: none */
    qn_scheduler *scheduler;
    qn_handles *handles;
    qn_fingerprint *fingerprint;
    int background;
    qn_sentence *
        sentence; /* NULL: the files say nothing of vectors for texts, or sentence_failure says what is wrong */
    qn_status sentence_status;
    char *sentence_failure;
    qn_chat_text *text; /* NULL: the files have no tokenizer; ids go in and out all the same */
    int32_t *stop_ids;
    int64_t n_stop_ids;
    qn_buf notes;
    qn_sampling_defaults defaults;
    qn_metrics load;      /* the load_* fields */
    pthread_mutex_t lock; /* of what follows */
    size_t wired_limit_bytes, wired_bytes;
    double prefill_tokens_per_sec, decode_tokens_per_sec; /* of the last generation that ended */
    pthread_mutex_t constraints_lock;                     /* of what follows (native_constraint.c) */
    qn_vocabulary *vocabulary;                            /* NULL until the first constraint */
    qn_constraint_cache *constraints;                     /* the same */
    size_t constraints_bytes;                             /* of both, in the ledger */
} native_model;

/* native_open.c: qn_native_open_as (native.h), and its end. */
void qn_native_close(void *model);
int qn_native_has_stop_id(const native_model *m, int32_t id);

/* native_text.c. */
qn_status qn_native_encode(void *model, const char *text, size_t n_bytes, const qn_encode_options *options,
                           int32_t **ids, int64_t *n_ids);
qn_status qn_native_encode_pair(void *model, const qn_pair *pair, int32_t **ids, int32_t **types, int64_t *n);
qn_status qn_native_decode(void *model, const int32_t *ids, int64_t n_ids, const qn_decode_options *options,
                           char **text, size_t *n_bytes);
int qn_native_is_stop_id(void *model, int32_t id);
qn_status qn_native_chat_render(void *model, const qn_prompt *prompt, char **text, int32_t **ids,
                                int64_t *n_ids);
qn_status qn_native_prompt_ids(void *model, const qn_prompt *prompt, int32_t **ids, int64_t *n_ids);
/* How many of a chat's ids come before what asks for the answer: a later turn begins with these, whatever the
 * template makes of the answer. 0: the template does not say, or every position can be gone on from. */
qn_status qn_native_find_stable(native_model *m, const qn_prompt *prompt, const qn_ids *whole, int64_t *out);
/* What takes the places of a chat's pictures (native_places.c); `of` is NULL where the image tokens alone are
 * repeated. */
typedef struct {
    qn_chat_places *of;
    qn_chat_places places;
    char *image, **texts; /* owned */
    size_t n;
} native_places;

/* QN_E_UNSUPPORTED: the tokenizer lacks the marks of a picture; and as qn_image_plan_of. */
qn_status qn_native_places_make(const native_model *m, const qn_prompt *prompt, native_places *out);
void qn_native_places_free(native_places *p);
/* The ids of a prompt that is a text or a chat, places filled. *ids is owned by the caller. */
qn_status qn_native_text_ids(const native_model *m, const qn_prompt *prompt, int32_t **ids, size_t *n_ids);
/* QN_E_ARG: a text or chat with a place for an image, which nobody gave. */
qn_status qn_native_check_no_places(const native_model *m, const int32_t *ids, size_t n_ids);
/* The ids of a prompt of one row without images (owned by the caller), and how many of them a longer prompt
 * of the same chat begins with, too (0: not known). */
qn_status qn_native_prompt(native_model *m, const qn_prompt *prompt, int32_t **ids, int64_t *n_ids,
                           int64_t *n_stable);

/* native_constraint.c: as backend.h says. */
qn_status qn_native_constraint_open(void *model, const qn_constraint_options *options, qn_constraint **out);
qn_status qn_native_constraint_fit(void *model, const qn_prompt *prompt, qn_constraint *constraint,
                                   qn_constraint **out);
void qn_native_free_constraints(native_model *m);

/* native_encode.c. QN_E_UNSUPPORTED: the model is an encoder; what: "generations", which it has not. */
qn_status qn_native_check_generates(const native_model *m, const char *what);
/* Hidden states, of an encoder, as logits of backend.h gives them. */
qn_status qn_native_hidden(native_model *m, const qn_ids *rows, int64_t n_rows,
                           const qn_logits_options *options, qn_logits_fn *fn, void *user);
/* As backend.h says. */
qn_status qn_native_scores(void *model, const qn_ids *rows, const qn_ids *types, int64_t n_rows,
                           const qn_logits_options *options, qn_logits_fn *fn, void *user);

qn_status qn_native_get_embedding_info(void *model, qn_embedding_info *out);
qn_status qn_native_embedding_project(void *model, const float *pooled, float *out);
/* Reads what the model's folder says of them. What is wrong with it is said when a vector is asked for: the model has
 * other uses. */
qn_status qn_native_read_sentence(native_model *m, const qn_source *source);

typedef enum { QN_NATIVE_AT_ONCE, QN_NATIVE_AFTER_REASONING, QN_NATIVE_WITH_OR_WITHOUT } qn_native_begin;
/* Where the answer to a chat's rendered prompt begins, which may continue a message. */
qn_native_begin qn_native_find_begin(const char *open, const char *close, const char *prompt, int continues);

/* native_reasoning.c: how qn_run_open bounds the reasoning of the answer to a prompt. */
typedef struct {
    qn_reasoning_marks marks;
    qn_buf ids;                   /* int32_t; to be freed */
    qn_reasoning_options options; /* of the two before; n_ids 0: nothing is bounded */
} qn_native_reasoning;
/* *out must stay where it is, and its ids are to be freed in any case. */
qn_status qn_native_bound_reasoning(native_model *m, const qn_prompt *prompt,
                                    const qn_generate_options *options, qn_native_reasoning *out);

/* native_cache.c: the functions of cache.h. */
qn_status qn_native_cache_forward(void *model, const int32_t *ids, int64_t n_ids, void *cache, float *logits,
                                  void **out);
qn_status qn_native_cache_slice(void *model, void *cache, int64_t keep, void **out);
int64_t qn_native_cache_length(void *model, void *cache);
void qn_native_cache_free(void *model, void *cache);
qn_status qn_native_cache_save(void *model, void *cache, const char *path);
qn_status qn_native_cache_load(void *model, const char *path, void **out);
qn_status qn_native_save_state(void *model, const char *path);
qn_status qn_native_load_state(void *model, const char *path);
qn_status qn_native_warm(void *model, const qn_prompt *prompt, const char *name,
                         const qn_prefix_options *options);
qn_status qn_native_unwarm(void *model, const char *name);
qn_status qn_native_save_prefix(void *model, const int32_t *ids, int64_t n_ids,
                                const qn_prefix_options *options, const char *path, int64_t *n_saved);
qn_status qn_native_load_prefix(void *model, const char *path, qn_saved_prefix **out);
qn_status qn_native_forget_prefix(void *model, const int32_t *ids, int64_t n_ids,
                                  const qn_prefix_options *options, int64_t *n_forgotten);
qn_status qn_native_cache_explain(void *model, const qn_prompt *prompt, const qn_prefix_options *options,
                                  qn_cache_miss *out);
qn_status qn_native_cache_get_counters(void *model, qn_cache_counters *out);

#endif
