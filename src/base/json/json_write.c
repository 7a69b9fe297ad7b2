#include "base/json/json_write.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* A value or key needs a comma before it unless it comes first or right after its key. */
static void put_comma(qn_buf *b)
{
    if (b->length && !strchr("{[:", b->data[b->length - 1])) qn_buf_putc(b, ',');
}

void qn_json_open(qn_buf *b, char bracket)
{
    put_comma(b);
    qn_buf_putc(b, bracket);
}

void qn_json_close(qn_buf *b, char bracket)
{
    qn_buf_putc(b, bracket);
}

void qn_json_key(qn_buf *b, const char *key)
{
    put_comma(b);
    qn_buf_json_string(b, key, strlen(key));
    qn_buf_putc(b, ':');
}

void qn_json_text(qn_buf *b, const char *text, size_t n)
{
    put_comma(b);
    qn_buf_json_string(b, text, n);
}

void qn_json_int(qn_buf *b, int64_t value)
{
    put_comma(b);
    qn_buf_printf(b, "%" PRId64, value);
}

void qn_json_uint(qn_buf *b, uint64_t value)
{
    put_comma(b);
    qn_buf_printf(b, "%" PRIu64, value);
}

void qn_json_real(qn_buf *b, double value)
{
    put_comma(b);
    if (isfinite(value))
        qn_buf_printf(b, "%.6g", value);
    else
        qn_buf_puts(b, "null");
}

void qn_json_ids(qn_buf *b, const int32_t *ids, int64_t n)
{
    qn_json_open(b, '[');
    for (int64_t i = 0; i < n; i++) qn_json_int(b, ids[i]);
    qn_json_close(b, ']');
}

void qn_json_put_text(qn_buf *b, const char *key, const char *text)
{
    qn_json_key(b, key);
    qn_json_text(b, text, strlen(text));
}

void qn_json_put_int(qn_buf *b, const char *key, int64_t value)
{
    qn_json_key(b, key);
    qn_json_int(b, value);
}

void qn_json_put_bool(qn_buf *b, const char *key, int value)
{
    qn_json_key(b, key);
    qn_buf_puts(b, value ? "true" : "false");
}

void qn_json_put_real(qn_buf *b, const char *key, double value)
{
    qn_json_key(b, key);
    qn_json_real(b, value);
}

void qn_json_put_exact(qn_buf *b, const char *key, double value)
{
    qn_json_key(b, key);
    if (isfinite(value))
        qn_buf_printf(b, "%.17g", value);
    else
        qn_buf_puts(b, "null");
}
