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
#include "kernels/pack.h"
#include "quant/types.h"

/* Hashes of what hash_all packs, by version, oldest first. A layout that changes gets a line with the next
 * number, and QN_LAYOUT_VERSION is raised to it; a line that is there is never changed. */
static const struct {
    int version;
    uint64_t hash;
} versions[] = {
    {1, 0x0a49de7dbeb799f9},
};

enum { ROWS = 16 + 16 + 5, COLUMNS_MAX = 2560 };

static const int64_t widths[] = {1, 7, 32, 64, 96, 128, 256, 288, 768, COLUMNS_MAX};

/* Any bytes, where scales are finite so that what comes back can be compared. */
static void fill(const qn_type *t, uint8_t *rows, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) rows[i] = (uint8_t)qn_random_bits(seed, i);
    if (t->block_elements > 1) return;
    for (size_t i = t->block_bytes - 1; i < n; i += t->block_bytes)
        rows[i] &= 0xb3; /* of a float's exponent */
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

static uint64_t hash_all(void)
{
    uint64_t hash = 0;
    for (int i = 0; i < QN_DTYPE_COUNT; i++) {
        qn_dtype dtype = (qn_dtype)i;
        for (size_t j = 0; j < sizeof widths / sizeof *widths; j++) {
            size_t row, bytes;
            if (!qn_pack_panel_bytes(dtype, widths[j])) continue;
            assert_true(qn_type_bytes(dtype, widths[j], &row));
            uint8_t *rows = qn_alloc(ROWS * row);
            assert_non_null(rows);
            fill(qn_type_get(dtype), rows, ROWS * row, (uint64_t)(i + 1));
            void *panels = pack_all(dtype, widths[j], ROWS, rows, &bytes);
            hash = qn_hash_bytes(panels, bytes, hash);
            qn_free(panels);
            qn_free(rows);
        }
    }
    return hash;
}

static void layout_of_the_version(void **state)
{
    size_t n = sizeof versions / sizeof *versions;
    for (size_t i = 1; i < n; i++) {
        assert_int_equal(versions[i].version, versions[i - 1].version + 1);
        for (size_t j = 0; j < i; j++) assert_true(versions[i].hash != versions[j].hash);
    }
    assert_int_equal(versions[n - 1].version, QN_LAYOUT_VERSION);
    uint64_t hash = hash_all();
    if (hash != versions[n - 1].hash)
        fail_msg("the layout of packed weights is not that of version %d: raise QN_LAYOUT_VERSION "
                 "(kernels/pack.h) and add a line with the hash 0x%016llx here",
                 QN_LAYOUT_VERSION, (unsigned long long)hash);
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
            fill(t, rows, ROWS * row, (uint64_t)(i + 100));
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
