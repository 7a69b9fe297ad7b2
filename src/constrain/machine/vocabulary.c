#include "constrain/machine/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "constrain/machine/trie.h"

/* ---- the tokens' texts --------------------------------------------------------------------------------- */

typedef struct {
    qn_vocabulary *v;
    qn_buf text;
    int32_t next; /* the id whose offset is due */
} gatherer;

static void gather(void *user, int32_t id, const char *text, size_t n)
{
    gatherer *g = user;
    if (id < g->next || (size_t)id >= g->v->n_ids) return;
    while (g->next <= id) g->v->offset[g->next++] = g->text.length;
    if (n == 0 || qn_vocabulary_is_end(g->v, id)) return;
    int is_special = qn_tokenizer_is_special(g->v->tokenizer, id);
    /* The byte itself is a token of many vocabularies. */
    if (!is_special && memchr(text, QN_VOCABULARY_SPECIAL, n)) return;
    if (is_special) qn_buf_putc(&g->text, (char)QN_VOCABULARY_SPECIAL);
    qn_buf_append(&g->text, text, n);
}

static qn_status gather_texts(qn_vocabulary *v)
{
    gatherer g = {.v = v};
    qn_status status = qn_tokenizer_pieces(v->tokenizer, gather, &g);
    if (status == QN_OK) status = g.text.status;
    if (status != QN_OK) {
        qn_buf_free(&g.text);
        return status;
    }
    while ((size_t)g.next <= v->n_ids) v->offset[g.next++] = g.text.length;
    size_t n;
    v->text = qn_buf_take(&g.text, &n);
    if (!v->text) v->text = qn_strndup("", 0);
    return v->text ? QN_OK : QN_E_NOMEM;
}

/* ---- the trie ------------------------------------------------------------------------------------------ */

typedef struct {
    const unsigned char *text;
    uint32_t n;
    int32_t id;
} entry;

static int by_text(const void *x, const void *y)
{
    const entry *a = x, *b = y;
    uint32_t n = a->n < b->n ? a->n : b->n;
    int c = memcmp(a->text, b->text, n);
    if (c) return c;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static uint32_t common(const entry *a, const entry *b)
{
    uint32_t n = a->n < b->n ? a->n : b->n, i = 0;
    while (i < n && a->text[i] == b->text[i]) i++;
    return i;
}

/* entries are sorted. open [depth + 1]: the nodes of the last entry's text. */
static void link_nodes(qn_vocabulary *v, const entry *entries, size_t n, uint32_t *open)
{
    uint32_t n_nodes = 1, depth = 0;
    v->nodes[0] = (qn_trie_node){.id = -1};
    open[0] = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t shared = i ? common(&entries[i - 1], &entries[i]) : 0;
        for (; depth > shared; depth--) v->nodes[open[depth]].end = n_nodes;
        for (; depth < entries[i].n; depth++) {
            v->nodes[n_nodes] =
                (qn_trie_node){.id = -1, .depth = (uint16_t)(depth + 1), .byte = entries[i].text[depth]};
            open[depth + 1] = n_nodes++;
        }
        qn_trie_node *node = &v->nodes[open[depth]];
        v->same[entries[i].id] = node->id;
        node->id = entries[i].id;
    }
    for (;; depth--) {
        v->nodes[open[depth]].end = n_nodes;
        if (depth == 0) break;
    }
    /* From behind, children come before their parents. */
    for (uint32_t i = n_nodes; i-- > 0;) {
        int32_t id = v->nodes[i].id;
        if (id >= 0 && v->same[id] >= 0) v->twins[v->n_twins++] = id;
        for (uint32_t k = i + 1; k < v->nodes[i].end; k = v->nodes[k].end) {
            v->nodes[i].below |= v->nodes[k].below | UINT64_C(1) << qn_kind_of(v->nodes[k].byte);
            if (v->nodes[i].height <= v->nodes[k].height)
                v->nodes[i].height = (uint16_t)(v->nodes[k].height + 1);
        }
    }
}

