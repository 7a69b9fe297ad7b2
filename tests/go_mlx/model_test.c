/* What docs/go-mlx.md names for models: opening, text, generation, chats, lists of prompts, figures, attention,
 * discovery, backends and memory, each called once and looked at. The model is the seed, which every build has,
 * or a tiny one of tests/golden. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { VOCAB = 3072, N = 8, TEXT_BYTES = 4096 };

static qn_model *model;

static int open_seed(void **state)
{
    return qn_model_open(QN_SEED, &(qn_model_options){.n_threads = 2, .context_size = 256}, &model) != QN_OK;
}

static int close_seed(void **state)
{
    return qn_model_close(&model) != QN_OK || model != NULL;
}

/* What a generation gave. */
typedef struct {
    int32_t ids[64];
    int64_t n;
    char text[TEXT_BYTES];
    qn_end end;
} answer;

static answer read_all(qn_generation *g)
{
    answer a = {.n = 0};
    qn_token t = {0};
    while (t.end == QN_END_NONE) {
        qn_test_ok(qn_generation_next(g, &t));
        if (t.id >= 0) a.ids[a.n++] = t.id;
        assert_true(a.n <= 64 && strlen(a.text) + t.text_bytes < TEXT_BYTES);
        memcpy(a.text + strlen(a.text), t.text, t.text_bytes);
    }
    a.end = t.end;
    return a;
}

static answer generate(const char *text, const qn_generate_options *o)
{
    qn_generation *g = NULL;
    qn_test_ok(qn_generate(model, text, o, &g));
    const answer a = read_all(g);
    qn_generation_close(g);
    return a;
}

/* ---- opening and text --------------------------------------------------------------------------------- */

static void opened(void **state)
{
    qn_model_info info;
    qn_model *none = NULL;
    qn_test_ok(qn_model_get_info(model, &info));
    assert_string_equal(info.architecture, "llama");
    assert_true(info.num_layers == 6 && info.hidden_size == 256 && info.vocab_size == VOCAB);
    assert_true(info.context_size == 256 && info.model_context_size == 512 && info.has_chat_template);
    assert_string_equal(info.backend, "native");
    assert_string_equal(info.device, "cpu");
    const qn_status status = qn_model_open("no/such/model", NULL, &none);
    assert_int_equal(status, QN_E_IO);
    assert_string_equal(qn_status_name(status), "QN_E_IO");
    assert_string_equal(qn_status_text(status), "input/output error");
    assert_non_null(strstr(qn_last_error(), "no/such/model"));
}

static void text_and_ids(void **state)
{
    static const char text[] = "What is quern?";
    int32_t *ids = NULL, *rendered = NULL;
    int64_t n, n_rendered;
    size_t n_bytes;
    char *back = NULL, *prompt = NULL;
    qn_test_ok(qn_model_encode(model, text, sizeof text - 1, &(qn_encode_options){.bos = 1}, &ids, &n));
    assert_true(n > 1 && ids[0] == 0);
    qn_test_ok(qn_model_decode(model, ids, n, &(qn_decode_options){.skip_special = 1}, &back, &n_bytes));
    assert_string_equal(back, text);
    assert_int_equal(n_bytes, sizeof text - 1);
    assert_true(qn_model_is_stop_id(model, 1) && !qn_model_is_stop_id(model, ids[1]));
    const qn_prompt chat = {.messages = &(qn_message){"user", text}, .n_messages = 1};
    qn_test_ok(qn_chat_render(model, &chat, &prompt, &rendered, &n_rendered));
    assert_non_null(strstr(prompt, text));
    assert_true(n_rendered > n && rendered[0] == 0);
    qn_buffer_free(ids);
    qn_buffer_free(rendered);
    qn_buffer_free(back);
    qn_buffer_free(prompt);
}

/* ---- generation --------------------------------------------------------------------------------------- */

