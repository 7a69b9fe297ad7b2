/* URI references, resolved as RFC 3986 says (section 5.2): what $id and $ref mean. Nothing is fetched. Any
 * thread. */
#ifndef QN_CONSTRAIN_VALIDATE_URI_H
#define QN_CONSTRAIN_VALIDATE_URI_H

#include "base/buf.h"

/* The bytes of reference before its '#'; its length if it has none. */
size_t qn_uri_fragment(const char *reference, size_t n);
/* Appends what reference[0..n), without its fragment, means at base (an absolute URI, or "" for none). */
void qn_uri_resolve(const char *base, const char *reference, size_t n, qn_buf *out);
/* Appends text[0..n) with its percent escapes decoded; an escape that is none stays. */
void qn_uri_decode(const char *text, size_t n, qn_buf *out);

#endif
