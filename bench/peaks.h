/* Loops that reach what a core can do at most: bytes read per second, multiply-adds per second of each type,
 * for each instruction set. limits.c prints them; tests/kernels/kernel_speed.c judges kernels by them in the
 * same run. Whoever includes this uses both tables. */
#ifndef QUERN_BENCH_PEAKS_H
#define QUERN_BENCH_PEAKS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { PEAK_CHUNK = 512 };

typedef uint64_t peak_read_fn(const char *p, size_t n_bytes); /* n_bytes: a multiple of PEAK_CHUNK */
typedef uint64_t peak_mac_fn(int64_t n_rounds);

static uint64_t read_plain(const char *p, size_t n_bytes)
{
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < n_bytes; i += 64) {
        uint64_t v[8];
        memcpy(v, p + i, sizeof v);
        for (int j = 0; j < 8; j++) sum[j] ^= v[j];
    }
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

/* 16 sums of 4 lanes: what the plainest chip of the architecture does by itself. */
static uint64_t mac_f32_plain(int64_t n_rounds)
{
    float sum[64] = {0}, x = 1e-9f, y = 1e-9f;
    for (int64_t i = 0; i < n_rounds; i++) {
        __asm__ volatile("" : "+m"(x), "+m"(y));
        float a = x, b = y;
        for (int j = 0; j < 64; j++) sum[j] += a * b + sum[j] * b;
    }
    float all = 0;
    for (int j = 0; j < 64; j++) all += sum[j];
    return (uint64_t)all;
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define PEAK_AVX2 __attribute__((target("avx2,fma")))
#define PEAK_AVX2_VNNI __attribute__((target("avx2,avxvnni")))
#define PEAK_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")))
enum { PEAK_SUMS = 12 }; /* latency 4 or 5 times two units, and they still fit the 16 registers of AVX2 */

/* One load a line, in the order of memory, not unrolled, and nothing asked for ahead: of all that was tried
 * (more loads under way, prefetches from 1 to 16 KiB ahead, two streams) nothing reads faster on Zen 4, with
 * one core by a fifth. */
PEAK_AVX2 static uint64_t read_avx2(const char *p, size_t n_bytes)
{
    __m256i a = _mm256_setzero_si256();
#pragma GCC unroll 1
    for (size_t i = 0; i < n_bytes; i += 64)
        a = _mm256_xor_si256(a, _mm256_loadu_si256((const void *)(p + i)));
    return (uint64_t)_mm256_extract_epi64(a, 0) ^ (uint64_t)_mm256_extract_epi64(a, 3);
}

PEAK_AVX512 static uint64_t read_avx512(const char *p, size_t n_bytes)
{
    __m512i a = _mm512_setzero_si512();
#pragma GCC unroll 1
    for (size_t i = 0; i < n_bytes; i += 64) a = _mm512_xor_si512(a, _mm512_loadu_si512(p + i));
    return (uint64_t)_mm512_reduce_add_epi64(a);
}

/* The same, each line asked for 3 KiB ahead: faster on Intel's chips. */
PEAK_AVX512 static uint64_t read_avx512_ahead(const char *p, size_t n_bytes)
{
    __m512i a = _mm512_setzero_si512();
#pragma GCC unroll 1
    for (size_t i = 0; i < n_bytes; i += 64) {
        __builtin_prefetch(p + i + 3072, 0, 2);
        a = _mm512_xor_si512(a, _mm512_loadu_si512(p + i));
    }
    return (uint64_t)_mm512_reduce_add_epi64(a);
}

PEAK_AVX2 static uint64_t mac_f32_avx2(int64_t n_rounds)
{
    __m256 a[PEAK_SUMS], x = _mm256_set1_ps(1e-9f), y = x;
    for (int j = 0; j < PEAK_SUMS; j++) a[j] = _mm256_setzero_ps();
    for (int64_t i = 0; i < n_rounds; i++) {
        __asm__ volatile("" : "+x"(x), "+x"(y));
        for (int j = 0; j < PEAK_SUMS; j++) a[j] = _mm256_fmadd_ps(x, y, a[j]);
    }
    for (int j = 1; j < PEAK_SUMS; j++) a[0] = _mm256_add_ps(a[0], a[j]);
    return (uint64_t)_mm256_cvtss_f32(a[0]);
}

/* n_rounds of 8 products x x added to 4 sums, each by these instructions. By hand: the compiler keeps some of
 * the sums in memory, which costs a tenth and more. */
#define PEAK_STEP(multiply, sum) multiply "vpaddd %%ymm15, %[" sum "], %[" sum "]\n\t"
#define PEAK_FOUR(multiply) \
    PEAK_STEP(multiply, "a") PEAK_STEP(multiply, "b") PEAK_STEP(multiply, "c") PEAK_STEP(multiply, "d")
#define PEAK_INTEGER_LOOP(name, multiply)                                                 \
    PEAK_AVX2 static uint64_t name(int64_t n_rounds)                                      \
    {                                                                                     \
        __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a, x = _mm256_set1_epi8(1), \
                one = _mm256_set1_epi16(1);                                               \
        for (int64_t i = 0; i < n_rounds; i++)                                            \
            __asm__ volatile(PEAK_FOUR(multiply) PEAK_FOUR(multiply)                      \
                             : [a] "+x"(a), [b] "+x"(b), [c] "+x"(c), [d] "+x"(d)         \
                             : [x] "x"(x), [one] "x"(one)                                 \
                             : "xmm15");                                                  \
        a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));             \
        return (uint64_t)_mm256_extract_epi64(a, 0);                                      \
    }
