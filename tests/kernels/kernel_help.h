/* What tests of kernels share: memory that ends where a page ends, dice, weights and activations of every
 * type with ordinary and with extreme values, packing and products through any set. A kernel that reads or
 * writes a byte beyond what it was given ends the program here: only prefetches may go there, which never
 * fault. One thread. */
#ifndef QUERN_TESTS_KERNEL_HELP_H
#define QUERN_TESTS_KERNEL_HELP_H

#include <stddef.h>
#include <stdint.h>

#include "device/cpu/kernels/kernels.h"

/* ---- memory ------------------------------------------------------------------------------------------ */

/* n_bytes that end at a page which cannot be touched, as nearly as align (a power of two, up to 64) allows;
 * what lies before, and up to align - 1 bytes behind, is filled with a pattern. Its content is 0xa5. */
void *qn_test_guarded(size_t n_bytes, size_t align);
/* From now on the block may be read only. Returns p. */
void *qn_test_sealed(void *p);
/* The pattern around every guarded block must be as it was; frees them all. */
void qn_test_guarded_end(void);

/* ---- dice -------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t seed, at;
} qn_test_dice;
int64_t qn_test_roll(qn_test_dice *d, int64_t n); /* [0, n) */
double qn_test_between(qn_test_dice *d, double lo, double hi);
/* Guarded, [n]. */
float *qn_test_floats(int64_t n);
float *qn_test_random_floats(qn_test_dice *d, int64_t n, double lo, double hi);

/* ---- weights and activations ------------------------------------------------------------------------- */

/* Types with a packed layout: every one of GGUF; of MLX's each number of bits, group and type of scales at
 * least once. QN_DTYPE_COUNT ends. */
extern const qn_dtype qn_test_packed_types[];
/* A product of this weight that some precision, or a test, asks for. */
int qn_test_has_act(qn_dtype weight, qn_act act);
/* Elements of rows for a weight: one block, odd counts, whole chunks, a short last chunk, more than a stretch
 * of the tiled kernels. */
int64_t qn_test_width(qn_test_dice *d, qn_dtype weight);

typedef enum {
    QN_TEST_ORDINARY,
    QN_TEST_EXTREME_SCALES, /* 0 of both signs, subnormal, smallest, largest */
    QN_TEST_EXTREME_CODES,  /* every code the same: the lowest, the highest, or in between */
    QN_TEST_WEIGHTS_COUNT
} qn_test_weights;
/* Guarded rows [n_out, n_in] of the type's blocks. */
uint8_t *qn_test_rows(qn_test_dice *d, qn_test_weights kind, qn_dtype dtype, int64_t n_in, int64_t n_out);

typedef enum {
    QN_TEST_X_ORDINARY,
    QN_TEST_X_ENDS,  /* +-127 and the like: integers at their ends */
    QN_TEST_X_MIXED, /* blocks that are 0, tiny, huge, or full of ties */
    QN_TEST_X_BAD,   /* NaN or an infinity in row n_rows / 2 alone */
    QN_TEST_X_COUNT
} qn_test_x;
/* Guarded [n_rows, n_in]. */
float *qn_test_activations(qn_test_dice *d, qn_test_x kind, int64_t n_in, int64_t n_rows);

/* ---- through a set's kernels: everything they see is guarded, what they read is sealed -------------------
 */

/* Panels, packed in ranges as the dice fall (d NULL: in one). */
uint8_t *qn_test_panels(const qn_kernels *k, qn_test_dice *d, qn_dtype dtype, int64_t n_in, int64_t n_out,
                        const uint8_t *rows);
uint8_t *qn_test_act_rows(const qn_kernels *k, qn_act act, int64_t n_in, int64_t n_rows, const float *x);
/* [n_rows, n_out], in ranges of panels and rows as the dice fall (d NULL: in one call). */
float *qn_test_product(const qn_kernels *k, qn_test_dice *d, qn_dtype dtype, qn_act act, int64_t n_in,
                       int64_t n_out, const uint8_t *panels, const uint8_t *x, int64_t n_rows);

#endif
