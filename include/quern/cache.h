/* Computed state of token sequences: handles of callers, files, and prefixes kept ready.
 *
 * A qn_cache is a handle of the first n tokens of a sequence. A pass from a handle gives logits and a new
 * handle. The old one stays valid, so a caller can try any number of continuations of one beginning; they
 * share the memory of their common part. A handle is a number, not an address. A handle that was freed, that
 * belongs to a closed or another model, or that never existed is refused with an error and never followed.
 *
 * Any thread. Several calls may use one handle at once. Closing a model ends its handles. A handle holds the
 * adapter that it was computed with, which cannot be unloaded meanwhile. It also holds memory of keys and
 * values that others could use, so free handles that are not needed.
 *
 * A model also keeps the prefixes that its generations computed, as far as memory allows, so that none is
 * computed twice. Prefixes can be kept for good (warm), saved to a file and loaded again. A caller can ask
 * why a prompt finds nothing. A file is bound to the model, its precision, its type of keys and values and
 * the instruction set, because these decide the bits. A loaded state continues as if it had been computed. */
#ifndef QUERN_CACHE_H
#define QUERN_CACHE_H

#include <quern/generate.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Never defined; the pointer is not an address. */
typedef struct qn_cache qn_cache;

/* Computes ids[0..n_ids) after the tokens of cache and writes the logits of the last one, float32. If cache
 * is NULL, the pass begins without tokens and with the model's default adapter. logits holds logits_capacity
 * numbers: vocab_size or more. *out is the handle of all tokens, owned by the caller: qn_cache_free. The bits
 * are those of the same tokens in one pass. If the handle has all the state that is needed, the call
 * allocates nothing. On failure *out and cache are untouched and the contents of logits are undefined.
 * QN_E_ARG: a buffer that is too small, an empty or too long row, an id outside the vocabulary, a handle of
 * another model; QN_E_FULL, QN_E_NOMEM: no room for keys and values; QN_E_DEVICE: the handle is poisoned (a
 * pass that computed some of it failed), or the logits are not finite. */
QN_API qn_status qn_forward_with_cache(qn_model *model, const int32_t *ids, int64_t n_ids,
                                       const qn_cache *cache, float *logits, int64_t logits_capacity,
                                       qn_cache **out);
/* A handle of the first keep tokens, 0 to the length, owned by the caller: qn_cache_free. Nothing is
 * computed. State that the layers dropped (outside a sliding window, in recurrent layers) is computed again
 * by the next pass. */
QN_API qn_status qn_cache_slice(const qn_cache *cache, int64_t keep, qn_cache **out);
/* Tokens. */
QN_API qn_status qn_cache_get_length(const qn_cache *cache, int64_t *out);
/* NULL and handles that no longer exist are accepted. */
QN_API void qn_cache_free(qn_cache *cache);

/* ---- files ---- */

/* Writes the handle's tokens and their computed state. The file appears only when it is complete. QN_E_IO: it
 * cannot be written; QN_E_DEVICE: the handle is poisoned. */
QN_API qn_status qn_cache_save(const qn_cache *cache, const char *path);
/* *out is owned by the caller: qn_cache_free. QN_E_IO, QN_E_FORMAT: the file cannot be read, or is damaged;
 * QN_E_UNSUPPORTED: the file does not fit this model, or holds a whole prefix cache; QN_E_NOT_FOUND: its
 * adapter is not loaded; QN_E_ARG: the state is longer than the context; QN_E_FULL, QN_E_NOMEM: no room. */
QN_API qn_status qn_cache_load(qn_model *model, const char *path, qn_cache **out);
/* Writes all prefixes that the model keeps, with the names of those that are kept ready (qn_model_warm).
 * Generations continue meanwhile. Statuses as of qn_cache_save. */
QN_API qn_status qn_model_save_state(qn_model *model, const char *path);
/* Adds the state in a file of qn_model_save_state or qn_cache_save to the prefixes that the model keeps, as
 * far as there is room. Beginnings of prompts come before their continuations. If not all tokens find room, a
 * warning gives both counts. Prefixes that were kept ready are kept ready again under their names, unless a
 * name is in use here; a warning is logged if there is no room. State of an adapter that is not loaded is
 * left out, with a warning. A file that is refused changes nothing. Statuses as of qn_cache_load, except that
 * a lack of room is not a failure. */
QN_API qn_status qn_model_load_state(qn_model *model, const char *path);

/* ---- prefixes ---- */

/* Of which sequences a prefix is; zeros are those of generations that say nothing. */
typedef struct {
    const char *adapter;    /* as in qn_generate_options */
    const char *cache_salt; /* the same */
} qn_prefix_options;

/* Computes a prompt of one row (without images, with the default adapter) and keeps it ready as `name`. It
 * replaces an earlier prefix of that name and is not evicted until qn_model_unwarm. For a chat, the part that
 * longer chats begin with is kept too. QN_E_FULL, QN_E_NOMEM: there is no room. */
QN_API qn_status qn_model_warm(qn_model *model, const qn_prompt *prompt, const char *name);
/* The same for another adapter or salt. options may be NULL. QN_E_NOT_FOUND: there is no such adapter. */
QN_API qn_status qn_model_warm_prefix(qn_model *model, const qn_prompt *prompt, const char *name,
                                      const qn_prefix_options *options);
/* QN_E_NOT_FOUND: there is no prefix of this name. Its state may be evicted from then on. */
QN_API qn_status qn_model_unwarm(qn_model *model, const char *name);

