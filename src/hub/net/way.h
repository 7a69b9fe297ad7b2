/* The way to one thing on a server: where to ask next, with or without the token, now or later, or never again.
 * Redirects, refusals, waiting and trying again are decided here and nowhere else. The token goes to the server that
 * was asked first and to no other; it goes over plain http to this machine alone. No network, no clock: times are
 * handed in. One thread. */
#ifndef QN_HUB_NET_WAY_H
#define QN_HUB_NET_WAY_H

#include "base/buf.h"
#include "hub/net/net.h"

typedef struct {
    const char *what;  /* for messages: "org/name: model.gguf" */
    const char *token; /* NULL: none; may be sent to home's server */
    qn_buf home, now;  /* the URL asked first, and that to ask next */
    int n_hops, n_failures;
    int is_question; /* a user waits for the first answer: a server that does not answer at all is asked twice only */
    int64_t not_before_ns;
} qn_way;

enum { QN_WAY_FAILURES_MAX = 5, QN_WAY_HOPS_MAX = 10, QN_WAY_WAIT_MAX_S = 300 };

typedef enum {
    QN_WAY_GO,    /* the answer is what was asked for */
    QN_WAY_AGAIN, /* ask `now`, at once or after not_before_ns */
    QN_WAY_STOP   /* *status and the thread's message say why */
} qn_way_step;

/* w is zeroed or was ended. The texts of what and token are borrowed. */
qn_status qn_way_begin(qn_way *w, const char *what, const char *url, const char *token);
void qn_way_end(qn_way *w);
/* The token for `now`, or NULL. */
const char *qn_way_token(const qn_way *w);
/* What an answer means. body[0..n) is the beginning of what came with a refusal. */
qn_way_step qn_way_judge(qn_way *w, const qn_net_reply *r, const char *body, size_t n, int64_t now_ns,
                         qn_status *status);
/* An answer was cut short or was not what it should be: try again later, from home; after QN_WAY_FAILURES_MAX in a
 * row stop with the sentence why. */
qn_way_step qn_way_fail(qn_way *w, const char *why, int64_t wait_s, int64_t now_ns, qn_status *status);

#endif
