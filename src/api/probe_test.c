/* Probes through the public API: what events hold, that they change no bit, who is called and when. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/machine/probe.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

static const int32_t prompt_ids[] = {3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26};
enum { PROMPT = sizeof prompt_ids / sizeof *prompt_ids, DRAWN = 6, LAYERS_MAX = 64 };

typedef struct {
    qn_model *model;
    int64_t n[QN_PROBE_COUNT];
    int64_t rows_of_layer[LAYERS_MAX], rows_of_attention[LAYERS_MAX];
    double largest;
    qn_status inside; /* what adding a probe gave inside of a call */
} seen;

static qn_model *open_model(const char *name)
{
    char path[128];
    qn_model *model = NULL;
    snprintf(path, sizeof path, "models/%s", name);
    qn_test_ok(qn_model_open(qn_test_need_fixture(path), &(qn_model_options){.n_threads = 2}, &model));
    return model;
}

static void check_rows(const qn_probe_rows *rows)
{
    assert_true(rows->n_rows >= 1 && rows->n_sequences == 1);
    assert_int_equal(rows->row_begin[0], 0);
    assert_int_equal(rows->row_begin[1], rows->n_rows);
    for (int64_t r = 0; r < rows->n_rows; r++) {
        assert_int_equal(rows->positions[r], rows->positions[0] + r);
        if (rows->positions[r] < PROMPT) assert_int_equal(rows->ids[r], prompt_ids[rows->positions[r]]);
    }
}

static void look_at_values(seen *s, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        assert_true(isfinite(x[i]));
        if (fabs((double)x[i]) > s->largest) s->largest = fabs((double)x[i]);
    }
}

static void look_at_attention(seen *s, const qn_probe_attention *a)
{
    check_rows(&a->rows);
    assert_true(a->layer >= 0 && a->layer < LAYERS_MAX);
    s->rows_of_attention[a->layer] += a->rows.n_rows;
    assert_int_equal(a->num_attention_heads % a->num_key_value_heads, 0);
    for (int64_t r = 0; r < a->rows.n_rows; r++) {
        look_at_values(s, a->queries + r * a->queries_stride, a->num_attention_heads * a->head_dim);
        look_at_values(s, a->keys + r * a->keys_stride, a->num_key_value_heads * a->head_dim);
    }
    look_at_values(s, a->output, a->rows.n_rows * a->num_attention_heads * a->v_head_dim);
}

static void look_at_router(const qn_probe_router *r)
{
    check_rows(&r->rows);
    assert_true(r->num_experts_per_tok >= 1);
    for (int64_t i = 0; i < r->rows.n_rows * r->num_experts_per_tok; i++) {
        if (i % r->num_experts_per_tok) assert_true(r->ids[i] > r->ids[i - 1]);
        assert_true(r->ids[i] >= 0 && isfinite(r->weights[i]));
    }
}

static void look(void *user, const qn_probe_event *e)
{
    seen *s = user;
    int64_t ignored;
    s->n[e->point]++;
    s->inside = qn_probe_add(s->model, 1 << QN_PROBE_STEP, look, s, &ignored);
    if (e->layer) {
        check_rows(&e->layer->rows);
        assert_true(e->layer->layer >= 0 && e->layer->layer < LAYERS_MAX);
        s->rows_of_layer[e->layer->layer] += e->layer->rows.n_rows;
        look_at_values(s, e->layer->hidden, e->layer->rows.n_rows * e->layer->hidden_size);
    }
    if (e->attention) look_at_attention(s, e->attention);
    if (e->router) look_at_router(e->router);
}

static void generate(qn_model *model, int32_t *out)
{
    qn_generation *g = NULL;
    qn_token t;
    qn_ids row = {prompt_ids, PROMPT};
    qn_test_ok(qn_generation_open(
        model, &(qn_prompt){.rows = &row, .n_rows = 1},
        &(qn_generate_options){.max_tokens = DRAWN, .ignore_eos = 1, .no_prefix_cache = 1}, &g));
    for (int i = 0; i < DRAWN; i++) {
        qn_test_ok(qn_generation_next(g, &t));
        out[i] = t.id;
    }
    qn_generation_close(g);
}

