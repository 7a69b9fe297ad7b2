#include "engine/schedule/inbox.h"

#include <stddef.h>

void qn_inbox_send(qn_inbox *in, qn_letter *letter)
{
    letter->next = atomic_load_explicit(&in->last, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&in->last, &letter->next, letter, memory_order_seq_cst,
                                                  memory_order_relaxed))
        ;
}

qn_letter *qn_inbox_take(qn_inbox *in)
{
    qn_letter *last = atomic_exchange_explicit(&in->last, NULL, memory_order_acquire), *first = NULL;
    while (last) {
        qn_letter *before = last->next;
        last->next = first;
        first = last;
        last = before;
    }
    return first;
}

int qn_inbox_has(qn_inbox *in)
{
    return atomic_load_explicit(&in->last, memory_order_seq_cst) != NULL;
}
