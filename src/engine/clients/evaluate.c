#include "engine/clients/evaluate.h"

#include "base/mem.h"
#include "engine/machine/images.h"
#include "engine/machine/prefixes.h"

typedef struct evaluation evaluation;

typedef struct {
    evaluation *of;
    int64_t row;
} row_sink;

struct evaluation {
    qn_client client; /* first: it is what the scheduler gives back */
    qn_request *requests;
    row_sink *sinks;
    qn_images *images; /* NULL: none */
    qn_ledger *ledger;
    size_t held_bytes;
    int64_t n_rows;
    qn_row_logits_fn *fn;
    void *user;
};

static qn_status pass_on(void *user, int64_t position, int64_t n, float *logits)
{
    const row_sink *sink = user;
    return sink->of->fn(sink->of->user, sink->row, position, n, logits);
}

static void free_requests(qn_client *client)
{
    evaluation *v = (evaluation *)client;
    for (int64_t i = 0; v->requests && i < v->n_rows; i++) qn_request_end(&v->requests[i]);
    qn_free(v->requests);
    qn_free(v->sinks);
    qn_images_free(v->images);
    qn_ledger_release(v->ledger, QN_LEDGER_OTHER, v->held_bytes);
}

static qn_status make_requests(evaluation *v, const qn_engine *e, const qn_evaluation *what)
{
    const int64_t vocabulary = qn_engine_config(e)->vocab_size;
    for (int64_t i = 0; i < v->n_rows; i++) {
        const qn_ids *row = &what->rows[i];
        qn_request *r = &v->requests[i];
        for (int64_t j = 0; j < row->n_ids; j++)
            if (row->ids[j] < 0 || row->ids[j] >= vocabulary)
                return qn_fail(QN_E_ARG, "token id %d at position %lld is outside the vocabulary of %lld",
                               (int)row->ids[j], (long long)j, (long long)vocabulary);
        QN_TRY(qn_request_init(r, row->ids, row->n_ids, 0, 0));
        v->sinks[i] = (row_sink){v, i};
        r->client = &v->client;
        r->row = i;
        r->adapter = what->adapters[i];
        r->evaluate = pass_on;
        r->evaluate_user = &v->sinks[i];
        r->logits_from = what->from ? what->from[i] : what->last_only ? row->n_ids - 1 : 0;
        r->hidden = what->hidden;
        r->own_thread = 1;
        r->no_cache = what->no_cache;
        r->salt = what->salt;
        r->tenant = what->tenant;
        r->priority = what->priority;
        r->cancel = what->cancel;
        r->room = row->n_ids;
        r->images = v->images;
        r->n_unseen = v->images ? (int64_t)what->n_images : 0;
    }
    return QN_OK;
}

/* The pictures of the only row. Its logits are by its own positions, so no place may be expanded. */
static qn_status place_images(evaluation *v, const qn_engine *e, const qn_evaluation *what)
{
    const qn_ids *row = what->rows;
    QN_TRY(qn_images_new(qn_engine_config(e), what->n_images, what->images, row->ids, row->n_ids,
                         qn_engine_get_info(e)->context_size, &v->images));
    if (qn_engine_has_tree(e) && !what->no_cache) QN_TRY(qn_images_identify(v->images));
    const int64_t n = qn_images_prompt(v->images).n_ids;
    if (n == row->n_ids && what->from && qn_images_extend(v->images, what->from[0]) != what->from[0])
        return qn_fail(QN_E_ARG,
                       "logits from position %lld on: it lies between tokens of an image that see each other",
                       (long long)what->from[0]);
    if (n == row->n_ids) return QN_OK;
    return qn_fail(QN_E_ARG,
                   "with a token for each place of the image(s) the row has %lld tokens, but it has %lld",
                   (long long)n, (long long)row->n_ids);
}

static qn_status outcome(const qn_request *r)
{
    if (r->end == QN_END_STOP) return QN_OK;
    if (r->end != QN_END_ERROR) return qn_fail(QN_E_CANCELLED, "cancelled");
    qn_fail_copy(r->failure, r->message ? r->message : qn_status_text(r->failure));
    return r->failure;
}

/* Waits for all, or for the first failure. */
static qn_status wait_for(qn_scheduler *s, evaluation *v)
{
    for (;;) {
        int64_t n_done = 0;
        for (int64_t i = 0; i < v->n_rows; i++) {
            if (!atomic_load_explicit(&v->requests[i].is_done, memory_order_acquire)) continue;
            QN_TRY(outcome(&v->requests[i]));
            n_done++;
        }
        if (n_done == v->n_rows) return QN_OK;
        QN_TRY(qn_scheduler_wait(s, &v->client, 1));
    }
}

qn_status qn_evaluate(qn_scheduler *s, qn_engine *e, const qn_evaluation *what, qn_row_logits_fn *fn,
                      void *user)
{
    const int64_t mark = qn_mem_thread_bytes();
    evaluation v = {.n_rows = what->n_rows, .ledger = qn_engine_ledger(e), .fn = fn, .user = user};
    v.requests = qn_calloc((size_t)v.n_rows, sizeof *v.requests);
    v.sinks = qn_alloc_array((size_t)v.n_rows, sizeof *v.sinks);
    qn_status status = v.requests && v.sinks ? QN_OK : QN_E_NOMEM;
    if (status == QN_OK && what->n_images) status = place_images(&v, e, what);
    if (status == QN_OK) status = make_requests(&v, e, what);
    if (status == QN_OK) {
        const size_t held_bytes = (size_t)(qn_mem_thread_bytes() - mark);
        status = qn_ledger_reserve(v.ledger, QN_LEDGER_OTHER, held_bytes);
        if (status == QN_OK) v.held_bytes = held_bytes;
    }
    if (status == QN_OK) status = qn_scheduler_check_thread(s);
    if (status == QN_OK) status = qn_scheduler_submit(s, v.n_rows, v.requests);
    if (status != QN_OK) {
        free_requests(&v.client);
        return status;
    }
    status = wait_for(s, &v);
    qn_scheduler_quit(s, &v.client, v.n_rows, v.requests, free_requests);
    return status;
}
