/* A shuffled order of n things without a table: place i of it is computed. A Feistel network on the next
 * power of four, walked until it hits one of the n (Black, Rogaway 2002). A pure function; any thread. */
#ifndef QN_TRAIN_DATA_PERMUTATION_H
#define QN_TRAIN_DATA_PERMUTATION_H

#include <stdint.h>

/* What stands at place i, 0 <= i < n, of the order with this key. */
int64_t qn_permutation_at(int64_t n, uint64_t key, int64_t i);

#endif
