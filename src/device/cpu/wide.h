/* Numbers of any plain type, for the steps that are no hot paths: lines of elements that lie any strides
 * apart, a tile at a time as numbers of 8 bytes, in which the arithmetic is done.
 *
 * Signed integers (and bool as 0 and 1) are computed as int64_t, unsigned ones as uint64_t, floating types as
 * double; what is stored is cut to the type's width, so sums and products of integers wrap around. */
#ifndef QN_DEVICE_CPU_WIDE_H
#define QN_DEVICE_CPU_WIDE_H

#include "device/cpu/cpu.h"

typedef enum { QN_WIDE_SIGNED, QN_WIDE_UNSIGNED, QN_WIDE_REAL } qn_wide_kind;
typedef union {
    int64_t i;
    uint64_t u;
    double f;
} qn_wide;

enum { QN_WIDE_TILE = 256 };

qn_wide_kind qn_wide_kind_of(qn_dtype dtype);
size_t qn_wide_bytes(qn_dtype dtype);
/* n elements, stride elements apart. */
void qn_wide_load(qn_dtype dtype, const char *from, int64_t stride, int64_t n, qn_wide *to);
/* n elements, stride apart, of the kind that belongs to dtype. */
void qn_wide_store(qn_dtype dtype, const qn_wide *from, int64_t n, char *to, int64_t stride);
/* A line of a step's output and the elements of its inputs that belong to it: addresses, and strides in
 * elements. */
typedef void qn_wide_line(const qn_cpu_run *run, const qn_cpu_step *s, char *out, char *const *in,
                          const int64_t *stride, int64_t n);
/* Calls fn for lines that cover this worker's share of the step's rows. Inputs have the output's shape. */
void qn_wide_each_line(const qn_cpu_run *run, const qn_cpu_step *s, qn_wide_line *fn);

/* typed.c: an element-wise primitive of numbers that are not f32. */
extern const qn_cpu_prim qn_cpu_typed;
/* typed_matmul.c: a product of numbers that are not f32. */
void qn_cpu_typed_matmul(const qn_cpu_run *run, const qn_cpu_step *s);
void qn_cpu_typed_matmul_rows(const qn_cpu_run *run, const qn_cpu_step *s);
/* matmul_bf16.c: a product of two bf16 matrices into f32. */
void qn_cpu_bf16_matmul(const qn_cpu_run *run, const qn_cpu_step *s);
qn_status qn_cpu_bf16_matmul_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *shared_bytes);
/* typed_reduce.c: SUM, MAX, MIN and PROD of numbers that are not f32. */
void qn_cpu_typed_reduce(const qn_cpu_run *run, const qn_cpu_step *s);

#endif
