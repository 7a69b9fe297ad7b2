/* Which rows go through which matrix of a stack: the pairs (row, choice) of EXPERTS, sorted on the card by the
 * matrix that they chose and cut into groups of at most a tile's size. */
#ifndef QN_DEVICE_CUDA_PRODUCT_GROUPS_CUH
#define QN_DEVICE_CUDA_PRODUCT_GROUPS_CUH

#include "device/cuda/kernel.cuh"

/* Tokens that go through the same matrix. */
typedef struct {
    int32_t part, first, n; /* entries [first, first + n) of `pairs`; n 0: nothing */
} qn_cuda_group;

/* Where the rows of activations lie: row r begins at r / per * outer + r % per * inner, in elements. */
typedef struct {
    int64_t per, outer, inner;
} qn_cuda_rows;

static __device__ __forceinline__ int64_t qn_row_begin(const qn_cuda_rows &rows, int64_t r)
{
    return rows.per == 1 ? r * rows.outer : r / rows.per * rows.outer + r % rows.per * rows.inner;
}

/* Groups that n_pairs choices of n_parts matrices can have. */
static inline int64_t qn_cuda_most_groups(int64_t n_pairs, int64_t n_parts, int64_t per_group)
{
    const int64_t most = n_parts + n_pairs / per_group;
    return most < n_pairs ? most : n_pairs;
}

/* ids: n_pairs / top rows of `top`, ids_row apart. groups [qn_cuda_most_groups], pairs [n_pairs]: the numbers of
 * pairs. No result depends on the order of pairs within a group. */
qn_status qn_cuda_group_pairs(qn_cuda_context *c, const int32_t *ids, int64_t ids_row, int64_t top,
                              int64_t n_pairs, int64_t n_parts, int64_t per_group, qn_cuda_group *groups,
                              int32_t *pairs);

#endif
