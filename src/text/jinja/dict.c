/* Dictionaries of template values: insertion order, an index by hash once they are larger. */
#include <math.h>
#include <string.h>

#include "base/map.h"
#include "text/jinja/big.h"
#include "text/jinja/value.h"

enum { INDEX_FROM = 8 };

static qn_status hash_value(qn_jheap *h, qn_jvalue v, uint64_t *hash)
{
    switch ((qn_jkind)v.kind) {
    case QN_J_STRING:
        QN_TRY(qn_jheap_scan(h, v.s->n));
        *hash = qn_hash_bytes(v.s->data, v.s->n, h->seed);
        return QN_OK;
    case QN_J_FLOAT:
        if (v.f == floor(v.f) && fabs(v.f) < 9e18) v.i = (int64_t)v.f;
        *hash = qn_hash_bytes(&v.i, sizeof v.i, h->seed);
        return QN_OK;
    case QN_J_BIG:
        *hash = qn_hash_bytes(v.big->limbs, v.big->n * sizeof *v.big->limbs, h->seed);
        return QN_OK;
    case QN_J_BOOL:
    case QN_J_INT:
        *hash = qn_hash_bytes(&v.i, sizeof v.i, h->seed);
        return QN_OK;
    case QN_J_LIST: {
        if (!qn_jis_tuple(v.l)) break;
        *hash = h->seed;
        QN_TRY(qn_jheap_enter(h));
        qn_status status = QN_OK;
        for (int64_t i = 0; i < v.l->n && status == QN_OK; i++) {
            uint64_t part = 0;
            status = qn_jheap_step(h, 1);
            if (status == QN_OK) status = hash_value(h, v.l->items[i], &part);
            *hash = (*hash ^ part) * 0x9E3779B97F4A7C15u;
        }
        qn_jheap_leave(h);
        return status;
    }
    case QN_J_DICT:
        break;
    default:
        *hash = h->seed + v.kind;
        return QN_OK;
    }
    return qn_fail(QN_E_ARG, "unhashable type: '%s'", qn_jvalue_type(v));
}

static qn_status find_place(qn_jheap *h, const qn_jdict *d, qn_jvalue key, uint64_t hash, uint32_t *place)
{
    int equal = 0;
    *place = UINT32_MAX;
    if (!d->index) {
        for (uint32_t i = 0; i < d->n; i++) {
            QN_TRY(qn_jvalue_equal(h, d->keys[i], key, &equal));
            if (equal) {
                *place = i;
                return QN_OK;
            }
        }
        return QN_OK;
    }
    for (uint32_t at = (uint32_t)hash & (d->index_size - 1); d->index[at];
         at = (at + 1) & (d->index_size - 1)) {
        QN_TRY(qn_jvalue_equal(h, d->keys[d->index[at] - 1], key, &equal));
        if (equal) {
            *place = d->index[at] - 1;
            return QN_OK;
        }
    }
    return QN_OK;
}

static void index_put(qn_jdict *d, uint64_t hash, uint32_t place)
{
    uint32_t at = (uint32_t)hash & (d->index_size - 1);
    while (d->index[at]) at = (at + 1) & (d->index_size - 1);
    d->index[at] = place + 1;
}

qn_status qn_jdict_new(qn_jheap *h, uint32_t capacity, int user, qn_jvalue *out)
{
    qn_jdict *d = qn_jheap_alloc(h, 1, sizeof *d);
    if (!d) return h->status;
    *d = (qn_jdict){.capacity = capacity < 4 ? 4 : capacity};
    d->keys = qn_jheap_alloc(h, d->capacity, sizeof *d->keys);
    d->values = d->keys ? qn_jheap_alloc(h, d->capacity, sizeof *d->values) : NULL;
    if (!d->values) return h->status;
    *out = (qn_jvalue){.kind = QN_J_DICT, .user = user != 0, .d = d};
    return QN_OK;
}

static qn_status dict_grow(qn_jheap *h, qn_jdict *d)
{
    if (d->capacity > UINT32_MAX / 4) return qn_fail(QN_E_FULL, "a dict has more than %u keys", d->n);
    uint32_t capacity = d->capacity * 2;
    qn_jvalue *keys = qn_jheap_alloc(h, capacity, sizeof *keys);
    qn_jvalue *values = keys ? qn_jheap_alloc(h, capacity, sizeof *values) : NULL;
    if (!values) return h->status;
    memcpy(keys, d->keys, d->n * sizeof *keys);
    memcpy(values, d->values, d->n * sizeof *values);
    d->keys = keys;
    d->values = values;
    d->capacity = capacity;
    return QN_OK;
}

static qn_status dict_reindex(qn_jheap *h, qn_jdict *d)
{
    uint32_t size = 32;
    while (size < d->n * 4) size *= 2;
    uint32_t *index = qn_jheap_alloc(h, size, sizeof *index);
    if (!index) return h->status;
    memset(index, 0, size * sizeof *index);
    d->index = index;
    d->index_size = size;
    for (uint32_t i = 0; i < d->n; i++) {
        uint64_t hash;
        QN_TRY(hash_value(h, d->keys[i], &hash));
        index_put(d, hash, i);
    }
    return QN_OK;
}

qn_status qn_jdict_set(qn_jheap *h, qn_jdict *d, qn_jvalue key, qn_jvalue value)
{
    uint64_t hash = 0;
    uint32_t place;
    QN_TRY(hash_value(h, key, &hash));
    QN_TRY(find_place(h, d, key, hash, &place));
    if (place != UINT32_MAX) {
        d->values[place] = value;
        return QN_OK;
    }
    if (d->n == d->capacity) QN_TRY(dict_grow(h, d));
    d->keys[d->n] = key;
    d->values[d->n] = value;
    d->n++;
    if (d->index && d->n * 2 <= d->index_size)
        index_put(d, hash, d->n - 1);
    else if (d->n > INDEX_FROM)
        QN_TRY(dict_reindex(h, d));
    return QN_OK;
}

qn_status qn_jdict_get(qn_jheap *h, const qn_jdict *d, qn_jvalue key, qn_jvalue **value)
{
    uint64_t hash = 0;
    uint32_t place;
    QN_TRY(hash_value(h, key, &hash));
    QN_TRY(find_place(h, d, key, hash, &place));
    *value = place == UINT32_MAX ? NULL : &d->values[place];
    return QN_OK;
}
