/* What small random cases of primitives do not reach on another device: casts of every number that types of
 * 16 bits have, and of many others; long lines; programs that run with other numbers of rows, none among
 * them, with chains that the device compiles and without. Against the CPU device with the scalar set. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "array/program.h"
#include "base/mem.h"
#include "base/random.h"
#include "prim/convert.h"
#include "tests/devices/other_compare.h"
#include "tests/support/scratch.h"

enum { WHY = 256 };

/* ---- one graph on both devices ------------------------------------------------------------------------ */

typedef struct {
    qn_scope *scope;
    qn_program *program;
    qn_array *out[8];
    int n_out;
} half;

typedef void builder(half *h, const void *data);

static qn_status open_half(half *h, qn_device *device, builder *build, const void *data, qn_sizes max)
{
    *h = (half){.scope = qn_scope_new(device)};
    if (!h->scope) return QN_E_NOMEM;
    build(h, data);
    QN_TRY(qn_scope_status(h->scope));
    const qn_program_options o = {.name = "half", .max = max, .precision = QN_PRECISION_EXACT};
    return qn_program_new(h->scope, &o, h->n_out, h->out, &h->program);
}

static void close_half(half *h)
{
    qn_program_free(h->program);
    if (h->scope) qn_scope_free(h->scope);
}

static void must(qn_status status)
{
    if (status != QN_OK) fail_msg("%s", qn_last_error());
}

static void compare(const half *got, const half *want, qn_sizes sizes, double relative, const char *what)
{
    char why[WHY];
    for (int i = 0; i < want->n_out; i++) {
        const qn_dtype dtype = qn_array_dtype(want->out[i]);
        const int64_t n = qn_shape_elements(qn_array_shape(want->out[i]), &sizes);
        const void *a = qn_program_output(got->program, i), *b = qn_program_output(want->program, i);
        const qn_test_tolerance t = {relative, fmax(1, qn_test_largest(dtype, n, b))};
        if (qn_test_differ(dtype, n, a, b, t, why)) fail_msg("%s, result %d: %s", what, i, why);
    }
}

static void add(half *h, qn_array *a)
{
    h->out[h->n_out++] = a;
}

/* ---- casts -------------------------------------------------------------------------------------------- */

enum { NUMBERS = 1 << 16 };

typedef struct {
    qn_dtype from, to;
    const void *x; /* [NUMBERS] */
} cast;

static void build_cast(half *h, const void *data)
{
    const cast *c = data;
    const int64_t n = NUMBERS;
    add(h, qn_astype(h->scope, qn_from_data(h->scope, c->from, 1, &n, c->x), c->to));
}

/* Bits of every kind: all that 16 bits can be, beyond that numbers of any size, and such whose rounding to
 * fewer bits is a tie but for the last bit. */
static void any_bits(qn_dtype type, void *out)
{
    const int bits = 8 * qn_dtype_width(type), is_float = qn_dtype_is_float(type);
    for (int64_t i = 0; i < NUMBERS; i++) {
        uint64_t x = qn_random_bits(3, (uint64_t)i);
        if (bits <= 16)
            x = (uint64_t)i;
        else if (i % 4 == 1)
            x >>= x % (uint64_t)bits;
        else if (i % 4 == 2)
            x = (uint64_t)0 - (x >> x % (uint64_t)bits);
        else if (i % 4 == 3) /* few bits set, then a run of zeros, then the last ones */
            x = (x & UINT64_C(0xfff8000000000000)) >> (64 - bits) | (x & 1);
        if (is_float && i % 5 == 0 && bits > 16) {
            const double d = ldexp((double)(int64_t)(x << (64 - bits)), -(int)(i / 5 % 140));
            if (bits == 64) memcpy(&x, &d, sizeof d);
            const float f = (float)d;
            if (bits == 32) x = 0, memcpy(&x, &f, sizeof f);
        }
        if (type == QN_DTYPE_BOOL) x &= 1;
        memcpy((char *)out + i * bits / 8, &x, (size_t)bits / 8);
    }
}

