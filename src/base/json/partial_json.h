/* JSON that breaks off, closed: a text that begins as an object or array does becomes a whole one, of the
 * members that are complete. Clients do the same with what they have of a stream. Any thread. */
#ifndef QN_BASE_JSON_PARTIAL_JSON_H
#define QN_BASE_JSON_PARTIAL_JSON_H

#include "base/buf.h"

enum { QN_PARTIAL_JSON_DEPTH_MAX = 96 };

/* Appends text[0..n) up to the last place where a value is complete, and the brackets that are open there. A
 * number at the end is not complete: digits may be missing. A text that is whole is appended as it is. Where
 * text is no beginning of an object or array, or is nested deeper than QN_PARTIAL_JSON_DEPTH_MAX, "{}" is
 * appended. The text is not checked beyond its strings and brackets. */
void qn_partial_json_close(const char *text, size_t n, qn_buf *out);

#endif
