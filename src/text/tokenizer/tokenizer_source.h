/* The tokenizer of a model source, from whichever of its files has one: tokenizer.json, else GGUF metadata, else
 * vocab.json with merges.txt, tokenizer.model, a tiktoken file, vocab.txt; with the names of special tokens out of
 * tokenizer_config.json. */
#ifndef QN_TEXT_TOKENIZER_TOKENIZER_SOURCE_H
#define QN_TEXT_TOKENIZER_TOKENIZER_SOURCE_H

#include <jansson.h>

#include "base/buf.h"
#include "format/source/source.h"
#include "text/tokenizer/tokenizer.h"

/* 1: the source has a tokenizer, whole or broken. */
int qn_tokenizer_is_there(const qn_source *src);
/* Holds t against the model that it lies beside, whose embedding has vocab_size rows. QN_E_FORMAT: a token of
 * the vocabulary itself (added ones may) lies beyond the rows, so it is another model's. Where tokenizer.json
 * stands for the list of a GGUF file and the two say different things, *notes gets a line. */
qn_status qn_tokenizer_check(const qn_source *src, const qn_tokenizer *t, int64_t vocab_size, qn_buf *notes);
/* pre_regex stands for a GGUF's named pre-tokenizer; NULL: by name. QN_E_ARG: there is a pre_regex and a
 * tokenizer.json, which brings its own. QN_E_NOT_FOUND: no tokenizer; and the parsers' statuses. src is
 * needed during the call only. */
qn_status qn_tokenizer_open(qn_source *src, const char *pre_regex, qn_tokenizer **out);
/* tokenizer_config.json, parsed; an empty object where there is none. *out: json_decref. */
qn_status qn_tokenizer_config_read(qn_source *src, json_t **out);
/* The text of a special token in it: a string, or an object with "content". NULL: the value is neither.
 * Borrowed. */
const char *qn_tokenizer_config_text(const json_t *value, size_t *n);

#endif