static void every_cast(void **state)
{
    qn_test_pair pair = qn_test_pair_open(0);
    void *x = qn_alloc(8 * NUMBERS);
    int n = 0;
    for (int from = 0; from <= QN_DTYPE_F64; from++)
        for (int to = 0; to <= QN_DTYPE_F64; to++) {
            if (from == to) continue;
            const cast c = {(qn_dtype)from, (qn_dtype)to, x};
            char what[64];
            half cpu, other;
            any_bits(c.from, x);
            must(open_half(&cpu, pair.cpu, build_cast, &c, (qn_sizes){0}));
            must(qn_program_run(cpu.program, &(qn_sizes){0}));
            qn_status status = open_half(&other, pair.other, build_cast, &c, (qn_sizes){0});
            if (status == QN_OK) status = qn_program_run(other.program, &(qn_sizes){0});
            if (!qn_test_refuses_f64(status)) {
                must(status);
                snprintf(what, sizeof what, "%s to %s", qn_dtype_name(c.from), qn_dtype_name(c.to));
                compare(&other, &cpu, (qn_sizes){0}, 0, what);
                n++;
            }
            close_half(&other);
            close_half(&cpu);
        }
    printf("%d casts of %d numbers agree\n", n, NUMBERS);
    qn_free(x);
    qn_test_pair_close(&pair);
}

/* ---- long lines --------------------------------------------------------------------------------------- */

typedef struct {
    qn_dtype dtype;
    int64_t n;
    int axis;
    const float *x; /* [3 n] */
} lines;

static qn_array *along(half *h, qn_prim prim, qn_params p, qn_array *x)
{
    return qn_apply(h->scope, prim, &p, 1, &x, NULL, QN_DTYPE_F32);
}

static qn_array *lines_of(half *h, const lines *l)
{
    const int64_t dims[2] = {l->axis ? 3 : l->n, l->axis ? l->n : 3};
    return qn_astype(h->scope, qn_from_data(h->scope, QN_DTYPE_F32, 2, dims, l->x), l->dtype);
}

static void build_places(half *h, const void *data)
{
    const lines *l = data;
    qn_array *x = lines_of(h, l);
    const int32_t axis = l->axis;
    add(h, along(h, QN_PRIM_MAX, (qn_params){.reduce = {.axis = axis}}, x));
    add(h, along(h, QN_PRIM_MIN, (qn_params){.reduce = {.axis = axis}}, x));
    add(h, along(h, QN_PRIM_ARG_MAX, (qn_params){.reduce = {.axis = axis}}, x));
    add(h, along(h, QN_PRIM_ARG_MAX, (qn_params){.reduce = {.axis = axis, .least = 1}}, x));
    add(h, along(h, QN_PRIM_SCAN, (qn_params){.scan = {.axis = axis, .how = QN_SCAN_MAX}}, x));
    add(h, along(h, QN_PRIM_ARG_SORT, (qn_params){.sort = {.falling = 0}}, x));
    add(h, along(h, QN_PRIM_ARG_SORT, (qn_params){.sort = {.falling = 1}}, x));
    if (l->dtype == QN_DTYPE_F32 && axis)
        add(h, along(h, QN_PRIM_TOP_K, (qn_params){.top_k = {.k = (int32_t)(l->n < 50 ? l->n : 50)}}, x));
}

static void build_sums(half *h, const void *data)
{
    const lines *l = data;
    qn_array *x = lines_of(h, l);
    add(h, along(h, QN_PRIM_SUM, (qn_params){.reduce = {.axis = l->axis}}, x));
    add(h, along(h, QN_PRIM_SCAN, (qn_params){.scan = {.axis = l->axis}}, x));
    add(h, along(h, QN_PRIM_SCAN, (qn_params){.scan = {.axis = l->axis, .reverse = 1, .exclusive = 1}}, x));
    if (l->dtype != QN_DTYPE_F32) return;
    add(h, along(h, QN_PRIM_SOFTMAX, (qn_params){0}, x));
    add(h, along(h, QN_PRIM_RMS_NORM, (qn_params){.norm = {.eps = 1e-5f}}, x));
    add(h, along(h, QN_PRIM_LAYER_NORM, (qn_params){.norm = {.eps = 1e-5f}}, x));
}

