/* Writes a GGUF file, version 3, little-endian: metadata, then tensors, each at a multiple of the alignment
 * (32, or what general.alignment says), the file whole or not at all (new_file.h). What is written opens
 * with gguf.h. One thread at a time. */
#ifndef QN_FORMAT_GGUF_GGUF_WRITER_H
#define QN_FORMAT_GGUF_GGUF_WRITER_H

#include "format/gguf/gguf.h"

typedef struct qn_gguf_writer qn_gguf_writer;

/* Nothing is touched on disk until begin. */
qn_status qn_gguf_writer_new(const char *path, qn_gguf_writer **out);

/* Metadata, in the order of the calls, before begin. QN_E_ARG: a key twice, an empty one, or one that is no
 * UTF-8. Failures other than of memory are told at once; all are told again by begin. */
qn_status qn_gguf_writer_u32(qn_gguf_writer *w, const char *key, uint32_t value);
qn_status qn_gguf_writer_f32(qn_gguf_writer *w, const char *key, float value);
qn_status qn_gguf_writer_bool(qn_gguf_writer *w, const char *key, int value);
/* n bytes of text; any bytes, though the format promises UTF-8. */
qn_status qn_gguf_writer_text(qn_gguf_writer *w, const char *key, const char *text, size_t n);
/* An array of `count` numbers, one after the other in data. */
qn_status qn_gguf_writer_array(qn_gguf_writer *w, const char *key, qn_gguf_type type, int64_t count,
                               const void *data);
/* Begins an array of `count` strings; as many calls of next follow before anything else. */
qn_status qn_gguf_writer_texts(qn_gguf_writer *w, const char *key, int64_t count);
qn_status qn_gguf_writer_next(qn_gguf_writer *w, const char *text, size_t n);
/* A pair as it was read. */
qn_status qn_gguf_writer_copy(qn_gguf_writer *w, const qn_gguf_value *v);

/* Declares a tensor; shape slowest dimension first. Tensors lie in the order of declaration; the first is
 * number 0 (*index may be NULL). Before begin. QN_E_ARG: a type without a number in GGUF, a name twice, more
 * than 4 dimensions or none, one that is not positive, rows that are no multiple of the block, a size that
 * overflows. */
qn_status qn_gguf_writer_add(qn_gguf_writer *w, const char *name, qn_dtype dtype, int n_dims,
                             const int64_t *shape, int64_t *index);
/* Creates the file and writes all but the tensors' data. */
qn_status qn_gguf_writer_begin(qn_gguf_writer *w);
/* Writes bytes [offset, offset + n) of tensor `index`; in any order, each byte once. QN_E_ARG: outside the
 * tensor; QN_E_IO. After a failure only free is allowed. */
qn_status qn_gguf_writer_write(qn_gguf_writer *w, int64_t index, size_t offset, const void *bytes, size_t n);
/* Where the file lies until it is finished, for who looks at it before; NULL: not begun. Borrowed. */
const char *qn_gguf_writer_place(const qn_gguf_writer *w);
/* Checks that every tensor is complete (QN_E_ARG) and puts the file in its place. The writer is still to be
 * freed. */
qn_status qn_gguf_writer_finish(qn_gguf_writer *w);
/* Without a successful finish nothing of the file is left. NULL is accepted. */
void qn_gguf_writer_free(qn_gguf_writer *w);

#endif
