/* The emulation of a card, apart from quern's kernels: shuffles, votes, barriers, copies that arrive late, fragments
 * and pairs of f16 against plain arithmetic, and what it says of kernels that would hang. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>
extern "C" {
#include <cmocka.h>
}

#include "device/cuda/product/half2.cuh"
#include "device/cuda/product/mma.cuh"
#include "device/cuda/product/tensor_step.h"

enum { WARP = 32, FULL = -1 };

static uint64_t at;

/* A fixed sequence. */
static uint32_t roll(void)
{
    uint64_t x = ++at * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

template <class... P, class... A>
static void run(void (*kernel)(P...), unsigned grid, int block, size_t shared_bytes, A... arguments)
{
    assert_int_equal(qn_emulate(kernel, grid, block, shared_bytes, (P)arguments...), cudaSuccess);
}

/* ---- threads ------------------------------------------------------------------------------------------- */

static __global__ void number(int *out, int *counter)
{
    out[blockIdx.x * blockDim.x + threadIdx.x] = (int)(gridDim.x * 10000 + blockIdx.x * 2000 + threadIdx.x);
    atomicAdd(counter, 1);
    atomicMax(counter + 1, (int)(blockIdx.x * blockDim.x + threadIdx.x));
}

static void every_thread_runs_once(void **state)
{
    static const int blocks[] = {1, 31, 33, 256, 1024};
    static int out[3 * 1024];
    for (int block : blocks) {
        int counter[2] = {0, -1};
        run(number, 3, block, 0, out, counter);
        for (int i = 0; i < 3 * block; i++) assert_int_equal(out[i], 30000 + i / block * 2000 + i % block);
        assert_int_equal(counter[0], 3 * block);
        assert_int_equal(counter[1], 3 * block - 1);
    }
}

/* ---- warps --------------------------------------------------------------------------------------------- */

enum { SHUFFLES = 4 };

/* [SHUFFLES][threads]; the same again of 8 bytes behind them. */
static __global__ void shuffle(const int *x, int by, int width, int *out, double *wide)
{
    const int i = (int)threadIdx.x, n = (int)blockDim.x;
    out[i] = __shfl_sync(FULL, x[i], by, width);
    out[n + i] = __shfl_xor_sync(FULL, x[i], by, width);
    out[2 * n + i] = __shfl_up_sync(FULL, x[i], (unsigned)by, width);
    out[3 * n + i] = __shfl_down_sync(FULL, x[i], (unsigned)by, width);
    wide[i] = __shfl_xor_sync(FULL, x[i] * 1e-3, by, width);
}

/* The lane whose number lane i gets: CUDA's programming guide, warp shuffle functions. */
static int source_of(int kind, int i, int by, int width)
{
    const int begin = i / width * width, place = i % width;
    switch (kind) {
    case 0:
        return begin + by % width;
    case 1:
        return (i ^ by) >= begin + width ? i : i ^ by;
    case 2:
        return place >= by ? i - by : i;
    default:
        return place + by < width ? i + by : i;
    }
}

static void shuffles_move_numbers(void **state)
{
    enum { N = 3 * WARP };
    int x[N], out[SHUFFLES * N];
    double wide[N];
    for (int &one : x) one = (int)roll();
    for (int width = 1; width <= WARP; width *= 2)
        for (int by = 0; by < WARP; by++) {
            run(shuffle, 1, N, 0, x, by, width, out, wide);
            for (int i = 0; i < N; i++) {
                const int first = i / WARP * WARP, lane = i % WARP;
                for (int kind = 0; kind < SHUFFLES; kind++)
                    assert_int_equal(out[kind * N + i], x[first + source_of(kind, lane, by, width)]);
                assert_true(wide[i] == x[first + source_of(1, lane, by, width)] * 1e-3);
            }
        }
}

/* Shuffles, votes and __syncwarp one behind the other, each with what the one before gave. */
static __global__ void mix(uint32_t *x, int n)
{
    uint32_t mine = x[threadIdx.x];
    for (int i = 0; i < n; i++) {
        mine = mine * 5 + __shfl_xor_sync(FULL, mine, 1 << i % 5);
        mine ^= __ballot_sync(FULL, mine >> 7 & 1);
        if (i % 3 == 0) __syncwarp();
        mine += (uint32_t)(2 * __any_sync(FULL, mine % 31 == 0) + __all_sync(FULL, mine % 2));
    }
    x[threadIdx.x] = mine;
}

static void steps_of_a_warp_follow_each_other(void **state)
{
    enum { N = 2 * WARP, STEPS = 50 };
    uint32_t x[N], want[N];
    for (int i = 0; i < N; i++) x[i] = want[i] = roll();
    run(mix, 1, N, 0, x, (int)STEPS);
    for (uint32_t *w = want; w < want + N; w += WARP)
        for (int i = 0; i < STEPS; i++) {
            uint32_t before[WARP], votes = 0, any = 0, all = 1;
            memcpy(before, w, sizeof before);
            for (int k = 0; k < WARP; k++) w[k] = w[k] * 5 + before[k ^ 1 << i % 5];
            for (int k = 0; k < WARP; k++) votes |= (w[k] >> 7 & 1) << k;
            for (int k = 0; k < WARP; k++) w[k] ^= votes;
            for (int k = 0; k < WARP; k++) any |= w[k] % 31 == 0, all &= w[k] % 2;
            for (int k = 0; k < WARP; k++) w[k] += 2 * any + all;
        }
    assert_memory_equal(x, want, sizeof x);
}

/* ---- barriers ------------------------------------------------------------------------------------------ */

static __global__ void turn_round(int *x, int rounds)
{
    QN_SHARED(memory);
    int *shared = (int *)memory, mine = x[threadIdx.x];
    for (int i = 0; i < rounds; i++) {
        shared[threadIdx.x] = mine;
        __syncthreads();
        mine = shared[(threadIdx.x + 1) % blockDim.x] + 1;
        __syncthreads();
    }
    x[threadIdx.x] = mine;
}

static void all_threads_wait_for_all(void **state)
{
    static int x[1000];
    for (int i = 0; i < 1000; i++) x[i] = i;
    run(turn_round, 1, 1000, sizeof x, x, 7);
    for (int i = 0; i < 1000; i++) assert_int_equal(x[i], (i + 7) % 1000 + 7);
}

/* Two groups of two warps, which meet so often as their number says, then all. */
static __global__ void meet_apart(int *out)
{
    __shared__ int sums[4];
    const int warp = (int)threadIdx.x / WARP, group = warp / 2;
    if (threadIdx.x % WARP == 0) sums[warp] = warp + 1;
    for (int i = 0; i <= group; i++) {
        qn_barrier(1 + group, 2 * WARP);
        const int other = sums[warp ^ 1];
        qn_barrier(1 + group, 2 * WARP);
        if (threadIdx.x % WARP == 0) sums[warp] += other;
    }
    __syncthreads();
    if (threadIdx.x < 4) out[threadIdx.x] = sums[threadIdx.x];
}

static void groups_of_warps_meet_apart(void **state)
{
    int out[4];
    run(meet_apart, 1, 4 * WARP, 0, out);
    assert_int_equal(out[0], 3); /* 1 + 2 */
    assert_int_equal(out[1], 3);
    assert_int_equal(out[2], 14); /* 3 + 4, twice */
    assert_int_equal(out[3], 14);
}

/* ---- copies -------------------------------------------------------------------------------------------- */

/* Three groups of 16 bytes; what of them is there after each wait. */
static __global__ void copy_late(const uint32_t *from, uint32_t *seen)
{
    QN_SHARED(memory);
    uint32_t *shared = (uint32_t *)memory;
    for (int i = 0; i < 3; i++) {
        qn_copy_async16(shared + 4 * i, from + 4 * i, i == 1 ? 8 : 16);
        qn_copy_async_commit();
    }
    for (int wait = 3; wait >= 0; wait--) {
        if (wait == 2) qn_copy_async_wait<2>();
        if (wait == 1) qn_copy_async_wait<1>();
        if (wait == 0) qn_copy_async_wait<0>();
        memcpy(seen + (3 - wait) * 12, shared, 12 * sizeof *seen);
    }
}

static void copies_arrive_when_they_are_waited_for(void **state)
{
    alignas(16) uint32_t from[12];
    uint32_t seen[4][12];
    for (uint32_t i = 0; i < 12; i++) from[i] = 100 + i;
    run(copy_late, 1, 1, sizeof from, from, &seen[0][0]);
    for (int wait = 0; wait < 4; wait++)
        for (int i = 0; i < 12; i++) {
            const uint32_t want = i == 6 || i == 7 ? 0 : from[i];
            assert_int_equal(seen[wait][i], i / 4 < wait ? want : 0xffffffffu);
        }
}

enum { PIECE = 64, PIECES = 9, RING = 2 };

/* A warp that copies ahead, two that add what is there and hand the place back. */
static __global__ void ring_of_copies(const int *from, int *sums)
{
    QN_SHARED(memory);
    __shared__ qn_mbarrier full[RING], empty[RING];
    int *stages = (int *)memory;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < RING; i++) {
            qn_mbarrier_init(&full[i], 1);
            qn_mbarrier_init(&empty[i], 2);
        }
        qn_mbarrier_init_done();
    }
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < PIECES; i++) {
        const int stage = i % RING;
        const unsigned parity = (unsigned)(i / RING & 1);
        int *place = stages + stage * PIECE;
        if (warp == 0 && lane == 0) {
            qn_mbarrier_wait(&empty[stage], parity ^ 1);
            qn_mbarrier_expect(&full[stage], PIECE * sizeof(int));
            for (int half = 0; half < 2; half++)
                qn_copy_bulk(place + half * PIECE / 2, from + i * PIECE + half * PIECE / 2,
                             PIECE / 2 * sizeof(int), &full[stage]);
        } else if (warp > 0) {
            qn_mbarrier_wait(&full[stage], parity);
            sum += place[(warp - 1) * WARP + lane];
            __syncwarp();
            if (lane == 0) qn_mbarrier_arrive(&empty[stage]);
        }
    }
    if (warp > 0) sums[threadIdx.x - WARP] = sum;
}

