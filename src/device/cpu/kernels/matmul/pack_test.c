/* Packing: every type comes back bit for bit, also from a panel that is not full, and the bytes are those of
 * the layout's version: packed files of that version lie on disks. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/random.h"
#include "device/cpu/kernels/matmul/pack.h"
#include "quant/types.h"

/* Hashes of what each type packs to, with the version of the layouts that brought it: the last line of a type
 * counts. A layout that changes gets a line with the next number, and QN_LAYOUT_VERSION is raised to it; a
 * new type's line has the number that is; a line that is there is never changed. */
static const struct {
    const char *type;
    int version;
    uint64_t hash;
} layouts[] = {{"f16", 1, 0xf3a380c293e1aaf2},
               {"bf16", 1, 0x876cb9a8f443e083},
               {"f32", 1, 0x438c06c023e14410},
               {"q4_0", 1, 0x375c84ce6f1e21c9},
               {"q4_1", 1, 0xfc4c7ab1e902e1bb},
               {"q5_0", 1, 0xd2b55fc068216dcc},
               {"q5_1", 1, 0x22e9355dfcf7f2d1},
               {"q8_0", 1, 0x90540239c01d66e2},
               {"q4_k", 1, 0x5b80d8700696a1c6},
               {"q5_k", 1, 0x2b0398766d5284c4},
               {"q6_k", 1, 0xee7ee7e3849d4e75},
               {"mxfp4", 1, 0xf183ed11a75e6a91},
               {"nvfp4", 1, 0xbf72e64b8a655b97},
               {"affine2_g32_f16", 1, 0x31841bf833fbd355},
               {"affine2_g32_bf16", 1, 0xdb26b0a9fdccb804},
               {"affine2_g32_f32", 1, 0x2647027503c419ba},
               {"affine2_g64_f16", 1, 0xa5b4ecac6358c128},
               {"affine2_g64_bf16", 1, 0x163e6c79e6bddc95},
               {"affine2_g64_f32", 1, 0x48ce0bfdf791bc1f},
               {"affine2_g128_f16", 1, 0xbd7fdfc090ef00ec},
               {"affine2_g128_bf16", 1, 0x20a436ed3421a40e},
               {"affine2_g128_f32", 1, 0x19edd410dfd2b609},
               {"affine3_g32_f16", 1, 0xf7b6d99069511e1a},
               {"affine3_g32_bf16", 1, 0xa1ae9a0a93a4f9be},
               {"affine3_g32_f32", 1, 0x641ff64bc38874a3},
               {"affine3_g64_f16", 1, 0x47883b0b1a85cefe},
               {"affine3_g64_bf16", 1, 0x6a82aea8b117d168},
               {"affine3_g64_f32", 1, 0xe68d73975dd37e27},
               {"affine3_g128_f16", 1, 0x06e6042d60662acd},
               {"affine3_g128_bf16", 1, 0x303659377bf53b3d},
               {"affine3_g128_f32", 1, 0x4047ed9889b3e1ef},
               {"affine4_g32_f16", 1, 0x88bb691cc69f6e66},
               {"affine4_g32_bf16", 1, 0x7a448bdff8a158f6},
               {"affine4_g32_f32", 1, 0xb74548146772889d},
               {"affine4_g64_f16", 1, 0xe16d92eeeddf01ed},
               {"affine4_g64_bf16", 1, 0x60a86af22e5f6a49},
               {"affine4_g64_f32", 1, 0x874a67500a822e00},
               {"affine4_g128_f16", 1, 0xaa07b4da5d6a68c3},
               {"affine4_g128_bf16", 1, 0x833d6ccb8a66c5a5},
               {"affine4_g128_f32", 1, 0xe12a531d7b26b24e},
               {"affine5_g32_f16", 1, 0xa732db5b9de1bd3f},
               {"affine5_g32_bf16", 1, 0x4bb7b4edb1b18838},
               {"affine5_g32_f32", 1, 0x0a1d12bf970e5445},
               {"affine5_g64_f16", 1, 0x1cc3079e42c608a6},
               {"affine5_g64_bf16", 1, 0x77ed9397957ad120},
               {"affine5_g64_f32", 1, 0x3fb269586739821c},
               {"affine5_g128_f16", 1, 0x08f05b828fbc7cce},
               {"affine5_g128_bf16", 1, 0x5132cc6d49062bc3},
               {"affine5_g128_f32", 1, 0x26a47de9c3c29ae2},
               {"affine6_g32_f16", 1, 0xe2216e9ef020cb69},
               {"affine6_g32_bf16", 1, 0xa6bd274cc8c5228f},
               {"affine6_g32_f32", 1, 0x9320d6f20fb142d8},
               {"affine6_g64_f16", 1, 0x17a97e7d5f27b1ec},
               {"affine6_g64_bf16", 1, 0xa8a05f5a3a8cdfdf},
               {"affine6_g64_f32", 1, 0x0ad44e3fd188f7f0},
               {"affine6_g128_f16", 1, 0x5859f15c51ac4d85},
               {"affine6_g128_bf16", 1, 0xdeb7325894b2c06d},
               {"affine6_g128_f32", 1, 0x5d566102b797b172},
               {"affine8_g32_f16", 1, 0x10fbe103b05e1cc7},
               {"affine8_g32_bf16", 1, 0xa11a36989e217eda},
               {"affine8_g32_f32", 1, 0x7fbaa69dceb2ecb8},
               {"affine8_g64_f16", 1, 0x6d8a714ffc54b525},
               {"affine8_g64_bf16", 1, 0xc2e8bcb25b1eca99},
               {"affine8_g64_f32", 1, 0x3c0dbd05308cf00d},
               {"affine8_g128_f16", 1, 0x75303cf06deca093},
               {"affine8_g128_bf16", 1, 0x6b0f7720ca74702d},
               {"affine8_g128_f32", 1, 0x2e18fa0cf7734fbd}};

