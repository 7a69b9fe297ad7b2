/* Adapters that must be refused by the name of what is wrong, names and holds, memory that runs out: each
 * leaves the model as it was. And adapters through the public API. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <pthread.h>
#include <quern/quern.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/adapter_dir.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

enum { HIDDEN = 64, RANK = 4 }; /* of the fixture llama and of what is made here */

static const int32_t prompt[] = {3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26};
enum { N_PROMPT = sizeof prompt / sizeof *prompt };

static qn_engine *open_engine(void)
{
    return qn_test_engine(
        qn_test_need_fixture("models/llama"), NULL,
        (qn_engine_options){.n_threads = 1, .max_rows = 16, .max_sequences = 2, .context_size = 64});
}

static qn_test_adapter *sound(void)
{
    qn_test_adapter *a = qn_test_adapter_new(RANK, 8);
    qn_test_adapter_add(a, "model.layers.0.self_attn.q_proj", RANK, HIDDEN, HIDDEN, 1);
    qn_test_adapter_add(a, "model.layers.1.self_attn.o_proj", RANK, HIDDEN, HIDDEN, 2);
    return a;
}

/* ---- files -------------------------------------------------------------------------------------------- */

#define Q "base_model.model.model.layers.0.self_attn.q_proj.lora_"

static void wrong_shape(qn_test_adapter *a)
{
    qn_test_adapter_find(a, Q "B")->shape[0] = HIDDEN - 1;
}
static void transposed(qn_test_adapter *a)
{
    qn_test_adapter_tensor *t = qn_test_adapter_find(a, Q "A");
    t->shape[0] = HIDDEN;
    t->shape[1] = RANK;
}
static void three_dimensions(qn_test_adapter *a)
{
    qn_test_adapter_tensor *t = qn_test_adapter_find(a, Q "A");
    t->n_dims = 3;
    t->shape[2] = 1;
}
static void other_rank(qn_test_adapter *a)
{
    qn_test_adapter_patch(a, "{\"r\": 8}");
}
static void not_a_number(qn_test_adapter *a)
{
    qn_test_adapter_find(a, "layers.1.self_attn.o_proj.lora_B")->values[5] = NAN;
}
static void infinite(qn_test_adapter *a)
{
    qn_test_adapter_find(a, Q "A")->values[9] = -INFINITY;
}
static void half_a_pair(qn_test_adapter *a)
{
    qn_test_adapter_drop(a, qn_test_adapter_find(a, Q "B"));
}
static void unknown_target(qn_test_adapter *a)
{
    qn_test_adapter_add(a, "model.layers.0.self_attn.c_attn", RANK, HIDDEN, HIDDEN, 3);
}
static void norm(qn_test_adapter *a)
{
    qn_test_adapter_add(a, "model.layers.0.input_layernorm", RANK, HIDDEN, HIDDEN, 3);
}
static void embedding(qn_test_adapter *a)
{
    qn_test_adapter_add(a, "model.embed_tokens", RANK, HIDDEN, 640, 3);
}
static void expert(qn_test_adapter *a)
{
    qn_test_adapter_add(a, "model.layers.0.mlp.experts.3.gate_proj", RANK, HIDDEN, 128, 3);
}
static void layer_beyond(qn_test_adapter *a)
{
    qn_test_adapter_add(a, "model.layers.4.self_attn.q_proj", RANK, HIDDEN, HIDDEN, 3);
}
static void huge_layer(qn_test_adapter *a)
{
    qn_test_adapter_add(a, "model.layers.99999999999999999999999.self_attn.q_proj", RANK, HIDDEN, HIDDEN, 3);
}
static void layer_with_a_zero(qn_test_adapter *a)
{
    qn_test_adapter_add(a, "model.layers.01.self_attn.q_proj", RANK, HIDDEN, HIDDEN, 3);
}
static void layer_not_named(qn_test_adapter *a)
{
    qn_test_adapter_patch(a, "{\"layers_to_transform\": [0]}");
}
static void the_same_twice(qn_test_adapter *a)
{
    qn_test_adapter_add(a, "language_model.model.layers.0.self_attn.q_proj", RANK, HIDDEN, HIDDEN, 3);
}
static void magnitudes(qn_test_adapter *a)
{
    const int64_t n = HIDDEN;
    qn_test_adapter_add_tensor(a, "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", 1,
                               &n);
}
static void no_tensors(qn_test_adapter *a)
{
    while (a->n) qn_test_adapter_drop(a, &a->tensors[0]);
}
static void some_magnitudes(qn_test_adapter *a)
{
    qn_test_adapter_add_magnitudes(a, "model.layers.0.self_attn.q_proj", HIDDEN, 1, 3);
}
static void wrong_magnitudes(qn_test_adapter *a)
{
    some_magnitudes(a);
    qn_test_adapter_find(a, "lora_magnitude_vector")->shape[0] = HIDDEN - 1;
}
static void magnitudes_alone(qn_test_adapter *a)
{
    no_tensors(a);
    some_magnitudes(a);
}
static void bad_magnitude(qn_test_adapter *a)
{
    qn_test_adapter_drop(a, qn_test_adapter_find(a, "layers.1.self_attn.o_proj.lora_A"));
    qn_test_adapter_drop(a, qn_test_adapter_find(a, "layers.1.self_attn.o_proj.lora_B"));
    some_magnitudes(a);
    qn_test_adapter_find(a, "lora_magnitude_vector")->values[7] = NAN;
}
static void whole_module(qn_test_adapter *a)
{
    const int64_t shape[2] = {640, HIDDEN};
    qn_test_adapter_add_tensor(a, "base_model.model.lm_head.weight", 2, shape);
}
static void integers(qn_test_adapter *a)
{
    qn_test_adapter_find(a, Q "A")->dtype = QN_DTYPE_I32;
}
static void long_name(qn_test_adapter *a)
{
    qn_test_adapter_tensor *t = qn_test_adapter_find(a, Q "A");
    memset(t->name, 'x', 150);
    memcpy(t->name + 130, ".lora_A.weight", sizeof ".lora_A.weight");
}
static void empty_name(qn_test_adapter *a)
{
    qn_test_adapter_tensor *t = qn_test_adapter_find(a, Q "A");
    snprintf(t->name, sizeof t->name, "base_model.model..lora_A.weight");
}

