/* Adapters on every family: each fixture with an adapter on all matrices that take one must give the logits
 * of a copy of the model into whose weights the adapter was added. What takes none must be refused by name.
 */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "format/source/source.h"
#include "prim/dtype.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/adapter_dir.h"
#include "tests/support/models/golden_states.h"
#include "tests/support/models/kinds.h"
#include "tests/support/scratch.h"

enum { IDS = 40, RANK = 3 };

/* Matrices that take no adapter: tables, experts, convolutions, matrices of which each head uses its own
 * part, what the model does not use. */
static const char *const refused[] = {"embed",  "experts.", "conv1d",    "kv_b_proj", "vision",
                                      "visual", "audio",    "projector", "connector", NULL};

static int may_be_refused(const char *name)
{
    for (const char *const *part = refused; *part; part++)
        if (strstr(name, *part)) return 1;
    return 0;
}

static int takes_adapter(qn_engine *e, const char *folder, const char *module, int64_t n_in, int64_t n_out,
                         int dora)
{
    qn_buf notes = {0};
    qn_test_adapter *a = qn_test_adapter_new(RANK, RANK);
    qn_test_adapter_add(a, module, RANK, n_in, n_out, 1);
    if (dora) qn_test_adapter_add_magnitudes(a, module, n_out, 1, 1);
    const char *path = qn_test_adapter_write(a, folder, "one", QN_ADAPTER_PEFT);
    qn_status status = qn_engine_adapter_load(e, "one", path, 1, &notes);
    qn_test_adapter_free(a);
    if (status == QN_OK) qn_test_ok(qn_engine_adapter_unload(e, "one"));
    if (status != QN_OK && !strstr(qn_last_error(), module)) fail_msg("%s: %s", module, qn_last_error());
    return status == QN_OK;
}

/* Tensors of each module, in this order: A, B and, for DoRA, the magnitudes. */
static size_t parts_of(const qn_test_adapter *a)
{
    return json_is_true(json_object_get(a->config, "use_dora")) ? 3 : 2;
}

/* The adapter of a tensor's module; NULL: it has none. */
static const qn_test_adapter_tensor *pair_of(const qn_test_adapter *a, const char *tensor)
{
    size_t n = strlen(tensor) - strlen(".weight"), skip = strlen("base_model.model.");
    for (size_t i = 0; i < a->n; i += parts_of(a))
        if (strncmp(a->tensors[i].name + skip, tensor, n) == 0 && a->tensors[i].name[skip + n] == '.' &&
            strncmp(a->tensors[i].name + skip + n, ".lora_A", 7) == 0)
            return &a->tensors[i];
    return NULL;
}

static int is_candidate(const qn_tensor_view *v, char module[QN_TEST_ADAPTER_NAME])
{
    size_t n = strlen(v->name);
    if (v->n_dims != 2 || n < 8 || strcmp(v->name + n - 7, ".weight") != 0) return 0;
    snprintf(module, QN_TEST_ADAPTER_NAME, "%.*s", (int)(n - 7), v->name);
    return 1;
}

/* Adapters for all of the model that takes one; factor 1 (alpha is the rank). */
static qn_test_adapter *adapt_all(qn_engine *e, const qn_source *src, const char *folder, int dora)
{
    qn_test_adapter *a = qn_test_adapter_new(RANK, RANK);
    char module[QN_TEST_ADAPTER_NAME];
    for (int64_t i = 0; i < qn_source_count(src); i++) {
        const qn_tensor_view *v = qn_source_get(src, i);
        if (!is_candidate(v, module)) continue;
        if (strstr(v->name, "embed")) continue;
        int takes = takes_adapter(e, folder, module, v->shape[1], v->shape[0], dora);
        if (takes) qn_test_adapter_add(a, module, RANK, v->shape[1], v->shape[0], 100 + (uint64_t)i);
        if (takes && dora)
            qn_test_adapter_add_magnitudes(a, module, v->shape[0], 0.15f * sqrtf((float)v->shape[1]),
                                           900 + (uint64_t)i);
        if (takes) continue;
        if (!may_be_refused(v->name)) fail_msg("%s: %s", v->name, qn_last_error());
    }
    return a;
}