static void streamed(void **state)
{
    qn_generation *g = NULL;
    qn_generation_stats stats;
    qn_metrics metrics;
    const answer one = generate("The mill", &(qn_generate_options){.max_tokens = N});
    assert_true(one.n == N && one.end == QN_END_LENGTH && one.text[0]);
    assert_string_equal(qn_end_name(one.end), "length");
    const qn_prompt prompt = {.text = "The mill"};
    qn_test_ok(qn_generation_open(model, &prompt, &(qn_generate_options){.max_tokens = N}, &g));
    const answer again = read_all(g);
    assert_string_equal(one.text, again.text);
    qn_test_ok(qn_generation_get_stats(g, &stats));
    assert_true(stats.n_generated_tokens == N && stats.n_prompt_tokens > 1 && stats.decode_ms > 0);
    qn_generation_close(g);
    qn_test_ok(qn_model_get_metrics(model, &metrics));
    assert_true(metrics.decode_tokens_per_sec > 0 && metrics.load_total_ms > 0);
    assert_true(metrics.peak_memory_bytes >= metrics.active_memory_bytes);
    /* a token to stop at is not part of the answer */
    int at = 1;
    for (int i = 0; i < at; i++) at += one.ids[i] == one.ids[at];
    const answer stopped =
        generate("The mill", &(qn_generate_options){.stop_ids = &one.ids[at], .n_stop_ids = 1});
    assert_true(stopped.n == at && stopped.end == QN_END_STOP);
}

/* Temperature first, as go-mlx has it; the seed decides. */
static void sampled(void **state)
{
    const qn_sampler_step order[] = {QN_SAMPLER_TEMPERATURE, QN_SAMPLER_TOP_P, QN_SAMPLER_TOP_K,
                                     QN_SAMPLER_MIN_P};
    assert_string_equal(qn_sampler_step_name(order[0]), "temperature");
    qn_generate_options o = {.max_tokens = N,
                             .temperature = 1.5F,
                             .top_p = 0.95F,
                             .top_k = 50,
                             .min_p = 0.01F,
                             .repeat_penalty = 1.1F,
                             .seed = 3};
    const answer plain = generate("The", &o);
    o.sampler_order = order;
    o.n_sampler_order = 4;
    const answer a = generate("The", &o), b = generate("The", &o);
    assert_memory_equal(a.ids, b.ids, sizeof a.ids);
    int differs = 0;
    for (o.seed = 4; o.seed < 10; o.seed++) {
        const answer other = generate("The", &o);
        differs += memcmp(other.ids, a.ids, sizeof a.ids) != 0;
    }
    assert_true(differs > 0 && plain.n > 0);
}

static void chats(void **state)
{
    qn_generation *g = NULL;
    const qn_message messages[] = {{"user", "What is quern?"}};
    qn_test_ok(qn_chat(model, messages, 1, &(qn_generate_options){.max_tokens = 60}, &g));
    const answer a = read_all(g);
    qn_generation_close(g);
    assert_int_equal(a.end, QN_END_STOP);
    assert_string_equal(a.text,
                        "Quern is a program and a small C library that runs language models on your own "
                        "computer, without Python and without the network.");
}

static void cancelled_and_polled(void **state)
{
    qn_generation *g = NULL;
    qn_token t = {0};
    int is_there = 1;
    qn_test_ok(qn_generate(model, "The mill", &(qn_generate_options){.ignore_eos = 1}, &g));
    qn_test_ok(qn_generation_next(g, &t));
    assert_int_equal(t.end, QN_END_NONE);
    qn_generation_cancel(g);
    const answer rest = read_all(g);
    assert_int_equal(rest.end, QN_END_CANCELLED);
    qn_generation_close(g);

    qn_model *own = NULL;
    qn_test_ok(qn_model_open(QN_SEED, &(qn_model_options){.background = 1, .n_threads = 1}, &own));
    qn_test_ok(qn_generate(own, "The mill", &(qn_generate_options){.max_tokens = 3}, &g));
    int n = 0;
    for (t.end = QN_END_NONE; t.end == QN_END_NONE;) {
        qn_test_ok(qn_generation_poll(g, &t, &is_there));
        n += is_there && t.id >= 0;
        if (!is_there) t.end = QN_END_NONE;
    }
    assert_true(n == 3 && t.end == QN_END_LENGTH);
    qn_generation_close(g);
    qn_test_ok(qn_model_close(&own));
}