static qn_status make_trie(qn_vocabulary *v)
{
    entry *entries = qn_alloc_array(v->n_ids ? v->n_ids : 1, sizeof *entries);
    if (!entries) return QN_E_NOMEM;
    size_t n = 0;
    for (size_t id = 0; id < v->n_ids; id++) {
        size_t n_text;
        const char *text = qn_vocabulary_text(v, (int32_t)id, &n_text);
        if (n_text == 0 || n_text > UINT16_MAX) continue;
        entries[n++] = (entry){(const unsigned char *)text, (uint32_t)n_text, (int32_t)id};
        if (n_text > v->depth_max) v->depth_max = n_text;
    }
    if (n) qsort(entries, n, sizeof *entries, by_text);
    v->n_nodes = 1;
    for (size_t i = 0; i < n; i++)
        v->n_nodes += entries[i].n - (i ? common(&entries[i - 1], &entries[i]) : 0);
    v->nodes = qn_alloc_array(v->n_nodes, sizeof *v->nodes);
    v->twins = qn_alloc_array(n + 1, sizeof *v->twins);
    uint32_t *open = qn_alloc_array(v->depth_max + 1, sizeof *open);
    qn_status status = v->nodes && v->twins && open ? QN_OK : QN_E_NOMEM;
    if (status == QN_OK) link_nodes(v, entries, n, open);
    qn_free(open);
    qn_free(entries);
    return status;
}

static qn_status fill(qn_vocabulary *v, const int32_t *end_ids, size_t n_end_ids)
{
    v->offset = qn_calloc(v->n_ids + 1, sizeof *v->offset);
    v->same = qn_alloc_array(v->n_ids ? v->n_ids : 1, sizeof *v->same);
    v->end_ids = qn_alloc_array(n_end_ids ? n_end_ids : 1, sizeof *v->end_ids);
    if (!v->offset || !v->same || !v->end_ids) return QN_E_NOMEM;
    for (size_t i = 0; i < v->n_ids; i++) v->same[i] = -1;
    for (size_t i = 0; i < n_end_ids; i++) {
        if (end_ids[i] < 0 || (size_t)end_ids[i] >= v->n_ids)
            return qn_fail(QN_E_ARG, "the end id %d is not in the vocabulary of %zu tokens", end_ids[i],
                           v->n_ids);
        v->end_ids[v->n_end_ids++] = end_ids[i];
    }
    QN_TRY(gather_texts(v));
    return make_trie(v);
}

qn_status qn_vocabulary_new(const qn_tokenizer *t, const int32_t *end_ids, size_t n_end_ids,
                            qn_vocabulary **out)
{
    qn_vocabulary *v = qn_calloc(1, sizeof *v);
    if (!v) return QN_E_NOMEM;
    atomic_init(&v->n_references, 1);
    atomic_init(&v->shared, 0);
    v->tokenizer = t;
    v->n_ids = qn_tokenizer_vocab_size(t);
    v->n_words = (v->n_ids + 31) / 32;
    qn_status status = fill(v, end_ids, n_end_ids);
    if (status != QN_OK) {
        qn_vocabulary_release(v);
        return status;
    }
    *out = v;
    return QN_OK;
}

qn_vocabulary *qn_vocabulary_retain(qn_vocabulary *v)
{
    if (v) atomic_fetch_add_explicit(&v->n_references, 1, memory_order_relaxed);
    return v;
}

void qn_vocabulary_release(qn_vocabulary *v)
{
    if (!v || atomic_fetch_sub_explicit(&v->n_references, 1, memory_order_acq_rel) != 1) return;
    qn_vocabulary_strings_free(v);
    qn_free(v->nodes);
    qn_free(v->twins);
    qn_free(v->same);
    qn_free(v->text);
    qn_free(v->offset);
    qn_free(v->end_ids);
    qn_free(v);
}

size_t qn_vocabulary_mask_words(const qn_vocabulary *v)
{
    return v->n_words;
}

size_t qn_vocabulary_bytes(const qn_vocabulary *v)
{
    return sizeof *v + v->n_nodes * sizeof *v->nodes +
           v->n_ids * (sizeof *v->same + sizeof *v->twins + sizeof *v->offset) +
           (v->offset ? v->offset[v->n_ids] : 0);
}