static void both(const qn_test_pair *pair, builder *build, const void *data, double relative,
                 const char *what)
{
    half cpu, other;
    must(open_half(&cpu, pair->cpu, build, data, (qn_sizes){0}));
    must(open_half(&other, pair->other, build, data, (qn_sizes){0}));
    must(qn_program_run(cpu.program, &(qn_sizes){0}));
    must(qn_program_run(other.program, &(qn_sizes){0}));
    compare(&other, &cpu, (qn_sizes){0}, relative, what);
    close_half(&other);
    close_half(&cpu);
}

/* Many equal numbers, so that orders have ties everywhere. */
static void long_lines(void **state)
{
    static const qn_dtype types[] = {QN_DTYPE_F32, QN_DTYPE_I32, QN_DTYPE_I64, QN_DTYPE_U8, QN_DTYPE_BOOL};
    static const int64_t sizes[] = {1, 31, 33, 1025, 2049, 20011};
    enum { MOST = 20011 };
    qn_test_pair pair = qn_test_pair_open(0);
    float *x = qn_alloc(3 * MOST * sizeof *x);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int axis = 0; axis < 2; axis++) {
                const lines l = {types[t], sizes[s], axis, x};
                char what[96];
                snprintf(what, sizeof what, "%lld of %s along dimension %d", (long long)l.n,
                         qn_dtype_name(l.dtype), axis);
                for (int64_t i = 0; i < 3 * l.n; i++)
                    x[i] = roundf(64 * (float)qn_random_unit(5, (uint64_t)i)) - 20;
                both(&pair, build_places, &l, 0, what);
                if (l.dtype == QN_DTYPE_BOOL) continue; /* sums are of i32 */
                for (int64_t i = 0; i < 3 * l.n; i++) x[i] = (float)qn_random_unit(6, (uint64_t)i) * 8 - 4;
                both(&pair, build_sums, &l, qn_test_bound_of(QN_TEST_SUM), what);
            }
    qn_free(x);
    qn_test_pair_close(&pair);
}

/* ---- long random numbers ------------------------------------------------------------------------------ */

static void build_random(half *h, const void *data)
{
    const int64_t n = *(const int64_t *)data, three = 3, two = 2;
    const uint32_t key[2] = {0xfedcba98, 0x76543210};
    const int32_t drop[3] = {-5, 77, 1};
    qn_array *k = qn_from_data(h->scope, QN_DTYPE_U32, 1, &two, key);
    const qn_shape shape = {.n = 2, .dim = {3, n}};
    for (int32_t stream = 0; stream < 2; stream++)
        for (int f = 0; f < 2; f++)
            add(h, qn_apply(h->scope, QN_PRIM_RANDOM, &(qn_params){.random = {stream}}, 1, &k, &shape,
                            f ? QN_DTYPE_F32 : QN_DTYPE_U32));
    qn_array *in[2] = {h->out[1], qn_from_data(h->scope, QN_DTYPE_I32, 1, &three, drop)};
    for (int i = 0; i < 3; i++) {
        const qn_params p = {.dropout = {.rate = i == 2 ? 0.999999f : 0.25f * (float)i, .stream = -7 - i}};
        add(h, qn_apply(h->scope, QN_PRIM_DROPOUT, &p, 2, in, NULL, QN_DTYPE_F32));
    }
}

static void random_numbers(void **state)
{
    qn_test_pair pair = qn_test_pair_open(0);
    for (int64_t n = 1; n < 20000; n = n * 3 + 1) both(&pair, build_random, &n, 0, "random numbers");
    qn_test_pair_close(&pair);
}

/* ---- rows --------------------------------------------------------------------------------------------- */

enum { ROWS = 9, WIDTH = 5, IDS = 4 };

