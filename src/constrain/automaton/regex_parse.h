/* The syntax of regular expressions: from the pattern to a tree. The tree lives in the arena of the work. */
#ifndef QN_CONSTRAIN_AUTOMATON_REGEX_PARSE_H
#define QN_CONSTRAIN_AUTOMATON_REGEX_PARSE_H

#include "constrain/automaton/charset.h"
#include "constrain/automaton/work.h"

typedef enum {
    QN_REGEX_EMPTY,
    QN_REGEX_SET,      /* one character of a set */
    QN_REGEX_SEQUENCE, /* the children, one after another */
    QN_REGEX_ALTERNATIVES,
    QN_REGEX_REPEAT, /* the child, min to max times; max -1: no bound */
    QN_REGEX_BEGIN,
    QN_REGEX_END,
    QN_REGEX_WORD_EDGE, /* \b; \B if negated */
    QN_REGEX_AHEAD,     /* the child matches what follows; negated: it does not */
    QN_REGEX_BEHIND,    /* the child matches what ends here */
} qn_regex_kind;

typedef struct {
    qn_regex_kind kind;
    int32_t last, before; /* the last child and the sibling before this one; -1: none */
    int32_t min, max;
    int32_t set; /* row of sets: pairs of lo and hi */
    int is_negated;
    int32_t machine; /* for the compiler, 0 at first */
} qn_regex_node;

typedef struct {
    qn_dfa_array nodes; /* qn_regex_node */
    qn_dfa_rows sets;
    int32_t root;
    int has_word_edges;
} qn_regex_tree;

/* The number of a settled set. */
qn_status qn_regex_add_set(qn_dfa_work *w, qn_dfa_rows *sets, const qn_charset *s, int32_t *out);
/* What \w holds, settled. */
qn_status qn_regex_word_set(qn_dfa_work *w, qn_charset *s);
/* The tree is of depth 3 * depth_max at most. Statuses as qn_dfa_regex. */
qn_status qn_regex_parse(qn_dfa_work *w, const char *pattern, size_t n, unsigned flags, qn_regex_tree *out);

#endif
