/* The first column of ATTEND's block tables: how many pages lie before the table, and marks. */
#ifndef QN_PRIM_BLOCKS_H
#define QN_PRIM_BLOCKS_H

#include <stdint.h>

enum {
    /* Added to the first column of a sequence whose rows of this step all see each other, those behind them too, and
     * besides what lies before them (of a window: that begins at each row's own). */
    QN_BLOCKS_WHOLE = 1 << 30,
    /* Beside it: windows reach back to the first of these rows at least. */
    QN_BLOCKS_BACK = 1 << 29
};

static inline int64_t qn_blocks_before(int32_t first_column)
{
    return first_column & ~(QN_BLOCKS_WHOLE | QN_BLOCKS_BACK);
}

#endif
