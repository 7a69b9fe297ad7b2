#include "engine/machine/prefixes.h"

#include <string.h>

#include "engine/machine/engine_parts.h"
#include "engine/machine/images.h"

static qn_tree_key key_of(const qn_sequence *s, const char *salt)
{
    const char *bytes = salt ? salt : "";
    qn_tree_key key = {
        .adapter = s->adapter, .is_long = s->is_long, .salt = bytes, .salt_bytes = strlen(bytes)};
    if (s->images) key.contents = qn_images_contents(s->images, &key.n_contents);
    return key;
}

/* Whether it may use the tree: the pictures of one that does must be known by their contents. */
static int is_known(const qn_sequence *s)
{
    int64_t n;
    return s->engine->tree && (!s->images || qn_images_contents(s->images, &n));
}

/* The sequence is as it was made, but for what was set before its first step. */
static void detach(qn_sequence *s)
{
    for (int i = 0; i < s->engine->groups.n; i++) qn_block_table_clear(&s->tables[i], s->engine->pages[i]);
    s->length = s->n_given = s->n_attached = 0;
}

/* Of n_max tokens those among which the longest prefix is to be looked for, so that it ends between two rows of tokens
 * that see each other. */
static int64_t find_end(const qn_sequence *s, const qn_tree_key *key, const int32_t *ids, int64_t n_max)
{
    for (int64_t n = qn_images_shrink(s->images, n_max), known; s->images;
         n = qn_images_shrink(s->images, known)) {
        known = qn_tree_peek(s->engine->tree, key, ids, n);
        if (qn_images_shrink(s->images, known) == known) return n;
    }
    return n_max;
}

/* The state goes on from a copy of the snapshot, which is given back. */
static qn_status copy_state(qn_sequence *s, int32_t snapshot)
{
    qn_engine *e = s->engine;
    qn_status status = qn_pages_reserve(e->slots, 1, &s->slot);
    if (status == QN_OK)
        qn_pages_copy(e->slots, snapshot, s->slot);
    else
        s->slot = -1;
    qn_pages_release(e->slots, snapshot);
    return status;
}

int64_t qn_sequence_attach(qn_sequence *s, const char *salt, const int32_t *ids, int64_t n_max)
{
    qn_engine *e = s->engine;
    int64_t n = 0, limit = e->config.rope_short_positions;
    int32_t snapshot = -1;
    if (!is_known(s) || n_max <= 0) return 0;
    s->is_long = limit && s->expected > limit;
    const qn_tree_key key = key_of(s, salt);
    n_max = find_end(s, &key, ids, n_max);
    const qn_status matched = qn_tree_match(e->tree, &key, ids, n_max, s->tables, &snapshot, &n);
    if (matched != QN_OK || !n || qn_images_shrink(s->images, n) != n) {
        if (snapshot >= 0) qn_pages_release(e->slots, snapshot);
        detach(s);
        return 0;
    }
    s->length = s->n_given = s->n_attached = n;
    qn_status status = e->slots ? copy_state(s, snapshot) : QN_OK;
    if (status == QN_OK && limit && !s->is_long) status = qn_kept_ids_put(&s->kept, e->ledger, 0, n, ids);
    if (status == QN_OK) return n;
    detach(s);
    return 0;
}

/* A copy of the recurrent state; -1: there is no room for one. */
static int32_t take_snapshot(qn_sequence *s)
{
    qn_pages *slots = s->engine->slots;
    int32_t snapshot = -1;
    if (!slots || qn_pages_reserve(slots, 1, &snapshot) != QN_OK) return -1;
    qn_pages_copy(slots, s->slot, snapshot);
    return snapshot;
}