/* ---- lists of prompts --------------------------------------------------------------------------------- */

static const qn_prompt prompts[2] = {{.text = "The mill"}, {.text = "Water is"}};

static void batched(void **state)
{
    qn_batch *batch = NULL;
    qn_batch_result r;
    qn_generation_stats stats;
    int is_there = 1;
    const qn_generate_options o = {.max_tokens = N, .ignore_eos = 1};
    qn_test_ok(qn_batch_open(model, prompts, 2, &o, &batch));
    for (size_t i = 0; i < 2; i++) {
        const answer alone = generate(prompts[i].text, &o);
        qn_test_ok(qn_batch_next(batch, &r, &is_there));
        assert_true(is_there && r.i_prompt == i && r.status == QN_OK && r.n_ids == N);
        assert_memory_equal(r.ids, alone.ids, N * sizeof *alone.ids);
        assert_string_equal(r.text, alone.text);
    }
    qn_test_ok(qn_batch_next(batch, &r, &is_there));
    assert_false(is_there);
    qn_test_ok(qn_batch_get_stats(batch, &stats));
    assert_int_equal(stats.n_generated_tokens, 2 * N);
    qn_batch_close(batch);
    qn_test_ok(qn_batch_open(model, prompts, 2, &(qn_generate_options){.ignore_eos = 1}, &batch));
    qn_batch_cancel(batch);
    qn_test_ok(qn_batch_next(batch, &r, &is_there));
    assert_true(is_there && r.end == QN_END_CANCELLED);
    qn_batch_close(batch);
}

static qn_status note_class(void *user, const qn_classify_result *r)
{
    int32_t *ids = user;
    assert_int_equal(r->status, QN_OK);
    assert_non_null(r->logits);
    assert_int_equal(qn_test_argmax(r->logits, VOCAB), r->id);
    ids[r->i_prompt] = r->id;
    return QN_OK;
}

static void classified(void **state)
{
    int32_t ids[2] = {-1, -1};
    qn_test_ok(qn_classify(model, prompts, 2, &(qn_classify_options){.logits = 1}, note_class, ids));
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            ids[i],
            generate(prompts[i].text, &(qn_generate_options){.max_tokens = 1, .ignore_eos = 1}).ids[0]);
}

/* ---- inside ------------------------------------------------------------------------------------------- */

static void attention(void **state)
{
    qn_attention_snapshot *a = NULL;
    const qn_snapshot_options o = {.wanted = QN_SNAPSHOT_QUERIES};
    qn_test_ok(qn_attention_snapshot_new(model, &prompts[0], &o, &a));
    assert_true(a->n_layers == 6 && a->seq_len > 1 && a->ids[0] == 0 && !a->hidden);
    for (int64_t l = 0; l < a->n_layers; l++) {
        const qn_attention_layer *layer = &a->layers[l];
        assert_true(layer->num_key_value_heads == 4 && layer->num_attention_heads == 8);
        assert_true(layer->head_dim == 32 && layer->queries && !layer->attention);
        for (int64_t i = 0; i < 4 * a->seq_len * 32; i++) assert_true(isfinite(layer->keys[i]));
    }
    qn_attention_snapshot_free(a);
}

static qn_status note_model(void *user, const qn_discovery *d)
{
    int *n = user;
    assert_false(d->is_problem);
    assert_int_equal(d->status, QN_OK);
    if (strcmp(d->name, "llama") == 0) {
        assert_string_equal(d->model_type, "llama");
        assert_true(d->n_files == 1 && d->quant_bits == 16);
        n[1]++;
    }
    n[0]++;
    return QN_OK;
}

