#include "text/tokenizer/bpe.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/checked.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/model/trie.h"
#include "text/tokenizer/split/piece_rules.h"
#include "text/tokenizer/table.h"

enum {
    CHAR_TABLE =
        0x180, /* code points looked up by index: ASCII and the alphabet of byte-level vocabularies */
    SPARE_BELOW = 1 << 16, /* words up to this are many, and room for the next one is taken too */
    UNDO_DEPTH_MAX = 100,  /* of merges in merges that are undone, as in SentencePiece */
    LINEAR_MAX = 24,       /* up to this many symbols a scan for the best pair beats the queue (measured) */
};

typedef struct {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank;
    uint32_t merged_plus_1; /* 0: free slot */
} merge_slot;

struct qn_bpe {
    const qn_vocab *vocab;
    qn_bpe_options o;
    merge_slot *merges;
    size_t merge_mask, n_merges;
    uint64_t seed;
    uint32_t *rank_of_id; /* by_score: [n_scores], lower is better */
    size_t n_scores;
    int32_t char_id[CHAR_TABLE];
    int32_t byte_id[256];
    int all_bytes; /* every byte has its token */
    qn_trie whole; /* by_score: tokens that are taken wherever they stand */
    int has_whole, has_unused;
};

typedef struct {
    int32_t id;         /* -1: text without a token */
    int32_t prev, next; /* -1: none */
    uint32_t start, length;
    uint32_t rank;  /* of the pair that starts here; linear scan only */
    int32_t merged; /* id that this pair makes; -1: none */
    int whole;      /* takes part in no merge */
} symbol;

typedef struct {
    uint64_t key; /* rank << 32 | position */
    int32_t merged;
    uint32_t size_bytes; /* of the text that the pair covers: a pair that has changed since is stale */
} candidate;

struct qn_bpe_scratch {
    symbol *symbols;
    candidate *heap;
    size_t symbols_capacity, heap_capacity, n_heap;
    qn_map *undo; /* text of an unused token -> bytes of its left part, as the last candidate had it */
    qn_status undo_status;
};

void qn_id_list_push(qn_id_list *l, int32_t id)
{
    if (l->status != QN_OK) return;
    if (l->n == l->capacity) {
        size_t capacity = l->capacity ? l->capacity * 2 : 64, total;
        int32_t *data = qn_mul_size(capacity, sizeof *data, &total) ? qn_realloc(l->data, total) : NULL;
        if (!data) {
            l->status = QN_E_NOMEM;
            return;
        }
        l->data = data;
        l->capacity = capacity;
    }
    l->data[l->n++] = id;
}

qn_status qn_bpe_new(const qn_vocab *vocab, const qn_bpe_options *options, size_t expected_merges,
                     qn_bpe **out)
{
    qn_bpe *b = qn_calloc(1, sizeof *b);
    if (!b) return QN_E_NOMEM;
    b->vocab = vocab;
    b->o = *options;
    if (getrandom(&b->seed, sizeof b->seed, GRND_NONBLOCK) < 0) b->seed = (uintptr_t)b;
    b->seed |= 1;
    if (!options->by_score) {
        size_t size = 64;
        while (size < expected_merges * 2 && size < (size_t)1 << 30) size *= 2;
        b->merges = qn_table_new(size, sizeof *b->merges);
        if (!b->merges) {
            qn_free(b);
            return QN_E_NOMEM;
        }
        b->merge_mask = size - 1;
    }
    *out = b;
    return QN_OK;
}

void qn_bpe_free(qn_bpe *b)
{
    if (!b) return;
    qn_table_free(b->merges, b->merge_mask + 1, sizeof *b->merges);
    qn_free(b->rank_of_id);
    qn_trie_free(&b->whole);
    qn_free(b);
}

void qn_bpe_set_options(qn_bpe *b, const qn_bpe_options *options)
{
    const int by_score = b->o.by_score;
    b->o = *options;
    b->o.by_score = by_score;
}

static inline size_t pair_hash(const qn_bpe *b, uint64_t pair)
{
    unsigned __int128 p = (unsigned __int128)(pair ^ b->seed) * 0x9e3779b97f4a7c15u;
    return (size_t)((uint64_t)p ^ (uint64_t)(p >> 64));
}

