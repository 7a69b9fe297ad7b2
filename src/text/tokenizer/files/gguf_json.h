/* Vocabularies of encoders in GGUF files as the text of a tokenizer.json. Model "bert" is WordPiece: a token that begins
 * a word has U+2581 in front, one that goes on has lost its "##", and special tokens are as they are. Model "t5" is
 * unigram, with SentencePiece's precompiled map of characters. What the file does not say is as transformers has it for
 * published models: text is lowered if no ordinary token has a capital letter. Pure functions: any thread. */
#ifndef QN_TEXT_TOKENIZER_FILES_GGUF_JSON_H
#define QN_TEXT_TOKENIZER_FILES_GGUF_JSON_H

#include "base/buf.h"
#include "format/gguf/gguf.h"

/* 1: tokenizer.ggml.model is one of these. */
int qn_gguf_json_has(const qn_gguf *g);
/* Appends the text to *out. ids: of bos (or cls), eos (or sep), unk and pad; -1: none. QN_E_FORMAT names the key. */
qn_status qn_gguf_json_write(const qn_gguf *g, int32_t ids[4], qn_buf *out);

#endif
