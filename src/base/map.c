#include "base/map.h"

#include <string.h>
#include <sys/random.h>

#include "base/mem.h"

typedef struct {
    const char *key; /* NULL: free slot */
    size_t n;
    uint64_t hash;
    int64_t value;
} slot;

struct qn_map {
    slot *slots;
    size_t mask, count;
    uint64_t seed;
};

static inline uint64_t mix(uint64_t a, uint64_t b)
{
    unsigned __int128 p = (unsigned __int128)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

/* The first n of up to 8 bytes, the others 0: by loads that overlap, since a copy of n bytes is a call. */
static inline uint64_t first_bytes(const uint8_t *p, size_t n)
{
    uint64_t v = 0;
    uint32_t low, high;
    uint16_t a, b;
    if (n == 8) {
        memcpy(&v, p, 8);
    } else if (n >= 4) {
        memcpy(&low, p, 4);
        memcpy(&high, p + n - 4, 4);
        v = low | (uint64_t)high << (8 * (n - 4));
    } else if (n >= 2) {
        memcpy(&a, p, 2);
        memcpy(&b, p + n - 2, 2);
        v = a | (uint64_t)b << (8 * (n - 2));
    } else if (n) {
        v = *p;
    }
    return v;
}

uint64_t qn_hash_bytes(const void *bytes, size_t n, uint64_t seed)
{
    const uint8_t *p = bytes;
    /* Both factors of every product hide something that depends on the seed: were one of them v ^ constant,
     * keys with v = constant would make the product 0 and collide, whatever the seed. */
    uint64_t h = seed ^ 0x9e3779b97f4a7c15u, k = mix(seed, 0x589965cc75374cc3u), v, w;
    size_t left = n;
    for (; left >= 16; left -= 16, p += 16) {
        memcpy(&v, p, 8);
        memcpy(&w, p + 8, 8);
        h = mix(v ^ k ^ 0xa0761d6478bd642fu, w ^ h);
    }
    v = left < 8 ? first_bytes(p, left) : first_bytes(p, 8);
    w = left > 8 ? first_bytes(p + 8, left - 8) : 0;
    h = mix(v ^ k ^ 0xe7037ed1a0b428dbu, w ^ h);
    return mix(h ^ n, 0x8ebc6af09c88c6e3u);
}

qn_map *qn_map_new(size_t expected)
{
    size_t size = 16;
    while (size < expected && size < SIZE_MAX / 4) size *= 2;
    size *= 2;
    qn_map *m = qn_calloc(1, sizeof *m);
    if (!m) return NULL;
    m->slots = qn_calloc(size, sizeof *m->slots);
    if (!m->slots) {
        qn_free(m);
        return NULL;
    }
    m->mask = size - 1;
    if (getrandom(&m->seed, sizeof m->seed, GRND_NONBLOCK) < 0) m->seed = (uintptr_t)m;
    return m;
}

void qn_map_free(qn_map *m)
{
    if (!m) return;
    qn_free(m->slots);
    qn_free(m);
}

static slot *find(const qn_map *m, const void *key, size_t n, uint64_t hash)
{
    for (size_t i = hash & m->mask;; i = (i + 1) & m->mask) {
        slot *s = &m->slots[i];
        if (!s->key || (s->hash == hash && s->n == n && memcmp(s->key, key, n) == 0)) return s;
    }
}

qn_status qn_map_set(qn_map *m, const void *key, size_t n, int64_t value, int64_t *old, int *found)
{
    if (!key) key = ""; /* of n 0; NULL marks a free slot */
    uint64_t hash = qn_hash_bytes(key, n, m->seed);
    slot *s = find(m, key, n, hash);
    if (found) *found = s->key != NULL;
    if (s->key) {
        if (old) *old = s->value;
        s->value = value;
        return QN_OK;
    }
    if (m->count >= m->mask / 2) {
        size_t size = (m->mask + 1) * 2;
        slot *before = m->slots, *slots = qn_calloc(size, sizeof *slots);
        if (!slots) return QN_E_NOMEM;
        size_t had = m->mask + 1;
        m->slots = slots;
        m->mask = size - 1;
        for (size_t i = 0; i < had; i++)
            if (before[i].key) *find(m, before[i].key, before[i].n, before[i].hash) = before[i];
        qn_free(before);
        s = find(m, key, n, hash);
    }
    *s = (slot){key, n, hash, value};
    m->count++;
    return QN_OK;
}

int qn_map_get(const qn_map *m, const void *key, size_t n, int64_t *value)
{
    slot *s = find(m, key ? key : "", n, qn_hash_bytes(key, n, m->seed));
    if (!s->key) return 0;
    *value = s->value;
    return 1;
}

size_t qn_map_count(const qn_map *m)
{
    return m->count;
}
