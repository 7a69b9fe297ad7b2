/* Heat maps and the PNG that they are written as: read back, pixel by pixel, and by what stands in them. */
#include "media/heat_map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/random.h"
#include "media/png_writer.h"
#include "media/text5x7.h"

static void ok(qn_status status)
{
    if (status != QN_OK) fail_msg("%s: %s", qn_status_name(status), qn_last_error());
}

static qn_picture noise(int64_t width, int64_t height)
{
    qn_picture p = {test_malloc((size_t)(width * height) * 3), width, height};
    for (int64_t i = 0; i < width * height * 3; i++) p.rgb[i] = (uint8_t)qn_random_bits(9, (uint64_t)i);
    return p;
}

static void png_comes_back(void **state)
{
    static const int64_t sizes[][2] = {{1, 1}, {3, 2}, {640, 1}, {1, 300}, {257, 129}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        qn_picture p = noise(sizes[i][0], sizes[i][1]), back = {0};
        qn_buf file = {0};
        ok(qn_png_encode(&p, &file));
        ok(qn_picture_decode(file.data, file.length, NULL, &back));
        assert_int_equal(back.width, p.width);
        assert_int_equal(back.height, p.height);
        assert_memory_equal(back.rgb, p.rgb, (size_t)(p.width * p.height) * 3);
        qn_picture_free(&back);
        qn_buf_free(&file);
        test_free(p.rgb);
    }
    qn_buf file = {0};
    assert_int_equal(qn_png_encode(&(qn_picture){.width = 0, .height = 1}, &file), QN_E_ARG);
    assert_int_equal(qn_png_encode(&(qn_picture){.width = 1, .height = 65536}, &file), QN_E_ARG);
}

static void png_runs_out_of_memory(void **state)
{
    qn_picture p = noise(40, 30);
    qn_status status = QN_E_NOMEM;
    int64_t live = qn_mem_live_blocks(), n = 1;
    for (; n <= 2000 && status != QN_OK; n++) {
        qn_buf file = {0};
        qn_mem_fail_nth(n);
        status = qn_png_encode(&p, &file);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        qn_buf_free(&file);
        assert_int_equal(qn_mem_live_blocks(), live);
    }
    ok(status);
    assert_true(n > 3);
    qn_buf small = {.limit_bytes = 100};
    assert_int_equal(qn_png_encode(&p, &small), QN_E_FULL);
    qn_buf_free(&small);
    test_free(p.rgb);
}

/* ---- heat maps ---------------------------------------------------------------------------------------- */

enum { N = 6, PANELS = 6 };

static const char *const titles[] = {"L0 H0", "L0 H1", "L0 H2", "L1 H0", "L1 H1", "L1 H2"};

static qn_heat_map map_of(const float *const *panels, int64_t n)
{
    return (qn_heat_map){
        .headline = "a model", .rows = 2, .columns = 3, .n = n, .panels = panels, .titles = titles};
}

static int64_t count(const qn_picture *p, int r, int g, int b)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->width * p->height; i++)
        n += p->rgb[3 * i] == r && p->rgb[3 * i + 1] == g && p->rgb[3 * i + 2] == b;
    return n;
}

/* Panels of nothing but 1 on the diagonal: so many cells of each colour. */
static void cells_have_their_colours(void **state)
{
    static float diagonal[N * N];
    const float *panels[PANELS];
    qn_picture p = {0}, none = {0}, one = {0};
    for (int i = 0; i < N; i++) diagonal[i * N + i] = 1;
    for (int i = 0; i < PANELS; i++) panels[i] = diagonal;
    qn_heat_map m = map_of(panels, N);
    ok(qn_heat_map_draw(&m, &p));
    memset(panels, 0, sizeof panels); /* the scale alone */
    ok(qn_heat_map_draw(&m, &none));
    panels[4] = diagonal;
    ok(qn_heat_map_draw(&m, &one));
    assert_true(one.width == p.width && none.height == p.height);
    int64_t cell = 24 * 24, bright = count(&p, 253, 231, 37) - count(&none, 253, 231, 37),
            dark = count(&p, 68, 1, 84) - count(&none, 68, 1, 84);
    assert_int_equal(bright, PANELS * N * cell);
    assert_int_equal(dark, PANELS * N * (N - 1) / 2 * cell);
    assert_int_equal(count(&p, 232, 232, 232), PANELS * N * (N - 1) / 2 * cell);
    assert_int_equal(count(&one, 232, 232, 232), N * (N - 1) / 2 * cell);
    assert_true(count(&one, 0, 0, 0) > count(&none, 0, 0, 0)); /* its title and numbers */
    qn_picture_free(&p);
    qn_picture_free(&none);
    qn_picture_free(&one);
}

