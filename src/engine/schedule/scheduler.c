/* Who leads. */
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/schedule/scheduler_parts.h"

enum { TICK_NS = 20000000 /* how often those who wait look at clocks and cancellations */ };

/* ---- waiting ------------------------------------------------------------------------------------------ */

static void join(qn_scheduler *s, qn_waiter *w)
{
    w->thread = pthread_self();
    w->next = NULL;
    w->previous = s->last;
    *(s->last ? &s->last->next : &s->first) = w;
    s->last = w;
    s->n_pressing += w->is_pressing;
    if (w->client) w->client->waiter = w;
}

static void part(qn_scheduler *s, qn_waiter *w)
{
    *(w->previous ? &w->previous->next : &s->first) = w->next;
    *(w->next ? &w->next->previous : &s->last) = w->previous;
    s->n_pressing -= w->is_pressing;
    if (w->client) w->client->waiter = NULL;
}

static void tick(qn_scheduler *s, pthread_cond_t *cond)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += TICK_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(cond, &s->lock, &until);
}

/* ---- leading ------------------------------------------------------------------------------------------ */

/* The lock is held for what follows. */

static int is_leading(const qn_scheduler *s)
{
    return s->is_led && pthread_equal(s->leader, pthread_self());
}

static void begin_leading(qn_scheduler *s)
{
    s->is_led = 1;
    s->leader = pthread_self();
}

/* The lead goes to whom nobody else can help, then to the scheduler's own thread, then to who has waited
 * longest. It passes from hand to hand, so that nobody who is woken finds it taken. idle: there is nothing to
 * compute, so that the others may go on waiting. */
static void hand_over(qn_scheduler *s, int idle)
{
    qn_waiter *w = s->first;
    while (w && s->n_pressing && !w->is_pressing) w = w->next;
    if (!s->n_pressing && (s->has_thread || idle)) w = NULL;
    s->is_led = 0;
    if (w) {
        part(s, w);
        w->is_granted = s->is_led = 1;
        s->leader = w->thread;
        pthread_cond_signal(&w->changed);
    } else if (s->has_thread) {
        pthread_cond_signal(&s->work);
    }
}

static void publish(qn_scheduler *s)
{
    s->now.n_active = s->active.n;
    s->now.n_queued = s->queued.n;
    s->figures = s->now;
}

/* Tells all clients that were touched. Their owners cannot let go of them before the lead is handed over. */
static void announce(qn_scheduler *s)
{
    for (qn_client *c = s->touched; c; c = c->next_touched) {
        c->is_touched = 0;
        c->has_signal = 1;
        if (c->waiter) {
            qn_waiter *w = c->waiter;
            part(s, w);
            pthread_cond_signal(&w->changed);
        }
    }
    publish(s);
}

/* Those that were closed by the leader within its own step, or by what it called since: nothing of them is in
 * use now. Without the lock. Returns 0: there were none. */
static int let_go(qn_scheduler *s)
{
    qn_client *quitting = s->quitting;
    s->quitting = NULL;
    if (!quitting) return 0;
    qn_admission_receive(s); /* they may have come within the step */
    for (qn_client *c = quitting, *next; c; c = next) {
        next = c->next_quitting;
        for (int64_t i = 0; i < c->n_quitting; i++) qn_batch_drop(s, &c->quitting[i]);
        c->quit(c);
    }
    return 1;
}

/* One step, without the lock. Returns 0 when there was nothing to do. */
static int step(qn_scheduler *s, qn_client *client)
{
    pthread_mutex_unlock(&s->lock);
    int did = qn_batch_step(s, client);
    pthread_mutex_lock(&s->lock);
    announce(s);
    qn_client *touched = s->touched;
    qn_request *ended = s->ended;
    s->touched = NULL;
    s->ended = NULL;
    pthread_mutex_unlock(&s->lock);
    for (qn_client *c = touched, *next; c; c = next) {
        next = c->next_touched;
        if (c->notify) c->notify(c->notify_user);
    }
    for (qn_request *r = ended, *next; r; r = next) {
        next = r->next;
        atomic_store_explicit(&r->is_settled, 1, memory_order_release);
    }
    const int any = let_go(s);
    pthread_mutex_lock(&s->lock);
    if (ended) pthread_cond_broadcast(&s->settled);
    if (any) publish(s);
    return did;
}

static qn_status fail_leading(void)
{
    return qn_fail(QN_E_ARG, "a function that receives logits must not compute with the same model");
}

