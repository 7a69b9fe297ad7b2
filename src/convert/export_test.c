/* Models of safetensors as GGUF files: logits are those of the folder for every family that has a form there,
 * with an adapter too, and for quantised types near them; tokenizers cut text as before; types are those
 * asked for; what GGUF cannot say is refused by name; and nothing is left of what failed. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <quern/adapter.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/mem.h"
#include "base/random.h"
#include "format/gguf/gguf.h"
#include "format/source/source.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"
#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer_source.h"

enum { N_IDS = 24 };

/* Greatest difference of logits between two models, over some random tokens. */
static double difference(const char *a, const char *b)
{
    const char *const paths[] = {a, b};
    float *logits[2];
    int64_t n = 0;
    double worst = 0;
    for (int k = 0; k < 2; k++) {
        int32_t ids[N_IDS];
        qn_engine *e = qn_test_engine(
            paths[k], NULL,
            (qn_engine_options){.precision = QN_PRECISION_EXACT, .max_rows = 64, .n_threads = 2});
        n = qn_engine_config(e)->vocab_size;
        for (int i = 0; i < N_IDS; i++) ids[i] = (int32_t)(qn_random_bits(3, (uint64_t)i) % (uint64_t)n);
        n *= N_IDS;
        logits[k] = qn_alloc_array((size_t)n, sizeof(float));
        qn_test_logits(e, ids, N_IDS, 0, logits[k]);
        qn_engine_close(e);
    }
    for (int64_t i = 0; i < n; i++) {
        const double d = fabs((double)logits[0][i] - (double)logits[1][i]);
        if (!(d <= worst)) worst = d;
    }
    qn_free(logits[0]);
    qn_free(logits[1]);
    return worst;
}

/* ---- families ------------------------------------------------------------------------------------------ */

static const char *const families[] = {"models/llama",
                                       "models/llama_rope3_tied",
                                       "models/llama_head_dim",
                                       "models/qwen2",
                                       "models/qwen2_yarn",
                                       "models/qwen3",
                                       "models/qwen3_tied",
                                       "models/qwen3_moe",
                                       "models/gemma",
                                       "models/gemma2",
                                       "models/gemma3",
                                       "models/gemma3_text",
                                       "models/gemma4",
                                       "models/gemma4_text",
                                       "models/gemma4_moe",
                                       "models/gemma4_k_eq_v",
                                       "models/phi3",
                                       "models/phi3_longrope",
                                       "models/olmo2",
                                       "models/smollm3",
                                       "models/mixtral",
                                       "models/gpt_oss",
                                       "models/seed_oss",
                                       "models/glm4_moe",
                                       "models/minimax_m2",
                                       "models/olmo3",
                                       "models/exaone4",
                                       "models/ministral3",
                                       "models/glm4",
                                       "models/hunyuan_v1_dense",
                                       "models/apertus",
                                       "models/starcoder2",
                                       "models/phi2",
                                       "models/cohere2",
                                       "models/lfm2",
                                       "models/lfm2_moe",
                                       "models/granitemoehybrid",
                                       "models/nemotron_h",
                                       "models/qwen3_5",
                                       "models/qwen3_5_vision",
                                       "models/qwen3_5_moe_vision",
                                       "models/qwen3_next",
                                       "models/deepseek_v3",
                                       "models/deepseek_v2",
                                       "models/glm4_moe_lite",
                                       "models/falcon_h1",
                                       "models/kimi_linear"};

static void same_logits(void **state)
{
    const char *scratch = qn_test_scratch(), *out = qn_test_path(scratch, "m.gguf");
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const char *base = i ? qn_test_fixture(families[i]) : qn_test_need_fixture(families[i]);
        qn_fuse_result result;
        if (!base) continue;
        qn_test_ok(qn_model_fuse(base, NULL, out, &(qn_fuse_options){.type = "f32"}, &result));
        const double worst = difference(base, out);
        if (!(worst <= 1e-4)) fail_msg("%s: logits differ by %g", families[i], worst);
        assert_int_equal(result.n_merged, 0);
        assert_int_equal(qn_test_count_files(scratch), 1);
        remove(out);
    }
    qn_test_remove(scratch);
}

