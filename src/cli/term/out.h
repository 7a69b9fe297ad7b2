/* What the commands print: JSON, errors, styles on a terminal. Standard output carries results only; the rest
 * goes to standard error. */
#ifndef QN_CLI_TERM_OUT_H
#define QN_CLI_TERM_OUT_H

#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/json/json_write.h"
#include "base/status.h"

/* Writes what the buffer holds to standard output when it is much, so that long lists are never held whole;
 * what follows needs no comma to be remembered. Returns the buffer's status, or QN_E_IO. */
qn_status qn_json_drain(qn_buf *b);

/* Texts of strangers for a terminal: control characters, bytes that are not UTF-8 and characters that turn or
 * hide the rest of a line (bidirectional controls and the like) are written as \n, \x1b, \u202e. Cut behind
 * so many columns with "..."; 0: never. Returns the columns used. */
int qn_out_put_shown(qn_buf *b, const char *text, size_t n, int columns_max);
/* The same, and spaces up to the column. */
void qn_out_put_column(qn_buf *b, const char *text, int columns);
/* The end of a noun behind its count: "" for 1, else "s". */
const char *qn_out_plural(int64_t n);
/* "640 B", "1.2 GiB" into text; returns text. */
const char *qn_out_size_text(size_t size_bytes, char *text, size_t size);

/* Writes bytes to standard output and flushes. QN_E_IO. */
qn_status qn_out_write(const char *bytes, size_t n);
/* The buffer and a line end; frees the buffer. */
qn_status qn_out_line(qn_buf *b);

/* Writes a file that appears when it is whole; what is there and no regular file (a device) is written in
 * place. is_private: nobody else may read it. QN_E_IO, with the path. */
qn_status qn_out_file(const char *path, const char *bytes, size_t n, int is_private);

/* Reports the thread's message on standard error as "quern: SENTENCE". Returns QN_EXIT_ERROR. */
int qn_out_fail(void);
/* "quern: SENTENCE" on standard error, in one line and without control characters. */
void qn_out_note(const char *fmt, ...) QN_PRINTF(1, 2);

/* 1 when the stream is a terminal, NO_COLOR is unset or empty, and TERM is not "dumb". */
int qn_out_has_style(FILE *stream);

#endif
