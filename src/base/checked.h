/* Arithmetic on sizes that come from files or callers: each returns 0 and leaves *out alone when the result
 * does not fit. */
#ifndef QN_BASE_CHECKED_H
#define QN_BASE_CHECKED_H

#include <stddef.h>
#include <stdint.h>

static inline int qn_add_size(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) return 0;
    *out = r;
    return 1;
}

static inline int qn_mul_size(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) return 0;
    *out = r;
    return 1;
}

/* For non-negative int64 counts: also fails on negative operands. */
static inline int qn_add_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &r)) return 0;
    *out = r;
    return 1;
}

static inline int qn_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &r)) return 0;
    *out = r;
    return 1;
}

/* Rounds up to a multiple of align, a power of two. */
static inline int qn_align_size(size_t n, size_t align, size_t *out)
{
    size_t r;
    if (!qn_add_size(n, align - 1, &r)) return 0;
    *out = r & ~(align - 1);
    return 1;
}

/* Is [offset, offset + length) inside [0, total)? */
static inline int qn_range_ok(uint64_t offset, uint64_t length, uint64_t total)
{
    return offset <= total && length <= total - offset;
}

#endif
