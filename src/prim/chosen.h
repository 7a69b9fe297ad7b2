/* The positions that a row sees over chosen blocks, as runs: see qn_params_attend. */
#ifndef QN_PRIM_CHOSEN_H
#define QN_PRIM_CHOSEN_H

#include <stdint.h>

typedef struct {
    const int32_t *chosen; /* [top] */
    int64_t top, block;
    int64_t first, position; /* the row sees none before first, and none behind its own position */
    int no_tail;
    int64_t i, end; /* the next of chosen; where the runs so far end */
} qn_chosen_runs;

/* 1: the next run is [*begin, *end); runs rise and do not meet. 0: there is none. Blocks that are out of order or that
 * the row does not see as a whole are left out. */
static inline int qn_chosen_next(qn_chosen_runs *r, int64_t *begin, int64_t *end)
{
    const int64_t whole = (r->position + 1) / r->block; /* blocks */
    while (r->i <= r->top) {
        const int64_t i = r->i++, number = i < r->top ? r->chosen[i] : whole;
        if (number < 0 || (i < r->top && number >= whole) || (i == r->top && r->no_tail)) continue;
        *begin = number * r->block;
        *end = i < r->top ? *begin + r->block : r->position + 1;
        if (*begin < r->end) *begin = r->end;
        if (*begin < r->first) *begin = r->first;
        if (*begin >= *end) continue;
        r->end = *end;
        return 1;
    }
    return 0;
}

#endif
