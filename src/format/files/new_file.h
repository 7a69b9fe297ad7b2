/* A file that appears whole or not at all: written at any place under another name beside its own, flushed,
 * then renamed. A target that exists and is not a regular file (a device) is written in place. One thread at
 * a time. */
#ifndef QN_FORMAT_FILES_NEW_FILE_H
#define QN_FORMAT_FILES_NEW_FILE_H

#include <stddef.h>

#include "base/status.h"

typedef struct qn_new_file qn_new_file;

/* Creates it with room for size_bytes, so that a full disk is known before the work (not every file system
 * can say); what is never written is zero. is_private: only the owner may read it, as far as it is a new
 * one. QN_E_IO; messages begin with the path. */
qn_status qn_new_file_open(const char *path, int is_private, size_t size_bytes, qn_new_file **out);
/* After a failure only free is allowed. */
qn_status qn_new_file_write(qn_new_file *f, size_t offset, const void *bytes, size_t n);
/* Where it lies until it is finished. Borrowed. */
const char *qn_new_file_place(const qn_new_file *f);
/* Puts it in its place. The object is still to be freed. */
qn_status qn_new_file_finish(qn_new_file *f);
/* Without a successful finish nothing of the file is left. NULL is accepted. */
void qn_new_file_free(qn_new_file *f);

#endif
