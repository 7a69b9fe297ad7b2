#include "base/bytes/base64.h"

#include <stdint.h>

void qn_base64_encode(const void *bytes, size_t n, qn_buf *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i += 3) {
        const unsigned v =
            (unsigned)p[i] << 16 | (i + 1 < n ? (unsigned)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
        const char four[4] = {digits[v >> 18], digits[v >> 12 & 63], i + 1 < n ? digits[v >> 6 & 63] : '=',
                              i + 2 < n ? digits[v & 63] : '='};
        qn_buf_append(out, four, 4);
    }
}

/* -1: no digit. */
static int digit_of(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+' || c == '-') return 62;
    return c == '/' || c == '_' ? 63 : -1;
}

static int is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

qn_status qn_base64_decode(const char *text, size_t n, qn_buf *out)
{
    uint32_t bits = 0;
    size_t n_digits = 0, n_padding = 0;
    qn_buf_reserve(out, n / 4 * 3 + 3);
    QN_TRY(out->status);
    for (size_t i = 0; i < n; i++) {
        const int digit = digit_of(text[i]);
        if (is_space(text[i])) continue;
        if (text[i] == '=') {
            n_padding++;
            continue;
        }
        if (digit < 0 || n_padding)
            return qn_fail(QN_E_FORMAT, "no base64: a wrong character at byte %zu", i);
        bits = bits << 6 | (uint32_t)digit;
        if (++n_digits % 4) continue;
        const char three[3] = {(char)(bits >> 16), (char)(bits >> 8), (char)bits};
        qn_buf_append(out, three, 3);
    }
    const size_t rest = n_digits % 4;
    if (rest == 1 || n_padding > 2 || (n_padding && (rest + n_padding) != 4))
        return qn_fail(QN_E_FORMAT, "no base64: its length is wrong");
    if (rest) {
        bits <<= 6 * (4 - rest);
        const char two[2] = {(char)(bits >> 16), (char)(bits >> 8)};
        qn_buf_append(out, two, rest - 1);
    }
    return out->status;
}
