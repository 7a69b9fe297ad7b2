/* Adapters on the matrices of experts, for every kind of model that has some: the trainer's loss is the engine's in
 * both layouts, what was written comes back to the last bit, all forms of one adapter are the same, sequences with
 * and without adapters share a batch, the adapter can be added to the weights, and what cannot be is refused. With QUERN_ADAPTERS set to a folder, adapters
 * are left there for tools/peft_check.py. */
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

#include "base/mem.h"
#include "base/random.h"
#include "device/cpu/kernels/kernels.h"
#include "model/adapter/adapter_file.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/json_file.h"
#include "tests/support/models/adapter_dir.h"
#include "tests/support/models/kinds.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"
#include "tests/support/train_help.h"
#include "train/files/trainable_file.h"

static void load(qn_engine *e, const char *name, const char *path, float scale)
{
    qn_buf notes = {0};
    qn_test_ok(qn_engine_adapter_load(e, name, path, scale, &notes));
    if (notes.length) fail_msg("%s: notes: %s", path, notes.data);
}

/* ---- kinds -------------------------------------------------------------------------------------------- */

static void each_kind(void (*test)(const char *kind, const char *path))
{
    static qn_test_kind_list kinds;
    int n = 0;
    qn_test_kinds(&kinds);
    for (int i = 0; i < kinds.n; i++) {
        char fixture[96], path[512];
        qn_model_config c;
        snprintf(fixture, sizeof fixture, "models/%s", kinds.names[i]);
        if (!qn_test_fixture(fixture)) continue;
        snprintf(path, sizeof path, "%s", qn_test_fixture(fixture));
        qn_test_ok(qn_test_config(path, &c));
        const int64_t n_experts = c.experts.num_experts;
        qn_config_free(&c);
        if (!n_experts) continue;
        test(kinds.names[i], path);
        n++;
    }
    if (!n) qn_test_leave_out("no model with experts is there");
}

typedef struct {
    qn_train_base base;
    qn_trainer *trainer;
    qn_trainable *t;
    qn_test_batch batch;
} subject;

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

static void open_subject(subject *s, const char *path)
{
    *s = (subject){0};
    qn_test_ok(qn_train_base_open(path, NULL, 2, 0, &s->base));
    qn_test_batch_draw(&s->batch, s->base.config.vocab_size, 11);
}

static void close_subject(subject *s)
{
    qn_trainer_free(s->trainer);
    qn_train_base_close(&s->base);
}

static float *numbers_of(const qn_trainable *t)
{
    float *all = qn_alloc_array((size_t)t->n_elements, sizeof *all), *at = all;
    for (int64_t i = 0; i < t->n; i++, at += t->arrays[i - 1].n)
        memcpy(at, t->arrays[i].data, (size_t)t->arrays[i].n * sizeof *at);
    return all;
}

/* An adapter of random numbers for the experts of a model. */
static void make(const char *model, const char *targets, uint64_t seed, qn_adapter_layout layout,
                 const char *path)
{
    subject s;
    open_subject(&s, model);
    train(&s, &(qn_trainable_options){.rank = 3, .alpha = 5, .targets = targets});
    qn_test_fill_factors(s.t, seed);
    qn_test_ok(qn_trainable_save(s.t, &s.base, path, &(qn_trainable_save_options){.layout = layout}));
    close_subject(&s);
}

/* ---- trainer, files and engine ------------------------------------------------------------------------ */

