#include "model/vision/image_resize.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tests/support/picture.h"

static const struct {
    char from;
    int64_t width, height;
} sizes[] = {{'a', 28, 28}, {'a', 11, 34}, {'a', 7, 5}, {'a', 23, 40}, {'a', 1, 1},
             {'b', 28, 56}, {'b', 2, 7},   {'c', 3, 2}, {'a', 23, 17}, {'b', 3, 90}};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

static const char *const filters[] = {
    [QN_IMAGE_BILINEAR] = "bilinear", [QN_IMAGE_BICUBIC] = "bicubic", [QN_IMAGE_LANCZOS] = "lanczos"};
enum { N_FILTERS = sizeof filters / sizeof filters[0] };

/* The picture that is resized, and what torchvision makes of it: itself where the size stays. */
static void read_pair(int i, int filter, qn_test_ppm *from, qn_test_ppm *want)
{
    char name[64];
    snprintf(name, sizeof name, "resize_%c.ppm", sizes[i].from);
    *from = qn_test_ppm_read(name);
    if (sizes[i].width != from->width || sizes[i].height != from->height)
        snprintf(name, sizeof name, "resize_%c_%lldx%lld_%s.ppm", sizes[i].from, (long long)sizes[i].width,
                 (long long)sizes[i].height, filters[filter]);
    *want = qn_test_ppm_read(name);
}

static void test_pixels(void **state)
{
    for (int k = 0; k < N_SIZES * N_FILTERS; k++) {
        const int i = k / N_FILTERS, filter = k % N_FILTERS;
        qn_test_ppm from, want;
        read_pair(i, filter, &from, &want);
        const size_t row = 3 * (size_t)from.width, stride = row + 5,
                     n = 3 * (size_t)(want.width * want.height);
        uint8_t *in = qn_calloc((size_t)from.height, stride), *out = qn_alloc(n);
        for (int64_t y = 0; y < from.height; y++)
            memcpy(in + (size_t)y * stride, from.rgb + (size_t)y * row, row);
        assert_int_equal(qn_image_resize((qn_image_filter)filter, in, from.width, from.height, stride, out,
                                         want.width, want.height, 3 * (size_t)want.width),
                         QN_OK);
        for (size_t j = 0; j < n; j++)
            if (out[j] != want.rgb[j])
                fail_msg("size %d, %s: value %zu is %d, expected %d", i, filters[filter], j, out[j],
                         want.rgb[j]);
        qn_free(in);
        qn_free(out);
        qn_test_ppm_free(&from);
        qn_test_ppm_free(&want);
    }
}

/* One colour stays that colour, whatever the sizes: the weights of a place sum to one. */
static void test_flat(void **state)
{
    uint8_t in[3 * 30 * 30], out[3 * 60 * 60];
    memset(in, 201, sizeof in);
    for (int64_t from = 1; from <= 30; from += 3)
        for (int64_t to = 1; to <= 60; to += 7) {
            size_t n = 3 * (size_t)(to * (61 - to));
            assert_int_equal(qn_image_resize((qn_image_filter)(to % N_FILTERS), in, from, 31 - from,
                                             3 * (size_t)from, out, to, 61 - to, 3 * (size_t)to),
                             QN_OK);
            for (size_t i = 0; i < n; i++) assert_int_equal(out[i], 201);
        }
}

static void test_out_of_memory(void **state)
{
    uint8_t in[3 * 8 * 8] = {0}, out[3 * 12 * 4];
    int64_t blocks = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int n = 1; n < 100 && status != QN_OK; n++) {
        qn_mem_fail_nth(n);
        status = qn_image_resize(QN_IMAGE_BICUBIC, in, 8, 8, 24, out, 12, 4, 36);
        qn_mem_fail_nth(0);
        assert_true(status == QN_OK || status == QN_E_NOMEM);
        assert_int_equal(qn_mem_live_blocks(), blocks);
    }
    assert_int_equal(status, QN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pixels), cmocka_unit_test(test_flat),
                                       cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
