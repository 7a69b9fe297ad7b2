/* The tokens of a vocabulary as a tree of bytes: all tokens that begin a text are found in one walk.
 * Edges lie in a hash table. Built by one owner, then read-only: any thread. */
#ifndef QN_TEXT_TOKENIZER_MODEL_TRIE_H
#define QN_TEXT_TOKENIZER_MODEL_TRIE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* The root is node 0. */
typedef struct {
    uint64_t key;   /* (node << 8 | byte) + 1; 0: free */
    uint32_t child; /* the node that the byte leads to */
    int32_t value;  /* of the text that ends there; -1: none does */
} qn_trie_edge;

/* Zeroed is empty and may be freed, but not searched: call qn_trie_init first. */
typedef struct {
    qn_trie_edge *edges;
    size_t mask, n_edges;
    uint64_t seed;
} qn_trie;

qn_status qn_trie_init(qn_trie *t, size_t expected_edges);
void qn_trie_free(qn_trie *t);
/* value >= 0. A text given twice keeps the later value; an empty one is ignored. */
qn_status qn_trie_add(qn_trie *t, const char *text, size_t n, int32_t value);

static inline qn_trie_edge *qn_trie_slot(const qn_trie *t, uint64_t key)
{
    uint64_t h = (key ^ t->seed) * 0x9e3779b97f4a7c15u;
    for (size_t i = (size_t)(h ^ h >> 32) & t->mask;; i = (i + 1) & t->mask) {
        qn_trie_edge *e = &t->edges[i];
        if (!e->key || e->key == key) return e;
    }
}

/* NULL: no text goes on with this byte. */
static inline const qn_trie_edge *qn_trie_step(const qn_trie *t, uint32_t node, uint8_t byte)
{
    const qn_trie_edge *e = qn_trie_slot(t, ((uint64_t)node << 8 | byte) + 1);
    return e->key ? e : NULL;
}

#endif
