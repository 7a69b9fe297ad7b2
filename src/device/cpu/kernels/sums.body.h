/* Sums of a panel that a product keeps together, [row][QN_PANEL], on their way to the output and back. The
 * including file has the set's vec_<set>.h. */
#include "device/cpu/kernels/matmul/blocks.h"

/* Outputs that no cache would keep are written past them for at most so many rows. */
enum { STREAM_ROWS = 64 };

/* Sums kept together go out past the caches. Rows of a large output may lie a power of two apart: then their
 * lines crowd in one set of each cache, and storing them one by one waits for what is overwritten to be read.
 */
INLINE void stream_rows(const qn_matmul_args *a, int64_t panel, int64_t row, int64_t n_rows,
                        const float *sums)
{
    float *out = a->out + row * a->out_stride + panel * QN_PANEL;
    for (int64_t r = 0; r < n_rows; r++, out += a->out_stride) v_stream(out, v_load(sums + r * QN_PANEL));
}

/* Of at most STREAM_ROWS rows and all of a panel. */
static int may_stream(const qn_matmul_args *a, int64_t panel, int64_t n_rows)
{
    return a->streams && n_rows <= STREAM_ROWS && a->n_out - panel * QN_PANEL >= QN_PANEL;
}

/* A panel's sums of some rows, from out or back to it. */
INLINE void copy_sums(const qn_matmul_args *a, int64_t panel, int64_t row, int64_t n_rows, float *sums,
                      int back)
{
    float *out = a->out + row * a->out_stride + panel * QN_PANEL;
    const int64_t left = a->n_out - panel * QN_PANEL;
    const int n = left < QN_PANEL ? (int)left : QN_PANEL;
    for (int64_t r = 0; r < n_rows; r++, out += a->out_stride, sums += QN_PANEL) {
        float *to = back ? out : sums;
        const float *from = back ? sums : out;
        if (n == QN_PANEL)
            v_store(to, v_load(from));
        else
            v_store_n(to, v_load_n(from, n), n);
    }
}
