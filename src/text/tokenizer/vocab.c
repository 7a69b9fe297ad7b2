#include "text/tokenizer/vocab.h"

#include <string.h>
#include <sys/random.h>

#include "base/checked.h"
#include "base/map.h"
#include "base/mem.h"
#include "text/tokenizer/table.h"

qn_status qn_vocab_init(qn_vocab *v, size_t expected_tokens, size_t expected_bytes)
{
    *v = (qn_vocab){0};
    if (getrandom(&v->seed, sizeof v->seed, GRND_NONBLOCK) < 0) v->seed = (uintptr_t)v;
    size_t size = 64;
    while (size < expected_tokens * 2 && size < (size_t)1 << 30) size *= 2;
    v->slots = qn_table_new(size, sizeof *v->slots);
    if (!v->slots) return QN_E_NOMEM;
    v->mask = size - 1;
    v->bytes = qn_alloc(expected_bytes ? expected_bytes : 64);
    if (!v->bytes) return QN_E_NOMEM;
    v->bytes_capacity = expected_bytes ? expected_bytes : 64;
    return QN_OK;
}

void qn_vocab_free(qn_vocab *v)
{
    qn_free(v->bytes);
    qn_free(v->start);
    qn_free(v->length);
    qn_free(v->flags);
    qn_table_free(v->slots, v->mask + 1, sizeof *v->slots);
    *v = (qn_vocab){0};
}

static qn_status grow(void **p, size_t count, size_t size_bytes)
{
    size_t total;
    if (!qn_mul_size(count, size_bytes, &total)) return qn_fail_nomem(SIZE_MAX);
    void *q = qn_realloc(*p, total);
    if (!q) return QN_E_NOMEM;
    *p = q;
    return QN_OK;
}

static qn_status reserve_id(qn_vocab *v, size_t n_ids)
{
    if (n_ids > v->ids_capacity) {
        size_t capacity = v->ids_capacity * 2 > n_ids ? v->ids_capacity * 2 : n_ids + 256;
        QN_TRY(grow((void **)&v->start, capacity, sizeof *v->start));
        QN_TRY(grow((void **)&v->length, capacity, sizeof *v->length));
        QN_TRY(grow((void **)&v->flags, capacity, 1));
        v->ids_capacity = capacity;
    }
    for (; v->n_ids < n_ids; v->n_ids++) {
        v->start[v->n_ids] = UINT32_MAX;
        v->length[v->n_ids] = 0;
        v->flags[v->n_ids] = 0;
    }
    return QN_OK;
}

/* memcmp(a, b, n) == 0 for texts that are mostly short: by loads that overlap, without a call. */
static inline int same_bytes(const char *a, const char *b, size_t n)
{
    uint64_t x, y, u, w;
    uint32_t i, j, k, l;
    if (n > 16) return memcmp(a, b, n) == 0;
    if (n >= 8) {
        memcpy(&x, a, 8);
        memcpy(&y, b, 8);
        memcpy(&u, a + n - 8, 8);
        memcpy(&w, b + n - 8, 8);
        return ((x ^ y) | (u ^ w)) == 0;
    }
    if (n >= 4) {
        memcpy(&i, a, 4);
        memcpy(&j, b, 4);
        memcpy(&k, a + n - 4, 4);
        memcpy(&l, b + n - 4, 4);
        return ((i ^ j) | (k ^ l)) == 0;
    }
    return !n || (a[0] == b[0] && a[n / 2] == b[n / 2] && a[n - 1] == b[n - 1]);
}

static qn_vocab_slot *find_slot(const qn_vocab *v, const char *text, size_t n, uint32_t hash)
{
    for (size_t i = hash & v->mask;; i = (i + 1) & v->mask) {
        qn_vocab_slot *s = &v->slots[i];
        if (!s->id_plus_1) return s;
        if (s->hash != hash) continue;
        uint32_t id = s->id_plus_1 - 1;
        if (v->length[id] == n && same_bytes(v->bytes + v->start[id], text, n)) return s;
    }
}

static qn_status rehash(qn_vocab *v)
{
    size_t had = v->mask + 1, size = had * 2;
    qn_vocab_slot *slots = qn_table_new(size, sizeof *slots);
    if (!slots) return QN_E_NOMEM;
    for (size_t i = 0; i < had; i++) {
        if (!v->slots[i].id_plus_1) continue;
        size_t at = v->slots[i].hash & (size - 1);
        while (slots[at].id_plus_1) at = (at + 1) & (size - 1);
        slots[at] = v->slots[i];
    }
    qn_table_free(v->slots, had, sizeof *slots);
    v->slots = slots;
    v->mask = size - 1;
    return QN_OK;
}

qn_status qn_vocab_add_text(qn_vocab *v, int32_t id, const char *text, size_t n, uint8_t flags)
{
    if (id < 0 || id == INT32_MAX) return qn_fail(QN_E_FORMAT, "token id %d is out of range", id);
    QN_TRY(reserve_id(v, (size_t)id + 1));
    size_t end;
    if (!qn_add_size(v->n_bytes, n, &end) || end >= UINT32_MAX)
        return qn_fail(QN_E_FORMAT, "the vocabulary has more than 4 GiB of text");
    if (end > v->bytes_capacity) {
        size_t capacity = v->bytes_capacity * 2 > end ? v->bytes_capacity * 2 : end;
        QN_TRY(grow((void **)&v->bytes, capacity, 1));
        v->bytes_capacity = capacity;
    }
    if (n) memcpy(v->bytes + v->n_bytes, text, n);
    v->start[id] = (uint32_t)v->n_bytes;
    v->length[id] = (uint32_t)n;
    v->flags[id] = flags;
    v->n_bytes = end;
    if (n > v->max_length) v->max_length = n;
    return QN_OK;
}

