/* Stop strings over a stream of bytes (Aho-Corasick).
 *
 * Bytes go in as they are decoded and come out as soon as they can no longer be the beginning of a stop
 * string. The stream ends at the first byte that completes a stop string; the text ends before the longest
 * one that is complete there. Invariant: what came out, joined, is a prefix of what went in, and does not
 * depend on how the input was cut into pieces. The strings are shared, read-only; the stream belongs to one
 * sequence. One thread at a time per stream. */
#ifndef QN_TEXT_TOKENIZER_STOP_H
#define QN_TEXT_TOKENIZER_STOP_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

enum { QN_STOP_BYTES_MAX = 65536 };

typedef struct qn_stop_set qn_stop_set;

/* n strings, NUL-terminated, copied. QN_E_ARG: an empty one, or more than QN_STOP_BYTES_MAX bytes together. n
 * may be 0: nothing is ever held back. *out is owned by the caller. */
qn_status qn_stop_set_new(const char *const *strings, size_t n, qn_stop_set **out);
void qn_stop_set_free(qn_stop_set *set);

/* Zeroed but for the set: at the start of a stream. The set is borrowed. */
typedef struct {
    const qn_stop_set *set;
    qn_buf held;   /* bytes that may begin a stop string */
    int32_t state; /* node of the automaton */
    int hit;       /* a stop string was completed: no more input is looked at */
    size_t string; /* which one: its index; after a hit alone */
} qn_stop;

/* Feeds bytes[0..n) and appends to out what may be shown. Look at s->hit afterwards. QN_E_NOMEM. */
qn_status qn_stop_feed(qn_stop *s, const char *bytes, size_t n, qn_buf *out);
/* The stream ends: appends what was held back (nothing after a hit). */
qn_status qn_stop_flush(qn_stop *s, qn_buf *out);
/* Frees the stream's own memory. */
void qn_stop_end(qn_stop *s);

#endif
