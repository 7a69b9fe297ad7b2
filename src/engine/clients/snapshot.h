/* Attention inspection: a prompt runs as a sequence of its own, and what its layers compute is copied as it
 * passes by (quern/attention.h). Keys and queries are those that attention is given, so nothing depends on
 * how pages keep them or for how long; probabilities are computed from them by the definition, after the
 * engine was left to others. Any thread. */
#ifndef QN_ENGINE_CLIENTS_SNAPSHOT_H
#define QN_ENGINE_CLIENTS_SNAPSHOT_H

#include <quern/attention.h>

#include "engine/clients/generate.h"

/* The prompt is a single row. Options are checked but for layers and adapter. As qn_attention_snapshot_new;
 * what it returns frees itself by its release. */
qn_status qn_snapshot_take(qn_engine *e, qn_scheduler *scheduler, const qn_run_prompt *prompt,
                           const qn_snapshot_options *options, qn_attention_snapshot **out);

#endif
