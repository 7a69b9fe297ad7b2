/* Random matrices of any type of weights in a file of their own, in every way that matrices lie in files. One
 * thread. */
#ifndef QUERN_TESTS_OTHER_WEIGHTS_H
#define QUERN_TESTS_OTHER_WEIGHTS_H

#include "array/array.h"
#include "format/files/mmap.h"
#include "tests/kernels/kernel_help.h"

enum { QN_TEST_PARTS_MAX = 9 };

/* Matrices and how they lie. parts 0: one matrix that is no list of experts. */
typedef struct {
    qn_dtype dtype;
    int64_t parts, n_out, n_in;
    qn_test_weights kind;
    int transposed, step, in_three; /* in_three: MLX's tensors; else blocks */
    int cold;
    int64_t rows, top;
    int bias;
} qn_test_matrix;

/* The file that they lie in, and what they are. */
typedef struct {
    qn_mapping *file;
    qn_weight_part parts[QN_TEST_PARTS_MAX];
    qn_weight w;
    float *numbers; /* [parts][n_out][n_in] */
} qn_test_lying;

/* Writes the file into folder and maps it. */
qn_test_lying qn_test_lay_down(const qn_test_matrix *t, const char *folder);
void qn_test_take_up(qn_test_lying *l);
/* The weight on the scope's device, of 2 or 3 dimensions. */
qn_array *qn_test_import(qn_scope *s, qn_test_lying *l, int n_dims);
/* Numbers between -0.5 and 0.5. */
qn_array *qn_test_random_array(qn_scope *s, int n, const int64_t *dims, uint64_t seed);

#endif
