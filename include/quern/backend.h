/* Backends: who answers a request. "native" is this library's own engine and the default; others can be
 * registered. "mock" is for tests of what stands on the library: the same engine with a small model of
 * random weights, vocabulary 32,000, that is made up while it opens. Its path is "mock" or a seed in digits,
 * with ",end" behind it for a model that ends its answers. It is never the default and in no list.
 *
 * The functions of model.h, tokenizer.h and generate.h check their arguments, keep the handles and their life
 * times, and then call the model's backend. A function that a backend leaves NULL is answered by
 * QN_E_UNSUPPORTED naming the backend. The registry is process-wide. Any thread. */
#ifndef QUERN_BACKEND_H
#define QUERN_BACKEND_H

#include <quern/adapter.h>
#include <quern/attention.h>
#include <quern/cache.h>
#include <quern/classify.h>
#include <quern/constrain.h>
#include <quern/figures.h>
#include <quern/generate.h>
#include <quern/memory.h>
#include <quern/probe.h>
#include <quern/rerank.h>
#include <quern/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Is it set? That of a generation is by qn_generation_cancel; a backend looks at it at least once per token
 * and prefill chunk, and every 50 ms while it waits. Lives as long as the generation. */
QN_API int qn_cancel_is_set(const qn_cancel *cancel);

/* `model` and `generation` are the backend's own objects. Arguments are those of the public function of the
 * same name, checked: options are never NULL; a seed is never 0; of a prompt exactly one of text (with
 * text_bytes), rows and conversation is there, however a chat was given. Calls on
 * one model may come from several threads at once; calls on one generation come one at a time, none after its
 * last end event but get_stats and close. All generations are closed before their model. */
typedef struct {
    const char *name;
    qn_status (*open)(const char *path, const qn_model_options *options, void **model);
    void (*close)(void *model);
    qn_status (*get_info)(void *model, qn_model_info *out);
    qn_status (*get_metrics)(void *model, qn_metrics *out);
    qn_status (*get_memory)(void *model, qn_memory *out);
    qn_status (*set_memory_limit)(void *model, size_t limit_bytes, size_t *old_bytes);
    qn_status (*set_cache_limit)(void *model, size_t limit_bytes, size_t *old_bytes);
    qn_status (*set_wired_limit)(void *model, size_t limit_bytes, size_t *old_bytes);
    qn_status (*clear_cache)(void *model);
    qn_status (*reset_peak_memory)(void *model);
    qn_status (*logits)(void *model, const qn_ids *rows, int64_t n_rows, const qn_logits_options *options,
                        qn_logits_fn *fn, void *user);
    qn_status (*encode)(void *model, const char *text, size_t n_bytes, const qn_encode_options *options,
                        int32_t **ids, int64_t *n_ids);
    qn_status (*decode)(void *model, const int32_t *ids, int64_t n_ids, const qn_decode_options *options,
                        char **text, size_t *n_bytes);
    int (*is_stop_id)(void *model, int32_t id);
    qn_status (*chat_render)(void *model, const qn_prompt *prompt, char **text, int32_t **ids,
                             int64_t *n_ids);
    qn_status (*generation_open)(void *model, const qn_prompt *prompt, const qn_generate_options *options,
                                 const qn_cancel *cancel, void **generation);
    qn_status (*generation_next)(void *generation, qn_token *out);
    qn_status (*generation_get_stats)(void *generation, qn_generation_stats *out);
    void (*generation_close)(void *generation);
    qn_status (*adapter_load)(void *model, const qn_adapter_options *options);
    qn_status (*adapter_unload)(void *model, const char *name);
    qn_status (*adapter_get_info)(void *model, int64_t i_adapter, qn_adapter_info *out);
    qn_status (*probe_add)(void *model, uint32_t mask, qn_probe_event_fn *fn, void *user, int64_t *probe);
    qn_status (*probe_remove)(void *model, int64_t probe);
    qn_status (*attention_snapshot)(void *model, const qn_prompt *prompt, const qn_snapshot_options *options,
                                    qn_attention_snapshot **out);
    /* The ids that generation_open would begin with, of a prompt that is a text or a chat without images. */
    qn_status (*prompt_ids)(void *model, const qn_prompt *prompt, int32_t **ids, int64_t *n_ids);
    /* Handles (cache.h) are the backend's objects: `cache` is one of this model, that lives during the call,
     * or NULL where cache_forward begins with no tokens; logits has room for vocab_size numbers. A backend
     * has all four or none. All are freed before their model is closed. */
    qn_status (*cache_forward)(void *model, const int32_t *ids, int64_t n_ids, void *cache, float *logits,
                               void **out);
    qn_status (*cache_slice)(void *model, void *cache, int64_t keep, void **out);
    int64_t (*cache_length)(void *model, void *cache);
    void (*cache_free)(void *model, void *cache);
    qn_status (*cache_save)(void *model, void *cache, const char *path);
    qn_status (*cache_load)(void *model, const char *path, void **out);
    qn_status (*save_state)(void *model, const char *path);
    qn_status (*load_state)(void *model, const char *path);
    qn_status (*warm)(void *model, const qn_prompt *prompt, const char *name,
                      const qn_prefix_options *options);
    qn_status (*unwarm)(void *model, const char *name);
    /* A backend has all three or none. */
    qn_status (*save_prefix)(void *model, const int32_t *ids, int64_t n_ids, const qn_prefix_options *options,
                             const char *path, int64_t *n_saved);
    qn_status (*load_prefix)(void *model, const char *path, qn_saved_prefix **out);
    qn_status (*forget_prefix)(void *model, const int32_t *ids, int64_t n_ids,
                               const qn_prefix_options *options, int64_t *n_forgotten);
    /* Texts are the caller's to fill in. */
    qn_status (*cache_explain)(void *model, const qn_prompt *prompt, const qn_prefix_options *options,
                               qn_cache_miss *out);
    qn_status (*cache_get_counters)(void *model, qn_cache_counters *out);
    qn_status (*generation_poll)(void *generation, qn_token *out, int *is_there);
    qn_status (*get_figures)(void *model, qn_figures *out);
    /* Memory that the library takes for a list of prompts is held and released within the model's figures
     * (`other`). QN_E_NOMEM: the limit leaves no room for it. A backend has both or none. */
    qn_status (*memory_hold)(void *model, size_t size_bytes);
    void (*memory_release)(void *model, size_t size_bytes);
    /* Both NULL: the backend knows no memory but the host's. */
    qn_status (*get_device_memory)(void *model, qn_device_memory *out);
    qn_status (*set_device_memory_limit)(void *model, size_t limit_bytes, size_t *old_bytes);
    /* What it makes is the library's own (constrain.h): qn_constraint_close frees it. NULL: generation_open gets
     * none either. */
    qn_status (*constraint_open)(void *model, const qn_constraint_options *options, qn_constraint **out);
    /* A constraint of this model for the answers to one prompt: in a chat with a model that reasons, the form
     * begins behind the reasoning. The caller closes *out. generation_open gets these. */
    qn_status (*constraint_fit)(void *model, const qn_prompt *prompt, qn_constraint *constraint,
                                qn_constraint **out);
    /* NULL: the backend refuses generations with prompt_logprobs. */
    qn_status (*generation_get_prompt_token)(void *generation, int64_t row, int64_t position,
                                             qn_prompt_token *out);
    /* Scores of sequences by the model's classification head: fn gets logits [1, num_labels] of each row once, in no
     * certain order, with position 0. types: NULL, or for each row the types of its tokens (ids NULL: all are 0). Of
     * the options adapter, row_adapters and cancel count. QN_E_UNSUPPORTED: the model has no such head. */
    qn_status (*sequence_scores)(void *model, const qn_ids *rows, const qn_ids *types, int64_t n_rows,
                                 const qn_logits_options *options, qn_logits_fn *fn, void *user);
    /* Two texts as one sequence, as the tokenizer's post-processor puts them together; special tokens written out in them
     * are text. Ids and types, [n] each, are the caller's: qn_buffer_free. QN_E_UNSUPPORTED: it has no rule for two. */
    qn_status (*encode_pair)(void *model, const qn_pair *pair, int32_t **ids, int32_t **types, int64_t *n);
    /* Both NULL: models of this backend say nothing of vectors for texts. embedding_project: pooled [n_pooled] through
     * linear layers to out [n_values]; called only where the info has some. */
    qn_status (*get_embedding_info)(void *model, qn_embedding_info *out);
    qn_status (*embedding_project)(void *model, const float *pooled, float *out);
} qn_backend;