/* The model with the adapter added to its weights, which are f32 there. */
static void write_merged(const qn_source *src, const char *from, const qn_test_adapter *a, const char *to)
{
    qn_st_writer *w;
    qn_test_copy(to, "config.json", qn_test_path(from, "config.json"));
    qn_test_ok(qn_st_writer_new(qn_test_path(to, "model.safetensors"), &w));
    for (int64_t i = 0; i < qn_source_count(src); i++) {
        const qn_tensor_view *v = qn_source_get(src, i);
        qn_dtype dtype = pair_of(a, v->name) ? QN_DTYPE_F32 : v->dtype;
        qn_test_ok(qn_st_writer_add(w, v->name, dtype, v->n_dims, v->shape, NULL));
    }
    qn_test_ok(qn_st_writer_begin(w));
    for (int64_t i = 0; i < qn_source_count(src); i++) {
        const qn_tensor_view *v = qn_source_get(src, i);
        const qn_test_adapter_tensor *t = pair_of(a, v->name);
        if (!t) {
            qn_test_ok(qn_st_writer_write(w, i, 0, v->data, v->size_bytes));
            continue;
        }
        float *values = test_calloc((size_t)v->n_elements, sizeof *values);
        qn_test_ok(qn_weights_floats(v, values));
        for (int64_t o = 0; o < v->shape[0]; o++) {
            double length = 0;
            float *row = values + o * v->shape[1];
            for (int64_t j = 0; j < v->shape[1]; j++) {
                double sum = row[j];
                for (int64_t k = 0; k < RANK; k++)
                    sum += (double)t[1].values[o * RANK + k] * (double)t[0].values[k * v->shape[1] + j];
                row[j] = (float)sum;
                length += sum * sum;
            }
            if (parts_of(a) == 2) continue;
            for (int64_t j = 0; j < v->shape[1]; j++)
                row[j] = (float)(row[j] * (double)t[2].values[o] / sqrt(length));
        }
        qn_test_ok(qn_st_writer_write(w, i, 0, values, (size_t)v->n_elements * sizeof *values));
        test_free(values);
    }
    qn_test_ok(qn_st_writer_finish(w));
    qn_st_writer_free(w);
}

typedef struct {
    float *out;
    int64_t vocab;
} copies;

static qn_status copy_logits(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    const copies *c = user;
    memcpy(c->out + first * c->vocab, logits, (size_t)(n * c->vocab) * sizeof *logits);
    return QN_OK;
}

static float *logits_of(qn_engine *e, const int32_t *ids, const char *adapter)
{
    int32_t id;
    copies c = {.vocab = qn_engine_config(e)->vocab_size};
    c.out = test_calloc((size_t)(IDS * c.vocab), sizeof *c.out);
    qn_test_ok(qn_adapters_hold(qn_engine_adapters(e), adapter, &id));
    qn_sequence *s = qn_test_sequence(e);
    qn_sequence_set_adapter(s, id);
    qn_feed feed = {s, ids, IDS, QN_LOGITS_ALL};
    qn_test_ok(qn_engine_step(e, 1, &feed, copy_logits, NULL, &c));
    qn_sequence_free(s);
    qn_adapters_release(qn_engine_adapters(e), id);
    return c.out;
}

typedef struct {
    const float *expected[2];
    int64_t vocab;
} pair_of_feeds;

static qn_status same_bits(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    const pair_of_feeds *p = user;
    size_t bytes = (size_t)(n * p->vocab) * sizeof *logits;
    int differ = memcmp(logits, p->expected[feed] + first * p->vocab, bytes) != 0;
    return differ ? qn_fail(QN_E_INTERNAL, "bits of row %d differ in company", (int)feed) : QN_OK;
}

