/* The made-up model behind the backend mock: a small llama of random weights as one GGUF file, with a
 * byte-level vocabulary and a chat template, so that everything above the weights runs for real.
 *
 * Ids below 256 are the bytes, then come 6 special tokens, and the rest are words of two or three syllables
 * with a space before them. A word of the vocabulary is one token, all other text a token a byte, so that any
 * text goes in and out, and the text of generated tokens gives the same tokens again. Weights depend on the
 * seed alone. Special tokens and bytes have logits of 0 and are next to never generated, unless `ends` is
 * set: then the model's end of turn comes about every 20 tokens. Any thread. */
#ifndef QN_BACKEND_MOCK_MOCK_FILE_H
#define QN_BACKEND_MOCK_MOCK_FILE_H

#include <stdint.h>

#include "base/buf.h"

enum { QN_MOCK_VOCAB = 32000, QN_MOCK_VOCAB_MIN = 512, QN_MOCK_VOCAB_MAX = 1000000 };

typedef struct {
    uint64_t seed;
    int ends;
    int vocab_size; /* QN_MOCK_VOCAB_MIN to QN_MOCK_VOCAB_MAX */
} qn_mock_spec;

/* Appends the file's bytes, about 6 MB with QN_MOCK_VOCAB. */
void qn_mock_file_write(const qn_mock_spec *m, qn_buf *out);

#endif
