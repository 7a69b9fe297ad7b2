/* The lines of a text file, or the elements of a file that is one JSON array, found by their offsets: the text stays in the file, and one line is read at a
 * time. Lines of white space are left out, but count in the numbers of the others. The file must stay as it
 * was: once it has another size or time, no line is read any more. One thread at a time. */
#ifndef QN_TRAIN_DATA_LINE_INDEX_H
#define QN_TRAIN_DATA_LINE_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

enum { QN_LINE_BYTES_MAX = 64 << 20 };

typedef struct qn_line_index qn_line_index;

/* Reads the file once. QN_E_IO: it cannot be read; QN_E_ARG: it is not a plain file. */
qn_status qn_line_index_open(const char *path, qn_line_index **out);
void qn_line_index_close(qn_line_index *x);
int64_t qn_line_index_count(const qn_line_index *x);
/* A hash of all bytes of the file. */
uint64_t qn_line_index_hash(const qn_line_index *x);
/* Of line i, in bytes. */
int64_t qn_line_index_offset(const qn_line_index *x, int64_t i);
/* As an editor counts: the file's first line is 1. */
int64_t qn_line_index_number(const qn_line_index *x, int64_t i);
/* Line i, without its newline, instead of what is in *out. QN_E_FORMAT: longer than QN_LINE_BYTES_MAX;
 * QN_E_IO: reading failed, or the file has changed. */
qn_status qn_line_index_read(const qn_line_index *x, int64_t i, qn_buf *out);

#endif
