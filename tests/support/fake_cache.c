#include "tests/support/fake_cache.h"

#include <string.h>

#include "base/map.h"
#include "base/mem.h"

static size_t unit_bytes(const qn_state *s)
{
    return ((const qn_fake_state *)s)->unit_bytes;
}

static uint64_t *unit(qn_state *base, int32_t id)
{
    qn_fake_state *s = (qn_fake_state *)base;
    return s->contents + id * s->n_numbers;
}

static void drop(qn_state *s, int32_t id)
{
    memset(unit(s, id), 0xdd, (size_t)((qn_fake_state *)s)->n_numbers * sizeof(uint64_t));
}

static void copy(qn_state *s, int32_t from, int32_t to)
{
    memcpy(unit(s, to), unit(s, from), (size_t)((qn_fake_state *)s)->n_numbers * sizeof(uint64_t));
}

static const qn_device_ops ops = {
    .name = "fake", .state_unit_bytes = unit_bytes, .state_drop = drop, .state_copy = copy};

static void reclaim(void *user, size_t size_bytes)
{
    qn_fake_cache *c = user;
    if (c->tree) qn_tree_reclaim(c->tree, size_bytes);
}

static qn_status begin_state(qn_fake_cache *c, qn_fake_state *s, int64_t n_units, int64_t n_numbers,
                             size_t bytes, qn_pages **pages)
{
    s->base = (qn_state){.device = &c->device, .spec = {.n_units = n_units}};
    s->n_numbers = n_numbers;
    s->unit_bytes = bytes;
    s->contents = qn_calloc((size_t)(n_units * n_numbers), sizeof *s->contents);
    return s->contents ? qn_pages_new(&s->base, pages) : QN_E_NOMEM;
}

qn_status qn_fake_cache_begin(qn_fake_cache *c, int n_groups, const int64_t *window, int64_t n_units,
                              int64_t n_slots)
{
    *c = (qn_fake_cache){.n_groups = n_groups, .table_size = n_units + QN_BLOCK_BASE_STEP};
    if (!(c->ledger = qn_ledger_new())) return QN_E_NOMEM;
    c->device = (qn_device){.ops = &ops, .ledger = c->ledger};
    qn_tree_spec spec = {.ledger = c->ledger, .n_groups = n_groups};
    for (int g = 0; g < n_groups; g++) {
        QN_TRY(begin_state(c, &c->states[g], n_units, QN_PAGE_TOKENS, FAKE_UNIT_BYTES, &c->pages[g]));
        c->window[g] = spec.window[g] = window ? window[g] : 0;
        spec.pages[g] = c->pages[g];
    }
    if (n_slots) QN_TRY(begin_state(c, &c->slot_state, n_slots, 1, FAKE_SLOT_BYTES, &c->slots));
    spec.slots = c->slots;
    QN_TRY(qn_tree_new(&spec, &c->tree));
    qn_ledger_set_reclaim(c->ledger, reclaim, c);
    return QN_OK;
}

int qn_fake_cache_end(qn_fake_cache *c)
{
    qn_tree_free(c->tree);
    for (int g = 0; g < c->n_groups; g++) {
        qn_pages_free(c->pages[g]);
        qn_free(c->states[g].contents);
    }
    qn_pages_free(c->slots);
    qn_free(c->slot_state.contents);
    int is_empty = !c->ledger || qn_ledger_total(c->ledger) == 0;
    qn_ledger_free(c->ledger);
    *c = (qn_fake_cache){0};
    return is_empty;
}

/* ---- sequences ---------------------------------------------------------------------------------------- */

qn_status qn_fake_sequence_begin(qn_fake_sequence *s, qn_fake_cache *c, qn_tree_key key, int64_t capacity)
{
    *s = (qn_fake_sequence){.cache = c, .key = key, .capacity = capacity, .slot = -1};
    s->ids = qn_alloc_array((size_t)capacity, sizeof *s->ids);
    s->hashes = qn_alloc_array((size_t)capacity, sizeof *s->hashes);
    qn_status status = s->ids && s->hashes ? QN_OK : QN_E_NOMEM;
    for (int g = 0; g < c->n_groups && status == QN_OK; g++)
        status = qn_block_table_init(&s->tables[g], c->table_size);
    if (status != QN_OK) qn_fake_sequence_end(s);
    return status;
}

static void clear(qn_fake_sequence *s)
{
    for (int g = 0; g < s->cache->n_groups; g++) qn_block_table_clear(&s->tables[g], s->cache->pages[g]);
    if (s->slot >= 0) qn_pages_release(s->cache->slots, s->slot);
    s->slot = -1;
    s->length = 0;
}

