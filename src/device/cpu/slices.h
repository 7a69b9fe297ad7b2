/* Rows of a packed weight W [n, k], a slice of QN_CPU_SLICE_ROWS of them at a time, as plain numbers that
 * products take: f32, or bf16 where the set multiplies it. No more of W is ever unpacked. Who unpacks or
 * multiplies what does not matter to a result. */
#ifndef QN_DEVICE_CPU_SLICES_H
#define QN_DEVICE_CPU_SLICES_H

#include "device/cpu/cpu.h"

enum { QN_CPU_SLICE_ROWS = 128, QN_CPU_SLICE_COLUMNS = 64 };

typedef struct {
    qn_dtype dtype;
    const void *panels;
    int64_t n, k;
    int bf16;
} qn_cpu_slices;

size_t qn_cpu_slice_bytes(const qn_cpu_slices *w);
/* Of a worker that unpacks. */
size_t qn_cpu_slice_scratch_bytes(void);
/* Panels of slice i. */
int64_t qn_cpu_slice_panels(const qn_cpu_slices *w, int64_t slice);
/* Its panels [begin, end) into `to`, a slice's bytes. */
void qn_cpu_slice_unpack(const qn_kernels *kernels, const qn_cpu_slices *w, int64_t slice, int64_t begin,
                         int64_t end, char *to, float *scratch);
/* Rows [begin, end) of out [rows, k] = (accumulate ? out : 0) + x times the slice. x begins at the slice's
 * first column: f32, or with bf16 rounded rows, x_row and out_row elements apart. */
void qn_cpu_slice_multiply(const qn_kernels *kernels, const qn_cpu_slices *w, int64_t slice, const char *from,
                           const void *x, int64_t x_row, float *out, int64_t out_row, int64_t begin,
                           int64_t end, int accumulate);
/* Elements of a rounded row of n, and rounding one. */
int64_t qn_cpu_slice_row(int64_t n);
void qn_cpu_slice_round(const qn_kernels *kernels, const float *x, int64_t n, uint16_t *out);

/* MATMUL by a packed weight that is not transposed. */
void qn_cpu_matmul_back(const qn_cpu_run *run, const qn_cpu_step *s);
void qn_cpu_matmul_back_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                                size_t *shared_bytes);

#endif
