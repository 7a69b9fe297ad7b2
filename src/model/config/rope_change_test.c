/* Rotary positions that options change: the model is that of an edited config.json, or of edited metadata. */
#include "model/config/rope_change.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "base/mem.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/gguf_file.h"
#include "tests/support/models/gguf_model.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

static qn_status read_changed(const char *path, const qn_rope_options *rope, qn_buf *notes,
                              qn_model_config *out)
{
    qn_source *src = NULL;
    qn_status status = qn_source_open(path, NULL, &src);
    if (status == QN_OK) status = qn_config_read_changed(src, rope, notes, out);
    qn_source_close(src);
    return status;
}

static int same_floats(const float *a, const float *b, int64_t n)
{
    return a && b ? memcmp(a, b, (size_t)n * sizeof *a) == 0 : a == b;
}

static int same_rope(const qn_rope_config *a, const qn_rope_config *b)
{
    return a->type == b->type && a->theta == b->theta && a->factor == b->factor &&
           a->rotary_dim == b->rotary_dim && a->attention_factor == b->attention_factor &&
           a->stretched_positions == b->stretched_positions && a->score_mscale == b->score_mscale &&
           a->short_positions == b->short_positions && a->mrope_interleaved == b->mrope_interleaved &&
           memcmp(a->mrope_section, b->mrope_section, sizeof a->mrope_section) == 0 &&
           same_floats(a->inv_freq, b->inv_freq, a->rotary_dim / 2) &&
           same_floats(a->long_inv_freq, b->long_inv_freq, a->rotary_dim / 2);
}

static void same_positions(size_t i, const qn_model_config *a, const qn_model_config *b)
{
    int same = a->n_rope == b->n_rope && a->max_position_embeddings == b->max_position_embeddings &&
               a->attention_scale == b->attention_scale && a->query_scale_beta == b->query_scale_beta &&
               a->query_scale_positions == b->query_scale_positions &&
               a->rope_short_positions == b->rope_short_positions;
    for (int k = 0; same && k < a->n_rope; k++) same = same_rope(&a->rope[k], &b->rope[k]);
    if (!same)
        fail_msg("case %zu: %s by %g, base %g, attention %.9g, context %lld; expected %s by %g, base %g, "
                 "attention %.9g, context %lld",
                 i, qn_rope_type_name(a->rope[0].type), a->rope[0].factor, a->rope[0].theta,
                 (double)a->rope[0].attention_factor, (long long)a->max_position_embeddings,
                 qn_rope_type_name(b->rope[0].type), b->rope[0].factor, b->rope[0].theta,
                 (double)b->rope[0].attention_factor, (long long)b->max_position_embeddings);
}

#define YARN QN_ROPE_SCALING_YARN
#define LINEAR QN_ROPE_SCALING_LINEAR
#define NONE QN_ROPE_SCALING_NONE

