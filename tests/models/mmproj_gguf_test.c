/* Models that see as GGUF files that llama.cpp's converter makes of the fixtures, the text and its vision tower: a golden picture
 * and the prompt around it to logits, where the files say all that config.json says; else those of the fixture with the fields
 * that they leave out set to what is taken for them. make test-encoders-gguf makes the files and runs this. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/machine/images.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/golden_states.h"
#include "tests/support/models/model_dir.h"

enum { PATH_BYTES = 320 };

/* All but each sixth layer slide, and the scale is that of the head's size. */
#define SLIDES "\"sliding_attention\""
#define GEMMA3                                                                                            \
    "{\"text_config\": {\"query_pre_attn_scalar\": 16, \"layer_types\": [" SLIDES ", " SLIDES ", " SLIDES \
    ", " SLIDES ", " SLIDES "]}}"

/* What is taken for fields that the files have no keys for; NULL: they say all. */
typedef struct {
    const char *kind, *patch;
    int rounded; /* 1: 16 bits do not hold the converter's numbers exactly: it adds the weights of both times */
} converted;

typedef struct {
    qn_safetensors *st;
    const int32_t *ids;
    int64_t n_ids, vocab;
} golden;

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

static qn_engine *open_engine(const char *path, const char *mmproj)
{
    static const qn_engine_options exact = {.precision = QN_PRECISION_EXACT, .n_threads = 2};
    const qn_source_options options = {.mmproj = mmproj, .sees = !mmproj};
    qn_source *source;
    qn_model_config config;
    qn_engine *e;
    qn_buf notes = {0};
    qn_test_ok(qn_source_open(path, &options, &source));
    qn_test_ok(qn_config_read_changed(source, NULL, &notes, &config));
    if (notes.length) print_message("%s", notes.data);
    qn_buf_free(&notes);
    qn_test_ok(qn_engine_open(source, &config, &exact, &e));
    qn_config_free(&config);
    qn_source_close(source);
    return e;
}

/* Logits of all tokens of the golden prompt; qn_free. Closes the engine. */
static float *logits_of(golden *g, qn_engine *e)
{
    const qn_tensor_view *rgb = qn_safetensors_find(g->st, "image.rgb");
    const qn_image image = {rgb->data, rgb->shape[1], rgb->shape[0], 0};
    qn_images *im;
    int64_t left = 1;
    g->vocab = qn_engine_config(e)->vocab_size;
    qn_test_ok(qn_images_new(qn_engine_config(e), 1, &image, g->ids, g->n_ids, 1 << 20, &im));
    while (left) qn_test_ok(qn_images_see(im, e, 0, &left));
    assert_int_equal(qn_images_prompt(im).n_ids, g->n_ids);
    assert_memory_equal(qn_images_prompt(im).ids, g->ids, (size_t)g->n_ids * sizeof *g->ids);
    float *logits = qn_alloc_array((size_t)(g->n_ids * g->vocab), sizeof *logits);
    assert_non_null(logits);
    copies c = {logits, g->vocab};
    qn_sequence *s = qn_test_sequence(e);
    qn_feed feed = {s, g->ids, g->n_ids, QN_LOGITS_ALL};
    qn_sequence_set_images(s, im);
    qn_test_ok(qn_engine_step(e, 1, &feed, copy_logits, NULL, &c));
    qn_sequence_free(s);
    qn_images_free(im);
    qn_engine_close(e);
    return logits;
}

/* The positions whose logits are stored: all, where the fixture names none. */
static double from_fixture(const golden *g, const float *logits)
{
    const qn_tensor_view *want = qn_test_tensor(g->st, "image.logits", 0),
                         *at = qn_safetensors_find(g->st, "image.positions");
    double worst = 0;
    for (int64_t i = 0; i < want->n_elements; i++) {
        const int64_t row = at ? ((const int32_t *)at->data)[i / g->vocab] : i / g->vocab;
        const double d =
            fabs((double)logits[row * g->vocab + i % g->vocab] - (double)((const float *)want->data)[i]);
        worst = fmax(worst, d == d ? d : INFINITY);
    }
    return worst;
}

static double from_changed(golden *g, const converted *c, const float *logits)
{
    char dir[QN_TEST_DIR_MAX], path[128];
    double worst = 0;
    snprintf(path, sizeof path, "models/%s", c->kind);
    qn_test_model_copy(qn_test_need_fixture(path), c->patch, NULL, dir);
    float *want = logits_of(g, open_engine(dir, NULL));
    for (int64_t i = 0; i < g->n_ids * g->vocab; i++) {
        const double d = fabs((double)logits[i] - (double)want[i]);
        worst = fmax(worst, d == d ? d : INFINITY);
    }
    qn_free(want);
    qn_test_model_remove(dir);
    return worst;
}

/* With the tower of 16 bits, which lies beside the text and is found, and with that of 32, which is named. */
static void check(void **state)
{
    const converted *c = *state;
    const char *kind = c->kind;
    char path[128], text[PATH_BYTES], tower[PATH_BYTES];
    golden g;
    snprintf(path, sizeof path, "models/%s/expected.safetensors", kind);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &g.st));
    g.ids = qn_test_tensor(g.st, "image.ids", 0)->data;
    g.n_ids = qn_test_tensor(g.st, "image.ids", 0)->n_elements;
    snprintf(path, sizeof path, "gguf/towers/%s/%s.gguf", kind, kind);
    snprintf(text, sizeof text, "%s", qn_test_need_fixture(path));
    snprintf(path, sizeof path, "gguf/towers/%s/mmproj-%s-f32.gguf", kind, kind);
    snprintf(tower, sizeof tower, "%s", qn_test_need_fixture(path));
    for (int i = 1; i >= 0; i--) {
        float *logits = logits_of(&g, open_engine(text, i ? tower : NULL));
        const double worst = c->patch ? from_changed(&g, c, logits) : from_fixture(&g, logits);
        print_message("%s, tower of %d bits: logits of the picture %.1e\n", kind, i ? 32 : 16, worst);
        assert_true(worst <= (i || !c->rounded ? qn_golden_tolerance(kind) : 1e-2));
        qn_free(logits);
    }
    qn_safetensors_close(g.st);
}

int main(void)
{
    static converted kinds[] = {
        {"qwen2_vl", NULL, 0},
        {"qwen3_vl", NULL, 0},
        {"qwen3_vl_moe", NULL, 0},
        {"qwen2_5_vl", "{\"vision_config\": {\"window_size\": 112}}", 0},
        {"qwen3_5_vision", NULL, 0},
        {"qwen3_5_moe_vision", NULL, 0},
        {"gemma3_vision", GEMMA3, 0},
        {"mistral3", NULL, 0},
        {"smolvlm", NULL, 0},
        {"internvl", NULL, 0},
        {"lfm2_vl", NULL, 0},
        {"llama4", "{\"text_config\": {\"attention_chunk_size\": 8192, \"floor_scale\": 8192}}", 0},
        {"gemma4_vision", "{\"text_config\": {\"use_bidirectional_attention\": null}}", 0},
        {"gemma4_unified", NULL, 0},
        {"muse_glimmer", "{\"vision_config\": {\"layer_types\": null}}", 1},
        {"glm5_next", NULL, 0},
        {"qwen4_exp", NULL, 0}};
    enum { N = sizeof kinds / sizeof *kinds };
    static struct CMUnitTest tests[N];
    for (int i = 0; i < N; i++) tests[i] = (struct CMUnitTest){kinds[i].kind, check, NULL, NULL, &kinds[i]};
    return _cmocka_run_group_tests("vision towers gguf", tests, N, NULL, NULL);
}
