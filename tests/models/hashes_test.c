/* Hashes of logits, per model, instruction set and precision, against tests/hashes.txt: a changed order of
 * floating-point operations shows as a changed line there. `make hashes` writes the lines of the sets that
 * this machine has anew and keeps the others. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/map.h"
#include "device/cpu/kernels/kernels.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

#define HASHES "tests/hashes.txt"

/* Directories hold prompt1.ids (those of MLX input_ids, of tests/golden/mlx ids) in expected.safetensors; a
 * GGUF file has input_ids beside it. */
static const char *const kinds[] = {"models/llama",
                                    "models/llama_rope3_tied",
                                    "models/llama_head_dim",
                                    "models/mistral",
                                    "models/qwen2",
                                    "models/qwen2_yarn",
                                    "models/qwen2_window",
                                    "models/gemma",
                                    "models/gemma2",
                                    "models/qwen3",
                                    "models/qwen3_tied",
                                    "models/gemma3_text",
                                    "models/gemma3",
                                    "models/smollm3",
                                    "models/olmo2",
                                    "models/phi3",
                                    "models/phi3_longrope",
                                    "models/qwen2_vl",
                                    "models/granite",
                                    "models/qwen3_moe",
                                    "models/mixtral",
                                    "models/gpt_oss",
                                    "models/gemma4_text",
                                    "models/gemma4_k_eq_v",
                                    "models/gemma4_moe",
                                    "models/qwen3_5",
                                    "models/qwen3_next",
                                    "models/deepseek_v3",
                                    "models/seed_oss",
                                    "models/glm4_moe",
                                    "models/glm4_moe_lite",
                                    "models/minimax_m2",
                                    "models/exaone4",
                                    "models/olmo3",
                                    "models/ministral3",
                                    "models/mistral4",
                                    "models/glm4",
                                    "models/hunyuan_v1_dense",
                                    "models/deepseek_v2",
                                    "models/apertus",
                                    "models/starcoder2",
                                    "models/phi2",
                                    "models/cohere2",
                                    "models/llama4",
                                    "models/muse_glimmer",
                                    "quant/gguf_models/llama-F32",
                                    "quant/gguf_models/llama-Q8_0",
                                    "quant/gguf_models/llama-Q4_K_M",
                                    "quant/gguf_models/qwen2-Q5_K_M",
                                    "quant/gguf_models/qwen3-F16",
                                    "quant/gguf_models/qwen3-Q4_K_M",
                                    "quant/gguf_models/gemma3-Q8_0",
                                    "quant/gguf_models/gemma3-Q4_0",
                                    "quant/mlx_models/gemma3_text-8bit-g32",
                                    "quant/mlx_models/llama-mixed",
                                    "quant/mlx_models/qwen2-mxfp4",
                                    "quant/mlx_models/qwen3-4bit-g64",
                                    "mlx/qwen3-nvfp4",
                                    NULL};
/* A set and the lines it is held to: neon's fused multiply-adds and fixed trees give avx2's bits, and so do
 * avx2_vnni's integers; so does avx512_amx avx512's, but for bf16, which fast precision has. */
static const struct {
    const char *name, *lines, *fast;
} all_sets[] = {{"scalar", "scalar", "scalar"},         {"avx2", "avx2", "avx2"},
                {"avx2_vnni", "avx2", "avx2"},          {"avx512", "avx512", "avx512"},
                {"avx512_amx", "avx512", "avx512_amx"}, {"neon", "avx2", "avx2"},
                {"neon_i8mm", "avx2", "avx2"}};
enum { N_SETS = sizeof all_sets / sizeof all_sets[0] };

enum { LINE = 128 };

/* "kind set precision " */
static void line_start(char *line, const char *kind, const char *set, qn_precision precision)
{
    snprintf(line, LINE, "%s %s %s ", kind, set, qn_test_precision_name(precision));
}

/* The hash that follows `start` in the committed text, or NULL. */
static const char *committed(const char *text, const char *start)
{
    for (const char *at = text; (at = strstr(at, start)); at++)
        if (at == text || at[-1] == '\n') return at + strlen(start);
    return NULL;
}

