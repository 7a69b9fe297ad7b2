/* The vision towers of all kinds that have one: from the pixel values that the reference's image processor made to the
 * vectors that stand for tokens of the text. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/vision/vision.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/golden_states.h"

static const char *const kinds[] = {
    "qwen2_vl",       "qwen2_5_vl", "qwen3_vl",     "qwen3_vl_moe", "qwen3_5_vision", "qwen3_5_moe_vision",
    "gemma3_vision",  "smolvlm",    "lfm2_vl",      "internvl",     "mistral3",       "gemma4_vision",
    "gemma4_unified", "llama4",     "muse_glimmer", "glm5_next",    "qwen4_exp"};

enum { VIEWS_MAX = 16 };

/* The views of a golden picture and their patches, as a tower takes them. */
typedef struct {
    int64_t n_views, n_patches;
    qn_image_grid views[VIEWS_MAX];
    float *patches;
} picture;

static const qn_tensor_view *find(const qn_safetensors *st, const char *name)
{
    return qn_safetensors_find(st, name);
}

/* The size of the i-th view, in patches; 0: there are no more. */
static qn_image_grid grid_of(const qn_safetensors *st, const qn_vision_config *v, int64_t i)
{
    const qn_tensor_view *thw = find(st, "image.grid_thw"), *shapes = find(st, "image.spatial_shapes"),
                         *places = find(st, "image.image_position_ids"),
                         *values = find(st, "image.pixel_values");
    const int64_t p = v->processor.patch_size;
    qn_image_grid g = {.rows = 0};
    if (thw) {
        const int32_t *n = thw->data;
        if (i < thw->shape[0]) g = (qn_image_grid){.rows = n[3 * i + 1], .columns = n[3 * i + 2]};
    } else if (shapes) {
        const int32_t *n = shapes->data;
        if (i < shapes->shape[0]) g = (qn_image_grid){.rows = n[2 * i], .columns = n[2 * i + 1]};
    } else if (places) { /* columns come first; padding is -1 */
        const int32_t *n = places->data;
        for (int64_t k = 0; i == 0 && k < places->n_elements / 2; k++) {
            if (n[2 * k] >= g.columns) g.columns = n[2 * k] + 1;
            if (n[2 * k + 1] >= g.rows) g.rows = n[2 * k + 1] + 1;
        }
    } else { /* [.., 3, height, width] */
        const int64_t height = values->shape[values->n_dims - 2], width = values->shape[values->n_dims - 1];
        if (i < values->n_elements / (3 * height * width))
            g = (qn_image_grid){.rows = height / p, .columns = width / p};
    }
    return g;
}

/* The place in a view of a patch, by the order of towers. */
static void place_of(const qn_vision_config *v, const qn_image_grid *g, int64_t patch, int64_t *row,
                     int64_t *column)
{
    const int64_t m = v->processor.merge_size, token = patch / (m * m), in = patch % (m * m);
    if (v->processor.order != QN_IMAGE_MERGED) {
        *row = patch / g->columns;
        *column = patch % g->columns;
        return;
    }
    *row = token / (g->columns / m) * m + in / m;
    *column = token % (g->columns / m) * m + in % m;
}

/* Patch `patch` of view i, whose floats are to be `out`. */
static void copy_patch(const qn_safetensors *st, const qn_vision_config *v, const picture *pic, int64_t i,
                       int64_t patch, int64_t before, float *out)
{
    const qn_tensor_view *values = find(st, "image.pixel_values");
    const int64_t p = v->processor.patch_size, n = qn_vision_patch_floats(v);
    const qn_image_grid *g = &pic->views[i];
    const float *from = values->data;
    int64_t row, column;
    place_of(v, g, patch, &row, &column);
    if (find(st, "image.grid_thw")) {
        memcpy(out, from + (before + patch) * n, (size_t)n * sizeof *out);
    } else if (values->shape[values->n_dims - 1] == n) { /* [views, most patches, floats], row by row */
        from += (i * values->shape[values->n_dims - 2] + row * g->columns + column) * n;
        memcpy(out, from, (size_t)n * sizeof *out);
    } else {
        const int64_t width = g->columns * p, height = g->rows * p;
        from += i * 3 * height * width;
        for (int64_t c = 0; c < 3; c++)
            for (int64_t y = 0; y < p; y++)
                for (int64_t x = 0; x < p; x++)
                    *out++ = from[(c * height + row * p + y) * width + column * p + x];
    }
}

static picture read_picture(const qn_safetensors *st, const qn_vision_config *v)
{
    const int64_t n = qn_vision_patch_floats(v);
    picture pic = {0};
    int64_t before = 0;
    for (qn_image_grid g; (g = grid_of(st, v, pic.n_views)).rows > 0;) {
        assert_true(pic.n_views < VIEWS_MAX);
        pic.views[pic.n_views++] = g;
        pic.n_patches += g.rows * g.columns;
    }
    pic.patches = qn_alloc_array((size_t)pic.n_patches, (size_t)n * sizeof *pic.patches);
    assert_non_null(pic.patches);
    for (int64_t i = 0; i < pic.n_views; i++) {
        const int64_t area = pic.views[i].rows * pic.views[i].columns;
        for (int64_t k = 0; k < area; k++)
            copy_patch(st, v, &pic, i, k, before, pic.patches + (before + k) * n);
        before += area;
    }
    return pic;
}

/* The largest difference as a share of the largest value. */
static double difference(const float *x, int64_t width, const qn_tensor_view *want)
{
    const float *y = want->data;
    const int64_t own = want->shape[1];
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < want->n_elements; i++) {
        const double d = fabs((double)x[i / own * width + i % own] - (double)y[i]);
        worst = fmax(worst, d == d ? d : INFINITY);
        largest = fmax(largest, fabs((double)y[i]));
    }
    return worst / largest;
}

static void check(const char *kind)
{
    char dir[96], path[160];
    qn_safetensors *st = NULL;
    snprintf(path, sizeof path, "models/%s/expected.safetensors", kind);
    snprintf(dir, sizeof dir, "models/%s", kind);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    qn_engine *e = qn_test_engine(qn_test_need_fixture(dir), NULL,
                                  (qn_engine_options){.precision = QN_PRECISION_EXACT, .n_threads = 2});
    const qn_vision_config *v = &qn_engine_config(e)->vision;
    if (!v->family) fail_msg("%s: no tower was found", kind);
    picture pic = read_picture(st, v);
    qn_safetensors *made = qn_golden_picture(kind);
    const qn_tensor_view *want = find(made, "image.features");
    const int64_t tokens = qn_vision_tokens(v, pic.n_views, pic.views),
                  width = qn_vision_width(v, qn_engine_config(e)->hidden_size);
    assert_int_equal(tokens, want->shape[0]);
    float *out = qn_alloc_array((size_t)tokens, (size_t)width * sizeof *out);
    qn_test_ok(qn_engine_see(e, pic.n_views, pic.views, pic.patches, out));
    const double worst = difference(out, width, want);
    print_message("%s: largest difference %.1e of the largest value\n", kind, worst);
    assert_true(worst <= 1e-4);
    qn_free(out);
    qn_free(pic.patches);
    qn_engine_close(e);
    qn_safetensors_close(made);
    qn_safetensors_close(st);
}

static void test_features(void **state)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) check(kinds[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_features)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
