/* Merging what blocks that share a tile's groups left behind (attention.cuh). */
#ifndef QN_DEVICE_CUDA_ATTENTION_ATTENTION_MERGE_CUH
#define QN_DEVICE_CUDA_ATTENTION_ATTENTION_MERGE_CUH

#include "device/cuda/attention/attention.cuh"
#include "device/cuda/step/step.h"

/* A block for a row and a head. */
struct qn_merge_groups {
    typedef struct {
        qn_cuda_attention a;
        int is_turned;
    } work;
    enum { OP = QN_OP_MERGE };

    static __device__ void run(const qn_body &b, const work &w)
    {
        const qn_cuda_attention &a = w.a;
        const int h = (int)(b.block % a.n_heads), v_pad = qn_padded(a.v.dim);
        const int64_t i = b.block / a.n_heads, row = a.first + i;
        const int64_t sequence = qn_sequence_of(a.row_begin, a.n_sequences, row);
        const qn_seen s = qn_sight(a, sequence, a.row_begin[sequence], a.row_begin[sequence + 1], row);
        const int64_t at = (i * a.n_heads + h) * a.n_groups;
        const float *ml = a.parts + (a.past - a.first) * a.n_heads * a.n_groups * v_pad + at * 2;
        for (int d = threadIdx.x; d < v_pad; d += b.threads) { /* whole warps */
            enum { AHEAD = 8 };                                /* groups whose loads are under way */
            qn_softmax softmax = {-INFINITY, 0};
            float sum = 0;
            const int64_t past = (s.hi + QN_GROUP - 1) / QN_GROUP;
            for (int64_t g = s.lo / QN_GROUP; g < past; g += AHEAD) {
                float x[AHEAD], m[AHEAD], l[AHEAD];
                QN_UNROLL
                for (int i = 0; i < AHEAD; i++) {
                    const int64_t from = g + i < past ? g + i : past - 1;
                    x[i] = a.parts[(at + from) * v_pad + d];
                    m[i] = ml[2 * from];
                    l[i] = ml[2 * from + 1];
                }
                QN_UNROLL
                for (int i = 0; i < AHEAD; i++) {
                    float keep, add;
                    if (g + i >= past) break;
                    qn_add_group(&softmax, m[i], l[i], &keep, &add);
                    sum = l[i] < 0 ? sum : fmaf(sum, keep, x[i] * add); /* of an unseen group x is anything */
                }
            }
            sum = qn_close_softmax(softmax, sum, a.sinks ? a.sinks + h : NULL, w.is_turned);
            if (d < a.v.dim) a.out[(row * a.n_heads + h) * a.v.dim + d] = sum;
        }
    }
};

#endif
