/* Adapters on disk: what a trainer writes, the engine computes with, and a trainer reads again, in both
 * layouts, on bases of every kind; that peft's own files come back byte for byte; and that an interrupted
 * write leaves the old adapter. With QUERN_ADAPTERS set to a folder, adapters of all kinds are left there for
 * tools/peft_check.py. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "format/files/mmap.h"
#include "format/safetensors/safetensors.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/json_file.h"
#include "tests/support/scratch.h"
#include "tests/support/train_help.h"
#include "train/files/trainable_file.h"

typedef struct {
    char path[512];
    qn_train_base base;
    qn_trainer *trainer;
    qn_trainable *t;
    qn_test_batch batch;
} subject;

static void open_base(subject *s, const char *fixture)
{
    *s = (subject){0};
    snprintf(s->path, sizeof s->path, "%s", qn_test_need_fixture(fixture));
    qn_test_ok(qn_train_base_open(s->path, NULL, 2, 0, &s->base));
    qn_test_batch_draw(&s->batch, s->base.config.vocab_size, 11);
}

static void train(subject *s, const qn_trainable_options *what)
{
    const qn_trainer_options o = {.trainable = *what,
                                  .max_rows = QN_TEST_BATCH_ROWS,
                                  .max_sequences = QN_TEST_BATCH_SEQUENCES,
                                  .precision = QN_PRECISION_EXACT};
    qn_trainer_free(s->trainer);
    s->trainer = NULL;
    qn_test_ok(qn_trainer_new(&s->base, &o, &s->trainer));
    s->t = qn_trainer_trainable(s->trainer);
}

static void close_subject(subject *s)
{
    qn_trainer_free(s->trainer);
    qn_train_base_close(&s->base);
}

static float *numbers_of(const qn_trainable *t)
{
    float *all = qn_alloc_array((size_t)t->n_elements, sizeof *all), *at = all;
    for (int64_t i = 0; i < t->n; i++) {
        memcpy(at, t->arrays[i].data, (size_t)t->arrays[i].n * sizeof *at);
        at += t->arrays[i].n;
    }
    return all;
}

static void clear_numbers(qn_trainable *t)
{
    for (int64_t i = 0; i < t->n; i++) memset(t->arrays[i].data, 0, (size_t)t->arrays[i].n * sizeof(float));
}

static void load(subject *s, const char *path)
{
    qn_buf notes = {0};
    qn_test_ok(qn_trainable_load(s->t, &s->base, path, &notes));
    if (notes.length) fail_msg("notes: %s", notes.data);
}

/* ---- peft's own files --------------------------------------------------------------------------------- */

/* Names and numbers of one file are those of another. */
static void same_tensors(const char *got, const char *want)
{
    qn_safetensors *a, *b;
    qn_test_ok(qn_safetensors_open(got, &a));
    qn_test_ok(qn_safetensors_open(want, &b));
    assert_int_equal(qn_safetensors_count(a), qn_safetensors_count(b));
    for (int64_t i = 0; i < qn_safetensors_count(b); i++) {
        const qn_tensor_view *x, *y = qn_safetensors_get(b, i);
        qn_test_ok(qn_safetensors_tensor(a, y->name, &x));
        assert_int_equal(x->dtype, y->dtype);
        assert_int_equal(x->n_dims, y->n_dims);
        assert_memory_equal(x->shape, y->shape, (size_t)x->n_dims * sizeof *x->shape);
        assert_int_equal(x->size_bytes, y->size_bytes);
        assert_memory_equal(x->data, y->data, x->size_bytes);
    }
    qn_safetensors_close(a);
    qn_safetensors_close(b);
}

