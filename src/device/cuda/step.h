/* Steps of few rows as one kernel: see step.cu. */
#ifndef QN_DEVICE_CUDA_STEP_H
#define QN_DEVICE_CUDA_STEP_H

/* What the step kernel can play. */
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

#endif
