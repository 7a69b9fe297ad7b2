/* Prefixes of sequences: what the prefix tree (cache/tree.h) gives to a sequence and gets from it.
 *
 * A prefix is tokens under one adapter, one set of RoPE frequencies and one salt. Pages of full attention are
 * kept as they come. Where layers see a window, or carry a recurrent state, only some points of a sequence
 * can be gone on from, and keeping one costs memory: the caller chooses them. The leader's thread. */
#ifndef QN_ENGINE_PREFIXES_H
#define QN_ENGINE_PREFIXES_H

#include "engine/engine.h"

/* Does it cost memory to keep a point of a sequence? */
int qn_engine_keeps_points(const qn_engine *e);
/* Are there pages and memory for a sequence of n_ids tokens, beside those in use? */
int qn_engine_has_room(qn_engine *e, int64_t n_ids);

#endif
