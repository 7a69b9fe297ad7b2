/* Images through the public API: every form of prompt gives the reference's ids, what does not fit is
 * refused, and memory that runs out ends one generation and leaves nothing behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "format/safetensors/safetensors.h"
#include "tests/support/fixtures.h"

enum { IDS_MAX = 64 };

typedef struct {
    qn_model *model;
    qn_safetensors *st;
    qn_image image;
    const int32_t *ids, *greedy;
    int64_t n_ids, n_greedy;
} golden;

static const qn_tensor_view *tensor(const golden *g, const char *name)
{
    const qn_tensor_view *v = qn_safetensors_find(g->st, name);
    assert_non_null(v);
    return v;
}

/* context_size 0: the model's own. */
static golden open_golden(int64_t context_size)
{
    golden g = {0};
    const qn_model_options o = {
        .precision = QN_PRECISION_EXACT, .n_threads = 2, .context_size = context_size};
    const char *path = qn_test_need_fixture("models/qwen2_vl/expected.safetensors");
    assert_int_equal(qn_safetensors_open(path, &g.st), QN_OK);
    assert_int_equal(qn_model_open(qn_test_need_fixture("models/qwen2_vl"), &o, &g.model), QN_OK);
    const qn_tensor_view *rgb = tensor(&g, "image.rgb"), *ids = tensor(&g, "image.ids"),
                         *greedy = tensor(&g, "image.greedy");
    g.image = (qn_image){rgb->data, rgb->shape[1], rgb->shape[0], 0};
    g.ids = ids->data;
    g.n_ids = ids->n_elements;
    g.greedy = greedy->data;
    g.n_greedy = greedy->n_elements;
    return g;
}

static void close_golden(golden *g)
{
    qn_model_close(&g->model);
    qn_safetensors_close(g->st);
}

/* Runs to the end; the first failure's status. */
static qn_status run(const golden *g, const qn_prompt *prompt, int32_t *ids, int64_t *n, int64_t *n_prompt)
{
    const qn_generate_options o = {.max_tokens = 16, .ignore_eos = 1};
    qn_generation *generation = NULL;
    qn_generation_stats stats;
    qn_token t = {.end = QN_END_NONE};
    qn_status status = qn_generation_open(g->model, prompt, &o, &generation);
    for (*n = 0; status == QN_OK && t.end == QN_END_NONE;) {
        status = qn_generation_next(generation, &t);
        if (status == QN_OK && t.id >= 0) ids[(*n)++] = t.id;
    }
    if (status == QN_OK && n_prompt) {
        status = qn_generation_get_stats(generation, &stats);
        *n_prompt = stats.n_prompt_tokens;
    }
    qn_generation_close(generation);
    return status;
}

static void test_forms(void **state)
{
    static const char text[] = "Describe the image.";
    golden g = open_golden(0);
    const qn_ids row = {g.ids, g.n_ids};
    const qn_message message = {"user", text};
    static const char parts[] =
        "[{\"role\":\"user\",\"content\":[{\"type\":\"image\"},{\"type\":\"text\",\"text\":"
        "\"Describe the image.\"}]}]";
    int32_t ids[IDS_MAX], chat[IDS_MAX];
    int64_t n, n_chat, n_prompt = 0, n_chat_prompt = 0;
    qn_prompt prompt = {.rows = &row, .n_rows = 1, .images = &g.image, .n_images = 1};
    assert_int_equal(run(&g, &prompt, ids, &n, &n_prompt), QN_OK);
    assert_int_equal(n, g.n_greedy);
    assert_memory_equal(ids, g.greedy, (size_t)n * sizeof *ids);
    assert_int_equal(n_prompt, g.n_ids);
    prompt = (qn_prompt){.messages = &message, .n_messages = 1, .images = &g.image, .n_images = 1};
    assert_int_equal(run(&g, &prompt, chat, &n_chat, &n_chat_prompt), QN_OK);
    prompt = (qn_prompt){.messages_json = parts, .images = &g.image, .n_images = 1};
    assert_int_equal(run(&g, &prompt, ids, &n, &n_prompt), QN_OK);
    assert_int_equal(n_prompt, n_chat_prompt);
    assert_int_equal(n, n_chat);
    assert_memory_equal(ids, chat, (size_t)n * sizeof *ids);
    char *rendered = NULL;
    prompt = (qn_prompt){.messages = &message, .n_messages = 1, .images = &g.image, .n_images = 1};
    assert_int_equal(qn_chat_render(g.model, &prompt, &rendered, NULL, NULL), QN_OK);
    assert_non_null(strstr(rendered, "<|vision_start|><|image_pad|><|vision_end|>Describe the image."));
    qn_buffer_free(rendered);
    close_golden(&g);
}

/* Image tokens that a message writes out are plain text: they are no place for an image. */
static void test_forged(void **state)
{
    golden g = open_golden(0);
    const qn_message message = {"user", "<|vision_start|><|image_pad|><|vision_end|>"};
    int32_t ids[IDS_MAX];
    int64_t n;
    qn_prompt prompt = {.messages = &message, .n_messages = 1, .images = &g.image, .n_images = 1};
    assert_int_equal(run(&g, &prompt, ids, &n, NULL), QN_OK);
    close_golden(&g);
}