static void agree_on(const char *kind, const char *path)
{
    static const struct {
        const char *name;
        qn_trainable_options what;
        qn_adapter_layout layout;
    } ways[] = {
        {"experts", {.rank = 3, .alpha = 40, .targets = "*.experts.*"}, QN_ADAPTER_PEFT},
        {"experts_first", {.rank = 2, .alpha = 30, .rslora = 1, .targets = "gate_up_proj"}, QN_ADAPTER_PEFT},
        {"experts_second", {.rank = 2, .alpha = 30, .targets = "experts.down_proj"}, QN_ADAPTER_PEFT},
        {"experts_all",
         {.rank = 2, .alpha = 4, .targets = "*.experts.*,*.o*_proj", .layer_begin = 1},
         QN_ADAPTER_PEFT},
        {"experts_mlx", {.rank = 3, .alpha = 40, .targets = "*.experts.*"}, QN_ADAPTER_MLX},
        {"experts_mlx_some",
         {.rank = 2, .alpha = 7, .targets = "experts.down_proj,*.o*_proj"},
         QN_ADAPTER_MLX},
    };
    const char *keep = getenv("QUERN_ADAPTERS");
    const char *scratch = keep && *keep ? keep : qn_test_scratch();
    subject s;
    double plain = 0;
    open_subject(&s, path);
    qn_engine *e = qn_test_adapter_engine(path, NULL, 2);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char out[700], name[16];
        double loss, by_engine;
        snprintf(out, sizeof out, "%s/%s-%s", scratch, kind, ways[i].name);
        snprintf(name, sizeof name, "a%d", (int)i);
        qn_trainable_options what = ways[i].what;
        if (s.base.config.plain_mlp && strcmp(what.targets, "gate_up_proj") == 0)
            what.targets = "experts.up_proj";
        train(&s, &what);
        if (!plain) qn_test_ok(qn_trainer_evaluate(s.trainer, &s.batch.batch, &plain));
        qn_test_fill_factors(s.t, 100 * (uint64_t)i);
        qn_test_ok(qn_trainer_evaluate(s.trainer, &s.batch.batch, &loss));
        if (!(fabs(loss - plain) > 1e-3))
            fail_msg("%s %s moves the loss by %g", kind, ways[i].name, loss - plain);
        qn_test_ok(
            qn_trainable_save(s.t, &s.base, out, &(qn_trainable_save_options){.layout = ways[i].layout}));
        load(e, name, out, 1);
        by_engine = qn_test_engine_loss(e, name, &s.batch.batch);
        if (!(fabs(loss - by_engine) <= 1e-5))
            fail_msg("%s %s: loss %.7f, the engine's %.7f, without it %.7f", kind, ways[i].name, loss,
                     by_engine, plain);
        float *want = numbers_of(s.t);
        for (int64_t k = 0; k < s.t->n; k++)
            memset(s.t->arrays[k].data, 0, (size_t)s.t->arrays[k].n * sizeof(float));
        qn_buf notes = {0};
        qn_test_ok(qn_trainable_load(s.t, &s.base, out, &notes));
        if (notes.length) fail_msg("notes: %s", notes.data);
        float *got = numbers_of(s.t);
        assert_memory_equal(got, want, (size_t)s.t->n_elements * sizeof *got);
        qn_free(got);
        qn_free(want);
    }
    qn_engine_close(e);
    close_subject(&s);
    if (scratch != keep) qn_test_remove(scratch);
}

static void trainer_and_engine_agree(void **state)
{
    each_kind(agree_on);
}

/* ---- forms -------------------------------------------------------------------------------------------- */

enum { N_IDS = 19 };

/* "model.layers.0.mlp.experts.7.up_proj" of a pattern with '@'. */
static void of_expert(const char *pattern, int64_t expert, const char *ending,
                      char name[QN_TEST_ADAPTER_NAME])
{
    const char *at = strchr(pattern, '@');
    snprintf(name, QN_TEST_ADAPTER_NAME, "base_model.model.%.*s%lld%s%s", (int)(at - pattern), pattern,
             (long long)expert, at + 1, ending);
}

/* The adapter at path as older versions of transformers have it, with linear layers for each expert but the second.
 * 0: the family never had them. */