static inline merge_slot *find_merge(const qn_bpe *b, uint64_t pair)
{
    for (size_t i = pair_hash(b, pair) & b->merge_mask;; i = (i + 1) & b->merge_mask) {
        merge_slot *s = &b->merges[i];
        if (!s->merged_plus_1 || s->pair == pair) return s;
    }
}

static inline uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

qn_status qn_bpe_add_merge(qn_bpe *b, int32_t left, int32_t right, int32_t merged, uint32_t rank)
{
    if (b->n_merges >= (b->merge_mask + 1) / 2) {
        size_t had = b->merge_mask + 1, size = had * 2;
        merge_slot *before = b->merges, *merges = qn_table_new(size, sizeof *merges);
        if (!merges) return QN_E_NOMEM;
        b->merges = merges;
        b->merge_mask = size - 1;
        for (size_t i = 0; i < had; i++)
            if (before[i].merged_plus_1) *find_merge(b, before[i].pair) = before[i];
        qn_table_free(before, had, sizeof *before);
    }
    merge_slot *s = find_merge(b, pair_of(left, right));
    if (!s->merged_plus_1) b->n_merges++;
    *s = (merge_slot){pair_of(left, right), rank, (uint32_t)merged + 1};
    return QN_OK;
}

void qn_bpe_prefetch_merge(const qn_bpe *b, int32_t left, int32_t right)
{
    __builtin_prefetch(&b->merges[pair_hash(b, pair_of(left, right)) & b->merge_mask], 1);
}

qn_status qn_bpe_set_scores(qn_bpe *b, const float *scores, size_t n)
{
    b->rank_of_id = qn_alloc_array(n, sizeof *b->rank_of_id);
    if (!b->rank_of_id) return QN_E_NOMEM;
    b->n_scores = n;
    for (size_t i = 0; i < n; i++) {
        if (isnan(scores[i])) return qn_fail(QN_E_FORMAT, "score of token %zu is not a number", i);
        /* The bits of a float, sign folded in, order as the number does; inverted, because a low rank is the
         * best. */
        float score = scores[i] + 0.0f;
        uint32_t bits;
        memcpy(&bits, &score, sizeof bits);
        bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
        b->rank_of_id[i] = ~bits;
    }
    return QN_OK;
}

/* A token that text may become. */
static int32_t lookup(const qn_bpe *b, const char *text, size_t n)
{
    int32_t id = qn_vocab_find(b->vocab, text, n);
    return id >= 0 && (b->vocab->flags[id] & QN_TOKEN_HIDDEN) ? -1 : id;
}

static qn_status read_flags(qn_bpe *b)
{
    const qn_vocab *v = b->vocab;
    for (size_t id = 0; id < v->n_ids; id++) {
        size_t n;
        const char *text = qn_vocab_text(v, (int32_t)id, &n);
        if (text && v->flags[id] & QN_TOKEN_UNUSED) b->has_unused = 1;
        if (!text || !(v->flags[id] & QN_TOKEN_WHOLE)) continue;
        if (!b->has_whole) QN_TRY(qn_trie_init(&b->whole, 64));
        b->has_whole = 1;
        QN_TRY(qn_trie_add(&b->whole, text, n, (int32_t)id));
    }
    return QN_OK;
}

qn_status qn_bpe_finish(qn_bpe *b)
{
    for (uint32_t cp = 0; cp < CHAR_TABLE; cp++) {
        char utf8[4];
        b->char_id[cp] = lookup(b, utf8, qn_utf8_encode(cp, utf8));
    }
    b->all_bytes = b->o.byte_fallback;
    for (int i = 0; i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", i);
        b->byte_id[i] = qn_vocab_find(b->vocab, name, 6);
        if (b->byte_id[i] < 0) b->all_bytes = 0;
    }
    return b->o.by_score ? read_flags(b) : QN_OK;
}

qn_bpe_scratch *qn_bpe_scratch_new(void)
{
    return qn_calloc(1, sizeof(qn_bpe_scratch));
}

void qn_bpe_scratch_free(qn_bpe_scratch *s)
{
    if (!s) return;
    qn_free(s->symbols);
    qn_free(s->heap);
    qn_map_free(s->undo);
    qn_free(s);
}

static inline int32_t char_token(const qn_bpe *b, const char *s, size_t n, uint32_t cp)
{
    return cp < CHAR_TABLE ? b->char_id[cp] : lookup(b, s, n);
}

