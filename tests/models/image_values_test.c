/* Pictures through the image processor of every kind that has one, against what transformers makes of them:
 * values of pixels, the sizes beside them, and how many tokens a picture is. The towers are not asked: a kind
 * whose weights nothing here computes is checked, too. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "model/vision/image_prompt.h"
#include "quant/types.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "text/chat/chat.h"

enum { PATH_BYTES = 512, KINDS_MIN = 16 };

typedef struct {
    const char *kind;
    json_t *config, *expected;
    qn_source *src;
    qn_image_processor processor;
    qn_safetensors *st;
    const char *prefix; /* "image", "resize" */
    qn_image_plan plan;
    uint8_t *rgb; /* the views */
} golden;

/* ---- the tower's sizes, as config.json has them -------------------------------------------------------- */

static double number(const json_t *object, const char *name)
{
    const json_t *v = json_object_get(object, name);
    if (json_is_array(v)) v = json_array_get(v, 0);
    return json_is_number(v) ? json_number_value(v) : 0;
}

/* Patches beside each other that become one token. Each family calls it otherwise. */
static double merge_of(const json_t *root, const json_t *vision)
{
    static const char *const of_vision[] = {"spatial_merge_size", "merge_size", "pooling_kernel_size"},
                             *const of_root[] = {"spatial_merge_size", "downsample_factor", "scale_factor"};
    for (int i = 0; i < 3; i++) {
        if (number(vision, of_vision[i])) return number(vision, of_vision[i]);
        if (number(root, of_root[i])) return number(root, of_root[i]);
    }
    if (number(root, "downsample_ratio")) return 1 / number(root, "downsample_ratio");
    if (number(vision, "pixel_shuffle_ratio")) return 1 / number(vision, "pixel_shuffle_ratio");
    if (number(root, "mm_tokens_per_image"))
        return number(vision, "image_size") / number(vision, "patch_size") /
               sqrt(number(root, "mm_tokens_per_image"));
    return 2; /* what transformers takes mistral3's for */
}

static qn_image_tower tower_of(const json_t *root)
{
    const json_t *vision = json_object_get(root, "vision_config");
    const double times = number(vision, "temporal_patch_size"), other = number(vision, "patch_temporal");
    return (qn_image_tower){.model_type = json_string_value(json_object_get(root, "model_type")),
                            .patch_size = (int64_t)number(vision, "patch_size"),
                            .merge_size = (int64_t)lround(merge_of(root, vision)),
                            .temporal_patch_size = (int64_t)fmax(1, fmax(times, other))};
}

/* ---- one picture --------------------------------------------------------------------------------------- */

/* NULL: the file has no such tensor. */
static const qn_tensor_view *find(const golden *g, const char *name)
{
    char whole[96];
    snprintf(whole, sizeof whole, "%s.%s", g->prefix, name);
    return qn_safetensors_find(g->st, whole);
}

static double value_at(const qn_tensor_view *v, int64_t i)
{
    return v->dtype == QN_DTYPE_F16 ? qn_f16_to_f32(((const uint16_t *)v->data)[i])
                                    : ((const float *)v->data)[i];
}

/* Planes [channels, height, width] of one view. */
static void fill_planes(const qn_image_processor *p, const uint8_t *rgb, const qn_image_grid *view,
                        float *out)
{
    const int64_t area = view->height * view->width;
    for (int c = 0; c < QN_IMAGE_CHANNELS; c++)
        for (int64_t i = 0; i < area; i++) *out++ = p->value[c][rgb[QN_IMAGE_CHANNELS * i + c]];
}

/* Values of a view, without what pads it. */
static int64_t view_floats(const golden *g, const qn_image_grid *view)
{
    return g->processor.order == QN_IMAGE_PLANES
               ? qn_image_grid_bytes(view)
               : view->rows * view->columns * qn_image_patch_floats(&g->processor);
}

