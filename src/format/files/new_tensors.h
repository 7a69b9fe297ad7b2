/* The tensors of a new file, which the writers of GGUF and safetensors share: they are declared, lie one
 * after the other behind the header, are written in any order, each byte once, and must be complete at the
 * end. The header is the format's business. The file appears whole or not at all (new_file.h).
 *
 * Messages begin with the path. One thread at a time. */
#ifndef QN_FORMAT_FILES_NEW_TENSORS_H
#define QN_FORMAT_FILES_NEW_TENSORS_H

#include "base/arena.h"
#include "base/map.h"
#include "format/files/new_file.h"
#include "format/files/tensor_view.h"

typedef struct {
    const char *name;
    const qn_type *type;
    int n_dims;
    int64_t shape[QN_VIEW_DIMS_MAX]; /* slowest dimension first */
    size_t offset, size_bytes;       /* in the data */
    size_t written_bytes;
} qn_new_tensor;

typedef struct {
    char *path;
    qn_new_file *file;    /* NULL: not begun */
    qn_new_tensor *items; /* in the order of the file */
    size_t n, capacity;
    qn_map *by_name;
    qn_arena names;
    size_t data_size;   /* of all tensors */
    size_t data_offset; /* where the data begins in the file */
} qn_new_tensors;

/* Touches nothing on disk. t is zeroed; to be freed after a failure too. */
qn_status qn_new_tensors_init(qn_new_tensors *t, const char *path);
/* Declares tensor number *index (may be NULL); the next one begins at a multiple of align, a power of two.
 * n_dims is at most QN_VIEW_DIMS_MAX, and the type is one of the format's. QN_E_ARG: a name twice, a negative
 * dimension, a size that overflows. */
qn_status qn_new_tensors_add(qn_new_tensors *t, const char *name, const qn_type *type, int n_dims,
                             const int64_t *shape, size_t align, int64_t *index);
/* Creates the file, with room for all tensors, and writes the header, behind which the data begins.
 * is_private as for qn_new_file_open. */
qn_status qn_new_tensors_begin(qn_new_tensors *t, int is_private, const void *header, size_t n);
/* Writes bytes [offset, offset + n) of a tensor. QN_E_ARG: no such tensor, or outside it; QN_E_IO. After a
 * failure of the file only free is allowed. */
qn_status qn_new_tensors_write(qn_new_tensors *t, int64_t index, size_t offset, const void *bytes, size_t n);
/* Checks that every tensor is complete (QN_E_ARG) and puts the file in its place. */
qn_status qn_new_tensors_finish(qn_new_tensors *t);
/* Without a successful finish nothing of the file is left. Zeroed: nothing to free. */
void qn_new_tensors_free(qn_new_tensors *t);

#endif
