/* The library's side of shim.h: the card, its memory, and the table of primitives. */
#include "device/cuda/kernel.cuh"
#include "device/cuda/step/step.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static thread_local char message[512];

qn_status qn_cuda_fail(qn_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    return status;
}

static const char *error_text(void)
{
    return message;
}

/* Errors that leave the context as it was. All others are a kernel's, or the driver's, and stay. */
static int is_harmless(cudaError_t e)
{
    return e == cudaErrorMemoryAllocation || e == cudaErrorInvalidValue ||
           e == cudaErrorInvalidConfiguration || e == cudaErrorNotSupported;
}

qn_status qn_cuda_check(qn_cuda_context *c, cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return QN_OK;
    cudaGetLastError();
    if (e == cudaErrorMemoryAllocation)
        return qn_cuda_fail(QN_E_NOMEM, "device cuda: the card's memory is full (%s)", what);
    if (c && !is_harmless(e) && !c->is_lost) {
        c->is_lost = 1;
        snprintf(c->fault, sizeof c->fault, "%s failed: %s", what, cudaGetErrorString(e));
    }
    return qn_cuda_fail(QN_E_DEVICE, "device cuda: %s failed: %s%s", what, cudaGetErrorString(e),
                        c && c->is_lost ? "; the card is lost to this process" : "");
}

static qn_status check_alive(const qn_cuda_context *c)
{
    return c->is_lost
               ? qn_cuda_fail(QN_E_DEVICE, "device cuda: the card is lost to this process: %s", c->fault)
               : QN_OK;
}

#define ALIVE(c)                                 \
    do {                                         \
        const qn_status alive_ = check_alive(c); \
        if (alive_ != QN_OK) return alive_;      \
    } while (0)

/* ---- cards --------------------------------------------------------------------------------------------- */

static qn_status get_about(qn_cuda_about *out)
{
    qn_cuda_about a = {};
#ifdef QN_CUDA_HOST
    a.is_host = 1;
    a.code = "host";
#else
    a.code = QN_CUDA_CODE;
#endif
    cudaRuntimeGetVersion(&a.runtime_version);
    cudaDriverGetVersion(&a.driver_version);
    if (cudaGetDeviceCount(&a.n_cards) != cudaSuccess) a.n_cards = 0;
    cudaGetLastError();
    *out = a;
    return QN_OK;
}

static __global__ void try_code(void)
{
}

static qn_status get_card(int i, qn_cuda_card *out)
{
    qn_cuda_card card = {};
    cudaDeviceProp p;
    qn_status status = qn_cuda_check(NULL, cudaGetDeviceProperties(&p, i), "asking for a card");
    if (status != QN_OK) return status;
    snprintf(card.name, sizeof card.name, "%.100s", p.name);
    card.major = p.major;
    card.minor = p.minor;
    card.n_sm = p.multiProcessorCount;
    card.total_bytes = p.totalGlobalMem;
    cudaFuncAttributes attributes;
    status = qn_cuda_check(NULL, cudaSetDevice(i), "choosing a card");
    if (status != QN_OK) return status;
    card.has_code = cudaFuncGetAttributes(&attributes, (const void *)try_code) == cudaSuccess;
    cudaGetLastError();
    *out = card;
    return QN_OK;
}

static void close_context(qn_cuda_context *c)
{
    if (!c) return;
    if (c->begun) cudaEventDestroy(c->begun);
    if (c->beside) cudaStreamDestroy(c->beside);
    if (c->stream) cudaStreamDestroy(c->stream);
    free(c);
}

static qn_status open_context(int i_card, qn_cuda_context **out)
{
    qn_cuda_context *c = (qn_cuda_context *)calloc(1, sizeof *c);
    if (!c) return qn_cuda_fail(QN_E_NOMEM, "out of memory");
    cudaDeviceProp p;
    c->i_card = i_card;
    qn_status status = qn_cuda_check(NULL, cudaSetDevice(i_card), "choosing a card");
    if (status == QN_OK)
        status = qn_cuda_check(NULL, cudaGetDeviceProperties(&p, i_card), "asking for a card");
    if (status == QN_OK)
        status =
            qn_cuda_check(NULL, cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "a stream");
    if (status == QN_OK)
        status =
            qn_cuda_check(NULL, cudaStreamCreateWithFlags(&c->beside, cudaStreamNonBlocking), "a stream");
    if (status == QN_OK)
        status = qn_cuda_check(NULL, cudaEventCreateWithFlags(&c->begun, cudaEventDisableTiming), "an event");
    if (status != QN_OK) {
        close_context(c);
        return status;
    }
    c->n_sm = p.multiProcessorCount;
    c->major = p.major;
    c->minor = p.minor;
#ifdef QN_CUDA_HOST
    c->has_wide = p.major == 9;
#else
    c->has_wide = p.major == 9 && p.minor == 0 && strstr(QN_CUDA_CODE, "sm_90a") != NULL;
#endif
    status = qn_step_load(c);
    if (status != QN_OK) {
        close_context(c);
        return status;
    }
    *out = c;
    return QN_OK;
}

