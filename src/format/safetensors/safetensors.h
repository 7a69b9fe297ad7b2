/* safetensors: 8 bytes of header length, a JSON header, data.
 *
 * One qn_safetensors is one file. All of its header is checked at open, before any tensor is shown: header
 * length, names (unique), shapes (their product times the type's size is the range's length), ranges (inside
 * the file, without overlap or hole). A type that quern does not know is an error only when that tensor is
 * asked for. Open and close by one owner; an open reader is immutable, any thread.
 *
 * The writer makes a new file beside the target and renames it at the end, so a failed write leaves nothing
 * behind. One thread at a time. */
#ifndef QN_FORMAT_SAFETENSORS_SAFETENSORS_H
#define QN_FORMAT_SAFETENSORS_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "format/files/tensor_view.h"

typedef struct qn_safetensors qn_safetensors;

/* QN_E_IO, QN_E_FORMAT, QN_E_NOMEM; the message begins with the path. */
qn_status qn_safetensors_open(const char *path, qn_safetensors **out);
/* The same over bytes[0..n), which must outlive the reader; name stands for the path in messages. */
qn_status qn_safetensors_open_bytes(const char *name, const void *bytes, size_t n, qn_safetensors **out);
void qn_safetensors_close(qn_safetensors *s);

const char *qn_safetensors_path(const qn_safetensors *s);
/* Tensors, in the order of the header. */
int64_t qn_safetensors_count(const qn_safetensors *s);
/* i in [0, count). Never NULL; may be of an unsupported type. */
const qn_tensor_view *qn_safetensors_get(const qn_safetensors *s, int64_t i);
/* NULL (without a message) when there is no such tensor. */
const qn_tensor_view *qn_safetensors_find(const qn_safetensors *s, const char *name);
/* QN_E_NOT_FOUND: no such tensor; QN_E_UNSUPPORTED: its type is not known. */
qn_status qn_safetensors_tensor(const qn_safetensors *s, const char *name, const qn_tensor_view **out);
/* The value of a key of __metadata__, NUL-terminated, borrowed; NULL when there is none. */
const char *qn_safetensors_metadata(const qn_safetensors *s, const char *key);
/* The i-th pair of __metadata__: 0 when there is none. */
int qn_safetensors_metadata_at(const qn_safetensors *s, int64_t i, const char **key, const char **value);

typedef struct qn_st_writer qn_st_writer;

/* Nothing is touched on disk until begin. */
qn_status qn_st_writer_new(const char *path, qn_st_writer **out);
/* Adds a pair to __metadata__. Before begin. */
qn_status qn_st_writer_metadata(qn_st_writer *w, const char *key, const char *value);
/* The data begins at a multiple of so many bytes of the file: a power of two, 8 or more (8 unless set).
 * Before begin. */
qn_status qn_st_writer_align(qn_st_writer *w, size_t bytes);
/* Only the owner may read the file, as far as it is a new one. Before begin. */
void qn_st_writer_private(qn_st_writer *w);
/* Declares a tensor; shape slowest dimension first. Tensors are laid out in the order of declaration; the
 * first is number 0
 * (*index may be NULL). Before begin. QN_E_ARG: block types, a name twice, negative dimensions, a size that
 * overflows. */
qn_status qn_st_writer_add(qn_st_writer *w, const char *name, qn_dtype dtype, int n_dims,
                           const int64_t *shape, int64_t *index);
/* Creates the temporary file and writes the header. A target that exists and is not a regular file (a device)
 * is written in place. */
qn_status qn_st_writer_begin(qn_st_writer *w);
/* Writes bytes [offset, offset + n) of tensor `index`; blocks of several tensors may come in any order, each
 * byte once. QN_E_ARG: outside the tensor; QN_E_IO: disk full and the like, with the path. After a failure
 * only free is allowed. */
qn_status qn_st_writer_write(qn_st_writer *w, int64_t index, size_t offset, const void *bytes, size_t n);
/* Checks that every tensor is complete (QN_E_ARG), flushes and renames into place. The writer is still to be
 * freed. */
qn_status qn_st_writer_finish(qn_st_writer *w);
/* Without a successful finish it removes the temporary file. NULL is accepted. */
void qn_st_writer_free(qn_st_writer *w);

#endif
