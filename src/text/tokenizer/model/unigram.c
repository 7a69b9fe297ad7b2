#include "text/tokenizer/model/unigram.h"

#include <stdio.h>

#include "base/mem.h"
#include "text/tokenizer/model/trie.h"

enum {
    UNK_PENALTY = 10,
    SCORE_RESET = 100000, /* single: beyond it, scores are taken as distances from where the text stands */
    /* Bytes that a text of n bytes may be compared with: STEPS_SPARE + n * STEPS_PER_BYTE. */
    STEPS_PER_BYTE = 1024,
    STEPS_SPARE = 1 << 20,
};

struct qn_unigram {
    const qn_vocab *vocab;
    qn_unigram_options o;
    double *scores, unk_score;
    qn_trie trie;
    int32_t byte_id[256];
    int has_bytes; /* all of them */
};

/* The best cover of the text before a byte: its score, and its last token. */
typedef struct qn_unigram_node {
    double score;
    uint32_t start; /* UINT32_MAX: nothing ends here */
    int32_t id;
} node;

qn_status qn_unigram_new(const qn_vocab *vocab, const qn_unigram_options *options, double *scores,
                         qn_unigram **out)
{
    qn_unigram *u = qn_calloc(1, sizeof *u);
    if (!u) return QN_E_NOMEM;
    u->vocab = vocab;
    u->o = *options;
    u->scores = scores;
    u->unk_score = options->single ? (double)((float)options->min_score - UNK_PENALTY)
                                   : options->min_score - UNK_PENALTY;
    *out = u;
    return QN_OK;
}

void qn_unigram_free(qn_unigram *u)
{
    if (!u) return;
    qn_free(u->scores);
    qn_trie_free(&u->trie);
    qn_free(u);
}

void qn_unigram_scratch_free(qn_unigram_scratch *s)
{
    qn_free(s->nodes);
    *s = (qn_unigram_scratch){0};
}

qn_status qn_unigram_finish(qn_unigram *u)
{
    const qn_vocab *v = u->vocab;
    QN_TRY(qn_trie_init(&u->trie, v->n_tokens * 4));
    for (size_t id = 0; id < v->n_ids; id++) {
        size_t n;
        const char *text = qn_vocab_text(v, (int32_t)id, &n);
        if (!text || (v->flags[id] & (QN_TOKEN_HIDDEN | QN_TOKEN_UNUSED))) continue;
        QN_TRY(qn_trie_add(&u->trie, text, n, (int32_t)id));
    }
    u->has_bytes = u->o.byte_fallback;
    for (int i = 0; i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", i);
        u->byte_id[i] = qn_vocab_find(v, name, 6);
        u->has_bytes &= u->byte_id[i] >= 0;
    }
    return QN_OK;
}

static qn_status reserve(qn_unigram_scratch *s, size_t count)
{
    if (count <= s->capacity) return QN_OK;
    qn_free(s->nodes);
    s->capacity = 0;
    s->nodes = qn_alloc_array(count + count / 2, sizeof *s->nodes);
    if (!s->nodes) return QN_E_NOMEM;
    s->capacity = count + count / 2;
    return QN_OK;
}

static inline double add(const qn_unigram *u, double a, double b)
{
    return u->o.single ? (double)((float)a + (float)b) : a + b;
}

static inline void offer(node *to, double score, size_t start, int32_t id)
{
    if (to->start == UINT32_MAX || score > to->score) *to = (node){score, (uint32_t)start, id};
}

static double score_of(const qn_unigram *u, int32_t id, size_t n)
{
    if (u->vocab->flags[id] & QN_TOKEN_WHOLE) return (double)(float)(0.1 * (double)(n - 1));
    return u->scores[id];
}

/* Nodes of [from, last] that something reaches get their scores less that of `from`. */
static void reset_scores(node *nodes, size_t from, size_t last)
{
    const float offset = (float)nodes[from].score;
    for (size_t i = from; i <= last; i++)
        if (i == from || nodes[i].start != UINT32_MAX)
            nodes[i].score = (double)((float)nodes[i].score - offset);
}