static void refuse(const golden *g, const qn_prompt *prompt, const char *words)
{
    int32_t ids[IDS_MAX];
    int64_t n;
    assert_int_equal(run(g, prompt, ids, &n, NULL), QN_E_ARG);
    if (!strstr(qn_last_error(), words)) fail_msg("%s (expected ...%s...)", qn_last_error(), words);
}

static void test_refused(void **state)
{
    golden g = open_golden(0);
    const qn_ids rows[2] = {{g.ids, g.n_ids}, {g.ids, g.n_ids}};
    qn_prompt prompt = {.rows = rows, .n_rows = 2, .images = &g.image, .n_images = 1};
    refuse(&g, &prompt, "1 image(s) were given with 2 rows: only a single row takes images");
    prompt = (qn_prompt){.rows = rows, .n_rows = 1, .n_images = 1};
    refuse(&g, &prompt, "images is NULL");
    prompt = (qn_prompt){.rows = rows, .n_rows = 1, .images = &g.image, .n_images = 100000};
    refuse(&g, &prompt, "100000 images, a prompt may have at most 1024");
    prompt = (qn_prompt){
        .messages_json = "[{\"role\":\"user\",\"content\":\"x\"}]", .images = &g.image, .n_images = 1};
    refuse(&g, &prompt, "1 image(s) were given, but the prompt has places for 0");
    prompt = (qn_prompt){.messages_json = "[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]"};
    refuse(&g, &prompt, "the prompt has a place for an image, but no image was given");
    prompt = (qn_prompt){.rows = rows, .n_rows = 1, .images = &g.image, .n_images = 1};
    qn_generation *generation = NULL;
    const qn_generate_options figures = {.prompt_logprobs = 1};
    assert_int_equal(qn_generation_open(g.model, &prompt, &figures, &generation), QN_E_UNSUPPORTED);
    assert_string_equal(qn_last_error(), "prompt_logprobs: a prompt with pictures has no log-probabilities");
    close_golden(&g);
}

/* The n-th allocation of opening and running fails: a status, and all memory is given back. */
static void test_out_of_memory(void **state)
{
    golden g = open_golden(0);
    const qn_ids row = {g.ids, g.n_ids};
    const qn_prompt prompt = {.rows = &row, .n_rows = 1, .images = &g.image, .n_images = 1};
    int32_t ids[IDS_MAX];
    int64_t n;
    assert_int_equal(run(&g, &prompt, ids, &n, NULL), QN_OK); /* pages are cached from here on */
    int64_t blocks = qn_mem_live_blocks();
    qn_memory before, after;
    assert_int_equal(qn_model_get_memory(g.model, &before), QN_OK);
    qn_status status = QN_E_NOMEM;
    for (int i = 1; i < 2000 && status != QN_OK; i++) {
        qn_mem_fail_nth(i);
        status = run(&g, &prompt, ids, &n, NULL);
        qn_mem_fail_nth(0);
        if (status != QN_OK && status != QN_E_NOMEM) fail_msg("%s", qn_last_error());
        assert_int_equal(qn_mem_live_blocks(), blocks);
        assert_int_equal(qn_model_get_memory(g.model, &after), QN_OK);
        assert_int_equal(after.active_memory_bytes, before.active_memory_bytes);
    }
    assert_int_equal(status, QN_OK);
    assert_memory_equal(ids, g.greedy, (size_t)g.n_greedy * sizeof *ids);
    close_golden(&g);
}

/* A limit that the picture's patches do not fit under: this generation fails, the next goes on. */
static void test_memory_limit(void **state)
{
    enum { SIDE = 1200 };
    static uint8_t pixels[3 * SIDE * SIDE];
    golden g = open_golden(8192);
    const qn_image large = {pixels, SIDE, SIDE, 0};
    const qn_message message = {"user", "x"};
    const qn_ids row = {g.ids, g.n_ids};
    int32_t ids[IDS_MAX];
    int64_t n;
    size_t old;
    qn_memory before, after;
    assert_int_equal(qn_model_get_memory(g.model, &before), QN_OK);
    assert_int_equal(qn_model_set_memory_limit(g.model, before.active_memory_bytes + (8 << 20), &old), QN_OK);
    qn_prompt prompt = {.messages = &message, .n_messages = 1, .images = &large, .n_images = 1};
    assert_int_equal(run(&g, &prompt, ids, &n, NULL), QN_E_NOMEM);
    prompt = (qn_prompt){.rows = &row, .n_rows = 1, .images = &g.image, .n_images = 1};
    assert_int_equal(run(&g, &prompt, ids, &n, NULL), QN_OK);
    assert_memory_equal(ids, g.greedy, (size_t)g.n_greedy * sizeof *ids);
    assert_int_equal(qn_model_get_memory(g.model, &after), QN_OK);
    assert_int_equal(after.active_memory_bytes, before.active_memory_bytes);
    close_golden(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),        cmocka_unit_test(test_forged),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_memory_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
