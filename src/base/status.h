/* How a failure is reported inside the library: the first place that knows writes the sentence, callers may
 * put a prefix before it ("FILE: "). The text lives in a fixed per-thread buffer, so reporting out-of-memory
 * allocates nothing. */
#ifndef QN_BASE_STATUS_H
#define QN_BASE_STATUS_H

#include <quern/status.h>

enum { QN_ERROR_TEXT_MAX = 2048 };

/* Sets this thread's message and returns status. Bytes that are not valid UTF-8 and control characters that a
 * hostile file may have put into a name are replaced by '?'. */
qn_status qn_fail(qn_status status, const char *fmt, ...) QN_PRINTF(2, 3);
/* Puts "prefix: " before this thread's message; returns status unchanged. */
qn_status qn_fail_prefix(qn_status status, const char *fmt, ...) QN_PRINTF(2, 3);
/* Takes a message over from another thread (status and text were copied into a request or job). */
qn_status qn_fail_copy(qn_status status, const char *text);

/* Returns from the enclosing function when expr is not QN_OK. */
#define QN_TRY(expr)                                      \
    do {                                                  \
        qn_status qn_try_status = (expr);                 \
        if (qn_try_status != QN_OK) return qn_try_status; \
    } while (0)

#endif