static inline void add_symbol(qn_bpe_scratch *s, size_t *n, int32_t id, size_t start, size_t length)
{
    s->symbols[*n] =
        (symbol){id, (int32_t)*n - 1, (int32_t)*n + 1, (uint32_t)start, (uint32_t)length, UINT32_MAX, -1, 0};
    (*n)++;
}

/* The word's characters as symbols. A pending unk comes after byte tokens that follow it, and before the next
 * known character: the order of the tokenizers library. */
static size_t characters(const qn_bpe *b, const char *word, size_t n, qn_bpe_scratch *s)
{
    size_t count = 0, unk_start = 0, unk_length = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        size_t used = b->has_whole ? qn_longest_whole(&b->whole, word + i, n - i) : 0;
        if (used) {
            add_symbol(s, &count, lookup(b, word + i, used), i, used);
            s->symbols[count - 1].whole = 1;
            i += used;
            continue;
        }
        used = qn_utf8_decode(word + i, n - i, &cp);
        if (!used) used = 1; /* cannot be: the text was made valid before */
        int32_t id = char_token(b, word + i, used, cp);
        if (id < 0 && b->o.by_score) {
            add_symbol(s, &count, -1, i, used); /* may still be the beginning of a token */
        } else if (id >= 0) {
            if (unk_length) add_symbol(s, &count, b->o.unk_id, unk_start, unk_length);
            unk_length = 0;
            add_symbol(s, &count, id, i, used);
        } else {
            int bytes = b->o.byte_fallback;
            for (size_t j = 0; j < used && bytes; j++) bytes = b->byte_id[(uint8_t)word[i + j]] >= 0;
            if (bytes) {
                for (size_t j = 0; j < used; j++)
                    add_symbol(s, &count, b->byte_id[(uint8_t)word[i + j]], i + j, 1);
            } else if (b->o.unk_id >= 0) {
                if (unk_length && !b->o.fuse_unk) {
                    add_symbol(s, &count, b->o.unk_id, unk_start, unk_length);
                    unk_length = 0;
                }
                if (!unk_length) unk_start = i;
                unk_length += used;
            }
        }
        i += used;
    }
    if (unk_length) add_symbol(s, &count, b->o.unk_id, unk_start, unk_length);
    if (count) s->symbols[count - 1].next = -1;
    return count;
}

static void note_undo(qn_bpe_scratch *s, const char *text, size_t n, size_t n_left)
{
    if (!s->undo && !(s->undo = qn_map_new(16))) s->undo_status = QN_E_NOMEM;
    if (s->undo_status == QN_OK) s->undo_status = qn_map_set(s->undo, text, n, (int64_t)n_left, NULL, NULL);
}

/* Rank and result of merging symbol at with its right neighbour; 0 when they do not merge. */
static inline int pair_merge(const qn_bpe *b, qn_bpe_scratch *s, const char *word, const symbol *left,
                             const symbol *right, uint32_t *rank, int32_t *merged)
{
    if (b->o.by_score) {
        if (left->whole || right->whole) return 0;
        int32_t id = lookup(b, word + left->start, (size_t)left->length + right->length);
        if (id < 0 || (size_t)id >= b->n_scores) return 0;
        if (b->vocab->flags[id] & QN_TOKEN_UNUSED)
            note_undo(s, word + left->start, (size_t)left->length + right->length, left->length);
        *rank = b->rank_of_id[id];
        *merged = id;
        return 1;
    }
    const merge_slot *m = find_merge(b, pair_of(left->id, right->id));
    if (!m->merged_plus_1) return 0;
    *rank = m->rank;
    *merged = (int32_t)m->merged_plus_1 - 1;
    return 1;
}

static void heap_push(qn_bpe_scratch *s, candidate c)
{
    size_t i = s->n_heap++;
    while (i && s->heap[(i - 1) / 2].key > c.key) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = c;
}

static candidate heap_pop(qn_bpe_scratch *s)
{
    candidate top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->n_heap) break;
        if (child + 1 < s->n_heap && s->heap[child + 1].key < s->heap[child].key) child++;
        if (s->heap[child].key >= last.key) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

