/* Attention inspection through the public API: every fixture's keys, attention and hidden states, chunks and
 * company, memory and its limit, bad input, allocations that fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <quern/quern.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/handles.h"
#include "backend/native/native_parts.h"
#include "base/mem.h"
#include "engine/machine/engine_parts.h"
#include "engine/machine/guest.h"
#include "format/safetensors/safetensors.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/golden_states.h"
#include "tests/support/models/kinds.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

static const int32_t prompt_ids[] = {3,  14, 15, 92, 65, 35, 89, 79, 32, 38,
                                     46, 26, 43, 38, 32, 79, 50, 28, 84};
enum { PROMPT = sizeof prompt_ids / sizeof *prompt_ids };

static qn_model *open_model(const char *name, qn_model_options o)
{
    char path[128];
    qn_model *model = NULL;
    snprintf(path, sizeof path, "models/%s", name);
    if (!o.n_threads) o.n_threads = 2;
    qn_test_ok(qn_model_open(qn_test_need_fixture(path), &o, &model));
    return model;
}

static qn_status take(qn_model *model, const int32_t *ids, int64_t n, unsigned wanted,
                      qn_attention_snapshot **out)
{
    qn_ids row = {ids, n};
    return qn_attention_snapshot_new(model, &(qn_prompt){.rows = &row, .n_rows = 1},
                                     &(qn_snapshot_options){.wanted = wanted}, out);
}

static size_t active_bytes(qn_model *model)
{
    qn_memory memory;
    qn_test_ok(qn_model_get_memory(model, &memory));
    return memory.active_memory_bytes;
}

/* ---- golden values ------------------------------------------------------------------------------------ */

typedef struct {
    const char *kind;
    const qn_safetensors *st;
    int64_t
        active; /* of several residual streams the one that layers compute with; -1: their mean is shown, and they
                       lie beside each other, [1, L, streams, hidden_size] or
                       [L, streams * hidden_size] */
    int64_t width; /* hidden_size */
    int n;         /* tensors compared */
    double worst;  /* largest difference as a share of a tensor's largest value */
} golden;

/* got: what stands for the tensor, of so many elements. */
static void compare(golden *g, const char *what, int64_t i, const float *got, int64_t n)
{
    char name[64];
    double most = 0, difference = 0;
    snprintf(name, sizeof name, "%s.%lld", what, (long long)i);
    const qn_tensor_view *v = qn_safetensors_find(g->st, name);
    if (!v) return;
    int64_t streams = v->n_dims == 4 ? v->shape[g->active < 0 ? 2 : 0] : 1;
    if (g->active < 0 && v->n_dims == 2) streams = v->n_elements / n;
    if (!got || v->n_elements != n * streams)
        fail_msg("%s: %s has %lld elements, not %lld", g->kind, name, (long long)v->n_elements, (long long)n);
    const float *all = v->data;
    for (int64_t k = 0; k < n; k++) {
        double want = streams > 1 && g->active >= 0 ? (double)all[g->active * n + k] : 0;
        if (streams == 1) want = (double)all[k];
        for (int64_t i = 0; streams > 1 && g->active < 0 && i < streams; i++)
            want += (double)all[(k / g->width * streams + i) * g->width + k % g->width] / (double)streams;
        const double d = fabs(want - (double)got[k]);
        if (!(d <= difference)) difference = d;
        if (fabs(want) > most) most = fabs(want);
    }
    if (!(difference <= qn_golden_states_tolerance * most))
        fail_msg("%s: %s differs by %.1e of its largest value", g->kind, name, difference / most);
    if (difference / most > g->worst) g->worst = difference / most;
    g->n++;
}

static int64_t keys_of(const qn_attention_snapshot *s, int64_t layer)
{
    const qn_attention_layer *l = &s->layers[layer];
    return l->num_key_value_heads * s->seq_len * l->head_dim;
}

/* How many such tensors the fixture has. */
static int stored(const qn_safetensors *st, int64_t n_layers)
{
    static const char *const names[] = {"keys", "attention", "hidden"};
    int n = 0;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        for (int64_t i = 0; i <= n_layers; i++) {
            char name[64];
            snprintf(name, sizeof name, "%s.%lld", names[k], (long long)i);
            n += qn_safetensors_find(st, name) != NULL;
        }
    return n;
}

