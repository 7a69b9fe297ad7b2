/* The public handles over a backend made for this test: it answers with the words of its prompt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <quern/quern.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "text/tokenizer/tokenizer.h"

typedef struct {
    char text[256];
    int64_t n_rows, row, position;
    int64_t failing_row; /* -1: none */
    int waits;           /* next blocks until cancelled */
    uint64_t seed;
    const qn_cancel *cancel;
} echo;

static atomic_int n_models, n_generations;
static void (*within)(void); /* called by the next event that is computed */

static qn_status echo_open(const char *path, const qn_model_options *options, void **model)
{
    if (strcmp(path, "missing") == 0) return qn_fail(QN_E_IO, "missing: no such file");
    void *m = qn_alloc(1);
    if (!m) return QN_E_NOMEM;
    atomic_fetch_add(&n_models, 1);
    *model = m;
    return QN_OK;
}

static void echo_close(void *model)
{
    assert_int_equal(atomic_load(&n_generations), 0);
    atomic_fetch_sub(&n_models, 1);
    qn_free(model);
}

static qn_status echo_generation_open(void *model, const qn_prompt *prompt,
                                      const qn_generate_options *options, const qn_cancel *cancel,
                                      void **generation)
{
    char *json = NULL;
    if (prompt->conversation) QN_TRY(qn_conversation_get_json(prompt->conversation, &json));
    echo *e = qn_calloc(1, sizeof *e);
    if (!e) {
        qn_buffer_free(json);
        return QN_E_NOMEM;
    }
    const char *text = prompt->text ? prompt->text : json ? json : "rows";
    memcpy(e->text, text, strlen(text) < 255 ? strlen(text) : 255);
    e->n_rows = prompt->rows ? prompt->n_rows : 1;
    e->failing_row = e->n_rows > 2 ? 1 : -1;
    e->waits = strcmp(text, "wait") == 0;
    e->seed = options->seed;
    qn_buffer_free(json);
    e->cancel = cancel;
    atomic_fetch_add(&n_generations, 1);
    *generation = e;
    return QN_OK;
}

static qn_status echo_next(void *generation, qn_token *out)
{
    echo *e = generation;
    if (within) within();
    while (e->waits && !qn_cancel_is_set(e->cancel)) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    out->row = e->row;
    out->position = e->position++;
    if (qn_cancel_is_set(e->cancel)) {
        out->end = QN_END_CANCELLED;
        e->row++;
        return QN_OK;
    }
    if (e->row == e->failing_row) {
        e->row++;
        return qn_fail(QN_E_INTERNAL, "row %lld went wrong", (long long)out->row);
    }
    if (out->position == 0) {
        out->id = 7;
        out->text = e->text;
        out->text_bytes = strlen(e->text);
        return QN_OK;
    }
    out->end = QN_END_STOP;
    e->position = 0;
    e->row++;
    return QN_OK;
}

static qn_status echo_stats(void *generation, qn_generation_stats *out)
{
    *out = (qn_generation_stats){.seed = ((echo *)generation)->seed};
    return QN_OK;
}

static void echo_generation_close(void *generation)
{
    atomic_fetch_sub(&n_generations, 1);
    qn_free(generation);
}

static const qn_backend echo_backend = {
    .name = "echo",
    .open = echo_open,
    .close = echo_close,
    .generation_open = echo_generation_open,
    .generation_next = echo_next,
    .generation_get_stats = echo_stats,
    .generation_close = echo_generation_close,
};

/* One that answers without figures, and one that answers nothing. */
static const qn_backend brief_backend = {
    .name = "brief",
    .open = echo_open,
    .close = echo_close,
    .generation_open = echo_generation_open,
    .generation_next = echo_next,
    .generation_close = echo_generation_close,
};
static const qn_backend mute_backend = {.name = "mute", .open = echo_open, .close = echo_close};

