#include "server/server.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/core/completion.h"
#include "server/core/conversation.h"
#include "server/core/next_turn/look_ahead.h"
#include "server/core/slots/slots.h"
#include "server/files/batch_run.h"
#include "server/http/connection.h"
#include "server/responses/stored.h"
#include "server/routes.h"

enum { WORKERS = 3, SLOW_WORKERS = 2 };

/* The model is opened by a worker. */
typedef struct {
    qn_job job;
    qn_server *server;
    qn_model *model;
    qn_model_info info;
    qn_chat_traits traits;
    qn_status status;
    char why[QN_ERROR_TEXT_MAX];
} loading;

typedef struct {
    qn_server server;
    qn_held held;
    struct event *wake_event, *signals[2];
    loading load;
    int is_loading;
    qn_status status; /* why it ends */
    char why[QN_ERROR_TEXT_MAX];
} running;

/* ---- what threads have for the loop -------------------------------------------------------------------- */

static void on_wake(evutil_socket_t file, short what, void *user)
{
    running *r = user;
    (void)file, (void)what;
    qn_wake_take(&r->server.wake);
    qn_server_look(&r->server);
    qn_workers_collect(r->server.workers);
    qn_workers_collect(r->server.slow_workers);
}

/* ---- what happens to requests -------------------------------------------------------------------------- */

static void answered(const qn_exchange *ex, int is_gone)
{
    qn_server_metrics *m = &ex->server->metrics;
    if (is_gone) {
        m->n_gone++;
        return;
    }
    qn_metrics_count(m, ex->route ? ex->route->path : "", ex->status);
    qn_histogram_add(&m->whole, (double)(qn_clock_ns() - ex->begin_ns) * 1e-9);
}

/* A draining server may be done; another one has time for what is to come. */
static void ended(qn_server *s)
{
    if (s->http.n_exchanges) return;
    if (!s->http.is_draining)
        qn_look_ahead_start(s);
    else if (qn_connections_are_flushed(&s->http))
        event_base_loopbreak(s->http.base);
}

/* ---- the model ----------------------------------------------------------------------------------------- */

static void load_model(qn_job *job)
{
    loading *l = (loading *)job;
    const qn_server_options *o = l->server->options;
    l->status = o->open(o->user, &l->model);
    if (l->status == QN_OK) l->status = qn_model_get_info(l->model, &l->info);
    if (l->status == QN_OK && l->info.has_chat_template)
        l->status = qn_conversation_find_traits(l->model, &l->info, &l->traits);
    if (l->status != QN_OK) snprintf(l->why, sizeof l->why, "%s", qn_last_error());
}

static void model_loaded(qn_job *job)
{
    loading *l = (loading *)job;
    running *r = (running *)l->server;
    qn_server *s = l->server;
    r->is_loading = 0;
    if (l->status != QN_OK) {
        r->status = l->status;
        memcpy(r->why, l->why, sizeof r->why);
        event_base_loopbreak(s->http.base);
        return;
    }
    if (s->options->slot_folder && qn_slots_new(l->info.parallel_slots, s->held, &s->slots) != QN_OK) {
        r->status = QN_E_NOMEM;
        snprintf(r->why, sizeof r->why, "%s", qn_last_error());
        event_base_loopbreak(s->http.base);
        return;
    }
    s->info = l->info;
    s->traits = l->traits;
    s->model = l->model;
    qn_held_set_model(s->held, l->model);
    s->http.has_model = 1;
    s->created_s = (int64_t)time(NULL);
    qn_batches_step(s);
    if (s->options->say) s->options->say(s->options->user, NULL);
}

/* ---- the end ------------------------------------------------------------------------------------------- */

