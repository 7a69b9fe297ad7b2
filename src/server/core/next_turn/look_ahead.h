/* The next turn of a chat, computed in idle time.
 *
 * A template may write an answer into the next prompt in another way than the model said it: without its
 * reasoning, or in other tokens. What the next prompt will begin with is then not what the prefix tree knows.
 * So, once an answer is given, the conversation is rendered with it and with two messages that nobody sent;
 * what both renderings begin with is what every next turn begins with, and it is computed with
 * QN_PRIORITY_IDLE, for the same tenant, salt and adapter.
 *
 * Nobody waits for it and nothing depends on it: it begins while no request is under way, what fails is
 * forgotten, at most QN_LOOK_AHEADS_MAX are pending, of which the oldest makes room, and a draining server
 * drops all of them. Loop thread only. */
#ifndef QN_SERVER_CORE_NEXT_TURN_LOOK_AHEAD_H
#define QN_SERVER_CORE_NEXT_TURN_LOOK_AHEAD_H

#include "server/core/completion.h"

enum { QN_LOOK_AHEADS_MAX = 4 };

/* Is what a completion says to be kept for this? */
int qn_look_ahead_is_wanted(const qn_completion *c);
/* The completion has its answer. Takes over what it needs of it: the request is empty afterwards. */
void qn_look_ahead_begin(qn_completion *c);
/* No request is under way: those that are pending are rendered, and handed to the model. */
void qn_look_ahead_start(qn_server *s);
/* All that are pending. They are gone when server->n_look_aheads is 0. */
void qn_look_ahead_drop_all(qn_server *s);

#endif
