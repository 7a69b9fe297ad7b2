/* A tokenizer.json written as the metadata of a GGUF file, what tokenizer_gguf.c reads: tokens with their
 * kinds, merges (or scores, of vocabularies in SentencePiece's way), the name of the pre-tokenizer, special
 * ids, the chat template. What a GGUF cannot say is found by comparison: texts of many kinds are encoded by
 * both. One thread at a time. */
#ifndef QN_TEXT_TOKENIZER_TOKENIZER_TO_GGUF_H
#define QN_TEXT_TOKENIZER_TOKENIZER_TO_GGUF_H

#include "format/gguf/gguf_writer.h"
#include "format/source/source.h"
#include "text/tokenizer/tokenizer.h"

/* What of it the model's description says. */
typedef struct {
    int64_t vocab_size; /* rows of the embedding: as many tokens are written */
    int32_t bos_id;     /* -1: not said */
    const int32_t *stop_ids;
    int n_stop_ids;
    const char *architecture; /* of the GGUF file: "gemma4" has merges where others of its kind have scores */
} qn_gguf_vocab;

/* src: with a tokenizer.json, of which t was made. Ids that end a generation: EOS, and up to two more; notes
 * get a line where there are others. QN_E_UNSUPPORTED: what GGUF has no form for (message: which part). */
qn_status qn_tokenizer_write_gguf(qn_source *src, const qn_tokenizer *t, const qn_gguf_vocab *vocab,
                                  qn_gguf_writer *w, qn_buf *notes);
/* QN_E_UNSUPPORTED: the tokenizer that was read from GGUF does not do what t does; the message begins with
 * what and says for which text. notes get a line where only texts differ that are not in composed form. */
qn_status qn_tokenizer_compare(const char *what, const qn_tokenizer *t, const qn_tokenizer *read,
                               qn_buf *notes);

#endif
