/* Attention of rows over chosen blocks, for attention.c and ragged.c.
 *
 * Of a row's sequence only the pages that it sees anything of are read: they become a table of their own, in which the
 * row's positions are counted anew, with a mark for each of these that it does not see. So the kernels of attention go
 * through them as through a short sequence, and a row costs what it sees, whatever its sequence's length. */
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
