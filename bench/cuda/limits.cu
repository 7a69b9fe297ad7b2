// How fast the card reads its memory: the best of some launches that read 6 GiB (what fits, if less is free).
// bench/cuda/run compiles this where the card is, and divides by it. Prints one JSON object.
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                            \
    do {                                                                       \
        cudaError_t e = (call);                                                \
        if (e != cudaSuccess) {                                                \
            fprintf(stderr, "limits: %s: %s\n", #call, cudaGetErrorString(e)); \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

__global__ void fill(unsigned *p, size_t n)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        unsigned x = (unsigned)i * 2654435761u + 7;
        x ^= x >> 15;
        p[i] = x * 2246822519u;
    }
}

// Four loads of 16 bytes are in flight in each thread. The test of the result keeps the loads from being removed.
__global__ void read_all(const uint4 *p, size_t n, unsigned *out)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned s = 0;
    for (; i + 3 * step < n; i += 4 * step) {
        const uint4 a = __ldcs(p + i), b = __ldcs(p + i + step), c = __ldcs(p + i + 2 * step),
                    d = __ldcs(p + i + 3 * step);
        s ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    for (; i < n; i += step) {
        const uint4 a = __ldcs(p + i);
        s ^= a.x ^ a.y ^ a.z ^ a.w;
    }
    if (s == 0x12345u) *out = s;
}

int main(void)
{
    cudaDeviceProp card;
    size_t n_free, n_all, n_bytes = (size_t)6 << 30;
    CHECK(cudaGetDeviceProperties(&card, 0));
    CHECK(cudaMemGetInfo(&n_free, &n_all));
    if (n_bytes > n_free / 2) n_bytes = n_free / 2 & ~(size_t)65535;
    unsigned *data, *out;
    CHECK(cudaMalloc(&data, n_bytes));
    CHECK(cudaMalloc(&out, 4));
    fill<<<card.multiProcessorCount * 8, 512>>>(data, n_bytes / 4);
    cudaEvent_t before, after;
    CHECK(cudaEventCreate(&before));
    CHECK(cudaEventCreate(&after));
    double best = 0;
    for (int threads = 256; threads <= 1024; threads *= 2)
        for (int blocks = 1; blocks <= 2048 / threads; blocks *= 2)
            for (int run = 0; run < 5; run++) {
                float ms;
                CHECK(cudaEventRecord(before));
                read_all<<<card.multiProcessorCount * blocks, threads>>>((const uint4 *)data, n_bytes / 16,
                                                                         out);
                CHECK(cudaGetLastError());
                CHECK(cudaEventRecord(after));
                CHECK(cudaEventSynchronize(after));
                CHECK(cudaEventElapsedTime(&ms, before, after));
                const double speed = (double)n_bytes / (ms * 1e-3);
                if (speed > best) best = speed;
            }
    printf("{\"card\":\"%s\",\"multiprocessors\":%d,\"free_bytes\":%zu,\"read_bytes_per_sec\":%.6g}\n",
           card.name, card.multiProcessorCount, n_free, best);
    return 0;
}
