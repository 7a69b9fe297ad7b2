/* Attention of rows over chosen blocks, for attention.c and ragged.c.
 *
 * A row reads only the pages that hold a position which it sees. They become a block table of the row's own. Positions are
 * counted from the begin of that table, and a mark hides each position that the row does not see. The kernels of attention
 * read the table as a short sequence. So the work of a row does not grow with the length of its sequence. */
#ifndef QN_DEVICE_CPU_ATTENTION_CHOSEN_H
#define QN_DEVICE_CPU_ATTENTION_CHOSEN_H

#include "device/cpu/cpu.h"

/* Where rows lie. */
typedef struct {
    int64_t n_rows;
    /* Of the row: the block table of its sequence, its position, and the positions that lie before the table. */
    void (*place)(const void *of, int64_t row, const int32_t **blocks, int64_t *position, int64_t *before);
    const void *of;
} qn_cpu_rows_at;

/* Workers claim rows and some of their heads. a: all but blocks, position, q and out; chosen: which input. */
void qn_cpu_attend_chosen(const qn_cpu_run *run, const qn_cpu_step *s, qn_attend_args *a, int chosen,
                          const qn_cpu_rows_at *rows);
/* Scratch of a worker: that of the kernels, then what belongs to a row of a sequence of at most so many pages. */
void qn_cpu_chosen_prepare(qn_cpu_step *s, int64_t most_pages, size_t *scratch_bytes);

#endif
