/* One small answer: asks, follows redirects, waits and tries again as way.h says, and keeps the body. */
#ifndef QN_HUB_NET_ASK_H
#define QN_HUB_NET_ASK_H

#include "base/buf.h"
#include "hub/net/session.h"

typedef struct {
    const char *what, *url, *token, *accept;
    size_t bytes_max;
    int only_begin; /* ask for the first byte and take headers alone: what is there, and how large */
} qn_hub_question;

typedef struct {
    qn_buf body;
    qn_buf url;         /* that answered, after redirects */
    qn_buf link;        /* the Link header, or empty */
    qn_net_reply reply; /* the last one; its location and link are gone */
    /* Of the first answer that had them, before any redirect. */
    char linked_etag[QN_NET_TEXT_MAX];
    int64_t linked_size;
} qn_hub_answer;

/* out is zeroed by the caller and freed by qn_hub_answer_free, whatever came. */
qn_status qn_hub_ask(const qn_hub_session *s, const qn_hub_question *q, qn_hub_answer *out);
void qn_hub_answer_free(qn_hub_answer *a);

#endif
