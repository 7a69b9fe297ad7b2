/* Prefixes that stay: computed before somebody asks, and not evicted; and why a prompt would not find one. The options
 * say of which adapter and salt. Any thread. */
#ifndef QN_ENGINE_CLIENTS_WARM_H
#define QN_ENGINE_CLIENTS_WARM_H

#include <quern/cache.h>

#include "cache/tree.h"
#include "engine/schedule/scheduler.h"

/* Computes ids[0..n) as far as they are not known, through the scheduler, and pins them as `name`, in place
 * of what had that name. QN_E_ARG: an id outside the vocabulary, or more than the context; QN_E_FULL,
 * QN_E_NOMEM: they find no room. */
qn_status qn_engine_warm(qn_engine *e, qn_scheduler *scheduler, const qn_prefix_options *options,
                         const int32_t *ids, int64_t n, const char *name);
/* QN_E_NOT_FOUND: nothing is pinned as that. What it kept may be evicted now. */
qn_status qn_engine_unwarm(qn_engine *e, const char *name);
/* Drops ids[0..n) and what goes on from them, as qn_tree_forget; *n_gone tokens of these. */
qn_status qn_engine_forget_prefix(qn_engine *e, const qn_prefix_options *options, const int32_t *ids,
                                  int64_t n, int64_t *n_gone);
/* Why no more of ids[0..n) could be used. */
qn_status qn_engine_explain(qn_engine *e, const qn_prefix_options *options, const int32_t *ids, int64_t n,
                            qn_tree_miss *out);
qn_status qn_engine_cache_counters(const qn_engine *e, qn_tree_counters *out);

#endif
