/* A growable run of bytes. The first failure sticks: later appends do nothing, so a caller may append freely
 * and check once at the end. A zeroed qn_buf is empty and valid. One thread at a time. */
#ifndef QN_BASE_BUF_H
#define QN_BASE_BUF_H

#include <stddef.h>

#include "base/status.h"

typedef struct {
    char *data; /* NUL after the last byte, once anything was appended */
    size_t length, capacity;
    size_t limit_bytes; /* 0: none; appends beyond it fail with QN_E_FULL */
    qn_status status;
} qn_buf;

void qn_buf_append(qn_buf *b, const void *bytes, size_t n);
void qn_buf_puts(qn_buf *b, const char *text);
void qn_buf_putc(qn_buf *b, char c);
void qn_buf_printf(qn_buf *b, const char *fmt, ...) QN_PRINTF(2, 3);
/* Appends text as a JSON string with its quotes. Invalid UTF-8 becomes U+FFFD; control characters are
 * escaped. */
void qn_buf_json_string(qn_buf *b, const char *text, size_t n);
/* Makes room for n more bytes. */
void qn_buf_reserve(qn_buf *b, size_t n);
/* Keeps the memory, drops bytes and status. */
void qn_buf_reset(qn_buf *b);
void qn_buf_free(qn_buf *b);
/* Hands the bytes over (free with qn_free); the buffer is empty again. NULL if an append failed. */
char *qn_buf_take(qn_buf *b, size_t *length);

#endif