qn_status qn_scheduler_check_thread(qn_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    int leading = is_leading(s);
    pthread_mutex_unlock(&s->lock);
    return leading ? fail_leading() : QN_OK;
}

qn_status qn_scheduler_wait(qn_scheduler *s, qn_client *client, int must_lead)
{
    int idle = 0, granted = 0;
    pthread_mutex_lock(&s->lock);
    if (is_leading(s)) {
        pthread_mutex_unlock(&s->lock);
        return fail_leading();
    }
    while (!client->has_signal) {
        if (granted || (!idle && !s->is_led && (must_lead || !s->has_thread))) {
            begin_leading(s);
            granted = 0;
            do idle = !step(s, client);
            while (!idle && !client->has_signal && !s->n_pressing);
            hand_over(s, idle);
            continue;
        }
        qn_waiter w = {.client = client, .is_pressing = must_lead && !idle};
        pthread_cond_init(&w.changed, &s->clock);
        join(s, &w);
        tick(s, &w.changed);
        granted = w.is_granted;
        if (!granted && client->waiter == &w) part(s, &w);
        pthread_cond_destroy(&w.changed);
        idle = 0;
    }
    if (granted) hand_over(s, 0);
    client->has_signal = 0;
    pthread_mutex_unlock(&s->lock);
    return QN_OK;
}

qn_status qn_scheduler_enter(qn_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    if (is_leading(s)) {
        pthread_mutex_unlock(&s->lock);
        return fail_leading();
    }
    if (s->is_led) {
        qn_waiter w = {.is_pressing = 1};
        pthread_cond_init(&w.changed, &s->clock);
        join(s, &w);
        while (!w.is_granted) pthread_cond_wait(&w.changed, &s->lock);
        pthread_cond_destroy(&w.changed);
    }
    begin_leading(s);
    pthread_mutex_unlock(&s->lock);
    return QN_OK;
}

void qn_scheduler_leave(qn_scheduler *s)
{
    const int any = let_go(s);
    pthread_mutex_lock(&s->lock);
    if (any) publish(s);
    hand_over(s, 0);
    pthread_mutex_unlock(&s->lock);
}

/* ---- its own thread ----------------------------------------------------------------------------------- */

