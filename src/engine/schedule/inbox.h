/* The way in: requests from any thread to the one that leads (engine/schedule/scheduler.h), without a lock.
 *
 * Senders push onto a list by one atomic exchange each and never wait, whatever the leader is doing; the
 * leader takes all that is there at once, in the order in which it was pushed. Links lie in what is sent, so
 * nothing is allocated. Send: any thread. Take: one thread at a time. */
#ifndef QN_ENGINE_SCHEDULE_INBOX_H
#define QN_ENGINE_SCHEDULE_INBOX_H

#include <stdatomic.h>

typedef struct qn_letter {
    struct qn_letter *next;
} qn_letter;

/* Zeroed: empty. */
typedef struct {
    _Atomic(qn_letter *) last;
} qn_inbox;

/* The letter belongs to the inbox until it is taken. */
void qn_inbox_send(qn_inbox *in, qn_letter *letter);
/* All letters, first sent first, linked by next; NULL: none. */
qn_letter *qn_inbox_take(qn_inbox *in);
/* Was there a letter a moment ago? Any thread. */
int qn_inbox_has(qn_inbox *in);

#endif