/* Without VNNI a product of bytes is two multiplications of pairs and an addition. */
PEAK_INTEGER_LOOP(mac_i8_avx2, "vpmaddubsw %[x], %[x], %%ymm15\n\tvpmaddwd %[one], %%ymm15, %%ymm15\n\t")
/* Of integers of 16 bits one: what two planes are multiplied as. */
PEAK_INTEGER_LOOP(mac_i16_avx2, "vpmaddwd %[x], %[x], %%ymm15\n\t")

/* Two planes, as bytes or as integers of 16 bits, are half as fast. */
PEAK_AVX2_VNNI static uint64_t mac_i8_avx2_vnni(int64_t n_rounds)
{
    __m256i a[PEAK_SUMS], x = _mm256_set1_epi8(1), y = x;
    for (int j = 0; j < PEAK_SUMS; j++) a[j] = _mm256_setzero_si256();
    for (int64_t i = 0; i < n_rounds; i++) {
        __asm__ volatile("" : "+x"(x), "+x"(y));
        for (int j = 0; j < PEAK_SUMS; j++) a[j] = _mm256_dpbusd_avx_epi32(a[j], x, y);
    }
    for (int j = 1; j < PEAK_SUMS; j++) a[0] = _mm256_xor_si256(a[0], a[j]);
    return (uint64_t)_mm256_extract_epi64(a[0], 0);
}

PEAK_AVX512 static uint64_t mac_f32_avx512(int64_t n_rounds)
{
    __m512 a[PEAK_SUMS], x = _mm512_set1_ps(1e-9f), y = x;
    for (int j = 0; j < PEAK_SUMS; j++) a[j] = _mm512_setzero_ps();
    for (int64_t i = 0; i < n_rounds; i++) {
        __asm__ volatile("" : "+v"(x), "+v"(y));
        for (int j = 0; j < PEAK_SUMS; j++) a[j] = _mm512_fmadd_ps(x, y, a[j]);
    }
    for (int j = 1; j < PEAK_SUMS; j++) a[0] = _mm512_add_ps(a[0], a[j]);
    return (uint64_t)_mm512_reduce_add_ps(a[0]);
}

PEAK_AVX512 static uint64_t mac_i8_avx512(int64_t n_rounds)
{
    __m512i a[PEAK_SUMS], x = _mm512_set1_epi8(1), y = x;
    for (int j = 0; j < PEAK_SUMS; j++) a[j] = _mm512_setzero_si512();
    for (int64_t i = 0; i < n_rounds; i++) {
        __asm__ volatile("" : "+v"(x), "+v"(y));
        for (int j = 0; j < PEAK_SUMS; j++) a[j] = _mm512_dpbusd_epi32(a[j], x, y);
    }
    for (int j = 1; j < PEAK_SUMS; j++) a[0] = _mm512_xor_si512(a[0], a[j]);
    return (uint64_t)_mm512_reduce_add_epi64(a[0]);
}

