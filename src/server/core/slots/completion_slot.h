/* The slot of a completion: that of its first choice. */
#ifndef QN_SERVER_CORE_SLOTS_COMPLETION_SLOT_H
#define QN_SERVER_CORE_SLOTS_COMPLETION_SLOT_H

#include "server/core/completion.h"

/* Takes a slot for a prompt, if the server has slots. On the worker that opens the completion. */
qn_status qn_completion_take_slot(qn_completion *c, const int32_t *ids, int64_t n_ids);
/* The first choice has this token. Loop thread. */
void qn_completion_note_slot(qn_completion *c, int32_t id);
/* The first choice has ended, or nothing more comes of it: the slot has its tokens now. Called twice it does nothing. */
void qn_completion_give_slot(qn_completion *c);

#endif
