/* Finding a sequence by a row, and tiles of rows that do not cross from one sequence to the next: row_begin is on
 * the card, so the host knows neither. */
#ifndef QN_DEVICE_CUDA_ATTENTION_SEQUENCES_CUH
#define QN_DEVICE_CUDA_ATTENTION_SEQUENCES_CUH

#include "device/cuda/kernel.cuh"

/* The sequence that holds a row. */
static __device__ __forceinline__ int64_t qn_sequence_of(const int32_t *row_begin, int64_t n_sequences,
                                                         int64_t row)
{
    int64_t low = 0, high = n_sequences - 1;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (row_begin[middle + 1] > row)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Rows [row, row + n) of a sequence whose rows are [begin, end). */
typedef struct {
    int64_t sequence, begin, end, row, n;
} qn_row_tile;

/* Tile number i of all sequences' tiles: `size` rows each, but the last one of a sequence, counted from its first
 * row, or from row `first` if the sequence begins before that. Rows from `past` on belong to no tile. 0: there are
 * fewer tiles. Every thread of a block gets the same answer. */
static __device__ __forceinline__ int qn_find_tile(const int32_t *row_begin, int64_t n_sequences,
                                                   int64_t first, int64_t past, int64_t size, int64_t i,
                                                   qn_row_tile *t)
{
    if (size == 1) {
        t->row = first + i;
        if (t->row >= past) return 0;
        t->sequence = qn_sequence_of(row_begin, n_sequences, t->row);
        t->n = 1;
    } else {
        int64_t s = 0, from, to;
        for (;; s++) {
            if (s >= n_sequences) return 0;
            from = row_begin[s] > first ? row_begin[s] : first;
            to = row_begin[s + 1] < past ? row_begin[s + 1] : past;
            const int64_t n = to > from ? (int)(to - from + size - 1) / (int)size : 0;
            if (i < n) break;
            i -= n;
        }
        t->sequence = s;
        t->row = from + i * size;
        t->n = to - t->row < size ? to - t->row : size;
    }
    t->begin = row_begin[t->sequence];
    t->end = row_begin[t->sequence + 1];
    return 1;
}

/* As many tiles as there can be. */
static inline int64_t qn_most_tiles(int64_t n_rows, int64_t n_sequences, int64_t size)
{
    return size == 1 ? n_rows : n_rows / size + (n_sequences < n_rows ? n_sequences : n_rows);
}

#endif