static qn_model *open_echo(void)
{
    qn_model *model = NULL;
    assert_int_equal(qn_model_open("any", &(qn_model_options){.backend = "echo"}, &model), QN_OK);
    return model;
}

static void test_registry(void **state)
{
    assert_int_equal(qn_backend_register(&echo_backend), QN_OK);
    assert_int_equal(qn_backend_register(&echo_backend), QN_E_ARG);
    assert_int_equal(qn_backend_register(&(qn_backend){.name = "empty"}), QN_E_ARG);
    assert_ptr_equal(qn_backend_get("echo"), &echo_backend);
    assert_null(qn_backend_get("nobody"));
    assert_string_equal(qn_backend_get(NULL)->name, "native");
    assert_int_equal(qn_backend_set_default("nobody"), QN_E_NOT_FOUND);
    assert_string_equal(qn_last_error(), "there is no backend named nobody; there are: native, mlx_lm, echo");
    assert_int_equal(qn_backend_set_default("echo"), QN_OK);
    assert_ptr_equal(qn_backend_get(NULL), &echo_backend);
    assert_int_equal(qn_backend_set_default("native"), QN_OK);
    assert_string_equal(qn_backend_name(2), "echo");
    assert_null(qn_backend_name(3));
}

static void look_away(void *user, const qn_probe_event *event)
{
}

static void test_model(void **state)
{
    qn_model *model = NULL;
    qn_model_info info;
    const qn_model_options unknown = {.backend = "nobody"}, missing = {.backend = "echo"},
                           bad = {.backend = "echo", .n_threads = -1};
    assert_int_equal(qn_model_open("any", &unknown, &model), QN_E_NOT_FOUND);
    assert_string_equal(qn_last_error(), "there is no backend named nobody; there are: native, mlx_lm, echo");
    assert_int_equal(qn_model_open("missing", &missing, &model), QN_E_IO);
    assert_int_equal(qn_model_open("any", &bad, &model), QN_E_ARG);
    assert_string_equal(qn_last_error(), "n_threads: -1 is not in the range 0 to 1024");
    assert_null(model);
    model = open_echo();
    assert_int_equal(qn_model_get_info(model, &info), QN_E_UNSUPPORTED);
    assert_string_equal(qn_last_error(), "the backend echo does not offer info; the backend native does");
    qn_attention_snapshot *snapshot = NULL;
    assert_int_equal(qn_attention_snapshot_new(model, &(qn_prompt){.text = "x"}, NULL, &snapshot),
                     QN_E_UNSUPPORTED);
    assert_string_equal(qn_last_error(), "the backend echo does not offer attention inspection; "
                                         "the backend native does");
    assert_int_equal(qn_probe_add(model, 1, look_away, NULL, NULL), QN_E_UNSUPPORTED);
    assert_int_equal(qn_probe_remove(model, 1), QN_E_UNSUPPORTED);
    qn_model_close(&model);
    assert_null(model);
    qn_model_close(&model);
    qn_model_close(NULL);
    assert_int_equal(atomic_load(&n_models), 0);
}

static qn_status take_no_logits(void *user, int64_t row, int64_t position, int64_t n, const float *logits)
{
    fail();
    return QN_OK;
}

static void lacks(qn_status status, const char *what)
{
    assert_int_equal(status, QN_E_UNSUPPORTED);
    if (!strstr(qn_last_error(), what)) fail_msg("%s", qn_last_error());
}

