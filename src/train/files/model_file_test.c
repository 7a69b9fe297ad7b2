/* Whole weights on disk: what was trained is what the files hold and what the engine computes, for bases of
 * every kind and each type; the rest is the base's; and whoever fails leaves the folder as it was. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/mem.h"
#include "format/files/mmap.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"
#include "tests/support/train_help.h"
#include "train/files/model_file.h"

typedef struct {
    qn_train_base base;
    qn_trainer *trainer;
    qn_trainable *t;
    qn_test_batch batch;
} subject;

/* Trained for two steps. */
static void open_subject(subject *s, const char *path, const qn_trainable_options *what)
{
    const qn_trainer_options o = {.trainable = *what,
                                  .optimizer = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
                                  .max_rows = QN_TEST_BATCH_ROWS,
                                  .max_sequences = QN_TEST_BATCH_SEQUENCES,
                                  .precision = QN_PRECISION_EXACT};
    double loss;
    *s = (subject){0};
    qn_test_ok(qn_train_base_open(path, NULL, 2, 0, &s->base));
    qn_test_batch_draw(&s->batch, s->base.config.vocab_size, 11);
    qn_test_ok(qn_trainer_new(&s->base, &o, &s->trainer));
    s->t = qn_trainer_trainable(s->trainer);
    for (int i = 0; i < 2; i++) {
        qn_test_ok(qn_trainer_add(s->trainer, &s->batch.batch, &loss));
        qn_test_ok(qn_trainer_update(s->trainer, 1e-3, NULL));
    }
}

static void close_subject(subject *s)
{
    qn_trainer_free(s->trainer);
    qn_train_base_close(&s->base);
}

static double loss_of(subject *s)
{
    double loss;
    qn_test_ok(qn_trainer_evaluate(s->trainer, &s->batch.batch, &loss));
    return loss;
}

static double engine_loss(const char *path, const qn_train_batch *b)
{
    qn_engine *e = qn_test_engine(
        path, NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT, .max_rows = 64, .n_threads = 2});
    const double loss = qn_test_engine_loss(e, "none", b);
    qn_engine_close(e);
    return loss;
}

/* ---- the same model ------------------------------------------------------------------------------------ */

/* Arrays of the same names hold the same bits. */
static void same_arrays(const qn_trainable *a, const qn_trainable *b)
{
    assert_int_equal(a->n, b->n);
    for (int64_t i = 0; i < a->n; i++) {
        assert_string_equal(a->arrays[i].name, b->arrays[i].name);
        assert_int_equal(a->arrays[i].n, b->arrays[i].n);
        assert_memory_equal(a->arrays[i].data, b->arrays[i].data, (size_t)a->arrays[i].n * sizeof(float));
    }
}

/* Trains, writes as f32, and opens what was written. */
static void comes_back(const char *path)
{
    const char *scratch = qn_test_scratch();
    const qn_trainable_options what = {.method = QN_TRAIN_FULL};
    char out[512];
    subject s;
    qn_train_base base;
    qn_trainer *again;
    double loss;
    snprintf(out, sizeof out, "%s/model", scratch);
    open_subject(&s, path, &what);
    qn_test_ok(qn_trainable_save_model(s.t, &s.base, out, "f32"));
    const double trained = loss_of(&s), computed = engine_loss(out, &s.batch.batch);
    qn_test_ok(qn_train_base_open(out, NULL, 2, 0, &base));
    qn_test_ok(qn_trainer_new(&base, qn_trainer_get_options(s.trainer), &again));
    same_arrays(s.t, qn_trainer_trainable(again));
    qn_test_ok(qn_trainer_evaluate(again, &s.batch.batch, &loss));
    if (loss != trained) fail_msg("%s: loss %.17g, trained %.17g", path, loss, trained);
    if (!(fabs(computed - trained) <= 1e-5 * fabs(trained)))
        fail_msg("%s: the engine's loss is %g, the trainer's %g", path, computed, trained);
    for (int64_t i = 0; i < qn_source_count(base.source); i++)
        assert_int_equal(qn_source_get(base.source, i)->dtype, QN_DTYPE_F32);
    assert_int_equal(qn_test_count_files(scratch), 1);
    if (qn_source_get_kind(base.source) == QN_SOURCE_GGUF) assert_int_equal(qn_test_count_files(out), 1);
    qn_trainer_free(again);
    qn_train_base_close(&base);
    close_subject(&s);
    qn_test_remove(scratch);
}

