/* Any bytes as requests: what is held is bounded, a request is whole or refused with a reason, and it does
 * not matter in which pieces the bytes arrive. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "server/http/http.h"

enum { BODY_MAX = 4096, PIECE_MAX = 24 };

/* Reads one request in pieces whose sizes the seed draws (0: all at once); bytes that it took. */
static size_t feed(qn_http *h, const uint8_t *data, size_t size, uint64_t seed)
{
    size_t used = 0;
    for (uint64_t i = 0; used < size && h->state != QN_HTTP_FAILED && h->state != QN_HTTP_DONE; i++) {
        size_t n = seed ? 1 + qn_random_bits(seed, i) % PIECE_MAX : size;
        /* A block as long as the piece: a checker sees what is read behind it. */
        if (n > size - used) n = size - used;
        uint8_t *piece = qn_alloc(n);
        if (!piece) abort();
        memcpy(piece, data + used, n);
        used += qn_http_feed(h, piece, n);
        qn_free(piece);
        if (h->head.length > QN_HTTP_HEAD_MAX || h->body.length > BODY_MAX) abort();
        if (h->state == QN_HTTP_READY) {
            if (!h->method[0] || h->path[0] != '/') abort();
            qn_http_read_body(h);
        }
    }
    if (h->state == QN_HTTP_FAILED && (h->status < 400 || !h->why || !qn_http_reason(h->status)[0])) abort();
    return used;
}

static int same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static int same(const qn_http *a, const qn_http *b)
{
    if (a->state != b->state || a->status != b->status || !same_text(a->why, b->why) ||
        a->minor != b->minor || a->keep_alive != b->keep_alive || a->wants_continue != b->wants_continue ||
        a->content_length != b->content_length || a->is_chunked != b->is_chunked ||
        !same_text(a->method, b->method) || !same_text(a->path, b->path) || !same_text(a->query, b->query) ||
        a->n_headers != b->n_headers || a->body.length != b->body.length)
        return 0;
    for (size_t i = 0; i < a->n_headers; i++)
        if (strcmp(a->headers[i].name, b->headers[i].name) != 0 ||
            strcmp(a->headers[i].value, b->headers[i].value) != 0)
            return 0;
    return a->body.length == 0 || memcmp(a->body.data, b->body.data, a->body.length) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t seed = size;
    for (size_t i = 0; i < size; i++) seed = qn_random_bits(seed, data[i]);
    size_t at = 0;
    qn_http whole, cut;
    qn_http_start(&whole, BODY_MAX);
    qn_http_start(&cut, BODY_MAX);
    for (int i = 0; i < 8 && at < size; i++) {
        size_t used = feed(&whole, data + at, size - at, 0);
        if (feed(&cut, data + at, size - at, seed | 1) != used || !same(&whole, &cut)) abort();
        at += used;
        if (whole.state != QN_HTTP_DONE) break;
        qn_http_next(&whole);
        qn_http_next(&cut);
    }
    qn_http_free(&whole);
    qn_http_free(&cut);
    return 0;
}
