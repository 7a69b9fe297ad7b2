/* Pairs sorted by the matrix that they chose: counted, then placed, by one block. */
#include "device/cuda/product/groups.cuh"

enum { BLOCK = 1024 };

typedef struct {
    const int32_t *ids;
    int64_t ids_row, top, n_pairs, n_groups;
    int32_t n_parts, per_group;
    qn_cuda_group *groups;
    int32_t *pairs;
} pair_list;

static __device__ __forceinline__ int32_t part_of(const pair_list &l, int64_t pair)
{
    return l.ids[pair / l.top * l.ids_row + pair % l.top];
}

/* The sum of what the threads before this one hold. sums [32] is shared; every thread comes. */
static __device__ __forceinline__ int32_t sum_before(int32_t x, int32_t *sums)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int32_t sum = x;
    for (int d = 1; d < 32; d <<= 1) {
        const int32_t below = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += below;
    }
    __syncthreads(); /* the last round's reads are over */
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; w++) sum += sums[w];
    return sum - x;
}

static __global__ void __launch_bounds__(BLOCK) group_pairs(pair_list l)
{
    QN_SHARED(shared); /* [n_parts]: how many chose it, then where its next pair goes */
    __shared__ int32_t sums[32], pairs_before, groups_before;
    int32_t *const of_part = (int32_t *)shared;
    for (int32_t e = threadIdx.x; e < l.n_parts; e += BLOCK) of_part[e] = 0;
    if (threadIdx.x == 0) pairs_before = groups_before = 0;
    __syncthreads();
    for (int64_t p = threadIdx.x; p < l.n_pairs; p += BLOCK) atomicAdd(&of_part[part_of(l, p)], 1);
    __syncthreads();
    for (int32_t begin = 0; begin < l.n_parts; begin += BLOCK) {
        const int32_t e = begin + (int32_t)threadIdx.x, n = e < l.n_parts ? of_part[e] : 0,
                      n_groups = (n + l.per_group - 1) / l.per_group;
        const int32_t at = pairs_before + sum_before(n, sums),
                      group = groups_before + sum_before(n_groups, sums);
        for (int32_t i = 0; i < n_groups; i++) {
            const int32_t first = i * l.per_group, left = n - first;
            l.groups[group + i] = {e, at + first, left < l.per_group ? left : l.per_group};
        }
        if (e < l.n_parts) of_part[e] = at;
        __syncthreads();
        if (threadIdx.x == BLOCK - 1) pairs_before = at + n, groups_before = group + n_groups;
        __syncthreads();
    }
    for (int64_t g = groups_before + threadIdx.x; g < l.n_groups; g += BLOCK) l.groups[g] = {0, 0, 0};
    for (int64_t p = threadIdx.x; p < l.n_pairs; p += BLOCK)
        l.pairs[atomicAdd(&of_part[part_of(l, p)], 1)] = (int32_t)p;
}

qn_status qn_cuda_group_pairs(qn_cuda_context *c, const int32_t *ids, int64_t ids_row, int64_t top,
                              int64_t n_pairs, int64_t n_parts, int64_t per_group, qn_cuda_group *groups,
                              int32_t *pairs)
{
    if (n_pairs == 0) return QN_OK;
    if (n_pairs > INT32_MAX || n_parts > 12288)
        return qn_cuda_fail(QN_E_UNSUPPORTED, "device cuda: %lld choices of %lld experts", (long long)n_pairs,
                            (long long)n_parts);
    const pair_list l = {ids,
                         ids_row,
                         top,
                         n_pairs,
                         qn_cuda_most_groups(n_pairs, n_parts, per_group),
                         (int32_t)n_parts,
                         (int32_t)per_group,
                         groups,
                         pairs};
    return qn_cuda_begin(c, group_pairs, 1, BLOCK, (size_t)n_parts * sizeof(int32_t), l);
}
