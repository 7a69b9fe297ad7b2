#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "constrain/constraint_parts.h"

typedef struct entry entry;
struct entry {
    entry *next; /* the one used before it */
    char *key;
    size_t n_key;
    uint64_t hash;
    qn_constraint *c;
};

struct qn_constraint_cache {
    qn_vocabulary *v;
    size_t limit;
    pthread_mutex_t lock; /* of the list; compiling goes on without it */
    entry *first;
};

qn_status qn_constraint_cache_new(qn_vocabulary *v, size_t limit_bytes, qn_constraint_cache **out)
{
    qn_constraint_cache *k = qn_calloc(1, sizeof *k);
    if (!k) return QN_E_NOMEM;
    if (pthread_mutex_init(&k->lock, NULL) != 0) {
        qn_free(k);
        return qn_fail(QN_E_NOMEM, "no lock could be made");
    }
    k->v = qn_vocabulary_retain(v);
    k->limit = limit_bytes;
    *out = k;
    return QN_OK;
}

static void free_entry(entry *e)
{
    qn_constraint_release(e->c);
    qn_free(e->key);
    qn_free(e);
}

void qn_constraint_cache_free(qn_constraint_cache *k)
{
    if (!k) return;
    while (k->first) {
        entry *e = k->first;
        k->first = e->next;
        free_entry(e);
    }
    pthread_mutex_destroy(&k->lock);
    qn_vocabulary_release(k->v);
    qn_free(k);
}

/* All of a source and its limits that the constraint depends on. */
static qn_status key_of(const qn_constraint_source *s, const qn_constraint_limits *l, qn_buf *b)
{
    qn_constraint_limits none = {0};
    if (!l) l = &none;
    qn_buf_printf(b, "%d %zu %zu %zu %d %d %d %d %d %d %p ", (int)s->kind, s->n, s->n_after, s->n_opens,
                  s->after != NULL, s->may_skip_after, (int)s->tools.mode, s->tools.is_one_call,
                  s->tools.strict_by_all, s->tools.in_text, (const void *)s->messages);
    qn_buf_printf(b, "%zu %d %d %lld %zu %p %p %zu ", l->source_bytes_max, l->depth_max, l->states_max,
                  (long long)l->steps_max, l->memory_max, (const void *)s->tools.format.calls,
                  (const void *)s->tools.format.reasoning, s->tools.name ? strlen(s->tools.name) : 0);
    if (s->tools.name) qn_buf_puts(b, s->tools.name);
    if (s->after) qn_buf_append(b, s->after, s->n_after);
    if (s->opens) qn_buf_append(b, s->opens, s->n_opens);
    if (s->text) qn_buf_append(b, s->text, s->n);
    return b->status;
}

/* The entry of a key comes first; NULL: there is none. */
static entry *find(qn_constraint_cache *k, const qn_buf *key, uint64_t hash)
{
    for (entry **at = &k->first; *at; at = &(*at)->next) {
        entry *e = *at;
        if (e->hash != hash || e->n_key != key->length || memcmp(e->key, key->data, e->n_key) != 0) continue;
        *at = e->next;
        e->next = k->first;
        k->first = e;
        return e;
    }
    return NULL;
}

/* Leaves out what was not used for longest, but not the first. */
static void trim(qn_constraint_cache *k)
{
    size_t held = 0;
    entry *e = k->first;
    for (entry *before = NULL; e; before = e, e = e->next) {
        held += qn_constraint_bytes(e->c) + e->n_key + sizeof *e;
        if (!before || held <= k->limit) continue;
        before->next = NULL;
        while (e) {
            entry *next = e->next;
            free_entry(e);
            e = next;
        }
        return;
    }
}

static qn_status put(qn_constraint_cache *k, qn_buf *key, uint64_t hash, qn_constraint *c)
{
    entry *e = qn_calloc(1, sizeof *e);
    if (!e) return QN_E_NOMEM;
    e->hash = hash;
    e->n_key = key->length;
    e->key = qn_buf_take(key, NULL);
    if (!e->key) {
        qn_free(e);
        return QN_E_NOMEM;
    }
    e->c = qn_constraint_retain(c);
    e->next = k->first;
    k->first = e;
    trim(k);
    return QN_OK;
}

qn_status qn_constraint_cache_get(qn_constraint_cache *k, const qn_constraint_source *source,
                                  const qn_constraint_limits *limits, qn_constraint **out)
{
    qn_buf key = {0};
    qn_status status = key_of(source, limits, &key);
    uint64_t hash = status == QN_OK ? qn_hash_bytes(key.data, key.length, 0) : 0;
    qn_constraint *c = NULL;
    if (status == QN_OK) {
        pthread_mutex_lock(&k->lock);
        entry *e = find(k, &key, hash);
        if (e) c = qn_constraint_retain(e->c);
        pthread_mutex_unlock(&k->lock);
    }
    if (status == QN_OK && !c) {
        status = qn_constraint_new(k->v, source, limits, &c);
        if (status == QN_OK) {
            pthread_mutex_lock(&k->lock);
            if (!find(k, &key, hash)) status = put(k, &key, hash, c);
            pthread_mutex_unlock(&k->lock);
        }
        if (status != QN_OK) {
            qn_constraint_release(c);
            c = NULL;
        }
    }
    qn_buf_free(&key);
    if (status == QN_OK) *out = c;
    return status;
}

size_t qn_constraint_cache_bytes(qn_constraint_cache *k)
{
    size_t held = 0;
    pthread_mutex_lock(&k->lock);
    for (entry *e = k->first; e; e = e->next) held += qn_constraint_bytes(e->c) + e->n_key + sizeof *e;
    pthread_mutex_unlock(&k->lock);
    return held;
}
