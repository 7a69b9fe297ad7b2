/* The state that a model computed of tokens: in the hands of callers, in files, and kept ready.
 *
 * A qn_cache is a handle of the first n tokens of a sequence. A pass from it gives logits and a new handle;
 * the old one stays valid, so that any number of continuations can be tried from one beginning, and they
 * share the memory of what they have in common. A handle is a number, not an address: one that was freed,
 * whose model was closed, of another model or of no model at all is refused by an error and never followed.
 *
 * Any thread. A handle may be used by several calls at once. Closing a model ends its handles. Handles hold
 * the adapter that they were computed with (it cannot be unloaded meanwhile), and memory of keys and values
 * that others could use: free what is not needed.
 *
 * Besides, a model keeps the prefixes that its generations computed, as memory allows, so that none is
 * computed twice. Some can be kept for good (warm), all can be saved to a file and loaded again, and a prompt
 * that finds nothing can be asked why. A file is bound to the model, its precision, its type of keys and
 * values and the instruction set, for these decide the bits: what is loaded goes on as if it had been
 * computed. */
#ifndef QUERN_CACHE_H
#define QUERN_CACHE_H

#include <quern/generate.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Never defined: it points to nothing. */
typedef struct qn_cache qn_cache;

/* Computes ids[0..n_ids) behind the tokens of cache (NULL: none, with the model's default adapter) and writes
 * the logits of the last one, float32, once into logits, which holds logits_capacity numbers: vocab_size or
 * more. *out is the handle of all tokens, owned by the caller: qn_cache_free. Bits are those of the same
 * tokens in one piece. From a handle with what it needs the call allocates nothing. On failure *out is
 * untouched and logits hold nothing of use; cache is as it was. QN_E_ARG: a buffer that is too small, an
 * empty or too long row, an id outside the vocabulary, a handle that is none of this model's; QN_E_FULL,
 * QN_E_NOMEM: no room for keys and values; QN_E_DEVICE: the handle is poisoned (a pass failed that computed
 * some of it), or the logits are not finite. */
QN_API qn_status qn_forward_with_cache(qn_model *model, const int32_t *ids, int64_t n_ids,
                                       const qn_cache *cache, float *logits, int64_t logits_capacity,
                                       qn_cache **out);
/* A handle of the first keep tokens, 0 to the length, owned by the caller: qn_cache_free. Nothing is
 * computed; what the layers let go of (behind a sliding window, in recurrent layers) the next pass computes
 * anew. */
QN_API qn_status qn_cache_slice(const qn_cache *cache, int64_t keep, qn_cache **out);
/* Tokens. */
QN_API qn_status qn_cache_get_length(const qn_cache *cache, int64_t *out);
/* NULL, and what is no handle any more, are accepted. */
QN_API void qn_cache_free(qn_cache *cache);

/* ---- files ---- */

/* Writes the handle's tokens and what is computed of them; the file appears when it is whole. QN_E_IO: it
 * cannot be written; QN_E_DEVICE: the handle is poisoned. */
QN_API qn_status qn_cache_save(const qn_cache *cache, const char *path);
/* *out is owned by the caller: qn_cache_free. QN_E_IO, QN_E_FORMAT: the file cannot be read, or is damaged;
 * QN_E_UNSUPPORTED: it does not fit this model, or is a whole cache; QN_E_NOT_FOUND: its adapter is not
 * loaded; QN_E_ARG: it is longer than the context; QN_E_FULL, QN_E_NOMEM: no room. */
QN_API qn_status qn_cache_load(qn_model *model, const char *path, qn_cache **out);
/* Writes all prefixes that the model keeps, and which of them are kept ready (qn_model_warm) under which
 * names. Generations go on meanwhile. Statuses as of qn_cache_save. */
QN_API qn_status qn_model_save_state(qn_model *model, const char *path);
/* Adds what a file of qn_model_save_state or qn_cache_save holds to the prefixes that the model keeps, as far
 * as there is room: beginnings of prompts before what goes on from them, and a warning says how many tokens
 * found room and how many did not. What was kept ready is so again, under its name, unless that is in use
 * here (a warning where there is no room). What was computed with an adapter that is not loaded is left out,
 * with a warning. A file that is refused changes nothing. Statuses as of qn_cache_load, but that it is no
 * failure to find no room. */
QN_API qn_status qn_model_load_state(qn_model *model, const char *path);

/* ---- prefixes ---- */

/* Computes a prompt of one row (without images, with the default adapter) and keeps it ready as `name`, which
 * replaces what had that name: it is not evicted until qn_model_unwarm. Of a chat it is the part that longer
 * chats begin with, too. QN_E_FULL, QN_E_NOMEM: it finds no room. */
QN_API qn_status qn_model_warm(qn_model *model, const qn_prompt *prompt, const char *name);
/* QN_E_NOT_FOUND: there is nothing of this name. What it kept may be evicted from then on. */
QN_API qn_status qn_model_unwarm(qn_model *model, const char *name);

/* Why a prompt finds no more than it does: X(NAME, "name"). */
#define QN_CACHE_REASON_LIST(X)                                                              \
    X(USABLE, "usable")           /* all of it is there */                                   \
    X(UNKNOWN, "unknown")         /* nothing was computed for this adapter */                \
    X(DIFFERS, "differs")         /* behind the known tokens others follow */                \
    X(ENDS, "ends")               /* nothing was computed behind the known tokens */         \
    X(EVICTED, "evicted")         /* it was computed, and evicted */                         \
    X(NO_WINDOW, "no_window")     /* known, but what sliding windows see there was let go */ \
    X(NO_SNAPSHOT, "no_snapshot") /* known, but no recurrent state was kept there */

typedef enum {
#define QN_CACHE_REASON_ENUM(name, text) QN_CACHE_##name,
    QN_CACHE_REASON_LIST(QN_CACHE_REASON_ENUM)
#undef QN_CACHE_REASON_ENUM
} qn_cache_reason;

enum { QN_CACHE_CONTEXT_TOKENS = 16, QN_CACHE_TEXT_BYTES = 512 };

/* given, known: tokens around the end of what is known, of the prompt and of what was computed before;
 * [i_given], [i_known] are the first that differ (equal to the counts where there is none). Texts are cut
 * where they do not fit, NUL-terminated, and empty without a tokenizer. */
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

/* Says how much of a prompt of one row (without images, with the default adapter) is there, and why not more.
 * Changes nothing. */
QN_API qn_status qn_cache_explain(qn_model *model, const qn_prompt *prompt, qn_cache_miss *out);
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
} qn_cache_counters;

QN_API qn_status qn_cache_get_counters(const qn_model *model, qn_cache_counters *out);

#ifdef __cplusplus
}
#endif
#endif
