#include "train/data/permutation.h"

#include "base/random.h"

enum { ROUNDS = 6 };

int64_t qn_permutation_at(int64_t n, uint64_t key, int64_t i)
{
    int half_bits = 1;
    while (half_bits < 31 && ((int64_t)1 << (2 * half_bits)) < n) half_bits++;
    const uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t at = (uint64_t)i;
    do { /* at most four values in a row lie outside on average */
        uint64_t left = at >> half_bits, right = at & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t mixed = left ^ (qn_random_bits(key, round << 32 | right) & mask);
            left = right;
            right = mixed;
        }
        at = left << half_bits | right;
    } while (at >= (uint64_t)n);
    return (int64_t)at;
}