void qn_fake_sequence_end(qn_fake_sequence *s)
{
    if (!s->cache) return;
    clear(s);
    for (int g = 0; g < s->cache->n_groups; g++) qn_block_table_end(&s->tables[g], s->cache->pages[g]);
    qn_free(s->ids);
    qn_free(s->hashes);
    *s = (qn_fake_sequence){0};
}

/* Of a token and all before it; the key counts as the first, and a content that begins with a token counts with it. */
static uint64_t hash_on(const qn_fake_sequence *s, int64_t at)
{
    uint64_t h = at ? s->hashes[at - 1] : (uint64_t)s->key.adapter * 7919 + (uint64_t)s->key.is_long * 104729;
    for (size_t i = 0; !at && i < s->key.salt_bytes; i++) h = h * 31 + ((const uint8_t *)s->key.salt)[i];
    for (int64_t i = 0; i < s->key.n_contents; i++)
        if (s->key.contents[i].first == at)
            h = qn_hash_bytes(s->key.contents[i].digest, QN_TREE_DIGEST_BYTES, h);
    h = (h + (uint32_t)s->ids[at] + 1) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static void add_ids(qn_fake_sequence *s, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++, s->length++) {
        s->ids[s->length] = ids[i];
        s->hashes[s->length] = hash_on(s, s->length);
    }
}

static uint64_t *place(const qn_fake_sequence *s, int group, int64_t at)
{
    const qn_block_table *t = &s->tables[group];
    int32_t id = t->ids[at / QN_PAGE_TOKENS - t->base];
    return s->cache->states[group].contents + id * QN_PAGE_TOKENS + at % QN_PAGE_TOKENS;
}

qn_status qn_fake_sequence_match(qn_fake_sequence *s, const int32_t *ids, int64_t n)
{
    int64_t n_matched = 0;
    int32_t snapshot = -1;
    QN_TRY(qn_tree_match(s->cache->tree, &s->key, ids, n, s->tables, &snapshot, &n_matched));
    add_ids(s, ids, n_matched);
    if (snapshot < 0) return QN_OK;
    qn_status status = qn_pages_reserve(s->cache->slots, 1, &s->slot);
    if (status == QN_OK)
        qn_pages_copy(s->cache->slots, snapshot, s->slot);
    else
        s->slot = -1;
    qn_pages_release(s->cache->slots, snapshot);
    if (status != QN_OK) clear(s);
    return status;
}

static int64_t first_seen(const qn_fake_sequence *s, int group)
{
    int64_t first = s->cache->window[group] ? s->length - s->cache->window[group] + 1 : 0;
    return first > 0 ? first : 0;
}

qn_status qn_fake_sequence_compute(qn_fake_sequence *s, const int32_t *ids, int64_t n)
{
    qn_fake_cache *c = s->cache;
    const int64_t begin = s->length;
    for (int g = 0; g < c->n_groups; g++)
        QN_TRY(qn_block_table_prepare(&s->tables[g], c->pages[g], begin, begin + n));
    if (c->slots && s->slot < 0) {
        int32_t slot;
        QN_TRY(qn_pages_reserve(c->slots, 1, &slot));
        s->slot = slot;
    }
    add_ids(s, ids, n);
    for (int g = 0; g < c->n_groups; g++) {
        for (int64_t at = begin; at < s->length; at++) *place(s, g, at) = s->hashes[at];
        if (first_seen(s, g)) qn_block_table_release_below(&s->tables[g], c->pages[g], first_seen(s, g) - 1);
    }
    if (c->slots) c->slot_state.contents[s->slot] = s->hashes[s->length - 1];
    return QN_OK;
}

void qn_fake_sequence_truncate(qn_fake_sequence *s, int64_t n)
{
    for (int g = 0; g < s->cache->n_groups; g++)
        qn_block_table_truncate(&s->tables[g], s->cache->pages[g], n);
    s->length = n;
}

qn_status qn_fake_sequence_insert(qn_fake_sequence *s, int64_t n, int with_snapshot, uint64_t writer)
{
    qn_fake_cache *c = s->cache;
    int32_t snapshot = -1;
    if (with_snapshot) {
        QN_TRY(qn_pages_reserve(c->slots, 1, &snapshot));
        qn_pages_copy(c->slots, s->slot, snapshot);
    }
    return qn_tree_insert(c->tree, &s->key, s->ids, n, s->tables, snapshot, writer, 1000);
}

int qn_fake_sequence_is_right(const qn_fake_sequence *s)
{
    for (int g = 0; g < s->cache->n_groups; g++)
        for (int64_t at = first_seen(s, g); at < s->length; at++)
            if (*place(s, g, at) != s->hashes[at]) return 0;
    return s->slot < 0 || !s->length || s->cache->slot_state.contents[s->slot] == s->hashes[s->length - 1];
}