static const struct {
    const char *name;
    void (*bend)(qn_test_adapter *a);
    qn_status status;
    const char *words[2];
} bent[] = {
    {"wrong shape", wrong_shape, QN_E_FORMAT, {Q "B.weight", "shape [63, 4], expected [64, 4]"}},
    {"transposed", transposed, QN_E_FORMAT, {Q "A.weight", "shape [64, 4], expected [4, 64]"}},
    {"three dimensions", three_dimensions, QN_E_FORMAT, {Q "A.weight", "shape [4, 64, 1]"}},
    {"other rank", other_rank, QN_E_FORMAT, {"q_proj.lora_A.weight", "expected [8, 64] (rank 8)"}},
    {"not a number", not_a_number, QN_E_FORMAT, {"o_proj.lora_B.weight", "element 5 is not a number"}},
    {"infinite", infinite, QN_E_FORMAT, {Q "A.weight", "element 9 is infinite"}},
    {"half a pair", half_a_pair, QN_E_FORMAT, {Q "A.weight", "the other tensor of its pair is missing"}},
    {"unknown target", unknown_target, QN_E_UNSUPPORTED, {"c_attn.lora_A.weight", "not a linear layer"}},
    {"norm", norm, QN_E_UNSUPPORTED, {"input_layernorm.lora_A.weight", "not a linear layer"}},
    {"embedding", embedding, QN_E_UNSUPPORTED, {"embed_tokens.lora_A.weight", "not a linear layer"}},
    {"expert", expert, QN_E_UNSUPPORTED, {"experts.3.gate_proj.lora_A.weight", "not a linear layer"}},
    {"layer beyond",
     layer_beyond,
     QN_E_FORMAT,
     {"layers.4.self_attn.q_proj", "layer 4, but the model has 4"}},
    {"huge layer", huge_layer, QN_E_UNSUPPORTED, {"not a linear layer", ""}},
    {"layer with a zero",
     layer_with_a_zero,
     QN_E_UNSUPPORTED,
     {"layers.01.self_attn.q_proj", "not a linear layer"}},
    {"layer not named", layer_not_named, QN_E_FORMAT, {"layers.1.self_attn.o_proj", "layers_to_transform"}},
    {"the same twice", the_same_twice, QN_E_FORMAT, {Q "A.weight", "the same matrix"}},
    {"magnitudes", magnitudes, QN_E_FORMAT, {"lora_magnitude_vector", "DoRA"}},
    {"whole module",
     whole_module,
     QN_E_UNSUPPORTED,
     {"base_model.model.lm_head.weight", "not a matrix of an adapter"}},
    {"some magnitudes", some_magnitudes, QN_E_FORMAT, {"o_proj.lora_A.weight", "no magnitudes"}},
    {"wrong magnitudes",
     wrong_magnitudes,
     QN_E_FORMAT,
     {"lora_magnitude_vector", "shape [63], expected [64]"}},
    {"magnitudes alone",
     magnitudes_alone,
     QN_E_FORMAT,
     {"lora_magnitude_vector", "the other tensor of its pair is missing"}},
    {"bad magnitude", bad_magnitude, QN_E_FORMAT, {"lora_magnitude_vector", "element 7 is not a number"}},
    {"integers", integers, QN_E_UNSUPPORTED, {Q "A.weight", "I32"}},
    {"no tensors", no_tensors, QN_E_FORMAT, {"adapter_model.safetensors", "no tensors"}},
    {"long name", long_name, QN_E_FORMAT, {"xxxxx", "too long"}},
    {"empty name",
     empty_name,
     QN_E_UNSUPPORTED,
     {"base_model.model..lora_A.weight", "not a matrix of an adapter"}},
};