static int write_each(const qn_model_config *c, const char *path, const char *folder, const char *name)
{
    char pattern[QN_TENSOR_NAME_MAX], tensor[QN_TEST_ADAPTER_NAME];
    qn_adapter_file f;
    qn_buf notes = {0};
    if (!qn_family_expert_module(c->family, QN_EXPERTS_EACH, "model.", QN_WEIGHT_EXPERT_GATE, 0, pattern,
                                 NULL))
        return 0;
    qn_test_ok(qn_adapter_file_open(path, c, &notes, &f));
    qn_test_adapter *out = qn_test_adapter_new(f.targets[0].rank, f.config.alpha);
    for (int64_t i = 0; i < f.n_targets; i++) {
        const qn_adapter_target *t = &f.targets[i];
        const int64_t rank = t->rank, shape[3] = {rank, t->n_in, rank};
        float *a = qn_alloc_array((size_t)(t->n_experts * rank * (t->n_in + t->n_out)), sizeof *a),
              *b = a + t->n_experts * rank * t->n_in;
        qn_test_ok(qn_adapter_target_read(t, a, b, NULL));
        qn_family_expert_module(c->family, QN_EXPERTS_EACH, "model.", t->role, t->layer, pattern, NULL);
        for (int64_t e = 0; e < t->n_experts; e++) {
            if (e == 1) continue;
            of_expert(pattern, e, ".lora_A.weight", tensor);
            memcpy(qn_test_adapter_add_tensor(out, tensor, 2, shape)->values, a + e * rank * t->n_in,
                   (size_t)(rank * t->n_in) * sizeof *a);
            of_expert(pattern, e, ".lora_B.weight", tensor);
            qn_test_adapter_tensor *to =
                qn_test_adapter_add_tensor(out, tensor, 2, (int64_t[]){t->n_out, rank});
            for (int64_t k = 0; k < rank * t->n_out; k++)
                to->values[k % t->n_out * rank + k / t->n_out] = b[e * rank * t->n_out + k];
        }
        qn_free(a);
    }
    (void)qn_test_adapter_write(out, folder, name, QN_ADAPTER_PEFT);
    qn_test_adapter_free(out);
    qn_adapter_file_close(&f);
    return 1;
}

/* One adapter in all forms: the same bits. */
static void forms_of(const char *kind, const char *path)
{
    const char *scratch = qn_test_scratch();
    char peft[600], mlx[600], each[600];
    subject s;
    snprintf(peft, sizeof peft, "%s/peft", scratch);
    snprintf(mlx, sizeof mlx, "%s/mlx", scratch);
    snprintf(each, sizeof each, "%s/each", scratch);
    open_subject(&s, path);
    train(&s, &(qn_trainable_options){.rank = 3, .alpha = 6, .targets = "*.experts.*"});
    qn_test_fill_factors(s.t, 5);
    for (int64_t i = 0; i < s.t->n; i++) { /* nothing for the second expert */
        const int64_t each_has = s.t->arrays[i].n / s.t->arrays[i].shape.dim[0];
        memset(s.t->arrays[i].data + each_has, 0, (size_t)each_has * sizeof(float));
    }
    qn_test_ok(qn_trainable_save(s.t, &s.base, peft, NULL));
    qn_test_ok(qn_trainable_save(s.t, &s.base, mlx, &(qn_trainable_save_options){.layout = QN_ADAPTER_MLX}));
    qn_engine *e = qn_test_adapter_engine(path, NULL, 2);
    const uint64_t plain = qn_test_adapter_hash(e, "none");
    load(e, "peft", peft, 1);
    load(e, "mlx", mlx, 1);
    assert_true(qn_test_adapter_hash(e, "none") == plain);
    const uint64_t hash = qn_test_adapter_hash(e, "peft");
    assert_true(hash != plain);
    if (qn_test_adapter_hash(e, "mlx") != hash) fail_msg("%s: mlx_lm's layout gives other bits", kind);
    if (write_each(qn_engine_config(e), peft, scratch, "each")) {
        load(e, "each", each, 1);
        if (qn_test_adapter_hash(e, "each") != hash)
            fail_msg("%s: layers of each expert give other bits", kind);
        qn_buf notes = {0};
        float *before = numbers_of(s.t);
        qn_test_ok(qn_trainable_load(s.t, &s.base, each, &notes));
        float *after = numbers_of(s.t);
        assert_memory_equal(before, after, (size_t)s.t->n_elements * sizeof *before);
        qn_free(before);
        qn_free(after);
    }
    for (int i = 0; i < 3; i++)
        (void)qn_engine_adapter_unload(e, (const char *const[]){"peft", "mlx", "each"}[i]);
    assert_true(qn_test_adapter_hash(e, "none") == plain);
    qn_engine_close(e);
    close_subject(&s);
    qn_test_remove(scratch);
}

static void all_forms(void **state)
{
    each_kind(forms_of);
}

/* ---- company ------------------------------------------------------------------------------------------ */

enum { SEQUENCES = 6, LONGEST = 10 };
static const char *const used[SEQUENCES] = {"one", "none", "two", "one", "half", "none"};

typedef struct {
    float *out[SEQUENCES];
    int64_t vocab, at;
} gathered;

static qn_status gather(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    const gathered *g = user;
    memcpy(g->out[feed] + (g->at + first) * g->vocab, logits, (size_t)(n * g->vocab) * sizeof *logits);
    return QN_OK;
}

