/* What handles are made of, for handles.c and for who writes them to files. */
#ifndef QN_ENGINE_CLIENTS_HANDLE_PARTS_H
#define QN_ENGINE_CLIENTS_HANDLE_PARTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/clients/handles.h"
#include "engine/machine/engine_parts.h"

/* Tokens of sequences that begin alike. ids[0..n) never change; who holds its first n may append. */
typedef struct qn_token_log {
    int64_t references, n, capacity;
    struct qn_token_log *next; /* of those that are kept for reuse */
    int32_t ids[];
} qn_token_log;

struct qn_handle {
    qn_sequence sequence; /* what is computed: the first sequence.length tokens */
    int64_t n_ids;        /* all tokens: log->ids[0..n_ids) */
    qn_token_log *log;    /* NULL: no tokens */
    qn_handle *next;      /* of those that are kept for reuse */
};

typedef struct qn_handle_pass qn_handle_pass; /* handle_pass.c */

struct qn_handles {
    qn_engine *engine;
    qn_scheduler *scheduler;
    pthread_mutex_t lock; /* of what follows, and of references and lengths of logs */
    qn_handle *unused;
    qn_token_log *unused_logs;
    size_t held_bytes;            /* of objects and logs, in the ledger */
    qn_handle_pass *first, *last; /* that wait, in order of arrival */
    atomic_int is_computing;      /* somebody does, for all who wait */
    atomic_llong n_arrived;       /* passes ever put into the queue */
    pthread_t leader;             /* who computed last; it is waited for until then, by qn_clock_ns */
    atomic_llong leader_due_ns;
    int n_looking;     /* threads that wait awake */
    int n_spare_cores; /* that are left for them beside the engine's threads */
    /* ---- of who computes ---- */
    int64_t due, due_soon;  /* n_arrived when those of the last step are back; when those are who are awake */
    int64_t step_ns;        /* how long it took */
    int n_missed, n_hasty;  /* they did not come in time, so often; so many steps do not wait for them */
    qn_feed *feeds;         /* [max_sequences] */
    qn_handle_pass **batch; /* [max_sequences] */
};

/* An object without tokens, whose adapter is held: by name, or (name NULL) the default one. */
qn_status qn_handle_new(qn_handles *h, const char *adapter, qn_handle **out);
/* handle gets the log of from's first n_from tokens and then ids[0..n). from may be NULL. */
qn_status qn_handle_put_ids(qn_handles *h, qn_handle *handle, const qn_handle *from, int64_t n_from,
                            const int32_t *ids, int64_t n);
/* An object that holds nothing. */
qn_status qn_handle_take(qn_handles *h, qn_handle **out);
/* The empty handle gets what is computed of from's first n tokens, as far as it is of use; but for the slot.
 */
qn_status qn_handle_share(qn_handle *handle, const qn_handle *from, int64_t n);
/* QN_E_DEVICE: it is poisoned. */
qn_status qn_handle_check_poison(const qn_handle *handle);
/* Is what the handle holds computed by a pass that failed? */
int qn_handle_is_poisoned(const qn_handle *handle);

/* The one that waits behind it; the lock is held. */
const qn_handle_pass *qn_handle_pass_next(const qn_handle_pass *p);

#endif