void qn_sequence_remember(qn_sequence *s, const char *salt, const int32_t *ids, uint64_t writer,
                          int64_t cost_ns)
{
    qn_engine *e = s->engine;
    if (!is_known(s) || s->is_lost || s->length <= 0 || s->length != s->n_given) return;
    if (s->length > e->info.context_size) return; /* its first pages are gone */
    int32_t snapshot = take_snapshot(s);
    if (e->slots && snapshot < 0) return;
    const qn_tree_key key = key_of(s, salt);
    qn_tree_insert(e->tree, &key, ids, s->length, s->tables, snapshot, writer, cost_ns);
    qn_tree_trim(e->tree);
}

void qn_sequence_hold(qn_sequence *s, const char *salt, const int32_t *ids, int64_t n, int64_t ttl_ms)
{
    const qn_tree_key key = key_of(s, salt);
    const int64_t most_ms = INT64_MAX / 1000000;
    if (!is_known(s)) return;
    qn_tree_hold(s->engine->tree, &key, ids, n, (ttl_ms < most_ms ? ttl_ms : most_ms) * 1000000);
}

void qn_engine_forget(qn_engine *e, uint64_t writer)
{
    if (e->tree) qn_tree_poison(e->tree, writer);
}

int qn_sequence_blame(qn_sequence *s, const char *salt, const int32_t *ids)
{
    qn_engine *e = s->engine;
    if (!s->n_attached) return 0;
    const qn_tree_key key = key_of(s, salt);
    for (int i = 0; i < e->groups.n; i++) qn_block_table_poison(&s->tables[i], e->pages[i]);
    if (ids) qn_tree_poison_path(e->tree, &key, ids);
    return 1;
}

int qn_sequence_is_poisoned(const qn_sequence *s)
{
    const qn_engine *e = s->engine;
    for (int i = 0; i < e->groups.n; i++)
        if (qn_block_table_is_poisoned(&s->tables[i], e->pages[i], s->length)) return 1;
    return s->slot >= 0 && qn_pages_is_poisoned(e->slots, s->slot, 1);
}

size_t qn_engine_evicted_bytes(qn_engine *e)
{
    qn_tree_counters c = {0};
    if (e->tree) qn_tree_get_counters(e->tree, &c);
    return c.evicted_bytes;
}

int qn_engine_has_tree(const qn_engine *e)
{
    return e->tree != NULL;
}

int qn_engine_has_state(const qn_engine *e)
{
    return e->slots != NULL;
}

int qn_engine_keeps_points(const qn_engine *e)
{
    for (int i = 0; i < e->groups.n; i++)
        if (e->groups.group[i].window) return 1;
    return e->slots != NULL;
}

/* Has the ledger room for this, beside what is cached? */
static int has_bytes(const qn_ledger *l, size_t need_bytes)
{
    qn_ledger_figures f = qn_ledger_get(l);
    size_t free_bytes = f.limit ? f.limit - (f.total - f.held[QN_LEDGER_CACHE]) : SIZE_MAX;
    if (f.limit && f.limit < f.total - f.held[QN_LEDGER_CACHE]) free_bytes = 0;
    return need_bytes <= free_bytes;
}

int qn_engine_has_room(qn_engine *e, int64_t n_ids)
{
    size_t need_bytes[QN_PARTS] = {0};
    for (int i = 0; i < e->groups.n; i++) {
        int64_t window = e->groups.group[i].window, most = window && window < n_ids ? window : n_ids;
        int64_t n = most / QN_PAGE_TOKENS + 2;
        if (n > qn_pages_free_count(e->pages[i]) + qn_pages_kept_count(e->pages[i])) return 0;
        for (int k = 0; k < QN_PARTS; k++) {
            const qn_device *d = qn_engine_part(e, (qn_part)k);
            if (d) need_bytes[k] += (size_t)n * qn_pages_bytes_in(e->pages[i], d->ledger);
        }
    }
    if (e->slots && qn_pages_free_count(e->slots) + qn_pages_kept_count(e->slots) < 1) return 0;
    for (int k = 0; k < QN_PARTS; k++) {
        const qn_device *d = qn_engine_part(e, (qn_part)k);
        if (d && !has_bytes(d->ledger, need_bytes[k])) return 0;
    }
    return 1;
}