/* ---- memory -------------------------------------------------------------------------------------------- */

/* The current card is the thread's: any thread may come. */
static qn_status enter(qn_cuda_context *c)
{
    ALIVE(c);
    return qn_cuda_check(c, cudaSetDevice(c->i_card), "choosing a card");
}

#define ENTER(c)                                \
    do {                                        \
        const qn_status entered_ = enter(c);    \
        if (entered_ != QN_OK) return entered_; \
    } while (0)

static qn_status get_memory(qn_cuda_context *c, size_t *free_bytes, size_t *total_bytes)
{
    ENTER(c);
    return qn_cuda_check(c, cudaMemGetInfo(free_bytes, total_bytes), "asking for memory");
}

static qn_status allocate(qn_cuda_context *c, size_t size_bytes, void **out)
{
    ENTER(c);
    char what[64];
    snprintf(what, sizeof what, "%zu bytes", size_bytes);
    return qn_cuda_check(c, cudaMalloc(out, size_bytes ? size_bytes : 1), what);
}

static void release_memory(qn_cuda_context *c, void *p)
{
    if (p && enter(c) == QN_OK) cudaFree(p);
}

static qn_status host_allocate(qn_cuda_context *c, size_t size_bytes, void **out)
{
    ENTER(c);
    char what[64];
    snprintf(what, sizeof what, "%zu bytes of locked memory", size_bytes);
    return qn_cuda_check(c, cudaHostAlloc(out, size_bytes ? size_bytes : 1, cudaHostAllocDefault), what);
}

static void host_release(qn_cuda_context *c, void *p)
{
    if (p && enter(c) == QN_OK) cudaFreeHost(p);
}

static qn_status copy(qn_cuda_context *c, void *to, const void *from, size_t size_bytes)
{
    ENTER(c);
    if (!size_bytes) return QN_OK;
    return qn_cuda_check(c, cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDefault, c->stream), "a copy");
}

static qn_status fill(qn_cuda_context *c, void *to, int byte, size_t size_bytes)
{
    ENTER(c);
    if (!size_bytes) return QN_OK;
    return qn_cuda_check(c, cudaMemsetAsync(to, byte, size_bytes, c->stream), "filling memory");
}

static qn_status wait_all(qn_cuda_context *c)
{
    ENTER(c);
    const qn_status status = qn_cuda_check(c, cudaStreamSynchronize(c->stream), "a step");
    return status == QN_OK ? qn_cuda_check(c, cudaStreamSynchronize(c->beside), "a copy") : status;
}

/* ---- marks --------------------------------------------------------------------------------------------- */

static qn_status mark_new(qn_cuda_context *c, void **out)
{
    ENTER(c);
    cudaEvent_t mark = NULL;
    const qn_status status =
        qn_cuda_check(c, cudaEventCreateWithFlags(&mark, cudaEventDisableTiming), "an event");
    if (status == QN_OK) *out = mark;
    return status;
}

static void mark_free(qn_cuda_context *c, void *mark)
{
    if (mark) cudaEventDestroy((cudaEvent_t)mark);
}

static qn_status copy_beside(qn_cuda_context *c, void *to, const void *from, size_t size_bytes, void *mark)
{
    ENTER(c);
    cudaError_t e = cudaEventRecord(c->begun, c->stream);
    if (e == cudaSuccess) e = cudaStreamWaitEvent(c->beside, c->begun, 0);
    if (e == cudaSuccess && size_bytes)
        e = cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDefault, c->beside);
    if (e == cudaSuccess) e = cudaEventRecord((cudaEvent_t)mark, c->beside);
    return qn_cuda_check(c, e, "a copy");
}

static qn_status mark_wait(qn_cuda_context *c, void *mark)
{
    ENTER(c);
    return qn_cuda_check(c, cudaEventSynchronize((cudaEvent_t)mark), "a step");
}

/* ---- primitives ---------------------------------------------------------------------------------------- */

extern const qn_cuda_prim qn_cuda_prim_TYPED; /* element-wise, of any plain type */
#define P(name, rows) extern const qn_cuda_prim qn_cuda_prim_##name;
#include "prim/primitives.def"

static const qn_cuda_prim *const table[QN_PRIM_COUNT] = {
#define S(name) NULL,
#define E(name, inputs) &qn_cuda_prim_TYPED,
#define P(name, rows) &qn_cuda_prim_##name,
#include "prim/primitives.def"
};

