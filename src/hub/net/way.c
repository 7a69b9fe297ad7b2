#include "hub/net/way.h"

#include <stdio.h>
#include <string.h>

#include "hub/names/listing.h"
#include "hub/names/url.h"

static const int64_t second_ns = 1000000000;

static qn_status set(qn_buf *b, const char *text)
{
    qn_buf_reset(b);
    qn_buf_puts(b, text);
    return b->status;
}

qn_status qn_way_begin(qn_way *w, const char *what, const char *url, const char *token)
{
    w->what = what;
    w->token = token;
    w->n_hops = w->n_failures = 0;
    w->not_before_ns = 0;
    QN_TRY(set(&w->home, url));
    return set(&w->now, url);
}

void qn_way_end(qn_way *w)
{
    qn_buf_free(&w->home);
    qn_buf_free(&w->now);
}

const char *qn_way_token(const qn_way *w)
{
    qn_url home, now;
    if (!w->token || qn_url_parse(w->home.data, &home) != QN_OK || qn_url_parse(w->now.data, &now) != QN_OK)
        return NULL;
    return qn_url_same_server(&home, &now) && (now.is_https || qn_url_is_local(&now)) ? w->token : NULL;
}

/* "https://host" of the URL asked, for messages. */
static int host_length(const qn_buf *url)
{
    qn_url u;
    return qn_url_parse(url->data, &u) == QN_OK ? (int)(u.path - url->data) : 0;
}

static qn_way_step stop(qn_status *status, qn_status why)
{
    *status = why;
    return QN_WAY_STOP;
}

qn_way_step qn_way_fail(qn_way *w, const char *why, int64_t wait_s, int64_t now_ns, qn_status *status)
{
    const int n_host = host_length(&w->now);
    const int64_t backoff_ns = (second_ns / 2) << w->n_failures; /* 0.5, 1, 2, 4, 8 seconds */
    if (++w->n_failures >= QN_WAY_FAILURES_MAX)
        return stop(status, qn_fail(QN_E_IO, "%s: %.*s: %s, %d times in a row", w->what, n_host, w->now.data,
                                    why, w->n_failures));
    w->not_before_ns = now_ns + (wait_s >= 0 ? wait_s * second_ns : backoff_ns);
    w->n_hops = 0;
    const qn_status kept = set(&w->now, w->home.data);
    return kept == QN_OK ? QN_WAY_AGAIN : stop(status, kept);
}

static qn_way_step follow(qn_way *w, const qn_net_reply *r, qn_status *status)
{
    if (!r->location || !r->location[0])
        return stop(status, qn_fail(QN_E_FORMAT, "%s: a redirect without an address", w->what));
    if (++w->n_hops > QN_WAY_HOPS_MAX)
        return stop(status,
                    qn_fail(QN_E_FORMAT, "%s: more than %d redirects", w->what, (int)QN_WAY_HOPS_MAX));
    const qn_status joined = qn_url_join(w->now.data, r->location, &w->now);
    return joined == QN_OK ? QN_WAY_AGAIN : stop(status, qn_fail_prefix(joined, "%s", w->what));
}

/* A signed address of another server runs out after some time: the first one gives a new one. */
static int is_elsewhere(const qn_way *w)
{
    return strcmp(w->home.data, w->now.data) != 0;
}

static qn_way_step refuse(qn_way *w, const qn_net_reply *r, const char *said, qn_status *status)
{
    const int n_host = host_length(&w->now);
    const char *host = w->now.data, *before = *said ? ": " : "";
    if (r->status == 401)
        return stop(status,
                    qn_fail(QN_E_NOT_FOUND,
                            w->token
                                ? "%s: %.*s does not accept the token (401), or there is no such model%s%s"
                                : "%s: %.*s asks for a token (401): the model is private or does not exist. "
                                  "HF_TOKEN or `hf auth login` gives one%s%s",
                            w->what, n_host, host, before, said));
    if (r->status == 403)
        return stop(
            status,
            qn_fail(QN_E_NOT_FOUND,
                    "%s: %.*s refuses access (403). A gated model must be asked for on its page%s%s%s",
                    w->what, n_host, host, w->token ? "" : ", and needs a token in HF_TOKEN", before, said));
    if (r->status == 404 || r->status == 410)
        return stop(status, qn_fail(QN_E_NOT_FOUND, "%s: %.*s has no such thing (%d)%s%s", w->what, n_host,
                                    host, r->status, before, said));
    return stop(status, qn_fail(QN_E_IO, "%s: %.*s answers with status %d%s%s", w->what, n_host, host,
                                r->status, before, said));
}

/* There is no network, no such server, or one that is not trusted. */
static qn_way_step unanswered(qn_way *w, const qn_net_reply *r, int64_t now_ns, qn_status *status)
{
    const char *why = r->failure[0] ? r->failure : "no answer";
    if (!r->is_final && !(w->is_question && w->n_failures)) return qn_way_fail(w, why, -1, now_ns, status);
    return stop(status, qn_fail(QN_E_IO, "%s: %.*s: %s%s", w->what, host_length(&w->now), w->now.data, why,
                                r->is_final ? "" : ". Is the network up?"));
}

qn_way_step qn_way_judge(qn_way *w, const qn_net_reply *r, const char *body, size_t n, int64_t now_ns,
                         qn_status *status)
{
    char said[QN_NET_TEXT_MAX] = "", why[QN_NET_TEXT_MAX + 32];
    if (r->status == 200 || r->status == 206) {
        if (!r->failure[0]) return QN_WAY_GO;
        return qn_way_fail(w, r->failure, -1, now_ns, status);
    }
    if (!r->status) return unanswered(w, r, now_ns, status);
    if (r->status == 301 || r->status == 302 || r->status == 303 || r->status == 307 || r->status == 308)
        return follow(w, r, status);
    if (n) qn_hub_read_refusal(body, n, said, sizeof said);
    const char *sentence = r->error[0] ? r->error : said;
    if (r->status == 408 || r->status == 429 || r->status >= 500) {
        const int64_t wait_s =
            r->retry_after_s < 0 && r->reset_s && r->status == 429 ? r->reset_s + 1 : r->retry_after_s;
        if (wait_s > QN_WAY_WAIT_MAX_S)
            return stop(status, qn_fail(QN_E_IO, "%s: the server asks to come back in %lld seconds (%d)",
                                        w->what, (long long)wait_s, r->status));
        snprintf(why, sizeof why, "status %d%s%s", r->status, *sentence ? ": " : "", sentence);
        return qn_way_fail(w, why, wait_s, now_ns, status);
    }
    if (is_elsewhere(w) && (r->status == 401 || r->status == 403 || r->status == 404 || r->status == 410)) {
        snprintf(why, sizeof why, "status %d", r->status);
        return qn_way_fail(w, why, 0, now_ns, status);
    }
    return refuse(w, r, sentence, status);
}