enum { ROWS = 16 + 16 + 5, COLUMNS_MAX = 2560 };

static const int64_t widths[] = {1, 7, 32, 64, 96, 128, 256, 288, 768, COLUMNS_MAX};

/* Any bytes: where a scale is NaN, what comes back is NaN as well. */
static void fill(uint8_t *rows, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) rows[i] = (uint8_t)qn_random_bits(seed, i);
}

static void *pack_all(qn_dtype dtype, int64_t n_in, int64_t n_out, const void *rows, size_t *bytes)
{
    int64_t n_panels = (n_out + QN_PANEL - 1) / QN_PANEL;
    *bytes = (size_t)n_panels * qn_pack_panel_bytes(dtype, n_in);
    void *panels = qn_alloc(*bytes);
    assert_non_null(panels);
    memset(panels, 0xee, *bytes); /* every byte is written */
    qn_pack(dtype, n_in, n_out, rows, 0, 1, panels);
    qn_pack(dtype, n_in, n_out, rows, 1, n_panels, panels);
    return panels;
}

/* Of the panels of all widths that the type has; 0: it has none. */
static uint64_t hash_type(qn_dtype dtype)
{
    const char *name = qn_dtype_name(dtype);
    uint64_t hash = 0, seed = qn_hash_bytes(name, strlen(name), 1);
    for (size_t j = 0; j < sizeof widths / sizeof *widths; j++) {
        size_t row, bytes;
        if (!qn_pack_panel_bytes(dtype, widths[j])) continue;
        assert_true(qn_type_bytes(dtype, widths[j], &row));
        uint8_t *rows = qn_alloc(ROWS * row);
        assert_non_null(rows);
        fill(rows, ROWS * row, seed);
        void *panels = pack_all(dtype, widths[j], ROWS, rows, &bytes);
        hash = qn_hash_bytes(panels, bytes, hash);
        qn_free(panels);
        qn_free(rows);
    }
    return hash;
}

static void layout_of_the_version(void **state)
{
    int newest = 0, wrong = 0;
    for (int i = 0; i < QN_DTYPE_COUNT; i++) {
        const char *name = qn_dtype_name((qn_dtype)i);
        uint64_t hash = hash_type((qn_dtype)i), known = 0;
        for (size_t j = 0; j < sizeof layouts / sizeof *layouts; j++) {
            if (strcmp(layouts[j].type, name) != 0) continue;
            known = layouts[j].hash;
            if (layouts[j].version > newest) newest = layouts[j].version;
        }
        if (hash == known) continue;
        wrong = 1;
        print_error("{\"%s\", %d, 0x%016llx},\n", name, QN_LAYOUT_VERSION + (known != 0),
                    (unsigned long long)hash);
    }
    if (wrong)
        fail_msg(
            "the layouts of these types are new, or not those of before: add their lines to the table; "
            "where a number is above %d, raise QN_LAYOUT_VERSION (device/cpu/kernels/matmul/pack.h) to it",
            QN_LAYOUT_VERSION);
    assert_int_equal(newest, QN_LAYOUT_VERSION);
}

static void comes_back(void **state)
{
    float want[COLUMNS_MAX], got[COLUMNS_MAX];
    for (int i = 0; i < QN_DTYPE_COUNT; i++) {
        qn_dtype dtype = (qn_dtype)i;
        const qn_type *t = qn_type_get(dtype);
        for (size_t j = 0; j < sizeof widths / sizeof *widths; j++) {
            size_t row, bytes;
            if (!qn_pack_panel_bytes(dtype, widths[j])) continue;
            assert_true(qn_type_bytes(dtype, widths[j], &row));
            uint8_t *rows = qn_alloc(ROWS * row);
            assert_non_null(rows);
            fill(rows, ROWS * row, (uint64_t)(i + 100));
            void *panels = pack_all(dtype, widths[j], ROWS, rows, &bytes);
            for (int64_t r = 0; r < ROWS; r++) {
                char *aligned = qn_alloc(row);
                assert_non_null(aligned);
                memcpy(aligned, rows + (size_t)r * row, row);
                t->decode(t, aligned, widths[j], want);
                qn_free(aligned);
                qn_unpack_row(dtype, widths[j], panels, r, got);
                for (int64_t k = 0; k < widths[j]; k++)
                    if (memcmp(&want[k], &got[k], 4) != 0 && !(want[k] != want[k] && got[k] != got[k]))
                        fail_msg("%s, %lld columns: row %lld, column %lld: %g, not %g", qn_dtype_name(dtype),
                                 (long long)widths[j], (long long)r, (long long)k, (double)got[k],
                                 (double)want[k]);
            }
            for (int64_t r = ROWS; r < (ROWS + QN_PANEL - 1) / QN_PANEL * QN_PANEL; r++) {
                qn_unpack_row(dtype, widths[j], panels, r, got);
                for (int64_t k = 0; k < widths[j]; k++) assert_true(got[k] == 0);
            }
            qn_free(panels);
            qn_free(rows);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back),
        cmocka_unit_test(layout_of_the_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