static void other_types(void **state)
{
    static const struct {
        const char *type;
        double tolerance;
    } types[] = {{"f16", 0.05}, {"bf16", 0.5}, {"q8_0", 0.5}, {"q6_k", 1.5},
                 {"q5_1", 4},   {"q4_k", 9},   {"mxfp4", 12}};
    const char *scratch = qn_test_scratch(), *out = qn_test_path(scratch, "m.gguf"),
               *base = qn_test_need_fixture("models/llama");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        qn_gguf *g;
        qn_test_ok(qn_model_fuse(base, NULL, out,
                                 &(qn_fuse_options){.type = types[i].type, .embedding_type = "f16"}, NULL));
        const double worst = difference(base, out);
        printf("%s: logits within %.2g\n", types[i].type, worst);
        if (!(worst <= types[i].tolerance)) fail_msg("%s: logits differ by %g", types[i].type, worst);
        qn_test_ok(qn_gguf_open(out, &g));
        for (int64_t k = 0; k < qn_gguf_count(g); k++) {
            const qn_tensor_view *v = qn_gguf_get(g, k);
            const int is_embedding =
                strcmp(v->name, "token_embd.weight") == 0 || strcmp(v->name, "output.weight") == 0;
            if (v->n_dims == 1) assert_int_equal(v->dtype, QN_DTYPE_F32);
            if (is_embedding) assert_int_equal(v->dtype, QN_DTYPE_F16);
            if (v->n_dims == 1 || is_embedding) continue;
            const char *name = types[i].type;
            if (v->shape[1] % 256)
                name = strcmp(name, "q4_k") == 0 ? "q5_0" : strcmp(name, "q6_k") == 0 ? "q8_0" : name;
            assert_string_equal(qn_dtype_name(v->dtype), name);
        }
        qn_gguf_close(g);
        remove(out);
    }
    qn_test_remove(scratch);
}

/* MLX's mxfp4 is GGUF's; its affine types are not. */
static void of_mlx(void **state)
{
    const char *scratch = qn_test_scratch(), *out = qn_test_path(scratch, "m.gguf"),
               *base = qn_test_need_fixture("quant/mlx_models/qwen2-mxfp4");
    qn_test_ok(qn_model_fuse(base, NULL, out, NULL, NULL));
    if (!(difference(base, out) <= 1e-4)) fail_msg("mxfp4: logits differ by %g", difference(base, out));
    remove(out);
    base = qn_test_need_fixture("quant/mlx_models/llama-mixed");
    assert_int_equal(qn_model_fuse(base, NULL, out, NULL, NULL), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "affine"));
    qn_test_ok(qn_model_fuse(base, NULL, out, &(qn_fuse_options){.type = "f32"}, NULL));
    if (!(difference(base, out) <= 1e-4)) fail_msg("affine: logits differ by %g", difference(base, out));
    qn_test_remove(scratch);
}

/* What YaRN blends has a key in GGUF. */
static void blends_of_yarn(void **state)
{
    static const char *const shares[] = {"0", "0.25", "1"};
    const char *scratch = qn_test_scratch(), *out = qn_test_path(scratch, "m.gguf");
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        char base[QN_TEST_DIR_MAX], patch[128];
        snprintf(patch, sizeof patch,
                 "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"yarn_ext_factor\": %s}}",
                 shares[i]);
        qn_test_model_copy(qn_test_need_fixture("models/llama"), patch, NULL, base);
        qn_test_ok(qn_model_fuse(base, NULL, out, NULL, NULL));
        if (!(difference(base, out) <= 1e-4))
            fail_msg("%s: logits differ by %g", patch, difference(base, out));
        qn_test_model_remove(base);
        remove(out);
    }
    qn_test_remove(scratch);
}

/* ---- text ---------------------------------------------------------------------------------------------- */

