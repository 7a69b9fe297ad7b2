/* The part of CUDA's runtime that quern calls, for a processor without a card: memory is the host's, everything
 * is done when the call returns. Memory of the "card" is filled with 0xff, so that a kernel which reads what was
 * never written gets NaN.
 *
 *   QUERN_CUDA_HOST_BYTES=n   how much memory the card says it has (8 GiB if unset)
 *   QUERN_CUDA_HOST_FAIL=n    the n-th allocation fails, that one alone
 *   QUERN_CUDA_HOST_LOST=n    the n-th launch and all behind it fail with cudaErrorIllegalAddress
 *   QUERN_CUDA_HOST_USED=n    so much of it is another process's
 *   QUERN_CUDA_HOST_DRIVER=n  the version of the driver (13000 if unset); 0: there is none
 *   QUERN_CUDA_HOST_ARCH=n    the card's compute capability (90 if unset)
 *   QUERN_CUDA_HOST_CODE=n    0: the library has no code for the card
 *
 * They are read at each call. Counting begins with the process, and again whenever the variable changes. */
#ifndef QN_DEVICE_CUDA_HOST_RUNTIME_H
#define QN_DEVICE_CUDA_HOST_RUNTIME_H

#include <stddef.h>

/* The numbers are CUDA's. */
typedef enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
    cudaErrorUnknown = 999
} cudaError_t;

typedef struct qn_emulated_stream *cudaStream_t;
typedef struct qn_emulated_event *cudaEvent_t;

typedef enum {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
} cudaMemcpyKind;

enum { cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventDisableTiming = 2 };

typedef enum {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
} cudaFuncAttribute;

typedef struct {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
    int major, minor, multiProcessorCount, warpSize, maxThreadsPerBlock, maxThreadsPerMultiProcessor,
        l2CacheSize, integrated, pciBusID, pciDeviceID, pciDomainID;
} cudaDeviceProp;

typedef struct {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion;
} cudaFuncAttributes;

const char *cudaGetErrorString(cudaError_t e);
const char *cudaGetErrorName(cudaError_t e);
cudaError_t cudaGetLastError(void); /* of this thread; the next call returns cudaSuccess */
cudaError_t cudaPeekAtLastError(void);
cudaError_t cudaRuntimeGetVersion(int *out);
cudaError_t cudaDriverGetVersion(int *out);

cudaError_t cudaGetDeviceCount(int *out);
cudaError_t cudaGetDevice(int *out);
cudaError_t cudaSetDevice(int i);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int i);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *kernel);
cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value);

cudaError_t cudaMalloc(void **out, size_t size_bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **out, size_t size_bytes, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemcpy(void *to, const void *from, size_t size_bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemset(void *to, int byte, size_t size_bytes);
cudaError_t cudaMemsetAsync(void *to, int byte, size_t size_bytes, cudaStream_t stream);

cudaError_t cudaStreamCreate(cudaStream_t *out);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);

/* What a stream would begin between these two is kept, not done. One recording at a time. */
typedef struct qn_emulated_recording *cudaGraph_t;
typedef struct qn_emulated_recording *cudaGraphExec_t;
typedef enum { cudaStreamCaptureModeThreadLocal = 1 } cudaStreamCaptureMode;
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
/* Whether this thread records. If so, keeps one action (freed with it by `destroy`) in place of doing it. */
int qn_emulated_is_recording(void);
cudaError_t qn_emulated_keep(cudaError_t (*act)(void *action), void (*destroy)(void *action), void *action);

cudaError_t cudaEventCreate(cudaEvent_t *out);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to);

template <class T> static inline cudaError_t cudaMalloc(T **out, size_t size_bytes)
{
    return cudaMalloc((void **)out, size_bytes);
}

template <class T> static inline cudaError_t cudaHostAlloc(T **out, size_t size_bytes, unsigned flags)
{
    return cudaHostAlloc((void **)out, size_bytes, flags);
}

template <class... P>
static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value)
{
    return cudaFuncSetAttribute((const void *)kernel, attribute, value);
}

template <class... P>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, void (*kernel)(P...))
{
    return cudaFuncGetAttributes(out, (const void *)kernel);
}

/* Counts one allocation: an error if it is the one that must fail. For memory that cudaMalloc does not give. */
cudaError_t qn_emulated_failure(void);
/* Counts one launch. Keeps the error for cudaGetLastError. */
cudaError_t qn_emulated_launch_failure(void);
/* Keeps e for cudaGetLastError, and returns it. */
cudaError_t qn_emulated_error(cudaError_t e);

#endif