/* Values that the file has of each view, zeros behind them where the views are padded to one size. */
static void check_values(const golden *g)
{
    const qn_tensor_view *want = find(g, "pixel_values");
    if (!want) return; /* too large to be stored */
    const int64_t n_views = qn_image_plan_views(&g->plan), each = want->n_elements / n_views;
    const double tolerance = want->dtype == QN_DTYPE_F16 ? 2e-2 : 1e-6;
    const uint8_t *rgb = g->rgb;
    double worst = 0;
    assert_int_equal(want->n_elements % n_views, 0);
    for (int64_t i = 0; i < n_views; i++) {
        const qn_image_grid *view = qn_image_plan_view(&g->plan, i);
        const int64_t n = view_floats(g, view);
        float *out = qn_calloc((size_t)n, sizeof *out);
        if (n > each)
            fail_msg("%s, %s: %lld values of a view, expected %lld", g->kind, g->prefix, (long long)n,
                     (long long)each);
        if (g->processor.order == QN_IMAGE_PLANES)
            fill_planes(&g->processor, rgb, view, out);
        else
            qn_image_patches(&g->processor, rgb, view, out);
        for (int64_t k = 0; k < each; k++)
            worst = fmax(worst, fabs((k < n ? out[k] : 0) - value_at(want, i * each + k)));
        rgb += qn_image_grid_bytes(view);
        qn_free(out);
    }
    print_message("%s, %s.pixel_values: largest difference %.1e\n", g->kind, g->prefix, worst);
    if (!(worst <= tolerance)) fail_msg("%s, %s: values differ by %.1e", g->kind, g->prefix, worst);
}

/* Integers of a tensor that the file may lack. */
static void check_ints(const golden *g, const char *name, int64_t n, const int64_t *want)
{
    const qn_tensor_view *v = find(g, name);
    if (!v) return;
    assert_int_equal(v->n_elements, n);
    for (int64_t i = 0; i < n; i++)
        if (((const int32_t *)v->data)[i] != want[i])
            fail_msg("%s, %s.%s: value %lld is %lld, expected %d", g->kind, g->prefix, name, (long long)i,
                     (long long)want[i], ((const int32_t *)v->data)[i]);
}

/* How many of a mask's places are on. */
static int64_t count_on(const qn_tensor_view *v)
{
    int64_t n = 0;
    for (int64_t i = 0; i < v->n_elements; i++) n += ((const int32_t *)v->data)[i] != 0;
    return n;
}

static void check_places(const golden *g)
{
    const qn_tensor_view *v = find(g, "image_position_ids");
    const qn_image_grid *view = &g->plan.tile;
    for (int64_t i = 0; v && i < v->n_elements / 2; i++) {
        const int is_patch = i < view->rows * view->columns;
        const int32_t *at = (const int32_t *)v->data + 2 * i;
        assert_int_equal(at[0], is_patch ? i % view->columns : -1);
        assert_int_equal(at[1], is_patch ? i / view->columns : -1);
    }
}

static void check_companions(const golden *g)
{
    const qn_image_plan *plan = &g->plan;
    const qn_image_grid *tile = &plan->tile;
    const int64_t n_views = qn_image_plan_views(plan);
    int64_t shapes[2 * QN_IMAGE_TILES_MAX + 2], on = 0;
    for (int64_t i = 0; i < n_views; i++) {
        const qn_image_grid *view = qn_image_plan_view(plan, i);
        shapes[2 * i] = view->rows;
        shapes[2 * i + 1] = view->columns;
        on += g->processor.order == QN_IMAGE_PLANES ? view->height * view->width : view->rows * view->columns;
    }
    check_ints(g, "grid_thw", 3, (int64_t[]){1, tile->rows, tile->columns});
    check_ints(g, "image_sizes", 2, (int64_t[]){tile->height, tile->width});
    check_ints(g, "spatial_shapes", 2 * n_views, shapes);
    check_ints(g, "aspect_ratios", 2, (int64_t[]){plan->tile_rows, plan->tile_columns});
    check_ints(g, "num_patches", 1, &n_views);
    check_ints(g, "num_crops", 1, (int64_t[]){0});
    check_ints(g, "num_soft_tokens_per_image", 1, (int64_t[]){qn_image_plan_tokens(plan)});
    const qn_tensor_view *mask = find(g, "pixel_attention_mask");
    if (mask) assert_int_equal(count_on(mask), on);
    check_places(g);
}

/* Tokens of the prompt that stand for the picture. */
static void check_tokens(const golden *g)
{
    static const char *const names[] = {"image_token_id", "image_token_index"};
    const qn_tensor_view *ids = find(g, "ids");
    const json_t *token = json_object_get(g->config, names[0]);
    int64_t n = 0;
    if (!token) token = json_object_get(g->config, names[1]);
    assert_true(json_is_integer(token));
    for (int64_t i = 0; ids && i < ids->n_elements; i++)
        n += ((const int32_t *)ids->data)[i] == json_integer_value(token);
    if (ids) assert_int_equal(qn_image_plan_tokens(&g->plan), n);
}

