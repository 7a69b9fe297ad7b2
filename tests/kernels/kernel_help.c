#include "tests/kernels/kernel_help.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/random.h"
#include "device/cpu/kernels/matmul/pack.h"

/* ---- memory ------------------------------------------------------------------------------------------ */

enum { MOST_BLOCKS = 1024, PATTERN = 0xc3, FRESH = 0xa5 };

typedef struct {
    uint8_t *map, *p; /* pages: one out of reach, then those of the block, then one out of reach */
    size_t map_bytes, n_bytes;
} block;
static block blocks[MOST_BLOCKS];
static int n_blocks;

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

void *qn_test_guarded(size_t n_bytes, size_t align)
{
    size_t page = page_bytes(), inside = (n_bytes + align + page) / page * page;
    assert_true(n_blocks < MOST_BLOCKS);
    block *b = &blocks[n_blocks];
    b->n_bytes = n_bytes;
    b->map_bytes = inside + 2 * page;
    b->map = mmap(NULL, b->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(b->map != MAP_FAILED);
    n_blocks++;
    uint8_t *end = b->map + page + inside;
    b->p = end - (n_bytes + align - 1) / align * align;
    memset(b->map + page, PATTERN, inside);
    memset(b->p, FRESH, n_bytes);
    assert_int_equal(mprotect(b->map, page, PROT_NONE), 0);
    assert_int_equal(mprotect(end, page, PROT_NONE), 0);
    return b->p;
}

void *qn_test_sealed(void *p)
{
    size_t page = page_bytes();
    for (int i = 0; i < n_blocks; i++)
        if (blocks[i].p == p)
            assert_int_equal(mprotect(blocks[i].map + page, blocks[i].map_bytes - 2 * page, PROT_READ), 0);
    return p;
}

static void end_block(const block *b)
{
    const size_t page = page_bytes();
    const uint8_t *end = b->map + b->map_bytes - page;
    for (const uint8_t *q = b->map + page; q < end; q++)
        if (*q != PATTERN && (q < b->p || q >= b->p + b->n_bytes))
            fail_msg("byte %lld of a block of %lld was written", (long long)(q - b->p),
                     (long long)b->n_bytes);
    munmap(b->map, b->map_bytes);
}

void qn_test_guarded_end(void)
{
    int n = n_blocks;
    n_blocks = 0;
    for (int i = 0; i < n; i++) end_block(&blocks[i]);
}

/* The last one alone. */
static void end_last(void)
{
    end_block(&blocks[--n_blocks]);
}

/* ---- dice -------------------------------------------------------------------------------------------- */

int64_t qn_test_roll(qn_test_dice *d, int64_t n)
{
    return (int64_t)(qn_random_bits(d->seed, d->at++) % (uint64_t)n);
}

double qn_test_between(qn_test_dice *d, double lo, double hi)
{
    return lo + (hi - lo) * qn_random_unit(d->seed, d->at++);
}

float *qn_test_floats(int64_t n)
{
    return qn_test_guarded((size_t)n * sizeof(float), sizeof(float));
}

float *qn_test_random_floats(qn_test_dice *d, int64_t n, double lo, double hi)
{
    float *x = qn_test_floats(n);
    for (int64_t i = 0; i < n; i++) x[i] = (float)qn_test_between(d, lo, hi);
    return x;
}

/* ---- weights ----------------------------------------------------------------------------------------- */

const qn_dtype qn_test_packed_types[] = {QN_DTYPE_F32,
                                         QN_DTYPE_F16,
                                         QN_DTYPE_BF16,
                                         QN_DTYPE_Q4_0,
                                         QN_DTYPE_Q4_1,
                                         QN_DTYPE_Q5_0,
                                         QN_DTYPE_Q5_1,
                                         QN_DTYPE_Q8_0,
                                         QN_DTYPE_Q4_K,
                                         QN_DTYPE_Q5_K,
                                         QN_DTYPE_Q6_K,
                                         QN_DTYPE_MXFP4,
                                         QN_DTYPE_NVFP4,
                                         QN_DTYPE_AFFINE2_G64_BF16,
                                         QN_DTYPE_AFFINE3_G32_F16,
                                         QN_DTYPE_AFFINE4_G128_F32,
                                         QN_DTYPE_AFFINE4_G64_BF16,
                                         QN_DTYPE_AFFINE5_G64_F32,
                                         QN_DTYPE_AFFINE6_G128_BF16,
                                         QN_DTYPE_AFFINE8_G32_F32,
                                         QN_DTYPE_AFFINE8_G64_F16,
                                         QN_DTYPE_COUNT};

int qn_test_has_act(qn_dtype weight, qn_act act)
{
    if (act == QN_ACT_I8 && qn_layout_of(weight) != QN_LAYOUT_NONE) return 1;
    for (int p = 0; p < 3; p++)
        if (qn_matmul_act(weight, (qn_precision)p) == act) return 1;
    return 0;
}

int64_t qn_test_width(qn_test_dice *d, qn_dtype weight)
{
    static const int64_t plain[] = {1, 2, 3, 15, 16, 17, 33, 64, 77, 255, 256, 513},
                         simple[] = {1, 2, 3, 5, 8, 9, 12, 15, 16, 31, 33, 43}, super[] = {1, 2, 3, 4, 5, 9};
    int64_t block = qn_type_get(weight)->block_elements;
    if (block == 1) return plain[qn_test_roll(d, sizeof plain / sizeof *plain)];
    return block * (block > 32 ? super[qn_test_roll(d, sizeof super / sizeof *super)]
                               : simple[qn_test_roll(d, sizeof simple / sizeof *simple)]);
}

/* Finite f16 numbers as bits. */
static const uint16_t extreme_f16[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400,
                                       0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x1234, 0xb800};
enum { N_EXTREME = sizeof extreme_f16 / sizeof *extreme_f16 };

/* v as the type, which is F32, F16 or BF16. */
static size_t put(uint8_t *p, qn_dtype type, float v)
{
    uint16_t h = type == QN_DTYPE_F16 ? qn_f32_to_f16(v) : qn_f32_to_bf16(v);
    memcpy(p, type == QN_DTYPE_F32 ? (const void *)&v : &h, type == QN_DTYPE_F32 ? 4 : 2);
    return type == QN_DTYPE_F32 ? 4 : 2;
}

/* Where a block's f16 fields lie; their number is returned. */
static int scale_fields(qn_dtype dtype, size_t at[2])
{
    const qn_layout layout = qn_layout_of(dtype);
    const qn_scale_kind kind = qn_layout_scale(layout);
    at[0] = kind == QN_SCALE_SUB ? 208 : 0;
    at[1] = 2;
    if (layout == QN_LAYOUT_NONE || qn_layout_number(layout) != QN_NUMBER_F16) return 0;
    return kind == QN_SCALE_MIN || kind == QN_SCALE_K ? 2 : 1;
}

/* The scales of a block, the codes of which are any bits already. */
static void set_scales(qn_test_dice *d, qn_test_weights kind, qn_dtype dtype, uint8_t *p, int code)
{
    size_t at[2];
    int n = scale_fields(dtype, at);
    for (int i = 0; i < n; i++) {
        uint16_t h = (uint16_t)(0x1c00 + (qn_test_roll(d, 0x10000) & 0x8fff));
        if (kind == QN_TEST_EXTREME_SCALES) h = extreme_f16[qn_test_roll(d, N_EXTREME)];
        if (kind == QN_TEST_EXTREME_CODES) h = i ? 0x3800 : 0x3c00;
        memcpy(p + at[i], &h, 2);
    }
    /* Sub-scales of Q6_K at their lowest with every code at an end. */
    if (dtype == QN_DTYPE_Q6_K && kind == QN_TEST_EXTREME_CODES && (code == 0 || code == 0xff))
        memset(p + 192, 0x80, 16);
    if (dtype == QN_DTYPE_MXFP4)
        p[0] = (uint8_t)(kind == QN_TEST_EXTREME_CODES ? 127
                         : kind == QN_TEST_ORDINARY    ? 110 + p[0] % 20
                                                       : p[0] % 200);
    for (int i = 0; i < 2 && dtype == QN_DTYPE_NVFP4; i++) {
        if (kind == QN_TEST_EXTREME_CODES) p[i] = 0x38;
        if (kind == QN_TEST_ORDINARY) p[i] = (uint8_t)(0x10 + p[i] % 0x28);
        if ((p[i] & 0x7f) == 0x7f) p[i] ^= 1; /* the NaN */
    }
    for (int i = 0; i < 2 && qn_affine_of(dtype).bits; i++) {
        float v = (float)qn_test_between(d, -1, 1);
        if (kind == QN_TEST_EXTREME_SCALES) v = qn_f16_to_f32(extreme_f16[qn_test_roll(d, N_EXTREME)]);
        if (kind == QN_TEST_EXTREME_CODES) v = i ? 0.5f : 1.0f;
        p += put(p, qn_affine_of(dtype).scale, v);
    }
}

uint8_t *qn_test_rows(qn_test_dice *d, qn_test_weights kind, qn_dtype dtype, int64_t n_in, int64_t n_out)
{
    static const uint8_t codes[] = {0x00, 0xff, 0x80, 0x7f, 0x81, 0xf0, 0x0f};
    const qn_type *type = qn_type_get(dtype);
    size_t row_bytes;
    assert_true(qn_type_bytes(dtype, n_in, &row_bytes));
    size_t n = row_bytes * (size_t)n_out;
    uint8_t *rows = qn_test_guarded(n, 1), *end = rows + n;
    uint8_t code = codes[qn_test_roll(d, sizeof codes)];
    for (uint8_t *p = rows; p < end && type->block_elements == 1; p += type->block_bytes) {
        double v = kind == QN_TEST_ORDINARY ? qn_test_between(d, -1, 1)
                                            : (double)qn_f16_to_f32(extreme_f16[qn_test_roll(d, N_EXTREME)]);
        put(p, dtype, (float)v);
    }
    for (uint8_t *p = rows; p < end && type->block_elements > 1; p += type->block_bytes) {
        for (size_t i = 0; i < type->block_bytes; i++)
            p[i] = kind == QN_TEST_EXTREME_CODES ? code : (uint8_t)qn_random_bits(d->seed, d->at++);
        set_scales(d, kind, dtype, p, code);
    }
    return qn_test_sealed(rows);
}

/* ---- activations ------------------------------------------------------------------------------------- */

/* Element i of a block of 32 in row `row`. */
static float end_of_range(int64_t row, int64_t i)
{
    switch (row % 5) {
    case 0:
        return 127;
    case 1:
        return -127;
    case 2:
        return i % 2 ? 127.0f : -127.0f;
    case 3:
        return i % 64 < 32 ? 126.51f : -127.0f;
    default:
        return i % 32 == 0 ? 127.0f : -126.505f;
    }
}

static float mixed(qn_test_dice *d, int64_t kind, int64_t i)
{
    switch (kind) {
    case 0:
        return i % 2 ? 0.0f : -0.0f;
    case 1:
        return (float)qn_test_between(d, -1e-36, 1e-36);
    case 2:
        return (float)qn_test_between(d, -1e30, 1e30);
    case 3:
        return i % 32 ? (float)(i % 32 - 16) + 0.5f : 127.0f;
    case 4:
        return i % 32 == 7 ? -0x1p-149f : 0;
    case 5:
        return i % 32 == 9 ? 0x1p100f : (float)qn_test_between(d, -1, 1);
    default:
        return (float)qn_test_between(d, -3, 3);
    }
}

float *qn_test_activations(qn_test_dice *d, qn_test_x kind, int64_t n_in, int64_t n_rows)
{
    float *x = qn_test_guarded((size_t)(n_in * n_rows) * sizeof *x, sizeof *x);
    int64_t block = 0;
    for (int64_t r = 0; r < n_rows; r++) {
        for (int64_t i = 0; i < n_in; i++) {
            double u = qn_test_between(d, -1, 1);
            if (i % 32 == 0) block = qn_test_roll(d, 7);
            x[r * n_in + i] = kind == QN_TEST_X_ENDS    ? end_of_range(r, i)
                              : kind == QN_TEST_X_MIXED ? mixed(d, block, i)
                                                        : (float)(u * u * u * 4);
        }
    }
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    if (kind == QN_TEST_X_BAD && n_rows)
        x[n_rows / 2 * n_in + qn_test_roll(d, n_in)] = bad[qn_test_roll(d, 3)];
    return qn_test_sealed(x);
}

/* ---- through a set's kernels ------------------------------------------------------------------------- */

/* Splits [0, n) at a place the dice choose; the second part goes first. */
static int64_t cut(qn_test_dice *d, int64_t n)
{
    return d ? qn_test_roll(d, n + 1) : 0;
}

uint8_t *qn_test_panels(const qn_kernels *k, qn_test_dice *d, qn_dtype dtype, int64_t n_in, int64_t n_out,
                        const uint8_t *rows)
{
    int64_t n_panels = (n_out + QN_PANEL - 1) / QN_PANEL, first = cut(d, n_panels);
    size_t panel_bytes = qn_pack_panel_bytes(dtype, n_in);
    uint8_t *panels = qn_test_guarded(panel_bytes * (size_t)n_panels, 1);
    k->pack(dtype, n_in, n_out, rows, first, n_panels, panels);
    for (size_t i = 0; i < panel_bytes * (size_t)first; i++) assert_int_equal(panels[i], FRESH);
    k->pack(dtype, n_in, n_out, rows, 0, first, panels);
    return qn_test_sealed(panels);
}

uint8_t *qn_test_act_rows(const qn_kernels *k, qn_act act, int64_t n_in, int64_t n_rows, const float *x)
{
    size_t row_bytes = qn_act_row_bytes(act, n_in);
    uint8_t *out = qn_test_guarded((size_t)n_rows * row_bytes, 64);
    memset(out, 0, (size_t)n_rows * row_bytes);
    for (int64_t r = 0; r < n_rows; r++) k->act_pack(act, n_in, x + r * n_in, out + (size_t)r * row_bytes);
    return qn_test_sealed(out);
}

float *qn_test_product(const qn_kernels *k, qn_test_dice *d, qn_dtype dtype, qn_act act, int64_t n_in,
                       int64_t n_out, const uint8_t *panels, const uint8_t *x, int64_t n_rows)
{
    int streams = d && qn_test_roll(d, 2);
    int64_t gap = d ? qn_test_roll(d, 20) : 0;
    if (streams) gap = (n_out + gap + QN_PANEL - 1) / QN_PANEL * QN_PANEL - n_out;
    int64_t stride = n_out + gap;
    int64_t n_panels = (n_out + QN_PANEL - 1) / QN_PANEL, panel = cut(d, n_panels), row = cut(d, n_rows);
    size_t row_bytes = qn_act_row_bytes(act, n_in), n = (size_t)(n_rows ? stride * n_rows - gap : 0);
    float *wide = qn_test_guarded(n * sizeof *wide, streams ? 64 : sizeof *wide), fresh,
          *out = qn_test_guarded((size_t)(n_out * n_rows) * sizeof *out, sizeof *out);
    memset(&fresh, FRESH, sizeof fresh);
    void *scratch = qn_test_guarded(qn_matmul_scratch_bytes(k, dtype, act, n_in, n_rows), 64);
    const int64_t rows[3] = {0, row, n_rows}, cuts[3] = {0, panel, n_panels};
    const int by_rows = d && qn_test_roll(d, 2);
    for (int i = 0; i < 4; i++) {
        int r = by_rows ? i / 2 : i % 2, c = by_rows ? 1 - i % 2 : 1 - i / 2;
        qn_matmul_args a = {dtype,
                            act,
                            n_in,
                            n_out,
                            panels,
                            x + (size_t)rows[r] * row_bytes,
                            rows[r + 1] - rows[r],
                            wide + rows[r] * stride,
                            stride,
                            streams,
                            by_rows && i % 2 && cuts[1] < cuts[2]};
        if (cuts[c] < cuts[c + 1]) k->matmul(&a, cuts[c], cuts[c + 1], scratch);
    }
    end_last();
    for (int64_t r = 0; r < n_rows; r++) {
        memcpy(out + r * n_out, wide + r * stride, (size_t)n_out * sizeof *out);
        for (int64_t i = n_out; i < stride && r + 1 < n_rows; i++) assert_true(wide[r * stride + i] == fresh);
    }
    return out;
}
