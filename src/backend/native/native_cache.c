/* The native backend's part of cache.h: handles, files, prefixes that stay. */
#include "backend/native/native_parts.h"
#include "base/mem.h"
#include "engine/clients/state_io.h"
#include "engine/clients/warm.h"

_Static_assert((int)QN_CACHE_CONTEXT_TOKENS == 2 * (int)QN_TREE_CONTEXT, "the tree shows as many tokens");

/* ---- handles ------------------------------------------------------------------------------------------ */

qn_status qn_native_cache_forward(void *model, const int32_t *ids, int64_t n_ids, void *cache, float *logits,
                                  void **out)
{
    qn_handle *handle = NULL;
    QN_TRY(qn_native_check_generates(model, "cache handles"));
    QN_TRY(qn_handle_forward(((native_model *)model)->handles, cache, ids, n_ids, logits, &handle));
    *out = handle;
    return QN_OK;
}

qn_status qn_native_cache_slice(void *model, void *cache, int64_t keep, void **out)
{
    qn_handle *handle = NULL;
    QN_TRY(qn_handle_slice(((native_model *)model)->handles, cache, keep, &handle));
    *out = handle;
    return QN_OK;
}

int64_t qn_native_cache_length(void *model, void *cache)
{
    return qn_handle_length(cache);
}

void qn_native_cache_free(void *model, void *cache)
{
    qn_handle_free(((native_model *)model)->handles, cache);
}

/* ---- files -------------------------------------------------------------------------------------------- */

qn_status qn_native_cache_save(void *model, void *cache, const char *path)
{
    native_model *m = model;
    uint64_t fingerprint = 0;
    QN_TRY(qn_fingerprint_get(m->fingerprint, &fingerprint));
    return qn_state_save_handle(m->handles, cache, fingerprint, path);
}

qn_status qn_native_cache_load(void *model, const char *path, void **out)
{
    native_model *m = model;
    uint64_t fingerprint = 0;
    qn_handle *handle = NULL;
    QN_TRY(qn_native_check_generates(m, "cache handles"));
    QN_TRY(qn_fingerprint_get(m->fingerprint, &fingerprint));
    QN_TRY(qn_state_load_handle(m->handles, fingerprint, path, &handle));
    *out = handle;
    return QN_OK;
}

qn_status qn_native_save_state(void *model, const char *path)
{
    native_model *m = model;
    uint64_t fingerprint = 0;
    QN_TRY(qn_native_check_generates(m, "saved states"));
    QN_TRY(qn_fingerprint_get(m->fingerprint, &fingerprint));
    return qn_state_save_tree(m->engine, m->scheduler, fingerprint, path);
}

qn_status qn_native_load_state(void *model, const char *path)
{
    native_model *m = model;
    uint64_t fingerprint = 0;
    QN_TRY(qn_native_check_generates(m, "saved states"));
    QN_TRY(qn_fingerprint_get(m->fingerprint, &fingerprint));
    return qn_state_load_tree(m->engine, m->scheduler, fingerprint, path);
}

/* ---- prefixes ----------------------------------------------------------------------------------------- */

qn_status qn_native_warm(void *model, const qn_prompt *prompt, const char *name,
                         const qn_prefix_options *options)
{
    native_model *m = model;
    int32_t *ids = NULL;
    int64_t n = 0, n_stable = 0;
    QN_TRY(qn_native_check_generates(m, "prefixes"));
    QN_TRY(qn_native_prompt(m, prompt, &ids, &n, &n_stable));
    qn_status status =
        qn_engine_warm(m->engine, m->scheduler, options, ids, n_stable > 0 ? n_stable : n, name);
    qn_free(ids);
    return status;
}

qn_status qn_native_unwarm(void *model, const char *name)
{
    return qn_engine_unwarm(((native_model *)model)->engine, name);
}

qn_status qn_native_save_prefix(void *model, const int32_t *ids, int64_t n_ids,
                                const qn_prefix_options *options, const char *path, int64_t *n_saved)
{
    native_model *m = model;
    uint64_t fingerprint = 0;
    QN_TRY(qn_native_check_generates(m, "prefixes"));
    QN_TRY(qn_fingerprint_get(m->fingerprint, &fingerprint));
    return qn_state_save_prefix(m->engine, m->scheduler, fingerprint, options, ids, n_ids, path, n_saved);
}

