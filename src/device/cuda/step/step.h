/* Steps of few rows as one kernel (step.cu): what it can play, and what it is told.
 *
 * While a run is recorded, launchers note what they begin (qn_cuda_note_op). If all of it can be played, the run
 * is made one persistent kernel; else it stays a graph of kernels. Both give the same bits. */
#ifndef QN_DEVICE_CUDA_STEP_STEP_H
#define QN_DEVICE_CUDA_STEP_STEP_H

#include "device/cuda/kernel.cuh"

/* Bodies, and products. */
enum {
    QN_OP_NONE,
    QN_OP_TAKE,
    QN_OP_ANGLES,
    QN_OP_RMS_NARROW,
    QN_OP_RMS_WIDE,
    QN_OP_ROTATE,
    QN_OP_CHAIN,
    QN_OP_WRITE,
    QN_OP_ATTEND,
    QN_OP_MERGE,
    QN_OP_PRODUCT
};

enum { QN_STEP_ROWS = 8, QN_STEP_MATRICES = 3, QN_STEP_WORK = 992 };

/* What is computed of a product's results by the block that has them: out = second(first(a), b), where a and b are
 * results of matrices, or lie in memory like them. */
typedef struct {
    int first, second;      /* of primitives.def; first COPY: a itself. second COPY: there is no epilogue */
    int a_matrix, b_matrix; /* -1: a, b */
    const float *a, *b;
    float *out;
} qn_step_epilogue;

typedef struct {
    qn_cuda_weight w;
    float *out;
    int64_t out_stride;
} qn_step_matrix;

/* Rows of x, normed if norm says so, times up to three matrices. */
typedef struct {
    const float *x;
    int64_t x_row;
    int rows, n_in, padded, n_matrices;
    int has_norm;
    float eps, offset;
    const float *norm;  /* factors; NULL: none */
    float *normed;      /* where rows are left too; NULL: nobody else reads them */
    int is_interleaved; /* panels of all matrices in turn, for the epilogue's sake */
    qn_step_epilogue epilogue;
    qn_step_matrix matrix[QN_STEP_MATRICES];
} qn_step_product;

/* One op. `first`: the block that plays its first one. */
typedef struct {
    int32_t op, grid, threads, waits, first;
    int32_t unused[3];
    char work[QN_STEP_WORK];
} qn_step_op;

/* Notes of a recording. */
typedef struct qn_cuda_notes qn_cuda_notes;
qn_cuda_notes *qn_cuda_notes_new(void); /* NULL: out of memory */
void qn_cuda_notes_free(qn_cuda_notes *n);
/* What is noted from now on is of this step: see qn_cuda_step. */
void qn_cuda_notes_set_step(qn_cuda_notes *n, int group, int level);

/* A run as one kernel. *out NULL with QN_OK: the notes cannot be played. */
typedef struct qn_cuda_played qn_cuda_played;
qn_status qn_cuda_played_new(qn_cuda_context *c, const qn_cuda_notes *n, qn_cuda_played **out);
qn_status qn_cuda_played_begin(qn_cuda_context *c, qn_cuda_played *p);
void qn_cuda_played_free(qn_cuda_context *c, qn_cuda_played *p);
size_t qn_cuda_played_bytes(const qn_cuda_played *p); /* NULL: 0 */
/* Brings the step kernel's code to the card, where it has any use: the driver keeps it there, in no ledger, so what is
 * free is asked for behind it. */
qn_status qn_step_load(qn_cuda_context *c);

#endif