PEAK_AVX512 static uint64_t mac_bf16_avx512(int64_t n_rounds)
{
    __m512 a[PEAK_SUMS];
    __m512i bits = _mm512_set1_epi16(0x3000);
    for (int j = 0; j < PEAK_SUMS; j++) a[j] = _mm512_setzero_ps();
    for (int64_t i = 0; i < n_rounds; i++) {
        __asm__ volatile("" : "+v"(bits));
        for (int j = 0; j < PEAK_SUMS; j++) a[j] = _mm512_dpbf16_ps(a[j], (__m512bh)bits, (__m512bh)bits);
    }
    for (int j = 1; j < PEAK_SUMS; j++) a[0] = _mm512_add_ps(a[0], a[j]);
    return (uint64_t)_mm512_reduce_add_ps(a[0]);
}

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#define PEAK_AMX __attribute__((target("amx-tile,amx-int8,amx-bf16")))
enum { PEAK_TILES = 4 }; /* of sums; a product takes 16 cycles and its result is there after 52 */

/* Four tiles of sums [16][16], two of activations and two of weights, all of them 1 KiB. */
PEAK_AMX static void take_tiles(void)
{
    static const struct {
        uint8_t palette, others[15];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shapes = {
        .palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&shapes);
}

#define PEAK_TILE_LOOP(name, product)               \
    PEAK_AMX static uint64_t name(int64_t n_rounds) \
    {                                               \
        take_tiles();                               \
        for (int64_t i = 0; i < n_rounds; i++) {    \
            product(0, 4, 6);                       \
            product(1, 4, 7);                       \
            product(2, 5, 6);                       \
            product(3, 5, 7);                       \
        }                                           \
        _tile_release();                            \
        return (uint64_t)n_rounds;                  \
    }
PEAK_TILE_LOOP(mac_i8_amx, _tile_dpbusd)
PEAK_TILE_LOOP(mac_bf16_amx, _tile_dpbf16ps)

/* The system must be asked for the tiles (src/device/cpu/kernels/dispatch.c). */
static int peak_has_amx(void)
{
    enum { ASK = 0x1023, TILE_DATA = 18, TILES = 1 << 24 | 1 << 25 | 1 << 22 };
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx512f") && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (d & TILES) == TILES && syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
}
#endif

static int peak_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int peak_has_avx2_vnni(void)
{
    enum { AVX_VNNI = 1 << 4 };
    unsigned a, b, c, d;
    return peak_has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX_VNNI);
}

static int peak_has_avx512(void)
{
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512bf16");
}
#endif

static int peak_always(void)
{
    return 1;
}

static const struct {
    const char *set;
    int (*usable)(void);
    peak_read_fn *read;
} peak_readers[] = {
    {"plain", peak_always, read_plain},
#if defined(__x86_64__)
    {"avx2", peak_has_avx2, read_avx2},
    {"avx2_vnni", peak_has_avx2_vnni, read_avx2},
    {"avx512", peak_has_avx512, read_avx512},
#if defined(__linux__)
    {"avx512_amx", peak_has_amx, read_avx512_ahead},
#endif
#endif
};

static const struct {
    const char *type, *set;
    int (*usable)(void);
    peak_mac_fn *run;
    int macs_per_round;
} peak_arithmetic[] = {
    {"f32", "plain", peak_always, mac_f32_plain, 128},
#if defined(__x86_64__)
    {"f32", "avx2", peak_has_avx2, mac_f32_avx2, PEAK_SUMS * 8},
    {"f32", "avx2_vnni", peak_has_avx2_vnni, mac_f32_avx2, PEAK_SUMS * 8},
    {"f32", "avx512", peak_has_avx512, mac_f32_avx512, PEAK_SUMS * 16},
    {"bf16", "avx512", peak_has_avx512, mac_bf16_avx512, PEAK_SUMS * 32},
    {"int8", "avx2", peak_has_avx2, mac_i8_avx2, 8 * 32},
    {"int16", "avx2", peak_has_avx2, mac_i16_avx2, 8 * 16},
    {"int8", "avx2_vnni", peak_has_avx2_vnni, mac_i8_avx2_vnni, PEAK_SUMS * 32},
    {"int8", "avx512", peak_has_avx512, mac_i8_avx512, PEAK_SUMS * 64},
#if defined(__linux__)
    {"f32", "avx512_amx", peak_has_amx, mac_f32_avx512, PEAK_SUMS * 16},
    {"bf16", "avx512_amx", peak_has_amx, mac_bf16_amx, PEAK_TILES * 16 * 16 * 32},
    {"int8", "avx512_amx", peak_has_amx, mac_i8_amx, PEAK_TILES * 16 * 16 * 64},
#endif
#endif
};

#endif
