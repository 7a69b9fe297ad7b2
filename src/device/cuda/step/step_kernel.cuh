/* What the step kernel (step.cu) and those who prepare its list (notes.cu) agree on. */
#ifndef QN_DEVICE_CUDA_STEP_STEP_KERNEL_CUH
#define QN_DEVICE_CUDA_STEP_STEP_KERNEL_CUH

#include "device/cuda/attention/attention_few.cuh"
#include "device/cuda/attention/attention_merge.cuh"
#include "device/cuda/attention/attention_write.cuh"
#include "device/cuda/attention/rope.cuh"
#include "device/cuda/elements/fused.cuh"
#include "device/cuda/product/product.h"
#include "device/cuda/rows/lines4.cuh"
#include "device/cuda/rows/take.cuh"
#include "device/cuda/step/step.h"

/* Warps that compute, beside one that brings weights; slots of the ring at most; threads that do what a block of 256
 * does elsewhere. */
enum { QN_STEP_WARPS = 11, QN_STEP_THREADS = 32 * QN_STEP_WARPS, QN_STEP_SLOTS = 64, QN_STEP_TEAM = 256 };

/* The weights of one product as they come through the ring. */
typedef struct {
    const char *data;
    int32_t n_panels, n_chunks, chunk_bytes, last_bytes, panel_bytes, unused;
} qn_step_stream;
typedef struct {
    int32_t n_matrices, is_interleaved;
    qn_step_stream stream[QN_STEP_MATRICES];
} qn_step_feed;

typedef struct {
    const qn_step_op *ops;
    const qn_step_feed *feeds;
    unsigned *counter, base; /* blocks that arrived at barriers, in all runs; before this one */
    int n_ops, n_feeds, n_waits, n_blocks;
    int n_warps;                                     /* that sum up tasks: slot i is warp i % n_warps' */
    int n_slots, slot_bytes, area_bytes, sums_bytes; /* shared memory: ring, area, two times sums */
    size_t shared_bytes;
} qn_step_plan;

/* 1: the card has what the kernel needs. */
int qn_step_runs_on(const qn_cuda_context *c);
int qn_step_can_attend(const qn_attend_op *a);
int qn_step_can_multiply(const qn_step_product *p);
int qn_step_knows_pair(int first, int second);
qn_status qn_step_launch(qn_cuda_context *c, const qn_step_plan *plan);

/* Words of a packed row of activations in shared memory. Rows of 8 tokens fall into different banks. */
static __host__ __device__ __forceinline__ int qn_step_row_words(int padded)
{
    return padded / 2 + 4;
}

#endif