qn_status qn_native_load_prefix(void *model, const char *path, qn_saved_prefix **out)
{
    native_model *m = model;
    uint64_t fingerprint = 0;
    QN_TRY(qn_native_check_generates(m, "prefixes"));
    QN_TRY(qn_fingerprint_get(m->fingerprint, &fingerprint));
    return qn_state_load_prefix(m->engine, m->scheduler, fingerprint, path, out);
}

qn_status qn_native_forget_prefix(void *model, const int32_t *ids, int64_t n_ids,
                                  const qn_prefix_options *options, int64_t *n_forgotten)
{
    QN_TRY(qn_native_check_generates(model, "prefixes"));
    return qn_engine_forget_prefix(((native_model *)model)->engine, options, ids, n_ids, n_forgotten);
}

static qn_cache_reason reason_of(qn_tree_reason reason)
{
    static const qn_cache_reason reasons[] = {
        [QN_TREE_USABLE] = QN_CACHE_USABLE,
        [QN_TREE_UNKNOWN_KEY] = QN_CACHE_UNKNOWN,
        [QN_TREE_DIFFERS] = QN_CACHE_DIFFERS,
        [QN_TREE_ENDS] = QN_CACHE_ENDS,
        [QN_TREE_EVICTED] = QN_CACHE_EVICTED,
        [QN_TREE_LACKS_WINDOW] = QN_CACHE_NO_WINDOW,
        [QN_TREE_LACKS_SNAPSHOT] = QN_CACHE_NO_SNAPSHOT,
    };
    return reasons[reason];
}

qn_status qn_native_cache_explain(void *model, const qn_prompt *prompt, const qn_prefix_options *options,
                                  qn_cache_miss *out)
{
    native_model *m = model;
    int32_t *ids = NULL;
    int64_t n = 0, n_stable = 0;
    qn_tree_miss miss;
    QN_TRY(qn_native_check_generates(m, "prefixes"));
    QN_TRY(qn_native_prompt(m, prompt, &ids, &n, &n_stable));
    qn_status status = qn_engine_explain(m->engine, options, ids, n, &miss);
    qn_free(ids);
    QN_TRY(status);
    *out = (qn_cache_miss){.reason = reason_of(miss.reason),
                           .n_prompt_tokens = n,
                           .n_known_tokens = miss.n_known,
                           .n_usable_tokens = miss.n_usable,
                           .n_given = miss.n_given,
                           .n_known = miss.n_known_ids,
                           .i_given = miss.i_given,
                           .i_known = miss.i_known,
                           .evicted_begin = miss.evicted_begin,
                           .evicted_end = miss.evicted_end,
                           .evictions_ago = miss.evicted_ago};
    for (int i = 0; i < miss.n_given; i++) out->given[i] = miss.given[i];
    for (int i = 0; i < miss.n_known_ids; i++) out->known[i] = miss.known[i];
    return QN_OK;
}

qn_status qn_native_cache_get_counters(void *model, qn_cache_counters *out)
{
    qn_tree_counters c;
    QN_TRY(qn_engine_cache_counters(((native_model *)model)->engine, &c));
    *out = (qn_cache_counters){.n_hits = c.hits,
                               .n_misses = c.misses,
                               .n_tokens_reused = c.tokens_reused,
                               .n_inserts = c.inserts,
                               .n_splits = c.splits,
                               .n_tokens_inserted = c.tokens_inserted,
                               .n_evicted_nodes = c.evicted_nodes,
                               .n_evicted_tokens = c.evicted_tokens,
                               .n_evicted_snapshots = c.evicted_snapshots,
                               .n_poisoned_nodes = c.poisoned_nodes,
                               .evicted_bytes = c.evicted_bytes,
                               .n_nodes = c.nodes,
                               .n_tokens = c.tokens,
                               .n_snapshots = c.snapshots,
                               .n_pins = c.pins,
                               .n_pages = c.pages,
                               .tree_bytes = c.own_bytes,
                               .n_timed_pins = c.timed_pins,
                               .n_given_up_pins = c.given_up_pins};
    return QN_OK;
}