/* What a backend does not offer is named, and nothing is left behind. */
static void test_missing(void **state)
{
    qn_model *model = NULL;
    qn_generation *g = NULL, *other = NULL;
    qn_generation_stats stats;
    qn_prompt_token of_prompt;
    qn_token t;
    int is_there;
    const qn_prompt prompt = {.text = "x"};
    const qn_model_options wired = {.backend = "mute", .wired_limit_bytes = 1},
                           cached = {.backend = "mute", .cache_limit_bytes = 1};
    assert_int_equal(qn_backend_register(&brief_backend), QN_OK);
    assert_int_equal(qn_backend_register(&mute_backend), QN_OK);
    lacks(qn_model_open("any", &wired, &model), "wired");
    lacks(qn_model_open("any", &cached, &model), "cache");
    assert_null(model);
    assert_int_equal(qn_model_open("any", &(qn_model_options){.backend = "mute"}, &model), QN_OK);
    lacks(qn_generation_open(model, &prompt, NULL, &g), "the backend mute does not offer generation");
    lacks(qn_model_reset_peak_memory(model), "peak");
    lacks(qn_model_warm(model, &prompt, "x"), "prefixes that are kept ready");
    lacks(qn_model_unwarm(model, "x"), "prefixes that are kept ready");
    qn_model_close(&model);
    assert_int_equal(qn_model_open("any", &(qn_model_options){.backend = "brief"}, &model), QN_OK);
    assert_int_equal(qn_generation_open(model, &prompt, NULL, &g), QN_OK);
    lacks(qn_generation_poll(g, &t, &is_there), "events without waiting");
    lacks(qn_generation_get_stats(g, &stats), "statistics");
    lacks(qn_generation_get_prompt_token(g, 0, 0, &of_prompt), "log-probabilities of prompts");
    const qn_generate_options scored = {.prompt_logprobs = 1};
    lacks(qn_generation_open(model, &prompt, &scored, &other), "log-probabilities of prompts");
    assert_int_equal(qn_generation_next(g, &t), QN_OK);
    assert_string_equal(t.text, "x");
    qn_generation_close(g);
    qn_model_close(&model);
    assert_int_equal(atomic_load(&n_models), 0);
}

/* Arguments that no backend gets to see. */
static void test_refused_arguments(void **state)
{
    qn_model *model = open_echo();
    int32_t *ids = NULL;
    int64_t n;
    const int32_t id = 1;
    const qn_ids rows[] = {{&id, 1}, {&id, 0}};
    assert_int_equal(qn_model_encode(model, "a", (size_t)QN_TOKENIZER_TEXT_MAX + 1, NULL, &ids, &n),
                     QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "cannot be tokenised at once"));
    assert_int_equal(qn_model_logits(model, rows, 2, NULL, take_no_logits, NULL), QN_E_ARG);
    assert_string_equal(qn_last_error(), "row 1 has no token ids");
    qn_model_close(&model);
    char *text = NULL;
    assert_int_equal(qn_model_open("mock", &(qn_model_options){.backend = "mock"}, &model), QN_OK);
    assert_int_equal(qn_chat_render(model, &(qn_prompt){.text = "x"}, &text, NULL, NULL), QN_E_ARG);
    assert_string_equal(qn_last_error(), "qn_chat_render: the prompt is not a chat");
    assert_null(text);
    qn_model_close(&model);
}

