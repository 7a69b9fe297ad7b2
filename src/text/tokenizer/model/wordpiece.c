#include "text/tokenizer/model/wordpiece.h"

#include <string.h>

#include "base/mem.h"
#include "text/tokenizer/model/trie.h"

/* Bytes that a word of n bytes may be compared with: STEPS_SPARE + n * STEPS_PER_BYTE. */
enum { STEPS_PER_BYTE = 1024, STEPS_SPARE = 1 << 20 };

struct qn_wordpiece {
    const qn_vocab *vocab;
    qn_wordpiece_options o;
    char *prefix;
    qn_trie trie;
    uint32_t inside; /* the node of the prefix; UINT32_MAX: no token has it */
};

qn_status qn_wordpiece_new(const qn_vocab *vocab, const qn_wordpiece_options *options, qn_wordpiece **out)
{
    qn_wordpiece *w = qn_calloc(1, sizeof *w);
    if (!w) return QN_E_NOMEM;
    w->vocab = vocab;
    w->o = *options;
    w->prefix = qn_strndup(options->prefix, options->n_prefix);
    if (!w->prefix) {
        qn_wordpiece_free(w);
        return QN_E_NOMEM;
    }
    *out = w;
    return QN_OK;
}

void qn_wordpiece_free(qn_wordpiece *w)
{
    if (!w) return;
    qn_free(w->prefix);
    qn_trie_free(&w->trie);
    qn_free(w);
}

qn_status qn_wordpiece_finish(qn_wordpiece *w)
{
    const qn_vocab *v = w->vocab;
    QN_TRY(qn_trie_init(&w->trie, v->n_tokens * 3));
    for (size_t id = 0; id < v->n_ids; id++) {
        size_t n;
        const char *text = qn_vocab_text(v, (int32_t)id, &n);
        if (text && !(v->flags[id] & QN_TOKEN_HIDDEN)) QN_TRY(qn_trie_add(&w->trie, text, n, (int32_t)id));
    }
    w->inside = 0;
    for (size_t i = 0; i < w->o.n_prefix && w->inside != UINT32_MAX; i++) {
        const qn_trie_edge *e = qn_trie_step(&w->trie, w->inside, (uint8_t)w->prefix[i]);
        w->inside = e ? e->child : UINT32_MAX;
    }
    return QN_OK;
}

static int is_too_long(const char *word, size_t n, uint64_t most)
{
    uint64_t chars = 0;
    if (n <= most) return 0;
    for (size_t i = 0; i < n; i++) chars += ((uint8_t)word[i] & 0xc0) != 0x80;
    return chars > most;
}

static qn_status push_unk(const qn_wordpiece *w, qn_id_list *ids)
{
    if (w->o.unk_id < 0)
        return qn_fail(QN_E_FORMAT, "a word has no tokens, and model.unk_token is not in the vocabulary");
    qn_id_list_push(ids, w->o.unk_id);
    return ids->status;
}

qn_status qn_wordpiece_encode(const qn_wordpiece *w, const char *word, size_t n, qn_id_list *ids)
{
    if (is_too_long(word, n, w->o.max_chars)) return push_unk(w, ids);
    const size_t before = ids->n,
                 most = STEPS_SPARE + (n < SIZE_MAX / 2 / STEPS_PER_BYTE ? n * STEPS_PER_BYTE : n);
    size_t steps = 0;
    for (size_t at = 0, end; at < n; at = end) {
        uint32_t node = at ? w->inside : 0;
        int32_t id = -1;
        end = at;
        for (size_t i = at; i < n && node != UINT32_MAX; i++, steps++) {
            const qn_trie_edge *e = qn_trie_step(&w->trie, node, (uint8_t)word[i]);
            if (!e) break;
            node = e->child;
            if (e->value < 0) continue;
            id = e->value;
            end = i + 1;
        }
        if (steps > most)
            return qn_fail(QN_E_UNSUPPORTED, "too many tokens begin the same for a word of %zu bytes", n);
        if (id < 0) {
            ids->n = before;
            return push_unk(w, ids);
        }
        qn_id_list_push(ids, id);
    }
    return ids->status;
}
