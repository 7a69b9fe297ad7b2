/* A step of few rows as one kernel that stays on the card from the first op to the last: a block on each
 * multiprocessor, and barriers of all blocks where one op needs what others computed.
 *
 * Weights do not depend on anything, so one warp of each block brings those that the block will need through a
 * ring in shared memory, op after op, past every barrier: memory is read while the others still compute, or wait.
 * The other warps compute: products by panels (product.h's canonical sum), and all else by the bodies of the
 * kernels that compute it in a launch of its own, of which a block plays several. So the bits are theirs.
 *
 * step_product.cuh has the ring and the products. */
#include "device/cuda/step/step_product.cuh"

#include <string.h>

enum { PRODUCER = QN_STEP_WARPS, ALL_THREADS = QN_STEP_THREADS + 32 };

/* ---- all blocks ---------------------------------------------------------------------------------------- */

/* By one thread: what this block's threads wrote before the barrier behind which it calls, all others may read. */
static __device__ __forceinline__ void arrive(unsigned *counter)
{
#ifndef QN_CUDA_HOST
    asm volatile("fence.acq_rel.gpu;\nred.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
#else
    ++*counter;
#endif
}

static __device__ __forceinline__ void await(unsigned *counter, unsigned target)
{
#ifndef QN_CUDA_HOST
    unsigned seen;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    while ((int)(seen - target) < 0);
#endif
}

/* ---- bodies -------------------------------------------------------------------------------------------- */

template <class B> static __device__ __forceinline__ void play(const qn_step_op &o, int n_blocks, char *area)
{
    if ((int)threadIdx.x >= o.threads) return;
    int64_t i = (int)blockIdx.x - o.first;
    if (i < 0) i += n_blocks;
    for (; i < o.grid; i += n_blocks) {
        const qn_body b = {i, o.threads, area};
        B::run(b, *(const typename B::work *)o.work);
    }
}

/* A function of its own, since it needs most registers: inside the kernel all else would spill. area_at: where in
 * the shared memory it may work. */
template <int D> static __device__ __noinline__ void attend(const qn_step_op &o, int n_blocks, int area_at)
{
    QN_SHARED(shared);
    if (threadIdx.x >= QN_FEW_THREADS) return;
    const qn_cuda_attention &a = ((const qn_attend_op *)o.work)->a;
    int64_t last = 0;
    for (int64_t row = a.first; row < a.past; row++) last = a.positions[row] > last ? a.positions[row] : last;
    /* no more splits than groups, and than blocks have work for: a block goes through its groups without pause */
    const int64_t tiles = o.grid / a.n_splits;
    const int n_groups = (int)(last / QN_GROUP + 1), most = n_groups < a.n_splits ? n_groups : a.n_splits,
              wish = n_blocks > tiles ? (int)(n_blocks / tiles) : 1, n_splits = most < wish ? most : wish;
    int64_t i = (int)blockIdx.x - o.first;
    if (i < 0) i += n_blocks;
    for (; i < tiles * n_splits; i += n_blocks) qn_attend_few<D>(a, n_splits, i, shared + area_at);
}

static __device__ __forceinline__ void play_op(const qn_step_op &o, const qn_step_plan &plan, const ring &r,
                                               ring_place *at, char *area, char *sums)
{
    const int n = plan.n_blocks;
    switch (o.op) {
    case QN_OP_TAKE:
        play<qn_take_packed>(o, n, area);
        break;
    case QN_OP_ANGLES:
        play<qn_find_angles>(o, n, area);
        break;
    case QN_OP_RMS_NARROW:
        play<qn_rms_norm<false, true>>(o, n, area);
        break;
    case QN_OP_RMS_WIDE:
        play<qn_rms_norm<true, true>>(o, n, area);
        break;
    case QN_OP_ROTATE:
        play<qn_rotate>(o, n, area);
        break;
    case QN_OP_CHAIN:
        play<qn_any_chain<1>>(o, n, area);
        break;
    case QN_OP_WRITE:
        play<qn_write_rows>(o, n, area);
        break;
    case QN_OP_MERGE:
        play<qn_merge_groups>(o, n, area);
        break;
    case QN_OP_ATTEND: {
        const int dim = qn_attend_dim(&((const qn_attend_op *)o.work)->a);
        if (dim == 64)
            attend<64>(o, n, plan.n_slots * plan.slot_bytes);
        else if (dim == 128)
            attend<128>(o, n, plan.n_slots * plan.slot_bytes);
        else
            attend<256>(o, n, plan.n_slots * plan.slot_bytes);
        break;
    }
    case QN_OP_PRODUCT:
        multiply(*(const qn_step_product *)o.work, plan, r, at, area, sums);
        break;
    }
}

static __global__ void __launch_bounds__(ALL_THREADS, 1) play_step(qn_step_plan plan)
{
    QN_SHARED(shared);
    __shared__ qn_mbarrier full[QN_STEP_SLOTS], empty[QN_STEP_SLOTS];
    __shared__ __align__(16) uint32_t ops[2][sizeof(qn_step_op) / 4];
    enum { WORDS = sizeof(qn_step_op) / 4 };
    static_assert((int)WORDS <= (int)QN_STEP_THREADS, "a thread fetches a word of the next op");
    const ring r = {shared, full, empty, plan.n_slots, plan.slot_bytes, plan.n_warps};
    char *const area = shared + plan.n_slots * plan.slot_bytes, *const sums = area + plan.area_bytes;
    if (threadIdx.x == 0) {
        for (int i = 0; i < plan.n_slots; i++) {
            qn_mbarrier_init(&full[i], 1);
            qn_mbarrier_init(&empty[i], 1);
        }
        qn_mbarrier_init_done();
    }
    if (threadIdx.x < WORDS) ops[0][threadIdx.x] = ((const uint32_t *)plan.ops)[threadIdx.x];
    __syncthreads();
    if (threadIdx.x / 32 == PRODUCER) {
        if (threadIdx.x % 32 == 0) bring_all(plan, r);
        return;
    }
    ring_place at = {0, 0};
    unsigned target = plan.base;
    for (int i = 0; i < plan.n_ops; i++) {
        const qn_step_op &o = *(const qn_step_op *)ops[i & 1];
        uint32_t next = 0;
        if (i + 1 < plan.n_ops && threadIdx.x < WORDS)
            next = ((const uint32_t *)(plan.ops + i + 1))[threadIdx.x];
        if (o.waits && i) {
            target += (unsigned)plan.n_blocks;
            if (threadIdx.x == 0) {
                arrive(plan.counter);
                await(plan.counter, target);
            }
            qn_barrier(1, QN_STEP_THREADS);
        }
        play_op(o, plan, r, &at, area, sums);
        if (threadIdx.x < WORDS) ops[(i + 1) & 1][threadIdx.x] = next;
        qn_barrier(1, QN_STEP_THREADS);
    }
}

/* ---- on the host --------------------------------------------------------------------------------------- */

int qn_step_runs_on(const qn_cuda_context *c)
{
    return c->major == 9;
}

qn_status qn_step_load(qn_cuda_context *c)
{
    cudaFuncAttributes about;
    if (!qn_step_runs_on(c)) return QN_OK;
    return qn_cuda_check(c, cudaFuncGetAttributes(&about, (const void *)play_step),
                         "loading the step kernel");
}

int qn_step_can_attend(const qn_attend_op *a)
{
    return a->is_few;
}

int qn_step_can_multiply(const qn_step_product *p)
{
    return p->rows <= QN_STEP_ROWS && p->n_in % 4 == 0 && p->x_row % 4 == 0 && (uintptr_t)p->x % 16 == 0 &&
           p->matrix[0].w.unit_bytes % 16 == 0;
}

int qn_step_knows_pair(int first, int second)
{
    return (first == QN_PRIM_COPY || first == QN_PRIM_SILU || first == QN_PRIM_GELU ||
            first == QN_PRIM_GELU_TANH || first == QN_PRIM_SIGMOID) &&
           (second == QN_PRIM_ADD || second == QN_PRIM_SUB || second == QN_PRIM_MUL || second == QN_PRIM_DIV);
}

qn_status qn_step_launch(qn_cuda_context *c, const qn_step_plan *plan)
{
#ifdef QN_CUDA_HOST
    return qn_cuda_launch(c, play_step, plan->n_blocks, ALL_THREADS, plan->shared_bytes, *plan);
#else
    cudaError_t e = cudaFuncSetAttribute((const void *)play_step, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)plan->shared_bytes);
    void *arguments[] = {(void *)plan};
    if (e == cudaSuccess)
        e = cudaLaunchCooperativeKernel((const void *)play_step, dim3((unsigned)plan->n_blocks),
                                        dim3(ALL_THREADS), arguments, plan->shared_bytes, c->stream);
    return qn_cuda_check(c, e, "a step");
#endif
}
