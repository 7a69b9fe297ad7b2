/* Prefixes of sequences: what the prefix tree (cache/tree.h) gives to a sequence and gets from it.
 *
 * A prefix is tokens and pictures under one adapter, one set of RoPE frequencies and one salt. A sequence with pictures
 * takes part if they are identified (qn_images_identify); it is never cut between tokens that see each other. Pages of
 * full attention are
 * kept as they come. Where layers see a window, or carry a recurrent state, only some points of a sequence
 * can be gone on from, and keeping one costs memory: the caller chooses them. The leader's thread. */
#ifndef QN_ENGINE_MACHINE_PREFIXES_H
#define QN_ENGINE_MACHINE_PREFIXES_H

#include "engine/machine/engine.h"

/* The sequence, which has no tokens yet, gets the longest prefix of ids[0..n_max) that can be gone on from.
 * Returns how many tokens that is; 0 where anything fails. Its adapter, expectation and images are set before. */
int64_t qn_sequence_attach(qn_sequence *s, const char *salt, const int32_t *ids, int64_t n_max);
/* The tree keeps what the sequence has computed, which is ids; as far as memory goes. writer: whose it is
 * (qn_engine_forget); cost_ns: what a token costs to compute. */
void qn_sequence_remember(qn_sequence *s, const char *salt, const int32_t *ids, uint64_t writer,
                          int64_t cost_ns);
/* The tree keeps the first n of the sequence's tokens, as far as they are usable, for ttl_ms (qn_tree_hold). */
void qn_sequence_hold(qn_sequence *s, const char *salt, const int32_t *ids, int64_t n, int64_t ttl_ms);
/* What this writer left is not to be used any more: pages of it that others use are poisoned. */
void qn_engine_forget(qn_engine *e, uint64_t writer);
/* The sequence gave logits that are no numbers. What it was given of the tree may be the reason, whoever
 * wrote that: nobody is given it any more, and pages of it that others use are poisoned, as is all that the
 * sequence holds. ids: its own, from its first one on; NULL: they are gone, and only what it holds is
 * poisoned. Returns 0, and does nothing, where it was given nothing. */
int qn_sequence_blame(qn_sequence *s, const char *salt, const int32_t *ids);
/* Does the sequence hold anything that is poisoned? */
int qn_sequence_is_poisoned(const qn_sequence *s);
/* Of pages that prefixes had to give up since the engine was opened. */
size_t qn_engine_evicted_bytes(qn_engine *e);
/* Is there a prefix tree? */
int qn_engine_has_tree(const qn_engine *e);
/* Are there recurrent layers? */
int qn_engine_has_state(const qn_engine *e);
/* Does it cost memory to keep a point of a sequence? */
int qn_engine_keeps_points(const qn_engine *e);
/* Are there pages and memory for a sequence of n_ids tokens, beside those in use? */
int qn_engine_has_room(qn_engine *e, int64_t n_ids);

#endif