/* Sequences [first, first + n) in steps of `piece` tokens each, into out[first..]. */
static void run(qn_engine *e, int first, int n, int64_t piece, float *const *out)
{
    int32_t id[SEQUENCES], ids[LONGEST];
    qn_sequence *s[SEQUENCES];
    const int64_t vocab = qn_engine_config(e)->vocab_size;
    for (int i = 0; i < LONGEST; i++) ids[i] = (int32_t)(qn_random_bits(3, (uint64_t)i) % (uint64_t)vocab);
    for (int i = 0; i < n; i++) {
        s[i] = qn_test_sequence(e);
        qn_test_ok(qn_adapters_hold(qn_engine_adapters(e), used[first + i], &id[i]));
        qn_sequence_set_adapter(s[i], id[i]);
    }
    for (int64_t t = 0; t < LONGEST; t += piece) {
        gathered g = {.vocab = vocab, .at = t};
        qn_feed feeds[SEQUENCES];
        for (int i = 0; i < n; i++) {
            g.out[i] = out[first + i];
            feeds[i] = (qn_feed){s[i], ids + t, LONGEST - t < piece ? LONGEST - t : piece, QN_LOGITS_ALL};
        }
        qn_test_ok(qn_engine_step(e, n, feeds, gather, NULL, &g));
    }
    for (int i = 0; i < n; i++) {
        qn_sequence_free(s[i]);
        qn_adapters_release(qn_engine_adapters(e), id[i]);
    }
}

static void same_bits(const char *kind, const char *how, int64_t n, float *const *got, float *const *want)
{
    for (int i = 0; i < SEQUENCES; i++)
        if (memcmp(got[i], want[i], (size_t)n * sizeof **got) != 0)
            fail_msg("%s, %s: bits of sequence %d (%s) differ", kind, how, i, used[i]);
}

static void company_of(const char *kind, const char *path)
{
    const char *scratch = qn_test_scratch();
    char one[600], two[600];
    snprintf(one, sizeof one, "%s/one", scratch);
    snprintf(two, sizeof two, "%s/two", scratch);
    make(path, "*.experts.*", 1, QN_ADAPTER_PEFT, one);
    make(path, "experts.down_proj,*.o*_proj", 40, QN_ADAPTER_MLX, two);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        float *alone[SEQUENCES], *got[SEQUENCES];
        for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
            qn_engine *e = qn_test_adapter_engine(path, *set, n_threads),
                      *bare = qn_test_adapter_engine(path, *set, 1);
            const int64_t n = LONGEST * qn_engine_config(e)->vocab_size;
            for (int i = 0; i < SEQUENCES && n_threads == 1; i++) {
                alone[i] = qn_alloc_array((size_t)n, sizeof **alone);
                got[i] = qn_alloc_array((size_t)n, sizeof **got);
            }
            load(e, "one", one, 1);
            load(e, "two", two, -1.5f);
            load(e, "half", one, 0.5f);
            for (int i = 0; i < SEQUENCES && n_threads == 1; i++) run(e, i, 1, LONGEST, alone);
            run(e, 0, SEQUENCES, LONGEST, got);
            same_bits(kind, "all in one step", n, got, alone);
            run(e, 0, SEQUENCES, 1, got);
            same_bits(kind, "token by token", n, got, alone);
            for (int i = 0; i < SEQUENCES; i++) run(e, i, 1, 3, got);
            same_bits(kind, "alone in pieces", n, got, alone);
            assert_true(memcmp(alone[0], alone[2], (size_t)n * sizeof **alone) != 0);
            assert_true(memcmp(alone[0], alone[4], (size_t)n * sizeof **alone) != 0);
            run(bare, 1, 1, LONGEST, got); /* "none" where no program has a step for adapters */
            assert_memory_equal(got[1], alone[1], (size_t)n * sizeof **alone);
            qn_engine_close(bare);
            qn_engine_close(e);
        }
        for (int i = 0; i < SEQUENCES; i++) {
            qn_free(alone[i]);
            qn_free(got[i]);
        }
    }
    qn_test_remove(scratch);
}

static void same_bits_in_company(void **state)
{
    each_kind(company_of);
}

/* ---- added to the weights ----------------------------------------------------------------------------- */

