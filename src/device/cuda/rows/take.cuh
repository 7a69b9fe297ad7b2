/* The body of TAKE from a packed weight: rows of it in f32. */
#ifndef QN_DEVICE_CUDA_ROWS_TAKE_CUH
#define QN_DEVICE_CUDA_ROWS_TAKE_CUH

#include "device/cuda/kernel.cuh"
#include "device/cuda/step/step.h"

struct qn_take_packed {
    typedef struct {
        qn_cuda_weight table;
        const int32_t *ids;
        float *out;
        int64_t n, row; /* elements; of a row */
    } work;
    enum { OP = QN_OP_TAKE, BLOCK = 256 };

    static __device__ void run(const qn_body &b, const work &w)
    {
        const int64_t i = b.block * BLOCK + threadIdx.x;
        if (i < w.n) w.out[i] = qn_cuda_value(&w.table, 0, w.ids[i / w.row], i % w.row);
    }
};

#endif
