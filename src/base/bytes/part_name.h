/* Names of the parts of a split GGUF file, as llama.cpp's gguf-split writes them: PREFIX-00002-of-00003.gguf. Parts of
 * one model differ in nothing but the first number. Pure functions, any thread. */
#ifndef QN_BASE_BYTES_PART_NAME_H
#define QN_BASE_BYTES_PART_NAME_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

typedef struct {
    size_t n_prefix;       /* bytes before "-00002-of-00003.gguf", folders included */
    int64_t part, n_parts; /* part counts from 0 */
} qn_part_name;

/* 1: the last piece of path is the name of a part. The numbers have five digits, and the prefix is not empty. */
int qn_part_name_read(const char *path, qn_part_name *out);
/* 1: both are parts of one model. */
int qn_part_name_is_same(const char *a, const char *b);
/* Appends the path of part i (from 0) of the model that path is a part of, as out of qn_part_name_read. */
void qn_part_name_put(qn_buf *b, const char *path, const qn_part_name *name, int64_t i);

#endif
