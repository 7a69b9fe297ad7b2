/* Further families as files that llama.cpp's converter makes of the fixtures: golden logits, where the file says all that
 * config.json says; else those of the fixture with the fields that it leaves out set to what it takes for them. The files are
 * too large for tests/golden: make test-encoders-gguf makes them and runs this. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/golden_states.h"
#include "tests/support/models/model_dir.h"

static const qn_engine_options exact = {.precision = QN_PRECISION_EXACT, .n_threads = 2};

/* All but each sixth layer slide, and the scale is that of the head's size. */
#define SLIDES "\"sliding_attention\""
#define GEMMA3                                                                                            \
    "{\"text_config\": {\"query_pre_attn_scalar\": 16, \"layer_types\": [" SLIDES ", " SLIDES ", " SLIDES \
    ", " SLIDES ", " SLIDES "]}}"

/* What the file takes for fields that it has no keys for: NULL says all. */
typedef struct {
    const char *kind, *patch;
} converted;

/* The largest difference between the rows of both, of the fixture's prompts. */
static double differ(const char *kind, const char *patch, qn_engine *e, const qn_safetensors *st)
{
    char dir[QN_TEST_DIR_MAX], path[128];
    double worst = 0;
    snprintf(path, sizeof path, "models/%s", kind);
    qn_test_model_copy(qn_test_need_fixture(path), patch, NULL, dir);
    qn_engine *from = qn_test_engine(dir, NULL, exact);
    const int64_t width = qn_engine_config(e)->vocab_size;
    for (int i = 0; i < 5; i++) {
        const qn_tensor_view *ids = qn_test_tensor(st, "prompt%d.ids", i);
        const int64_t n = ids->n_elements;
        float *a = qn_alloc_array((size_t)(2 * n * width), sizeof *a), *b = a + n * width;
        assert_non_null(a);
        qn_test_logits(from, ids->data, n, n, a);
        qn_test_logits(e, ids->data, n, n, b);
        for (int64_t k = 0; k < n * width; k++) {
            const double d = fabs((double)a[k] - (double)b[k]);
            if (!(d <= worst)) worst = d;
        }
        qn_free(a);
    }
    qn_engine_close(from);
    qn_test_model_remove(dir);
    return worst;
}

static void check(void **state)
{
    const converted *c = *state;
    const char *kind = c->kind;
    char path[128];
    qn_safetensors *st;
    double worst = 0;
    snprintf(path, sizeof path, "models/%s/expected.safetensors", kind);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    snprintf(path, sizeof path, "gguf/%s.gguf", kind);
    qn_engine *e = qn_test_engine(qn_test_need_fixture(path), NULL, exact);
    if (c->patch) worst = differ(kind, c->patch, e, st);
    for (int i = 0; i < 5 && !c->patch; i++) {
        const double d = qn_golden_logits(e, st, i, NULL);
        if (!(d <= worst)) worst = d;
    }
    print_message("%s: logits %.1e\n", kind, worst);
    assert_true(worst <= qn_golden_tolerance(kind));
    qn_engine_close(e);
    qn_safetensors_close(st);
}

int main(void)
{
    static converted kinds[] = {
        {"lfm2", NULL},
        {"lfm2_moe", "{\"routed_scaling_factor\": 1.0}"},
        {"granitemoehybrid", "{\"position_embedding_type\": \"nope\"}"},
        {"nemotron_h", NULL},
        {"falcon_h1", NULL},
        {"kimi_linear", NULL},
        {"qwen3_next", NULL},
        {"glm5_next", NULL},
        {"qwen4_exp", NULL},
        {"qwen3_5_vision", NULL},
        {"qwen3_5_moe_vision", NULL},
        {"qwen2_5_vl", NULL},
        {"qwen3_vl", NULL},
        {"qwen3_vl_moe", NULL},
        {"llama4", "{\"text_config\": {\"attention_chunk_size\": 8192, \"floor_scale\": 8192}}"},
        {"mistral3", NULL},
        {"muse_glimmer", NULL},
        {"smolvlm", NULL},
        {"internvl", NULL},
        {"lfm2_vl", NULL},
        {"gemma3_vision", GEMMA3},
        {"gemma4_unified", NULL},
        {"gemma4_vision", NULL}};
    enum { N = sizeof kinds / sizeof *kinds };
    static struct CMUnitTest tests[N];
    for (int i = 0; i < N; i++) tests[i] = (struct CMUnitTest){kinds[i].kind, check, NULL, NULL, &kinds[i]};
    return _cmocka_run_group_tests("families gguf", tests, N, NULL, NULL);
}