qn_status qn_vocab_add(qn_vocab *v, int32_t id, const char *text, size_t n, uint8_t flags)
{
    if (v->n_tokens >= (v->mask + 1) / 2) QN_TRY(rehash(v));
    uint32_t hash = (uint32_t)qn_hash_bytes(text, n, v->seed);
    if (id >= 0 && (size_t)id < v->n_ids && v->start[id] != UINT32_MAX) {
        /* The id had another text, and a slot may still point here: it must keep comparing equal to that
         * text, so it is dropped first. Deleting from open addressing means moving up what follows. */
        size_t n_old = v->length[id];
        const char *old = v->bytes + v->start[id];
        qn_vocab_slot *s = find_slot(v, old, n_old, (uint32_t)qn_hash_bytes(old, n_old, v->seed));
        if (s->id_plus_1 == (uint32_t)id + 1) {
            size_t hole = (size_t)(s - v->slots);
            v->n_tokens--;
            for (size_t i = (hole + 1) & v->mask; v->slots[i].id_plus_1; i = (i + 1) & v->mask) {
                size_t home = v->slots[i].hash & v->mask;
                if (((i - home) & v->mask) < ((i - hole) & v->mask)) continue;
                v->slots[hole] = v->slots[i];
                hole = i;
            }
            v->slots[hole] = (qn_vocab_slot){0};
        }
    }
    QN_TRY(qn_vocab_add_text(v, id, text, n, flags));
    const char *own = v->bytes + v->start[id];
    qn_vocab_slot *s = find_slot(v, own, n, hash);
    if (!s->id_plus_1) v->n_tokens++;
    *s = (qn_vocab_slot){hash, (uint32_t)id + 1};
    return QN_OK;
}

qn_status qn_vocab_gather(qn_vocab *v, qn_vocab_group *g, int32_t id, const char *text, size_t n)
{
    if (v->n_tokens + (size_t)g->n >= (v->mask + 1) / 2) QN_TRY(rehash(v));
    QN_TRY(qn_vocab_add_text(v, id, text, n, 0));
    g->ids[g->n] = id;
    g->hashes[g->n] = (uint32_t)qn_hash_bytes(text, n, v->seed);
    __builtin_prefetch(&v->slots[g->hashes[g->n++] & v->mask], 1);
    return QN_OK;
}

int qn_vocab_settle(qn_vocab *v, qn_vocab_group *g)
{
    int twin = -1;
    for (int i = 0; i < g->n; i++) {
        const int32_t id = g->ids[i];
        qn_vocab_slot *s = find_slot(v, v->bytes + v->start[id], v->length[id], g->hashes[i]);
        if (!s->id_plus_1)
            v->n_tokens++;
        else if (twin < 0)
            twin = i;
        *s = (qn_vocab_slot){g->hashes[i], (uint32_t)id + 1};
    }
    g->n = 0;
    return twin;
}

int32_t qn_vocab_find(const qn_vocab *v, const char *text, size_t n)
{
    if (n > v->max_length || !v->slots) return -1;
    return (int32_t)find_slot(v, text, n, (uint32_t)qn_hash_bytes(text, n, v->seed))->id_plus_1 - 1;
}

void qn_vocab_find_all(const qn_vocab *v, qn_vocab_lookup *lookups, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        lookups[i].hash = (uint32_t)qn_hash_bytes(lookups[i].text, lookups[i].n, v->seed);
        __builtin_prefetch(&v->slots[lookups[i].hash & v->mask]);
    }
    /* The first slot with the right hash nearly always holds the text: ask for what comparing will read. */
    for (size_t i = 0; i < count; i++) {
        size_t at = lookups[i].hash & v->mask;
        while (v->slots[at].id_plus_1 && v->slots[at].hash != lookups[i].hash) at = (at + 1) & v->mask;
        lookups[i].guess = v->slots[at].id_plus_1;
        if (!lookups[i].guess) continue;
        __builtin_prefetch(&v->start[lookups[i].guess - 1]);
        __builtin_prefetch(&v->length[lookups[i].guess - 1]);
    }
    for (size_t i = 0; i < count; i++)
        if (lookups[i].guess) __builtin_prefetch(v->bytes + v->start[lookups[i].guess - 1]);
    for (size_t i = 0; i < count; i++)
        lookups[i].id = (int32_t)find_slot(v, lookups[i].text, lookups[i].n, lookups[i].hash)->id_plus_1 - 1;
}

const char *qn_vocab_text(const qn_vocab *v, int32_t id, size_t *n)
{
    if (id < 0 || (size_t)id >= v->n_ids || v->start[id] == UINT32_MAX) return NULL;
    *n = v->length[id];
    return v->bytes + v->start[id];
}

uint8_t qn_vocab_flags(const qn_vocab *v, int32_t id)
{
    return id < 0 || (size_t)id >= v->n_ids ? 0 : v->flags[id];
}

int qn_byte_token_value(const char *text, size_t n)
{
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = text[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) return -1;
        value = value * 16 + d;
    }
    return value;
}
