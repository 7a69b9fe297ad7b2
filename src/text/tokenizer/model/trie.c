#include "text/tokenizer/model/trie.h"

#include <sys/random.h>

#include "base/mem.h"

qn_status qn_trie_init(qn_trie *t, size_t expected_edges)
{
    *t = (qn_trie){0};
    if (getrandom(&t->seed, sizeof t->seed, GRND_NONBLOCK) < 0) t->seed = (uintptr_t)t;
    size_t size = 64;
    while (size < expected_edges * 2 && size < (size_t)1 << 30) size *= 2;
    t->edges = qn_calloc(size, sizeof *t->edges);
    if (!t->edges) return QN_E_NOMEM;
    t->mask = size - 1;
    return QN_OK;
}

void qn_trie_free(qn_trie *t)
{
    qn_free(t->edges);
    *t = (qn_trie){0};
}

static qn_status grow(qn_trie *t)
{
    qn_trie_edge *before = t->edges;
    const size_t had = t->mask + 1;
    qn_trie_edge *edges = qn_calloc(had * 2, sizeof *edges);
    if (!edges) return QN_E_NOMEM;
    t->edges = edges;
    t->mask = had * 2 - 1;
    for (size_t i = 0; i < had; i++)
        if (before[i].key) *qn_trie_slot(t, before[i].key) = before[i];
    qn_free(before);
    return QN_OK;
}

qn_status qn_trie_add(qn_trie *t, const char *text, size_t n, int32_t value)
{
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        if (t->n_edges >= (t->mask + 1) / 2) QN_TRY(grow(t));
        uint64_t key = ((uint64_t)node << 8 | (uint8_t)text[i]) + 1;
        qn_trie_edge *e = qn_trie_slot(t, key);
        if (!e->key) {
            if (t->n_edges == UINT32_MAX - 1)
                return qn_fail(QN_E_UNSUPPORTED, "the vocabulary has too much text");
            *e = (qn_trie_edge){key, (uint32_t)++t->n_edges, -1};
        }
        node = e->child;
        if (i + 1 == n) e->value = value;
    }
    return QN_OK;
}