static void compare_all(golden *g, const qn_attention_snapshot *s)
{
    for (int64_t i = 0; i < s->n_layers; i++) {
        const qn_attention_layer *l = &s->layers[i];
        compare(g, "keys", i, l->keys, keys_of(s, i));
        compare(g, "attention", i, l->attention, l->num_attention_heads * s->seq_len * s->seq_len);
    }
    const qn_tensor_view *first = qn_safetensors_find(g->st, "hidden.0");
    const int has_streams =
        first && first->n_dims == 4 && g->active >= 0; /* then the last one stored is not normed */
    for (int64_t i = 0; i <= s->n_layers - has_streams; i++)
        compare(g, "hidden", i, s->hidden[i], s->seq_len * s->hidden_size);
    g->n += has_streams;
    assert_int_equal(g->n, stored(g->st, s->n_layers));
}

static void check_same(const qn_attention_snapshot *a, const qn_attention_snapshot *b)
{
    assert_int_equal(a->seq_len, b->seq_len);
    assert_memory_equal(a->ids, b->ids, (size_t)a->seq_len * sizeof *a->ids);
    for (int64_t i = 0; i < a->n_layers; i++) {
        const qn_attention_layer *x = &a->layers[i], *y = &b->layers[i];
        const size_t n = (size_t)(x->num_attention_heads * a->seq_len) * sizeof(float);
        assert_int_equal(x->kv_layer < 0, x->keys == NULL);
        if (x->kv_layer < 0) continue;
        assert_memory_equal(x->keys, y->keys, (size_t)keys_of(a, i) * sizeof(float));
        assert_memory_equal(x->queries, y->queries, n * (size_t)x->query_dim);
        assert_memory_equal(x->attention, y->attention, n * (size_t)a->seq_len);
    }
    for (int64_t i = 0; i <= a->n_layers; i++)
        assert_memory_equal(a->hidden[i], b->hidden[i],
                            (size_t)(a->seq_len * a->hidden_size) * sizeof(float));
}

static void fixture_states(void **state)
{
    golden g = {.kind = *state};
    char path[128];
    qn_safetensors *st;
    qn_attention_snapshot *whole = NULL, *chunks = NULL;
    snprintf(path, sizeof path, "models/%s/expected.safetensors", g.kind);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    g.st = st;
    qn_model_config c;
    snprintf(path, sizeof path, "models/%s", g.kind);
    qn_test_ok(qn_test_config(qn_test_need_fixture(path), &c));
    g.active = c.hyper.hc_count ? -1 : c.altup_active_idx;
    g.width = c.hidden_size;
    qn_config_free(&c);
    const qn_tensor_view *ids = qn_test_tensor(st, "prompt%d.ids", 3);
    qn_model *model = open_model(g.kind, (qn_model_options){.precision = QN_PRECISION_EXACT});
    qn_test_ok(take(model, ids->data, ids->n_elements, QN_SNAPSHOT_ALL, &whole));
    qn_model_close(&model); /* a snapshot lives on */
    compare_all(&g, whole);
    print_message("%s: %d tensors, largest difference %.1e\n", g.kind, g.n, g.worst);
    model = open_model(g.kind, (qn_model_options){.precision = QN_PRECISION_EXACT, .prefill_chunk = 5});
    qn_test_ok(take(model, ids->data, ids->n_elements, QN_SNAPSHOT_ALL, &chunks));
    check_same(whole, chunks);
    qn_attention_snapshot_free(whole);
    qn_attention_snapshot_free(chunks);
    qn_model_close(&model);
    qn_safetensors_close(st);
}

/* Keys far behind the window, of a prompt that is longer than a page. */
static void behind_windows(void **state)
{
    enum { LONG = 150 };
    int32_t ids[LONG];
    qn_attention_snapshot *s = NULL, *start = NULL;
    for (int i = 0; i < LONG; i++) ids[i] = 3 + i % 90;
    qn_model *model = open_model("mistral", (qn_model_options){.prefill_chunk = 32});
    qn_test_ok(take(model, ids, LONG, QN_SNAPSHOT_ATTENTION, &s));
    qn_test_ok(take(model, ids, 40, 0, &start));
    for (int64_t i = 0; i < s->n_layers; i++) {
        const qn_attention_layer *l = &s->layers[i];
        assert_in_range(l->window, 1, LONG / 2); /* there is something behind it */
        assert_null(l->queries);
        for (int64_t h = 0; h < l->num_key_value_heads; h++)
            assert_memory_equal(l->keys + h * LONG * l->head_dim,
                                start->layers[i].keys + h * 40 * l->head_dim,
                                (size_t)(40 * l->head_dim) * sizeof(float));
        for (int64_t r = 0; r < l->num_attention_heads * LONG; r++) {
            double sum = 0;
            for (int64_t j = 0; j < LONG; j++) {
                double p = (double)l->attention[r * LONG + j];
                if (j > r % LONG || j <= r % LONG - l->window) assert_true(p == 0);
                sum += p;
            }
            assert_true(fabs(sum - 1) < 1e-5);
        }
    }
    assert_null(start->layers[0].attention);
    assert_null(start->hidden);
    qn_attention_snapshot_free(s);
    qn_attention_snapshot_free(start);
    qn_model_close(&model);
}