static void inside_of_steps(void **state)
{
    static seen s;
    int32_t before[DRAWN], during[DRAWN], after[DRAWN];
    int64_t probe = 0;
    qn_model_info info;
    qn_model *model = open_model(*state);
    qn_test_ok(qn_model_get_info(model, &info));
    generate(model, before);
    s = (seen){.model = model};
    qn_test_ok(qn_probe_add(model, 1 << QN_PROBE_LAYER | 1 << QN_PROBE_ATTENTION | 1 << QN_PROBE_ROUTER, look,
                            &s, &probe));
    generate(model, during);
    assert_memory_equal(before, during, sizeof before);
    assert_int_equal(s.inside, QN_E_ARG);
    assert_int_equal(s.n[QN_PROBE_TOKEN] + s.n[QN_PROBE_STEP] + s.n[QN_PROBE_CACHE], 0);
    assert_true(s.n[QN_PROBE_LAYER] > 0 && s.n[QN_PROBE_ATTENTION] > 0 && s.largest > 0);
    assert_int_equal(s.n[QN_PROBE_ROUTER] > 0, strstr(*state, "moe") != NULL || strstr(*state, "deepseek"));
    for (int64_t i = 0; i <= info.num_layers; i++) assert_int_equal(s.rows_of_layer[i], s.rows_of_layer[0]);
    assert_true(s.rows_of_layer[0] >= PROMPT + DRAWN - 1);
    qn_test_ok(qn_probe_remove(model, probe));
    s = (seen){.model = model};
    generate(model, after);
    assert_memory_equal(before, after, sizeof before);
    for (int i = 0; i < QN_PROBE_COUNT; i++) assert_int_equal(s.n[i], 0);
    qn_model_close(&model);
}

/* ---- between steps ------------------------------------------------------------------------------------ */

typedef struct {
    int64_t n[QN_PROBE_COUNT], n_cache[QN_CACHE_EVENT_POISON + 1];
    int32_t ids[DRAWN];
    float logprobs[DRAWN];
    int64_t n_rows, n_prefill_rows, n_reused;
    uint64_t request, step;
} between;

static void look_between(void *user, const qn_probe_event *e)
{
    between *b = user;
    assert_int_equal(!!e->token + !!e->step + !!e->cache, 1);
    assert_true(!e->layer && !e->attention && !e->router);
    if (e->token) {
        assert_true(b->n[QN_PROBE_TOKEN] < DRAWN);
        assert_int_equal(e->token->position, PROMPT + b->n[QN_PROBE_TOKEN]);
        assert_int_equal(e->token->row, 0);
        assert_true(e->token->request >= 1);
        b->ids[b->n[QN_PROBE_TOKEN]] = e->token->id;
        b->logprobs[b->n[QN_PROBE_TOKEN]] = e->token->logprob;
        b->request = e->token->request;
    }
    if (e->step) {
        assert_true(e->step->number > b->step && e->step->ns > 0);
        assert_int_equal(e->step->n_sequences, 1);
        assert_int_equal(e->step->n_waiting, 0);
        b->step = e->step->number;
        b->n_rows += e->step->n_rows;
        b->n_prefill_rows += e->step->n_prefill_rows;
    }
    if (e->cache) {
        b->n_cache[e->cache->event]++;
        if (e->cache->event == QN_CACHE_EVENT_HIT) b->n_reused = e->cache->n_tokens;
    }
    b->n[e->point]++;
}

static void watch(qn_model *model, between *b, int logprobs)
{
    qn_token t;
    qn_generation *g = NULL;
    qn_ids row = {prompt_ids, PROMPT};
    *b = (between){.step = 0};
    qn_test_ok(qn_generation_open(
        model, &(qn_prompt){.rows = &row, .n_rows = 1},
        &(qn_generate_options){.max_tokens = DRAWN, .ignore_eos = 1, .logprobs = logprobs}, &g));
    for (int i = 0; i < DRAWN; i++) {
        qn_test_ok(qn_generation_next(g, &t));
        assert_int_equal(t.id, b->ids[i]); /* nothing comes out that was not seen */
        assert_int_equal(isnan(b->logprobs[i]) != 0, !logprobs);
        if (logprobs) assert_true(t.logprob == b->logprobs[i]);
    }
    qn_generation_close(g);
    assert_int_equal(b->n[QN_PROBE_TOKEN], DRAWN);
}

static void between_steps(void **state)
{
    static between first, second;
    between *now = &first;
    int64_t probe;
    qn_model *model = open_model("llama");
    const uint32_t mask = 1 << QN_PROBE_TOKEN | 1 << QN_PROBE_STEP | 1 << QN_PROBE_CACHE;
    qn_test_ok(qn_probe_add(model, mask, look_between, now, &probe));
    watch(model, now, 0);
    assert_int_equal(first.n_prefill_rows, PROMPT);
    assert_int_equal(first.n_rows, PROMPT + DRAWN - 1);
    assert_int_equal(first.n_cache[QN_CACHE_EVENT_MISS], 1);
    assert_int_equal(first.n_cache[QN_CACHE_EVENT_HIT], 0);
    assert_true(first.n_cache[QN_CACHE_EVENT_INSERT] >= 1);
    qn_test_ok(qn_probe_remove(model, probe));
    now = &second;
    qn_test_ok(qn_probe_add(model, mask, look_between, now, &probe));
    watch(model, now, 1);
    assert_true(second.request > first.request && second.step > 0);
    assert_int_equal(second.n_cache[QN_CACHE_EVENT_HIT], 1);
    assert_true(second.n_reused > 0 && second.n_reused < PROMPT);
    assert_int_equal(second.n_rows, PROMPT + DRAWN - 1 - second.n_reused);
    assert_memory_equal(first.ids, second.ids, sizeof first.ids);
    qn_model_close(&model);
}