static void what_is_refused(void **state)
{
    qn_engine *e = open_engine();
    const char *folder = qn_test_scratch();
    uint64_t before = qn_test_last_hash(e, prompt, N_PROMPT, 5);
    size_t held = qn_ledger_held(qn_engine_ledger(e), QN_LEDGER_WEIGHTS);
    for (size_t i = 0; i < sizeof bent / sizeof *bent; i++) {
        qn_test_adapter *a = sound();
        qn_buf notes = {0};
        bent[i].bend(a);
        const char *path = qn_test_adapter_write(a, folder, "bent", QN_ADAPTER_PEFT);
        qn_status status = qn_engine_adapter_load(e, "bent", path, 1, &notes);
        if (status != bent[i].status || !strstr(qn_last_error(), bent[i].words[0]) ||
            !strstr(qn_last_error(), bent[i].words[1]))
            fail_msg("%s: %s: %s", bent[i].name, qn_status_name(status),
                     status == QN_OK ? "" : qn_last_error());
        assert_non_null(strstr(qn_last_error(), "adapter bent: "));
        assert_int_equal(qn_ledger_held(qn_engine_ledger(e), QN_LEDGER_WEIGHTS), held);
        qn_buf_free(&notes);
        qn_test_adapter_free(a);
    }
    assert_true(qn_test_last_hash(e, prompt, N_PROMPT, 5) == before);
    qn_engine_close(e);
    qn_test_remove(folder);
}

static void expect_load(qn_engine *e, const char *path, qn_status status, const char *words)
{
    qn_buf notes = {0};
    qn_status got = qn_engine_adapter_load(e, "it", path, 1, &notes);
    if (got != status || (got != QN_OK && !strstr(qn_last_error(), words)))
        fail_msg("%s: %s: %s", path, qn_status_name(got), qn_last_error());
    if (got == QN_OK) qn_test_ok(qn_engine_adapter_unload(e, "it"));
    qn_buf_free(&notes);
}

