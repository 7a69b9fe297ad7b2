/* WebP files of every kind against what Pillow makes of them; what is refused. Left out of builds without
 * libwebp. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "media/picture.h"
#include "tests/support/fixtures.h"
#include "tests/support/picture.h"

enum { FILE_MAX = 1 << 16 };

static uint8_t bytes[FILE_MAX];

static size_t read_file(const char *name)
{
    char path[96];
    snprintf(path, sizeof path, "media/%s.webp", name);
    FILE *f = fopen(qn_test_need_fixture(path), "rb");
    assert_non_null(f);
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    return n;
}

static void test_golden(void **state)
{
    static const char *const names[] = {"lossless", "lossy",   "lossless_alpha",  "lossy_alpha", "turned1",
                                        "turned2",  "turned3", "turned4",         "turned5",     "turned6",
                                        "turned7",  "turned8", "turned_jpeg_exif"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char ppm[96];
        qn_picture got;
        const size_t n = read_file(names[i]);
        snprintf(ppm, sizeof ppm, "webp_%s.ppm", names[i]);
        qn_test_ppm want = qn_test_ppm_read(ppm);
        if (qn_picture_decode(bytes, n, NULL, &got) != QN_OK) fail_msg("%s: %s", names[i], qn_last_error());
        assert_int_equal(got.width, want.width);
        assert_int_equal(got.height, want.height);
        if (memcmp(got.rgb, want.rgb, (size_t)(3 * got.width * got.height)) != 0)
            fail_msg("%s: other pixels", names[i]);
        qn_picture_free(&got);
        qn_test_ppm_free(&want);
    }
}

static void refuse(size_t n, const qn_picture_limits *limits, qn_status status, const char *words)
{
    qn_picture out = {0};
    assert_int_equal(qn_picture_decode(bytes, n, limits, &out), status);
    if (!strstr(qn_last_error(), words)) fail_msg("%s: expected %s", qn_last_error(), words);
    assert_null(out.rgb);
}

static void test_refused(void **state)
{
    size_t n = read_file("lossy");
    const int64_t blocks = qn_mem_live_blocks();
    refuse(n, &(qn_picture_limits){.max_pixels = 100}, QN_E_FULL, "the limit is 100");
    refuse(n, &(qn_picture_limits){.max_bytes = 100}, QN_E_FULL, "the limit is 100");
    refuse(n - 40, NULL, QN_E_FORMAT, "WebP: truncated");
    refuse(14, NULL, QN_E_FORMAT, "WebP: truncated");
    memset(bytes + 20, 0xee, 10);
    refuse(n, NULL, QN_E_FORMAT, "WebP: damaged");
    n = read_file("animation");
    refuse(n, NULL, QN_E_UNSUPPORTED, "WebP: it is an animation");
    assert_int_equal(qn_mem_live_blocks(), blocks);
}

static void test_out_of_memory(void **state)
{
    const size_t n = read_file("turned6");
    const int64_t blocks = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int k = 1; k < 50 && status != QN_OK; k++) {
        qn_picture out = {0};
        qn_mem_fail_nth(k);
        status = qn_picture_decode(bytes, n, NULL, &out);
        qn_mem_fail_nth(0);
        assert_true(status == QN_OK || status == QN_E_NOMEM);
        qn_picture_free(&out);
        assert_int_equal(qn_mem_live_blocks(), blocks);
    }
    assert_int_equal(status, QN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