/* The same ids with the adapter and without, in one step: to the bit what each gives alone. */
static void in_company(qn_engine *e, const int32_t *ids, const float *with, const float *without)
{
    int32_t id;
    pair_of_feeds p = {{with, without}, qn_engine_config(e)->vocab_size};
    qn_test_ok(qn_adapters_hold(qn_engine_adapters(e), "all", &id));
    qn_sequence *s[2] = {qn_test_sequence(e), qn_test_sequence(e)};
    qn_sequence_set_adapter(s[0], id);
    const qn_feed feeds[2] = {{s[0], ids, IDS, QN_LOGITS_ALL}, {s[1], ids, IDS, QN_LOGITS_ALL}};
    qn_test_ok(qn_engine_step(e, 2, feeds, same_bits, NULL, &p));
    for (int i = 0; i < 2; i++) qn_sequence_free(s[i]);
    qn_adapters_release(qn_engine_adapters(e), id);
}

static double largest_difference(const float *a, const float *b, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static void compare(qn_engine *e, const qn_source *src, const char *name, const char *dir, int dora,
                    const qn_engine_options *options)
{
    char merged[512];
    qn_engine *other;
    qn_buf notes = {0};
    const char *folder = qn_test_scratch();
    snprintf(merged, sizeof merged, "%s", qn_test_scratch());
    qn_test_adapter *a = adapt_all(e, src, folder, dora);
    write_merged(src, dir, a, merged);
    qn_test_ok(qn_engine_adapter_load(
        e, "all", qn_test_adapter_write(a, folder, "all", dora ? QN_ADAPTER_MLX : QN_ADAPTER_PEFT), 1,
        &notes));
    qn_test_ok(qn_test_engine_try(merged, options, &other));
    int64_t vocab = qn_engine_config(e)->vocab_size;
    int32_t ids[IDS];
    for (int i = 0; i < IDS; i++) ids[i] = (int32_t)(qn_random_bits(6, (uint64_t)i) % (uint64_t)vocab);
    float *got = logits_of(e, ids, "all"), *want = logits_of(other, ids, "none"),
          *bare = logits_of(e, ids, "none");
    double d = largest_difference(got, want, IDS * vocab),
           change = largest_difference(got, bare, IDS * vocab);
    printf("%s: %d matrices%s, logits differ by %.2g, the adapter changes them by %.2g\n", name,
           (int)(a->n / parts_of(a)), dora ? " (DoRA)" : "", d, change);
    /* As for logits against the reference, which these two ways to the same numbers are nearer than. */
    if (!(d <= qn_golden_tolerance(name)) || !(change > 0.1)) fail_msg("%s: logits differ by %g", name, d);
    in_company(e, ids, got, bare);
    test_free(got);
    test_free(want);
    test_free(bare);
    qn_test_adapter_free(a);
    qn_test_ok(qn_engine_adapter_unload(e, "all"));
    qn_engine_close(other);
    qn_test_remove(folder);
    qn_test_remove(merged);
}

static void adapter_is_as_if_merged(void **state)
{
    const char *name = *state;
    char path[512], dir[512];
    qn_source *src;
    qn_engine *e = NULL;
    const qn_engine_options options = {
        .precision = QN_PRECISION_EXACT, .max_rows = 64, .max_sequences = 2, .context_size = 64};
    snprintf(path, sizeof path, "models/%s", name);
    snprintf(dir, sizeof dir, "%s", qn_test_need_fixture(path));
    qn_test_ok(qn_test_engine_try(dir, &options, &e));
    qn_test_ok(qn_source_open(dir, NULL, &src));
    for (int dora = 0; dora < 2; dora++) compare(e, src, name, dir, dora, &options);
    qn_engine_close(e);
    qn_source_close(src);
}

int main(void)
{
    static struct CMUnitTest tests[QN_TEST_KINDS_MAX];
    static const qn_test_kind_row row = {"", adapter_is_as_if_merged};
    int n = qn_test_kind_rows(1, &row, tests);
    return _cmocka_run_group_tests("adapters of families", tests, (size_t)n, NULL, NULL);
}