/* ---- layers ------------------------------------------------------------------------------------------- */

static void some_layers(void **state)
{
    qn_attention_snapshot *all = NULL, *some = NULL;
    qn_ids row = {prompt_ids, PROMPT};
    qn_prompt prompt = {.rows = &row, .n_rows = 1};
    qn_model *model = open_model("gemma4_text", (qn_model_options){0});
    qn_test_ok(take(model, prompt_ids, PROMPT, QN_SNAPSHOT_ALL, &all));
    int64_t last = all->n_layers - 1, n_shared = 0;
    for (int64_t i = 0; i < all->n_layers; i++) {
        assert_ptr_equal(all->layers[i].keys, all->layers[all->layers[i].kv_layer].keys);
        n_shared += all->layers[i].kv_layer != i;
    }
    assert_true(n_shared > 0 && all->layers[last].kv_layer < last);
    const int64_t wish[] = {last, 0, last};
    qn_snapshot_options o = {.wanted = QN_SNAPSHOT_ATTENTION, .layers = wish, .n_layers = 3};
    qn_test_ok(qn_attention_snapshot_new(model, &prompt, &o, &some));
    assert_true(some->size_bytes < all->size_bytes);
    for (int64_t i = 0; i < some->n_layers; i++) {
        const qn_attention_layer *l = &some->layers[i];
        assert_int_equal(l->keys != NULL, i == 0 || i == last);
        assert_int_equal(l->attention != NULL, i == 0 || i == last);
        assert_int_equal(l->head_dim, all->layers[i].head_dim);
        if (l->keys)
            assert_memory_equal(l->keys, all->layers[i].keys, (size_t)keys_of(some, i) * sizeof(float));
        if (l->attention)
            assert_memory_equal(l->attention, all->layers[i].attention,
                                (size_t)(l->num_attention_heads * PROMPT * PROMPT) * sizeof(float));
    }
    qn_attention_snapshot_free(some);
    o.n_layers = 0; /* none: hidden states alone */
    o.wanted = QN_SNAPSHOT_HIDDEN;
    qn_test_ok(qn_attention_snapshot_new(model, &prompt, &o, &some));
    for (int64_t i = 0; i < some->n_layers; i++) assert_null(some->layers[i].keys);
    assert_memory_equal(some->hidden[last], all->hidden[last],
                        (size_t)(PROMPT * all->hidden_size) * sizeof(float));
    qn_attention_snapshot_free(some);
    qn_attention_snapshot_free(all);
    qn_model_close(&model);
}

/* However keys are kept, the first layer's are as they were computed. */
static void any_type_of_pages(void **state)
{
    static const qn_kv_type types[] = {QN_KV_F32, QN_KV_F16, QN_KV_BF16, QN_KV_Q8_0, QN_KV_Q4_0};
    qn_attention_snapshot *want = NULL, *got = NULL;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        qn_model *model = open_model("qwen3", (qn_model_options){.kv_type = types[i]});
        qn_test_ok(take(model, prompt_ids, PROMPT, QN_SNAPSHOT_ATTENTION, i ? &got : &want));
        if (i) {
            const qn_attention_layer *l = &want->layers[0];
            assert_memory_equal(got->layers[0].keys, l->keys, (size_t)keys_of(want, 0) * sizeof(float));
            assert_memory_equal(got->layers[0].attention, l->attention,
                                (size_t)(l->num_attention_heads * PROMPT * PROMPT) * sizeof(float));
        }
        qn_attention_snapshot_free(got);
        got = NULL;
        qn_model_close(&model);
    }
    qn_attention_snapshot_free(want);
}

