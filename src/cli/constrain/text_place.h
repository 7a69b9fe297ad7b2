/* Where a byte of a JSON text is: its line, its column, and the value that it is part of. Any thread. */
#ifndef QN_CLI_CONSTRAIN_TEXT_PLACE_H
#define QN_CLI_CONSTRAIN_TEXT_PLACE_H

#include "base/buf.h"

typedef struct {
    size_t line, column; /* from 1; the column counts characters */
    qn_buf pointer;      /* JSON pointer; free with qn_buf_free */
} qn_text_place;

/* text[0..n) is JSON, offset at most n. */
void qn_text_place_find(const char *text, size_t n, size_t offset, qn_text_place *out);

#endif