static void discovered(void **state)
{
    int n[2] = {0};
    qn_test_ok(qn_discover("tests/golden/models", NULL, note_model, n));
    assert_true(n[0] > 1 && n[1] == 1);
}

static void memory(void **state)
{
    qn_memory now;
    size_t old = 1;
    qn_test_ok(qn_model_get_memory(model, &now));
    assert_true(now.active_memory_bytes > now.weights_bytes && now.weights_bytes > 1000000);
    assert_true(now.peak_memory_bytes >= now.active_memory_bytes + now.cache_memory_bytes);
    qn_test_ok(qn_model_clear_cache(model));
    qn_test_ok(qn_model_reset_peak_memory(model));
    qn_test_ok(qn_model_get_memory(model, &now));
    assert_int_equal(now.cache_memory_bytes, 0);
    assert_int_equal(now.peak_memory_bytes, now.active_memory_bytes);
    qn_test_ok(qn_model_set_memory_limit(model, (size_t)1 << 40, &old));
    assert_int_equal(old, 0);
    qn_test_ok(qn_model_set_memory_limit(model, 0, &old));
    assert_int_equal(old, (size_t)1 << 40);
    const size_t usual = now.cache_limit_bytes;
    qn_test_ok(qn_model_set_cache_limit(model, 12345, &old));
    assert_int_equal(old, usual);
    qn_test_ok(qn_model_set_cache_limit(model, usual, NULL));
    qn_test_ok(qn_model_set_wired_limit(model, 1, &old)); /* less than a page */
    assert_int_equal(old, 0);
    qn_test_ok(qn_model_set_wired_limit(model, 0, &old));
    assert_int_equal(old, 1);
}

/* ---- backends ----------------------------------------------------------------------------------------- */

static qn_status parrot_open(const char *path, const qn_model_options *options, void **out)
{
    *out = (void *)(uintptr_t)path; /* borrowed: it is closed before */
    return QN_OK;
}

static void parrot_close(void *m)
{
}

static qn_status parrot_info(void *m, qn_model_info *out)
{
    *out = (qn_model_info){.path = m, .architecture = "parrot"};
    return QN_OK;
}

static const qn_backend parrot = {
    .name = "parrot", .open = parrot_open, .close = parrot_close, .get_info = parrot_info};

static void backends(void **state)
{
    qn_model *bird = NULL;
    qn_model_info info;
    int is_listed = 0;
    qn_test_ok(qn_backend_register(&parrot));
    assert_ptr_equal(qn_backend_get("parrot"), &parrot);
    assert_null(qn_backend_get("metal"));
    for (size_t i = 0; qn_backend_name(i); i++) is_listed += strcmp(qn_backend_name(i), "parrot") == 0;
    assert_int_equal(is_listed, 1);
    assert_string_equal(qn_backend_get(NULL)->name, "native");
    qn_test_ok(qn_backend_set_default("parrot"));
    assert_ptr_equal(qn_backend_get(NULL), &parrot);
    qn_test_ok(qn_model_open("branch", NULL, &bird));
    qn_test_ok(qn_model_get_info(bird, &info));
    assert_string_equal(info.architecture, "parrot");
    assert_string_equal(info.path, "branch");
    qn_test_ok(qn_model_close(&bird));
    qn_test_ok(qn_backend_set_default("native"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opened),     cmocka_unit_test(text_and_ids), cmocka_unit_test(streamed),
        cmocka_unit_test(sampled),    cmocka_unit_test(chats),        cmocka_unit_test(cancelled_and_polled),
        cmocka_unit_test(batched),    cmocka_unit_test(classified),   cmocka_unit_test(attention),
        cmocka_unit_test(discovered), cmocka_unit_test(memory),       cmocka_unit_test(backends),
    };
    return cmocka_run_group_tests(tests, open_seed, close_seed);
}
