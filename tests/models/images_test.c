/* Images against golden values of the reference: patches, positions, the tower's vectors, logits and greedy
 * ids; the same bits whatever the chunks, the threads and the company; what is refused, and that nothing is
 * left behind. */
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

#include "base/map.h"
#include "base/mem.h"
#include "base/random.h"
#include "device/cpu/kernels/kernels.h"
#include "engine/machine/images.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/golden_states.h"
#include "tests/support/models/model_dir.h"

static const char model[] = "models/qwen2_vl";
enum { LOGITS_MAX = 4096 * 512 };

typedef struct {
    qn_engine *e;
    qn_safetensors *st;
    qn_image image;
    const int32_t *ids;
    int64_t n_ids, vocab;
} golden;

static golden open_golden(const char *set, qn_engine_options o)
{
    golden g = {0};
    char path[64];
    const char *dir = qn_test_need_fixture(model);
    snprintf(path, sizeof path, "%s/expected.safetensors", model);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &g.st));
    g.e = qn_test_engine(dir, set, o);
    const qn_tensor_view *rgb = NULL, *ids = qn_test_tensor(g.st, "image.ids", 0);
    rgb = qn_safetensors_find(g.st, "image.rgb");
    assert_non_null(rgb);
    g.image = (qn_image){rgb->data, rgb->shape[1], rgb->shape[0], 0};
    g.ids = ids->data;
    g.n_ids = ids->n_elements;
    g.vocab = qn_engine_config(g.e)->vocab_size;
    return g;
}

static void close_golden(golden *g)
{
    qn_engine_close(g->e);
    qn_safetensors_close(g->st);
}

static const qn_vision_config *tower(const golden *g)
{
    return &qn_engine_config(g->e)->vision;
}

static qn_images *see_all(golden *g, const int32_t *ids, int64_t n_ids, size_t n, const qn_image *images)
{
    qn_images *im = NULL;
    int64_t left = 1;
    qn_test_ok(qn_images_new(qn_engine_config(g->e), n, images, ids, n_ids, 1 << 20, &im));
    while (left) qn_test_ok(qn_images_see(im, g->e, 0, &left));
    return im;
}

/* The largest difference, as a share of the largest value where `relative`. */
static double difference(const float *x, const qn_tensor_view *want, int relative)
{
    const float *y = want->data;
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < want->n_elements; i++) {
        worst = fmax(worst, fabs((double)x[i] - (double)y[i]));
        largest = fmax(largest, fabs((double)y[i]));
        if (!(fabs((double)x[i]) < 1e30)) return INFINITY;
    }
    return relative ? worst / largest : worst;
}

/* ---- golden values ------------------------------------------------------------------------------------ */

static void test_patches(void **state)
{
    golden g = open_golden(NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT});
    const qn_image_processor *p = &tower(&g)->processor;
    const qn_tensor_view *thw = qn_test_tensor(g.st, "image.grid_thw", 0),
                         *values = qn_test_tensor(g.st, "image.pixel_values", 0);
    qn_image_plan plan;
    qn_test_ok(qn_image_plan_of(p, g.image.width, g.image.height, &plan));
    const qn_image_grid grid = plan.tile;
    assert_int_equal(((const int32_t *)thw->data)[0], 1);
    assert_int_equal(((const int32_t *)thw->data)[1], grid.rows);
    assert_int_equal(((const int32_t *)thw->data)[2], grid.columns);
    assert_int_equal(qn_image_patch_floats(p) * grid.rows * grid.columns, values->n_elements);
    uint8_t *rgb = qn_alloc((size_t)qn_image_plan_bytes(&plan));
    float *patches = qn_alloc_array((size_t)values->n_elements, sizeof *patches);
    qn_test_ok(qn_image_fit(p, &g.image, &plan, rgb));
    qn_image_patches(p, rgb, &grid, patches);
    double worst = difference(patches, values, 0);
    print_message("pixel_values: largest difference %.1e\n", worst);
    assert_true(worst <= 1e-5);
    qn_free(rgb);
    qn_free(patches);
    close_golden(&g);
}