/* A chat that is parsed once is the same prompt as its JSON, and has its own tools and variables. */
static void test_conversation(void **state)
{
    static const char json[] = "[{\"role\":\"user\",\"content\":\"hi\"}]";
    qn_model *model = NULL;
    qn_conversation *c = NULL;
    char *texts[2] = {NULL, NULL}, *written = NULL;
    int64_t live = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    assert_int_equal(qn_conversation_new(NULL, NULL, NULL, &c), QN_E_ARG);
    assert_int_equal(qn_conversation_new(json, NULL, NULL, NULL), QN_E_ARG);
    assert_int_equal(qn_conversation_new("[{", NULL, NULL, &c), QN_E_FORMAT);
    for (int64_t nth = 1; status != QN_OK; nth++) {
        assert_null(c);
        assert_int_equal(status, QN_E_NOMEM);
        assert_int_equal(qn_mem_live_blocks(), live);
        qn_mem_fail_nth(nth);
        status = qn_conversation_new(json, NULL, NULL, &c);
        qn_mem_fail_nth(0);
    }
    assert_int_equal(qn_conversation_get_json(c, &written), QN_OK);
    assert_non_null(strstr(written, "\"hi\""));
    qn_buffer_free(written);
    assert_int_equal(qn_conversation_get_json(NULL, &written), QN_E_ARG);
    assert_int_equal(qn_model_open("mock", &(qn_model_options){.backend = "mock"}, &model), QN_OK);
    const qn_prompt prompts[] = {{.messages_json = json}, {.conversation = c}};
    for (int i = 0; i < 2; i++)
        assert_int_equal(qn_chat_render(model, &prompts[i], &texts[i], NULL, NULL), QN_OK);
    assert_string_equal(texts[0], texts[1]);
    for (int i = 0; i < 2; i++) {
        const qn_prompt both = {
            .conversation = c, .tools_json = i ? "[]" : NULL, .variables_json = i ? NULL : "{}"};
        assert_int_equal(qn_chat_render(model, &both, &written, NULL, NULL), QN_E_ARG);
        assert_string_equal(qn_last_error(), "tools_json and variables_json: a conversation has its own");
    }
    qn_buffer_free(texts[0]);
    qn_buffer_free(texts[1]);
    qn_conversation_free(c);
    qn_model_close(&model);
}

static void *take_next(void *generation)
{
    qn_token t;
    assert_int_equal(qn_generation_next(generation, &t), QN_OK);
    assert_int_equal(t.end, QN_END_CANCELLED);
    return NULL;
}

/* Polling does not wait for a thread that is in a call: what there is goes to that thread. */
static void test_polling_beside_a_call(void **state)
{
    qn_model *model = open_echo();
    qn_generation *g = NULL;
    qn_token t;
    pthread_t thread;
    int is_there = 1;
    qn_status status;
    assert_int_equal(qn_generate(model, "wait", NULL, &g), QN_OK);
    assert_int_equal(pthread_create(&thread, NULL, take_next, g), 0);
    while ((status = qn_generation_poll(g, &t, &is_there)) == QN_E_UNSUPPORTED) /* the thread is not in yet */
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_int_equal(status, QN_OK);
    assert_int_equal(is_there, 0);
    assert_int_equal(t.id, -1);
    qn_generation_cancel(g);
    pthread_join(thread, NULL);
    qn_generation_close(g);
    qn_model_close(&model);
}

static void test_generation(void **state)
{
    qn_model *model = open_echo();
    qn_generation *g = NULL;
    qn_generation_stats stats;
    qn_token t;
    assert_int_equal(qn_generate(model, "hello", NULL, &g), QN_OK);
    assert_int_equal(qn_generation_next(g, &t), QN_OK);
    assert_int_equal(t.end, QN_END_NONE);
    assert_string_equal(t.text, "hello");
    for (int i = 0; i < 3; i++) { /* the end event repeats */
        assert_int_equal(qn_generation_next(g, &t), QN_OK);
        assert_int_equal(t.end, QN_END_STOP);
        assert_int_equal(t.id, -1);
        assert_string_equal(t.text, "");
    }
    assert_int_equal(qn_generation_get_stats(g, &stats), QN_OK);
    assert_true(stats.seed != 0);
    qn_generation_close(g);

    const qn_message messages[] = {{"system", "be \"brief\""}, {"user", "hi\n"}};
    assert_int_equal(qn_chat(model, messages, 2, &(qn_generate_options){.seed = 5}, &g), QN_OK);
    assert_int_equal(qn_generation_next(g, &t), QN_OK);
    assert_string_equal(t.text, "[{\"role\":\"system\",\"content\":\"be \\\"brief\\\"\"},"
                                "{\"role\":\"user\",\"content\":\"hi\\n\"}]");
    assert_int_equal(qn_generation_get_stats(g, &stats), QN_OK);
    assert_int_equal(stats.seed, 5);
    qn_generation_close(g);
    qn_generation_close(NULL);
    qn_model_close(&model);
}

