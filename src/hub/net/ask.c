#include "hub/net/ask.h"

#include <string.h>

#include "base/clock.h"
#include "hub/net/way.h"

enum { REFUSAL_BYTES = 4096, POLL_MS = 100 };

typedef struct {
    const qn_hub_question *q;
    qn_buf *body;
    int is_enough;
} taking;

static qn_status take(void *user, const qn_net_reply *reply, const void *bytes, size_t n)
{
    taking *t = user;
    const int is_good = reply->status == 200 || reply->status == 206;
    if (!is_good) {
        if (t->body->length < REFUSAL_BYTES)
            qn_buf_append(t->body, bytes, n < REFUSAL_BYTES ? n : REFUSAL_BYTES);
        return t->body->status;
    }
    if (t->q->only_begin) { /* the headers are there; a server without ranges would send everything */
        t->is_enough = 1;
        return QN_E_CANCELLED;
    }
    if (t->body->length + n > t->q->bytes_max)
        return qn_fail(QN_E_FORMAT, "%s: the answer is larger than %zu bytes", t->q->what, t->q->bytes_max);
    qn_buf_append(t->body, bytes, n);
    return t->body->status;
}

/* One exchange. *kept is the status of what took the body. The reply's texts live as long as *call. */
static qn_status exchange(const qn_hub_session *s, const qn_way *w, taking *t, qn_hub_answer *out,
                          qn_net_call **call, qn_status *kept)
{
    qn_net_call *done = NULL;
    qn_net_request request = {.url = w->now.data,
                              .token = qn_way_token(w),
                              .accept = t->q->accept,
                              .end = t->q->only_begin,
                              .take = take,
                              .user = t};
    qn_buf_reset(&out->body);
    t->is_enough = 0;
    QN_TRY(qn_net_start(s->net, &request, call));
    qn_status status = QN_OK;
    while (status == QN_OK && !done) {
        status = qn_net_wait(s->net, POLL_MS, &done, kept);
        if (status == QN_OK) status = qn_hub_check_cancel(s);
    }
    if (status == QN_OK) {
        out->reply = *qn_net_get_reply(*call);
        qn_buf_reset(&out->link);
        qn_buf_puts(&out->link, out->reply.link);
        status = out->link.status;
        if (out->reply.linked_etag[0] && !out->linked_etag[0]) {
            memcpy(out->linked_etag, out->reply.linked_etag, sizeof out->linked_etag);
            out->linked_size = out->reply.linked_size;
        }
        if (t->is_enough) {
            *kept = QN_OK;
            out->reply.failure[0] = 0;
        }
    }
    return status;
}

/* Waits until the way's time has come. */
static qn_status wait_for(const qn_hub_session *s, const qn_way *w)
{
    int64_t left_ns;
    while ((left_ns = w->not_before_ns - qn_clock_ns()) > 0) {
        qn_net_call *none;
        qn_status kept;
        if (s->progress)
            s->progress(s->user, &(qn_hub_progress){.wait_s = (int)((left_ns + 999999999) / 1000000000)});
        QN_TRY(qn_net_wait(s->net, left_ns < POLL_MS * 1000000ll ? 1 + (int)(left_ns / 1000000) : POLL_MS,
                           &none, &kept));
        QN_TRY(qn_hub_check_cancel(s));
    }
    return QN_OK;
}

qn_status qn_hub_ask(const qn_hub_session *s, const qn_hub_question *q, qn_hub_answer *out)
{
    qn_way way = {.is_question = 1};
    taking t = {.q = q, .body = &out->body};
    qn_status status = qn_way_begin(&way, q->what, q->url, q->token);
    qn_way_step step = QN_WAY_AGAIN;
    out->linked_size = -1;
    while (status == QN_OK && step == QN_WAY_AGAIN) {
        qn_status kept = QN_OK;
        qn_net_call *call = NULL;
        status = wait_for(s, &way);
        if (status == QN_OK) status = exchange(s, &way, &t, out, &call, &kept);
        if (status == QN_OK) status = kept;
        if (status == QN_OK) {
            const char *body = out->body.data ? out->body.data : "";
            /* judge changes way.now: the URL that answered is kept first. */
            qn_buf_reset(&out->url);
            qn_buf_puts(&out->url, way.now.data);
            step = qn_way_judge(&way, &out->reply, body, out->body.length, qn_clock_ns(), &status);
            if (status == QN_OK) status = out->url.status;
        }
        qn_net_end(s->net, call);
    }
    qn_way_end(&way);
    out->reply.location = out->reply.link = "";
    return status;
}

void qn_hub_answer_free(qn_hub_answer *a)
{
    qn_buf_free(&a->body);
    qn_buf_free(&a->url);
    qn_buf_free(&a->link);
}