/* Adds a backend. The structure is borrowed and must live as long as the process uses it. Buffers that it
 * hands out must come from qn_buffer_new. QN_E_ARG: the name is taken or empty; QN_E_FULL: more than 16
 * backends. */
QN_API qn_status qn_backend_register(const qn_backend *backend);
/* NULL: no backend of that name. name NULL: the default one. */
QN_API const qn_backend *qn_backend_get(const char *name);
/* Chooses the default. QN_E_NOT_FOUND lists the known names. */
QN_API qn_status qn_backend_set_default(const char *name);
/* Name of the i-th backend, NULL past the last. */
QN_API const char *qn_backend_name(size_t i_backend);
/* A buffer that qn_buffer_free frees. NULL: out of memory. */
QN_API void *qn_buffer_new(size_t size_bytes);

/* One device on which arrays can be computed. Strings have static storage. */
typedef struct {
    const char *name;        /* "cpu", "cuda", "mlx" */
    const char *description; /* the chip's own name, "" when it tells none */
    const char *set;   /* instruction set in use, "avx512"; of cuda "sm_90", of mlx "metal" or "mlx_cpu". From
                            "avx512_amx" on the process's signals need 8 KiB more of a stack */
    const char *sets;  /* all that this machine can run, best last: "scalar avx2 avx512" */
    int32_t n_threads; /* default number of threads: physical cores that this process may use */
    size_t memory_bytes;    /* physical memory, or the cgroup's limit where that is smaller */
    size_t available_bytes; /* of it, what can be had now */
    const char
        *note; /* what a user should know, such as a chip on which the device is untried; "": nothing */
} qn_device_info;

/* QN_E_NOT_FOUND: fewer devices; index 0 is the CPU. QN_E_UNSUPPORTED: it cannot be used here, and the message says
 * why: QUERN_CPU names a set that cannot run, MLX is not installed, there is no driver of NVIDIA's. */
QN_API qn_status qn_device_get_info(size_t i_device, qn_device_info *out);
/* The same of the device with this name. NULL: the one that "auto" takes. QN_E_NOT_FOUND: there is no device of this
 * name (message: the names). QN_E_UNSUPPORTED: as above. */
QN_API qn_status qn_device_find(const char *name, qn_device_info *out);

#ifdef __cplusplus
}
#endif
#endif
