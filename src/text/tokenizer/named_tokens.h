/* The tokens that the files beside tokenizer.json name: tokenizer_config.json, and the older
 * special_tokens_map.json and added_tokens.json. The rules are those of transformers 5:
 *
 * - `added_tokens_decoder` lists tokens with their flags, which win over those of tokenizer.json. Its ids count
 *   for the order alone. Without it, added_tokens.json lists tokens and special_tokens_map.json replaces names.
 * - `bos_token`, `eos_token`, `unk_token`, `sep_token`, `pad_token`, `cls_token`, `mask_token`, every other text
 *   whose key ends in `_token`, and the members of an object `extra_special_tokens` are named tokens. Templates
 *   see them by these names.
 * - A list `extra_special_tokens` (older: `additional_special_tokens`) has tokens without a name.
 *
 * A token that the vocabulary lacks gets the next free id. Read by one owner, then immutable: any thread. */
#ifndef QN_TEXT_TOKENIZER_NAMED_TOKENS_H
#define QN_TEXT_TOKENIZER_NAMED_TOKENS_H

#include <jansson.h>

#include "format/source/source.h"
#include "text/tokenizer/tokenizer.h"

/* Token values are texts, or objects with "content" and flags. */
struct qn_named_tokens {
    const char *path; /* of tokenizer_config.json, for messages; borrowed from the source */
    json_t *names;    /* an object: name -> token, in the order in which they are added */
    json_t *listed;   /* an array of {"index", "token"} */
    json_t *extra;    /* an array of tokens */
    int is_legacy;    /* there is no added_tokens_decoder: the tokens of tokenizer.json are listed too */
};

/* A token's text and flags as AddedToken(**value) of transformers has them. */
typedef struct {
    const char *text; /* borrowed */
    size_t n;
    int special, single_word, lstrip, rstrip, normalized;
} qn_named_token;

/* config: tokenizer_config.json, parsed. The caller calls qn_named_tokens_free, also after a failure.
 * QN_E_FORMAT names the file and the key. */
qn_status qn_named_tokens_read(qn_source *src, const json_t *config, qn_named_tokens *out);
void qn_named_tokens_free(qn_named_tokens *t);
/* 0: the value is neither a text nor an object with a text "content". */
int qn_named_token_get(const json_t *value, qn_named_token *out);

#endif
