/* Rows of numbers on their way into a tensor of a new file: encoded in its type, by all threads of a pool,
 * and written one after the other; a type of MLX's in the three tensors that it has in safetensors.
 * Invariant: the bytes depend on the numbers alone. One thread at a time. */
#ifndef QN_CONVERT_ROW_WRITER_H
#define QN_CONVERT_ROW_WRITER_H

#include "base/threads.h"
#include "format/gguf/gguf_writer.h"
#include "format/safetensors/safetensors.h"
#include "quant/types.h"

/* The file. One of both. */
typedef struct {
    qn_st_writer *st;
    qn_gguf_writer *gguf;
} qn_tensor_file;

/* Writes bytes of tensor `index`. */
qn_status qn_tensor_file_write(const qn_tensor_file *f, int64_t index, size_t offset, const void *bytes,
                               size_t n);

typedef enum { QN_ROW_BLOCKS, QN_ROW_CODES, QN_ROW_SCALES, QN_ROW_BIASES } qn_row_part;

typedef struct {
    qn_tensor_file to;
    const qn_type *type;     /* one that has an encoder */
    int64_t n_cols;          /* a multiple of the type's block */
    int64_t index;           /* of the tensor in the file */
    qn_row_part part;        /* of a row, that the tensor has: BLOCKS is all of it */
    const char *file, *name; /* where the numbers come from, for messages */
    qn_pool *pool;
    int64_t at;               /* the row that comes next */
    uint8_t *blocks, *parts;  /* of one range */
    size_t n_blocks, n_parts; /* bytes of room */
} qn_row_writer;

/* rows [n, n_cols]. QN_E_UNSUPPORTED: a number that the type cannot hold (message: which). */
qn_status qn_row_writer_put(qn_row_writer *w, const float *rows, int64_t n);
/* Rows [first, first + n) of v, which is of the writer's type, as they lie. */
qn_status qn_row_writer_copy(qn_row_writer *w, const qn_tensor_view *v, int64_t first, int64_t n);
/* Its room; files are the caller's. */
void qn_row_writer_free(qn_row_writer *w);

#endif