/* Logits of a model with the adapter in its weights are those of the adapter beside it. */
static void same_logits(const char *kind, const char *path, const float *want, int64_t n, double tolerance)
{
    int64_t vocab;
    float *got = qn_test_logits_with(path, NULL, N_IDS, &vocab);
    assert_int_equal(N_IDS * vocab, n);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= tolerance))
            fail_msg("%s: %s: logit %lld is %g, expected %g", kind, path, (long long)i, (double)got[i],
                     (double)want[i]);
    qn_free(got);
}

static int64_t last_with_experts(const char *path, int *has_gate)
{
    qn_model_config c;
    qn_test_ok(qn_test_config(path, &c));
    int64_t i = c.num_hidden_layers - 1;
    while (i >= 0 && !c.layers[i].has_experts) i--;
    assert_true(i >= 0);
    *has_gate = !c.plain_mlp;
    qn_config_free(&c);
    return i;
}

/* Tensors without matrices of experts of this layer keep their bytes. */
static void the_rest_stays(const char *before_path, const char *after_path, int64_t layer)
{
    char part[32];
    snprintf(part, sizeof part, "layers.%lld.", (long long)layer);
    qn_source *before, *after;
    int n_changed = 0;
    qn_test_ok(qn_source_open(before_path, NULL, &before));
    qn_test_ok(qn_source_open(after_path, NULL, &after));
    assert_int_equal(qn_source_count(before), qn_source_count(after));
    for (int64_t i = 0; i < qn_source_count(before); i++) {
        const qn_tensor_view *x = qn_source_get(before, i), *y = qn_source_find(after, x->name);
        assert_non_null(y);
        assert_int_equal(x->dtype, y->dtype);
        assert_memory_equal(x->shape, y->shape, sizeof x->shape);
        if (memcmp(x->data, y->data, x->size_bytes) == 0) continue;
        if (!strstr(x->name, part) || (!strstr(x->name, "experts.") && !strstr(x->name, "block_sparse_moe.")))
            fail_msg("%s has changed", x->name);
        n_changed++;
    }
    assert_true(n_changed > 0);
    qn_source_close(before);
    qn_source_close(after);
}

static int n_gguf;

static void fused_of(const char *kind, const char *path)
{
    const char *scratch = qn_test_scratch();
    char adapter[600], some[600], out[600], base[600], tuned[600], again[600], target[64];
    int64_t vocab;
    qn_fuse_result result;
    int has_gate;
    const int64_t layer = last_with_experts(path, &has_gate);
    const qn_fuse_options f32 = {.type = "f32"};
    snprintf(adapter, sizeof adapter, "%s/adapter", scratch);
    snprintf(some, sizeof some, "%s/some", scratch);
    snprintf(out, sizeof out, "%s/out", scratch);
    snprintf(base, sizeof base, "%s/base.gguf", scratch);
    snprintf(tuned, sizeof tuned, "%s/tuned.gguf", scratch);
    snprintf(again, sizeof again, "%s/again.gguf", scratch);
    make(path, "*.experts.*", 21, QN_ADAPTER_PEFT, adapter);
    float *want = qn_test_logits_with(path, adapter, N_IDS, &vocab);
    qn_test_ok(qn_model_fuse(path, adapter, out, &f32, &result));
    assert_true(result.n_merged > 0 && result.n_merged % (has_gate ? 3 : 2) == 0);
    same_logits(kind, out, want, N_IDS * vocab, 2e-4);
    const qn_status status = qn_model_fuse(path, NULL, base, &f32, NULL);
    if (status == QN_OK) {
        qn_test_ok(qn_model_fuse(path, adapter, tuned, &f32, NULL));
        same_logits(kind, tuned, want, N_IDS * vocab, 2e-4);
        qn_test_ok(qn_model_fuse(base, adapter, again, NULL, NULL));
        same_logits(kind, again, want, N_IDS * vocab, 2e-4);
        n_gguf++;
    } else if (status != QN_E_UNSUPPORTED) {
        fail_msg("%s: %s", kind, qn_last_error());
    }
    snprintf(target, sizeof target, "*.layers.%lld.*experts.%s", (long long)layer,
             has_gate ? "gate_up_proj" : "up_proj");
    make(path, target, 22, QN_ADAPTER_MLX, some);
    snprintf(out, sizeof out, "%s/some_out", scratch);
    qn_test_ok(qn_model_fuse(path, some, out, NULL, NULL));
    the_rest_stays(path, out, layer);
    qn_free(want);
    qn_test_remove(scratch);
}

