/* Models with an adapter in their weights: the logits of a fused model are those of the model with the
 * adapter, for each kind of adapter, base and type; what the adapter does not change is as it was; and what
 * cannot be fused is refused by name and leaves nothing behind. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <quern/adapter.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "base/random.h"
#include "format/files/mmap.h"
#include "format/source/source.h"
#include "model/adapter/adapters.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"
#include "tests/support/train_help.h"
#include "train/files/trainable_file.h"

enum { N_IDS = 24 };

/* adapter NULL: none. *n: numbers; qn_free. */
static float *logits_of(const char *path, const char *adapter, int64_t *n)
{
    int64_t vocab_size;
    float *logits = qn_test_logits_with(path, adapter, N_IDS, &vocab_size);
    *n = N_IDS * vocab_size;
    return logits;
}

static double largest_difference(const float *a, const float *b, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

/* ---- the same model ------------------------------------------------------------------------------------ */

static void fused_as_used(const char *fixture, const qn_trainable_options *what, const char *type,
                          double tolerance)
{
    const char *scratch = qn_test_scratch();
    char base[512], adapter[512], out[512];
    qn_fuse_result result;
    int64_t n;
    snprintf(base, sizeof base, "%s", qn_test_need_fixture(fixture));
    snprintf(adapter, sizeof adapter, "%s/adapter", scratch);
    snprintf(out, sizeof out, "%s/fused%s", scratch, strstr(base, ".gguf") ? ".gguf" : "");
    qn_test_make_adapter(base, what, adapter);
    qn_test_ok(qn_model_fuse(base, adapter, out, &(qn_fuse_options){.type = type}, &result));
    float *used = logits_of(base, adapter, &n), *fused = logits_of(out, NULL, &n),
          *bare = logits_of(base, NULL, &n);
    const double worst = largest_difference(used, fused, n), moved = largest_difference(used, bare, n);
    printf("%s, %s: logits within %.1e of those that the adapter moves by %.2g; %d of %d tensors\n", fixture,
           type ? type : "as it is", worst, moved, (int)result.n_merged, (int)result.n_tensors);
    if (!(worst <= tolerance) || !(moved > 0.1)) fail_msg("%s: logits differ by %g", fixture, worst);
    assert_int_equal(qn_test_count_files(scratch), 2);
    qn_free(used);
    qn_free(fused);
    qn_free(bare);
    qn_test_remove(scratch);
}

static void same_logits(void **state)
{
    const qn_trainable_options lora = {.rank = 4, .alpha = 8},
                               dora = {.method = QN_TRAIN_DORA, .rank = 3, .alpha = 6, .rslora = 1},
                               head = {.rank = 2, .alpha = 2, .targets = "lm_head,o_proj"};
    fused_as_used("models/llama", &lora, "f32", 1e-4);
    fused_as_used("models/llama", &dora, "f32", 1e-4);
    fused_as_used("models/llama", &head, "f32", 1e-4);
    const struct {
        const char *fixture;
        const qn_trainable_options *what;
        const char *type;
        double tolerance;
    } more[] = {
        {"models/qwen3_tied", &dora, NULL, 1e-4}, /* f32 as published */
        {"models/phi3", &lora, "f32", 1e-4},      /* several matrices in a tensor */
        {"models/gemma3", &lora, "f32", 1e-4},    /* a decoder among other parts */
        {"models/llama_rope3_tied", &lora, "f32", 1e-4},
        {"quant/mlx_models/qwen3-4bit-g64", &lora, "f32", 1e-4},
        {"quant/mlx_models/llama-mixed", &dora, "f32", 1e-4},
        {"quant/mlx_models/qwen2-mxfp4", &lora, "f32", 1e-4},
        {"mlx/qwen3-nvfp4", &lora, "f32", 1e-4},
        {"models/llama", &lora, "f16", 0.05}, /* what rounding makes of it */
        {"models/llama", &lora, NULL, 0.5},
        /* GGUF, in which rows of q and k may lie in another order */
        {"quant/gguf_models/llama-F32.gguf", &lora, NULL, 1e-4},
        {"quant/gguf_models/llama-F32.gguf", &dora, NULL, 1e-4},
        {"quant/gguf_models/llama-F32.gguf", &head, NULL, 1e-4},
        {"quant/gguf_models/llama-Q4_K_M.gguf", &dora, "f32", 1e-4},
        {"quant/gguf_models/qwen2-Q5_K_M.gguf", &lora, "f32", 1e-4},
        {"quant/gguf_models/qwen3-F16.gguf", &lora, "f32", 1e-4},
        {"quant/gguf_models/gemma3-Q4_0.gguf", &lora, "f32", 1e-4},
        {"quant/gguf_models/qwen3-F16.gguf", &lora, NULL, 0.05},
        {"quant/gguf_models/llama-Q8_0.gguf", &lora, NULL, 0.5}, /* what quantising anew makes of it */
        {"quant/gguf_models/gemma3-Q8_0.gguf", &lora, NULL, 0.5},
        {"quant/gguf_models/qwen3-Q4_K_M.gguf", &lora, "q8_0", 0.5},
        {"quant/mlx_models/gemma3_text-8bit-g32", &lora, NULL, 0.5},
        {"quant/mlx_models/llama-mixed", &lora, NULL, 6},
        {"quant/mlx_models/qwen3-4bit-g64", &dora, NULL, 6},
        {"quant/mlx_models/qwen2-mxfp4", &lora, NULL, 8},
        {"mlx/qwen3-nvfp4", &lora, NULL, 8},
    };
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (qn_test_fixture(more[i].fixture))
            fused_as_used(more[i].fixture, more[i].what, more[i].type, more[i].tolerance);
}

/* ---- files --------------------------------------------------------------------------------------------- */

static void same_file(const char *a, const char *b, const char *name)
{
    char *x, *y;
    size_t n, m;
    qn_test_ok(qn_file_read(qn_test_path(a, name), 1 << 28, &x, &n));
    qn_test_ok(qn_file_read(qn_test_path(b, name), 1 << 28, &y, &m));
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    qn_free(x);
    qn_free(y);
}

/* Shards, their tensors and types, and the files beside them stay; only what the adapter changes is new. */
static void the_rest_stays(void **state)
{
    const char *scratch = qn_test_scratch();
    char base[512], adapter[512], out[512];
    qn_source *before, *after;
    int changed = 0;
    snprintf(base, sizeof base, "%s", qn_test_need_fixture("models/llama_rope3_tied"));
    snprintf(adapter, sizeof adapter, "%s/adapter", scratch);
    snprintf(out, sizeof out, "%s/fused", scratch);
    qn_test_make_adapter(
        base, &(qn_trainable_options){.rank = 2, .alpha = 8, .targets = "v_proj", .layer_end = 1}, adapter);
    qn_test_ok(qn_model_fuse(base, adapter, out, NULL, NULL));
    qn_test_ok(qn_source_open(base, NULL, &before));
    qn_test_ok(qn_source_open(out, NULL, &after));
    assert_int_equal(qn_source_file_count(before), qn_source_file_count(after));
    assert_int_equal(qn_source_count(before), qn_source_count(after));
    for (int64_t i = 0; i < qn_source_count(before); i++) {
        const qn_tensor_view *x = qn_source_get(before, i), *y = qn_source_get(after, i);
        assert_string_equal(x->name, y->name);
        assert_string_equal(strrchr(x->file, '/'), strrchr(y->file, '/'));
        assert_int_equal(x->dtype, y->dtype);
        assert_int_equal(x->size_bytes, y->size_bytes);
        if (memcmp(x->data, y->data, x->size_bytes) == 0) continue;
        assert_non_null(strstr(x->name, "layers.0.self_attn.v_proj.weight"));
        changed++;
    }
    assert_int_equal(changed, 1);
    for (int i = 0; i < QN_SIDE_COUNT; i++) {
        const char *path = qn_source_side_path(before, (qn_side_file)i);
        if (path) same_file(base, out, strrchr(path, '/') + 1);
    }
    assert_non_null(qn_source_index_path(after));
    qn_source_close(before);
    qn_source_close(after);
    qn_test_remove(scratch);
}

/* Chat templates in their folder are among the files that go with the model. */
static void folder_of_templates(void **state)
{
    const char *scratch = qn_test_scratch();
    char base[QN_TEST_DIR_MAX], adapter[512], out[512], folder[QN_TEST_DIR_MAX + 64], inside[600];
    qn_test_model_copy(qn_test_need_fixture("models/llama"), NULL, NULL, base);
    snprintf(adapter, sizeof adapter, "%s/adapter", scratch);
    snprintf(out, sizeof out, "%s/fused", scratch);
    snprintf(folder, sizeof folder, "%s/additional_chat_templates", base);
    snprintf(inside, sizeof inside, "%s/additional_chat_templates", out);
    assert_int_equal(mkdir(folder, 0777), 0);
    qn_test_write_text(folder, "rag.jinja", "x");
    qn_test_write_text(folder, "tool_use.jinja", "y");
    qn_test_make_adapter(base, &(qn_trainable_options){.rank = 2, .alpha = 2}, adapter);
    qn_test_ok(qn_model_fuse(base, adapter, out, NULL, NULL));
    assert_int_equal(qn_test_count_files(inside), 2);
    same_file(folder, inside, "rag.jinja");
    same_file(folder, inside, "tool_use.jinja");
    assert_int_equal(qn_test_count_files(scratch), 2);
    qn_test_remove(base);
    qn_test_remove(scratch);
}

/* A type changes what config.json and the index say, and quantised layers are none any more. */
static void another_type(void **state)
{
    const char *scratch = qn_test_scratch();
    char base[512], adapter[512], out[512], *text;
    size_t n;
    json_t *config;
    qn_source *after;
    snprintf(base, sizeof base, "%s", qn_test_need_fixture("quant/mlx_models/qwen3-4bit-g64"));
    snprintf(adapter, sizeof adapter, "%s/adapter", scratch);
    snprintf(out, sizeof out, "%s/fused", scratch);
    qn_test_make_adapter(base, &(qn_trainable_options){.rank = 2, .alpha = 2}, adapter);
    qn_test_ok(qn_model_fuse(base, adapter, out, &(qn_fuse_options){.type = "bf16"}, NULL));
    qn_test_ok(qn_file_read(qn_test_path(out, "config.json"), 1 << 20, &text, &n));
    qn_test_ok(qn_json_parse("config.json", text, n, &config));
    assert_null(json_object_get(config, "quantization"));
    assert_null(json_object_get(config, "quantization_config"));
    const json_t *said = json_object_get(config, "torch_dtype");
    if (!said) said = json_object_get(config, "dtype");
    assert_string_equal(json_string_value(said), "bfloat16");
    json_decref(config);
    qn_free(text);
    qn_test_ok(qn_source_open(out, NULL, &after));
    for (int64_t i = 0; i < qn_source_count(after); i++)
        assert_int_equal(qn_source_get(after, i)->dtype, QN_DTYPE_BF16);
    qn_source_close(after);
    qn_test_remove(scratch);
}

/* Quantised tensors that the adapter changes keep their form; what it leaves alone keeps its bytes. */
static void quantised_stays(void **state)
{
    const char *scratch = qn_test_scratch();
    char base[512], adapter[512], out[512];
    qn_source *before, *after;
    int changed = 0;
    snprintf(base, sizeof base, "%s", qn_test_need_fixture("quant/mlx_models/qwen3-4bit-g64"));
    snprintf(adapter, sizeof adapter, "%s/adapter", scratch);
    snprintf(out, sizeof out, "%s/fused", scratch);
    qn_test_make_adapter(
        base, &(qn_trainable_options){.rank = 2, .alpha = 8, .targets = "v_proj", .layer_end = 1}, adapter);
    qn_test_ok(qn_model_fuse(base, adapter, out, NULL, NULL));
    qn_test_ok(qn_source_open(base, NULL, &before));
    qn_test_ok(qn_source_open(out, NULL, &after));
    assert_int_equal(qn_source_count(before), qn_source_count(after));
    for (int64_t i = 0; i < qn_source_count(before); i++) {
        const qn_tensor_view *x = qn_source_get(before, i), *y = qn_source_find(after, x->name);
        assert_non_null(y);
        assert_int_equal(x->dtype, y->dtype);
        assert_int_equal(x->n_dims, y->n_dims);
        assert_memory_equal(x->shape, y->shape, sizeof x->shape);
        if (memcmp(x->data, y->data, x->size_bytes) == 0) continue;
        assert_non_null(strstr(x->name, "layers.0.self_attn.v_proj."));
        changed++;
    }
    assert_int_equal(changed, 3);
    same_file(base, out, "config.json");
    qn_source_close(before);
    qn_source_close(after);
    qn_test_remove(scratch);
}

/* A GGUF file keeps metadata, names, order and types; a type changes matrices, and the file's own word for
 * it. */
static void gguf_stays(void **state)
{
    const char *scratch = qn_test_scratch();
    char base[512], adapter[512], out[512];
    snprintf(base, sizeof base, "%s", qn_test_need_fixture("quant/gguf_models/llama-Q8_0.gguf"));
    snprintf(adapter, sizeof adapter, "%s/adapter", scratch);
    qn_test_make_adapter(
        base, &(qn_trainable_options){.rank = 2, .alpha = 8, .targets = "v_proj", .layer_end = 1}, adapter);
    for (int retyped = 0; retyped < 2; retyped++) {
        qn_gguf *a, *b;
        int64_t type;
        int changed = 0;
        snprintf(out, sizeof out, "%s/fused%d.gguf", scratch, retyped);
        qn_test_ok(
            qn_model_fuse(base, adapter, out, &(qn_fuse_options){.type = retyped ? "q5_0" : NULL}, NULL));
        qn_test_ok(qn_gguf_open(base, &a));
        qn_test_ok(qn_gguf_open(out, &b));
        assert_int_equal(qn_gguf_value_count(a), qn_gguf_value_count(b));
        assert_int_equal(qn_gguf_count(a), qn_gguf_count(b));
        for (int64_t i = 0; i < qn_gguf_count(a); i++) {
            const qn_tensor_view *x = qn_gguf_get(a, i), *y = qn_gguf_get(b, i);
            assert_string_equal(x->name, y->name);
            assert_memory_equal(x->shape, y->shape, sizeof x->shape);
            if (x->n_dims > 1 && retyped) {
                assert_int_equal(y->dtype, QN_DTYPE_Q5_0);
                continue;
            }
            assert_int_equal(x->dtype, y->dtype);
            changed += memcmp(x->data, y->data, x->size_bytes) != 0;
        }
        assert_int_equal(changed, !retyped);
        qn_test_ok(qn_gguf_get_i64(b, "general.file_type", 0, 100, &type));
        assert_int_equal(type, retyped ? 8 : 7);
        qn_gguf_close(a);
        qn_gguf_close(b);
    }
    qn_test_remove(scratch);
}

/* ---- refusals ------------------------------------------------------------------------------------------ */

static void expect(const char *base, const char *adapter, const char *out, const char *type, qn_status want,
                   const char *words)
{
    const qn_status status = qn_model_fuse(base, adapter, out, &(qn_fuse_options){.type = type}, NULL);
    if (status != want || !strstr(qn_last_error(), words))
        fail_msg("%s: %s, expected %s with \"%s\"", qn_status_name(status), qn_last_error(),
                 qn_status_name(want), words);
}

static void refuses(void **state)
{
    const char *scratch = qn_test_scratch();
    char base[512], adapter[512], out[512];
    snprintf(base, sizeof base, "%s", qn_test_need_fixture("models/llama"));
    snprintf(adapter, sizeof adapter, "%s/adapter", scratch);
    snprintf(out, sizeof out, "%s/fused", scratch);
    qn_test_make_adapter(base, &(qn_trainable_options){.rank = 2, .alpha = 2}, adapter);
    expect(base, adapter, out, "q8_0", QN_E_ARG, "q8_0");
    expect(base, adapter, adapter, NULL, QN_E_ARG, "not empty");
    expect(base, adapter, qn_test_path(adapter, "adapter_config.json"), NULL, QN_E_IO, "is not a folder");
    expect(base, qn_test_path(scratch, "none"), out, NULL, QN_E_NOT_FOUND, "none");
    expect(qn_test_path(scratch, "none"), adapter, out, NULL, QN_E_IO, "none");
    expect(base, adapter, qn_test_path(scratch, "no/such"), NULL, QN_E_IO, "no/such");
    assert_int_equal(qn_test_count_files(scratch), 1);
    qn_test_remove(scratch);
}

static qn_status stop_half_way(void *user, size_t done_bytes, size_t total_bytes)
{
    int64_t *calls = user;
    if (done_bytes > total_bytes) fail_msg("%zu of %zu bytes", done_bytes, total_bytes);
    (*calls)++;
    return 2 * done_bytes > total_bytes ? qn_fail(QN_E_CANCELLED, "stopped") : QN_OK;
}

static void can_be_stopped(void **state)
{
    const char *scratch = qn_test_scratch();
    char base[512], adapter[512], out[512];
    int64_t calls = 0;
    snprintf(base, sizeof base, "%s", qn_test_need_fixture("models/llama"));
    snprintf(adapter, sizeof adapter, "%s/adapter", scratch);
    snprintf(out, sizeof out, "%s/fused", scratch);
    qn_test_make_adapter(base, &(qn_trainable_options){.rank = 2, .alpha = 2, .targets = "q_proj"}, adapter);
    const qn_fuse_options o = {.progress = stop_half_way, .user = &calls};
    assert_int_equal(qn_model_fuse(base, adapter, out, &o, NULL), QN_E_CANCELLED);
    assert_true(calls > 2);
    assert_int_equal(qn_test_count_files(scratch), 1);
    qn_test_remove(scratch);
}

/* Allocations fail one after the other: nothing is left behind. */
static void out_of_memory(void **state)
{
    const char *scratch = qn_test_scratch();
    char base[512], adapter[512], out[512];
    snprintf(base, sizeof base, "%s", qn_test_need_fixture("models/llama"));
    snprintf(adapter, sizeof adapter, "%s/adapter", scratch);
    snprintf(out, sizeof out, "%s/fused", scratch);
    qn_test_make_adapter(base, &(qn_trainable_options){.rank = 2, .alpha = 2, .targets = "q_proj"}, adapter);
    const int64_t live = qn_mem_live_blocks();
    for (int64_t n = 1;; n += n < 100 || n > 430 ? 1 : 23) {
        const int64_t made = qn_mem_allocations();
        qn_mem_fail_nth(n);
        const qn_status status = qn_model_fuse(base, adapter, out, &(qn_fuse_options){.type = "f32"}, NULL);
        qn_mem_fail_nth(0);
        const int reached = qn_mem_allocations() - made >= n;
        if (status != (reached ? QN_E_NOMEM : QN_OK))
            fail_msg("allocation %d: %s, %s", (int)n, qn_status_name(status), qn_last_error());
        assert_int_equal(qn_mem_live_blocks(), live);
        assert_int_equal(qn_test_count_files(scratch), reached ? 1 : 2);
        if (!reached) break;
    }
    qn_test_remove(scratch);
}

/* ---- several adapters ----------------------------------------------------------------------------------- */

/* Two adapters with scales, together and one after the other; a DoRA adapter has its matrices alone. */
static void several_together(void **state)
{
    const char *scratch = qn_test_scratch();
    char base[512], paths[3][512], out[3][512];
    int64_t n;
    snprintf(base, sizeof base, "%s", qn_test_need_fixture("models/llama"));
    for (int i = 0; i < 3; i++) {
        const qn_trainable_options what = {.method = i == 2 ? QN_TRAIN_DORA : QN_TRAIN_LORA,
                                           .rank = 4 - i,
                                           .alpha = 8,
                                           .targets = i ? "q_proj,up_proj" : NULL};
        snprintf(paths[i], sizeof paths[i], "%s/adapter%d", scratch, i);
        snprintf(out[i], sizeof out[i], "%s/fused%d", scratch, i);
        qn_test_make_adapter(base, &what, paths[i]);
    }
    const qn_adapter_options list[3] = {
        {.path = paths[0], .scale = 0.5f}, {.path = paths[1], .scale = -1.5f}, {.path = paths[2]}};
    const qn_fuse_options both = {.type = "f32", .more = list, .n_more = 2},
                          first = {.type = "f32", .adapter_scale = 0.5f},
                          second = {.type = "f32", .adapter_scale = -1.5f},
                          with_dora = {.type = "f32", .more = list + 1, .n_more = 2};
    qn_test_ok(qn_model_fuse(base, NULL, out[0], &both, NULL));
    qn_test_ok(qn_model_fuse(base, paths[0], out[1], &first, NULL));
    qn_test_ok(qn_model_fuse(out[1], paths[1], out[2], &second, NULL));
    float *together = logits_of(out[0], NULL, &n), *in_turn = logits_of(out[2], NULL, &n),
          *one = logits_of(out[1], NULL, &n);
    assert_true(largest_difference(together, in_turn, n) <= 1e-4);
    assert_true(largest_difference(together, one, n) > 0.1);
    qn_test_remove(out[1]);
    assert_int_equal(qn_model_fuse(base, NULL, out[1], &with_dora, NULL), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "DoRA"));
    assert_int_equal(qn_model_fuse(base, NULL, out[1], &(qn_fuse_options){.n_more = 65, .more = list}, NULL),
                     QN_E_ARG);
    qn_free(together);
    qn_free(in_turn);
    qn_free(one);
    qn_test_remove(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_logits),
                                       cmocka_unit_test(the_rest_stays),
                                       cmocka_unit_test(folder_of_templates),
                                       cmocka_unit_test(another_type),
                                       cmocka_unit_test(quantised_stays),
                                       cmocka_unit_test(gguf_stays),
                                       cmocka_unit_test(refuses),
                                       cmocka_unit_test(can_be_stopped),
                                       cmocka_unit_test(several_together),
                                       cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests_name("fuse", tests, NULL, NULL);
}