/* Multi-head latent attention: of its projections one is never applied by itself. */
static void latent_attention(void **state)
{
    static const struct {
        const char *module, *words; /* NULL: it works */
    } rows[] = {{"q_a_proj", NULL},
                {"q_b_proj", NULL},
                {"kv_a_proj_with_mqa", NULL},
                {"o_proj", NULL},
                {"kv_b_proj", "part of attention over latent keys"}};
    qn_model_config c;
    qn_test_ok(qn_test_config(qn_test_need_fixture("models/deepseek_v3"), &c));
    const int64_t heads = c.num_attention_heads, h = c.hidden_size;
    const int64_t n_out[] = {c.latent.q_lora_rank,
                             heads * (c.latent.qk_nope_head_dim + c.latent.qk_rope_head_dim),
                             c.latent.kv_lora_rank + c.latent.qk_rope_head_dim, h,
                             heads * (c.latent.qk_nope_head_dim + c.latent.v_head_dim)},
                  n_in[] = {h, c.latent.q_lora_rank, h, heads * c.latent.v_head_dim, c.latent.kv_lora_rank};
    qn_engine *e = qn_test_engine(
        qn_test_need_fixture("models/deepseek_v3"), NULL,
        (qn_engine_options){.n_threads = 1, .max_rows = 16, .max_sequences = 2, .context_size = 64});
    const char *folder = qn_test_scratch();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char module[96];
        snprintf(module, sizeof module, "model.layers.0.self_attn.%s", rows[i].module);
        qn_test_adapter *a = qn_test_adapter_new(RANK, 8);
        qn_test_adapter_add(a, module, RANK, n_in[i], n_out[i], 1);
        expect_load(e, qn_test_adapter_write(a, folder, "it", QN_ADAPTER_PEFT),
                    rows[i].words ? QN_E_UNSUPPORTED : QN_OK, rows[i].words);
        qn_test_adapter_free(a);
    }
    qn_engine_close(e);
    qn_config_free(&c);
    qn_test_remove(folder);
}

static void folders(void **state)
{
    qn_engine *e = open_engine();
    const char *folder = qn_test_scratch();
    char path[600], file[600];
    qn_test_adapter *a = sound();
    snprintf(path, sizeof path, "%s", qn_test_adapter_write(a, folder, "it", QN_ADAPTER_PEFT));
    expect_load(e, path, QN_OK, "");
    snprintf(file, sizeof file, "%s/adapter_model.safetensors", path);
    expect_load(e, file, QN_OK, "");
    snprintf(file, sizeof file, "%s//", path);
    expect_load(e, file, QN_OK, "");
    expect_load(e, "", QN_E_NOT_FOUND, "");
    expect_load(e, qn_test_path(folder, "nothing"), QN_E_NOT_FOUND, "nothing: No such file");
    expect_load(e, folder, QN_E_NOT_FOUND, "no adapter_config.json");
    expect_load(e, qn_test_need_fixture("models/llama"), QN_E_NOT_FOUND, "no adapter_config.json");
    unlink(qn_test_path(path, "adapter_model.safetensors"));
    expect_load(e, path, QN_E_NOT_FOUND, "there is no adapter_model.safetensors");
    qn_test_write_text(path, "adapter_model.bin", "pickle");
    expect_load(e, path, QN_E_UNSUPPORTED, "pickle");
    qn_test_write_text(path, "adapter_model.safetensors", "x");
    expect_load(e, path, QN_E_FORMAT, "adapter_model.safetensors");
    qn_test_write_text(path, "adapter_config.json", "{");
    expect_load(e, path, QN_E_FORMAT, "adapter_config.json");
    qn_test_adapter_free(a);
    qn_engine_close(e);
    qn_test_remove(folder);
}

static void targets_without_tensors_are_noted(void **state)
{
    qn_engine *e = open_engine();
    const char *folder = qn_test_scratch();
    qn_buf notes = {0};
    qn_test_adapter *a = sound();
    qn_test_adapter_patch(a, "{\"target_modules\": [\"q_proj\", \"proj\", \"c_attn\"]}");
    a->tensors[0].dtype = a->tensors[1].dtype = QN_DTYPE_BF16;
    const char *path = qn_test_adapter_write(a, folder, "it", QN_ADAPTER_PEFT);
    qn_test_ok(qn_engine_adapter_load(e, "it", path, 1, &notes));
    assert_non_null(strstr(notes.data, "names proj, but no tensor belongs to it"));
    assert_non_null(strstr(notes.data, "names c_attn, but no tensor belongs to it"));
    assert_null(strstr(notes.data, "q_proj"));
    qn_buf_free(&notes);
    qn_test_adapter_free(a);
    qn_engine_close(e);
    qn_test_remove(folder);
}

/* ---- names -------------------------------------------------------------------------------------------- */