static void same_ids(const qn_chat_text *a, const qn_chat_text *b, const char *text)
{
    for (unsigned flags = 0; flags < 4; flags++) {
        int32_t *x, *y;
        size_t n, m;
        qn_test_ok(qn_tokenizer_encode(qn_chat_text_tokenizer(a), text, strlen(text), flags, &x, &n));
        qn_test_ok(qn_tokenizer_encode(qn_chat_text_tokenizer(b), text, strlen(text), flags, &y, &m));
        assert_int_equal(n, m);
        assert_memory_equal(x, y, n * sizeof *x);
        qn_buf p = {0}, q = {0};
        qn_test_ok(qn_tokenizer_decode(qn_chat_text_tokenizer(a), x, n, 0, &p));
        qn_test_ok(qn_tokenizer_decode(qn_chat_text_tokenizer(b), y, m, 0, &q));
        if (p.length != q.length) fail_msg("%s / %s", p.data, q.data);
        if (p.length) assert_memory_equal(p.data, q.data, p.length);
        qn_buf_free(&p);
        qn_buf_free(&q);
        qn_free(x);
        qn_free(y);
    }
}

static void same_chat(const qn_chat_text *a, const qn_chat_text *b)
{
    json_t *request = json_pack("{s:[{s:s,s:s}],s:b}", "messages", "role", "user", "content", "How many?",
                                "add_generation_prompt", 1);
    qn_buf p = {0}, q = {0};
    assert_int_equal(qn_chat_text_has_template(a), qn_chat_text_has_template(b));
    if (qn_chat_text_has_template(a)) {
        qn_test_ok(qn_chat_text_render(a, request, QN_CHAT_TRUST_TEMPLATE, &p, NULL, NULL));
        qn_test_ok(qn_chat_text_render(b, request, QN_CHAT_TRUST_TEMPLATE, &q, NULL, NULL));
        assert_string_equal(p.data, q.data);
    }
    json_decref(request);
    qn_buf_free(&p);
    qn_buf_free(&q);
}

static void same_text(void **state)
{
    static const char *const texts[] = {"", "a", "The mill-wheel turned 1234 times; it's late.\n\n  Why?",
                                        "\xd0\x9c\xd0\xb5\xd0\xbb\xd1\x8c\xd0\xbd\xd0\xb8\xd1\x86\xd0\xb0 "
                                        "\xe6\xb0\xb4\xe8\xbb\x8a \xf0\x9f\x8c\xbe",
                                        "int main(void) { return 0x7f; }\t\t// ok"};
    const char *scratch = qn_test_scratch(), *out = qn_test_path(scratch, "m.gguf");
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const char *base = i ? qn_test_fixture(families[i]) : qn_test_need_fixture(families[i]);
        qn_source *a, *b;
        qn_chat_text *x, *y;
        if (!base) continue;
        qn_test_ok(qn_model_fuse(base, NULL, out, &(qn_fuse_options){.type = "q8_0"}, NULL));
        qn_test_ok(qn_source_open(base, NULL, &a));
        qn_test_ok(qn_source_open(out, NULL, &b));
        if (qn_tokenizer_is_there(a)) {
            qn_test_ok(qn_chat_text_open(a, NULL, &x));
            qn_test_ok(qn_chat_text_open(b, NULL, &y));
            for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) same_ids(x, y, texts[k]);
            same_chat(x, y);
            qn_chat_text_close(x);
            qn_chat_text_close(y);
        }
        qn_source_close(a);
        qn_source_close(b);
        remove(out);
    }
    qn_test_remove(scratch);
}

/* llama.cpp takes its sizes of these keys, which follow from others here. */
static void sizes_of_latents(void **state)
{
    static const struct {
        const char *key;
        int64_t value;
    } rows[] = {{"kimi-linear.attention.key_length", 32},
                {"kimi-linear.attention.key_length_mla", 24},
                {"kimi-linear.attention.value_length_mla", 20},
                {"kimi-linear.kda.head_dim", 16}};
    const char *scratch = qn_test_scratch(), *out = qn_test_path(scratch, "m.gguf");
    qn_gguf *g;
    qn_test_ok(qn_model_fuse(qn_test_need_fixture("models/kimi_linear"), NULL, out, NULL, NULL));
    qn_test_ok(qn_gguf_open(out, &g));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t value = 0;
        qn_test_ok(qn_gguf_get_i64(g, rows[i].key, 1, 1 << 20, &value));
        assert_int_equal(value, rows[i].value);
    }
    qn_gguf_close(g);
    qn_test_remove(scratch);
}

