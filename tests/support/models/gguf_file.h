/* GGUF files that a test makes up: a sound little llama, or a fixture that was read, of which one thing is
 * bent before it is written. Failures end the running test. */
#ifndef QUERN_TESTS_GGUF_FILE_H
#define QUERN_TESTS_GGUF_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "format/gguf/gguf.h"

enum { QN_TEST_GGUF_VALUES_MAX = 96, QN_TEST_GGUF_TENSORS_MAX = 256, QN_TEST_GGUF_KEY_MAX = 96 };

typedef struct {
    char key[QN_TEST_GGUF_KEY_MAX];
    uint32_t type;
    qn_buf bytes; /* as in the file, behind the type: of an array also its element type and count */
} qn_test_gguf_value;

typedef struct {
    char name[QN_TEST_GGUF_KEY_MAX];
    uint32_t n_dims;  /* as written; of dims at most 5 are written */
    uint64_t dims[5]; /* fastest first, as in the file */
    uint32_t type;
    uint64_t offset;   /* as written */
    const void *data;  /* NULL: zeros; borrowed */
    size_t size_bytes; /* of the data that is written, which begins at the next multiple of the alignment */
} qn_test_gguf_tensor;

typedef struct {
    uint32_t version;
    uint64_t n_values_more, n_tensors_more; /* added to the true counts in the header, modulo 2^64 */
    size_t alignment;                       /* where tensors are laid, whatever general.alignment says */
    qn_test_gguf_value values[QN_TEST_GGUF_VALUES_MAX];
    size_t n_values;
    qn_test_gguf_tensor tensors[QN_TEST_GGUF_TENSORS_MAX];
    size_t n_tensors;
    qn_gguf *from; /* what was read; NULL: made up */
} qn_test_gguf;

/* Without values and tensors. */
qn_test_gguf *qn_test_gguf_empty(void);
/* A llama with one layer and a SentencePiece vocabulary of QN_TEST_GGUF_VOCAB tokens, that opens and
 * computes. */
enum { QN_TEST_GGUF_VOCAB = 16 };
qn_test_gguf *qn_test_gguf_new(void);
/* Makes another family of it: "qwen2", "qwen3", "gemma", "gemma2" or "gemma3", with the tensors and keys it
 * has. */
void qn_test_gguf_become(qn_test_gguf *f, const char *architecture);
/* All of a file. */
qn_test_gguf *qn_test_gguf_read(const char *path);
void qn_test_gguf_free(qn_test_gguf *f);

/* Sets or adds a value whose bytes follow. */
void qn_test_gguf_set(qn_test_gguf *f, const char *key, uint32_t type, const void *bytes, size_t n);
void qn_test_gguf_set_u32(qn_test_gguf *f, const char *key, uint32_t value);
void qn_test_gguf_set_f32(qn_test_gguf *f, const char *key, float value);
void qn_test_gguf_set_text(qn_test_gguf *f, const char *key, const char *text);
/* bytes[0..n) follow the element type and the count. */
void qn_test_gguf_set_array(qn_test_gguf *f, const char *key, uint32_t element, uint64_t count,
                            const void *bytes, size_t n);
void qn_test_gguf_set_texts(qn_test_gguf *f, const char *key, size_t count, const char *const *texts);
void qn_test_gguf_drop(qn_test_gguf *f, const char *key);

/* A matrix, or with rows 0 a vector, of data that outlives f; its offset comes of qn_test_gguf_place. */
void qn_test_gguf_tensor_add(qn_test_gguf *f, const char *name, qn_dtype dtype, int64_t rows, int64_t cols,
                             const void *data);
qn_test_gguf_tensor *qn_test_gguf_tensor_get(qn_test_gguf *f, const char *name);
void qn_test_gguf_tensor_drop(qn_test_gguf *f, const char *name);
/* Offsets of all tensors anew from their sizes, end to end at multiples of the alignment. */
void qn_test_gguf_place(qn_test_gguf *f);

/* The file's bytes behind what *b holds. */
void qn_test_gguf_bytes(const qn_test_gguf *f, qn_buf *b);
/* Writes folder/name and returns its path, as qn_test_path does. */
const char *qn_test_gguf_write(const qn_test_gguf *f, const char *folder, const char *name);

#endif