static void check_positions(const golden *g, const qn_images *im)
{
    const qn_tensor_view *want = qn_test_tensor(g->st, "image.position_ids", 0);
    for (int64_t i = 0; i < g->n_ids; i++) {
        int32_t p[QN_ROPE_SECTIONS];
        qn_images_positions(im, i, p);
        for (int k = 0; k < QN_ROPE_SECTIONS; k++)
            assert_int_equal(p[k], ((const int32_t *)want->data)[k * g->n_ids + i]);
    }
}

static void check_features(const golden *g, const qn_images *im)
{
    const qn_tensor_view *want = qn_test_tensor(g->st, "image.features", 0);
    double worst = 0;
    int64_t n = 0, width = want->shape[1];
    for (int64_t i = 0; i < g->n_ids; i++) {
        const float *v = qn_images_vector(im, i);
        if (!v) continue;
        qn_tensor_view row = *want;
        row.n_elements = width;
        row.data = (const float *)want->data + n++ * width;
        worst = fmax(worst, difference(v, &row, 0));
    }
    assert_int_equal(n, want->shape[0]);
    double largest = 0;
    for (int64_t i = 0; i < want->n_elements; i++)
        largest = fmax(largest, fabs((double)((const float *)want->data)[i]));
    print_message("features: largest difference %.1e of the largest value\n", worst / largest);
    assert_true(worst <= 1e-4 * largest);
}

typedef struct {
    float *out;
    int64_t vocab;
} copies;

static qn_status copy_logits(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    copies *c = user;
    memcpy(c->out + first * c->vocab, logits, (size_t)(n * c->vocab) * sizeof *logits);
    return QN_OK;
}

/* Logits of all tokens of the prompt, in steps of `piece` tokens. */
static void logits_of(golden *g, const qn_images *im, int64_t piece, float *out)
{
    qn_sequence *s = qn_test_sequence(g->e);
    const qn_ids prompt = qn_images_prompt(im);
    qn_sequence_set_images(s, im);
    for (int64_t i = 0; i < prompt.n_ids; i += piece) {
        copies c = {out + i * g->vocab, g->vocab};
        qn_feed feed = {s, prompt.ids + i, i + piece < prompt.n_ids ? piece : prompt.n_ids - i,
                        QN_LOGITS_ALL};
        qn_test_ok(qn_engine_step(g->e, 1, &feed, copy_logits, NULL, &c));
    }
    qn_sequence_free(s);
}

static void check_greedy(golden *g, const qn_images *im)
{
    const qn_tensor_view *want = qn_test_tensor(g->st, "image.greedy", 0);
    const qn_ids prompt = qn_images_prompt(im);
    static float logits[4096];
    int32_t id = 0;
    assert_true(g->vocab <= 4096);
    qn_sequence *s = qn_test_sequence(g->e);
    qn_sequence_set_images(s, im);
    copies c = {logits, g->vocab};
    qn_feed feed = {s, prompt.ids, prompt.n_ids, QN_LOGITS_LAST};
    for (int64_t i = 0; i < want->n_elements; i++) {
        c.out = logits - (feed.n_ids - 1) * g->vocab;
        qn_test_ok(qn_engine_step(g->e, 1, &feed, copy_logits, NULL, &c));
        id = (int32_t)qn_test_argmax(logits, g->vocab);
        assert_int_equal(id, ((const int32_t *)want->data)[i]);
        feed = (qn_feed){s, &id, 1, QN_LOGITS_LAST};
    }
    qn_sequence_free(s);
}