static void on_signal(evutil_socket_t number, short what, void *user)
{
    running *r = user;
    qn_server *s = &r->server;
    (void)what;
    if (r->is_loading) { /* nothing is half done */
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    if (s->http.is_draining) {
        r->status = QN_E_CANCELLED;
        snprintf(r->why, sizeof r->why, "ended by a second signal");
        event_base_loopbreak(s->http.base);
        return;
    }
    s->http.is_draining = 1;
    qn_log(QN_LOG_INFO, "draining: %lld requests are under way", (long long)s->http.n_exchanges);
    qn_look_ahead_drop_all(s);
    qn_batches_stop(s);
    qn_connections_close(&s->http, 0);
    ended(s);
}

static void say_where(const qn_server *s)
{
    char url[QN_HTTP_URL_MAX];
    for (size_t i = 0; i < s->http.n_listeners; i++) {
        qn_http_server_url(&s->http, i, url);
        if (s->options->say && url[0]) s->options->say(s->options->user, url);
    }
}

static qn_status start(running *r)
{
    qn_server *s = &r->server;
    static const int numbers[] = {SIGTERM, SIGINT};
    QN_TRY(qn_wake_open(&s->wake));
    s->http.base = event_base_new();
    if (!s->http.base) return qn_fail_nomem(0);
    if (s->options->store.folder) QN_TRY(qn_archive_open(&s->options->store, &s->archive));
    if (s->archive) QN_TRY(qn_responses_mend(s->archive));
    if (s->archive) QN_TRY(qn_batches_new(s));
    QN_TRY(qn_http_server_listen(&s->http));
    r->wake_event = event_new(s->http.base, s->wake.file, EV_READ | EV_PERSIST, on_wake, r);
    if (!r->wake_event || event_add(r->wake_event, NULL) != 0) return qn_fail_nomem(0);
    for (int i = 0; i < 2; i++) {
        r->signals[i] = evsignal_new(s->http.base, numbers[i], on_signal, r);
        if (!r->signals[i] || event_add(r->signals[i], NULL) != 0) return qn_fail_nomem(0);
    }
    QN_TRY(qn_workers_new(WORKERS, &s->wake, &s->workers));
    QN_TRY(qn_workers_new(SLOW_WORKERS, &s->wake, &s->slow_workers));
    r->load = (loading){.job = {load_model, model_loaded, NULL}, .server = s};
    r->is_loading = 1;
    qn_workers_push(s->slow_workers, &r->load.job);
    say_where(s);
    return QN_OK;
}

/* What it fails with becomes the reason of the end. */
static qn_status save(running *r)
{
    const qn_status status = r->server.options->save(r->server.options->user, r->load.model);
    if (status != QN_OK) snprintf(r->why, sizeof r->why, "%s", qn_last_error());
    return status;
}

/* Ends what runs, in an order in which nothing is used after it is gone: clients, then jobs, then the model.
 */
static void stop(running *r)
{
    qn_server *s = &r->server;
    qn_http_server_close(&s->http);
    qn_look_ahead_drop_all(s);
    qn_connections_close(&s->http, 1);
    qn_completion_drop_background(s);
    qn_batches_stop(s);
    /* Jobs that end may start others, such as to close what they opened. */
    while (s->workers && (s->http.n_exchanges || s->n_look_aheads || qn_batches_are_busy(s))) {
        struct timeval most = {0, 10000};
        event_base_loopexit(s->http.base, &most);
        event_base_loop(s->http.base, EVLOOP_ONCE);
    }
    qn_workers_free(s->slow_workers);
    qn_workers_free(s->workers);
    qn_batches_free(s);
    qn_archive_close(s->archive);
    if (r->load.model && s->options->save && r->status == QN_OK) r->status = save(r);
    qn_slots_free(s->slots);
    qn_held_set_model(s->held, NULL);
    if (r->load.model) qn_model_close(&r->load.model);
    for (int i = 0; i < 2; i++)
        if (r->signals[i]) event_free(r->signals[i]);
    if (r->wake_event) event_free(r->wake_event);
    if (s->http.base) event_base_free(s->http.base);
    qn_wake_close(&s->wake);
}

static qn_status hold(qn_server *s, size_t size_bytes, size_t whole_bytes)
{
    return qn_held_take(s->held, size_bytes, whole_bytes, 1);
}

static void release(qn_server *s, size_t size_bytes)
{
    qn_held_give(s->held, size_bytes);
}

qn_status qn_server_run(const qn_server_options *options)
{
    running *r = qn_calloc(1, sizeof *r);
    if (!r) return QN_E_NOMEM;
    qn_server *s = &r->server;
    qn_held_start(&r->held, options->machine_bytes);
    s->held = &r->held;
    s->options = options;
    s->started_s = (int64_t)time(NULL);
    s->wake.file = -1;
    s->http = (qn_http_server){.options = &options->http,
                               .tables = qn_server_tables,
                               .n_tables = QN_SERVER_TABLES,
                               .server = s,
                               .hold = hold,
                               .release = release,
                               .answered = answered,
                               .ended = ended,
                               .id_seed = (uint64_t)time(NULL)};
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) == (ssize_t)sizeof seed) s->http.id_seed = seed;
    signal(SIGPIPE, SIG_IGN);
    qn_status status = start(r);
    if (status == QN_OK) {
        event_base_dispatch(s->http.base);
    } else {
        r->status = status;
        snprintf(r->why, sizeof r->why, "%s", qn_last_error());
    }
    stop(r);
    qn_held_end(&r->held);
    status = r->status;
    if (status != QN_OK) qn_fail_copy(status, r->why);
    qn_free(r);
    return status;
}