static void test_one_row_fails(void **state)
{
    qn_model *model = open_echo();
    const int32_t ids[] = {1, 2};
    const qn_ids rows[3] = {{ids, 2}, {ids, 1}, {ids, 2}};
    qn_generation *g = NULL;
    qn_token t;
    assert_int_equal(qn_generation_open(model, &(qn_prompt){.rows = rows, .n_rows = 3}, NULL, &g), QN_OK);
    assert_int_equal(qn_generation_next(g, &t), QN_OK);
    assert_int_equal(qn_generation_next(g, &t), QN_OK);
    assert_int_equal(t.end, QN_END_STOP);
    assert_int_equal(qn_generation_next(g, &t), QN_E_INTERNAL);
    assert_int_equal(t.row, 1);
    assert_int_equal(t.end, QN_END_ERROR);
    assert_string_equal(qn_last_error(), "row 1 went wrong");
    assert_int_equal(qn_generation_next(g, &t), QN_OK);
    assert_int_equal(t.row, 2);
    qn_generation_close(g);
    qn_model_close(&model);
}

static void test_refused_prompts(void **state)
{
    qn_model *model = open_echo();
    const int32_t id = 1;
    const qn_ids row = {&id, 1}, none = {&id, 0};
    const qn_message bad = {"user", "\xff"};
    const char *empty = "";
    const struct {
        qn_prompt prompt;
        qn_generate_options options;
        qn_status status;
        const char *message;
    } cases[] = {
        {{0},
         {0},
         QN_E_ARG,
         "a prompt needs exactly one of text, rows, messages, messages_json and conversation; 0 are given"},
        {{.text = "a", .rows = &row, .n_rows = 1},
         {0},
         QN_E_ARG,
         "a prompt needs exactly one of text, rows, messages, messages_json and conversation; 2 are given"},
        {{.text = "ab\xff"}, {0}, QN_E_FORMAT, "the prompt: not valid UTF-8 at byte 2"},
        {{.rows = &none, .n_rows = 1}, {0}, QN_E_ARG, "row 0 has no token ids"},
        {{.messages = &bad, .n_messages = 1},
         {0},
         QN_E_FORMAT,
         "a message's content: not valid UTF-8 at byte 0"},
        {{.text = "a"}, {.max_tokens = -1}, QN_E_ARG, "max_tokens: -1 is negative"},
        {{.text = "a"}, {.deadline_ms = -1}, QN_E_ARG, "deadline_ms: -1 is negative"},
        {{.text = "a"}, {.temperature = -1}, QN_E_ARG, "temperature: -1 is not in the range 0 to 1000"},
        {{.text = "a"}, {.stop_strings = &empty, .n_stop_strings = 1}, QN_E_ARG, "stop string 0 is empty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_generation *g = NULL;
        assert_int_equal(qn_generation_open(model, &cases[i].prompt, &cases[i].options, &g), cases[i].status);
        assert_string_equal(qn_last_error(), cases[i].message);
        assert_null(g);
    }
    assert_int_equal(atomic_load(&n_generations), 0);
    qn_model_close(&model);
}

static void *close_model(void *model)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    assert_int_equal(qn_model_close(model), QN_E_CANCELLED);
    assert_string_equal(qn_last_error(), "qn_model_close: 2 generations were cut off");
    return NULL;
}

