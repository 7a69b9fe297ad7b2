/* Small files of weights for tests of sources, and what opening them should give. */
#ifndef QN_TESTS_SUPPORT_SOURCE_FILES_H
#define QN_TESTS_SUPPORT_SOURCE_FILES_H

#include "format/source/source.h"

/* Names of tensors, NULL at the end. */
extern const char *const qn_test_a_b[], *const qn_test_b_c[], *const qn_test_c_d[];

/* A safetensors file with one-byte tensors of the given names, whose values count up from `first`. */
void qn_test_write_shard(const char *folder, const char *name, uint8_t first, const char *const *tensors);
/* A GGUF with one float of value 1, named `tensor`, and no metadata. */
void qn_test_write_gguf(const char *folder, const char *name, const char *tensor);
/* One part of a split GGUF, as llama.cpp's gguf-split writes it, with one float of value `part`. */
void qn_test_write_part(const char *folder, const char *name, uint16_t part, uint16_t n_parts,
                        int32_t n_tensors, const char *tensor);

/* The source, which must open. */
qn_source *qn_test_open_source(const char *path, const qn_source_options *options);
/* The source must be refused with this status and a message that has all parts (QN_TEST_PARTS). */
void qn_test_refused_source(const char *path, const qn_source_options *options, qn_status status,
                            const char *const *parts);
#define QN_TEST_PARTS(...) ((const char *const[]){__VA_ARGS__, NULL})
/* The byte of a one-byte tensor; -1 if the source has no such tensor. */
int qn_test_byte_of(const qn_source *s, const char *tensor);

#endif
