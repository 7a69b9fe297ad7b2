/* Files mapped read-only, and small files read whole.
 *
 * A mapping never changes size or address while it is open; its bytes are shared with the page cache, so
 * dropping a range only gives up resident memory and costs a page fault if the range is read again.
 * Invariant: size > 0 and data != NULL. Out of scope: a file that another process truncates while it is
 * mapped (reading past its new end raises SIGBUS). Any thread may read and drop; open and close by one owner,
 * retain by anybody who may read.
 */
#ifndef QN_FORMAT_FILES_MMAP_H
#define QN_FORMAT_FILES_MMAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct qn_mapping qn_mapping;

/* QN_E_IO: no such file, not readable, a directory or another thing that is not a regular file; QN_E_FORMAT:
 * empty file. Every message names the path. */
qn_status qn_mapping_open(const char *path, qn_mapping **out);
void qn_mapping_close(qn_mapping *m);
/* One more owner, who closes it too. */
qn_mapping *qn_mapping_retain(const qn_mapping *m);
const uint8_t *qn_mapping_data(const qn_mapping *m);
size_t qn_mapping_size(const qn_mapping *m);
/* As given to open. Borrowed. */
const char *qn_mapping_path(const qn_mapping *m);
/* Gives up the resident pages of [offset, offset + n): the page that holds offset, up to the last page that
 * ends in the range (so that dropping block after block in rising order drops all). A range that is not in
 * the file is cut to it. */
void qn_mapping_drop(const qn_mapping *m, size_t offset, size_t n);

/* How the mapping will be read: all of it, in order (the default), or a few bytes here and there: then the
 * system does not read ahead. */
typedef enum { QN_MAPPING_ALL, QN_MAPPING_SAMPLES } qn_mapping_use;
void qn_mapping_expect(const qn_mapping *m, qn_mapping_use use);

/* QN_E_FORMAT: bytes[0..n) are what Git LFS leaves in the place of a file that it has not fetched. The message says
 * so, and what to do. Every reader of a model's files asks this first. */
qn_status qn_file_check_pointer(const char *path, const void *bytes, size_t n);

/* Reads a whole regular file of at most limit_bytes. *text is NUL-terminated (n does not count the NUL) and
 * owned by the caller (qn_free). QN_E_NOT_FOUND: no such file; QN_E_IO: not readable; QN_E_FORMAT: larger
 * than the limit, or a pointer of Git LFS. */
qn_status qn_file_read(const char *path, size_t limit_bytes, char **text, size_t *n);

#endif
