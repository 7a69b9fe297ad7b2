/* A hash map from byte strings to int64 values: open addressing, seeded hash (hostile keys cannot line up on
 * one slot). Keys are borrowed, not copied: they must outlive the map. One writer at a time; readers may
 * share a finished map. */
#ifndef QN_BASE_MAP_H
#define QN_BASE_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct qn_map qn_map;

/* expected: number of keys to make room for. NULL: out of memory. */
qn_map *qn_map_new(size_t expected);
void qn_map_free(qn_map *m);
/* Adds or replaces. *old (may be NULL) gets the value that stood there; *found says whether there was one
 * (may be NULL). */
qn_status qn_map_set(qn_map *m, const void *key, size_t n, int64_t value, int64_t *old, int *found);
/* 1 and *value when found, else 0. */
int qn_map_get(const qn_map *m, const void *key, size_t n, int64_t *value);
size_t qn_map_count(const qn_map *m);
/* The hash itself, 64 bits, seeded per process only where the caller passes such a seed. */
uint64_t qn_hash_bytes(const void *bytes, size_t n, uint64_t seed);

#endif