/* Absorbs the right neighbour of symbol i. */
static void absorb(symbol *symbols, int32_t i, int32_t merged)
{
    symbol *left = &symbols[i], *right = &symbols[left->next];
    left->id = merged;
    left->length += right->length;
    right->length = 0;
    left->next = right->next;
    if (right->next >= 0) symbols[right->next].prev = i;
}

static void merge_queue(const qn_bpe *b, const char *word, qn_bpe_scratch *s, size_t count)
{
    symbol *symbols = s->symbols;
    candidate c;
    uint32_t rank;
    s->n_heap = 0;
    for (size_t i = 0; i + 1 < count; i++) {
        if (!pair_merge(b, s, word, &symbols[i], &symbols[i + 1], &rank, &c.merged)) continue;
        c.key = (uint64_t)rank << 32 | i;
        c.size_bytes = symbols[i].length + symbols[i + 1].length;
        heap_push(s, c);
    }
    /* Each merge takes one candidate out and puts at most two in: the heap never holds more than 2 * count.
     */
    while (s->n_heap) {
        candidate top = heap_pop(s);
        int32_t i = (int32_t)(top.key & UINT32_MAX), next = symbols[i].next;
        if (!symbols[i].length || next < 0 || symbols[i].length + symbols[next].length != top.size_bytes)
            continue;
        absorb(symbols, i, top.merged);
        int32_t prev = symbols[i].prev;
        next = symbols[i].next;
        if (prev >= 0 && pair_merge(b, s, word, &symbols[prev], &symbols[i], &rank, &c.merged)) {
            c.key = (uint64_t)rank << 32 | (uint32_t)prev;
            c.size_bytes = symbols[prev].length + symbols[i].length;
            heap_push(s, c);
        }
        if (next >= 0 && pair_merge(b, s, word, &symbols[i], &symbols[next], &rank, &c.merged)) {
            c.key = (uint64_t)rank << 32 | (uint32_t)i;
            c.size_bytes = symbols[i].length + symbols[next].length;
            heap_push(s, c);
        }
    }
}

static void rank_pair(const qn_bpe *b, qn_bpe_scratch *s, const char *word, int32_t i)
{
    symbol *symbols = s->symbols;
    symbols[i].merged = -1;
    symbols[i].rank = UINT32_MAX;
    if (symbols[i].next >= 0)
        pair_merge(b, s, word, &symbols[i], &symbols[symbols[i].next], &symbols[i].rank, &symbols[i].merged);
}

static void merge_linear(const qn_bpe *b, const char *word, qn_bpe_scratch *s, size_t count)
{
    symbol *symbols = s->symbols;
    for (size_t i = 0; i < count; i++) rank_pair(b, s, word, (int32_t)i);
    for (;;) {
        int32_t best = -1;
        for (int32_t i = 0; i >= 0; i = symbols[i].next)
            if (symbols[i].merged >= 0 && (best < 0 || symbols[i].rank < symbols[best].rank)) best = i;
        if (best < 0) return;
        absorb(symbols, best, symbols[best].merged);
        if (symbols[best].prev >= 0) rank_pair(b, s, word, symbols[best].prev);
        rank_pair(b, s, word, best);
    }
}

static qn_status reserve_symbols(qn_bpe_scratch *s, size_t count)
{
    if (count <= s->symbols_capacity) return QN_OK;
    qn_free(s->symbols);
    s->symbols_capacity = 0;
    size_t capacity = count + (count < SPARE_BELOW ? count / 2 : 0) + 64;
    s->symbols = qn_alloc_array(capacity, sizeof *s->symbols);
    if (!s->symbols) return QN_E_NOMEM;
    s->symbols_capacity = capacity;
    return QN_OK;
}

static qn_status reserve_heap(qn_bpe_scratch *s, size_t count)
{
    if (count <= s->heap_capacity) return QN_OK;
    qn_free(s->heap);
    s->heap_capacity = 0;
    s->heap = qn_alloc_array(count, sizeof *s->heap);
    if (!s->heap) return QN_E_NOMEM;
    s->heap_capacity = count;
    return QN_OK;
}

/* At most so many symbols come of a word: one for each character, with byte tokens one for each byte. */
static size_t most_symbols(const qn_bpe *b, const char *word, size_t n)
{
    size_t count = 0;
    uint32_t cp;
    if (b->o.byte_fallback || n <= LINEAR_MAX) return n;
    for (size_t i = 0; i < n; count++) {
        size_t used = qn_utf8_decode(word + i, n - i, &cp);
        i += used ? used : 1;
    }
    return count;
}