static void names(void **state)
{
    qn_engine *e = open_engine();
    qn_adapters *all = qn_engine_adapters(e);
    qn_buf notes = {0};
    const char *path = qn_test_need_fixture("lora/llama_qv"),
               *bad[] = {"",
                         "none",
                         "a b",
                         "a/b",
                         "..\\",
                         "na\xc3\xafve",
                         "12345678901234567890123456789012345678901234567890123456789012345"};
    int32_t id = 7;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(qn_engine_adapter_load(e, bad[i], path, 1, &notes), QN_E_ARG);
        assert_non_null(strstr(qn_last_error(), "not a name for an adapter"));
    }
    assert_int_equal(qn_engine_adapter_load(e, "a", path, NAN, &notes), QN_E_ARG);
    assert_int_equal(qn_engine_adapter_load(e, "a", path, 3e38f, &notes), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "too large"));
    assert_int_equal(qn_adapters_hold(all, "a", &id), QN_E_NOT_FOUND);
    assert_non_null(strstr(qn_last_error(), "there is none"));
    qn_test_ok(qn_adapters_hold(all, NULL, &id));
    assert_int_equal(id, -1);
    qn_adapters_release(all, id);
    for (int i = 0; i < QN_ADAPTERS_MAX; i++) {
        char name[8];
        snprintf(name, sizeof name, "%d", i);
        qn_test_ok(qn_engine_adapter_load(e, name, path, 1, &notes));
    }
    assert_int_equal(qn_engine_adapter_load(e, "3", path, 1, &notes), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "3 is loaded already"));
    assert_int_equal(qn_engine_adapter_load(e, "more", path, 1, &notes), QN_E_FULL);
    assert_int_equal(qn_adapters_hold(all, "more", &id), QN_E_NOT_FOUND);
    assert_non_null(strstr(qn_last_error(), "there are: 0, 1, 2"));
    assert_int_equal(qn_engine_adapter_unload(e, "more"), QN_E_NOT_FOUND);
    qn_test_ok(qn_engine_adapter_unload(e, "63"));
    qn_test_ok(qn_engine_adapter_load(e, "more", path, 1, &notes));
    qn_test_ok(qn_adapters_hold(all, "none", &id));
    assert_int_equal(id, -1);
    qn_engine_close(e);
}

/* ---- memory ------------------------------------------------------------------------------------------- */

/* Each allocation of a load fails once: all is as before, to the bit. */
static void memory_runs_out(void **state)
{
    const char *folder = qn_test_scratch();
    qn_engine *e = open_engine();
    qn_test_adapter *a = sound();
    char path[600];
    uint64_t before = qn_test_last_hash(e, prompt, N_PROMPT, 12);
    size_t held = qn_ledger_held(qn_engine_ledger(e), QN_LEDGER_WEIGHTS);
    snprintf(path, sizeof path, "%s", qn_test_adapter_write(a, folder, "it", QN_ADAPTER_PEFT));
    qn_test_adapter_free(a);
    for (int n = 1;; n++) {
        qn_buf notes = {0};
        assert_true(n < 2000);
        int64_t live = qn_mem_live_blocks();
        qn_mem_fail_nth(n);
        qn_status status = qn_engine_adapter_load(e, "it", path, 1, &notes);
        qn_mem_fail_nth(0);
        qn_buf_free(&notes);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
        assert_int_equal(qn_ledger_held(qn_engine_ledger(e), QN_LEDGER_WEIGHTS), held);
        if (qn_mem_live_blocks() > live + 2) /* a place for each matrix may stay */
            fail_msg("allocation %d: %d blocks are left", n, (int)(qn_mem_live_blocks() - live));
        if (n % 16 == 1) assert_true(qn_test_last_hash(e, prompt, N_PROMPT, 12) == before);
    }
    qn_engine_close(e);
    /* the same at the opening */
    int64_t live = qn_mem_live_blocks();
    for (int n = 1;; n += n < 40 ? 1 : 37) {
        qn_engine *open = NULL;
        assert_true(n < 20000);
        const qn_engine_options o = {
            .n_threads = 1, .context_size = 64, .adapter_path = path, .adapter_scale = 2};
        qn_mem_fail_nth(n);
        qn_status status = qn_test_engine_try(qn_test_need_fixture("models/llama"), &o, &open);
        qn_mem_fail_nth(0);
        if (status == QN_OK) {
            qn_engine_close(open);
            break;
        }
        assert_int_equal(status, QN_E_NOMEM);
        assert_int_equal(qn_mem_live_blocks(), live);
    }
    assert_int_equal(qn_mem_live_blocks(), live);
    qn_test_remove(folder);
}

