#include "engine/slots.h"

#include <time.h>

#include "base/mem.h"

enum { POLL_NS = 20000000 };

/* A call that waits; lives on its stack. */
typedef struct waiter {
    struct waiter *next;
} waiter;

struct qn_slots {
    pthread_mutex_t lock; /* guards all */
    pthread_cond_t changed, turn_ended;
    uint64_t next_turn, turn; /* numbers drawn by those who wait for the turn; the one that has it */
    pthread_t computing;      /* who has it, while depth is not 0 */
    int depth;
    int64_t count, free;
    qn_slots_holder *holders;
    waiter *first, *last; /* in order of arrival */
};

qn_status qn_slots_new(int64_t n, qn_slots **out)
{
    qn_slots *s = qn_calloc(1, sizeof *s);
    if (!s) return QN_E_NOMEM;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_cond_init(&s->turn_ended, NULL);
    pthread_mutex_init(&s->lock, NULL);
    s->count = s->free = n;
    *out = s;
    return QN_OK;
}

void qn_slots_free(qn_slots *s)
{
    if (!s) return;
    pthread_cond_destroy(&s->changed);
    pthread_cond_destroy(&s->turn_ended);
    pthread_mutex_destroy(&s->lock);
    qn_free(s);
}

int64_t qn_slots_count(const qn_slots *s)
{
    return s->count;
}

/* Would n places be free if every other thread gave its own back? */
static int can_come_true(const qn_slots *s, int64_t n)
{
    int64_t possible = s->count;
    for (const qn_slots_holder *h = s->holders; h; h = h->next)
        if (pthread_equal(h->thread, pthread_self())) possible -= h->n;
    return possible >= n;
}

static void leave_queue(qn_slots *s, waiter *w)
{
    waiter **link = &s->first, *before = NULL;
    while (*link != w) {
        before = *link;
        link = &before->next;
    }
    *link = w->next;
    if (s->last == w) s->last = before;
}

static void nap(qn_slots *s)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += POLL_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&s->changed, &s->lock, &until);
}

qn_status qn_slots_take(qn_slots *s, int64_t n, qn_slots_holder *h, qn_slots_stop_fn *stop, void *user)
{
    waiter w = {0};
    qn_status status = QN_OK;
    QN_TRY(qn_slots_check_thread(s));
    pthread_mutex_lock(&s->lock);
    if (s->last)
        s->last->next = &w;
    else
        s->first = &w;
    s->last = &w;
    while (s->first != &w || s->free < n) {
        if (!can_come_true(s, n)) {
            status =
                qn_fail(QN_E_FULL,
                        "this thread holds the model's sequences in generations that are still open; close "
                        "one, or open the model with more than %lld parallel_slots",
                        (long long)s->count);
            break;
        }
        pthread_mutex_unlock(&s->lock);
        status = stop(user);
        pthread_mutex_lock(&s->lock);
        if (status != QN_OK) break;
        if (s->first != &w || s->free < n) nap(s);
    }
    leave_queue(s, &w);
    if (status == QN_OK) {
        s->free -= n;
        *h = (qn_slots_holder){.n = n, .thread = pthread_self(), .next = s->holders};
        if (s->holders) s->holders->previous = h;
        s->holders = h;
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return status;
}

void qn_slots_give(qn_slots *s, qn_slots_holder *h)
{
    if (!h->n) return;
    pthread_mutex_lock(&s->lock);
    s->free += h->n;
    if (h->previous)
        h->previous->next = h->next;
    else
        s->holders = h->next;
    if (h->next) h->next->previous = h->previous;
    *h = (qn_slots_holder){0};
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static int has_turn(const qn_slots *s)
{
    return s->depth && pthread_equal(s->computing, pthread_self());
}

void qn_slots_begin_turn(qn_slots *s, qn_slots_holder *h)
{
    pthread_mutex_lock(&s->lock);
    if (h) h->thread = pthread_self();
    if (!has_turn(s)) {
        uint64_t mine = s->next_turn++;
        while (s->turn != mine) pthread_cond_wait(&s->turn_ended, &s->lock);
        s->computing = pthread_self();
    }
    s->depth++;
    pthread_mutex_unlock(&s->lock);
}

void qn_slots_end_turn(qn_slots *s)
{
    pthread_mutex_lock(&s->lock);
    if (--s->depth == 0) {
        s->turn++;
        pthread_cond_broadcast(&s->turn_ended);
    }
    pthread_mutex_unlock(&s->lock);
}

qn_status qn_slots_check_thread(qn_slots *s)
{
    pthread_mutex_lock(&s->lock);
    int has = has_turn(s);
    pthread_mutex_unlock(&s->lock);
    return has ? qn_fail(QN_E_ARG, "a function that is given logits cannot compute with the same model")
               : QN_OK;
}