static void same_targets(const char *got, const char *want)
{
    json_t *a = qn_test_json(got), *b = qn_test_json(want);
    const char *const fields[] = {"target_modules", "layers_to_transform", "r", "lora_alpha", "use_dora"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        json_t *x = json_object_get(a, fields[i]), *y = json_object_get(b, fields[i]);
        const int same = json_is_number(y) ? json_number_value(x) == json_number_value(y) : json_equal(x, y);
        if (!same) fail_msg("%s: %s is otherwise than in %s", got, fields[i], want);
    }
    json_decref(a);
    json_decref(b);
}

static qn_trainable_options options_of(json_t *config, char *names, size_t size)
{
    size_t i, at = 0;
    json_t *module;
    json_array_foreach(json_object_get(config, "target_modules"), i, module) at +=
        (size_t)snprintf(names + at, size - at, "%s%s", i ? "," : "", json_string_value(module));
    return (qn_trainable_options){.targets = names,
                                  .rank = (int32_t)json_integer_value(json_object_get(config, "r")),
                                  .alpha = (float)json_number_value(json_object_get(config, "lora_alpha"))};
}

static void fixtures_come_back(void **state)
{
    char root[512], dir[800], base[160], names[1000];
    snprintf(root, sizeof root, "%s", qn_test_need_fixture("lora"));
    DIR *d = opendir(root);
    const char *scratch = qn_test_scratch();
    int n = 0;
    for (struct dirent *entry; (entry = readdir(d));) {
        subject s;
        if (entry->d_name[0] == '.') continue;
        snprintf(dir, sizeof dir, "%s/%s", root, entry->d_name);
        json_t *about = qn_test_json(qn_test_path(dir, "expected.json")),
               *config = qn_test_json(qn_test_path(dir, "adapter_config.json"));
        snprintf(base, sizeof base, "models/%s", json_string_value(json_object_get(about, "base")));
        if (qn_test_fixture(base)) {
            open_base(&s, base);
            const qn_trainable_options o = options_of(config, names, sizeof names);
            train(&s, &o);
            load(&s, dir);
            float *want = numbers_of(s.t);
            char out[600];
            snprintf(out, sizeof out, "%s/%s", scratch, entry->d_name);
            qn_test_ok(qn_trainable_save(s.t, &s.base, out, NULL));
            same_tensors(qn_test_path(out, "adapter_model.safetensors"),
                         qn_test_path(dir, "adapter_model.safetensors"));
            same_targets(qn_test_path(out, "adapter_config.json"), qn_test_path(dir, "adapter_config.json"));
            qn_test_ok(
                qn_trainable_save(s.t, &s.base, out, &(qn_trainable_save_options){.layout = QN_ADAPTER_MLX}));
            assert_int_equal(qn_test_count_files(out), 2); /* the other layout's tensors went */
            clear_numbers(s.t);
            load(&s, out);
            float *got = numbers_of(s.t);
            assert_memory_equal(got, want, (size_t)s.t->n_elements * sizeof *got);
            qn_free(got);
            qn_free(want);
            close_subject(&s);
            n++;
        }
        json_decref(about);
        json_decref(config);
    }
    closedir(d);
    qn_test_remove(scratch);
    if (!n) qn_test_leave_out("no adapter's base is there");
}

/* ---- the engine ---------------------------------------------------------------------------------------- */

/* Adapters of each kind on one base: the trainer's loss is the engine's with what was written, and what was
 * written comes back to the last bit. keep: a folder in which they stay, NULL: none. */
