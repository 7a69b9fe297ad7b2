/* Ranges of addresses with memory behind parts of them: the driver's virtual memory management, found through
 * the runtime, so that nothing links libcuda. */
#include "device/cuda/kernel.cuh"

#ifdef QN_CUDA_HOST

#include <sys/mman.h>

enum { GRANULE = 64 << 10 };

qn_status qn_cuda_reserve(qn_cuda_context *c, size_t size_bytes, void **out, size_t *granule)
{
    const size_t bytes = (size_bytes + GRANULE - 1) / GRANULE * GRANULE;
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return qn_cuda_fail(QN_E_NOMEM, "device cuda: no addresses for %zu bytes", size_bytes);
    *out = p;
    *granule = GRANULE;
    return QN_OK;
}

void qn_cuda_release(qn_cuda_context *c, void *base, size_t size_bytes)
{
    munmap(base, (size_bytes + GRANULE - 1) / GRANULE * GRANULE);
}

qn_status qn_cuda_map(qn_cuda_context *c, void *base, size_t offset, size_t size_bytes)
{
    if (qn_emulated_failure() != cudaSuccess ||
        mprotect((char *)base + offset, size_bytes, PROT_READ | PROT_WRITE))
        return qn_cuda_fail(QN_E_NOMEM, "device cuda: the card's memory is full (%zu bytes)", size_bytes);
    return QN_OK;
}

void qn_cuda_unmap(qn_cuda_context *c, void *base, size_t offset, size_t size_bytes)
{
    madvise((char *)base + offset, size_bytes, MADV_DONTNEED);
    mprotect((char *)base + offset, size_bytes, PROT_NONE);
}

#else

#include <cuda.h>
#include <stdio.h>

static struct {
    decltype(&cuMemAddressReserve) reserve;
    decltype(&cuMemAddressFree) free;
    decltype(&cuMemCreate) create;
    decltype(&cuMemRelease) release;
    decltype(&cuMemMap) map;
    decltype(&cuMemUnmap) unmap;
    decltype(&cuMemSetAccess) access;
    decltype(&cuMemGetAllocationGranularity) granularity;
    decltype(&cuGetErrorString) text;
} driver;

static int find(const char *name, void *out)
{
    void *f = NULL;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &result) != cudaSuccess || !f)
        return 0;
    *(void **)out = f;
    return 1;
}

static qn_status load_driver(void)
{
    static int is_loaded; /* every thread would find the same */
    if (is_loaded) return QN_OK;
    if (!find("cuMemAddressReserve", &driver.reserve) || !find("cuMemAddressFree", &driver.free) ||
        !find("cuMemCreate", &driver.create) || !find("cuMemRelease", &driver.release) ||
        !find("cuMemMap", &driver.map) || !find("cuMemUnmap", &driver.unmap) ||
        !find("cuMemSetAccess", &driver.access) ||
        !find("cuMemGetAllocationGranularity", &driver.granularity) ||
        !find("cuGetErrorString", &driver.text))
        return qn_cuda_fail(QN_E_UNSUPPORTED, "device cuda: the driver has no virtual memory management");
    is_loaded = 1;
    return QN_OK;
}

static qn_status check(CUresult r, const char *what)
{
    const char *text = "unknown error";
    if (r == CUDA_SUCCESS) return QN_OK;
    if (r == CUDA_ERROR_OUT_OF_MEMORY)
        return qn_cuda_fail(QN_E_NOMEM, "device cuda: the card's memory is full (%s)", what);
    driver.text(r, &text);
    return qn_cuda_fail(QN_E_DEVICE, "device cuda: %s failed: %s", what, text);
}

static CUmemAllocationProp properties(const qn_cuda_context *c)
{
    CUmemAllocationProp p = {};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = c->i_card;
    return p;
}

static size_t rounded(size_t size_bytes, size_t granule)
{
    return (size_bytes + granule - 1) / granule * granule;
}

qn_status qn_cuda_reserve(qn_cuda_context *c, size_t size_bytes, void **out, size_t *granule)
{
    CUdeviceptr p = 0;
    const CUmemAllocationProp prop = properties(c);
    cudaSetDevice(c->i_card);
    cudaFree(0);
    qn_status status = load_driver();
    if (status == QN_OK)
        status = check(driver.granularity(granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                       "asking for a granule");
    if (status == QN_OK)
        status = check(driver.reserve(&p, rounded(size_bytes, *granule), 0, 0, 0), "addresses");
    if (status == QN_OK) *out = (void *)p;
    return status;
}

void qn_cuda_release(qn_cuda_context *c, void *base, size_t size_bytes)
{
    size_t granule = 0;
    const CUmemAllocationProp prop = properties(c);
    cudaSetDevice(c->i_card);
    if (driver.granularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS)
        driver.free((CUdeviceptr)base, rounded(size_bytes, granule));
}

qn_status qn_cuda_map(qn_cuda_context *c, void *base, size_t offset, size_t size_bytes)
{
    CUmemGenericAllocationHandle handle;
    CUmemAccessDesc access = {};
    const CUmemAllocationProp prop = properties(c);
    const CUdeviceptr at = (CUdeviceptr)base + offset;
    char what[64];
    if (c->is_lost)
        return qn_cuda_fail(QN_E_DEVICE, "device cuda: the card is lost to this process: %s", c->fault);
    cudaSetDevice(c->i_card);
    snprintf(what, sizeof what, "%zu bytes", size_bytes);
    qn_status status = check(driver.create(&handle, size_bytes, &prop, 0), what);
    if (status != QN_OK) return status;
    status = check(driver.map(at, size_bytes, 0, handle, 0), "mapping memory");
    driver.release(handle); /* the mapping keeps it */
    if (status != QN_OK) return status;
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    status = check(driver.access(at, size_bytes, &access, 1), "mapping memory");
    if (status != QN_OK) driver.unmap(at, size_bytes);
    return status;
}

void qn_cuda_unmap(qn_cuda_context *c, void *base, size_t offset, size_t size_bytes)
{
    if (c->is_lost) return;
    cudaSetDevice(c->i_card);
    cudaStreamSynchronize(c->stream);
    driver.unmap((CUdeviceptr)base + offset, size_bytes);
}

#endif
