/* A tokenizer of SentencePiece's own file, tokenizer.model: pieces with their scores, the rules of normalisation,
 * and how it was trained. BPE and Unigram models. Text gives the ids that SentencePiece gives; its control pieces
 * are special tokens. One thread at a time. */
#ifndef QN_TEXT_TOKENIZER_FILES_SENTENCEPIECE_H
#define QN_TEXT_TOKENIZER_FILES_SENTENCEPIECE_H

#include <jansson.h>

#include "text/tokenizer/named_tokens.h"
#include "text/tokenizer/tokenizer.h"

/* what names the file in messages; data is needed during the call only. config: tokenizer_config.json, which says
 * what goes around a text (`add_bos_token`, `add_eos_token`, `tokenizer_class`) and when a space is put before it
 * (`add_prefix_space`, `legacy`), or NULL. named: the tokens that the files beside it name, or NULL. QN_E_FORMAT names
 * what is broken; QN_E_UNSUPPORTED: a model of words or characters, or a class that counts its ids otherwise. */
qn_status qn_sentencepiece_open(const char *what, const void *data, size_t n, const json_t *config,
                                const qn_named_tokens *named, qn_tokenizer **out);

#endif