static void engine_agrees_on(const char *fixture, const char *keep)
{
    static const struct {
        const char *name;
        qn_trainable_options what;
        qn_trainable_save_options save;
    } kinds[] = {
        {"lora", {.rank = 4, .alpha = 8}, {0}},
        {"some", {.rank = 3, .alpha = 5, .rslora = 1, .targets = "o_proj, down_proj", .layer_begin = 1}, {0}},
        {"mixed", {.rank = 2, .alpha = 4, .targets = "*.layers.0.*o_proj, *.layers.1.*down_proj"}, {0}},
        {"dora", {.method = QN_TRAIN_DORA, .rank = 4, .alpha = 6}, {0}},
        {"mlx", {.rank = 4, .alpha = 7}, {.layout = QN_ADAPTER_MLX}},
        {"mlx_dora",
         {.method = QN_TRAIN_DORA, .rank = 2, .alpha = 3, .layer_begin = 1},
         {.layout = QN_ADAPTER_MLX}},
    };
    const char *scratch = keep ? keep : qn_test_scratch(), *own = strrchr(fixture, '/') + 1;
    subject s;
    double worst = 0, moved = 0, plain = 0;
    open_base(&s, fixture);
    qn_engine *e = qn_test_engine(
        s.path, NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT, .max_rows = 64, .n_threads = 2});
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char path[700], name[64];
        qn_buf notes = {0};
        double loss, by_engine;
        snprintf(path, sizeof path, "%s/%s-%s", scratch, own, kinds[i].name);
        train(&s, &kinds[i].what);
        if (!plain) qn_test_ok(qn_trainer_evaluate(s.trainer, &s.batch.batch, &plain));
        qn_test_fill_factors(s.t, 100 * (uint64_t)i);
        qn_test_ok(qn_trainer_evaluate(s.trainer, &s.batch.batch, &loss));
        qn_test_ok(qn_trainable_save(s.t, &s.base, path, &kinds[i].save));
        snprintf(name, sizeof name, "a%d", (int)i);
        qn_test_ok(qn_engine_adapter_load(e, name, path, 1, &notes));
        if (notes.length) fail_msg("%s: %s", path, notes.data);
        by_engine = qn_test_engine_loss(e, name, &s.batch.batch);
        if (!(fabs(loss - by_engine) <= 1e-5))
            fail_msg("%s %s: loss %.7f, the engine's %.7f", own, kinds[i].name, loss, by_engine);
        if (fabs(loss - by_engine) > worst) worst = fabs(loss - by_engine);
        if (fabs(loss - plain) > moved) moved = fabs(loss - plain);
        float *want = numbers_of(s.t);
        clear_numbers(s.t);
        load(&s, path);
        float *got = numbers_of(s.t);
        assert_memory_equal(got, want, (size_t)s.t->n_elements * sizeof *got);
        qn_free(got);
        qn_free(want);
    }
    printf("%s: losses within %.1e, moved by %.2g\n", own, worst, moved);
    assert_true(moved > 0.01);
    qn_engine_close(e);
    close_subject(&s);
    if (!keep) qn_test_remove(scratch);
}

static void engine_agrees(void **state)
{
    static const char *const bases[] = {"models/llama",
                                        "models/gemma3_text",
                                        "models/gemma3",
                                        "models/phi3",
                                        "models/qwen2",
                                        "models/olmo2",
                                        "quant/gguf_models/llama-F32.gguf",
                                        "quant/gguf_models/llama-Q8_0.gguf",
                                        "quant/gguf_models/llama-Q4_K_M.gguf",
                                        "quant/gguf_models/qwen3-Q4_K_M.gguf",
                                        "quant/gguf_models/gemma3-Q4_0.gguf"};
    const char *keep = getenv("QUERN_ADAPTERS");
    int n = 0;
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++)
        if (qn_test_fixture(bases[i])) {
            engine_agrees_on(bases[i], keep && *keep ? keep : NULL);
            n++;
        }
    if (!n) qn_test_leave_out("no base is there");
}

/* ---- configurations ------------------------------------------------------------------------------------ */

static void expect_json(const char *dir, const char *want)
{
    json_t *config = qn_test_json(qn_test_path(dir, "adapter_config.json")), *value,
           *fields = json_loads(want, 0, NULL);
    const char *key;
    assert_non_null(fields);
    json_object_foreach(fields, key, value)
    {
        if (json_equal(json_object_get(config, key), value)) continue;
        char *text = json_dumps(json_object_get(config, key), JSON_ENCODE_ANY | JSON_COMPACT);
        fail_msg("%s is %s", key, text);
    }
    json_decref(fields);
    json_decref(config);
}

