#include "server/core/state.h"

void qn_server_list(qn_ready *r)
{
    if (atomic_exchange(&r->is_listed, 1)) return;
    _Atomic(qn_ready *) *list = &r->server->ready;
    r->next = atomic_load(list);
    while (!atomic_compare_exchange_weak(list, &r->next, r)) {
    }
    qn_wake_send(&r->server->wake);
}

void qn_server_look(qn_server *s)
{
    qn_ready *r = atomic_exchange(&s->ready, NULL);
    while (r) {
        qn_ready *next = r->next;
        /* From here on it may be listed again: what comes now is not missed. */
        atomic_store(&r->is_listed, 0);
        r->look(r);
        r = next;
    }
}
