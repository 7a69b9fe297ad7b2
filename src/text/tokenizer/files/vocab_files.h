/* A tokenizer of vocab.json and merges.txt, as GPT-2 and Qwen2 were published: put together as the tokenizer.json that
 * transformers makes of them. Which rules go around the vocabulary is its class's: `tokenizer_class` of
 * tokenizer_config.json, else what `model_type` of config.json stands for. One thread at a time. */
#ifndef QN_TEXT_TOKENIZER_FILES_VOCAB_FILES_H
#define QN_TEXT_TOKENIZER_FILES_VOCAB_FILES_H

#include <jansson.h>

#include "base/buf.h"
#include "format/source/source.h"

/* 1: both files are there. */
int qn_vocab_files_are_there(const qn_source *src);
/* Appends the text of that tokenizer.json. *config (tokenizer_config.json) gets the names of tokens that the class
 * itself has, where it says nothing of them. QN_E_UNSUPPORTED: another class; QN_E_FORMAT: a line of merges.txt that is
 * not two tokens with a space between. The vocabulary is checked by who reads the text. */
qn_status qn_vocab_files_read(qn_source *src, json_t *config, qn_buf *out);
/* The same of the texts alone. merges_path names merges.txt in messages; class: "GPT2Tokenizer", "Qwen2Tokenizer". */
qn_status qn_vocab_files_join(const char *tokenizer_class, const char *vocab, size_t n_vocab,
                              const char *merges_path, const char *merges, size_t n_merges, qn_buf *out);
/* The same of vocab.txt alone, as BERT was published: a token a line, WordPiece. config says `do_lower_case`,
 * `strip_accents`, `tokenize_chinese_chars`. What goes around a text is left to the caller
 * (qn_tokenizer_set_bert). */
qn_status qn_vocab_text_read(qn_source *src, json_t *config, qn_buf *out);
/* path names vocab.txt in messages. config may be NULL. */
qn_status qn_vocab_text_join(const char *path, const char *text, size_t n, const json_t *config, qn_buf *out);

#endif
