/* A tokenizer of a tiktoken file: a token in base64 and its rank on each line. Words are split by the expression
 * that tokenizer_config.json has, else by that which the class or the name of the file stands for; special tokens
 * come of the configuration, or of the lists that those classes bring along. One thread at a time. */
#ifndef QN_TEXT_TOKENIZER_FILES_TIKTOKEN_H
#define QN_TEXT_TOKENIZER_FILES_TIKTOKEN_H

#include <jansson.h>

#include "text/tokenizer/named_tokens.h"
#include "text/tokenizer/tokenizer.h"

/* 1: the text begins as such a file does. */
int qn_tiktoken_is(const char *text, size_t n);
/* path names the file; text is needed during the call only. config: tokenizer_config.json, or NULL: there is none.
 * named: the tokens that the files beside it name, or NULL. QN_E_FORMAT names the line that is broken. */
qn_status qn_tiktoken_open(const char *path, const char *text, size_t n, const json_t *config,
                           const qn_named_tokens *named, qn_tokenizer **out);

#endif
