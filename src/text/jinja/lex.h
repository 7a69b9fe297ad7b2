/* Template text to tokens, with Jinja's rules for white space: trim_blocks and lstrip_blocks are on, `-` and
 * `+` signs override them, one newline at the end is dropped, all line ends become \n. */
#ifndef QN_TEXT_JINJA_LEX_H
#define QN_TEXT_JINJA_LEX_H

#include "text/jinja/value.h"

typedef enum {
    QN_JTOKEN_END,
    QN_JTOKEN_DATA,
    QN_JTOKEN_PRINT_BEGIN,
    QN_JTOKEN_PRINT_END,
    QN_JTOKEN_BLOCK_BEGIN,
    QN_JTOKEN_BLOCK_END,
    QN_JTOKEN_NAME,
    QN_JTOKEN_STRING,
    QN_JTOKEN_INT,
    QN_JTOKEN_BIG, /* an integer literal beyond 64 bits: `op` is its base, `text` its digits */
    QN_JTOKEN_FLOAT,
    QN_JTOKEN_OPERATOR,
} qn_jtoken_kind;

/* Operators of one character are themselves. */
enum {
    QN_JOP_EQ = 128,
    QN_JOP_NE,
    QN_JOP_LE,
    QN_JOP_GE,
    QN_JOP_FLOORDIV,
    QN_JOP_POW,
    QN_JOP_IN,
    QN_JOP_NOT_IN
};

typedef struct {
    uint8_t kind, op;
    uint32_t line; /* from 1 */
    const char *text;
    size_t n;
    union {
        int64_t i;
        double f;
    };
} qn_jtoken;

/* tokens end with QN_JTOKEN_END; text lies in h. Fails on text that is not UTF-8, unbalanced brackets and bad
 * literals. */
qn_status qn_jlex(qn_jheap *h, const char *text, size_t n, qn_jtoken **tokens, size_t *n_tokens);

#endif
