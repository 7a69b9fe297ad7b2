/* SHA-256 and SHA-1 of bytes that come in pieces. SHA-256 is what the Hub and Ollama say of large files; git's
 * SHA-1 is what the Hub says of small ones. Both are checks of transfers here, no signatures. The prefix tree knows
 * pictures by their SHA-256. One thread per digest; nothing is allocated. */
#ifndef QN_BASE_BYTES_DIGEST_H
#define QN_BASE_BYTES_DIGEST_H

#include <stddef.h>
#include <stdint.h>

typedef enum { QN_SUM_NONE, QN_SUM_SHA256, QN_SUM_GIT_SHA1 } qn_digest_kind;
enum { QN_SUM_BYTES = 32, QN_SUM_HEX_MAX = 2 * QN_SUM_BYTES + 1 }; /* with the NUL */

typedef struct {
    qn_digest_kind kind;
    uint32_t state[8];
    uint64_t n_bytes;
    unsigned char block[64];
} qn_digest;

/* size_bytes is that of the whole file: git hashes it before the bytes. QN_SUM_NONE: the digest takes bytes and
 * gives "". */
void qn_digest_begin(qn_digest *d, qn_digest_kind kind, int64_t size_bytes);
void qn_digest_put(qn_digest *d, const void *bytes, size_t n);
/* Lower-case hexadecimal digits, 64 or 40. d must begin again before its next use. */
void qn_digest_end(qn_digest *d, char hex[QN_SUM_HEX_MAX]);
/* The same as bytes, of a SHA-256. */
void qn_digest_end_bytes(qn_digest *d, unsigned char out[QN_SUM_BYTES]);
/* Is text so many lower-case hexadecimal digits, and nothing else? */
int qn_digest_is_hex(const char *text, size_t n_digits);

#endif