static size_t scratch_bytes(const qn_cuda_step *s)
{
    const qn_cuda_prim *p = table[s->prim];
    return p && p->scratch_bytes ? p->scratch_bytes(s) : 0;
}

static qn_status launch(qn_cuda_context *c, const qn_cuda_step *s)
{
    ENTER(c);
    const qn_cuda_prim *p = table[s->prim];
    if (c->notes) qn_cuda_notes_set_step(c->notes, s->group, s->level);
    if (!p) return qn_cuda_fail(QN_E_UNSUPPORTED, "device cuda has no primitive %d", (int)s->prim);
    return p->launch(c, s);
}

/* ---- recordings ---------------------------------------------------------------------------------------- */

/* A graph, or the same as one kernel. */
typedef struct {
    cudaGraphExec_t graph;
    qn_cuda_played *played;
} recording;

static qn_status record(qn_cuda_context *c)
{
    ENTER(c);
    const qn_status status =
        qn_cuda_check(c, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal), "recording");
    if (status == QN_OK) c->notes = qn_cuda_notes_new();
    return status;
}

static qn_status make_graph(qn_cuda_context *c, cudaGraph_t graph, recording *r)
{
    return qn_cuda_check(c, cudaGraphInstantiate(&r->graph, graph, 0), "making a graph of a recording");
}

static void recording_free(qn_cuda_context *c, void *p)
{
    recording *r = (recording *)p;
    if (!r) return;
    if (enter(c) == QN_OK) {
        cudaStreamSynchronize(c->stream);
        if (r->graph) cudaGraphExecDestroy(r->graph);
        qn_cuda_played_free(c, r->played);
    }
    free(r);
}

static qn_status record_end(qn_cuda_context *c, void **out)
{
    *out = NULL;
    qn_cuda_notes *notes = c->notes;
    c->notes = NULL;
    cudaGraph_t graph = NULL;
    recording *r = (recording *)calloc(1, sizeof *r);
    qn_status status = qn_cuda_check(c, cudaStreamEndCapture(c->stream, &graph), "recording");
    if (!r && status == QN_OK) status = qn_cuda_fail(QN_E_NOMEM, "out of memory");
    if (status == QN_OK && notes) status = qn_cuda_played_new(c, notes, &r->played);
    if (status == QN_OK && !r->played) status = make_graph(c, graph, r);
    if (graph) cudaGraphDestroy(graph);
    qn_cuda_notes_free(notes);
    if (status == QN_OK) {
        *out = r;
        return QN_OK;
    }
    recording_free(c, r);
    return status;
}

static size_t recording_bytes(const void *p)
{
    return qn_cuda_played_bytes(((const recording *)p)->played);
}

static qn_status replay(qn_cuda_context *c, void *p)
{
    ENTER(c);
    recording *r = (recording *)p;
    if (r->played) return qn_cuda_played_begin(c, r->played);
    return qn_cuda_check(c, cudaGraphLaunch(r->graph, c->stream), "a recording");
}

qn_status qn_cuda_reserve(qn_cuda_context *c, size_t size_bytes, void **out, size_t *granule);
void qn_cuda_release(qn_cuda_context *c, void *base, size_t size_bytes);
qn_status qn_cuda_map(qn_cuda_context *c, void *base, size_t offset, size_t size_bytes);
void qn_cuda_unmap(qn_cuda_context *c, void *base, size_t offset, size_t size_bytes);
qn_status qn_cuda_pack(qn_cuda_context *c, const qn_cuda_weight *w, int64_t part, int64_t first, int64_t n,
                       const qn_cuda_raw *raw);

static const qn_cuda_shim shim = {.version = QN_CUDA_SHIM_VERSION,
                                  .error = error_text,
                                  .about = get_about,
                                  .card = get_card,
                                  .open = open_context,
                                  .close = close_context,
                                  .memory = get_memory,
                                  .alloc = allocate,
                                  .free = release_memory,
                                  .host_alloc = host_allocate,
                                  .host_free = host_release,
                                  .reserve = qn_cuda_reserve,
                                  .release = qn_cuda_release,
                                  .map = qn_cuda_map,
                                  .unmap = qn_cuda_unmap,
                                  .copy = copy,
                                  .fill = fill,
                                  .wait = wait_all,
                                  .scratch_bytes = scratch_bytes,
                                  .launch = launch,
                                  .record = record,
                                  .record_end = record_end,
                                  .replay = replay,
                                  .recording_free = recording_free,
                                  .recording_bytes = recording_bytes,
                                  .pack = qn_cuda_pack,
                                  .mark_new = mark_new,
                                  .mark_free = mark_free,
                                  .copy_beside = copy_beside,
                                  .mark_wait = mark_wait};

extern "C" __attribute__((visibility("default"))) const qn_cuda_shim *qn_cuda_shim_get(void)
{
    return &shim;
}