/* Texts and chats are encoded as a generation does it. */
static void texts_and_chats(void **state)
{
    qn_attention_snapshot *s = NULL;
    qn_model *model = open_model("llama", (qn_model_options){0});
    int32_t *ids = NULL;
    int64_t n = 0;
    const qn_message message = {"user", "Hello there"};
    const qn_prompt chat = {.messages = &message, .n_messages = 1};
    qn_test_ok(qn_chat_render(model, &chat, NULL, &ids, &n));
    qn_test_ok(qn_attention_snapshot_new(model, &chat, NULL, &s));
    assert_int_equal(s->seq_len, n);
    assert_memory_equal(s->ids, ids, (size_t)n * sizeof *ids);
    qn_attention_snapshot_free(s);
    qn_buffer_free(ids);
    qn_test_ok(qn_model_encode(model, "Hello", 5, &(qn_encode_options){.bos = 1}, &ids, &n));
    qn_test_ok(qn_attention_snapshot_new(model, &(qn_prompt){.text = "Hello"}, NULL, &s));
    assert_int_equal(s->seq_len, n);
    assert_memory_equal(s->ids, ids, (size_t)n * sizeof *ids);
    qn_attention_snapshot_free(s);
    qn_buffer_free(ids);
    qn_attention_snapshot_free(NULL);
    qn_model_close(&model);
}

/* An image's tokens are its features. */
static void images(void **state)
{
    qn_safetensors *st;
    qn_attention_snapshot *s = NULL;
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture("models/qwen2_vl/expected.safetensors"), &st));
    const qn_tensor_view *rgb = qn_test_tensor(st, "image.rgb", 0), *ids = qn_test_tensor(st, "image.ids", 0),
                         *features = qn_test_tensor(st, "image.features", 0);
    const qn_image image = {.rgb = rgb->data, .width = rgb->shape[1], .height = rgb->shape[0]};
    qn_model *model = open_model("qwen2_vl", (qn_model_options){.precision = QN_PRECISION_EXACT});
    qn_ids row = {ids->data, ids->n_elements};
    qn_test_ok(qn_attention_snapshot_new(
        model, &(qn_prompt){.rows = &row, .n_rows = 1, .images = &image, .n_images = 1},
        &(qn_snapshot_options){.wanted = QN_SNAPSHOT_HIDDEN}, &s));
    assert_int_equal(s->seq_len, ids->n_elements);
    const float *want = features->data;
    int64_t first = 0, width = s->hidden_size;
    double nearest = 1;
    for (; nearest > 1e-3 && first < s->seq_len; first++) { /* where the picture's tokens begin */
        nearest = 0;
        for (int64_t i = 0; i < width; i++) {
            double d = fabs((double)s->hidden[0][first * width + i] - (double)want[i]);
            if (d > nearest) nearest = d;
        }
    }
    assert_true(nearest <= 1e-3);
    for (int64_t i = 0; i < features->n_elements; i++)
        assert_true(fabs((double)s->hidden[0][(first - 1) * width + i] - (double)want[i]) <= 1e-3);
    qn_attention_snapshot_free(s);
    qn_model_close(&model);
    qn_safetensors_close(st);
}

/* Tokens that see those behind them: causal probabilities would be other ones. */
static void images_both_ways(void **state)
{
    qn_safetensors *st;
    qn_attention_snapshot *s = NULL;
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture("models/gemma3_vision/expected.safetensors"), &st));
    const qn_tensor_view *rgb = qn_test_tensor(st, "image.rgb", 0), *ids = qn_test_tensor(st, "image.ids", 0);
    const qn_image image = {.rgb = rgb->data, .width = rgb->shape[1], .height = rgb->shape[0]};
    qn_model *model = open_model("gemma3_vision", (qn_model_options){.precision = QN_PRECISION_EXACT});
    qn_ids row = {ids->data, ids->n_elements};
    const qn_prompt prompt = {.rows = &row, .n_rows = 1, .images = &image, .n_images = 1};
    assert_int_equal(qn_attention_snapshot_new(model, &prompt,
                                               &(qn_snapshot_options){.wanted = QN_SNAPSHOT_ATTENTION}, &s),
                     QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "their tokens see those behind them"));
    qn_test_ok(
        qn_attention_snapshot_new(model, &prompt, &(qn_snapshot_options){.wanted = QN_SNAPSHOT_HIDDEN}, &s));
    qn_attention_snapshot_free(s);
    qn_model_close(&model);
    qn_safetensors_close(st);
}

/* ---- memory ------------------------------------------------------------------------------------------- */