static void bulk_copies_go_round_a_ring(void **state)
{
    alignas(16) int from[PIECES * PIECE];
    int sums[PIECE], want[PIECE] = {0};
    for (int i = 0; i < PIECES * PIECE; i++) want[i % PIECE] += from[i] = (int)(roll() >> 8);
    run(ring_of_copies, 1, 3 * WARP, RING * PIECE * sizeof(int), from, sums);
    assert_memory_equal(sums, want, sizeof sums);
}

/* ---- fragments ----------------------------------------------------------------------------------------- */

typedef struct {
    uint16_t a[16][16], b[16][8]; /* rows and columns as in mathematics */
    float c[16][8];
} product;

/* The PTX manual's table of fragments of mma.m16n8k16. */
static __global__ void multiply(const product *p, float *out)
{
    const int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4;
    uint32_t a[4], b[2];
    float d[4];
    for (int i = 0; i < 4; i++) {
        const uint16_t *pair = &p->a[g + i % 2 * 8][2 * t + i / 2 * 8];
        a[i] = pair[0] | (uint32_t)pair[1] << 16;
        d[i] = p->c[g + i / 2 * 8][2 * t + i % 2];
    }
    for (int i = 0; i < 2; i++) b[i] = p->b[2 * t + i * 8][g] | (uint32_t)p->b[2 * t + 1 + i * 8][g] << 16;
    qn_mma_f16(d, a, b);
    for (int i = 0; i < 4; i++) out[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}

/* kind 0: ordinary numbers; 1: all sizes; 2: zeros, subnormals, ends; 3: infinities and no numbers too. */
static uint16_t random_half(int kind)
{
    static const uint16_t ends[] = {0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x7bff, 0xfbff, 0x3c00};
    static const uint16_t special[] = {0x7c00, 0xfc00, 0x7e00};
    if (kind == 0) return qn_cuda_to_half((float)(int32_t)roll() * 0x1p-31f);
    if (kind == 2 && roll() % 2) return ends[roll() % 9];
    if (kind == 3 && roll() % 40 == 0) return special[roll() % 3];
    uint16_t h = (uint16_t)roll();
    if ((h & 0x7c00) == 0x7c00) h ^= 0x4000;
    return h;
}

static float random_sum(int kind)
{
    if (kind == 0) return (float)(int32_t)roll() * 0x1p-30f;
    if (roll() % 4 == 0) return roll() % 2 ? 0.0f : -0.0f;
    if (kind == 3 && roll() % 20 == 0) return roll() % 2 ? INFINITY : NAN;
    return ldexpf((float)(int32_t)roll(), (int)(roll() % 100) - 80);
}

static int are_same(float a, float b)
{
    return qn_cuda_float_bits(a) == qn_cuda_float_bits(b) || (a != a && b != b);
}

static void fragments_multiply_as_one_step_does(void **state)
{
    static product p;
    float out[16][8];
    for (int i = 0; i < 4 * 300; i++) {
        const int kind = i % 4;
        for (int k = 0; k < 16; k++) {
            for (int n = 0; n < 16; n++) p.a[k][n] = random_half(kind);
            for (int n = 0; n < 8; n++) p.b[k][n] = random_half(kind), p.c[k][n] = random_sum(kind);
        }
        run(multiply, 1, WARP, 0, &p, &out[0][0]);
        for (int row = 0; row < 16; row++)
            for (int n = 0; n < 8; n++) {
                uint16_t column[16];
                double sum = p.c[row][n], size = fabs(sum);
                for (int k = 0; k < 16; k++) {
                    column[k] = p.b[k][n];
                    const double x = (double)qn_cuda_half_value(p.a[row][k]) * qn_cuda_half_value(p.b[k][n]);
                    sum += x;
                    size = fmax(size, fabs(x));
                }
                const float want = qn_tensor_step(p.c[row][n], p.a[row], column);
                if (!are_same(out[row][n], want))
                    fail_msg("kind %d: %a, not %a", kind, (double)out[row][n], (double)want);
                if (kind == 3) continue;
                /* each of 17 numbers may lose a last place of the largest */
                assert_true(fabs(out[row][n] - sum) <= 18 * size * 0x1p-23);
            }
    }
}

/* lane 8 i + j gives row j of matrix i; here it lies at row 8 (i % 2) + j, column 8 (i / 2). */
static __global__ void load_matrices(const uint16_t *from, uint32_t *out)
{
    QN_SHARED(memory);
    uint16_t *shared = (uint16_t *)memory;
    for (int i = (int)threadIdx.x; i < 16 * 16; i += WARP) shared[i] = from[i];
    __syncthreads();
    const int i = (int)threadIdx.x / 8, j = (int)threadIdx.x % 8;
    const uint16_t *row = shared + (i % 2 * 8 + j) * 16 + i / 2 * 8;
    qn_ldmatrix_x4(out + threadIdx.x * 8, row);
    qn_ldmatrix_x4_transposed(out + threadIdx.x * 8 + 4, row);
}

static void matrices_are_loaded_as_fragments(void **state)
{
    static uint16_t from[16][16];
    static uint32_t out[WARP][2][4];
    for (auto &row : from)
        for (uint16_t &h : row) h = (uint16_t)roll();
    run(load_matrices, 1, WARP, sizeof from, &from[0][0], &out[0][0][0]);
    for (int lane = 0; lane < WARP; lane++)
        for (int i = 0; i < 4; i++) {
            const int g = lane / 4, t = lane % 4, row = i % 2 * 8, column = i / 2 * 8;
            const uint32_t plain = from[row + g][column + 2 * t] | (uint32_t)from[row + g][column + 2 * t + 1]
                                                                       << 16,
                           turned = from[row + 2 * t][column + g] |
                                    (uint32_t)from[row + 2 * t + 1][column + g] << 16;
            assert_int_equal(out[lane][0][i], plain);
            assert_int_equal(out[lane][1][i], turned);
        }
}

/* ---- pairs of f16 -------------------------------------------------------------------------------------- */

/* Finite numbers in units of 2^-48, in which a product of two f16 is an integer. */
static __int128 fixed(uint16_t h)
{
    const int e = h >> 10 & 31;
    const __int128 m = (__int128)((h & 0x3ff) | (e ? 0x400 : 0)) << (24 + (e ? e - 1 : 0));
    return h & 0x8000 ? -m : m;
}

/* Rounded once, to nearest even. The sign of a 0 is not looked at. */
static uint16_t round_fixed(__int128 x)
{
    const uint16_t sign = x < 0 ? 0x8000 : 0;
    unsigned __int128 m = (unsigned __int128)(x < 0 ? -x : x);
    int e = 0; /* the last place is 2^(e - 24) */
    while (m >> (24 + e) >> 11) e++;
    const unsigned __int128 place = (unsigned __int128)1 << (24 + e), rest = m % place;
    m /= place;
    if (2 * rest > place || (2 * rest == place && m % 2)) m++;
    const uint32_t bits = ((uint32_t)e << 10) + (uint32_t)m; /* the top bit of m counts e on; so does 2^11 */
    return (uint16_t)(sign | (bits > 0x7c00 ? 0x7c00 : bits));
}

static void check_half(const char *what, uint32_t got, __int128 want)
{
    const uint16_t h = (uint16_t)got, expected = round_fixed(want);
    if (h != expected && !(want == 0 && !(h & 0x7fff))) fail_msg("%s is %04x, not %04x", what, h, expected);
}

static void pairs_are_rounded_once(void **state)
{
    for (int i = 0; i < 400000; i++) {
        const int kind = 1 + i % 2;
        const uint16_t a = random_half(kind), b = random_half(kind), c = random_half(kind);
        const __int128 x = fixed(a), y = fixed(b), z = fixed(c);
        const __int128 xy = (x >> 24) * (y >> 24); /* both are multiples of 2^-24 */
        for (int shift = 0; shift < 32; shift += 16) {
            const uint32_t p = (uint32_t)a << shift, q = (uint32_t)b << shift, r = (uint32_t)c << shift;
            check_half("a - b", qn_h2_sub(p, q) >> shift, x - y);
            check_half("a * b", qn_h2_mul(p, q) >> shift, xy);
            check_half("a * b + c", qn_h2_fma(p, q, r) >> shift, xy + z);
        }
    }
    assert_int_equal(qn_h2_sub(0x7c004000, 0x3c003c00), 0x7c003c00);
    assert_int_equal(qn_h2_sub(0x7c007c00, 0x00007c00) & 0x7c00, 0x7c00); /* no number */
    assert_int_not_equal(qn_h2_sub(0x7c007c00, 0x00007c00) & 0x3ff, 0);
}

/* ---- kernels that are wrong ---------------------------------------------------------------------------- */

static __global__ void miss_barrier(int unused)
{
    if (threadIdx.x > 3) __syncthreads();
}

static __global__ void miss_shuffle(int unused)
{
    if (threadIdx.x % 2) (void)__shfl_xor_sync(FULL, 1, 1);
}

static __global__ void differ(int unused)
{
    if (threadIdx.x % 2)
        __syncwarp();
    else
        (void)__ballot_sync(FULL, 1);
}

static __global__ void wait_in_vain(int unused)
{
    __shared__ qn_mbarrier m;
    if (threadIdx.x == 0) qn_mbarrier_init(&m, 2);
    __syncthreads();
    if (threadIdx.x == 0) qn_mbarrier_arrive(&m);
    qn_mbarrier_wait(&m, 0);
}

static __global__ void copy_to_odd_place(const char *from)
{
    QN_SHARED(memory);
    qn_copy_async16(memory + 4, from, 16);
}

static __global__ void nothing(int unused)
{
}

/* In a process of its own, since the launch aborts without NDEBUG; with it, the next launch is as any. */
template <class... P, class... A>
static void expect_failure(const char *sentence, void (*kernel)(P...), int block, A... arguments)
{
    int ends[2], status;
    char said[4096];
    size_t n = 0;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        const cudaError_t e = qn_emulate(kernel, 1, block, 256, (P)arguments...);
        if (e != cudaErrorLaunchFailure || cudaGetLastError() != e) _exit(1);
        _exit(qn_emulate(nothing, 2, 64, 0, 0) == cudaSuccess ? 0 : 2);
    }
    close(ends[1]);
    for (ssize_t got; n + 1 < sizeof said && (got = read(ends[0], said + n, sizeof said - 1 - n)) > 0;)
        n += (size_t)got;
    said[n] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
#ifdef NDEBUG
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
#else
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) < 3);
#endif
    if (!strstr(said, sentence)) fail_msg("it says %s", said);
}

