/* Several files at once, each in pieces, over a few connections: the one place that moves a model's bytes.
 *
 * A piece that is cut, slow, of the wrong range or refused is asked for again alone, behind the bytes that it has. A
 * file is hashed while it comes; with the wrong sum it is thrown away. What is interrupted stays as a partial.h file
 * and goes on from there the next time. Memory does not grow with the files. */
#ifndef QN_HUB_TRANSFER_H
#define QN_HUB_TRANSFER_H

#include "base/bytes/digest.h"
#include "hub/net/session.h"

typedef struct {
    const char *what; /* for messages */
    const char *url;
    const char *token; /* NULL: none */
    const char *place; /* the path to appear */
    const char *etag;  /* that each answer must have, where it has one; NULL: any */
    int64_t size;
    qn_digest_kind sum;
    const char *hex;
    int must_be_gguf; /* there is no sum: the first bytes must be a GGUF's */
} qn_hub_item;

enum { QN_HUB_CONNECTIONS = 4 };

/* Fetches all, or fails at the first that cannot be had. here_bytes are those that need no fetching, for progress. */
qn_status qn_hub_transfer(const qn_hub_session *s, const qn_hub_item *items, size_t n, int64_t here_bytes);

#endif