static void memory_comes_back(void **state)
{
    qn_attention_snapshot *s = NULL, *more = NULL;
    qn_model *model = open_model("llama", (qn_model_options){0});
    size_t before = active_bytes(model);
    qn_test_ok(take(model, prompt_ids, PROMPT, QN_SNAPSHOT_ALL, &s));
    assert_int_equal(active_bytes(model), before + s->size_bytes);
    size_t floats = 0;
    for (int64_t i = 0; i < s->n_layers; i++) {
        const qn_attention_layer *l = &s->layers[i];
        floats += (size_t)(keys_of(s, i) + l->num_attention_heads * PROMPT * (l->query_dim + PROMPT));
    }
    floats += (size_t)((s->n_layers + 1) * PROMPT * s->hidden_size);
    assert_true(s->size_bytes >= floats * sizeof(float));
    assert_true(s->size_bytes < floats * sizeof(float) + 8192);
    qn_test_ok(take(model, prompt_ids, PROMPT, QN_SNAPSHOT_ATTENTION, &more)); /* queries for a while */
    assert_int_equal(active_bytes(model), before + s->size_bytes + more->size_bytes);
    qn_attention_snapshot_free(s);
    qn_attention_snapshot_free(more);
    assert_int_equal(active_bytes(model), before);
    qn_model_close(&model);
}

static void generate(qn_generation *g, int n, int32_t *out)
{
    qn_token t;
    for (int i = 0; i < n; i++) {
        qn_test_ok(qn_generation_next(g, &t));
        out[i] = t.id;
    }
}

static qn_generation *begin(qn_model *model)
{
    qn_generation *g = NULL;
    qn_ids row = {prompt_ids, PROMPT};
    qn_test_ok(qn_generation_open(model, &(qn_prompt){.rows = &row, .n_rows = 1},
                                  &(qn_generate_options){.temperature = 1, .seed = 5, .ignore_eos = 1}, &g));
    return g;
}

/* A snapshot that does not fit fails alone, in the middle of a generation. */
static void limit_holds(void **state)
{
    enum { TOKENS = 24, LONG = 200 };
    int32_t want[TOKENS], got[TOKENS], ids[LONG];
    qn_attention_snapshot *s = NULL;
    qn_model *model = open_model("llama", (qn_model_options){.parallel_slots = 2});
    qn_generation *g = begin(model);
    generate(g, TOKENS, want);
    qn_generation_close(g);
    for (int i = 0; i < LONG; i++) ids[i] = 3 + i % 90;
    g = begin(model);
    generate(g, TOKENS / 2, got);
    qn_memory memory;
    qn_test_ok(qn_model_get_memory(model, &memory));
    qn_test_ok(qn_model_set_memory_limit(model, memory.active_memory_bytes + (1 << 20), NULL));
    assert_int_equal(take(model, ids, LONG, QN_SNAPSHOT_ALL, &s), QN_E_NOMEM);
    assert_null(s);
    assert_int_equal(active_bytes(model), memory.active_memory_bytes);
    qn_test_ok(qn_model_set_memory_limit(model, 0, NULL));
    qn_test_ok(take(model, ids, LONG, QN_SNAPSHOT_ALL, &s));
    qn_attention_snapshot_free(s);
    generate(g, TOKENS / 2, got + TOKENS / 2);
    assert_memory_equal(want, got, sizeof want);
    qn_generation_close(g);
    qn_model_close(&model);
}

/* What no machine has is refused before it is computed. */
static void more_than_any_machine(void **state)
{
    enum { HUGE_PROMPT = 1 << 20 };
    qn_attention_snapshot *s = NULL;
    int32_t *ids = test_calloc(HUGE_PROMPT, sizeof *ids);
    qn_model *model = open_model("llama", (qn_model_options){.context_size = HUGE_PROMPT});
    size_t before = active_bytes(model);
    assert_int_equal(take(model, ids, HUGE_PROMPT, QN_SNAPSHOT_ATTENTION, &s), QN_E_NOMEM);
    assert_int_equal(active_bytes(model), before);
    qn_model_close(&model);
    test_free(ids);
}

/* ---- company ------------------------------------------------------------------------------------------ */

enum { COMPANY_TOKENS = 60, COMPANY_SNAPSHOTS = 8 };

/* A generation on a thread of its own. */
typedef struct {
    qn_model *model;
    int n;
    int32_t *out;
    atomic_int is_done, n_taken;
} beside;

static void *generate_tokens(void *arg)
{
    beside *b = arg;
    qn_generation *g = begin(b->model);
    generate(g, b->n, b->out);
    qn_generation_close(g);
    atomic_store(&b->is_done, 1);
    return NULL;
}

