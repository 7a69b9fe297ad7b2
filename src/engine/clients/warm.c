#include "engine/clients/warm.h"

#include <string.h>

#include "base/clock.h"
#include "engine/clients/evaluate.h"
#include "engine/clients/state_binding.h"
#include "engine/machine/engine_parts.h"
#include "engine/machine/prefixes.h"

static qn_tree_key key_of(const qn_engine *e, int32_t adapter, const char *salt, int64_t n)
{
    int64_t limit = e->config.rope_short_positions;
    return (qn_tree_key){.adapter = adapter,
                         .is_long = limit && n > limit,
                         .salt = salt ? salt : "",
                         .salt_bytes = salt ? strlen(salt) : 0};
}

static qn_status ignore(void *user, int64_t row, int64_t position, int64_t n, float *logits)
{
    return QN_OK;
}

/* What the scheduler left of the ids may end before their end: the rest is computed here, between steps. */
static qn_status compute_rest(qn_engine *e, qn_scheduler *scheduler, int32_t adapter, const char *salt,
                              const int32_t *ids, int64_t n)
{
    qn_sequence *s = NULL;
    QN_TRY(qn_scheduler_enter(scheduler));
    int64_t begin = qn_clock_ns(), have = 0;
    qn_status status = qn_sequence_new(e, &s);
    if (status == QN_OK) {
        qn_sequence_set_adapter(s, adapter);
        qn_sequence_expect(s, n);
        have = qn_sequence_attach(s, salt, ids, n);
        const qn_feed feed = {.sequence = s, .ids = ids + have, .n_ids = n - have};
        if (have < n) status = qn_engine_step(e, 1, &feed, NULL, NULL, NULL);
    }
    if (status == QN_OK && have < n)
        qn_sequence_remember(s, salt, ids, 0, (qn_clock_ns() - begin) / (n - have));
    qn_sequence_free(s);
    qn_scheduler_leave(scheduler);
    return status;
}

static qn_status warm(qn_engine *e, qn_scheduler *scheduler, int32_t adapter, const char *salt,
                      const int32_t *ids, int64_t n, const char *name)
{
    const qn_tree_key key = key_of(e, adapter, salt, n);
    const qn_ids row = {ids, n};
    const qn_evaluation what = {
        .rows = &row, .n_rows = 1, .adapters = &adapter, .last_only = 1, .salt = salt};
    if (qn_tree_peek(e->tree, &key, ids, n) < n) {
        QN_TRY(qn_evaluate(scheduler, e, &what, ignore, NULL));
        if (qn_tree_peek(e->tree, &key, ids, n) < n)
            QN_TRY(compute_rest(e, scheduler, adapter, salt, ids, n));
    }
    return qn_tree_pin(e->tree, &key, ids, n, name);
}

qn_status qn_engine_warm(qn_engine *e, qn_scheduler *scheduler, const qn_prefix_options *options,
                         const int32_t *ids, int64_t n, const char *name)
{
    int32_t adapter = -1;
    QN_TRY(qn_engine_check_tree(e));
    if (n < 1 || n > e->info.context_size)
        return qn_fail(QN_E_ARG, "%lld tokens cannot be kept ready: the context holds 1 to %lld",
                       (long long)n, (long long)e->info.context_size);
    QN_TRY(qn_adapters_hold(e->adapters, options->adapter, &adapter));
    qn_status status = warm(e, scheduler, adapter, options->cache_salt, ids, n, name);
    qn_adapters_release(e->adapters, adapter);
    return status;
}

qn_status qn_engine_unwarm(qn_engine *e, const char *name)
{
    QN_TRY(qn_engine_check_tree(e));
    QN_TRY(qn_tree_unpin(e->tree, name));
    qn_tree_trim(e->tree);
    return QN_OK;
}

qn_status qn_engine_forget_prefix(qn_engine *e, const qn_prefix_options *options, const int32_t *ids,
                                  int64_t n, int64_t *n_gone)
{
    int32_t adapter = -1;
    QN_TRY(qn_engine_check_tree(e));
    QN_TRY(qn_adapters_hold(e->adapters, options->adapter, &adapter));
    const qn_tree_key key = key_of(e, adapter, options->cache_salt, n);
    *n_gone = qn_tree_forget(e->tree, &key, ids, n);
    qn_adapters_release(e->adapters, adapter);
    return QN_OK;
}

qn_status qn_engine_explain(qn_engine *e, const qn_prefix_options *options, const int32_t *ids, int64_t n,
                            qn_tree_miss *out)
{
    int32_t adapter = -1;
    QN_TRY(qn_engine_check_tree(e));
    QN_TRY(qn_adapters_hold(e->adapters, options->adapter, &adapter));
    const qn_tree_key key = key_of(e, adapter, options->cache_salt, n);
    qn_tree_explain(e->tree, &key, ids, n, out);
    qn_adapters_release(e->adapters, adapter);
    return QN_OK;
}

qn_status qn_engine_cache_counters(const qn_engine *e, qn_tree_counters *out)
{
    QN_TRY(qn_engine_check_tree(e));
    qn_tree_get_counters(e->tree, out);
    return QN_OK;
}
