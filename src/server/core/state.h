/* What routes and all behind them share: the server with its model. Loop thread only, but for `wake` and
 * `ready`. */
#ifndef QN_SERVER_CORE_STATE_H
#define QN_SERVER_CORE_STATE_H

#include <quern/quern.h>
#include <stdatomic.h>

#include "server/core/metrics.h"
#include "server/core/request.h"
#include "server/core/workers.h"
#include "server/http/http_server.h"
#include "server/server.h"
#include "text/chat/chat_fit.h"

typedef struct qn_ready qn_ready;
struct qn_slots;

/* What a computing thread puts on the server's list to be looked at by the loop: once, until it was. */
struct qn_ready {
    qn_server *server;
    void (*look)(qn_ready *r); /* loop thread */
    atomic_int is_listed;
    qn_ready *next;
};

struct qn_server {
    const qn_server_options *options;
    qn_http_server http;
    qn_wake wake;
    qn_workers *workers;      /* milliseconds */
    qn_workers *slow_workers; /* whatever it takes */
    _Atomic(qn_ready *) ready;
    qn_model *model; /* NULL: not loaded yet */
    qn_model_info info;
    qn_chat_traits traits;             /* of the model's chat template; set before model is */
    int64_t created_s;                 /* when the model was loaded, by the calendar */
    int64_t started_s;                 /* when the server began */
    struct qn_look_ahead *look_aheads; /* that are pending, the oldest first */
    int64_t n_generating;              /* choices of requests that are computed or wait for it */
    int64_t n_look_aheads;             /* that are not freed */
    qn_archive *archive;               /* NULL: nothing is stored */
    struct qn_completion *background;  /* answers that nobody waits for, from the newest on */
    struct qn_batches *batches;        /* that are computed; NULL: nothing is stored */
    struct qn_slots *slots;            /* NULL: no folder for them, or no model yet */
    qn_held *held;                     /* memory of requests that are not answered */
    qn_server_metrics metrics;
};

/* What bounds requests; the model must be there. Any thread. */
qn_api_request_limits qn_server_request_limits(const qn_server *s);
/* Who owns what this exchange's key makes: qn_archive_name_owner. Any thread. */
void qn_server_owner(const qn_server *s, int key, char owner[QN_ARCHIVE_OWNER_MAX]);
/* Any thread; never waits. r must live until its `look` was called or the list was looked through. */
void qn_server_list(qn_ready *r);
/* Looks through the list. */
void qn_server_look(qn_server *s);

#endif
