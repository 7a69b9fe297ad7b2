/* Grammars: context-free languages of UTF-8 texts whose terminals are automata over bytes.
 *
 * A grammar is immutable and reference-counted; any thread may read one. What is regular has become one terminal:
 * rules that need no recursion are gone, and so are rules that cannot be reached or that end no text. A language
 * that is regular as a whole is one rule of one terminal. Left recursion stays. Every rule ends some text, no
 * terminal is empty, and no symbol is a terminal for the empty text alone. */
#ifndef QN_CONSTRAIN_GRAMMAR_GRAMMAR_H
#define QN_CONSTRAIN_GRAMMAR_GRAMMAR_H

#include "constrain/automaton/dfa.h"

/* 0 means the value in the comment. A NULL pointer to limits means all of these. */
typedef struct {
    size_t bytes_max;    /* of the source: 64 KiB */
    int32_t depth_max;   /* of brackets: 64 */
    int32_t rules_max;   /* written and made: 4,000 */
    int32_t symbols_max; /* on all right sides together: 50,000 */
    qn_dfa_limits dfa;   /* of each terminal; steps_max is for the whole grammar */
} qn_grammar_limits;

typedef struct {
    int32_t first_production, n_productions;
    int32_t is_nullable; /* ends the empty text */
} qn_grammar_rule;

typedef struct {
    int32_t rule;
    int32_t first_symbol, n_symbols;
} qn_grammar_production;

typedef struct {
    int32_t n_references; /* atomic */
    int32_t n_rules, n_productions, n_symbols, n_terminals;
    int32_t start;
    const qn_grammar_rule *rules;
    const qn_grammar_production *productions; /* in the order of rules */
    const int32_t *symbols;                   /* 0 and above: a rule; below: terminal ~symbol */
    qn_dfa *const *terminals;                 /* [n_terminals], no two alike */
} qn_grammar;

static inline int qn_symbol_is_terminal(int32_t symbol)
{
    return symbol < 0;
}

/* llama.cpp's GBNF; the start is "root". QN_E_FORMAT: no such grammar, with line and column. QN_E_UNSUPPORTED:
 * references to tokens, or a limit. */
qn_status qn_grammar_gbnf(const char *text, size_t n, const qn_grammar_limits *limits, qn_grammar **out);
/* EBNF with ::= as XGrammar and SGLang have it; the start is "root". Statuses as above; UNSUPPORTED: look-ahead,
 * tags. */
qn_status qn_grammar_ebnf(const char *text, size_t n, const qn_grammar_limits *limits, qn_grammar **out);
/* Lark's form; the start is "start". Terminals may be cut anywhere, as Lark's own Earley parser with its dynamic
 * lexer does; so priorities do not matter. Regular expressions are ECMA-262's. QN_E_UNSUPPORTED: templates,
 * imports beside common, %json and other directives, attributes, special tokens. */
qn_status qn_grammar_lark(const char *text, size_t n, const qn_grammar_limits *limits, qn_grammar **out);

qn_grammar *qn_grammar_retain(qn_grammar *g);
void qn_grammar_release(qn_grammar *g);
size_t qn_grammar_bytes(const qn_grammar *g);

#endif
