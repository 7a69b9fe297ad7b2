#include "media/picture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "media/decoders.h"
#include "tests/support/picture.h"

static const char *const pictures[] = {"grey1.png",
                                       "grey2.png",
                                       "grey2_transparent.png",
                                       "grey4.png",
                                       "grey8.png",
                                       "grey8_interlaced.png",
                                       "grey8_transparent.png",
                                       "grey16.png",
                                       "grey16_interlaced.png",
                                       "grey_alpha8.png",
                                       "grey_alpha8_interlaced.png",
                                       "grey_alpha16.png",
                                       "grey_alpha16_interlaced.png",
                                       "palette1.png",
                                       "palette1_interlaced.png",
                                       "palette2.png",
                                       "palette2_interlaced.png",
                                       "palette4.png",
                                       "palette4_interlaced.png",
                                       "palette4_transparent.png",
                                       "palette8.png",
                                       "palette8_interlaced.png",
                                       "rgb8.png",
                                       "rgb8_interlaced.png",
                                       "rgb8_transparent.png",
                                       "rgb8_turned.png",
                                       "rgb16.png",
                                       "rgb16_interlaced.png",
                                       "rgba8.png",
                                       "rgba8_interlaced.png",
                                       "rgba16.png",
                                       "rgba16_interlaced.png",
                                       "plain.jpg",
                                       "progressive.jpg",
                                       "full_colour.jpg",
                                       "half_colour.jpg",
                                       "grey.jpg",
                                       "cmyk.jpg",
                                       "restarts.jpg",
                                       "turned1.jpg",
                                       "turned2.jpg",
                                       "turned3.jpg",
                                       "turned4.jpg",
                                       "turned5.jpg",
                                       "turned6.jpg",
                                       "turned7.jpg",
                                       "turned8.jpg"};
enum { N_PICTURES = sizeof pictures / sizeof pictures[0] };

static qn_buf read_picture(const char *name)
{
    qn_buf b = {0};
    qn_test_media_file(name, &b);
    return b;
}

static void test_pillows_pixels(void **state)
{
    for (int i = 0; i < N_PICTURES; i++) {
        qn_buf file = read_picture(pictures[i]);
        qn_picture image = {0};
        char name[64];
        snprintf(name, sizeof name, "%.*s.ppm", (int)strcspn(pictures[i], "."), pictures[i]);
        qn_test_ppm want = qn_test_ppm_read(name);
        if (qn_picture_decode(file.data, file.length, NULL, &image) != QN_OK)
            fail_msg("%s: %s", pictures[i], qn_last_error());
        if (image.width != want.width || image.height != want.height)
            fail_msg("%s: %lld x %lld", pictures[i], (long long)image.width, (long long)image.height);
        for (int64_t p = 0; p < want.width * want.height * 3; p++)
            if (image.rgb[p] != want.rgb[p])
                fail_msg("%s: value %lld is %d, expected %d", pictures[i], (long long)p, image.rgb[p],
                         want.rgb[p]);
        qn_picture_free(&image);
        qn_test_ppm_free(&want);
        qn_buf_free(&file);
    }
}

/* Decodes what must be refused; the message must hold the words. */
static void refuse(const void *bytes, size_t n, const qn_picture_limits *limits, qn_status status,
                   const char *words)
{
    qn_picture image = {0};
    qn_status got = qn_picture_decode(bytes, n, limits, &image);
    if (got != status || !strstr(qn_last_error(), words) || image.rgb)
        fail_msg("%s: %s (expected %s: ...%s...)", qn_status_name(got), qn_last_error(),
                 qn_status_name(status), words);
}

/* Every picture, cut at every length: refused as truncated, or as no known image, never shown in part. */
static void test_truncated(void **state)
{
    for (int i = 0; i < N_PICTURES; i++) {
        qn_buf file = read_picture(pictures[i]);
        for (size_t n = 0; n < file.length; n++) {
            uint8_t *cut = qn_alloc(n); /* so that AddressSanitizer sees what is read behind it */
            memcpy(cut, file.data, n);
            qn_picture image = {0};
            if (qn_picture_decode(cut, n, NULL, &image) == QN_OK)
                fail_msg("%s: accepted with %zu bytes", pictures[i], n);
            if (n > 8 && !strstr(qn_last_error(), "truncated: the file ends after"))
                fail_msg("%s, %zu bytes: %s", pictures[i], n, qn_last_error());
            qn_free(cut);
        }
        qn_buf_free(&file);
    }
}

