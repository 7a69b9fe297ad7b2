/* Memory of a model: what it holds, and limits.
 *
 * Each model counts its own memory; nothing is process-wide. A device with memory of its own (a card) has figures
 * and a memory limit of its own, too: weights, keys and values are there. Limits: the memory limit is hard, an allocation
 * that would pass it is refused and ends one request, not the model. The cache limit is soft: memory of keys
 * and values that no sequence needs any more is kept for the next one up to this many bytes, and goes before
 * anything is refused. The wired limit says how much of the weights is locked in the machine's memory, so
 * that it is never paged out. Each setter puts the value before into *old_bytes (may be NULL) and may be
 * called from any thread at any time. */
#ifndef QUERN_MEMORY_H
#define QUERN_MEMORY_H

#include <quern/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes. Of mapped files only packed weights are counted. */
typedef struct {
    size_t active_memory_bytes; /* in use now: weights, keys and values, scratch and other */
    /* not in use, kept for reuse; active and cache together keep the memory limit */
    size_t cache_memory_bytes;
    /* most of active and cache together since the model was opened, or the last reset */
    size_t peak_memory_bytes;
    size_t weights_bytes, kv_bytes, scratch_bytes;
    size_t other_bytes; /* tokenizer, chat template, tables, samplers */
    size_t wired_bytes; /* of the weights, locked in memory: whole pages, mapped ones included */
    size_t limit_bytes; /* the memory limit; 0: none */
    size_t cache_limit_bytes, wired_limit_bytes;
    /* of the weights, in a mapped file of packed weights: shared between processes, and the system can drop
     * them */
    size_t mapped_bytes;
} qn_memory;

/* The figures of a card, in bytes. They mean the same as those of qn_memory. */
typedef struct {
    size_t active_memory_bytes, cache_memory_bytes, peak_memory_bytes;
    size_t weights_bytes, kv_bytes, scratch_bytes, other_bytes;
    size_t limit_bytes, cache_limit_bytes;
    size_t free_bytes; /* of the card, whoever uses the rest */
} qn_device_memory;

/* All zeros if the device has no memory of its own: the figures of qn_model_get_memory are all there are then. */
QN_API qn_status qn_model_get_device_memory(const qn_model *model, qn_device_memory *out);
QN_API qn_status qn_model_get_memory(const qn_model *model, qn_memory *out);
/* The hard limit; 0: none. With a limit below the memory in use, calls that need more memory are refused.
 * Cached memory is then freed, memory in use is not. */
QN_API qn_status qn_model_set_memory_limit(qn_model *model, size_t limit_bytes, size_t *old_bytes);
/* The hard limit of a card's memory; 0: none. QN_E_UNSUPPORTED: the device has no memory of its own. */
QN_API qn_status qn_model_set_device_memory_limit(qn_model *model, size_t limit_bytes, size_t *old_bytes);
/* Of the memory that keys and values lie in: the card's, if the device is one. 0 keeps nothing. Default: enough for whole contexts of all parallel_slots, at most half of the memory that
 * is left when the model is open, at least 256 MiB. Cached memory above the new limit is freed at once. */
QN_API qn_status qn_model_set_cache_limit(qn_model *model, size_t limit_bytes, size_t *old_bytes);
/* 0, the default: nothing is locked. Weights are locked in whole pages, the largest first. QN_E_NOMEM: the
 * system refused (the message gives its limit and says what to do); the previous limit stays in force. */
QN_API qn_status qn_model_set_wired_limit(qn_model *model, size_t limit_bytes, size_t *old_bytes);
/* Returns all cached memory to the system, the card's too. cache_memory_bytes is then 0 until the next sequence ends or
 * advances. */
QN_API qn_status qn_model_clear_cache(qn_model *model);
/* The peaks restart from the memory held now, the card's too. */
QN_API qn_status qn_model_reset_peak_memory(qn_model *model);

#ifdef __cplusplus
}
#endif
#endif
