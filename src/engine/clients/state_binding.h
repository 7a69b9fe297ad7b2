/* What an engine's files of state are bound to, for those who write and read them. */
#ifndef QN_ENGINE_CLIENTS_STATE_BINDING_H
#define QN_ENGINE_CLIENTS_STATE_BINDING_H

#include "base/buf.h"
#include "engine/machine/engine_parts.h"
#include "format/state/state_file.h"

enum { QN_STATE_BATCH_BYTES = 4 << 20 /* of units that are copied while others wait */ };

typedef struct {
    qn_state_binding is;
    qn_state_sizes sizes;
    qn_buf set, layout; /* the texts of it */
    char positions[24];
} qn_engine_binding;

/* To be freed, also on failure. */
qn_status qn_engine_bind(const qn_engine *e, uint64_t fingerprint, qn_engine_binding *out);
void qn_engine_binding_free(qn_engine_binding *b);
/* The pool of a group; the one behind the last is that of slots, NULL where no layer is recurrent. */
qn_pages *qn_engine_pool(const qn_engine *e, int group);
/* QN_E_UNSUPPORTED: the engine keeps no prefixes. */
qn_status qn_engine_check_tree(const qn_engine *e);
/* Units that are copied while others wait. */
int64_t qn_state_batch(size_t unit_bytes);

#endif