/* The reference's prompt as text has what stands for the picture. */
static void check_text(const golden *g)
{
    const char *text = json_string_value(json_object_get(json_object_get(g->expected, "image"), "text"));
    const json_t *token = json_object_get(g->config, "image_token_id");
    qn_image_words words = {0};
    qn_chat_text *chat = NULL;
    qn_buf made = {0}, image = {0};
    size_t n = 0;
    if (!token) token = json_object_get(g->config, "image_token_index");
    assert_non_null(text);
    qn_test_ok(qn_chat_text_open(g->src, NULL, &chat));
    const char *spelled =
        qn_tokenizer_token_text(qn_chat_text_tokenizer(chat), (int32_t)json_integer_value(token), &n);
    assert_non_null(spelled);
    qn_buf_append(&image, spelled, n);
    words.image = image.data;
    if (g->processor.prompt == QN_IMAGE_PROMPT_ENCLOSED || g->processor.prompt == QN_IMAGE_PROMPT_PARAGRAPH)
        for (int i = 0; !words.begin && qn_image_begin_word(i); i++)
            if (strstr(text, qn_image_begin_word(i)))
                words = (qn_image_words){image.data, qn_image_begin_word(i), qn_image_end_word(i)};
    qn_image_prompt_put(&g->processor, &g->plan, &words, &made);
    if (!strstr(text, made.data)) fail_msg("%s: \"%s\" is not in \"%s\"", g->kind, made.data, text);
    qn_buf_free(&made);
    qn_buf_free(&image);
    qn_chat_text_close(chat);
}

static void check_picture(golden *g, const char *prefix)
{
    g->prefix = prefix;
    const qn_tensor_view *rgb = find(g, "rgb");
    if (!rgb) return;
    const qn_image image = {rgb->data, rgb->shape[1], rgb->shape[0], 0};
    qn_test_ok(qn_image_plan_of(&g->processor, image.width, image.height, &g->plan));
    g->rgb = qn_alloc((size_t)qn_image_plan_bytes(&g->plan));
    qn_test_ok(qn_image_fit(&g->processor, &image, &g->plan, g->rgb));
    check_companions(g);
    check_values(g);
    check_tokens(g);
    if (strcmp(prefix, "image") == 0) check_text(g);
    qn_free(g->rgb);
}

/* ---- kinds --------------------------------------------------------------------------------------------- */

static void check_kind(const char *folder, const char *kind)
{
    char path[PATH_BYTES];
    golden g = {.kind = kind};
    const char *text;
    size_t n;
    snprintf(path, sizeof path, "%s/%s", folder, kind);
    qn_test_ok(qn_source_open(path, NULL, &g.src));
    qn_test_ok(qn_source_side_text(g.src, QN_SIDE_CONFIG, &text, &n));
    qn_test_ok(qn_json_parse_python(kind, text, n, &g.config));
    const qn_image_tower tower = tower_of(g.config);
    qn_test_ok(qn_image_processor_read(g.src, &tower, NULL, &g.processor));
    snprintf(path, sizeof path, "%s/%s/expected.json", folder, kind);
    g.expected = json_load_file(path, 0, NULL);
    assert_non_null(g.expected);
    snprintf(path, sizeof path, "%s/%s/expected.safetensors", folder, kind);
    qn_test_ok(qn_safetensors_open(path, &g.st));
    check_picture(&g, "image");
    check_picture(&g, "resize");
    qn_safetensors_close(g.st);
    json_decref(g.config);
    json_decref(g.expected);
    qn_source_close(g.src);
}

static int has_pictures(const char *folder, const char *kind)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s/preprocessor_config.json", folder, kind);
    FILE *f = fopen(path, "rb");
    if (f) fclose(f);
    return f != NULL;
}

static void test_kinds(void **state)
{
    char folder[PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", qn_test_need_fixture("families2"));
    DIR *dir = opendir(folder);
    int n = 0;
    assert_non_null(dir);
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
        if (entry->d_name[0] != '.' && has_pictures(folder, entry->d_name)) {
            check_kind(folder, entry->d_name);
            n++;
        }
    closedir(dir);
    assert_true(n >= KINDS_MIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kinds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
