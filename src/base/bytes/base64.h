/* Base64 (RFC 4648, section 4): bytes as text of A-Z a-z 0-9 + / with padding. Any thread. */
#ifndef QN_BASE_BYTES_BASE64_H
#define QN_BASE_BYTES_BASE64_H

#include "base/buf.h"

/* Appends the text of bytes[0..n); a failure stays in out->status. */
void qn_base64_encode(const void *bytes, size_t n, qn_buf *out);
/* Appends the bytes of text[0..n). White space is skipped, padding may be missing, and the digits - and _ of
 * section 5 are taken too. QN_E_FORMAT: another character, or a length that no bytes have; QN_E_NOMEM. */
qn_status qn_base64_decode(const char *text, size_t n, qn_buf *out);

#endif
