/* Any bytes as requests: what is held is bounded, a request is whole or refused with a reason, and it does
 * not matter in which pieces the bytes arrive. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/http.h"

enum { BODY_MAX = 4096 };

/* Reads one request in pieces of `piece` bytes; bytes that it took. */
static size_t feed(qn_http *h, const uint8_t *data, size_t size, size_t piece)
{
    size_t used = 0;
    while (used < size && h->state != QN_HTTP_FAILED && h->state != QN_HTTP_DONE) {
        size_t n = size - used < piece ? size - used : piece;
        used += qn_http_feed(h, data + used, n);
        if (h->head.length > QN_HTTP_HEAD_MAX || h->body.length > BODY_MAX) abort();
        if (h->state == QN_HTTP_READY) {
            if (!h->method[0] || h->path[0] != '/') abort();
            qn_http_read_body(h);
        }
    }
    if (h->state == QN_HTTP_FAILED && (h->status < 400 || !h->why || !qn_http_reason(h->status)[0])) abort();
    return used;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t at = 0;
    for (int i = 0; i < 8 && at < size; i++) {
        qn_http whole, cut;
        qn_http_start(&whole, BODY_MAX);
        qn_http_start(&cut, BODY_MAX);
        size_t used = feed(&whole, data + at, size - at, size);
        if (feed(&cut, data + at, size - at, 1 + size % 7) != used || cut.state != whole.state ||
            cut.status != whole.status || cut.body.length != whole.body.length ||
            (whole.body.length && memcmp(cut.body.data, whole.body.data, whole.body.length)))
            abort();
        int done = whole.state == QN_HTTP_DONE;
        qn_http_free(&whole);
        qn_http_free(&cut);
        at += used;
        if (!done) break;
    }
    return 0;
}