/* One byte changed: refused or decoded, nothing else. */
static void test_damaged(void **state)
{
    int64_t blocks = qn_mem_live_blocks();
    for (int i = 0; i < N_PICTURES; i++) {
        qn_buf file = read_picture(pictures[i]);
        for (size_t at = 0; at < file.length; at++) {
            qn_picture image = {0};
            file.data[at] ^= (char)(1 << at % 8);
            if (qn_picture_decode(file.data, file.length, NULL, &image) == QN_OK) {
                assert_true(image.width > 0 && image.height > 0 && image.rgb);
                qn_picture_free(&image);
            }
            file.data[at] ^= (char)(1 << at % 8);
        }
        qn_buf_free(&file);
    }
    assert_int_equal(qn_mem_live_blocks(), blocks);
}

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* Headers that promise more than the limit: refused before a pixel is allocated. */
static void test_bombs(void **state)
{
    qn_buf png = read_picture("rgb8.png"), jpeg = read_picture("plain.jpg");
    uint8_t *p = (uint8_t *)png.data;
    qn_mem_reset_peak();
    size_t before = qn_mem_peak_bytes();
    put_u32(p + 16, 60000);
    put_u32(p + 20, 50000);
    refuse(p, png.length, NULL, QN_E_FULL,
           "PNG: the picture is 60000 x 50000 = 3000000000 pixels, the limit is 67108864");
    put_u32(p + 16, 0x7fffffff);
    refuse(p, png.length, NULL, QN_E_FULL, "2147483647 x 50000 pixels; a side may have at most 65535");
    put_u32(p + 16, 0xffffffff);
    put_u32(p + 20, 0xffffffff);
    refuse(p, png.length, NULL, QN_E_FULL, "4294967295 x 4294967295 pixels");
    put_u32(p + 16, 0);
    refuse(p, png.length, NULL, QN_E_FORMAT, "the picture has no pixels: it is 0 x");
    qn_buf turned = read_picture("rgb8_turned.png");
    uint8_t *exif = memmem(turned.data, turned.length, "eXIf", 4);
    assert_non_null(exif);
    put_u32(exif - 4, 0x40000000);
    refuse(turned.data, turned.length, NULL, QN_E_FORMAT, "PNG: truncated");
    qn_buf_free(&turned);
    size_t frame = 2; /* the frame header of the JPEG */
    uint8_t *j = (uint8_t *)jpeg.data;
    while (j[frame + 1] != 0xc0) frame += 2 + (size_t)(j[frame + 2] << 8 | j[frame + 3]);
    memset(j + frame + 5, 0xff, 4);
    refuse(j, jpeg.length, NULL, QN_E_FULL,
           "JPEG: the picture is 65535 x 65535 pixels; a side may have at most 65500");
    j[frame + 5] = j[frame + 7] = 0x4e;
    refuse(j, jpeg.length, NULL, QN_E_FULL, "JPEG: the picture is 20223 x 20223 = 408969729 pixels");
    assert_true(qn_mem_peak_bytes() < before + 100000);
    qn_buf_free(&png);
    qn_buf_free(&jpeg);

    png = read_picture("rgb8.png");
    refuse(png.data, png.length, &(qn_picture_limits){.max_pixels = 98}, QN_E_FULL,
           "11 x 9 = 99 pixels, the limit is 98");
    char words[80];
    snprintf(words, sizeof words, "the image file has %zu bytes, the limit is 100", png.length);
    refuse(png.data, png.length, &(qn_picture_limits){.max_bytes = 100}, QN_E_FULL, words);
    qn_picture image;
    assert_int_equal(qn_picture_decode(png.data, png.length, &(qn_picture_limits){png.length, 99}, &image),
                     QN_OK);
    qn_picture_free(&image);
    qn_buf_free(&png);
}

/* A progressive JPEG whose last scan comes a thousand times. */
static void test_scans(void **state)
{
    qn_buf file = read_picture("progressive.jpg"), many = {0};
    const uint8_t *j = (const uint8_t *)file.data;
    size_t last = 0;
    for (size_t i = 0; i + 1 < file.length; i++)
        if (j[i] == 0xff && j[i + 1] == 0xda) last = i;
    qn_buf_append(&many, j, last);
    for (int i = 0; i < 1000; i++) qn_buf_append(&many, j + last, file.length - 2 - last);
    qn_buf_append(&many, "\xff\xd9", 2);
    qn_picture image = {0};
    assert_int_not_equal(qn_picture_decode(many.data, many.length, NULL, &image), QN_OK);
    qn_buf_free(&many);
    qn_buf_free(&file);
}

static void test_other_formats(void **state)
{
    refuse("", 0, NULL, QN_E_FORMAT, "the image file is empty");
    refuse("hello", 5, NULL, QN_E_UNSUPPORTED, "PNG and JPEG are supported");
    refuse("GIF89a......", 12, NULL, QN_E_UNSUPPORTED, "the image is in the format GIF");
    refuse("\x89PNG\r\n\x1a\n", 8, NULL, QN_E_FORMAT, "PNG: truncated");
    refuse("\x89PNG\r\n\x1a\n\0\0\0\rIDAT0123456789abcdef0", 33, NULL, QN_E_FORMAT,
           "does not begin with a header");
    refuse("\xff\xd8\xff\xd9", 4, NULL, QN_E_FORMAT, "JPEG: ");
}

static void test_orientation(void **state)
{
    static const uint8_t good[] = {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0};
    uint8_t bad[sizeof good];
    assert_int_equal(qn_exif_orientation(good, sizeof good), 6);
    for (size_t n = 0; n < sizeof good; n++) assert_int_equal(qn_exif_orientation(good, n), 1);
    for (size_t i = 0; i < sizeof good; i++)
        for (int v = 0; v < 256; v++) {
            memcpy(bad, good, sizeof good);
            bad[i] = (uint8_t)v;
            int o = qn_exif_orientation(bad, sizeof bad);
            assert_true(o >= 1 && o <= 8);
        }
}

static void test_out_of_memory(void **state)
{
    for (int i = 0; i < N_PICTURES; i++) {
        qn_buf file = read_picture(pictures[i]);
        int64_t blocks = qn_mem_live_blocks();
        qn_status status = QN_E_NOMEM;
        for (int n = 1; n < 2000 && status != QN_OK; n++) {
            qn_picture image = {0};
            qn_mem_fail_nth(n);
            status = qn_picture_decode(file.data, file.length, NULL, &image);
            qn_mem_fail_nth(0);
            if (status != QN_OK && status != QN_E_NOMEM) fail_msg("%s: %s", pictures[i], qn_last_error());
            qn_picture_free(&image);
            assert_int_equal(qn_mem_live_blocks(), blocks);
        }
        assert_int_equal(status, QN_OK);
        qn_buf_free(&file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pillows_pixels), cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_damaged),        cmocka_unit_test(test_bombs),
        cmocka_unit_test(test_scans),          cmocka_unit_test(test_other_formats),
        cmocka_unit_test(test_orientation),    cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