static void in_company(void **state)
{
    int32_t want[COMPANY_TOKENS], got[COMPANY_TOKENS];
    qn_attention_snapshot *alone = NULL, *s = NULL;
    pthread_t thread;
    qn_model *model = open_model("gemma3_text", (qn_model_options){.parallel_slots = 2, .prefill_chunk = 6});
    beside b = {.model = model, .n = COMPANY_TOKENS, .out = want};
    generate_tokens(&b);
    b.out = got;
    qn_test_ok(take(model, prompt_ids, PROMPT, QN_SNAPSHOT_ALL, &alone));
    pthread_create(&thread, NULL, generate_tokens, &b);
    for (int i = 0; i < COMPANY_SNAPSHOTS; i++) {
        qn_test_ok(take(model, prompt_ids, PROMPT, QN_SNAPSHOT_ALL, &s));
        check_same(alone, s);
        qn_attention_snapshot_free(s);
    }
    pthread_join(thread, NULL);
    assert_memory_equal(want, got, sizeof want);
    qn_attention_snapshot_free(alone);
    qn_model_close(&model);
}

/* Where memory is short snapshots give way: generations end as they would alone, whatever becomes of those.
 */
static void gives_way(void **state)
{
    enum { TOKENS = 250, LONG = 200, LIMITS = 4 };
    static int32_t want[TOKENS], got[TOKENS], ids[LONG];
    qn_attention_snapshot *s = NULL;
    const int64_t layer = 1;
    qn_ids row = {ids, LONG};
    int n_taken = 0, n_refused = 0;
    for (int i = 0; i < LONG; i++) ids[i] = 3 + i % 90;
    qn_model *model = open_model(
        "llama", (qn_model_options){.parallel_slots = 2, .prefill_chunk = 16, .no_prefix_cache = 1});
    qn_generation *g = begin(model);
    generate(g, TOKENS, want);
    qn_generation_close(g);
    const size_t before = active_bytes(model);
    for (int i = 0; i < LIMITS; i++) {
        beside b = {.model = model, .n = TOKENS, .out = got};
        pthread_t thread;
        qn_test_ok(qn_model_clear_cache(model));
        qn_test_ok(qn_model_set_memory_limit(model, before + (size_t)(i + 4) * 100000, NULL));
        pthread_create(&thread, NULL, generate_tokens, &b);
        while (!atomic_load(&b.is_done)) {
            qn_status status =
                qn_attention_snapshot_new(model, &(qn_prompt){.rows = &row, .n_rows = 1},
                                          &(qn_snapshot_options){.layers = &layer, .n_layers = 1}, &s);
            if (status != QN_OK && status != QN_E_NOMEM) qn_test_ok(status);
            n_taken += status == QN_OK;
            n_refused += status != QN_OK;
            if (status == QN_OK) qn_attention_snapshot_free(s);
        }
        pthread_join(thread, NULL);
        assert_memory_equal(want, got, sizeof want);
        assert_int_equal(active_bytes(model), before);
    }
    print_message("%d snapshots taken, %d refused\n", n_taken, n_refused);
    qn_model_close(&model);
}

/* Takes the pages of a snapshot between two of its chunks, once. */
static void *take_pages(void *arg)
{
    beside *b = arg;
    const native_model *m = b->model->object;
    for (int is_taken = 0; !is_taken && !atomic_load(&b->is_done);) {
        qn_test_ok(qn_scheduler_enter(m->scheduler));
        const qn_guest *g = m->engine->guests;
        if (g && g->sequence && qn_sequence_length(g->sequence) > 0)
            is_taken = qn_guest_give_way(m->engine, NULL);
        qn_scheduler_leave(m->scheduler);
        atomic_store(&b->n_taken, is_taken);
    }
    return NULL;
}

/* A snapshot whose pages went to others begins again, and has the same bits. */
static void begins_again(void **state)
{
    enum { LONG = 200 };
    static int32_t ids[LONG];
    qn_attention_snapshot *alone = NULL, *s = NULL;
    pthread_t thread;
    for (int i = 0; i < LONG; i++) ids[i] = 3 + i % 90;
    qn_model *model = open_model("llama", (qn_model_options){.parallel_slots = 2, .prefill_chunk = 4});
    beside b = {.model = model};
    qn_test_ok(take(model, ids, LONG, QN_SNAPSHOT_ALL, &alone));
    pthread_create(&thread, NULL, take_pages, &b);
    while (!atomic_load(&b.n_taken)) {
        qn_attention_snapshot_free(s);
        qn_test_ok(take(model, ids, LONG, QN_SNAPSHOT_ALL, &s));
        check_same(alone, s);
    }
    atomic_store(&b.is_done, 1);
    pthread_join(thread, NULL);
    qn_attention_snapshot_free(s);
    qn_attention_snapshot_free(alone);
    qn_model_close(&model);
}