static void test_closing_the_model_ends_generations(void **state)
{
    qn_model *model = open_echo();
    qn_generation *running = NULL, *idle = NULL;
    qn_generation_stats stats;
    qn_token t;
    pthread_t thread;
    assert_int_equal(qn_generate(model, "idle", NULL, &idle), QN_OK);
    assert_int_equal(qn_generate(model, "wait", NULL, &running), QN_OK);
    assert_int_equal(pthread_create(&thread, NULL, close_model, &model), 0);
    assert_int_equal(qn_generation_next(running, &t), QN_OK);
    assert_int_equal(t.end, QN_END_CANCELLED);
    pthread_join(thread, NULL);
    assert_null(model);
    assert_int_equal(atomic_load(&n_models), 0);
    assert_int_equal(qn_generation_next(running, &t), QN_OK); /* its end was read, and stays */
    assert_int_equal(t.end, QN_END_CANCELLED);
    assert_int_equal(qn_generation_next(idle, &t), QN_E_CLOSED);
    assert_int_equal(qn_generation_get_stats(idle, &stats), QN_E_CLOSED);
    qn_generation_cancel(idle);
    qn_generation_close(running);
    qn_generation_close(idle);
}

static qn_status open_and_generate(void)
{
    qn_model *model = NULL;
    qn_generation *g = NULL;
    const qn_message message = {"user", "hi"};
    QN_TRY(qn_model_open("any", &(qn_model_options){.backend = "echo"}, &model));
    qn_status status = qn_chat(model, &message, 1, NULL, &g);
    qn_generation_close(g);
    qn_model_close(&model);
    return status;
}

static void test_allocation_failures(void **state)
{
    int64_t before = qn_mem_live_blocks();
    for (int64_t n = 1;; n++) {
        assert_true(n < 2000);
        qn_mem_fail_nth(n);
        qn_status status = open_and_generate();
        qn_mem_fail_nth(0);
        assert_int_equal(qn_mem_live_blocks(), before);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
    }
}

static qn_generation *called; /* whose event is being computed */
static int n_within;

static void call_within(void)
{
    qn_token t;
    qn_generation_stats s;
    int is_there;
    n_within++;
    assert_int_equal(qn_generation_next(called, &t), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "within"));
    assert_int_equal(qn_generation_poll(called, &t, &is_there), QN_E_ARG);
    assert_int_equal(qn_generation_get_stats(called, &s), QN_E_ARG);
}

static void close_within(void)
{
    n_within++;
    qn_generation_close(called);
    assert_int_equal(atomic_load(&n_generations), 1); /* at the end of the call */
}

static qn_model *opened;

static void close_model_within(void)
{
    n_within++;
    qn_model *own = opened;
    qn_model_close(&own);
    assert_ptr_equal(own, opened);
}

/* Who is called by a thread that computes does not wait for itself. */
static void test_calls_from_within(void **state)
{
    qn_model *model = open_echo();
    qn_token t;
    assert_int_equal(qn_generate(model, "one two", NULL, &called), QN_OK);
    within = call_within;
    assert_int_equal(qn_generation_next(called, &t), QN_OK);
    within = NULL;
    assert_int_equal(t.id, 7);
    assert_int_equal(qn_generation_next(called, &t), QN_OK);
    assert_int_equal(t.end, QN_END_STOP);
    qn_generation_close(called);
    assert_int_equal(qn_generate(model, "one two", NULL, &called), QN_OK);
    within = close_within;
    assert_int_equal(qn_generation_next(called, &t), QN_OK);
    within = NULL;
    assert_int_equal(t.end, QN_END_CANCELLED);
    assert_int_equal(atomic_load(&n_generations), 0);
    assert_int_equal(n_within, 2);
    opened = model;
    assert_int_equal(qn_generate(model, "one two", NULL, &called), QN_OK);
    within = close_model_within;
    assert_int_equal(qn_generation_next(called, &t), QN_OK);
    within = NULL;
    assert_int_equal(t.id, 7);
    assert_int_equal(n_within, 3);
    qn_generation_close(called);
    qn_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_registry),
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_generation),
        cmocka_unit_test(test_one_row_fails),
        cmocka_unit_test(test_refused_prompts),
        cmocka_unit_test(test_closing_the_model_ends_generations),
        cmocka_unit_test(test_calls_from_within),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_refused_arguments),
        cmocka_unit_test(test_polling_beside_a_call),
        cmocka_unit_test(test_conversation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
