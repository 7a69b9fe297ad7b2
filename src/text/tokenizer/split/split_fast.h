/* Hand-written scanners for the split expressions of the common models, several times faster than the
 * expression. They give the same pieces as PCRE2 for every text of code points that both Unicode versions
 * know (a test compares them). Any thread. */
#ifndef QN_TEXT_TOKENIZER_SPLIT_SPLIT_FAST_H
#define QN_TEXT_TOKENIZER_SPLIT_SPLIT_FAST_H

#include <stddef.h>

typedef enum {
    QN_SPLIT_NONE,   /* no scanner: run the expression */
    QN_SPLIT_GPT2,   /* 's|'t|...| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
    QN_SPLIT_LLAMA3, /* (?i:'s|...)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|... */
    QN_SPLIT_QWEN2,  /* the same with single digits */
} qn_split_kind;

/* The scanner for an expression, by its exact text. */
qn_split_kind qn_split_kind_of(const char *pattern, size_t n);
extern const char qn_gpt2_pattern[], qn_llama3_pattern[], qn_qwen2_pattern[];
/* End of the piece that starts at at < n. Pieces of these expressions cover the text without gaps. */
size_t qn_split_next(qn_split_kind kind, const char *text, size_t n, size_t at);

#endif
