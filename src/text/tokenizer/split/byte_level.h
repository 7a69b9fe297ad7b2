/* The alphabet of byte-level vocabularies (GPT-2): each byte has a printable code point, so that any text is
 * a string of visible characters. Printable Latin-1 stands for itself, the other 68 bytes are U+0100 and up
 * in rising order. Any thread. */
#ifndef QN_TEXT_TOKENIZER_SPLIT_BYTE_LEVEL_H
#define QN_TEXT_TOKENIZER_SPLIT_BYTE_LEVEL_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* The code point of a byte. */
uint32_t qn_byte_level_char(uint8_t byte);
/* The byte of a code point; -1: not in the alphabet. */
int qn_byte_level_byte(uint32_t code_point);
/* Appends text[0..n), any bytes, written in the alphabet. */
void qn_byte_level_encode(const char *text, size_t n, qn_buf *out);

#endif