/* What a window has left behind is not seen. */
static void windows_are_grey(void **state)
{
    static float zeros[N * N];
    const float *panels[PANELS] = {zeros, zeros};
    const int64_t windows[PANELS] = {2, 0};
    qn_picture p = {0};
    qn_heat_map m = map_of(panels, N);
    m.windows = windows;
    ok(qn_heat_map_draw(&m, &p));
    assert_int_equal(count(&p, 232, 232, 232), (N * (N - 1) + (N - 2) * (N - 1) / 2) * 24 * 24);
    qn_picture_free(&p);
}

/* More positions than pixels: one that is large is seen. */
static void blocks_show_their_largest(void **state)
{
    enum { MANY = 1500 };
    float *panel = test_calloc((size_t)MANY * MANY, sizeof *panel);
    const float *panels[PANELS] = {panel};
    qn_picture p = {0}, before = {0};
    qn_heat_map m = map_of(panels, MANY);
    ok(qn_heat_map_draw(&m, &before));
    panel[(size_t)1234 * MANY + 321] = 1;
    panel[(size_t)10 * MANY + 1000] = 1; /* behind the diagonal: nobody sees it */
    ok(qn_heat_map_draw(&m, &p));
    assert_int_equal(count(&p, 253, 231, 37), count(&before, 253, 231, 37) + 1);
    qn_picture_free(&before);
    qn_picture_free(&p);
    test_free(panel);
}

static void sizes_are_bounded(void **state)
{
    static float value[1] = {1};
    const float *panels[PANELS] = {value, value, value, value, value, value};
    qn_picture p = {0}, small = {0};
    qn_heat_map m = map_of(panels, 1); /* one position */
    ok(qn_heat_map_draw(&m, &p));
    qn_picture_free(&p);
    float *panel = test_calloc(200 * 200, sizeof *panel);
    for (int i = 0; i < PANELS; i++) panels[i] = panel;
    m = map_of(panels, 200);
    ok(qn_heat_map_draw(&m, &p));
    m.max_pixels = p.width * p.height / 3;
    ok(qn_heat_map_draw(&m, &small));
    assert_true(small.width * small.height <= m.max_pixels && small.width < p.width);
    qn_picture untouched = {0};
    m.max_pixels = 1000;
    assert_int_equal(qn_heat_map_draw(&m, &untouched), QN_E_FULL);
    m.max_pixels = 0;
    m.n = 0;
    assert_int_equal(qn_heat_map_draw(&m, &untouched), QN_E_ARG);
    m.n = 1;
    m.rows = 0;
    assert_int_equal(qn_heat_map_draw(&m, &untouched), QN_E_ARG);
    m.rows = 2;
    qn_mem_fail_nth(1);
    assert_int_equal(qn_heat_map_draw(&m, &untouched), QN_E_NOMEM);
    assert_null(untouched.rgb);
    qn_picture_free(&p);
    qn_picture_free(&small);
    test_free(panel);
}

static void text_stays_inside(void **state)
{
    enum { WIDTH = 20, HEIGHT = 9 };
    uint8_t rgb[WIDTH * HEIGHT * 3];
    qn_picture p = {rgb, WIDTH, HEIGHT};
    memset(rgb, 255, sizeof rgb);
    qn_text_draw(&p, -3, -2, "wide text\x01");
    qn_text_draw(&p, 15, 6, "edge");
    assert_true(count(&p, 0, 0, 0) > 0);
    memset(rgb, 255, sizeof rgb);
    qn_text_draw(&p, 1, 1, "1");
    assert_int_equal(count(&p, 0, 0, 0), 1 + 2 + 4 * 1 + 3);
    assert_int_equal(qn_text_width("abc"), 3 * QN_TEXT_ADVANCE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(png_comes_back),           cmocka_unit_test(png_runs_out_of_memory),
        cmocka_unit_test(cells_have_their_colours), cmocka_unit_test(blocks_show_their_largest),
        cmocka_unit_test(sizes_are_bounded),        cmocka_unit_test(windows_are_grey),
        cmocka_unit_test(text_stays_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