/* Text that no token covers (by_score): its bytes, or unk. */
static void push_bytes(const qn_bpe *b, const char *text, size_t n, int after_unk, qn_id_list *ids)
{
    if (b->o.byte_fallback) {
        int known = b->all_bytes;
        for (size_t j = 0; j < n && !known; j++) {
            if (b->byte_id[(uint8_t)text[j]] < 0) break;
            known = j + 1 == n;
        }
        if (known) {
            for (size_t j = 0; j < n; j++) qn_id_list_push(ids, b->byte_id[(uint8_t)text[j]]);
            return;
        }
    }
    if (b->o.unk_id >= 0 && !(after_unk && b->o.fuse_unk)) qn_id_list_push(ids, b->o.unk_id);
}

typedef struct {
    const qn_bpe *b;
    qn_bpe_scratch *s;
    qn_id_list *ids;
    int after_unk;
} output;

static void push_text(output *o, const char *text, size_t n)
{
    const size_t before = o->ids->n;
    push_bytes(o->b, text, n, o->after_unk, o->ids);
    if (o->ids->n > before) o->after_unk = o->ids->data[o->ids->n - 1] == o->b->o.unk_id;
}

/* A symbol's text. An unused token becomes what it was merged from. */
static void push_symbol(output *o, const char *text, size_t n, int depth)
{
    const int32_t id = lookup(o->b, text, n);
    int64_t n_left;
    if (id < 0) {
        push_text(o, text, n);
    } else if (!(o->b->vocab->flags[id] & QN_TOKEN_UNUSED) || depth > UNDO_DEPTH_MAX) {
        qn_id_list_push(o->ids, id);
        o->after_unk = 0;
    } else if (!o->s->undo || !qn_map_get(o->s->undo, text, n, &n_left)) {
        push_text(o, text, n);
    } else {
        push_symbol(o, text, (size_t)n_left, depth + 1);
        push_symbol(o, text + n_left, n - (size_t)n_left, depth + 1);
    }
}

static qn_status push_undone(const qn_bpe *b, const char *word, qn_bpe_scratch *s, qn_id_list *ids)
{
    output o = {.b = b, .s = s, .ids = ids};
    for (int32_t i = 0; i >= 0 && s->undo_status == QN_OK; i = s->symbols[i].next)
        push_symbol(&o, word + s->symbols[i].start, s->symbols[i].length, 0);
    qn_status status = s->undo_status;
    qn_map_free(s->undo); /* its keys lie in the word */
    s->undo = NULL;
    s->undo_status = QN_OK;
    return status != QN_OK ? status : ids->status;
}

qn_status qn_bpe_encode(const qn_bpe *b, const char *word, size_t n, qn_bpe_scratch *s, qn_id_list *ids)
{
    if (!n) return QN_OK;
    if (n > INT32_MAX / 2) return qn_fail(QN_E_ARG, "a word of %zu bytes is too long to tokenise", n);
    if (b->o.ignore_merges) {
        int32_t id = lookup(b, word, n);
        if (id >= 0) {
            qn_id_list_push(ids, id);
            return ids->status;
        }
    }
    QN_TRY(reserve_symbols(s, most_symbols(b, word, n)));
    size_t count = characters(b, word, n, s);
    if (!count) return QN_OK;
    if (count <= LINEAR_MAX) {
        merge_linear(b, word, s, count);
    } else {
        QN_TRY(reserve_heap(s, 2 * count));
        merge_queue(b, word, s, count);
    }
    if (b->has_unused) return push_undone(b, word, s, ids);
    int after_unk = 0;
    for (int32_t i = 0; i >= 0; i = s->symbols[i].next) {
        const symbol *at = &s->symbols[i];
        if (at->id >= 0) {
            qn_id_list_push(ids, at->id);
            after_unk = 0;
        } else {
            size_t before = ids->n;
            push_bytes(b, word + at->start, at->length, after_unk, ids);
            after_unk = ids->n == before ? after_unk : ids->data[ids->n - 1] == b->o.unk_id;
        }
    }
    return ids->status;
}