static void test_golden(void **state)
{
    golden g = open_golden(NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT, .n_threads = 2});
    qn_images *im = see_all(&g, g.ids, g.n_ids, 1, &g.image);
    assert_int_equal(qn_images_prompt(im).n_ids, g.n_ids);
    assert_memory_equal(qn_images_prompt(im).ids, g.ids, (size_t)g.n_ids * sizeof *g.ids);
    check_positions(&g, im);
    check_features(&g, im);
    float *logits = qn_alloc_array((size_t)(g.n_ids * g.vocab), sizeof *logits);
    logits_of(&g, im, g.n_ids, logits);
    double worst = difference(logits, qn_test_tensor(g.st, "image.logits", 0), 0);
    print_message("logits: largest difference %.1e\n", worst);
    assert_true(worst <= qn_golden_tolerance("qwen2_vl"));
    check_greedy(&g, im);
    qn_free(logits);
    qn_images_free(im);
    close_golden(&g);
}

/* The logits of the image's prompt with a patch to config.json must leave the tolerance by far. */
static void check_moves(const char *patch)
{
    char dir[QN_TEST_DIR_MAX];
    golden g = open_golden(NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT, .n_threads = 2});
    qn_engine_close(g.e);
    qn_test_model_copy(qn_test_need_fixture(model), patch, NULL, dir);
    g.e = qn_test_engine(dir, NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT, .n_threads = 2});
    qn_test_model_remove(dir);
    qn_images *im = see_all(&g, g.ids, g.n_ids, 1, &g.image);
    float *logits = qn_alloc_array((size_t)(g.n_ids * g.vocab), sizeof *logits);
    logits_of(&g, im, g.n_ids, logits);
    double moved = difference(logits, qn_test_tensor(g.st, "image.logits", 0), 0);
    if (!(moved > 5 * qn_golden_tolerance("qwen2_vl"))) fail_msg("%s: moves by %.1e", patch, moved);
    qn_free(logits);
    qn_images_free(im);
    close_golden(&g);
}

/* Another number in config.json, of what images alone see, must move the logits. */
static void test_mutations(void **state)
{
    golden g = open_golden(NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT});
    const qn_vision_config v = *tower(&g);
    int64_t section[QN_ROPE_SECTIONS], sum = 0;
    char patch[128];
    int n_tried = 0;
    memcpy(section, qn_engine_config(g.e)->rope[0].mrope_section, sizeof section);
    close_golden(&g);
    for (int k = 0; k < QN_ROPE_SECTIONS; k++) sum += section[k];
    for (int k = 0; k < QN_ROPE_SECTIONS; k++) { /* nearly all pairs turn by the k-th position */
        if (section[k] == sum - 2) continue;
        snprintf(patch, sizeof patch, "{\"rope_scaling\": {\"mrope_section\": [%lld, %lld, %lld]}}",
                 (long long)(k == 0 ? sum - 2 : 1), (long long)(k == 1 ? sum - 2 : 1),
                 (long long)(k == 2 ? sum - 2 : 1));
        check_moves(patch);
        n_tried++;
    }
    assert_true(n_tried >= 2);
    check_moves("{\"vision_config\": {\"hidden_act\": \"silu\"}}");
    check_moves("{\"vision_config\": {\"hidden_act\": \"gelu\"}}");
    n_tried = 0;
    for (int64_t heads = 1; 4 * heads <= v.embed_dim; heads++) {
        if (heads == v.num_heads || v.embed_dim % (4 * heads)) continue;
        snprintf(patch, sizeof patch, "{\"vision_config\": {\"num_heads\": %lld}}", (long long)heads);
        check_moves(patch);
        n_tried++;
    }
    assert_true(n_tried >= 1);
}

/* ---- same bits ---------------------------------------------------------------------------------------- */

enum { SIDE = 300 };
static uint8_t noise[3 * SIDE * SIDE];

/* Pictures of several sizes, one of them with gaps between its rows. */
static const qn_image *several(void)
{
    static const qn_image images[] = {
        {noise, 97, 61, 3 * SIDE}, {noise + 3, 28, 200, 3 * SIDE}, {noise + 7, 290, 150, 3 * SIDE}};
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (uint8_t)qn_random_bits(5, i);
    return images;
}

/* A prompt with a place for each of n images. */
static int64_t places_for(const golden *g, size_t n, int32_t *ids)
{
    int64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        ids[at++] = 11 + (int32_t)i;
        ids[at++] = tower(g)->image_token_id;
        ids[at++] = 20;
    }
    ids[at++] = 33;
    return at;
}