static void bad_calls(void **state)
{
    int64_t probe = 0, first = 0;
    qn_model *model = open_model("llama");
    assert_int_equal(qn_probe_add(NULL, 1, look, NULL, &probe), QN_E_ARG);
    assert_int_equal(qn_probe_add(model, 1, NULL, NULL, &probe), QN_E_ARG);
    assert_int_equal(qn_probe_add(model, 0, look, NULL, &probe), QN_E_ARG);
    assert_int_equal(qn_probe_add(model, 1 << QN_PROBE_COUNT, look, NULL, &probe), QN_E_ARG);
    assert_int_equal(qn_probe_remove(NULL, 1), QN_E_ARG);
    assert_int_equal(qn_probe_remove(model, 1), QN_E_NOT_FOUND);
    for (int i = 0; i < QN_PROBES_MAX; i++) {
        qn_test_ok(qn_probe_add(model, QN_PROBE_ALL, look, NULL, i ? NULL : &first));
    }
    assert_int_equal(qn_probe_add(model, 1, look, NULL, &probe), QN_E_FULL);
    qn_test_ok(qn_probe_remove(model, first));
    assert_int_equal(qn_probe_remove(model, first), QN_E_NOT_FOUND);
    qn_test_ok(qn_probe_add(model, 1, look, NULL, &probe));
    assert_true(probe > first);
    assert_string_equal(qn_probe_point_name(QN_PROBE_ATTENTION), "attention");
    assert_string_equal(qn_cache_event_name(QN_CACHE_EVENT_EVICT), "evict");
    assert_string_equal(qn_probe_point_name(QN_PROBE_COUNT), "unknown point");
    qn_model_close(&model);
}

/* ---- the list by itself ------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 2000 };

typedef struct {
    int inside, n;
} one_at_a_time;

static void count(void *user, const qn_probe_event *e)
{
    one_at_a_time *c = user;
    assert_int_equal(c->inside++, 0);
    assert_int_equal(e->token->id, 7);
    c->n++;
    c->inside--;
}

static void *emit(void *arg)
{
    for (int i = 0; i < ROUNDS; i++) {
        const qn_probe_token t = {.id = 7};
        qn_probes_emit(arg, &(qn_probe_event){.point = QN_PROBE_TOKEN, .token = &t});
        qn_probes_emit(arg, &(qn_probe_event){.point = QN_PROBE_STEP});
    }
    return NULL;
}

static void any_thread(void **state)
{
    static qn_probes p;
    one_at_a_time always = {0}, sometimes = {0};
    pthread_t threads[THREADS];
    int64_t kept, number;
    qn_probes_init(&p);
    qn_test_ok(qn_probes_add(&p, 1 << QN_PROBE_TOKEN, count, &always, &kept));
    assert_true(qn_probes_want(&p, QN_PROBE_TOKEN) && !qn_probes_want(&p, QN_PROBE_STEP));
    assert_false(qn_probes_want_steps(&p));
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, emit, &p);
    for (int i = 0; i < ROUNDS; i++) {
        qn_test_ok(qn_probes_add(&p, 1 << QN_PROBE_TOKEN, count, &sometimes, &number));
        qn_test_ok(qn_probes_remove(&p, number));
    }
    int n = sometimes.n; /* nobody calls it any more */
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(sometimes.n, n);
    assert_int_equal(always.n, THREADS * ROUNDS);
    qn_test_ok(qn_probes_remove(&p, kept));
    assert_false(qn_probes_want(&p, QN_PROBE_TOKEN));
    qn_probes_end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(inside_of_steps, (char *)"llama"),
        {"inside_of_steps_qwen3_moe", inside_of_steps, NULL, NULL, (char *)"qwen3_moe"},
        {"inside_of_steps_deepseek_v3", inside_of_steps, NULL, NULL, (char *)"deepseek_v3"},
        {"inside_of_steps_gemma4_k_eq_v", inside_of_steps, NULL, NULL, (char *)"gemma4_k_eq_v"},
        cmocka_unit_test(between_steps),
        cmocka_unit_test(bad_calls),
        cmocka_unit_test(any_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
