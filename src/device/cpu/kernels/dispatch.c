/* Which instruction sets this machine can run, and their tables. Built for the plainest chip. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "device/cpu/kernels/attention/attention.h"
#include "device/cpu/kernels/kernels.h"
#include "device/cpu/kernels/sets.h"

enum { MAX_SETS = 5 };

static qn_kernels tables[MAX_SETS];
static const char *names[MAX_SETS + 1]; /* best last, then NULL */
static int n_sets, needs_tiles = -1;    /* the set that multiplies by them */
static pthread_once_t once = PTHREAD_ONCE_INIT;

typedef void filler(qn_kernels *k);

static void add(const char *name, filler *matmul, filler *attention, filler *vector)
{
    qn_kernels *k = &tables[n_sets];
    if (n_sets) *k = tables[0];
    k->name = names[n_sets++] = name;
    matmul(k);
    vector(k);
    attention(k);
}

#if defined(__x86_64__)

/* Register state that the system saves for us: bits of XCR0. */
static uint32_t saved_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

#ifndef QN_WITHOUT_AVX512

/* Linux saves the tiles of a process that has asked for them. Other systems do not tell. */
enum { TILE_DATA = 18 /* of XCR0 */ };

static int has_tiles(uint32_t state, unsigned d7)
{
#if defined(__linux__)
    enum { TILE_STATE = 0x60000, GET_SUPPORTED = 0x1021, TILES = 1 << 24, TILES_BF16 = 1 << 22 };
    uint64_t saved = 0;
    return (state & TILE_STATE) == TILE_STATE && (d7 & TILES) && (d7 & TILES_BF16) &&
           syscall(SYS_arch_prctl, GET_SUPPORTED, &saved) == 0 && saved >> TILE_DATA & 1;
#else
    (void)state, (void)d7;
    return 0;
#endif
}

static void detect_avx512(uint32_t state, unsigned b7, unsigned c7, unsigned d7, unsigned a71)
{
    enum { AVX512_STATE = 0xe6 };
    const unsigned need = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if ((state & AVX512_STATE) != AVX512_STATE || (b7 & need) != need) return;
    if (!(c7 & bit_AVX512VNNI) || !(c7 & bit_AVX512VBMI)) return;
    if (!(a71 & bit_AVX512BF16)) return;
    add("avx512", qn_kernels_fill_matmul_avx512, qn_kernels_fill_attention_avx512,
        qn_kernels_fill_vector_avx512);
    if (!has_tiles(state, d7)) return;
    static qn_kernels lean;
    needs_tiles = n_sets;
    add("avx512_amx", qn_kernels_fill_matmul_avx512_amx, qn_kernels_fill_attention_avx512_amx,
        qn_kernels_fill_vector_avx512);
    lean = tables[n_sets - 1];
    qn_kernels_lean_avx512_amx(&lean);
    tables[n_sets - 1].lean = &lean;
}
#endif

/* avx2 needs AVX2, FMA and F16C; avx2_vnni also AVX-VNNI (Alder Lake and later). avx512 needs F, BW, DQ, VL,
 * VBMI, VNNI and BF16 (Zen 4, Sapphire Rapids and later): chips that lack one of them run one of those.
 * avx512_amx needs the tiles of AMX, too, and their bf16. QN_WITHOUT_*: built without that set. */
