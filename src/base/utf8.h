/* UTF-8, as strict as the Unicode standard asks: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef QN_BASE_UTF8_H
#define QN_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decodes one code point from s[0..n). Returns its length in bytes (1 to 4), or 0 when n is 0 or the bytes
 * are not valid. */
size_t qn_utf8_decode(const char *s, size_t n, uint32_t *code_point);
/* Writes code_point into out[0..4); returns the number of bytes. */
size_t qn_utf8_encode(uint32_t code_point, char out[4]);
/* Length of the longest valid prefix. */
size_t qn_utf8_valid_prefix(const char *s, size_t n);
/* When s[0..n) is not valid at its start: length of the maximal subpart there (at least 1), which a lossy
 * decoder replaces by one U+FFFD, as Python's errors="replace" does. *incomplete: the bytes end before the
 * sequence does. */
size_t qn_utf8_invalid_length(const char *s, size_t n, int *incomplete);
/* Columns that a terminal gives to a code point: 0, 1 or 2. Control characters have 0. */
int qn_utf8_width(uint32_t code_point);
/* Makes text one line that a terminal can show: each byte of a control character (C0, DEL, C1; a newline too)
 * and each byte that is not valid becomes '?'. */
void qn_utf8_clean(char *text);

#endif
