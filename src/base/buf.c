#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/checked.h"
#include "base/checker.h"
#include "base/mem.h"
#include "base/utf8.h"

void qn_buf_reserve(qn_buf *b, size_t n)
{
    size_t need;
    if (b->status != QN_OK) return;
    if (!qn_add_size(b->length, n, &need) || !qn_add_size(need, 1, &need)) {
        b->status = qn_fail_nomem(SIZE_MAX);
        return;
    }
    if (b->limit_bytes && need - 1 > b->limit_bytes) {
        b->status = qn_fail(QN_E_FULL, "more than %zu bytes of output", b->limit_bytes);
        return;
    }
    if (need <= b->capacity) {
        QN_SHOW(b->data + b->length, need - b->length);
        return;
    }
    size_t capacity = b->capacity < 64 ? 64 : b->capacity;
    while (capacity < need) capacity = capacity > SIZE_MAX / 2 ? need : capacity * 2;
    QN_SHOW(b->data, b->capacity);
    char *data = qn_realloc(b->data, capacity);
    if (!data) {
        b->status = QN_E_NOMEM;
        return;
    }
    b->data = data;
    b->capacity = capacity;
    QN_HIDE(data + need, capacity - need);
}

void qn_buf_append(qn_buf *b, const void *bytes, size_t n)
{
    qn_buf_reserve(b, n);
    if (b->status != QN_OK) return;
    if (n) memcpy(b->data + b->length, bytes, n);
    b->length += n;
    b->data[b->length] = 0;
}

void qn_buf_puts(qn_buf *b, const char *text)
{
    qn_buf_append(b, text, strlen(text));
}

void qn_buf_putc(qn_buf *b, char c)
{
    qn_buf_append(b, &c, 1);
}

void qn_buf_printf(qn_buf *b, const char *fmt, ...)
{
    va_list args;
    locale_t before = qn_c_locale_enter();
    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    qn_c_locale_leave(before);
    if (n < 0) { /* longer than an int can say */
        if (b->status == QN_OK) b->status = qn_fail_nomem(SIZE_MAX);
        return;
    }
    qn_buf_reserve(b, (size_t)n);
    if (b->status != QN_OK) return;
    before = qn_c_locale_enter();
    va_start(args, fmt);
    vsnprintf(b->data + b->length, (size_t)n + 1, fmt, args);
    va_end(args);
    qn_c_locale_leave(before);
    b->length += (size_t)n;
}

void qn_buf_json_string(qn_buf *b, const char *text, size_t n)
{
    qn_buf_putc(b, '"');
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t used = qn_utf8_decode(text + i, n - i, &cp);
        int incomplete;
        if (used == 0) {
            i += qn_utf8_invalid_length(text + i, n - i, &incomplete);
            qn_buf_puts(b, "\xef\xbf\xbd");
            continue;
        }
        if (cp == '"' || cp == '\\') {
            qn_buf_putc(b, '\\');
            qn_buf_putc(b, (char)cp);
        } else if (cp == '\n') {
            qn_buf_puts(b, "\\n");
        } else if (cp == '\t') {
            qn_buf_puts(b, "\\t");
        } else if (cp == '\r') {
            qn_buf_puts(b, "\\r");
        } else if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0)) { /* terminals obey some of C1 too */
            qn_buf_printf(b, "\\u%04x", cp);
        } else {
            qn_buf_append(b, text + i, used);
        }
        i += used;
    }
    qn_buf_putc(b, '"');
}

void qn_buf_reset(qn_buf *b)
{
    b->length = 0;
    b->status = QN_OK;
}

void qn_buf_free(qn_buf *b)
{
    qn_free(b->data);
    b->data = NULL;
    b->length = b->capacity = 0;
}

char *qn_buf_take(qn_buf *b, size_t *length)
{
    if (b->status == QN_OK && !b->data) qn_buf_append(b, "", 0);
    if (b->status != QN_OK) {
        qn_buf_free(b);
        return NULL;
    }
    char *data = b->data;
    QN_SHOW(data, b->capacity);
    if (length) *length = b->length;
    b->data = NULL;
    b->length = b->capacity = 0;
    return data;
}