static void as_an_edited_config(void **state)
{
    static const struct {
        const char *fixture;
        qn_rope_options rope;
        const char *patch;
    } cases[] = {
        {"models/llama", {.theta = 12345.5}, "{\"rope_theta\": 12345.5}"},
        {"models/llama", {.factor = 3}, "{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 3}}"},
        {"models/llama",
         {.scaling = LINEAR, .factor = 2.5, .theta = 2e4},
         "{\"rope_theta\": 2e4, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.5}}"},
        /* the context grows with what it was before */
        {"models/llama",
         {.scaling = YARN, .factor = 4},
         "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}}"},
        {"models/llama",
         {.scaling = YARN, .factor = 4, .yarn_original_context = 96},
         "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": "
         "96}}"},
        /* the factor follows from both contexts */
        {"models/llama",
         {.scaling = YARN, .yarn_original_context = 128},
         "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": "
         "128}}"},
        {"models/llama",
         {.scaling = YARN, .factor = 4, .yarn_beta_slow = 2, .yarn_beta_fast = 20.5},
         "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"beta_slow\": 2, \"beta_fast\": "
         "20.5}}"},
        /* 1.25 (0.1 ln(4) + 1) */
        {"models/llama",
         {.scaling = YARN, .factor = 4, .yarn_attention_factor = 1.25},
         "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"attention_factor\": "
         "1.4232867951399863}}"},
        {"models/llama", {.scaling = NONE}, "{}"},
        {"models/qwen2_yarn", {.scaling = NONE}, "{\"rope_scaling\": \"null\"}"},
        {"models/qwen2_yarn", {.theta = 5e5}, "{\"rope_scaling\": {\"rope_theta\": 5e5}}"},
        {"models/qwen2_yarn", {.factor = 8}, "{\"rope_scaling\": {\"factor\": 8}}"},
        {"models/qwen2_yarn", {.scaling = YARN}, "{}"},
        {"models/qwen2_yarn",
         {.yarn_original_context = 300, .yarn_beta_fast = 16},
         "{\"rope_scaling\": {\"original_max_position_embeddings\": 300, \"beta_fast\": 16}}"},
        {"models/qwen2_yarn",
         {.scaling = LINEAR},
         "{\"rope_scaling\": {\"type\": \"linear\", \"rope_type\": "
         "\"linear\"}}"},
        {"models/llama_rope3_tied", {.factor = 4}, "{\"rope_scaling\": {\"factor\": 4}}"},
        {"models/llama_rope3_tied",
         {.scaling = YARN},
         "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"low_freq_factor\": null, \"high_freq_factor\": "
         "null}}"},
        /* a context beside the parameters goes before the one in them */
        {"models/phi3_longrope",
         {.scaling = YARN, .factor = 2},
         "{\"rope_scaling\": {\"type\": \"yarn\", \"rope_type\": \"yarn\", \"factor\": 2, \"short_factor\": "
         "null, "
         "\"long_factor\": null}}"},
        {"models/phi3_longrope",
         {.scaling = YARN, .factor = 2, .yarn_original_context = 64},
         "{\"original_max_position_embeddings\": 64, \"rope_scaling\": {\"type\": \"yarn\", \"rope_type\": "
         "\"yarn\", \"factor\": 2, \"short_factor\": null, \"long_factor\": null}}"},
        {"models/phi3_longrope", {.theta = 2e4}, "{\"rope_scaling\": {\"rope_theta\": 2e4}}"},
        /* two sets: that of full layers */
        {"models/gemma3_text", {.theta = 5e5}, "{\"rope_theta\": 5e5}"},
        {"models/gemma3_text",
         {.factor = 8},
         "{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}}"},
        {"models/gemma3", {.factor = 4}, "{\"text_config\": {\"rope_scaling\": {\"factor\": 4}}}"},
        {"models/gemma4_text",
         {.theta = 3e5, .factor = 2},
         "{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 3e5, \"factor\": 2}}}"},
        {"models/gemma4_text",
         {.scaling = YARN, .factor = 4},
         "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"yarn\", \"factor\": 4}}}"},
        /* parameters keep what is no scaling: the share that is turned, and sections */
        {"models/qwen3_5",
         {.scaling = YARN, .factor = 4, .theta = 1e6},
         "{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4, \"rope_theta\": 1e6}}"},
        {"models/qwen2_vl", {.theta = 1e5}, "{\"rope_scaling\": {\"rope_theta\": 1e5}}"},
        /* scores are scaled too */
        {"models/deepseek_v3", {.factor = 10}, "{\"rope_scaling\": {\"factor\": 10}}"},
        {"models/deepseek_v3", {.scaling = NONE}, "{\"rope_scaling\": \"null\"}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_model_config got = {0}, want = {0};
        qn_buf notes = {0};
        if (qn_test_config_patched(cases[i].fixture, cases[i].patch, &want) != QN_OK ||
            read_changed(qn_test_need_fixture(cases[i].fixture), &cases[i].rope, &notes, &got) != QN_OK)
            fail_msg("case %zu: %s", i, qn_last_error());
        same_positions(i, &got, &want);
        const int differs = strcmp(cases[i].patch, "{}") != 0;
        assert_true(got.rope_changed == differs && !want.rope_changed);
        assert_true(differs == (notes.length > 0 && strstr(notes.data, "rotary positions differ from ")));
        qn_buf_free(&notes);
        qn_config_free(&got);
        qn_config_free(&want);
    }
}

typedef struct {
    const char *key; /* NULL ends */
    double number;   /* 0: text or count */
    const char *text;
    uint32_t count;
} metadata;

static const char *edited(const char *folder, const char *from, const metadata *keys)
{
    qn_test_gguf *f = qn_test_gguf_read(qn_test_need_fixture(from));
    for (int k = 0; keys[k].key; k++) {
        if (keys[k].text)
            qn_test_gguf_set_text(f, keys[k].key, keys[k].text);
        else if (keys[k].count)
            qn_test_gguf_set_u32(f, keys[k].key, keys[k].count);
        else
            qn_test_gguf_set_f32(f, keys[k].key, (float)keys[k].number);
    }
    const char *path = qn_test_gguf_write(f, folder, "edited.gguf");
    qn_test_gguf_free(f);
    return path;
}

static void as_edited_metadata(void **state)
{
    static const struct {
        const char *fixture;
        qn_rope_options rope;
        metadata keys[8];
    } cases[] = {
        {"quant/gguf_models/llama-F32.gguf", {.theta = 20000}, {{"llama.rope.freq_base", .number = 20000}}},
        {"quant/gguf_models/llama-F32.gguf",
         {.factor = 2.5},
         {{"llama.rope.scaling.type", .text = "linear"}, {"llama.rope.scaling.factor", .number = 2.5}}},
        {"quant/gguf_models/llama-F32.gguf",
         {.scaling = YARN,
          .factor = 4,
          .yarn_original_context = 200,
          .yarn_attention_factor = 1.25,
          .yarn_beta_slow = 2,
          .yarn_beta_fast = 24,
          .yarn_ext_factor = 0.75},
         {{"llama.rope.scaling.type", .text = "yarn"},
          {"llama.rope.scaling.factor", .number = 4},
          {"llama.rope.scaling.original_context_length", .count = 200},
          {"llama.rope.scaling.attn_factor", .number = 1.25},
          {"llama.rope.scaling.yarn_beta_slow", .number = 2},
          {"llama.rope.scaling.yarn_beta_fast", .number = 24},
          {"llama.rope.scaling.yarn_ext_factor", .number = 0.75}}},
        {"quant/gguf_models/llama-F32.gguf",
         {.scaling = YARN, .factor = 3, .yarn_ext_factor = QN_ROPE_NO_EXTRAPOLATION},
         {{"llama.rope.scaling.type", .text = "yarn"},
          {"llama.rope.scaling.factor", .number = 3},
          {"llama.rope.scaling.yarn_ext_factor", .number = 0}}},
        {"quant/gguf_models/llama-F32.gguf",
         {.scaling = YARN, .factor = 3, .yarn_ext_factor = 1},
         {{"llama.rope.scaling.type", .text = "yarn"},
          {"llama.rope.scaling.factor", .number = 3},
          {"llama.rope.scaling.yarn_ext_factor", .number = -1}}},
        {"quant/gguf_models/gemma3-Q8_0.gguf",
         {.theta = 5e5, .scaling = LINEAR, .factor = 8},
         {{"gemma3.rope.freq_base", .number = 5e5},
          {"gemma3.rope.scaling.type", .text = "linear"},
          {"gemma3.rope.scaling.factor", .number = 8}}},
        {"quant/gguf_models/qwen3-Q4_K_M.gguf",
         {.scaling = YARN, .factor = 4},
         {{"qwen3.rope.scaling.type", .text = "yarn"}, {"qwen3.rope.scaling.factor", .number = 4}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *folder = qn_test_scratch();
        qn_model_config got = {0}, want = {0};
        if (qn_test_config(edited(folder, cases[i].fixture, cases[i].keys), &want) != QN_OK ||
            read_changed(qn_test_need_fixture(cases[i].fixture), &cases[i].rope, NULL, &got) != QN_OK)
            fail_msg("case %zu: %s", i, qn_last_error());
        same_positions(i, &got, &want);
        assert_true(got.rope[0].ext_factor == want.rope[0].ext_factor);
        qn_config_free(&got);
        qn_config_free(&want);
        qn_test_remove(folder);
    }
}

/* What the files say already. */
static qn_rope_options own_of(const qn_rope_config *r)
{
    qn_rope_options o = {.theta = r->theta};
    if (r->type == QN_ROPE_DEFAULT) o.scaling = NONE;
    if (r->type == QN_ROPE_LINEAR) o.scaling = LINEAR;
    if (r->type == QN_ROPE_YARN) o.scaling = YARN;
    if (r->type == QN_ROPE_LINEAR || r->type == QN_ROPE_YARN) o.factor = r->factor;
    if (r->type == QN_ROPE_YARN) {
        o.yarn_original_context = (int64_t)r->original_positions;
        o.yarn_beta_slow = r->beta_slow;
        o.yarn_beta_fast = r->beta_fast;
    }
    return o;
}

static void the_own_changes_nothing(void **state)
{
    static const char *const names[] = {"llama",         "llama_rope3_tied", "gemma2",
                                        "gemma3",        "gemma3_text",      "gemma4",
                                        "gemma4_text",   "gemma4_k_eq_v",    "phi3",
                                        "phi3_longrope", "qwen2_vl",         "qwen2_yarn",
                                        "qwen3_5",       "qwen3_next",       "deepseek_v3",
                                        "gpt_oss",       "smollm3",          "olmo2",
                                        "granite",       "apertus",          "cohere2",
                                        "deepseek_v2",   "embedding_gemma2", "embeddinggemma",
                                        "exaone4",       "falcon_h1",        "gemma3n",
                                        "glm4",          "glm4_moe",         "qwen4_exp",
                                        "lfm2",          "llama4",           "minimax_m2",
                                        "ministral3",    "mistral3",         "mistral4",
                                        "modernbert",    "nomic_bert",       "olmo3",
                                        "phi2",          "qwen2_5_vl",       "qwen3_vl",
                                        "seed_oss",      "starcoder2"};
    int n_read = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char relative[64];
        snprintf(relative, sizeof relative, "models/%s", names[i]);
        const char *path = qn_test_fixture(relative);
        qn_model_config own = {0}, got = {0};
        if (!path) continue; /* the small set has fewer */
        if (qn_test_config(path, &own) != QN_OK) fail_msg("%s: %s", names[i], qn_last_error());
        const qn_rope_options rope = own_of(&own.rope[0]);
        if (read_changed(path, &rope, NULL, &got) != QN_OK) fail_msg("%s: %s", names[i], qn_last_error());
        same_positions(i, &got, &own);
        assert_false(got.rope_changed);
        qn_config_free(&own);
        qn_config_free(&got);
        n_read++;
    }
    assert_true(n_read >= 4);
}

/* A table of factors in a GGUF file applies beside a scaling, and the note says so. */
static void tables_of_factors_stay(void **state)
{
    static const char name[] = "rope_freqs.weight";
    static float factors[64];
    const char *folder = qn_test_scratch(), *from = qn_test_need_fixture("quant/gguf_models/llama-F32.gguf");
    const qn_rope_options rope = {.scaling = LINEAR, .factor = 3};
    const qn_tensor_view *v;
    qn_model_config plain = {0}, got = {0};
    qn_source *src = NULL;
    qn_buf notes = {0};
    assert_int_equal(qn_source_open(from, NULL, &src), QN_OK);
    assert_non_null(v = qn_source_find(src, name));
    assert_true(v->n_elements <= 64);
    assert_int_equal(qn_view_floats(v, 0, v->n_elements, factors), QN_OK);
    assert_int_equal(qn_config_read_changed(src, &rope, &notes, &got), QN_OK);
    qn_test_gguf *f = qn_test_gguf_read(from);
    qn_test_gguf_tensor_drop(f, name);
    qn_test_gguf_place(f);
    assert_int_equal(read_changed(qn_test_gguf_write(f, folder, "x.gguf"), &rope, NULL, &plain), QN_OK);
    for (int64_t i = 0; i < v->n_elements; i++)
        assert_true(got.rope[0].inv_freq[i] == plain.rope[0].inv_freq[i] / factors[i]);
    assert_non_null(strstr(notes.data, "the factors in the tensor rope_freqs.weight still apply"));
    qn_test_gguf_free(f);
    qn_source_close(src);
    qn_buf_free(&notes);
    qn_config_free(&plain);
    qn_config_free(&got);
    qn_test_remove(folder);
}

/* llama.cpp's blend: none of the unstretched frequencies is linear scaling, and attention stays. */
static void blends(void **state)
{
    const char *path = qn_test_need_fixture("models/llama");
    qn_model_config linear, none, half, whole;
    assert_int_equal(read_changed(path, &(qn_rope_options){.factor = 3}, NULL, &linear), QN_OK);
    assert_int_equal(
        read_changed(
            path,
            &(qn_rope_options){.scaling = YARN, .factor = 3, .yarn_ext_factor = QN_ROPE_NO_EXTRAPOLATION},
            NULL, &none),
        QN_OK);
    assert_int_equal(read_changed(path,
                                  &(qn_rope_options){.scaling = YARN, .factor = 3, .yarn_ext_factor = 0.5},
                                  NULL, &half),
                     QN_OK);
    assert_int_equal(read_changed(path, &(qn_rope_options){.scaling = YARN, .factor = 3}, NULL, &whole),
                     QN_OK);
    const int64_t n = linear.rope[0].rotary_dim / 2;
    assert_memory_equal(linear.rope[0].inv_freq, none.rope[0].inv_freq, (size_t)n * sizeof(float));
    assert_true(none.rope[0].attention_factor == 1);
    assert_true(half.rope[0].attention_factor == whole.rope[0].attention_factor);
    for (int64_t i = 0; i < n; i++) {
        const double middle = ((double)linear.rope[0].inv_freq[i] + (double)whole.rope[0].inv_freq[i]) / 2;
        if (!(fabs((double)half.rope[0].inv_freq[i] - middle) <= 1e-6 * middle))
            fail_msg("pair %lld: %.9g is not %.9g", (long long)i, (double)half.rope[0].inv_freq[i], middle);
    }
    qn_config_free(&linear);
    qn_config_free(&none);
    qn_config_free(&half);
    qn_config_free(&whole);
}

/* Of a GGUF file that names no type, LongRoPE's tables are the scaling; another replaces them. */
static void tables_of_longrope(void **state)
{
    const char *folder = qn_test_scratch(), *plain = qn_test_need_fixture("models/phi3_longrope");
    const char *path = qn_test_gguf_model(folder, plain);
    static const qn_rope_options replaced[] = {{.scaling = NONE}, {.scaling = LINEAR, .factor = 2}};
    qn_model_config c = {0}, want = {0};
    assert_int_equal(read_changed(path, &(qn_rope_options){.theta = 2e4}, NULL, &c), QN_OK);
    assert_int_equal(c.rope[0].type, QN_ROPE_LONG);
    qn_config_free(&c);
    assert_int_equal(read_changed(path, &(qn_rope_options){.factor = 2}, NULL, &c), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "own scaling, longrope"));
    for (int i = 0; i < 2; i++) { /* as of the folder that the file was made of */
        qn_buf notes = {0};
        assert_int_equal(read_changed(path, &replaced[i], &notes, &c), QN_OK);
        assert_int_equal(read_changed(plain, &replaced[i], NULL, &want), QN_OK);
        const size_t n_bytes = (size_t)(want.rope[0].rotary_dim / 2) * sizeof(float);
        assert_memory_equal(c.rope[0].inv_freq, want.rope[0].inv_freq, n_bytes);
        assert_null(c.rope[0].long_inv_freq);
        assert_true(c.rope[0].attention_factor == 1 && c.rope_short_positions == 0);
        assert_non_null(strstr(notes.data, i ? "scaling linear by 2; the model" : "no scaling; the model"));
        qn_buf_free(&notes);
        qn_config_free(&c);
        qn_config_free(&want);
    }
    qn_test_remove(folder);
}

static void refusals(void **state)
{
    static const struct {
        const char *fixture;
        qn_rope_options rope;
        qn_status status;
        const char *words;
    } cases[] = {
        {"models/llama", {.theta = -1}, QN_E_ARG, "rope.theta: -1 is not in the range"},
        {"models/llama", {.theta = NAN}, QN_E_ARG, "rope.theta: "},
        {"models/llama", {.factor = INFINITY}, QN_E_ARG, "rope.factor: inf is not in the range"},
        {"models/llama", {.factor = -4}, QN_E_ARG, "rope.factor: -4"},
        {"models/llama",
         {.scaling = YARN, .factor = 4, .yarn_original_context = -1},
         QN_E_ARG,
         "rope.yarn_orig"},
        {"models/llama",
         {.scaling = YARN, .factor = 4, .yarn_ext_factor = 1.5},
         QN_E_ARG,
         "rope.yarn_ext_factor"},
        {"models/llama",
         {.scaling = YARN, .factor = 4, .yarn_ext_factor = -0.5},
         QN_E_ARG,
         "yarn_ext_factor: -0.5"},
        {"models/llama", {.scaling = YARN, .yarn_beta_fast = NAN}, QN_E_ARG, "rope.yarn_beta_fast"},
        {"models/llama", {.scaling = (qn_rope_scaling)9}, QN_E_ARG, "there is no scaling 9"},
        {"models/llama",
         {.scaling = NONE, .factor = 2},
         QN_E_ARG,
         "rope.factor cannot be used with the scaling none"},
        {"models/llama",
         {.scaling = LINEAR, .factor = 2, .yarn_beta_slow = 1},
         QN_E_ARG,
         "rope.yarn_beta_slow needs the scaling yarn"},
        {"models/llama",
         {.scaling = YARN, .factor = 2, .yarn_beta_slow = 8, .yarn_beta_fast = 8},
         QN_E_ARG,
         "expected less than rope.yarn_beta_fast"},
        /* what only the model says */
        {"models/llama", {.yarn_attention_factor = 1.5}, QN_E_ARG, "config.json is none"},
        {"models/llama", {.factor = 2, .yarn_original_context = 9}, QN_E_ARG, "config.json is linear"},
        {"models/llama_rope3_tied", {.yarn_beta_fast = 8}, QN_E_ARG, "config.json is llama3"},
        {"models/llama", {.scaling = LINEAR}, QN_E_ARG, "the scaling linear needs rope.factor"},
        {"models/llama", {.scaling = YARN}, QN_E_ARG, "the scaling yarn needs rope.factor"},
        {"models/phi3_longrope",
         {.factor = 2},
         QN_E_UNSUPPORTED,
         "no effect on the model's own scaling, longrope"},
        {"families2/xlm_roberta", {.theta = 5}, QN_E_UNSUPPORTED, "no rotary positions"},
        {"families2/nemotron_h", {.factor = 2}, QN_E_UNSUPPORTED, "no rotary positions"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_model_config c = {0};
        const qn_status got = read_changed(qn_test_need_fixture(cases[i].fixture), &cases[i].rope, NULL, &c);
        if (got != cases[i].status || !strstr(qn_last_error(), cases[i].words))
            fail_msg("case %zu: %s: %s", i, qn_status_name(got), got == QN_OK ? "" : qn_last_error());
    }
}

static void notes_name_the_layers(void **state)
{
    qn_buf notes = {0};
    qn_model_config c;
    assert_int_equal(read_changed(qn_test_need_fixture("models/gemma3_text"),
                                  &(qn_rope_options){.theta = 5e5, .factor = 8}, &notes, &c),
                     QN_OK);
    assert_non_null(strstr(notes.data,
                           "config.json: base 500000, scaling linear by 8; sliding layers keep theirs "
                           "(base 10000); the model's context is 512 tokens\n"));
    qn_buf_reset(&notes);
    qn_config_free(&c);
    assert_int_equal(read_changed(qn_test_need_fixture("models/llama"),
                                  &(qn_rope_options){.scaling = YARN, .factor = 4}, &notes, &c),
                     QN_OK);
    assert_non_null(strstr(notes.data,
                           "scaling yarn by 4 of 512 tokens (attention 1.138629, beta 1 to 32); the "
                           "model's context is 2048 tokens\n"));
    qn_config_free(&c);
    qn_buf_free(&notes);
    /* Nothing is asked for: nothing is said. */
    assert_int_equal(read_changed(qn_test_need_fixture("models/llama"), &(qn_rope_options){0}, &notes, &c),
                     QN_OK);
    assert_true(notes.length == 0 && !c.rope_changed);
    qn_config_free(&c);
}

static void memory_runs_out(void **state)
{
    static const char *const fixtures[] = {"models/llama", "models/gemma4_text", "models/qwen3_5"};
    const qn_rope_options rope = {.scaling = YARN, .factor = 4, .yarn_original_context = 99};
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        qn_source *src = NULL;
        qn_status status = QN_E_NOMEM;
        assert_int_equal(qn_source_open(qn_test_need_fixture(fixtures[i]), NULL, &src), QN_OK);
        for (int64_t n = 1; n < 2000 && status != QN_OK; n++) {
            qn_model_config c = {0};
            qn_buf notes = {0};
            qn_mem_fail_nth(n);
            status = qn_config_read_changed(src, &rope, &notes, &c);
            qn_mem_fail_nth(0);
            if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
            qn_buf_free(&notes);
            qn_config_free(&c);
        }
        assert_int_equal(status, QN_OK);
        qn_source_close(src);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_an_edited_config),
        cmocka_unit_test(as_edited_metadata),
        cmocka_unit_test(the_own_changes_nothing),
        cmocka_unit_test(tables_of_factors_stay),
        cmocka_unit_test(blends),
        cmocka_unit_test(tables_of_longrope),
        cmocka_unit_test(refusals),
        cmocka_unit_test(notes_name_the_layers),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
