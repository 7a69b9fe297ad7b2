/* Models that see: from a golden picture and the prompt around it to logits and greedy tokens, for every kind that has
 * a tower; the same with the config.json of older files, and with two pictures; the same bits whatever the chunks (on
 * MLX, whose sums depend on the batch: the same numbers). On the device that QN_TEST_DEVICE names, else on the CPU. */
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
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/golden_states.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/models/seen_picture.h"

enum { VOCAB_MAX = 2048, IDS_MAX = 512 };

static const char *const kinds[] = {
    "qwen2_vl",       "qwen2_5_vl", "qwen3_vl",     "qwen3_vl_moe", "qwen3_5_vision", "qwen3_5_moe_vision",
    "gemma3_vision",  "smolvlm",    "lfm2_vl",      "internvl",     "mistral3",       "gemma4_vision",
    "gemma4_unified", "llama4",     "muse_glimmer", "glm5_next",    "qwen4_exp"};

typedef struct {
    qn_engine *e;
    qn_test_picture picture;
    qn_safetensors *made; /* what the reference makes of it */
    int64_t vocab;
} golden;

static const char *device_name(void)
{
    const char *name = getenv("QN_TEST_DEVICE");
    return name && *name ? name : "cpu";
}

static golden open_golden(const char *kind, const char *dir, qn_engine_options o)
{
    golden g = {0};
    o.device = device_name();
    g.made = qn_golden_picture(kind);
    g.e = qn_test_engine(dir, NULL, o);
    g.picture = qn_test_picture_open(g.e, kind);
    g.vocab = qn_engine_config(g.e)->vocab_size;
    assert_true(g.vocab <= VOCAB_MAX && g.picture.n_ids <= IDS_MAX);
    return g;
}

static void close_golden(golden *g)
{
    qn_test_picture_close(&g->picture);
    qn_engine_close(g->e);
    qn_safetensors_close(g->made);
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

/* Logits of all tokens of the prompt. */
static void logits_of(golden *g, float *out)
{
    qn_sequence *s = qn_test_picture_sequence(g->e, &g->picture);
    copies c = {out, g->vocab};
    qn_feed feed = {s, g->picture.ids, g->picture.n_ids, QN_LOGITS_ALL};
    qn_test_ok(qn_engine_step(g->e, 1, &feed, copy_logits, NULL, &c));
    qn_sequence_free(s);
}

/* The positions whose logits are stored: all, where the fixture names none. */
static double difference(const golden *g, const float *logits)
{
    const qn_tensor_view *want = qn_test_tensor(g->made, "image.logits", 0),
                         *at = qn_safetensors_find(g->made, "image.positions");
    double worst = 0;
    for (int64_t i = 0; i < want->n_elements; i++) {
        const int64_t row = at ? ((const int32_t *)at->data)[i / g->vocab] : i / g->vocab;
        const double d =
            fabs((double)logits[row * g->vocab + i % g->vocab] - (double)((const float *)want->data)[i]);
        worst = fmax(worst, d == d ? d : INFINITY);
    }
    return worst;
}

/* n logits that steps of other rows gave. */
static void check_same(const char *kind, const char *what, int64_t n, const float *got, const float *want)
{
    double worst = 0;
    if (strcmp(device_name(), "mlx") != 0) {
        if (memcmp(got, want, (size_t)n * sizeof *got) != 0) fail_msg("%s: other bits %s", kind, what);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const double d = fabs((double)got[i] - (double)want[i]);
        worst = fmax(worst, d == d ? d : INFINITY);
    }
    if (!(worst <= qn_golden_tolerance(kind))) fail_msg("%s: other logits %s: %.1e", kind, what, worst);
}

static void check_greedy(golden *g, const char *kind)
{
    static float logits[IDS_MAX * VOCAB_MAX];
    const qn_tensor_view *want = qn_test_tensor(g->made, "image.greedy", 0);
    qn_sequence *s = qn_test_picture_sequence(g->e, &g->picture);
    qn_feed feed = {s, g->picture.ids, g->picture.n_ids, QN_LOGITS_LAST};
    int32_t id = 0;
    for (int64_t i = 0; i < want->n_elements; i++) {
        copies c = {logits, g->vocab};
        qn_test_ok(qn_engine_step(g->e, 1, &feed, copy_logits, NULL, &c));
        id = (int32_t)qn_test_argmax(logits + (feed.n_ids - 1) * g->vocab, g->vocab);
        if (id != ((const int32_t *)want->data)[i])
            fail_msg("%s: greedy token %lld is %d, expected %d", kind, (long long)i, (int)id,
                     (int)((const int32_t *)want->data)[i]);
        feed = (qn_feed){s, &id, 1, QN_LOGITS_LAST};
    }
    qn_sequence_free(s);
}

static void check(const char *kind, const char *dir, const char *words)
{
    golden g = open_golden(kind, dir, (qn_engine_options){.precision = QN_PRECISION_EXACT, .n_threads = 2});
    float *logits = qn_alloc_array((size_t)(g.picture.n_ids * g.vocab), sizeof *logits);
    logits_of(&g, logits);
    const double worst = difference(&g, logits);
    print_message("%s%s: largest difference of logits %.1e\n", kind, words, worst);
    if (!(worst <= qn_golden_tolerance(kind))) fail_msg("%s%s: %.1e", kind, words, worst);
    check_greedy(&g, kind);
    qn_free(logits);
    close_golden(&g);
}

static void test_golden(void **state)
{
    char path[128];
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        snprintf(path, sizeof path, "models/%s", kinds[i]);
        check(kinds[i], qn_test_need_fixture(path), "");
    }
}