static void same_numbers(void **state)
{
    static const char *const fixtures[] = {"models/llama",
                                           "models/llama_rope3_tied", /* in shards, without a head */
                                           "models/phi3",             /* several matrices in a tensor */
                                           "models/gemma3",           /* a decoder among other parts */
                                           "models/qwen2",            /* biases */
                                           "models/qwen3_5",          /* tensors of three dimensions */
                                           "models/olmo2",
                                           "models/gemma4_text",
                                           "quant/mlx_models/qwen3-4bit-g64",
                                           "quant/mlx_models/qwen2-mxfp4",
                                           "mlx/qwen3-nvfp4",
                                           "quant/gguf_models/llama-Q4_K_M.gguf",
                                           "quant/gguf_models/gemma3-Q8_0.gguf"};
    comes_back(qn_test_need_fixture(fixtures[0]));
    for (size_t i = 1; i < sizeof fixtures / sizeof *fixtures; i++) {
        const char *path = qn_test_fixture(fixtures[i]);
        if (path) comes_back(path);
    }
}

/* Each type that may be asked for; what is lost is what it rounds off. */
static void other_types(void **state)
{
    static const struct {
        const char *type;
        qn_dtype dtype;
        double tolerance;
    } types[] = {{"f16", QN_DTYPE_F16, 5e-3}, {"bf16", QN_DTYPE_BF16, 4e-2}};
    const char *scratch = qn_test_scratch();
    subject s;
    qn_source *after;
    open_subject(&s, qn_test_need_fixture("models/llama"), &(qn_trainable_options){.method = QN_TRAIN_FULL});
    const double trained = loss_of(&s);
    for (int i = 0; i < 2; i++) {
        const char *out = qn_test_path(scratch, types[i].type);
        qn_test_ok(qn_trainable_save_model(s.t, &s.base, out, types[i].type));
        const double got = engine_loss(out, &s.batch.batch);
        if (!(fabs(got - trained) <= types[i].tolerance * trained))
            fail_msg("%s: loss %g, trained %g", types[i].type, got, trained);
        qn_test_ok(qn_source_open(out, NULL, &after));
        for (int64_t k = 0; k < qn_source_count(after); k++)
            assert_int_equal(qn_source_get(after, k)->dtype, types[i].dtype);
        qn_source_close(after);
    }
    close_subject(&s);
    qn_test_remove(scratch);
}

/* What is not trained has the base's bytes and types. */
static void the_rest_stays(void **state)
{
    const char *scratch = qn_test_scratch(), *out = qn_test_path(scratch, "model");
    const qn_trainable_options what = {.method = QN_TRAIN_FULL, .layer_begin = 1, .layer_end = 2};
    subject s;
    qn_source *after;
    int64_t n_changed = 0;
    open_subject(&s, qn_test_need_fixture("models/llama"), &what);
    qn_test_ok(qn_trainable_save_model(s.t, &s.base, out, NULL));
    qn_test_ok(qn_source_open(out, NULL, &after));
    assert_int_equal(qn_source_count(after), qn_source_count(s.base.source));
    for (int64_t i = 0; i < qn_source_count(after); i++) {
        const qn_tensor_view *x = qn_source_get(s.base.source, i), *y = qn_source_get(after, i);
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->dtype, y->dtype);
        if (strstr(x->name, "layers.1."))
            n_changed += memcmp(x->data, y->data, x->size_bytes) != 0;
        else
            assert_memory_equal(x->data, y->data, x->size_bytes);
    }
    assert_int_equal(n_changed, s.t->n);
    qn_source_close(after);
    close_subject(&s);
    qn_test_remove(scratch);
}

/* ---- refusals and failures ----------------------------------------------------------------------------- */