/* What both libraries are told about the modules; from: the first layer that mlx_lm is to look at, -1: none.
 */
static void names_the_modules(void **state)
{
#define MLX(keys)                                                                                        \
    "{\"fine_tune_type\": \"lora\", \"lora_parameters\": {\"rank\": 2, \"scale\": 1.5, \"dropout\": 0, " \
    "\"keys\": [" keys "]}}"
    static const struct {
        const char *targets;
        int64_t begin, end, from;
        const char *peft, *mlx;
    } cases[] = {
        {"q_proj,v_proj", 0, 0, 0,
         "{\"target_modules\": [\"q_proj\", \"v_proj\"], \"layers_to_transform\": null}",
         MLX("\"self_attn.q_proj\", \"self_attn.v_proj\"")},
        {"v_proj", 1, 2, 1, "{\"target_modules\": [\"v_proj\"], \"layers_to_transform\": [1]}",
         MLX("\"self_attn.v_proj\"")},
        {"lm_head, q_proj", 0, 0, 0,
         "{\"target_modules\": [\"lm_head\", \"q_proj\"], \"layers_to_transform\": null}",
         MLX("\"lm_head\", \"self_attn.q_proj\"")},
        {"lm_head", 0, 0, -1, "{\"target_modules\": [\"lm_head\"], \"layers_to_transform\": null}",
         MLX("\"lm_head\"")},
        {"*.layers.0.self_attn.q_proj, *.layers.1.self_attn.k_proj", 0, 0, 0,
         "{\"target_modules\": [\"model.layers.0.self_attn.q_proj\", \"model.layers.1.self_attn.k_proj\"], "
         "\"layers_to_transform\": null}",
         MLX("\"self_attn.k_proj\", \"self_attn.q_proj\"")},
        {"*.layers.1.self_attn.q_proj, lm_head", 0, 0, 1,
         "{\"target_modules\": [\"lm_head\", \"model.layers.1.self_attn.q_proj\"], \"layers_to_transform\": "
         "null}",
         MLX("\"lm_head\", \"self_attn.q_proj\"")},
    };
    const char *scratch = qn_test_scratch();
    subject s;
    open_base(&s, "models/llama");
    const int64_t n_layers = s.base.config.num_hidden_layers;
    assert_true(n_layers > 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[600], num_layers[64];
        train(&s, &(qn_trainable_options){.rank = 2,
                                          .alpha = 3,
                                          .targets = cases[i].targets,
                                          .layer_begin = cases[i].begin,
                                          .layer_end = cases[i].end});
        snprintf(path, sizeof path, "%s/%d", scratch, (int)i);
        qn_test_ok(qn_trainable_save(s.t, &s.base, path, NULL));
        expect_json(path, cases[i].peft);
        load(&s, path);
        qn_test_ok(
            qn_trainable_save(s.t, &s.base, path, &(qn_trainable_save_options){.layout = QN_ADAPTER_MLX}));
        expect_json(path, cases[i].mlx);
        snprintf(num_layers, sizeof num_layers, "{\"num_layers\": %d}",
                 cases[i].from < 0 ? 0 : (int)(n_layers - cases[i].from));
        expect_json(path, num_layers);
        load(&s, path);
    }
#undef MLX
    close_subject(&s);
    qn_test_remove(scratch);
}