/* Older files spell config.json otherwise. */
static void test_older_config(void **state)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char path[128], from[QN_TEST_DIR_MAX], dir[QN_TEST_DIR_MAX], config[QN_TEST_DIR_MAX + 16];
        snprintf(path, sizeof path, "models/%s/config.hub.json", kinds[i]);
        const char *older = qn_test_fixture(path);
        if (!older) continue;
        snprintf(from, sizeof from, "%.*s", (int)(strrchr(older, '/') - older), older);
        qn_test_model_copy(from, NULL, NULL, dir);
        json_t *object = json_load_file(older, 0, NULL);
        assert_non_null(object);
        snprintf(config, sizeof config, "%s/config.json", dir);
        assert_int_equal(json_dump_file(object, config, 0), 0);
        json_decref(object);
        check(kinds[i], dir, " (older config.json)");
        qn_test_model_remove(dir);
    }
}

/* The golden prompt twice; the second picture is the first one turned by half a circle. */
static void check_several(const char *kind, json_t *want)
{
    static float logits[2 * IDS_MAX * VOCAB_MAX], alone[IDS_MAX * VOCAB_MAX];
    static int32_t ids[2 * IDS_MAX];
    char path[128];
    int64_t left = 1;
    snprintf(path, sizeof path, "models/%s", kind);
    golden g = open_golden(kind, qn_test_need_fixture(path),
                           (qn_engine_options){.precision = QN_PRECISION_EXACT, .n_threads = 2});
    const qn_tensor_view *rgb = qn_safetensors_find(g.picture.st, "image.rgb");
    const int64_t n = g.picture.n_ids, n_pixels = rgb->n_elements / 3;
    uint8_t *turned = qn_alloc((size_t)rgb->n_elements);
    for (int64_t i = 0; i < n_pixels; i++)
        memcpy(turned + 3 * i, (const uint8_t *)rgb->data + 3 * (n_pixels - 1 - i), 3);
    const qn_image images[] = {{rgb->data, rgb->shape[1], rgb->shape[0], 0},
                               {turned, rgb->shape[1], rgb->shape[0], 0}};
    logits_of(&g, alone);
    memcpy(ids, g.picture.ids, (size_t)n * sizeof *ids);
    memcpy(ids + n, g.picture.ids, (size_t)n * sizeof *ids);
    qn_images_free(g.picture.im);
    qn_test_ok(qn_images_new(qn_engine_config(g.e), 2, images, ids, 2 * n, 1 << 20, &g.picture.im));
    while (left) qn_test_ok(qn_images_see(g.picture.im, g.e, 0, &left));
    g.picture.ids = ids;
    g.picture.n_ids = 2 * n;
    logits_of(&g, logits);
    check_same(kind, "before another picture", n * g.vocab, logits, alone);
    const json_t *at = json_object_get(want, "at"), *values = json_object_get(want, "logits");
    double worst = 0;
    for (size_t i = 0; i < json_array_size(at); i++) {
        const int64_t id = json_integer_value(json_array_get(at, i));
        const double d =
            fabs((double)logits[(2 * n - 1) * g.vocab + id] - json_number_value(json_array_get(values, i)));
        worst = fmax(worst, d == d ? d : INFINITY);
    }
    print_message("%s, two pictures: largest difference of logits %.1e\n", kind, worst);
    if (!(worst <= qn_golden_tolerance(kind))) fail_msg("%s, two pictures: %.1e", kind, worst);
    qn_free(turned);
    close_golden(&g);
}

