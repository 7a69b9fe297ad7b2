/* The sections of a file of saved state (state_file.h), for its reader and its writer: names, types and the
 * fields of a row. Each section is a tensor; rows are of int64. In this order each is aligned for its type
 * when the data begins at a multiple of 8. */
#ifndef QN_FORMAT_STATE_STATE_SECTIONS_H
#define QN_FORMAT_STATE_STATE_SECTIONS_H

#include <quern/dtype.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "format/state/state_file.h"

#define QN_STATE_VERSION "1"
#define QN_STATE_VERSION_PINS "2" /* the same with pins; a file without is of the first */
#define QN_STATE_META_VERSION "quern.state"
#define QN_STATE_META_FINGERPRINT "quern.fingerprint"
#define QN_STATE_META_PRECISION "quern.precision"
#define QN_STATE_META_KV_TYPE "quern.kv_type"
#define QN_STATE_META_SET "quern.set"
#define QN_STATE_META_LAYOUT "quern.layout"
#define QN_STATE_META_POSITIONS "quern.positions" /* where options changed them */

typedef enum {
    QN_STATE_SUMS,    /* [n] checksums, by qn_state_sum_place */
    QN_STATE_NODES,   /* [n, fields] */
    QN_STATE_KEYS,    /* [n, QN_STATE_KEY_FIELDS] */
    QN_STATE_TOKENS,  /* of all nodes */
    QN_STATE_NUMBERS, /* of pages, of all nodes */
    QN_STATE_TEXTS,   /* names of adapters, salts */
    QN_STATE_SECTION_COUNT
} qn_state_section;

/* Before them come, where there are such, "pins": [n, QN_STATE_PIN_FIELDS] of int64; behind them, where there
 * are such, "slots", and "pages.0" and so on: [n, bytes of one]. */
#define QN_STATE_PINS "pins"
#define QN_STATE_SLOTS "slots"
enum { QN_STATE_NAME_BYTES = 24 };

static const struct {
    const char *name;
    qn_dtype dtype;
} qn_state_sections[QN_STATE_SECTION_COUNT] = {
    {"sums", QN_DTYPE_I64},   {"nodes", QN_DTYPE_I64},        {"keys", QN_DTYPE_I64},
    {"tokens", QN_DTYPE_I32}, {"page_numbers", QN_DTYPE_I32}, {"texts", QN_DTYPE_U8},
};

typedef enum {
    QN_STATE_SUM_SUMS,    /* of all behind it */
    QN_STATE_SUM_BINDING, /* of what the header says; then of each section but the sums */
    /* pages, group by group, then slots, then that of the pins */
    QN_STATE_SUM_UNITS = QN_STATE_SUM_BINDING + QN_STATE_SECTION_COUNT
} qn_state_sum_place;

enum {
    QN_STATE_KEY_ADAPTER, /* in the texts */
    QN_STATE_KEY_ADAPTER_BYTES,
    QN_STATE_KEY_FINGERPRINT,
    QN_STATE_KEY_LONG,
    QN_STATE_KEY_SALT, /* in the texts */
    QN_STATE_KEY_SALT_BYTES,
    QN_STATE_KEY_FIELDS
};
enum {
    QN_STATE_PIN_NODE,
    QN_STATE_PIN_NAME, /* in the texts */
    QN_STATE_PIN_NAME_BYTES,
    QN_STATE_PIN_FIELDS
};
enum {
    QN_STATE_NODE_PARENT,
    QN_STATE_NODE_KEY,
    QN_STATE_NODE_TOKENS, /* the first, in the tokens */
    QN_STATE_NODE_N_TOKENS,
    QN_STATE_NODE_SLOT,
    QN_STATE_NODE_COST,
    QN_STATE_NODE_GROUPS /* for each group what follows */
};
enum {
    QN_STATE_GROUP_FIRST, /* page of the sequence */
    QN_STATE_GROUP_AT,    /* in the numbers */
    QN_STATE_GROUP_N,
    QN_STATE_GROUP_FIELDS
};

/* Numbers of a row; 0: the section is a plain list. */
static inline int64_t qn_state_section_width(qn_state_section section, int n_groups)
{
    if (section == QN_STATE_KEYS) return QN_STATE_KEY_FIELDS;
    return section == QN_STATE_NODES ? QN_STATE_NODE_GROUPS + n_groups * QN_STATE_GROUP_FIELDS : 0;
}

static inline int64_t qn_state_sum(const void *bytes, size_t n)
{
    return (int64_t)qn_hash_bytes(bytes, n, 1);
}

/* What of the header says anything: the binding, and the sizes of a page and a slot (the lists' lengths show
 * in their sums). */
static inline int64_t qn_state_sum_binding(const qn_state_binding *b, const qn_state_sizes *sizes)
{
    const char *const texts[] = {b->precision, b->kv_type, b->set, b->layout};
    uint64_t hash = qn_hash_bytes(&b->fingerprint, sizeof b->fingerprint, 1);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        hash = qn_hash_bytes(texts[i], strlen(texts[i]), hash);
    if (b->positions) hash = qn_hash_bytes(b->positions, strlen(b->positions), hash);
    for (int g = 0; g < sizes->n_groups; g++)
        hash = qn_hash_bytes(&sizes->page_bytes[g], sizeof sizes->page_bytes[g], hash);
    return (int64_t)qn_hash_bytes(&sizes->slot_bytes, sizeof sizes->slot_bytes, hash);
}

static inline void qn_state_group_name(int group, char *out)
{
    snprintf(out, QN_STATE_NAME_BYTES, "pages.%d", group);
}

#endif