static void test_same_bits(void **state)
{
    static const int64_t pieces[] = {1, 3, 7, 64};
    qn_test_need_fixture("models/qwen2_vl");
    float *want = qn_alloc_array(LOGITS_MAX, sizeof *want), *got = qn_alloc_array(LOGITS_MAX, sizeof *got);
    for (const char *const *set = qn_kernels_names(); *set; set++)
        for (int p = 0; p < 3; p++) {
            int32_t ids[16];
            size_t bytes = 0;
            for (int threads = 1; threads <= 3; threads++) {
                golden g = open_golden(
                    *set, (qn_engine_options){.precision = (qn_precision)p, .n_threads = threads});
                qn_images *im = see_all(&g, ids, places_for(&g, 3, ids), 3, several());
                int64_t n = qn_images_prompt(im).n_ids;
                assert_true(n * g.vocab <= LOGITS_MAX);
                if (threads == 1) {
                    bytes = (size_t)(n * g.vocab) * sizeof *want;
                    logits_of(&g, im, n, want);
                }
                for (size_t i = 0; i < (threads == 1 ? sizeof pieces / sizeof *pieces : 1); i++) {
                    logits_of(&g, im, threads == 1 ? pieces[i] : n, got);
                    if (memcmp(want, got, bytes) != 0)
                        fail_msg("%s, precision %d, %d threads, pieces of %lld: other bits", *set, p, threads,
                                 (long long)pieces[i]);
                }
                qn_images_free(im);
                close_golden(&g);
            }
        }
    qn_free(want);
    qn_free(got);
}

/* ---- what is refused ---------------------------------------------------------------------------------- */

static void refuse(const golden *g, size_t n, const qn_image *images, const int32_t *ids, int64_t n_ids,
                   int64_t most, qn_status status, const char *words)
{
    qn_images *im = NULL;
    qn_status got = qn_images_new(qn_engine_config(g->e), n, images, ids, n_ids, most, &im);
    if (got != status || im || !strstr(qn_last_error(), words))
        fail_msg("%s: %s (expected %s: ...%s...)", qn_status_name(got), qn_last_error(),
                 qn_status_name(status), words);
}

static void test_refused(void **state)
{
    golden g = open_golden(NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT});
    const qn_image_processor *p = &tower(&g)->processor;
    const int32_t t = tower(&g)->image_token_id;
    const int32_t one[] = {1, t, 2}, none[] = {1, 2}, two[] = {t, 5, t}, wrong[] = {1, t, t, t, 2};
    const qn_image *images = several();
    qn_image_plan plan;
    qn_image bad = g.image;
    char words[160];
    qn_test_ok(qn_image_plan_of(p, bad.width, bad.height, &plan));
    const long long n = qn_image_plan_tokens(&plan);
    refuse(&g, 1, &g.image, none, 2, 999, QN_E_ARG, "1 image(s) were given, but the prompt has places for 0");
    refuse(&g, 2, images, one, 3, 999, QN_E_ARG, "2 image(s) were given, but the prompt has places for 1");
    refuse(&g, 1, images, two, 3, 999, QN_E_ARG, "1 image(s) were given, but the prompt has places for 2");
    assert_true(n > 3);
    snprintf(words, sizeof words,
             "image 1 has %lld tokens (%lld rows of %lld), but the prompt has 3 image tokens in its place", n,
             (long long)plan.tile.token_rows, (long long)plan.tile.token_columns);
    refuse(&g, 1, &g.image, wrong, 5, 999, QN_E_ARG, words);
    snprintf(words, sizeof words, "the prompt has %lld tokens (%lld of images); the context holds %lld",
             n + 2, n, n + 1);
    refuse(&g, 1, &g.image, one, 3, n + 1, QN_E_ARG, words);
    bad.width = 0;
    snprintf(words, sizeof words, "image 1: the image is 0 x %lld pixels", (long long)bad.height);
    refuse(&g, 1, &bad, one, 3, 999, QN_E_ARG, words);
    bad.width = 1 << 20;
    refuse(&g, 1, &bad, one, 3, 999, QN_E_ARG, "a side may have 1 to 65535");
    bad = g.image;
    bad.rgb = NULL;
    refuse(&g, 1, &bad, one, 3, 999, QN_E_ARG, "image 1: the image has no pixels");
    bad = g.image;
    bad.stride_bytes = 10;
    snprintf(words, sizeof words, "stride_bytes is 10, but a row of %lld pixels has %lld",
             (long long)bad.width, (long long)(3 * bad.width));
    refuse(&g, 1, &bad, one, 3, 999, QN_E_ARG, words);
    bad = (qn_image){noise, 1, 201, 0};
    refuse(&g, 1, &bad, one, 3, 999, QN_E_ARG, "one side is more than 200 times the other");
    close_golden(&g);
}