static void the_memory_limit_holds(void **state)
{
    qn_engine *e = open_engine();
    qn_buf notes = {0};
    uint64_t before = qn_test_last_hash(e, prompt, N_PROMPT, 12);
    qn_ledger_set_limit(qn_engine_ledger(e), qn_ledger_total(qn_engine_ledger(e)) + 4096);
    assert_int_equal(qn_engine_adapter_load(e, "it", qn_test_need_fixture("lora/llama_qv"), 1, &notes),
                     QN_E_NOMEM);
    qn_ledger_set_limit(qn_engine_ledger(e), 0);
    assert_true(qn_test_last_hash(e, prompt, N_PROMPT, 12) == before);
    qn_engine_close(e);
}

/* ---- the public API ----------------------------------------------------------------------------------- */

typedef struct {
    float last[2][1024];
    int64_t vocab;
} kept;

static qn_status keep(void *user, int64_t row, int64_t position, int64_t n, const float *logits)
{
    kept *k = user;
    memcpy(k->last[row], logits + (n - 1) * k->vocab, (size_t)k->vocab * sizeof *logits);
    return QN_OK;
}

static void logits(qn_model *m, const qn_logits_options *o, int64_t n_rows, kept *k)
{
    const qn_ids rows[2] = {{prompt, N_PROMPT}, {prompt, N_PROMPT}};
    k->vocab = 640;
    qn_test_ok(qn_model_logits(m, rows, n_rows, o, keep, k));
}

static void by_the_public_api(void **state)
{
    static kept bare, both, one, half;
    char path[512];
    qn_model *m = NULL;
    qn_adapter_info info;
    qn_memory memory;
    snprintf(path, sizeof path, "%s", qn_test_need_fixture("lora/llama_qv"));
    const qn_model_options o = {.adapter_path = path,
                                .adapter_name = "first",
                                .parallel_slots = 2,
                                .n_threads = 1,
                                .context_size = 64};
    qn_test_ok(qn_model_open(qn_test_need_fixture("models/llama"), &o, &m));
    qn_test_ok(qn_model_get_memory(m, &memory));
    size_t weights = memory.weights_bytes;
    qn_test_ok(qn_adapter_load(m, &(qn_adapter_options){.name = "half", .path = path, .scale = 0.5f}));
    qn_test_ok(qn_model_get_memory(m, &memory));
    assert_true(memory.weights_bytes > weights);
    qn_test_ok(qn_adapter_get_info(m, 1, &info));
    assert_string_equal(info.name, "half");
    assert_string_equal(info.path, path);
    assert_string_equal(info.layout, "peft");
    assert_int_equal(info.rank, 4);
    assert_int_equal(info.n_matrices, 8);
    assert_float_equal(info.scale, 0.5f, 0);
    assert_true(memory.weights_bytes - weights >= info.size_bytes);
    assert_int_equal(qn_adapter_get_info(m, 2, &info), QN_E_NOT_FOUND);

    logits(m, NULL, 1, &one); /* the first serves those who name none */
    logits(m, &(qn_logits_options){.adapter = "none"}, 1, &bare);
    logits(m, &(qn_logits_options){.adapter = "half"}, 1, &half);
    assert_memory_not_equal(one.last[0], bare.last[0], 640 * sizeof(float));
    assert_memory_not_equal(one.last[0], half.last[0], 640 * sizeof(float));
    logits(m, &(qn_logits_options){.adapter = "half", .row_adapters = (const char *[]){NULL, "first"}}, 2,
           &both);
    assert_memory_equal(both.last[0], half.last[0], 640 * sizeof(float));
    assert_memory_equal(both.last[1], one.last[0], 640 * sizeof(float));

    /* each row of a generation its own */
    const qn_ids rows[2] = {{prompt, N_PROMPT}, {prompt, N_PROMPT}};
    qn_generation *g = NULL;
    qn_token t;
    qn_generate_options go = {
        .max_tokens = 1, .ignore_eos = 1, .row_adapters = (const char *[]){"none", "half"}};
    qn_test_ok(qn_generation_open(m, &(qn_prompt){.rows = rows, .n_rows = 2}, &go, &g));
    assert_int_equal(qn_adapter_unload(m, "half"), QN_E_ARG);
    for (int n = 0; n < 2;) {
        qn_test_ok(qn_generation_next(g, &t));
        if (t.id >= 0) assert_int_equal(t.id, qn_test_argmax(t.row ? half.last[0] : bare.last[0], 640));
        n += t.end != QN_END_NONE;
    }
    qn_generation_close(g);
    qn_test_ok(qn_adapter_unload(m, "half"));
    go = (qn_generate_options){.adapter = "half"};
    assert_int_equal(qn_generation_open(m, &(qn_prompt){.rows = rows, .n_rows = 1}, &go, &g), QN_E_NOT_FOUND);
    assert_non_null(strstr(qn_last_error(), "there is no loaded adapter named half; there are: first"));

    assert_int_equal(qn_adapter_load(NULL, &(qn_adapter_options){0}), QN_E_ARG);
    assert_int_equal(qn_adapter_load(m, &(qn_adapter_options){.name = "x"}), QN_E_ARG);
    assert_int_equal(qn_adapter_unload(m, NULL), QN_E_ARG);
    assert_int_equal(qn_adapter_get_info(m, 0, NULL), QN_E_ARG);
    qn_test_ok(qn_adapter_unload(m, "first"));
    logits(m, NULL, 1, &one); /* there is no default any more */
    assert_memory_equal(one.last[0], bare.last[0], 640 * sizeof(float));
    qn_model_close(&m);
}