static void wrong_kernels_are_named(void **state)
{
    alignas(16) static const char from[32] = "";
    expect_failure("threads 4 to 39: __syncthreads", miss_barrier, 40, 0);
    expect_failure("no thread can go on", miss_shuffle, 32, 0);
    expect_failure("lanes of a warp are at different things", differ, 32, 0);
    expect_failure("an mbarrier", wait_in_vain, 1, 0);
    expect_failure("not aligned to 16", copy_to_odd_place, 1, from);
    assert_int_equal(qn_emulate(nothing, 1, 1025, 0, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(qn_emulate(nothing, 1, 32, (size_t)228 << 10, 0), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
}

/* ---- the runtime --------------------------------------------------------------------------------------- */

static void memory_is_counted_and_fails(void **state)
{
    size_t before, free_bytes, total;
    unsigned char *p, *q;
    assert_int_equal(cudaMemGetInfo(&before, &total), cudaSuccess);
    assert_int_equal(cudaMalloc(&p, 1000), cudaSuccess);
    assert_int_equal(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
    assert_int_equal(free_bytes, before - 1000);
    for (int i = 0; i < 1000; i++) assert_int_equal(p[i], 0xff);
    assert_int_equal(cudaFree(p), cudaSuccess);
    assert_int_equal(cudaFree((char *)state), cudaErrorInvalidValue);
    setenv("QUERN_CUDA_HOST_FAIL", "2", 1);
    assert_int_equal(cudaMalloc(&p, 10), cudaSuccess);
    assert_int_equal(cudaMalloc(&q, 10), cudaErrorMemoryAllocation);
    assert_null(q);
    assert_int_equal(cudaMalloc(&q, 10), cudaSuccess);
    unsetenv("QUERN_CUDA_HOST_FAIL");
    cudaFree(p);
    cudaFree(q);
    setenv("QUERN_CUDA_HOST_BYTES", "4096", 1);
    assert_int_equal(cudaMalloc(&p, 4000), cudaSuccess);
    assert_int_equal(cudaMalloc(&q, 97), cudaErrorMemoryAllocation);
    cudaFree(p);
    unsetenv("QUERN_CUDA_HOST_BYTES");
    cudaGetLastError();
}

static void a_lost_card_stays_lost(void **state)
{
    setenv("QUERN_CUDA_HOST_LOST", "2", 1);
    assert_int_equal(qn_emulate(nothing, 1, 32, 0, 0), cudaSuccess);
    for (int i = 0; i < 3; i++) assert_int_equal(qn_emulate(nothing, 1, 32, 0, 0), cudaErrorIllegalAddress);
    unsetenv("QUERN_CUDA_HOST_LOST");
    assert_int_equal(qn_emulate(nothing, 1, 32, 0, 0), cudaSuccess);
    cudaGetLastError();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_once),
        cmocka_unit_test(shuffles_move_numbers),
        cmocka_unit_test(steps_of_a_warp_follow_each_other),
        cmocka_unit_test(all_threads_wait_for_all),
        cmocka_unit_test(groups_of_warps_meet_apart),
        cmocka_unit_test(copies_arrive_when_they_are_waited_for),
        cmocka_unit_test(bulk_copies_go_round_a_ring),
        cmocka_unit_test(fragments_multiply_as_one_step_does),
        cmocka_unit_test(matrices_are_loaded_as_fragments),
        cmocka_unit_test(pairs_are_rounded_once),
        cmocka_unit_test(wrong_kernels_are_named),
        cmocka_unit_test(memory_is_counted_and_fails),
        cmocka_unit_test(a_lost_card_stays_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