static void test_blind(void **state)
{
    qn_engine *e =
        qn_test_engine(qn_test_need_fixture("models/llama"), NULL, (qn_engine_options){.n_threads = 1});
    qn_images *im = NULL;
    several();
    const qn_image image = {noise, 30, 30, 0};
    assert_int_equal(qn_images_new(qn_engine_config(e), 1, &image, (int32_t[]){1}, 1, 99, &im),
                     QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "the model takes no images"));
    assert_non_null(strstr(qn_last_error(), "llama"));
    qn_engine_close(e);
}

/* The sizes of the reference's smart_resize. */
static void test_grids(void **state)
{
    golden g = open_golden(NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT});
    qn_image_processor p = tower(&g)->processor;
    p.patch_size = 14;
    p.merge_size = 2;
    p.min_pixels = 56 * 56;
    p.max_pixels = 28 * 28 * 1280;
    static const struct {
        int64_t width, height, columns, rows;
    } cases[] = {{84, 56, 6, 4},       {1, 1, 4, 4},         {42, 70, 4, 4},     {70, 98, 4, 8},
                 {14, 2000, 2, 48},    {4000, 3000, 82, 60}, {640, 480, 46, 34}, {3, 600, 2, 58},
                 {1920, 1080, 94, 52}, {65535, 400, 914, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_image_plan plan;
        qn_test_ok(qn_image_plan_of(&p, cases[i].width, cases[i].height, &plan));
        const qn_image_grid grid = plan.tile;
        if (grid.columns != cases[i].columns || grid.rows != cases[i].rows)
            fail_msg("%lld x %lld: %lld x %lld patches", (long long)cases[i].width,
                     (long long)cases[i].height, (long long)grid.columns, (long long)grid.rows);
    }
    close_golden(&g);
}

static void test_out_of_memory(void **state)
{
    golden g = open_golden(NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT, .n_threads = 1});
    int32_t ids[16];
    int64_t n_ids = places_for(&g, 2, ids), blocks = qn_mem_live_blocks(), left;
    qn_status status = QN_E_NOMEM;
    for (int n = 1; n < 2000 && status != QN_OK; n++) {
        qn_images *im = NULL;
        qn_mem_fail_nth(n);
        status = qn_images_new(qn_engine_config(g.e), 2, several(), ids, n_ids, 9999, &im);
        if (status == QN_OK) status = qn_images_identify(im);
        if (status == QN_OK) status = qn_images_see(im, g.e, 0, &left);
        qn_mem_fail_nth(0);
        if (status != QN_OK && status != QN_E_NOMEM)
            fail_msg("%s: %s", qn_status_name(status), qn_last_error());
        qn_images_free(im);
        assert_int_equal(qn_mem_live_blocks(), blocks);
    }
    assert_int_equal(status, QN_OK);
    close_golden(&g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patches),   cmocka_unit_test(test_mutations),     cmocka_unit_test(test_golden),
        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_refused),       cmocka_unit_test(test_blind),
        cmocka_unit_test(test_grids),     cmocka_unit_test(test_out_of_memory),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
