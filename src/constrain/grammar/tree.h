/* A grammar as it is written: rules with expressions, which the front ends build and qn_tree_finish turns into a
 * qn_grammar. Nodes live in the arena of the work; automata in the tree's list are released with it. One thread
 * at a time. */
#ifndef QN_CONSTRAIN_GRAMMAR_TREE_H
#define QN_CONSTRAIN_GRAMMAR_TREE_H

#include "constrain/automaton/work.h"
#include "constrain/grammar/grammar.h"

enum { QN_TREE_QUANTIFIERS_MAX = 4 }; /* behind one term, as walks recurse into each */

typedef enum {
    QN_TREE_EMPTY,
    QN_TREE_TEXT,
    QN_TREE_DFA,
    QN_TREE_RULE,
    QN_TREE_SEQUENCE, /* the children, one after another */
    QN_TREE_ALTERNATIVES,
    QN_TREE_REPEAT, /* the child, min to max times; max -1: no bound */
} qn_tree_kind;

typedef struct {
    qn_tree_kind kind;
    int32_t last, before; /* the last child and the sibling before this one; -1: none */
    int32_t min, max;
    int32_t index; /* of a rule or of an automaton */
    int32_t line, column;
    const char *text; /* in the arena */
    size_t n;
} qn_tree_node;

typedef struct {
    const char *name; /* in the arena */
    int32_t line, column;
    int32_t body; /* -1: used, but not written yet */
} qn_tree_rule;

typedef struct {
    qn_dfa_work w;
    qn_grammar_limits limits; /* with defaults filled in */
    qn_dfa_array nodes, rules, dfas;
} qn_tree;

void qn_tree_begin(qn_tree *t, const qn_grammar_limits *limits);
void qn_tree_end(qn_tree *t);

qn_status qn_tree_add(qn_tree *t, qn_tree_node node, int32_t *out);
qn_tree_node *qn_tree_at(const qn_tree *t, int32_t i);
/* Takes d over, also on failure. */
qn_status qn_tree_add_dfa(qn_tree *t, qn_dfa *d, int32_t line, int32_t column, int32_t *out);
/* The rule of this name, which is made if it is not there. */
qn_status qn_tree_rule_named(qn_tree *t, const char *name, size_t n, int32_t line, int32_t column,
                             int32_t *out);
qn_tree_rule *qn_tree_rule_at(const qn_tree *t, int32_t i);
/* One node out of a list of siblings, linked by `before`, that ends with `last`: kind is SEQUENCE or
 * ALTERNATIVES. */
qn_status qn_tree_join(qn_tree *t, qn_tree_kind kind, int32_t last, int32_t *out);

/* Statuses as the front ends'. */
qn_status qn_tree_finish(qn_tree *t, int32_t start, qn_grammar **out);

/* --- Text with places --- */

typedef struct {
    const char *text;
    size_t n, at;
    int32_t line;
    size_t line_begin;
} qn_tree_reader;

/* "line 3, column 5: what" */
qn_status qn_tree_fail(const qn_tree_reader *r, size_t at, qn_status status, const char *what);
static inline int qn_tree_peek(const qn_tree_reader *r, size_t ahead)
{
    return r->n - r->at > ahead ? (uint8_t)r->text[r->at + ahead] : -1;
}
static inline int32_t qn_tree_column(const qn_tree_reader *r, size_t at)
{
    return at < r->line_begin ? 1 : (int32_t)(at - r->line_begin) + 1;
}
/* A number of decimal digits, cut at INT32_MAX; -1: there is none. */
int32_t qn_tree_number(qn_tree_reader *r);

#endif