static void half_the_bytes(void **state)
{
    const char *scratch = qn_test_scratch();
    struct stat wide, narrow;
    subject s;
    open_base(&s, "models/llama");
    train(&s, &(qn_trainable_options){.rank = 8, .alpha = 8});
    qn_test_fill_factors(s.t, 3);
    qn_test_ok(qn_trainable_save(s.t, &s.base, scratch, NULL));
    assert_int_equal(stat(qn_test_path(scratch, "adapter_model.safetensors"), &wide), 0);
    qn_test_ok(qn_trainable_save(s.t, &s.base, scratch, &(qn_trainable_save_options){.bf16 = 1}));
    assert_int_equal(stat(qn_test_path(scratch, "adapter_model.safetensors"), &narrow), 0);
    assert_true(wide.st_size - narrow.st_size > 0.45 * (double)wide.st_size);
    float *want = numbers_of(s.t);
    load(&s, scratch);
    float *got = numbers_of(s.t);
    for (int64_t i = 0; i < s.t->n_elements; i++)
        assert_true(fabsf(got[i] - want[i]) <= ldexpf(fabsf(want[i]), -8));
    qn_free(got);
    qn_free(want);
    close_subject(&s);
    qn_test_remove(scratch);
}

/* ---- interruptions and refusals ------------------------------------------------------------------------ */

/* Every allocation of a write fails once: the folder has the old adapter, or where the write succeeds the new
 * one, and nothing else appears. */
static void interrupted(void **state)
{
    const char *scratch = qn_test_scratch();
    char path[600];
    subject s;
    open_base(&s, "models/llama");
    snprintf(path, sizeof path, "%s/adapter", scratch);
    for (int same_config = 0; same_config < 2; same_config++) {
        train(&s, &(qn_trainable_options){.rank = 4, .alpha = 8, .targets = "q_proj"});
        qn_test_fill_factors(s.t, 1);
        float *old = numbers_of(s.t);
        qn_test_ok(qn_trainable_save(s.t, &s.base, path, NULL));
        qn_test_write_text(path, "notes.txt", "of the user");
        const int64_t live = qn_mem_live_blocks();
        for (int64_t n = 1;; n++) {
            const qn_trainable_save_options o = {.base_model = same_config ? NULL : "another"};
            const int64_t made = qn_mem_allocations();
            qn_test_fill_factors(s.t, 2);
            qn_mem_fail_nth(n);
            const qn_status status = qn_trainable_save(s.t, &s.base, path, &o);
            qn_mem_fail_nth(0);
            assert_int_equal(qn_mem_live_blocks(), live);
            assert_int_equal(qn_test_count_files(scratch), 1);
            assert_int_equal(qn_test_count_files(path), 3);
            const int reached = qn_mem_allocations() - made >= n;
            float *new = numbers_of(s.t);
            load(&s, path);
            float *got = numbers_of(s.t);
            const float *want = status == QN_OK ? new : old;
            assert_memory_equal(got, want, (size_t)s.t->n_elements * sizeof *got);
            qn_free(new);
            qn_free(got);
            if (status != (reached ? QN_E_NOMEM : QN_OK))
                fail_msg("allocation %d: %s, %s", (int)n, qn_status_name(status), qn_last_error());
            if (!reached) break;
        }
        qn_free(old);
    }
    close_subject(&s);
    qn_test_remove(scratch);
}

static void expect_refused(subject *s, const char *path, const qn_trainable_options *what, const char *words)
{
    qn_buf notes = {0};
    train(s, what);
    float *before = numbers_of(s->t);
    qn_status status = qn_trainable_load(s->t, &s->base, path, &notes);
    if (status == QN_OK || !strstr(qn_last_error(), words))
        fail_msg("%s: %s, expected \"%s\"", qn_status_name(status), qn_last_error(), words);
    float *after = numbers_of(s->t);
    assert_memory_equal(before, after, (size_t)s->t->n_elements * sizeof *before);
    qn_free(before);
    qn_free(after);
    qn_buf_free(&notes);
}