/* The same in the engine by itself: pages of a guest go to others, not to itself. */
static void guests_give_way(void **state)
{
    enum { LONG = 200 };
    qn_engine *e =
        qn_test_engine(qn_test_need_fixture("models/llama"), NULL,
                       (qn_engine_options){.n_threads = 1, .context_size = 256, .max_sequences = 2});
    qn_ledger *ledger = qn_engine_ledger(e);
    qn_sequence *s = qn_test_sequence(e);
    qn_guest first = {0}, second = {0};
    assert_int_equal(qn_guest_give_way(e, s), 0);
    qn_test_ok(qn_guest_begin(&first, e));
    qn_test_ok(qn_guest_begin(&second, e));
    qn_test_ok(qn_sequence_reserve(first.sequence, LONG));
    qn_ledger_set_limit(ledger, qn_ledger_total(ledger) + 1000);
    assert_int_equal(qn_sequence_reserve(second.sequence, LONG), QN_OK); /* one takes the other's */
    assert_null(first.sequence);
    qn_guest_end(&first, e);
    qn_test_ok(qn_sequence_reserve(s, LONG));
    assert_null(second.sequence);
    qn_guest_end(&second, e);
    qn_test_ok(qn_guest_begin(&first, e));
    assert_int_equal(qn_sequence_reserve(first.sequence, LONG), QN_E_NOMEM);
    assert_non_null(first.sequence);
    qn_guest_end(&first, e);
    qn_guest_end(&first, e); /* it is none any more */
    qn_sequence_free(s);
    qn_engine_close(e);
}

static void count_layers(void *user, const qn_probe_event *e)
{
    ++*(int *)user;
}

/* Probes do not see it, and are there again afterwards. */
static void beside_probes(void **state)
{
    int n = 0;
    int32_t ids[1];
    qn_attention_snapshot *s = NULL;
    qn_model *model = open_model("llama", (qn_model_options){0});
    qn_test_ok(qn_probe_add(model, 1 << QN_PROBE_LAYER, count_layers, &n, NULL));
    qn_test_ok(take(model, prompt_ids, PROMPT, QN_SNAPSHOT_HIDDEN, &s));
    assert_int_equal(n, 0);
    qn_generation *g = begin(model);
    generate(g, 1, ids);
    assert_int_equal(n, s->n_layers + 1);
    qn_generation_close(g);
    qn_attention_snapshot_free(s);
    qn_model_close(&model);
}

/* ---- bad input ---------------------------------------------------------------------------------------- */

static qn_status from_inside(void *user, int64_t row, int64_t position, int64_t n, const float *logits)
{
    qn_attention_snapshot *s = NULL;
    assert_int_equal(take(user, prompt_ids, PROMPT, 0, &s), QN_E_ARG);
    return QN_OK;
}