static void added_to_weights(void **state)
{
    n_gguf = 0;
    each_kind(fused_of);
    assert_true(n_gguf > 0);
}

/* Quantised matrices of all experts in one tensor, as MLX has them: decoded, or quantised again. */
static void quantised(void **state)
{
    const char *scratch = qn_test_scratch();
    char model[512], adapter[600], out[2][600];
    int64_t vocab;
    snprintf(model, sizeof model, "%s", qn_test_need_fixture("mlx/gemma4_moe-4bit"));
    snprintf(adapter, sizeof adapter, "%s/adapter", scratch);
    make(model, "*.experts.*", 23, QN_ADAPTER_MLX, adapter);
    float *want = qn_test_logits_with(model, adapter, N_IDS, &vocab),
          *bare = qn_test_logits_with(model, NULL, N_IDS, &vocab);
    double moved = 0;
    for (int64_t i = 0; i < N_IDS * vocab; i++) moved = fmax(moved, fabs((double)want[i] - (double)bare[i]));
    for (int i = 0; i < 2; i++) {
        snprintf(out[i], sizeof out[i], "%s/out%d", scratch, i);
        qn_test_ok(qn_model_fuse(model, adapter, out[i], &(qn_fuse_options){.type = i ? NULL : "f32"}, NULL));
    }
    same_logits("f32", out[0], want, N_IDS * vocab, 2e-4);
    same_logits("quantised", out[1], want, N_IDS * vocab, 0.9 * moved);
    qn_free(want);
    qn_free(bare);
    qn_test_remove(scratch);
}

/* ---- configuration and refusals ----------------------------------------------------------------------- */

static void expect_json(const char *dir, const char *key, const char *want)
{
    json_t *config = qn_test_json(qn_test_path(dir, "adapter_config.json")),
           *value = json_loads(want, JSON_DECODE_ANY, NULL);
    if (!json_equal(json_object_get(config, key), value)) {
        char *text = json_dumps(json_object_get(config, key), JSON_ENCODE_ANY | JSON_COMPACT);
        fail_msg("%s: %s is %s, expected %s", dir, key, text, want);
    }
    json_decref(config);
    json_decref(value);
}

/* What both libraries are told; peft takes no dropout beside parameters. */
static void names_parameters(void **state)
{
    const char *scratch = qn_test_scratch();
    subject s;
    open_subject(&s, qn_test_need_fixture("models/qwen3_moe"));
    train(&s, &(qn_trainable_options){.rank = 2,
                                      .alpha = 4,
                                      .dropout = 0.25F,
                                      .targets = "*.experts.*,q_proj",
                                      .layer_begin = 1,
                                      .layer_end = 2});
    qn_test_ok(qn_trainable_save(s.t, &s.base, scratch, NULL));
    expect_json(scratch, "target_modules", "[\"model.layers.1.self_attn.q_proj\"]");
    expect_json(scratch, "target_parameters",
                "[\"model.layers.1.mlp.experts.down_proj\", \"model.layers.1.mlp.experts.gate_up_proj\"]");
    expect_json(scratch, "lora_dropout", "0");
    qn_test_ok(
        qn_trainable_save(s.t, &s.base, scratch, &(qn_trainable_save_options){.layout = QN_ADAPTER_MLX}));
    expect_json(scratch, "lora_parameters",
                "{\"rank\": 2, \"scale\": 2, \"dropout\": 0.25, \"keys\": [\"mlp.switch_mlp.down_proj\", "
                "\"mlp.switch_mlp.gate_proj\", \"mlp.switch_mlp.up_proj\", \"self_attn.q_proj\"]}");
    close_subject(&s);
    qn_test_remove(scratch);
}