static void refuses(void **state)
{
    const char *scratch = qn_test_scratch();
    char path[600];
    subject s;
    open_base(&s, "models/llama");
    snprintf(path, sizeof path, "%s/adapter", scratch);
    train(&s, &(qn_trainable_options){.rank = 4, .alpha = 8, .targets = "q_proj,v_proj"});
    qn_test_fill_factors(s.t, 1);
    qn_test_ok(qn_trainable_save(s.t, &s.base, path, NULL));
    const qn_trainable_options others[] = {
        {.rank = 2, .alpha = 4, .targets = "q_proj,v_proj"},
        {.rank = 4, .alpha = 9, .targets = "q_proj,v_proj"},
        {.rank = 4, .alpha = 8, .targets = "q_proj"},
        {.rank = 4, .alpha = 8, .targets = "q_proj,k_proj,v_proj"},
        {.rank = 4, .alpha = 8, .targets = "q_proj,v_proj", .method = QN_TRAIN_DORA},
        {.method = QN_TRAIN_FULL}};
    const char *const words[] = {"rank 4",      "scale 2",    "changes",
                                 "nothing for", "magnitudes", "cannot start from an adapter"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) expect_refused(&s, path, &others[i], words[i]);
    assert_int_equal(qn_trainable_save(s.t, &s.base, path, NULL), QN_E_ARG); /* whole weights */
    assert_non_null(strstr(qn_last_error(), "no adapter"));

    train(&s, &others[0]);
    s.t->arrays[1].data[3] = NAN;
    assert_int_equal(qn_trainable_save(s.t, &s.base, path, NULL), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), s.t->arrays[1].name));
    s.t->arrays[1].data[3] = 3.4e38f; /* rounds to infinity */
    assert_int_equal(qn_trainable_save(s.t, &s.base, path, &(qn_trainable_save_options){.bf16 = 1}),
                     QN_E_ARG);
    s.t->arrays[1].data[3] = 1;
    assert_int_equal(qn_trainable_save(s.t, &s.base, qn_test_path(path, "adapter_config.json"), NULL),
                     QN_E_IO);
    assert_int_equal(qn_trainable_save(s.t, &s.base, qn_test_path(scratch, "no/such"), NULL), QN_E_IO);
    train(&s, &(qn_trainable_options){.rank = 4, .alpha = 8, .targets = "q_proj,v_proj"});
    load(&s, path); /* the first one is still there */
    assert_int_equal(qn_test_count_files(path), 2);
    assert_int_equal(qn_test_count_files(scratch), 1);
    close_subject(&s);
    qn_test_remove(scratch);
}

/* Each allocation of reading fails once. */
static void out_of_memory(void **state)
{
    const char *scratch = qn_test_scratch();
    subject s;
    open_base(&s, "models/llama");
    train(&s, &(qn_trainable_options){.rank = 4, .alpha = 8, .targets = "q_proj", .method = QN_TRAIN_DORA});
    qn_test_ok(qn_trainable_save(s.t, &s.base, scratch, NULL));
    const int64_t live = qn_mem_live_blocks();
    for (int64_t n = 1;; n++) {
        const int64_t made = qn_mem_allocations();
        qn_buf notes = {0};
        qn_mem_fail_nth(n);
        const qn_status status = qn_trainable_load(s.t, &s.base, scratch, &notes);
        qn_mem_fail_nth(0);
        const int reached = qn_mem_allocations() - made >= n;
        if (status != (reached ? QN_E_NOMEM : QN_OK))
            fail_msg("allocation %d: %s, %s", (int)n, qn_status_name(status), qn_last_error());
        qn_buf_free(&notes);
        assert_int_equal(qn_mem_live_blocks(), live);
        if (!reached) break;
    }
    close_subject(&s);
    qn_test_remove(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fixtures_come_back), cmocka_unit_test(engine_agrees),
                                       cmocka_unit_test(names_the_modules),  cmocka_unit_test(half_the_bytes),
                                       cmocka_unit_test(interrupted),        cmocka_unit_test(refuses),
                                       cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests_name("trainable_file", tests, NULL, NULL);
}
