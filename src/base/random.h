/* Counter-based random numbers: a value depends on (seed, position) alone, so a draw does not depend on how
 * many were made before it or by whom. */
#ifndef QN_BASE_RANDOM_H
#define QN_BASE_RANDOM_H

#include <stdint.h>

/* 64 random bits of key (seed, position): two rounds of the SplitMix64 finaliser (Steele, Lea, Flood 2014).
 */
static inline uint64_t qn_random_bits(uint64_t seed, uint64_t position)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + position;
    for (int i = 0; i < 2; i++) {
        z += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
    }
    return z;
}

/* Uniform in [0, 1), 53 bits. */
static inline double qn_random_unit(uint64_t seed, uint64_t position)
{
    return (double)(qn_random_bits(seed, position) >> 11) * 0x1p-53;
}

#endif