static void expect(subject *s, const char *out, const char *type, qn_status want, const char *words)
{
    const qn_status status = qn_trainable_save_model(s->t, &s->base, out, type);
    if (status != want || !strstr(qn_last_error(), words))
        fail_msg("%s: %s, expected %s with \"%s\"", qn_status_name(status), qn_last_error(),
                 qn_status_name(want), words);
}

static void refuses(void **state)
{
    const char *scratch = qn_test_scratch(), *out = qn_test_path(scratch, "model");
    char base[512];
    subject s;
    snprintf(base, sizeof base, "%s", qn_test_need_fixture("models/llama"));
    open_subject(&s, base, &(qn_trainable_options){.rank = 2, .alpha = 2});
    expect(&s, out, NULL, QN_E_ARG, "adapter");
    close_subject(&s);
    open_subject(&s, base, &(qn_trainable_options){.method = QN_TRAIN_FULL, .layer_begin = 1});
    expect(&s, out, "q4_0", QN_E_ARG, "q4_0");
    s.base.config.rope_changed = 1;
    expect(&s, out, NULL, QN_E_ARG, "keeps those of its files");
    s.base.config.rope_changed = 0;
    expect(&s, qn_test_path(scratch, "no/such"), NULL, QN_E_IO, "no/such");
    s.t->arrays[1].data[3] = NAN;
    expect(&s, out, NULL, QN_E_ARG, s.t->arrays[1].name);
    s.t->arrays[1].data[3] = 1e6f;
    expect(&s, out, "f16", QN_E_UNSUPPORTED, "too large");
    close_subject(&s);
    assert_int_equal(qn_test_count_files(scratch), 0);
    qn_test_remove(scratch);
}

/* A disk that takes 20,000 bytes, and memory that ends: the older model stays, whole. */
static void failures(void **state)
{
    const char *scratch = qn_test_scratch();
    char out[512], *before, *after;
    size_t n_before, n_after;
    struct rlimit old;
    subject s;
    snprintf(out, sizeof out, "%s/model", scratch);
    open_subject(&s, qn_test_need_fixture("models/llama"),
                 &(qn_trainable_options){.method = QN_TRAIN_FULL, .layer_end = 1});
    qn_test_ok(qn_trainable_save_model(s.t, &s.base, out, NULL));
    qn_test_write_text(out, "notes.txt", "of the user");
    const int n_files = qn_test_count_files(out);
    qn_test_ok(qn_file_read(qn_test_path(out, "model.safetensors"), 1 << 28, &before, &n_before));
    s.t->arrays[0].data[0] += 1;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    struct rlimit small = {20000, old.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const qn_status full = qn_trainable_save_model(s.t, &s.base, out, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(full, QN_E_IO);

    const int64_t live = qn_mem_live_blocks();
    for (int64_t n = 1;; n += n < 100 ? 1 : 23) {
        const int64_t made = qn_mem_allocations();
        qn_mem_fail_nth(n);
        const qn_status status = qn_trainable_save_model(s.t, &s.base, out, NULL);
        qn_mem_fail_nth(0);
        const int reached = qn_mem_allocations() - made >= n;
        if (status != (reached ? QN_E_NOMEM : QN_OK))
            fail_msg("allocation %d: %s, %s", (int)n, qn_status_name(status), qn_last_error());
        assert_int_equal(qn_mem_live_blocks(), live);
        assert_int_equal(qn_test_count_files(scratch), 1);
        assert_int_equal(qn_test_count_files(out), n_files);
        qn_test_ok(qn_file_read(qn_test_path(out, "model.safetensors"), 1 << 28, &after, &n_after));
        assert_int_equal(n_before, n_after);
        assert_int_equal(memcmp(before, after, n_before) == 0, reached);
        qn_free(after);
        if (!reached) break;
    }
    qn_free(before);
    close_subject(&s);
    qn_test_remove(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_numbers), cmocka_unit_test(other_types),
                                       cmocka_unit_test(the_rest_stays), cmocka_unit_test(refuses),
                                       cmocka_unit_test(failures)};
    return cmocka_run_group_tests_name("model_file", tests, NULL, NULL);
}
