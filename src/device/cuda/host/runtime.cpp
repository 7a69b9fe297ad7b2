/* CUDA's runtime without a card: see runtime.h. */
#include "device/cuda/host/runtime.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ALIGNMENT = 256, N_BUCKETS = 4096 };

/* An allocation of the card's memory, for its size. */
struct block {
    void *data;
    size_t size_bytes;
    block *next;
};

/* Counts events, and finds the one that a variable of the environment names. */
struct trigger {
    const char *variable;
    char last[32];
    long long n;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block *buckets[N_BUCKETS];
static size_t used_bytes;
static trigger allocations = {"QUERN_CUDA_HOST_FAIL", "", 0}, launches = {"QUERN_CUDA_HOST_LOST", "", 0};
static thread_local cudaError_t last_error;

/* How many events there were, this one included, from the one that the variable names on: 1 is that one. 0: the
 * variable is not set, or the event is still to come. */
static long long events_past(trigger *t)
{
    const char *text = getenv(t->variable);
    if (!text) text = "";
    pthread_mutex_lock(&lock);
    if (strncmp(text, t->last, sizeof t->last - 1)) {
        snprintf(t->last, sizeof t->last, "%s", text);
        t->n = 0;
    }
    const long long n = ++t->n, at = strtoll(text, NULL, 10);
    pthread_mutex_unlock(&lock);
    return at > 0 && n >= at ? n - at + 1 : 0;
}

cudaError_t qn_emulated_error(cudaError_t e)
{
    if (e != cudaSuccess) last_error = e;
    return e;
}

cudaError_t qn_emulated_failure(void)
{
    return qn_emulated_error(events_past(&allocations) == 1 ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t qn_emulated_launch_failure(void)
{
    return qn_emulated_error(events_past(&launches) ? cudaErrorIllegalAddress : cudaSuccess);
}

/* ---- errors, the card ---------------------------------------------------------------------------------- */

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorIllegalAddress:
        return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure:
        return "unspecified launch failure";
    case cudaErrorNotSupported:
        return "operation not supported";
    default:
        return "unknown error";
    }
}

const char *cudaGetErrorName(cudaError_t e)
{
    return cudaGetErrorString(e);
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

static size_t number_of(const char *variable, size_t otherwise)
{
    const char *text = getenv(variable);
    return text && *text ? (size_t)strtoull(text, NULL, 10) : otherwise;
}

cudaError_t cudaRuntimeGetVersion(int *out)
{
    *out = 13000;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *out)
{
    *out = (int)number_of("QUERN_CUDA_HOST_DRIVER", 13000);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *out)
{
    *out = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *out)
{
    *out = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int i)
{
    return qn_emulated_error(i == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}

static size_t total_bytes(void)
{
    const size_t n = number_of("QUERN_CUDA_HOST_BYTES", 0);
    return n ? n : (size_t)8 << 30;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int i)
{
    if (i != 0) return qn_emulated_error(cudaErrorInvalidDevice);
    cudaDeviceProp p = {};
    snprintf(p.name, sizeof p.name, "host");
    p.totalGlobalMem = total_bytes();
    p.sharedMemPerBlock = 48 << 10;
    p.sharedMemPerBlockOptin = 227 << 10;
    p.sharedMemPerMultiprocessor = 228 << 10;
    const int arch = (int)number_of("QUERN_CUDA_HOST_ARCH", 90);
    p.major = arch / 10;
    p.minor = arch % 10;
    p.multiProcessorCount = 4;
    p.warpSize = 32;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsPerMultiProcessor = 2048;
    p.l2CacheSize = 50 << 20;
    *out = p;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *total = total_bytes();
    const size_t others = number_of("QUERN_CUDA_HOST_USED", 0);
    pthread_mutex_lock(&lock);
    *free_bytes = *total > used_bytes + others ? *total - used_bytes - others : 0;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *kernel)
{
    cudaFuncAttributes a = {};
    a.maxThreadsPerBlock = 1024;
    a.ptxVersion = a.binaryVersion = 90;
    *out = a;
    return qn_emulated_error(kernel && number_of("QUERN_CUDA_HOST_CODE", 1) ? cudaSuccess
                                                                            : cudaErrorInvalidValue);
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    const int is_fine =
        kernel && (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value <= 227 << 10);
    return qn_emulated_error(is_fine ? cudaSuccess : cudaErrorInvalidValue);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static block **bucket_of(const void *p)
{
    return &buckets[((uintptr_t)p / ALIGNMENT * 2654435761u >> 7) % N_BUCKETS];
}

/* NULL: the card is full. */
static block *claim(size_t size_bytes)
{
    block *b = (block *)malloc(sizeof *b);
    if (!b) return NULL;
    pthread_mutex_lock(&lock);
    const size_t all = total_bytes(), others = number_of("QUERN_CUDA_HOST_USED", 0);
    const size_t total = all > others ? all - others : 0;
    const int fits = used_bytes <= total && size_bytes <= total - used_bytes;
    if (fits) used_bytes += size_bytes;
    pthread_mutex_unlock(&lock);
    if (fits) {
        b->size_bytes = size_bytes;
        return b;
    }
    free(b);
    return NULL;
}

static void unclaim(block *b)
{
    pthread_mutex_lock(&lock);
    used_bytes -= b->size_bytes;
    pthread_mutex_unlock(&lock);
    free(b);
}

cudaError_t cudaMalloc(void **out, size_t size_bytes)
{
    *out = NULL;
    if (!size_bytes) return cudaSuccess;
    if (qn_emulated_failure() != cudaSuccess) return cudaErrorMemoryAllocation;
    block *b = claim(size_bytes);
    if (!b) return qn_emulated_error(cudaErrorMemoryAllocation);
    if (posix_memalign(&b->data, ALIGNMENT, size_bytes)) {
        unclaim(b);
        return qn_emulated_error(cudaErrorMemoryAllocation);
    }
    memset(b->data, 0xff, size_bytes);
    pthread_mutex_lock(&lock);
    block **head = bucket_of(b->data);
    b->next = *head;
    *head = b;
    pthread_mutex_unlock(&lock);
    *out = b->data;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    if (!p) return cudaSuccess;
    pthread_mutex_lock(&lock);
    block **at = bucket_of(p);
    while (*at && (*at)->data != p) at = &(*at)->next;
    block *b = *at;
    if (b) *at = b->next;
    pthread_mutex_unlock(&lock);
    if (!b) return qn_emulated_error(cudaErrorInvalidValue);
    free(b->data);
    unclaim(b);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t size_bytes, unsigned flags)
{
    *out = NULL;
    if (qn_emulated_failure() != cudaSuccess) return cudaErrorMemoryAllocation;
    if (posix_memalign(out, ALIGNMENT, size_bytes ? size_bytes : 1)) {
        *out = NULL;
        return qn_emulated_error(cudaErrorMemoryAllocation);
    }
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size_bytes, cudaMemcpyKind kind)
{
    if (size_bytes) memmove(to, from, size_bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return cudaMemcpy(to, from, size_bytes, kind);
}

cudaError_t cudaMemset(void *to, int byte, size_t size_bytes)
{
    if (size_bytes) memset(to, byte, size_bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t size_bytes, cudaStream_t stream)
{
    return cudaMemset(to, byte, size_bytes);
}

/* ---- recordings ---------------------------------------------------------------------------------------- */

struct kept_action {
    cudaError_t (*act)(void *action);
    void (*destroy)(void *action);
    void *action;
    kept_action *next;
};

/* The graph and what is made of it are one and the same, counted. */
struct qn_emulated_recording {
    kept_action *first, **end;
    int users;
};

static thread_local qn_emulated_recording *recording;

int qn_emulated_is_recording(void)
{
    return recording != NULL;
}

cudaError_t qn_emulated_keep(cudaError_t (*act)(void *action), void (*destroy)(void *action), void *action)
{
    kept_action *k = (kept_action *)malloc(sizeof *k);
    if (!k) return qn_emulated_error(cudaErrorMemoryAllocation);
    *k = kept_action{act, destroy, action, NULL};
    *recording->end = k;
    recording->end = &k->next;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    if (recording) return qn_emulated_error(cudaErrorInvalidValue);
    recording = (qn_emulated_recording *)calloc(1, sizeof *recording);
    if (!recording) return qn_emulated_error(cudaErrorMemoryAllocation);
    recording->end = &recording->first;
    recording->users = 1;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    *out = recording;
    recording = NULL;
    return *out ? cudaSuccess : qn_emulated_error(cudaErrorInvalidValue);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    graph->users++;
    *out = graph;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    for (kept_action *k = graph->first; k; k = k->next) {
        const cudaError_t e = k->act(k->action);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    if (--graph->users) return cudaSuccess;
    for (kept_action *k = graph->first, *next; k; k = next) {
        next = k->next;
        k->destroy(k->action);
        free(k);
    }
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    return cudaGraphDestroy(graph);
}

/* ---- streams, events ----------------------------------------------------------------------------------- */

struct qn_emulated_stream {
    unsigned flags;
};

struct qn_emulated_event {
    struct timespec recorded;
};

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    *out = (cudaStream_t)calloc(1, sizeof **out);
    if (!*out) return qn_emulated_error(cudaErrorMemoryAllocation);
    (*out)->flags = flags;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithFlags(out, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    *out = (cudaEvent_t)calloc(1, sizeof **out);
    return *out ? cudaSuccess : qn_emulated_error(cudaErrorMemoryAllocation);
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    clock_gettime(CLOCK_MONOTONIC, &event->recorded);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    *milliseconds = (float)((double)(to->recorded.tv_sec - from->recorded.tv_sec) * 1e3 +
                            (double)(to->recorded.tv_nsec - from->recorded.tv_nsec) * 1e-6);
    return cudaSuccess;
}