static int is_gguf(const char *kind)
{
    return strncmp(kind, "quant/gguf", 10) == 0;
}

static void hash_of(const char *kind, const char *set, qn_precision precision, char *out)
{
    char path[LINE];
    const int gguf = is_gguf(kind), mlx = strncmp(kind, "quant/mlx", 9) == 0;
    const char *name = gguf || mlx ? "input_ids" : strncmp(kind, "mlx", 3) == 0 ? "ids" : "prompt%d.ids";
    snprintf(path, sizeof path, gguf ? "%s.gguf" : "%s", kind);
    const char *model = qn_test_need_fixture(path);
    snprintf(path, sizeof path, gguf ? "%s.expected.safetensors" : "%s/expected.safetensors", kind);
    qn_safetensors *st = NULL;
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    const qn_tensor_view *ids = qn_test_tensor(st, name, 1);
    qn_engine *e = qn_test_engine(model, set, (qn_engine_options){.precision = precision, .n_threads = 1});
    int64_t n_ids = ids->n_elements / (ids->n_dims == 2 ? ids->shape[0] : 1); /* the first row */
    int64_t n = n_ids * qn_engine_config(e)->vocab_size;
    float *logits = test_calloc((size_t)n, sizeof *logits);
    int32_t *row = test_calloc((size_t)n_ids, sizeof *row); /* MLX lays tensors at any address */
    memcpy(row, ids->data, (size_t)n_ids * sizeof *row);
    qn_test_logits(e, row, n_ids, 0, logits);
    snprintf(out, 17, "%016" PRIx64, qn_hash_bytes(logits, (size_t)n * sizeof *logits, 0));
    test_free(logits);
    test_free(row);
    qn_engine_close(e);
    qn_safetensors_close(st);
}

static void hashes(void **state)
{
    int writes = getenv("QUERN_WRITE_HASHES") != NULL, wrong = 0;
    char start[LINE], hash[17], block[4096];
    qn_buf text = {0}, fresh = {0};
    for (int k = 0; kinds[k]; k++) { /* before anything is held: a test that is left out jumps */
        snprintf(start, sizeof start, is_gguf(kinds[k]) ? "%s.gguf" : "%s", kinds[k]);
        (void)qn_test_need_fixture(start);
    }
    FILE *f = fopen(HASHES, "r");
    for (size_t n; f && (n = fread(block, 1, sizeof block, f)) > 0;) qn_buf_append(&text, block, n);
    if (f) fclose(f);
    qn_buf_append(&text, "", 1);
    for (int k = 0; kinds[k]; k++)
        for (int s = 0; s < N_SETS; s++)
            for (int p = 0; p < 3; p++) {
                const char *set = all_sets[s].name;
                const char *lines = p == QN_PRECISION_FAST ? all_sets[s].fast : all_sets[s].lines;
                int own = strcmp(set, lines) == 0;
                line_start(start, kinds[k], lines, (qn_precision)p);
                const char *old = committed(text.data, start);
                if (qn_kernels_by_name(set)) {
                    hash_of(kinds[k], set, (qn_precision)p, hash);
                    if (!(writes && own) && (!old || strncmp(old, hash, 16) != 0)) {
                        print_error("%s%s on %s, committed: %.16s\n", start, hash, set,
                                    old ? old : "nothing");
                        wrong++;
                    }
                } else if (old) {
                    snprintf(hash, sizeof hash, "%.16s", old);
                } else {
                    continue;
                }
                if (own) qn_buf_printf(&fresh, "%s%s\n", start, hash);
            }
    for (int s = 0; s < N_SETS; s++)
        if (!qn_kernels_by_name(all_sets[s].name))
            printf("skipped: the hashes of %s, which this machine cannot run\n", all_sets[s].name);
    assert_int_equal(fresh.status, QN_OK);
    if (writes) {
        f = fopen(HASHES, "w");
        assert_non_null(f);
        assert_int_equal(fwrite(fresh.data, 1, fresh.length, f), fresh.length);
        assert_int_equal(fclose(f), 0);
    }
    qn_buf_free(&text);
    qn_buf_free(&fresh);
    if (wrong) fail_msg("%d hashes changed: if that is meant, `make hashes` and review the diff", wrong);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(hashes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
