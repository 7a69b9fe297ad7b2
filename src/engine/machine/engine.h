/* The engine: a model on a device, its programs and its pages, and steps over sequences.
 *
 * A sequence is the tokens that were computed so far, as keys and values in pages. qn_engine_step feeds new
 * tokens of one or more sequences as rows of one flat ragged batch; a single sequence is a batch of one.
 * Invariant: the logits of a sequence depend on its tokens alone, bit for bit, not on the company in a step
 * nor on how its tokens were cut into steps. With LongRoPE its tokens are those that are known by the end of
 * the step (or expected): a step that makes it longer than config.rope_short_positions computes all of them
 * anew. One thread at a time; who shares an engine between threads
 * brings a lock. */
#ifndef QN_ENGINE_MACHINE_ENGINE_H
#define QN_ENGINE_MACHINE_ENGINE_H

#include "cache/pages.h"
#include "device/device.h"
#include "engine/machine/probe.h"
#include "model/adapter/adapters.h"
#include "model/config/config.h"
#include "model/vision/image_processor.h"

typedef struct qn_engine qn_engine;
typedef struct qn_sequence qn_sequence;

typedef struct {
    const char *device; /* as for qn_device_open */
    qn_precision precision;
    qn_kv_type kv_type;
    int n_threads;         /* 0: what affinity and quota allow */
    int64_t context_size;  /* 0: the smallest of the model's own, 131072 and what memory allows */
    int64_t max_sequences; /* of one step; 0: 1 */
    int64_t max_rows;      /* of one step; 0: the engine's choice */
    /* Of a device with memory of its own: the first so many layers are computed there, and the CPU computes the
     * others and the head. 0: as many as fit; QN_ALL_LAYERS, or no fewer than there are: all. */
    int32_t gpu_layers;
    size_t memory_limit_bytes;        /* of the host's memory; 0: none */
    size_t device_memory_limit_bytes; /* of a device with memory of its own; 0: none */
    const char *packed; /* file of packed weights; NULL: where `quern pack` puts it; "none": none */
    /* The adapter of sequences that name none (model/adapter/adapters.h); path NULL: none, name NULL:
     * "default", scale 0: 1. */
    const char *adapter_path, *adapter_name;
    float adapter_scale;
    int no_prefix_cache;
    size_t held_bytes; /* what the caller holds for the model besides (its tokenizer), for the ledger */
    /* For tests: > 0: pages are not released behind windows and the context, but kept for so many positions
     * of each sequence. */
    int64_t keep_positions;
} qn_engine_options;

typedef struct {
    qn_precision precision;
    qn_dtype kv_dtype;
    int quant_bits;
    int64_t num_parameters, context_size, model_context_size, max_sequences, max_rows;
    int n_threads;
    int64_t gpu_layers; /* computed on a device with memory of its own; 0: there is none */
    const char *device, *device_name, *cpu_set;
    const char *notes;   /* sentences for the user, a line each */
    const char *packed;  /* path of the packed file in use; "": none */
    size_t mapped_bytes; /* of the weights, in that file */
    double weights_ms, programs_ms;
} qn_engine_info;

/* Takes the config over on success (it is freed with the engine). The source may be closed afterwards. */
qn_status qn_engine_open(qn_source *source, qn_model_config *config, const qn_engine_options *options,
                         qn_engine **out);
void qn_engine_close(qn_engine *e);
const qn_model_config *qn_engine_config(const qn_engine *e);
const qn_engine_info *qn_engine_get_info(const qn_engine *e);
/* Of the host's memory. */
qn_ledger *qn_engine_ledger(const qn_engine *e);
/* Of the memory of qn_engine_card: keys, values and weights are in this one. The host's if there is none. */
qn_ledger *qn_engine_device_ledger(const qn_engine *e);
/* Where the head is computed: the CPU, if a model is divided between a card and the CPU. */
qn_device *qn_engine_device(const qn_engine *e);
/* The device with memory of its own that computes some or all layers; NULL: the host's memory has everything. */
qn_device *qn_engine_card(const qn_engine *e);
/* The weights, of a divided model those on the CPU; they live as long as the engine. */
const qn_parameters *qn_engine_parameters(const qn_engine *e);
/* The device's passes over logits: for samplers and log-probabilities. */
const qn_logits_kernels *qn_engine_logits_kernels(const qn_engine *e);

/* Locks weights in the machine's memory, largest first, up to limit_bytes (0: none are locked); *wired_bytes
 * is what is locked then, in whole pages. QN_E_NOMEM: the system refused (message: its limit and what to do),
 * and all is as it was before. */
qn_status qn_engine_wire(qn_engine *e, size_t limit_bytes, size_t *wired_bytes);

/* By name; holds and releases on it are any thread's. */
qn_adapters *qn_engine_adapters(const qn_engine *e);
/* As qn_adapters_load and qn_adapters_unload, with programs that compute it. On failure all is as before. */
qn_status qn_engine_adapter_load(qn_engine *e, const char *name, const char *path, float scale,
                                 qn_buf *notes);
qn_status qn_engine_adapter_unload(qn_engine *e, const char *name);

