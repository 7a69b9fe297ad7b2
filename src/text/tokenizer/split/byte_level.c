#include "text/tokenizer/split/byte_level.h"

#include "base/utf8.h"

/* Bytes that stand for themselves: ! to ~, U+00A1 to U+00AC, U+00AE to U+00FF. */
static int is_plain(uint32_t c)
{
    return (c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff);
}

uint32_t qn_byte_level_char(uint8_t b)
{
    if (is_plain(b)) return b;
    /* 0x00-0x20, 0x7f-0xa0 and 0xad are 33 + 34 + 1 code points from U+0100. */
    return b <= 0x20 ? 0x100u + b : b == 0xad ? 0x143u : 0x100u + 33 + (b - 0x7fu);
}

int qn_byte_level_byte(uint32_t cp)
{
    if (cp < 0x100) return is_plain(cp) ? (int)cp : -1;
    if (cp <= 0x120) return (int)(cp - 0x100);
    if (cp <= 0x142) return (int)(cp - 0x121 + 0x7f);
    return cp == 0x143 ? 0xad : -1;
}

void qn_byte_level_encode(const char *text, size_t n, qn_buf *out)
{
    qn_buf_reserve(out, 2 * n);
    if (out->status != QN_OK) return;
    char *p = out->data + out->length;
    for (size_t i = 0; i < n; i++) {
        uint8_t b = (uint8_t)text[i];
        if (b >= 0x21 && b <= 0x7e)
            *p++ = (char)b;
        else
            p += qn_utf8_encode(qn_byte_level_char(b), p);
    }
    *p = 0;
    out->length = (size_t)(p - out->data);
}