/* ---- refusals and failures ----------------------------------------------------------------------------- */

static void refuses(void **state)
{
    static const struct {
        const char *fixture, *type, *words;
        qn_status status;
    } rows[] = {
        {"models/llama", "iq2_xxs", "q4_k", QN_E_ARG},
        {"models/llama", "affine4_g64_f16", "q4_k", QN_E_ARG},
        {"models/qwen4_exp", "f32", "layers of a qwen4_exp recur", QN_E_UNSUPPORTED},
        {"models/mistral4", "f32", "a mistral4 scales queries over latents", QN_E_UNSUPPORTED},
        {"models/glm5_next", "f32", "layers of a glm5_next recur", QN_E_UNSUPPORTED},
        {"models/qwen2_window", "f32", "layer_types", QN_E_UNSUPPORTED}, /* windows that GGUF leaves unsaid */
        {"models/mistral", "f32", "layer_types", QN_E_UNSUPPORTED}};
    const char *scratch = qn_test_scratch(), *out = qn_test_path(scratch, "m.gguf");
    qn_test_need_fixture("models/llama");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *base = qn_test_fixture(rows[i].fixture);
        if (!base) continue;
        const qn_status status =
            qn_model_fuse(base, NULL, out, &(qn_fuse_options){.type = rows[i].type}, NULL);
        if (status != rows[i].status || !strstr(qn_last_error(), rows[i].words))
            fail_msg("%s: %s: %s", rows[i].fixture, qn_status_name(status), qn_last_error());
        assert_int_equal(qn_test_count_files(scratch), 0);
    }
    qn_test_write_text(scratch, "m.gguf", "mine");
    assert_int_equal(qn_model_fuse(qn_test_fixture("models/llama"), NULL, out, NULL, NULL), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "already"));
    assert_int_equal(
        qn_model_fuse(qn_test_fixture("models/llama"), NULL, qn_test_path(scratch, "no/m.gguf"), NULL, NULL),
        QN_E_IO);
    qn_test_remove(scratch);
}

static void disk_full(void **state)
{
    const char *scratch = qn_test_scratch(), *out = qn_test_path(scratch, "m.gguf"),
               *base = qn_test_need_fixture("models/llama");
    struct rlimit old;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < 200000; limit += 90000) {
        struct rlimit small = {limit, old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        const qn_status status = qn_model_fuse(base, NULL, out, &(qn_fuse_options){.type = "q8_0"}, NULL);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(status, QN_E_IO);
        assert_int_equal(qn_test_count_files(scratch), 0);
    }
    signal(SIGXFSZ, handler);
    qn_test_remove(scratch);
}

static void out_of_memory(void **state)
{
    const char *scratch = qn_test_scratch(), *out = qn_test_path(scratch, "m.gguf"),
               *base = qn_test_need_fixture("models/llama");
    const int64_t live = qn_mem_live_blocks();
    for (int64_t n = 1;; n += n < 60 ? 1 : 61) {
        const int64_t made = qn_mem_allocations();
        qn_mem_fail_nth(n);
        const qn_status status = qn_model_fuse(base, NULL, out, &(qn_fuse_options){.type = "q4_0"}, NULL);
        qn_mem_fail_nth(0);
        const int reached = qn_mem_allocations() - made >= n;
        if (status != (reached ? QN_E_NOMEM : QN_OK))
            fail_msg("allocation %d: %s, %s", (int)n, qn_status_name(status), qn_last_error());
        assert_int_equal(qn_mem_live_blocks(), live);
        assert_int_equal(qn_test_count_files(scratch), !reached);
        if (!reached) break;
    }
    qn_test_remove(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_logits),      cmocka_unit_test(other_types), cmocka_unit_test(of_mlx),
        cmocka_unit_test(blends_of_yarn),   cmocka_unit_test(same_text),   cmocka_unit_test(refuses),
        cmocka_unit_test(sizes_of_latents), cmocka_unit_test(disk_full),   cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests_name("export", tests, NULL, NULL);
}