/* Runs the vision tower over the views of one picture, whose patches are those of all views, one behind the other:
 * vision_layout.h and qn_vision_fill say in which order. out [tokens, qn_vision_width]. Memory is taken for this picture
 * and given back. The config must have a tower. QN_E_ARG: a view of a size that the tower does not take. */
qn_status qn_engine_see(qn_engine *e, int64_t n_views, const qn_image_grid *views, const float *patches,
                        float *out);

/* Any number of them; a step takes max_sequences at most. */
qn_status qn_sequence_new(qn_engine *e, qn_sequence **out);
/* Gives its pages back. */
void qn_sequence_free(qn_sequence *s);
/* The adapter of all its tokens, by an id that is held as long as the sequence lives (qn_adapters_hold);
 * before the first step. -1, as at the start: none. */
void qn_sequence_set_adapter(qn_sequence *s, int32_t id);
/* The images of its tokens (engine/machine/images.h), which must outlive it; before the first step. */
typedef struct qn_images qn_images;
void qn_sequence_set_images(qn_sequence *s, const qn_images *images);
/* Takes the pages for n_ids more tokens (as far as one chunk goes), which the next step would take otherwise:
 * so that a shortage is known to be this sequence's. QN_E_FULL: no pages; QN_E_NOMEM: the memory limit. */
qn_status qn_sequence_reserve(qn_sequence *s, int64_t n_ids);
/* The sequence will have n_ids tokens at least, with those that it has. Where positions are turned by how
 * long a sequence gets (config.rope_short_positions) its first tokens are then computed for that length at
 * once, and not twice. */
void qn_sequence_expect(qn_sequence *s, int64_t n_ids);
/* Tokens given so far. */
int64_t qn_sequence_length(const qn_sequence *s);
/* Can its sequences take tokens back? Recurrent layers do not forget. */
int qn_engine_takes_back(const qn_engine *e);
/* How many ids of the next step may be taken back after it, if at least one is certain. */
int64_t qn_sequence_get_tentative_max(const qn_sequence *s);
/* The last n_ids that the next step feeds may be taken back by qn_sequence_truncate, until the step after
 * that. */
void qn_sequence_set_tentative(qn_sequence *s, int64_t n_ids);
/* The sequence has only its first n_ids tokens, what follows was tentative: it goes on with the same bits as
 * if that had never been fed. */
void qn_sequence_truncate(qn_sequence *s, int64_t n_ids);

/* Logits of its tokens may be handed out by any of the device's threads, at the same time as those of other
 * such sequences; the function that gets them may not fail then. */
void qn_sequence_set_any_thread(qn_sequence *s);

/* Whether the step behind the next one is likely to feed it the token of its largest logit, and that alone:
 * it may be begun before. A wrong guess costs time. */
void qn_sequence_set_follows_best(qn_sequence *s, int is_likely);

/* HIDDEN: in place of logits, of all tokens, the hidden states after the final norm. */
typedef enum { QN_LOGITS_NONE, QN_LOGITS_LAST, QN_LOGITS_ALL, QN_LOGITS_HIDDEN } qn_logits_wish;

/* New tokens of one sequence. */
typedef struct {
    qn_sequence *sequence;
    const int32_t *ids;
    int64_t n_ids; /* >= 1 */
    qn_logits_wish logits;
} qn_feed;

/* Logits [n, vocab_size] (hidden states: [n, hidden_size]) of the tokens [first, first + n) of feeds[feed];
 * valid during the call, which may change them. Anything but QN_OK stops the step. */
typedef qn_status qn_step_logits_fn(void *user, int64_t feed, int64_t first, int64_t n, float *logits);
/* Asked before each chunk; nonzero ends the step with QN_E_CANCELLED. */
typedef int qn_step_stop_fn(void *user);

/* Computes all feeds, in chunks of max_rows, rows of different feeds together. Each sequence may appear once.
 * On failure the sequences keep what finished chunks added. QN_E_ARG: an id outside the vocabulary;
 * QN_E_FULL: no pages; QN_E_NOMEM: the memory limit. */
qn_status qn_engine_step(qn_engine *e, int64_t n_feeds, const qn_feed *feeds, qn_step_logits_fn *logits,
                         qn_step_stop_fn *stop, void *user);
/* fn is called in each step, behind each chunk that the device has been given and before its logits are waited for:
 * the device may be computing meanwhile. It must not use the engine. NULL: nobody is called. */
void qn_engine_set_meanwhile(qn_engine *e, void (*fn)(void *user), void *user);
/* For tests and inspection: sees every step of every program, in place of the probes. */
void qn_engine_set_probe(qn_engine *e, qn_probe_fn *probe, void *user);
/* For who emits; any thread. */
qn_probes *qn_engine_probes(qn_engine *e);
/* As qn_probes_add and qn_probes_remove, between two steps. */
qn_status qn_engine_probe_add(qn_engine *e, uint32_t points, qn_probe_event_fn *fn, void *user,
                              int64_t *number);
qn_status qn_engine_probe_remove(qn_engine *e, int64_t number);

#endif