static void detect(void)
{
    enum { AVX_STATE = 0x6, AVX_VNNI = 1 << 4 };
    unsigned a, b, c, d, c1, b7, c7, d7, a71;
    const int vendor = __get_cpuid(0, &a, &b, &c, &d) ? (int)b : 0;
    if (vendor == signature_INTEL_ebx) qn_few_ahead = 3072;
    if (!__get_cpuid(1, &a, &b, &c1, &d) || !(c1 & bit_OSXSAVE)) return;
    uint32_t state = saved_state();
    if ((state & AVX_STATE) != AVX_STATE || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return;
    if (!(c1 & bit_AVX) || !(c1 & bit_FMA) || !(c1 & bit_F16C) || !(b7 & bit_AVX2)) return;
    if (vendor == signature_AMD_ebx && !(b7 & bit_AVX512F)) qn_few_ahead = 2048; /* before Zen 4 */
    add("avx2", qn_kernels_fill_matmul_avx2, qn_kernels_fill_attention_avx2, qn_kernels_fill_vector_avx2);
    if (!__get_cpuid_count(7, 1, &a71, &b, &c, &d)) return;
#ifndef QN_WITHOUT_AVX2_VNNI
    if (a71 & AVX_VNNI)
        add("avx2_vnni", qn_kernels_fill_matmul_avx2_vnni, qn_kernels_fill_attention_avx2_vnni,
            qn_kernels_fill_vector_avx2);
#endif
#ifndef QN_WITHOUT_AVX512
    detect_avx512(state, b7, c7, d7, a71);
#endif
}
#elif defined(__aarch64__)

#if defined(__APPLE__)
static int has(const char *feature)
{
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(feature, &value, &size, NULL, 0) == 0 && value;
}

static int has_dot_product(void)
{
    return has("hw.optional.arm.FEAT_DotProd");
}

static int has_matrix_product(void)
{
    return has("hw.optional.arm.FEAT_I8MM");
}
#else
static int has_dot_product(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}

static int has_matrix_product(void)
{
    return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
}
#endif

/* neon needs DotProd (Cortex-A75, Neoverse N1, Apple A13 and later), neon_i8mm also I8MM (Cortex-A710,
 * Neoverse N2 and V1, Apple M2): it differs in the product of many rows alone. Older chips run scalar, whose
 * vectors of four floats are Advanced SIMD's. */
static void detect(void)
{
    if (!has_dot_product()) return;
    add("neon", qn_kernels_fill_matmul_neon, qn_kernels_fill_attention_neon, qn_kernels_fill_vector_neon);
    if (has_matrix_product())
        add("neon_i8mm", qn_kernels_fill_matmul_neon_i8mm, qn_kernels_fill_attention_neon,
            qn_kernels_fill_vector_neon);
}
#else
static void detect(void)
{
}
#endif

/* Whether the process may use set i. For tiles it asks here, once somebody takes that set: from then on the
 * frames of its signals are 8 KiB larger, so it is refused where a thread has a smaller stack for them. */
static int may_use(int i)
{
    if (i != needs_tiles) return 1;
#if defined(__x86_64__) && defined(__linux__) && !defined(QN_WITHOUT_AVX512)
    enum { ASK = 0x1023 };
    return syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
#else
    return 0;
#endif
}

static void fill(void)
{
    add("scalar", qn_kernels_fill_matmul_scalar, qn_kernels_fill_attention_scalar,
        qn_kernels_fill_vector_scalar);
    detect();
}

const char *const *qn_kernels_names(void)
{
    pthread_once(&once, fill);
    return names;
}

const qn_kernels *qn_kernels_by_name(const char *name)
{
    pthread_once(&once, fill);
    for (int i = 0; i < n_sets; i++)
        if (strcmp(name, names[i]) == 0) return may_use(i) ? &tables[i] : NULL;
    return NULL;
}

qn_status qn_kernels_get(const qn_kernels **out)
{
    pthread_once(&once, fill);
    const char *wanted = getenv("QUERN_CPU");
    if (!wanted || !*wanted) {
        int best = n_sets - 1;
        while (!may_use(best)) best--;
        *out = &tables[best];
        return QN_OK;
    }
    const qn_kernels *k = qn_kernels_by_name(wanted);
    if (!k) {
        char list[64] = "";
        for (int i = 0; i < n_sets; i++) {
            size_t used = strlen(list);
            if (strcmp(wanted, names[i]) == 0)
                return qn_fail(
                    QN_E_UNSUPPORTED,
                    "QUERN_CPU=%s: Linux refuses the AMX tiles; one cause is a signal stack (sigaltstack) "
                    "that is too small for them",
                    wanted);
            snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
        }
        return qn_fail(QN_E_UNSUPPORTED,
                       "QUERN_CPU=%s: this machine does not have this instruction set (it has: %s)", wanted,
                       list);
    }
    *out = k;
    return QN_OK;
}
