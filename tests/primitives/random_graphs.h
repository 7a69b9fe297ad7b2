/* Random graphs of primitives, told by a list of nodes: any list can be built, so that one that fails is made
 * smaller by leaving nodes out. Whatever is discontinuous is computed of numbers that are given, never of
 * results, and results stay of moderate size, so that two devices that round differently agree. One thread.
 */
#ifndef QUERN_TESTS_RANDOM_GRAPHS_H
#define QUERN_TESTS_RANDOM_GRAPHS_H

#include "array/array.h"

enum { QN_GRAPH_NODES = 30, QN_GRAPH_LEAST = 5, QN_GRAPH_MOST = 30, QN_GRAPH_TEXT = 4096 };

/* One or a few primitives on two nodes before it; -1: on given numbers. The seed decides the rest: shapes of
 * what is given, axes, ranges. */
typedef struct {
    int kind;
    int of[2];
    uint64_t seed;
} qn_graph_node;

typedef struct {
    int n;
    int64_t limit; /* of dimensions of what is given */
    qn_graph_node node[QN_GRAPH_NODES];
} qn_graph;

/* QN_GRAPH_LEAST to QN_GRAPH_MOST primitives. */
void qn_graph_random(uint64_t seed, qn_graph *out);

typedef struct {
    int wrong; /* nodes of this kind are 0.01 too large; -1: none */
    int n_out; /* results that no node uses */
    qn_array *out[QN_GRAPH_NODES];
    int n_prims;
    uint8_t used[QN_PRIM_COUNT];
    char text[QN_GRAPH_TEXT]; /* a line a node */
} qn_graph_built;
/* See the scope for errors: at the first one it stops. */
void qn_graph_build(const qn_graph *g, qn_scope *s, qn_graph_built *b);

int qn_graph_kinds(void);
const char *qn_graph_kind_name(int kind);

/* 1: g fails. */
typedef int qn_graph_fails(void *user, const qn_graph *g);
/* Leaves out of a graph that fails what it can: it still fails, and with one node or input less it would not.
 */
void qn_graph_shrink(qn_graph *g, qn_graph_fails *fails, void *user);

#endif
