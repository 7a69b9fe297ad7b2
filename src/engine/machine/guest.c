#include "engine/machine/guest.h"

#include "engine/machine/engine_parts.h"

qn_status qn_guest_begin(qn_guest *g, qn_engine *e)
{
    *g = (qn_guest){0};
    QN_TRY(qn_sequence_new(e, &g->sequence));
    g->next = e->guests;
    e->guests = g;
    return QN_OK;
}

void qn_guest_end(qn_guest *g, qn_engine *e)
{
    qn_guest **link = &e->guests;
    while (*link && *link != g) link = &(*link)->next;
    if (*link) *link = g->next;
    qn_sequence_free(g->sequence);
    g->sequence = NULL;
}

int qn_guest_give_way(qn_engine *e, const qn_sequence *s)
{
    qn_guest *g = e->guests;
    while (g && (!g->sequence || g->sequence == s)) g = g->next;
    if (!g) return 0;
    qn_sequence_free(g->sequence);
    g->sequence = NULL;
    return 1;
}
