/* A cache without a model, for tests: pools over a device whose pages hold one number a token, which is a
 * hash of the token and all before it, and whose slots hold the hash of all tokens. Sequences compute such
 * numbers, match and insert; whether they read what they should can then be seen. Memory that was given back
 * is overwritten. */
#ifndef QN_TESTS_SUPPORT_FAKE_CACHE_H
#define QN_TESTS_SUPPORT_FAKE_CACHE_H

#include "cache/tree.h"

enum { FAKE_UNIT_BYTES = 4000, FAKE_SLOT_BYTES = 3000 };

typedef struct {
    qn_state base;
    uint64_t *contents; /* [n_units, n_numbers] */
    int64_t n_numbers;
    size_t unit_bytes;
} qn_fake_state;

typedef struct {
    qn_ledger *ledger;
    qn_device device;
    int n_groups;
    int64_t window[QN_TREE_GROUPS_MAX];
    qn_fake_state states[QN_TREE_GROUPS_MAX], slot_state;
    qn_pages *pages[QN_TREE_GROUPS_MAX], *slots;
    qn_tree *tree;
    int64_t table_size;
} qn_fake_cache;

/* n_groups with n_units pages each, windows as given; n_slots 0: none. A status: allocation failed. */
qn_status qn_fake_cache_begin(qn_fake_cache *c, int n_groups, const int64_t *window, int64_t n_units,
                              int64_t n_slots);
/* Frees the tree and the pools; 0: the ledger has something left. */
int qn_fake_cache_end(qn_fake_cache *c);

typedef struct {
    qn_fake_cache *cache;
    qn_tree_key key;
    int32_t *ids;     /* [capacity] */
    uint64_t *hashes; /* [capacity]: what each token's slot should hold */
    int64_t length, capacity;
    qn_block_table tables[QN_TREE_GROUPS_MAX];
    int32_t slot;
} qn_fake_sequence;

qn_status qn_fake_sequence_begin(qn_fake_sequence *s, qn_fake_cache *c, qn_tree_key key, int64_t capacity);
void qn_fake_sequence_end(qn_fake_sequence *s);
/* The empty sequence takes what the tree has of these tokens. A shortage leaves it empty. */
qn_status qn_fake_sequence_match(qn_fake_sequence *s, const int32_t *ids, int64_t n);
/* n more tokens. A shortage leaves it as it was. */
qn_status qn_fake_sequence_compute(qn_fake_sequence *s, const int32_t *ids, int64_t n);
void qn_fake_sequence_truncate(qn_fake_sequence *s, int64_t n);
/* Inserts the first n tokens; with_snapshot: with a copy of its state, n is then its length. */
qn_status qn_fake_sequence_insert(qn_fake_sequence *s, int64_t n, int with_snapshot, uint64_t writer);
/* Does it read what was computed for its tokens, wherever its next row looks? */
int qn_fake_sequence_is_right(const qn_fake_sequence *s);

#endif