/* Writes what the model keeps of ids[0..n_ids) to a file: *n_saved tokens from the first one on, 0 if nothing is kept.
 * qn_model_load_state and qn_cache_load read the file too. options may be NULL. QN_E_NOT_FOUND: there is no such adapter.
 * The other statuses are those of qn_model_save_state. */
QN_API qn_status qn_model_save_prefix(qn_model *model, const int32_t *ids, int64_t n_ids,
                                      const qn_prefix_options *options, const char *path, int64_t *n_saved);

/* What a file of qn_model_save_prefix has. */
typedef struct {
    const int32_t *ids;
    int64_t n_ids;
    int64_t n_loaded;          /* the first so many are kept by the model now */
    qn_prefix_options options; /* adapter "none": the model alone. cache_salt NULL: none */
} qn_saved_prefix;

/* Adds the sequence in a file of qn_model_save_prefix to the prefixes that the model keeps, as qn_model_load_state does.
 * *out with all that it points to is owned by the caller: qn_buffer_free. QN_E_UNSUPPORTED: the file does not fit this
 * model, or holds other than one sequence; QN_E_NOT_FOUND: its adapter is not loaded. */
QN_API qn_status qn_model_load_prefix(qn_model *model, const char *path, qn_saved_prefix **out);
/* Keeps ids[0..n_ids), and what was computed behind them, no longer. Prefixes that are kept ready stay, and so does a
 * beginning that other kept sequences share. options may be NULL. *n_forgotten may be NULL: so many of the tokens were
 * kept and are not any more. QN_E_NOT_FOUND: there is no such adapter. */
QN_API qn_status qn_model_forget_prefix(qn_model *model, const int32_t *ids, int64_t n_ids,
                                        const qn_prefix_options *options, int64_t *n_forgotten);

/* Why no more of a prompt is found: X(NAME, "name"). */
#define QN_CACHE_REASON_LIST(X)                                                                   \
    X(USABLE, "usable")           /* all of it is known */                                        \
    X(UNKNOWN, "unknown")         /* nothing was computed for this adapter */                     \
    X(DIFFERS, "differs")         /* other tokens follow the known ones */                        \
    X(ENDS, "ends")               /* nothing was computed after the known tokens */               \
    X(EVICTED, "evicted")         /* it was computed, and evicted */                              \
    X(NO_WINDOW, "no_window")     /* known, but the keys that sliding windows see were dropped */ \
    X(NO_SNAPSHOT, "no_snapshot") /* known, but no recurrent state was kept there */

typedef enum {
#define QN_CACHE_REASON_ENUM(name, text) QN_CACHE_##name,
    QN_CACHE_REASON_LIST(QN_CACHE_REASON_ENUM)
#undef QN_CACHE_REASON_ENUM
} qn_cache_reason;

enum { QN_CACHE_CONTEXT_TOKENS = 16, QN_CACHE_TEXT_BYTES = 512 };

/* given, known: tokens around the end of the known part, of the prompt and of the computed state. [i_given],
 * [i_known] are the first that differ (equal to the counts if there is none). Texts are cut to fit,
 * NUL-terminated, and empty without a tokenizer. */
typedef struct {
    qn_cache_reason reason;
    int64_t n_prompt_tokens, n_known_tokens, n_usable_tokens;
    int32_t given[QN_CACHE_CONTEXT_TOKENS], known[QN_CACHE_CONTEXT_TOKENS];
    int32_t n_given, n_known, i_given, i_known;
    char given_token[QN_CACHE_TEXT_BYTES], known_token[QN_CACHE_TEXT_BYTES];     /* the first that differ */
    char given_context[QN_CACHE_TEXT_BYTES], known_context[QN_CACHE_TEXT_BYTES]; /* all of the above */
    int64_t evicted_begin, evicted_end; /* EVICTED: these tokens, so many evictions ago */
    int64_t evictions_ago;
} qn_cache_miss;

/* Reports how much of a prompt of one row (without images, with the default adapter) is known, and why no
 * more. Changes nothing. */
QN_API qn_status qn_cache_explain(qn_model *model, const qn_prompt *prompt, qn_cache_miss *out);
/* The same for another adapter or salt. options may be NULL. QN_E_NOT_FOUND: there is no such adapter. */
QN_API qn_status qn_cache_explain_prefix(qn_model *model, const qn_prompt *prompt,
                                         const qn_prefix_options *options, qn_cache_miss *out);
/* "differs". Static storage. */
QN_API const char *qn_cache_reason_name(qn_cache_reason reason);

/* Since the model was opened, and now. */
typedef struct {
    int64_t n_hits, n_misses, n_tokens_reused; /* of prompts that were looked up */
    int64_t n_inserts, n_splits, n_tokens_inserted;
    int64_t n_evicted_nodes, n_evicted_tokens, n_evicted_snapshots, n_poisoned_nodes;
    size_t evicted_bytes;
    int64_t n_nodes, n_tokens, n_snapshots, n_pins, n_pages; /* now */
    size_t tree_bytes;                                       /* now, of the tables */
    /* Prefixes that requests keep for a time (qn_generate_options.pins): now, and those that gave way before their end.
     * n_pins does not count them. */
    int64_t n_timed_pins, n_given_up_pins;
} qn_cache_counters;

QN_API qn_status qn_cache_get_counters(const qn_model *model, qn_cache_counters *out);

#ifdef __cplusplus
}
#endif
#endif