static qn_status find_best(const qn_unigram *u, const char *text, size_t n, node *nodes)
{
    const size_t most = STEPS_SPARE + (n < SIZE_MAX / 2 / STEPS_PER_BYTE ? n * STEPS_PER_BYTE : n);
    size_t steps = 0, last = 0;
    for (size_t i = 0; i <= n; i++) nodes[i] = (node){0, UINT32_MAX, -1};
    for (size_t at = 0, length; at < n; at += length) {
        for (length = 1; at + length < n && ((uint8_t)text[at + length] & 0xc0) == 0x80;) length++;
        if (u->o.single && (nodes[at].score > SCORE_RESET || nodes[at].score < -SCORE_RESET))
            reset_scores(nodes, at, last);
        const double here = nodes[at].score;
        int has_single = 0;
        uint32_t place = 0;
        for (size_t i = at; i < n; steps++) {
            const qn_trie_edge *e = qn_trie_step(&u->trie, place, (uint8_t)text[i++]);
            if (!e) break;
            place = e->child;
            if (e->value < 0) continue;
            if (i > last) last = i;
            offer(&nodes[i], add(u, score_of(u, e->value, i - at), here), at, e->value);
            has_single |= i - at == length;
        }
        if (!has_single) {
            if (at + length > last) last = at + length;
            offer(&nodes[at + length], add(u, u->unk_score, here), at, u->o.unk_id);
        }
        if (steps > most)
            return qn_fail(QN_E_UNSUPPORTED, "too many tokens begin the same for a text of %zu bytes", n);
    }
    return QN_OK;
}

/* A run of unknown characters. */
static qn_status push_unknown(const qn_unigram *u, const char *text, size_t n, qn_id_list *ids)
{
    if (!u->o.single) { /* each alone is unknown, but all together may be a token with a low score */
        int32_t id = qn_vocab_find(u->vocab, text, n);
        if (id >= 0 && !(u->vocab->flags[id] & QN_TOKEN_HIDDEN)) {
            qn_id_list_push(ids, id);
            return ids->status;
        }
    }
    if (u->o.byte_fallback) {
        int known = u->has_bytes;
        for (size_t i = 0; i < n && !known; i++) {
            if (u->byte_id[(uint8_t)text[i]] < 0) break;
            known = i + 1 == n;
        }
        if (known) {
            for (size_t i = 0; i < n; i++) qn_id_list_push(ids, u->byte_id[(uint8_t)text[i]]);
            return ids->status;
        }
    }
    if (u->o.unk_id < 0)
        return qn_fail(QN_E_FORMAT, "a text has characters without a token, and the model has no unk");
    qn_id_list_push(ids, u->o.unk_id);
    return ids->status;
}

qn_status qn_unigram_encode(const qn_unigram *u, const char *text, size_t n, qn_unigram_scratch *s,
                            qn_id_list *ids)
{
    if (!n) return QN_OK;
    if (n > INT32_MAX / 2) return qn_fail(QN_E_ARG, "a text of %zu bytes is too long to tokenise", n);
    QN_TRY(reserve(s, n + 1));
    node *nodes = s->nodes;
    QN_TRY(find_best(u, text, n, nodes));
    /* From the end to the begin; each node then tells where the next token ends. */
    uint32_t end = (uint32_t)n, next = UINT32_MAX;
    while (end) {
        uint32_t start = nodes[end].start;
        nodes[end].start = next;
        next = end;
        end = start;
    }
    for (uint32_t at = 0; at < n;) {
        const node *token = &nodes[next];
        if (token->id != u->o.unk_id) {
            qn_id_list_push(ids, token->id);
            at = next;
            next = token->start;
            continue;
        }
        const uint32_t begin = at;
        for (; at < n && nodes[next].id == u->o.unk_id; next = token->start) {
            token = &nodes[next];
            at = next;
        }
        QN_TRY(push_unknown(u, text + begin, at - begin, ids));
    }
    return ids->status;
}
