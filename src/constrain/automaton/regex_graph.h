/* The graph of a regular expression: nodes that a thread of a match passes (Thompson's construction), the machines
 * of look-around, and the classes of code points that no set of the pattern tells apart. All lives in the arena
 * of the work. For regex.c and regex_graph.c alone. */
#ifndef QN_CONSTRAIN_AUTOMATON_REGEX_GRAPH_H
#define QN_CONSTRAIN_AUTOMATON_REGEX_GRAPH_H

#include "constrain/automaton/lower.h"
#include "constrain/automaton/regex_parse.h"
#include "constrain/automaton/work.h"

typedef enum {
    NODE_SET,    /* one character of the set, then out */
    NODE_ANY,    /* one character */
    NODE_SPLIT,  /* out, and other if it is not -1 */
    NODE_BEGIN,  /* ^ */
    NODE_END,    /* $ */
    NODE_EDGE,   /* \b, \B if negated */
    NODE_AHEAD,  /* machine `other` accepts what follows, or does not if negated */
    NODE_BEHIND, /* machine `other` accepts what came, or does not if negated */
    NODE_MATCH,  /* nothing may follow */
    NODE_ALL,    /* anything may follow */
} qn_regex_step;

typedef struct {
    qn_regex_step kind;
    int32_t out, other, set;
    int is_negated;
} qn_regex_place;

/* The context in which a machine begins: what came before. */
enum { AT_BEGIN, AFTER_OTHER, AFTER_WORD, N_CONTEXTS };

enum { TRACKERS_MAX = 8 };

typedef struct {
    int32_t entry;
    int is_ahead;                               /* it begins anywhere; others begin with the text */
    int32_t trackers[TRACKERS_MAX], n_trackers; /* machines of look-behind that it asks */
    int32_t n_states, starts[N_CONTEXTS], all;  /* all: the state that accepts every text; 0: none */
    const int32_t *next;                        /* [n_states, n_classes], minimal; state 0 is dead */
    const uint8_t *accepts;
} qn_regex_machine;

typedef struct {
    qn_dfa_work *w;
    qn_regex_tree tree;
    qn_dfa_array nodes;    /* qn_regex_place */
    qn_dfa_array machines; /* qn_regex_machine; each asks those before it alone */
    unsigned inside;
    int32_t trackers[TRACKERS_MAX], n_trackers; /* of the machine whose nodes are being made */
    qn_code_classes classes;
    int32_t *list_begins, *lists; /* the classes of each set */
    uint8_t *is_word;             /* [n_classes] */
    /* Sets of obligations: pairs of machine * 2 + is_negated and state; 0: the empty one. */
    qn_dfa_rows duties;
} qn_regex_compiler;

static inline qn_regex_place *qn_regex_place_of(const qn_regex_compiler *c, int32_t i)
{
    return (qn_regex_place *)c->nodes.at + i;
}
static inline const qn_regex_machine *qn_regex_machine_of(const qn_regex_compiler *c, int32_t i)
{
    return (const qn_regex_machine *)c->machines.at + i;
}

/* Makes the graph of c->tree: the whole pattern's machine is *out, those of look-around are in c->machines. */
qn_status qn_regex_build(qn_regex_compiler *c, int is_whole, qn_regex_machine *out);
/* Fills classes, lists and is_word from the sets of the tree. */
qn_status qn_regex_find_classes(qn_regex_compiler *c);

#endif
