/* The blocks that rows attend to: not on this device yet. */
#include "device/cuda/kernel.cuh"

static qn_status launch(qn_cuda_context *c, const qn_cuda_step *s)
{
    return qn_cuda_fail(QN_E_UNSUPPORTED, "device cuda does not choose blocks for attention yet");
}

extern const qn_cuda_prim qn_cuda_prim_INDEX_BLOCKS;
const qn_cuda_prim qn_cuda_prim_INDEX_BLOCKS = {launch, NULL};
