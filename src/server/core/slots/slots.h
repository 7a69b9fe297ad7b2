/* Slots as llama.cpp's server has them: places by number, each with the tokens of its last prompt and answer.
 *
 * The engine knows no places, and all prompts share one cache. So a slot is a name for a sequence whose state the cache may
 * have: it can be saved, restored and dropped by that name. A request that names no slot gets the one that is most like its
 * prompt, else the one that was used longest ago. A slot belongs to the API key of its last request; for others it is
 * empty. Any thread. */
#ifndef QN_SERVER_CORE_SLOTS_SLOTS_H
#define QN_SERVER_CORE_SLOTS_SLOTS_H

#include <quern/cache.h>

#include "base/buf.h"
#include "server/core/held.h"

typedef struct qn_slots qn_slots;

/* Whose a sequence is. */
typedef struct {
    int key; /* of the API keys; -1: none */
    qn_prefix_options options;
} qn_slot_owner;

/* A sequence of a slot, copied. */
typedef struct {
    int32_t *ids; /* [n_ids] */
    int64_t n_ids;
    char *adapter, *salt; /* NULL: as qn_prefix_options has it */
} qn_slot_sequence;

/* held, borrowed, counts the tokens. NULL: nothing does. */
qn_status qn_slots_new(int64_t n, qn_held *held, qn_slots **out);
void qn_slots_free(qn_slots *s);
int64_t qn_slots_count(const qn_slots *s);
/* A request with the prompt ids[0..n_ids) begins. wanted: the slot that it names, which is there; -1: none. Returns the
 * slot, which is busy until qn_slots_give. */
int64_t qn_slots_take(qn_slots *s, const qn_slot_owner *owner, int64_t wanted, const int32_t *ids,
                      int64_t n_ids);
/* The request has ended: the slot has these tokens now. It is empty if there is no memory for them. */
void qn_slots_give(qn_slots *s, int64_t id, const qn_slot_owner *owner, const int32_t *ids, int64_t n_ids);
/* The slot has these tokens now, without a request. */
void qn_slots_set(qn_slots *s, int64_t id, const qn_slot_owner *owner, const int32_t *ids, int64_t n_ids);
/* The tokens that a slot has for this key, to be freed; takes: it has none afterwards. */
qn_status qn_slots_get(qn_slots *s, int64_t id, int key, int takes, qn_slot_sequence *out);
void qn_slot_sequence_free(qn_slot_sequence *sequence);
/* Does a request run on it? *n_ids, which may be NULL: the tokens that it has. */
int qn_slots_look(qn_slots *s, int64_t id, int64_t *n_ids);

#endif