static void build_rows(half *h, const void *data)
{
    static const float weight[WIDTH] = {1, -2, 0.5f, 3, -1};
    const int64_t width = WIDTH, table[2] = {IDS, WIDTH};
    float rows[IDS * WIDTH];
    for (int i = 0; i < IDS * WIDTH; i++) rows[i] = (float)qn_random_unit(8, (uint64_t)i);
    qn_scope *s = h->scope;
    qn_array *x = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &width)),
             *ids = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_R, 0, NULL)),
             *w = qn_from_data(s, QN_DTYPE_F32, 1, &width, weight),
             *t = qn_from_data(s, QN_DTYPE_F32, 2, table, rows);
    qn_array *taken = qn_take(s, t, ids);
    /* chains: of one shape, with a row that all rows share, with a number of each row */
    qn_array *a = qn_add(s, qn_mul(s, qn_tanh(s, x), x), qn_scalar(s, 0.5f));
    qn_array *b = qn_mul(s, qn_sigmoid(s, qn_add(s, a, w)), taken);
    qn_array *c = qn_sub(s, qn_silu(s, b), qn_softmax(s, qn_mul(s, x, taken)));
    add(h, a);
    add(h, b);
    add(h, qn_mul(s, c, qn_max(s, x, -1)));
    add(h, qn_sum(s, c, 0));
    const qn_params p = {.norm = {.eps = 1e-5f}}, to = {.scatter = {.n = IDS}};
    add(h, qn_apply(s, QN_PRIM_RMS_NORM, &p, 2, (qn_array *[]){c, w}, NULL, QN_DTYPE_F32));
    add(h, qn_apply(s, QN_PRIM_SCATTER_ADD, &to, 2, (qn_array *[]){c, ids}, NULL, QN_DTYPE_F32));
    add(h, qn_top_k(s, x, 2));
    add(h, qn_concat(s, 2, (qn_array *[]){c, x}));
}

static void run_rows(half *h, int64_t n)
{
    float *x = qn_program_input(h->program, 0);
    int32_t *ids = qn_program_input(h->program, 1);
    for (int64_t i = 0; i < n * WIDTH; i++) x[i] = (float)qn_random_unit((uint64_t)n, (uint64_t)i) - 0.5f;
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(i * 7 % IDS);
    must(qn_program_run(h->program, &(qn_sizes){.v = {n}}));
}

static void rows_change_with(int compile)
{
    static const int64_t counts[] = {1, ROWS, 1, 2, 0, ROWS, 3};
    const qn_sizes max = {.v = {ROWS}};
    qn_test_pair pair = qn_test_pair_open(compile);
    half cpu, other;
    must(open_half(&cpu, pair.cpu, build_rows, NULL, max));
    must(open_half(&other, pair.other, build_rows, NULL, max));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char what[40];
        snprintf(what, sizeof what, "%lld rows", (long long)counts[i]);
        run_rows(&cpu, counts[i]);
        run_rows(&other, counts[i]);
        compare(&other, &cpu, (qn_sizes){.v = {counts[i]}}, qn_test_bound_of(QN_TEST_SUM), what);
    }
    close_half(&other);
    close_half(&cpu);
    qn_test_pair_close(&pair);
}

static void rows_change(void **state)
{
    rows_change_with(0);
}

/* What a device compiles (MLX on the CPU) it also loads: that lies in the user's own folder, never where all
 * may write. */
static void rows_change_when_compiled(void **state)
{
    (void)qn_test_other(); /* or the test ends here */
    char cache[512], shared[512];
    const char *before = getenv("TMPDIR"), *folder = qn_test_scratch();
    char *kept = before ? qn_strdup(before) : NULL;
    snprintf(cache, sizeof cache, "%s/cache", folder);
    snprintf(shared, sizeof shared, "%s/shared", folder);
    assert_int_equal(mkdir(shared, 0700), 0);
    setenv("QUERN_CACHE", cache, 1);
    setenv("TMPDIR", shared, 1);
    rows_change_with(1);
    assert_string_equal(getenv("TMPDIR"), shared);
    assert_int_equal(rmdir(shared), 0); /* nothing is in it */
    unsetenv("QUERN_CACHE");
    if (kept)
        setenv("TMPDIR", kept, 1);
    else
        unsetenv("TMPDIR");
    qn_free(kept);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cast),
        cmocka_unit_test(long_lines),
        cmocka_unit_test(random_numbers),
        cmocka_unit_test(rows_change),
        cmocka_unit_test(rows_change_when_compiled),
    };
    return qn_test_run_others("numbers", tests, sizeof tests / sizeof *tests, NULL, NULL);
}
