#include "base/utf8.h"

#include <string.h>
#include <utf8proc.h>

/* Length of the sequence that a lead byte starts (0: not a lead byte) and the allowed range of the second
 * byte. */
static int lead(uint8_t c, uint8_t *lo, uint8_t *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (c < 0x80) return 1;
    if (c >= 0xc2 && c <= 0xdf) return 2;
    if (c >= 0xe0 && c <= 0xef) {
        if (c == 0xe0) *lo = 0xa0;
        if (c == 0xed) *hi = 0x9f;
        return 3;
    }
    if (c >= 0xf0 && c <= 0xf4) {
        if (c == 0xf0) *lo = 0x90;
        if (c == 0xf4) *hi = 0x8f;
        return 4;
    }
    return 0;
}

/* Number of bytes at s that fit the sequence; *need its full length (0: no lead byte). */
static size_t match(const uint8_t *s, size_t n, int *need)
{
    uint8_t lo, hi;
    *need = lead(s[0], &lo, &hi);
    if (*need == 0) return 0;
    size_t i = 1;
    while (i < (size_t)*need && i < n && s[i] >= lo && s[i] <= hi) {
        lo = 0x80;
        hi = 0xbf;
        i++;
    }
    return i;
}

size_t qn_utf8_decode(const char *text, size_t n, uint32_t *code_point)
{
    const uint8_t *s = (const uint8_t *)text;
    int need;
    if (n == 0 || match(s, n, &need) != (size_t)need || need == 0) return 0;
    static const uint8_t mask[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t cp = s[0] & mask[need];
    for (int i = 1; i < need; i++) cp = cp << 6 | (s[i] & 0x3f);
    *code_point = cp;
    return (size_t)need;
}

size_t qn_utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | (cp >> 18 & 7));
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

size_t qn_utf8_valid_prefix(const char *s, size_t n)
{
    size_t i = 0, used;
    uint32_t cp;
    while (i < n) {
        if ((uint8_t)s[i] < 0x80) {
            i++;
            continue;
        }
        if ((used = qn_utf8_decode(s + i, n - i, &cp)) == 0) break;
        i += used;
    }
    return i;
}

size_t qn_utf8_invalid_length(const char *s, size_t n, int *incomplete)
{
    int need;
    *incomplete = 0;
    if (n == 0) return 0;
    size_t got = match((const uint8_t *)s, n, &need);
    if (got == 0) return 1;
    *incomplete = got == n && got < (size_t)need;
    return got;
}

int qn_utf8_width(uint32_t code_point)
{
    return code_point > 0x10ffff ? 0 : utf8proc_charwidth((utf8proc_int32_t)code_point);
}

void qn_utf8_clean(char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        size_t used = qn_utf8_decode(text + i, n - i, &cp);
        if (used == 0) {
            text[i++] = '?';
            continue;
        }
        if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0)) memset(text + i, '?', used);
        i += used;
    }
}
