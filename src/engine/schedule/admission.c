/* Whose request becomes active. */
#include <stdio.h>
#include <string.h>

#include "engine/machine/images.h"
#include "engine/schedule/scheduler_parts.h"

enum {
    WORTH_WAITING = 32, /* ids that another request is about to compute */
    MARKED_MAX = 64     /* queued requests that are compared with active ones while there is no place */
};

/* ---- lists -------------------------------------------------------------------------------------------- */

static int goes_before(const qn_request *a, const qn_request *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->number < b->number;
}

void qn_request_list_put(qn_request_list *l, qn_request *r)
{
    qn_request *before = l->last;
    while (before && goes_before(r, before)) before = before->previous;
    r->previous = before;
    r->next = before ? before->next : l->first;
    *(r->previous ? &r->previous->next : &l->first) = r;
    *(r->next ? &r->next->previous : &l->last) = r;
    l->n++;
}

void qn_request_list_remove(qn_request_list *l, qn_request *r)
{
    *(r->previous ? &r->previous->next : &l->first) = r->next;
    *(r->next ? &r->next->previous : &l->last) = r->previous;
    r->previous = r->next = NULL;
    l->n--;
}

int qn_request_is_idle(const qn_request *r)
{
    return r->priority == QN_PRIORITY_IDLE;
}

/* ---- tenants ------------------------------------------------------------------------------------------ */

static const char *tenant_name(const qn_request *r)
{
    return r->tenant ? r->tenant : "";
}

/* Who comes back, or comes anew, has been served as much as the least served of those who are here: waiting
 * is not saved up. Where there are too many, the last place is everybody else's. */
static int find_tenant(qn_scheduler *s, const char *name)
{
    int64_t least = INT64_MAX;
    int empty = QN_TENANTS_MAX - 1;
    for (int i = QN_TENANTS_MAX - 1; i >= 0; i--) {
        const qn_tenant *t = &s->tenants[i];
        if (t->n_live && t->n_served < least) least = t->n_served;
        if (!t->n_live) empty = i;
    }
    for (int i = 0; i < QN_TENANTS_MAX; i++) {
        qn_tenant *t = &s->tenants[i];
        if (strncmp(t->name, name, sizeof t->name - 1) != 0) continue;
        if (!t->n_live && least != INT64_MAX && t->n_served < least) t->n_served = least;
        return i;
    }
    qn_tenant *t = &s->tenants[empty];
    if (!t->n_live) {
        *t = (qn_tenant){.n_served = least == INT64_MAX ? 0 : least};
        snprintf(t->name, sizeof t->name, "%s", name);
    }
    return empty;
}

void qn_admission_count(qn_scheduler *s, qn_request *r, int64_t n_tokens)
{
    if (!qn_request_is_idle(r)) s->tenants[r->tenant_index].n_served += n_tokens;
}

void qn_admission_forget(qn_scheduler *s, qn_request *r)
{
    if (!qn_request_is_idle(r)) s->tenants[r->tenant_index].n_live--;
}

/* ---- arrival ------------------------------------------------------------------------------------------ */

void qn_admission_receive(qn_scheduler *s)
{
    for (qn_letter *l = qn_inbox_take(&s->inbox), *next; l; l = next) {
        qn_request *r = (qn_request *)l;
        next = l->next;
        r->number = ++s->n_numbers;
        r->tenant_index = find_tenant(s, tenant_name(r));
        if (!qn_request_is_idle(r)) s->tenants[r->tenant_index].n_live++;
        qn_request_list_put(&s->queued, r);
    }
}

/* ---- choice ------------------------------------------------------------------------------------------- */

static int may_share(const qn_request *a, const qn_request *b)
{
    return qn_request_uses_tree(a) && qn_request_uses_tree(b) && !a->begins_anew && !b->begins_anew &&
           a->adapter == b->adapter && strcmp(a->salt ? a->salt : "", b->salt ? b->salt : "") == 0;
}

static int64_t shared_ids(const qn_request *a, const qn_request *b)
{
    int64_t n = a->n_ids < b->n_ids ? a->n_ids : b->n_ids, i = 0;
    while (i < n && a->ids[i] == b->ids[i]) i++;
    return qn_images_common(a->images, b->images, i);
}

/* Is another request about to compute much of what this one begins with? That one is then told to leave it
 * in the prefix tree. Who is waited for already is waited for to that point, however little is left: many who
 * wait would all compute it. */
static int should_wait(qn_scheduler *s, qn_request *r)
{
    for (qn_request *a = s->active.first; a; a = a->next) {
        int64_t done = qn_sequence_length(a->sequence);
        int is_awaited = a->shared_end > done;
        if (!is_awaited && a->n_ids - done <= WORTH_WAITING) continue;
        if (a->priority < r->priority || !may_share(a, r)) continue;
        if (r->compared_with != a->number) {
            r->compared_with = a->number;
            r->n_shared = shared_ids(a, r);
            if (r->n_shared == r->n_ids) r->n_shared--; /* the last id's logits are wanted */
            if (!r->sampler && r->logits_from < r->n_shared) r->n_shared = r->logits_from;
            const int64_t wanted = qn_prompt_logprobs_wanted(r->prompt_logprobs);
            if (wanted >= 0 && wanted < r->n_shared) r->n_shared = wanted;
            r->n_shared = qn_images_shrink(r->images, r->n_shared);
        }
        if (r->n_shared < done + WORTH_WAITING && !(is_awaited && r->n_shared >= a->shared_end)) continue;
        if (!a->shared_end || a->shared_end > r->n_shared || a->shared_end <= done)
            a->shared_end = r->n_shared;
        return 1;
    }
    return 0;
}

void qn_admission_mark(qn_scheduler *s)
{
    int n = 0;
    for (qn_request *r = s->queued.first; r && n < MARKED_MAX; r = r->next, n++) should_wait(s, r);
}

qn_request *qn_admission_choose(qn_scheduler *s)
{
    qn_request *best = NULL;
    for (qn_request *r = s->queued.first; r; r = r->next) {
        if (best && r->priority < best->priority) break;
        if (r->sampler && qn_ring_room(&r->ring) <= 0) continue; /* its owner has to read first */
        if (should_wait(s, r)) continue;
        if (!best || s->tenants[r->tenant_index].n_served < s->tenants[best->tenant_index].n_served) best = r;
    }
    return best;
}