/* A copy of an adapter of mlx_lm's in which gate and up have different A. */
static void bend_mlx(const char *path)
{
    char file[700];
    qn_safetensors *st;
    qn_st_writer *w;
    snprintf(file, sizeof file, "%s/adapters.safetensors", path);
    qn_test_ok(qn_safetensors_open(file, &st));
    qn_test_ok(qn_st_writer_new(file, &w));
    const int64_t n = qn_safetensors_count(st);
    for (int64_t i = 0; i < n; i++) {
        const qn_tensor_view *v = qn_safetensors_get(st, i);
        qn_test_ok(qn_st_writer_add(w, v->name, v->dtype, v->n_dims, v->shape, NULL));
    }
    qn_test_ok(qn_st_writer_begin(w));
    for (int64_t i = 0; i < n; i++) {
        const qn_tensor_view *v = qn_safetensors_get(st, i);
        const float other = 0.5F;
        const size_t cut = strstr(v->name, "up_proj.lora_a") ? sizeof other : 0;
        if (cut) qn_test_ok(qn_st_writer_write(w, i, 0, &other, cut));
        qn_test_ok(qn_st_writer_write(w, i, cut, (const char *)v->data + cut, v->size_bytes - cut));
    }
    qn_test_ok(qn_st_writer_finish(w));
    qn_st_writer_free(w);
    qn_safetensors_close(st);
}

/* The engine takes it; training has one A for both. */
static void two_inputs_of_one_module(void **state)
{
    const char *scratch = qn_test_scratch();
    char model[512];
    subject s;
    qn_buf notes = {0};
    snprintf(model, sizeof model, "%s", qn_test_need_fixture("models/qwen3_moe"));
    open_subject(&s, model);
    train(&s, &(qn_trainable_options){.rank = 2, .alpha = 4, .targets = "*.experts.*"});
    qn_test_fill_factors(s.t, 3);
    qn_test_ok(
        qn_trainable_save(s.t, &s.base, scratch, &(qn_trainable_save_options){.layout = QN_ADAPTER_MLX}));
    qn_engine *e = qn_test_adapter_engine(model, NULL, 2);
    load(e, "same", scratch, 1);
    bend_mlx(scratch);
    load(e, "other", scratch, 1);
    assert_true(qn_test_adapter_hash(e, "same") != qn_test_adapter_hash(e, "other"));
    qn_engine_close(e);
    float *before = numbers_of(s.t);
    assert_int_equal(qn_trainable_load(s.t, &s.base, scratch, &notes), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "up_proj.lora_a differ, but "));
    float *after = numbers_of(s.t);
    assert_memory_equal(before, after, (size_t)s.t->n_elements * sizeof *before);
    qn_free(before);
    qn_free(after);
    close_subject(&s);
    qn_test_remove(scratch);
}

/* Each allocation of a load fails once: nothing is left. */
static void memory_runs_out(void **state)
{
    const char *scratch = qn_test_scratch();
    char model[512], peft[600], each[600];
    const char *const paths[2] = {peft, each};
    snprintf(model, sizeof model, "%s", qn_test_need_fixture("models/qwen3_moe"));
    snprintf(peft, sizeof peft, "%s/peft", scratch);
    snprintf(each, sizeof each, "%s/each", scratch);
    make(model, "*.experts.*", 4, QN_ADAPTER_PEFT, peft);
    qn_model_config c;
    qn_test_ok(qn_test_config(model, &c));
    assert_true(write_each(&c, peft, scratch, "each"));
    for (int i = 0; i < 2; i++) {
        const int64_t live = qn_mem_live_blocks();
        for (int64_t n = 1;; n++) {
            const int64_t made = qn_mem_allocations();
            qn_adapter_file f = {0};
            qn_buf notes = {0};
            qn_mem_fail_nth(n);
            const qn_status status = qn_adapter_file_open(paths[i], &c, &notes, &f);
            qn_mem_fail_nth(0);
            const int reached = qn_mem_allocations() - made >= n;
            if (status != (reached ? QN_E_NOMEM : QN_OK))
                fail_msg("allocation %d: %s, %s", (int)n, qn_status_name(status), qn_last_error());
            qn_adapter_file_close(&f);
            qn_buf_free(&notes);
            assert_int_equal(qn_mem_live_blocks(), live);
            if (!reached) break;
        }
    }
    qn_config_free(&c);
    qn_test_remove(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(trainer_and_engine_agree),
                                       cmocka_unit_test(all_forms),
                                       cmocka_unit_test(same_bits_in_company),
                                       cmocka_unit_test(added_to_weights),
                                       cmocka_unit_test(quantised),
                                       cmocka_unit_test(names_parameters),

                                       cmocka_unit_test(two_inputs_of_one_module),
                                       cmocka_unit_test(memory_runs_out)};
    return cmocka_run_group_tests_name("adapters_experts", tests, NULL, NULL);
}