/* ---- threads ------------------------------------------------------------------------------------------ */

enum { ROUNDS = 12 };

typedef struct {
    qn_model *model;
    const char *path;
    float expected[2][640]; /* of the adapters below */
    atomic_int n_wrong;
} crowd;

static const char *const of_crowd[2] = {"first", "none"};

static void *compute(void *user)
{
    crowd *c = user;
    for (int i = 0; i < ROUNDS; i++) {
        kept k = {.vocab = 640};
        const qn_ids row = {prompt, N_PROMPT};
        const qn_logits_options o = {.adapter = of_crowd[i % 2]};
        qn_status status = qn_model_logits(c->model, &row, 1, &o, keep, &k);
        if (status != QN_OK || memcmp(k.last[0], c->expected[i % 2], sizeof c->expected[0]) != 0)
            c->n_wrong++;
    }
    return NULL;
}

static void *come_and_go(void *user)
{
    crowd *c = user;
    qn_adapter_info info;
    for (int i = 0; i < ROUNDS; i++) {
        const qn_adapter_options o = {.name = "guest", .path = c->path, .scale = 1 + (float)i};
        if (qn_adapter_load(c->model, &o) != QN_OK || qn_adapter_get_info(c->model, 1, &info) != QN_OK ||
            qn_adapter_unload(c->model, "guest") != QN_OK)
            c->n_wrong++;
    }
    return NULL;
}

static void from_several_threads(void **state)
{
    static crowd c;
    static kept k;
    pthread_t threads[3];
    char path[512];
    snprintf(path, sizeof path, "%s", qn_test_need_fixture("lora/llama_qv"));
    c.path = path;
    const qn_model_options o = {.adapter_path = path,
                                .adapter_name = "first",
                                .parallel_slots = 2,
                                .n_threads = 1,
                                .context_size = 64};
    qn_test_ok(qn_model_open(qn_test_need_fixture("models/llama"), &o, &c.model));
    for (int i = 0; i < 2; i++) {
        logits(c.model, &(qn_logits_options){.adapter = of_crowd[i]}, 1, &k);
        memcpy(c.expected[i], k.last[0], sizeof c.expected[i]);
    }
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, i ? compute : come_and_go, &c);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    assert_int_equal(c.n_wrong, 0);
    qn_model_close(&c.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(latent_attention),
        cmocka_unit_test(folders),
        cmocka_unit_test(targets_without_tensors_are_noted),
        cmocka_unit_test(names),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(the_memory_limit_holds),
        cmocka_unit_test(by_the_public_api),
        cmocka_unit_test(from_several_threads),
    };
    return cmocka_run_group_tests_name("adapters refused", tests, NULL, NULL);
}