static void *lead_for_all(void *user)
{
    qn_scheduler *s = user;
    pthread_mutex_lock(&s->lock);
    while (!s->should_end) {
        if (s->is_led) { /* hand_over tells when it is free */
            pthread_cond_wait(&s->work, &s->lock);
            continue;
        }
        int idle;
        begin_leading(s);
        do idle = !step(s, NULL);
        while (!idle && !s->n_pressing && !s->should_end);
        hand_over(s, idle);
        if (s->should_end || s->is_led || !idle) continue;
        atomic_store(&s->is_asleep, 1);
        if (!qn_inbox_has(&s->inbox) && !atomic_exchange(&s->is_stirred, 0)) {
            if (s->figures.n_active + s->figures.n_queued > 0)
                tick(s, &s->work);
            else
                pthread_cond_wait(&s->work, &s->lock);
        }
        atomic_store(&s->is_asleep, 0);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void qn_scheduler_stir(qn_scheduler *s)
{
    atomic_store(&s->is_stirred, 1);
    if (!atomic_load(&s->is_asleep)) return;
    pthread_mutex_lock(&s->lock);
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

/* ---- requests ----------------------------------------------------------------------------------------- */

qn_status qn_scheduler_submit(qn_scheduler *s, int64_t n, qn_request *requests)
{
    const int64_t places = qn_engine_get_info(s->engine)->max_sequences;
    atomic_llong *count = qn_request_is_idle(requests) ? &s->n_idle : &s->n_open;
    int64_t open = atomic_fetch_add(count, n);
    if (count == &s->n_idle)
        open += atomic_load(&s->n_open); /* those leave room for others, not the other way */
    if (s->max_queue && open + n > places + s->max_queue) {
        atomic_fetch_sub(count, n);
        return qn_fail(QN_E_FULL, "the queue is full: %lld requests are open, %lld may run and %lld wait",
                       (long long)open, (long long)places, (long long)s->max_queue);
    }
    int64_t now = qn_clock_ns();
    for (int64_t i = 0; i < n; i++) {
        atomic_store_explicit(&requests[i].submitted_ns, now, memory_order_relaxed);
        qn_inbox_send(&s->inbox, &requests[i].letter);
    }
    qn_scheduler_stir(s);
    return QN_OK;
}

/* Have all ended? Then whoever leads lets go of them at the end of its step, which may be computing others:
 * this thread sleeps until then. */
static int are_settled(qn_scheduler *s, int64_t n, const qn_request *requests)
{
    for (int64_t i = 0; i < n; i++)
        if (!atomic_load_explicit(&requests[i].is_done, memory_order_acquire)) return 0;
    for (int64_t i = 0; i < n; i++) {
        if (atomic_load_explicit(&requests[i].is_settled, memory_order_acquire)) continue;
        pthread_mutex_lock(&s->lock);
        while (!atomic_load_explicit(&requests[i].is_settled, memory_order_acquire))
            pthread_cond_wait(&s->settled, &s->lock);
        pthread_mutex_unlock(&s->lock);
    }
    return 1;
}

void qn_scheduler_quit(qn_scheduler *s, qn_client *client, int64_t n, qn_request *requests,
                       void (*quit)(qn_client *client))
{
    pthread_mutex_lock(&s->lock);
    int within = is_leading(s);
    pthread_mutex_unlock(&s->lock);
    if (within) { /* the step may be computing them: at its end */
        for (int64_t i = 0; i < n; i++) {
            atomic_store(&requests[i].is_unwanted, 1);
            requests[i].cancel = NULL; /* it goes with its owner, and a step may come before */
        }
        client->notify = NULL;
        client->quit = quit;
        client->n_quitting = n;
        client->quitting = requests;
        client->next_quitting = s->quitting;
        s->quitting = client;
        return;
    }
    if (are_settled(s, n, requests)) {
        quit(client);
        return;
    }
    qn_scheduler_enter(s);
    qn_admission_receive(s);
    for (int64_t i = 0; i < n; i++) qn_batch_drop(s, &requests[i]);
    pthread_mutex_lock(&s->lock);
    publish(s);
    pthread_mutex_unlock(&s->lock);
    qn_scheduler_leave(s);
    quit(client);
}

void qn_scheduler_get_figures(qn_scheduler *s, qn_figures *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->figures;
    pthread_mutex_unlock(&s->lock);
    out->n_queued = atomic_load(&s->n_open) + atomic_load(&s->n_idle) - out->n_active;
    if (out->n_queued < 0) out->n_queued = 0; /* active ones have ended since the last step */
}

qn_status qn_scheduler_new(qn_engine *e, const qn_scheduler_options *options, qn_scheduler **out)
{
    const size_t n = (size_t)qn_engine_get_info(e)->max_sequences;
    qn_scheduler *s = qn_calloc(1, sizeof *s);
    if (!s) return QN_E_NOMEM;
    s->engine = e;
    qn_engine_set_meanwhile(e, qn_batch_prepare_forms, s);
    s->max_queue = options->max_queue;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&s->clock);
    pthread_condattr_setclock(&s->clock, CLOCK_MONOTONIC);
    pthread_cond_init(&s->work, &s->clock);
    pthread_cond_init(&s->settled, NULL);
    s->feeds = qn_alloc_array(n, sizeof *s->feeds);
    s->fed = qn_alloc_array(n, sizeof *s->fed);
    qn_status status = s->feeds && s->fed ? QN_OK : QN_E_NOMEM;
    if (status == QN_OK && options->background) {
        s->has_thread = 1;
        if (qn_mem_fails() || pthread_create(&s->thread, NULL, lead_for_all, s) != 0) {
            s->has_thread = 0;
            status = qn_fail(QN_E_NOMEM, "the system cannot start another thread, and the model needs one");
        }
    }
    if (status != QN_OK) {
        qn_scheduler_free(s);
        return status;
    }
    *out = s;
    return QN_OK;
}

void qn_scheduler_free(qn_scheduler *s)
{
    if (!s) return;
    if (s->has_thread) {
        pthread_mutex_lock(&s->lock);
        s->should_end = 1;
        pthread_cond_signal(&s->work);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    qn_engine_set_meanwhile(s->engine, NULL, NULL);
    pthread_cond_destroy(&s->settled);
    pthread_cond_destroy(&s->work);
    pthread_condattr_destroy(&s->clock);
    pthread_mutex_destroy(&s->lock);
    qn_free(s->feeds);
    qn_free(s->fed);
    qn_free(s);
}
