/* What a GGUF's tokenizer.ggml.pre stands for: the split expressions of a published tokenizer, and what else
 * came with it. Data only. */
#ifndef QN_TEXT_TOKENIZER_SPLIT_GGUF_PRE_H
#define QN_TEXT_TOKENIZER_SPLIT_GGUF_PRE_H

#include <jansson.h>

enum { QN_GGUF_PRE_REGEXES_MAX = 6 };

typedef struct {
    const char *names;                            /* separated by single spaces */
    int ignore_merges;                            /* a word that is a token is that token */
    int add_bos;                                  /* unless tokenizer.ggml.add_bos_token says otherwise */
    const char *regexes[QN_GGUF_PRE_REGEXES_MAX]; /* run one after the other, each cuts the pieces of the one
                                                     before */
} qn_gguf_pre;

/* NULL: not known. n bytes of name. */
const qn_gguf_pre *qn_gguf_pre_find(const char *name, unsigned long n);
/* The "pre_tokenizer" of a tokenizer.json that cuts by up to n expressions (NULL ends them) and writes bytes;
 * the caller's (json_decref). NULL: out of memory. */
json_t *qn_gguf_pre_json(const char *const *regexes, unsigned long n);
/* All that are known, in turn; NULL behind the last. The first of its names is what it is written as. */
const qn_gguf_pre *qn_gguf_pre_at(unsigned long i);

#endif