static void bad_input(void **state)
{
    qn_attention_snapshot *s = NULL;
    qn_model *model = open_model("llama", (qn_model_options){.context_size = 64});
    qn_ids rows[2] = {{prompt_ids, PROMPT}, {prompt_ids, 2}};
    const int64_t layers[] = {0, 1000}, negative[] = {-1}, many[512] = {0};
    const int32_t outside[] = {3, 1 << 30}, below[] = {-1};
    static const int32_t longer[65] = {1};
    qn_prompt prompt = {.rows = rows, .n_rows = 1};
    const qn_snapshot_options wrong[] = {{.wanted = 8},
                                         {.layers = layers, .n_layers = 2},
                                         {.layers = negative, .n_layers = 1},
                                         {.layers = many, .n_layers = 512},
                                         {.n_layers = 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(qn_attention_snapshot_new(model, &prompt, &wrong[i], &s), QN_E_ARG);
    assert_int_equal(
        qn_attention_snapshot_new(model, &prompt, &(qn_snapshot_options){.adapter = "absent"}, &s),
        QN_E_NOT_FOUND);
    assert_int_equal(qn_attention_snapshot_new(NULL, &prompt, NULL, &s), QN_E_ARG);
    assert_int_equal(qn_attention_snapshot_new(model, NULL, NULL, &s), QN_E_ARG);
    assert_int_equal(qn_attention_snapshot_new(model, &prompt, NULL, NULL), QN_E_ARG);
    assert_int_equal(qn_attention_snapshot_new(model, &(qn_prompt){0}, NULL, &s), QN_E_ARG);
    assert_int_equal(qn_attention_snapshot_new(model, &(qn_prompt){.text = "", .no_bos = 1}, NULL, &s),
                     QN_E_ARG);
    assert_string_equal(qn_last_error(), "the prompt has no tokens");
    assert_int_equal(qn_attention_snapshot_new(model, &(qn_prompt){.text = "\xff"}, NULL, &s), QN_E_FORMAT);
    prompt.n_rows = 2;
    assert_int_equal(qn_attention_snapshot_new(model, &prompt, NULL, &s), QN_E_ARG);
    prompt.n_rows = 1;
    const qn_image image = {.rgb = (const uint8_t *)"abc", .width = 1, .height = 1};
    prompt.images = &image;
    prompt.n_images = 1;
    assert_int_equal(qn_attention_snapshot_new(model, &prompt, NULL, &s), QN_E_UNSUPPORTED);
    assert_int_equal(take(model, prompt_ids, 0, 0, &s), QN_E_ARG);
    assert_int_equal(take(model, outside, 2, 0, &s), QN_E_ARG);
    assert_int_equal(take(model, below, 1, 0, &s), QN_E_ARG);
    assert_int_equal(take(model, longer, 65, 0, &s), QN_E_ARG);
    assert_null(s);
    qn_test_ok(qn_model_logits(model, rows, 1, &(qn_logits_options){.last_only = 1}, from_inside, model));
    qn_test_ok(take(model, prompt_ids, 1, QN_SNAPSHOT_ALL, &s)); /* one token sees itself */
    assert_true(s->layers[0].attention[0] == 1);
    qn_attention_snapshot_free(s);
    qn_model_close(&model);
}

/* Ids need no tokenizer. */
static void no_tokenizer(void **state)
{
    const char *folder = qn_test_scratch();
    qn_attention_snapshot *s = NULL;
    qn_model *model = NULL;
    qn_test_copy(folder, "config.json", qn_test_need_fixture("models/llama/config.json"));
    qn_test_copy(folder, "model.safetensors", qn_test_need_fixture("models/llama/model.safetensors"));
    qn_test_ok(qn_model_open(folder, NULL, &model));
    assert_int_equal(qn_attention_snapshot_new(model, &(qn_prompt){.text = "Hello"}, NULL, &s),
                     QN_E_NOT_FOUND);
    qn_test_ok(take(model, prompt_ids, PROMPT, 0, &s));
    qn_attention_snapshot_free(s);
    qn_model_close(&model);
    qn_test_remove(folder);
}

static void allocations_fail(void **state)
{
    qn_attention_snapshot *s = NULL;
    qn_model *model = open_model("gemma3_text", (qn_model_options){.n_threads = 1});
    qn_test_ok(qn_attention_snapshot_new(model, &(qn_prompt){.text = "Hello"}, NULL, &s));
    qn_attention_snapshot_free(s); /* what is kept from call to call is there now */
    const int64_t live = qn_mem_live_blocks();
    const size_t before = active_bytes(model);
    qn_status status = QN_E_NOMEM;
    int64_t n = 1;
    for (; n <= 2000 && status != QN_OK; n++) {
        s = NULL;
        qn_mem_fail_nth(n);
        status = qn_attention_snapshot_new(model, &(qn_prompt){.text = "Hello"},
                                           &(qn_snapshot_options){.wanted = QN_SNAPSHOT_ALL}, &s);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        if (status != QN_OK) assert_null(s);
        qn_attention_snapshot_free(s);
        assert_int_equal(qn_mem_live_blocks(), live);
        assert_int_equal(active_bytes(model), before);
    }
    qn_test_ok(status);
    assert_true(n > 4);
    qn_model_close(&model);
}

/* An argument picks tests by name: '*phi3*'. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[QN_TEST_KINDS_MAX + 16] = {
        cmocka_unit_test(behind_windows),   cmocka_unit_test(some_layers),
        cmocka_unit_test(texts_and_chats),  cmocka_unit_test(memory_comes_back),
        cmocka_unit_test(limit_holds),      cmocka_unit_test(more_than_any_machine),
        cmocka_unit_test(in_company),       cmocka_unit_test(beside_probes),
        cmocka_unit_test(bad_input),        cmocka_unit_test(no_tokenizer),
        cmocka_unit_test(allocations_fail), cmocka_unit_test(images),
        cmocka_unit_test(images_both_ways), cmocka_unit_test(gives_way),
        cmocka_unit_test(guests_give_way),  cmocka_unit_test(begins_again),
        cmocka_unit_test(any_type_of_pages)};
    static const qn_test_kind_row row = {"fixture_states_", fixture_states};
    size_t n = 0;
    while (tests[n].name) n++;
    n += (size_t)qn_test_kind_rows(1, &row, tests + n);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests("snapshot", tests, n, NULL, NULL);
}