static void test_several(void **state)
{
    char path[128];
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        snprintf(path, sizeof path, "models/%s", kinds[i]);
        qn_test_need_fixture(path);
    }
    json_t *cases = json_load_file(qn_test_need_fixture("images/several.json"), 0, NULL), *want;
    const char *kind;
    size_t n = 0;
    assert_non_null(cases);
    json_object_foreach(cases, kind, want)
    {
        check_several(kind, want);
        n++;
    }
    assert_true(n >= 14);
    json_decref(cases);
}

/* Chunks of a step are at most so many rows; a picture whose tokens see each other is one as a whole. */
static void test_chunks(void **state)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char path[128];
        snprintf(path, sizeof path, "models/%s", kinds[i]);
        const char *dir = qn_test_need_fixture(path);
        /* `high` of MLX has 16 bits on a GPU. */
        const qn_precision precision = strcmp(device_name(), "mlx") ? QN_PRECISION_HIGH : QN_PRECISION_EXACT;
        golden g = open_golden(kinds[i], dir, (qn_engine_options){.precision = precision});
        const int64_t n = g.picture.n_ids * g.vocab;
        float *want = qn_alloc_array((size_t)n, sizeof *want), *got = qn_alloc_array((size_t)n, sizeof *got);
        logits_of(&g, want);
        const int is_whole = qn_engine_config(g.e)->vision.seen != QN_VISION_SEEN_BEFORE;
        close_golden(&g);
        g = open_golden(kinds[i], dir,
                        (qn_engine_options){.precision = precision, .max_rows = is_whole ? 64 : 5});
        logits_of(&g, got);
        check_same(kinds[i], "in other chunks", n, got, want);
        close_golden(&g);
        qn_free(want);
        qn_free(got);
    }
}

/* A step that ends between two tokens that see each other cannot be computed. */
static void test_cut(void **state)
{
    golden g = open_golden("gemma3_vision", qn_test_need_fixture("models/gemma3_vision"),
                           (qn_engine_options){.precision = QN_PRECISION_EXACT});
    const int32_t token = qn_engine_config(g.e)->vision.image_token_id;
    int64_t first = 0;
    while (g.picture.ids[first] != token) first++;
    qn_sequence *s = qn_test_picture_sequence(g.e, &g.picture);
    const qn_feed feed = {s, g.picture.ids, first + 1, QN_LOGITS_NONE};
    assert_int_equal(qn_engine_step(g.e, 1, &feed, NULL, NULL, NULL), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "tokens of images stand in a row"));
    qn_sequence_free(s);
    close_golden(&g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_older_config),
                                       cmocka_unit_test(test_chunks), cmocka_unit_test(test_cut),
                                       cmocka_unit_test(test_several)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
