/* The next turn in idle time while memory runs out at every place: it comes to an end, is computed or
 * forgotten, and what others get stays the same. How clients see it is tested through the server
 * (tests/server/test_server_look_ahead.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka wants these before it */
#include <cmocka.h>
#include <quern/quern.h>
#include <sched.h>

#include "base/mem.h"
#include "server/core/next_turn/look_ahead.h"
#include "server/openai/request.h"
#include "tests/support/engine_help.h"

enum { TOKENS = 8, NTH_MAX = 2000 };

static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}";
/* As the mock's template has it the answer would go on from the question: this is not what was generated. */
static const char answer[] = " bubi kaju tebo";

static qn_model *open_mock(void)
{
    qn_model *model = NULL;
    qn_test_ok(qn_model_open(
        "mock", &(qn_model_options){.backend = "mock", .n_threads = 1, .background = 1, .parallel_slots = 2},
        &model));
    return model;
}

static void generate(qn_model *model, int32_t ids[TOKENS])
{
    const qn_generate_options o = {.max_tokens = TOKENS, .seed = 7, .temperature = 1};
    const qn_message message = {"user", "Hello"};
    qn_generation *g = NULL;
    qn_token t;
    qn_test_ok(qn_chat(model, &message, 1, &o, &g));
    for (int i = 0; i < TOKENS; i++) {
        qn_test_ok(qn_generation_next(g, &t));
        ids[i] = t.id;
    }
    qn_generation_close(g);
}

/* A completion that was answered, with or without a call of a tool, as far as the look-ahead asks for it. */
static qn_completion *answered(qn_exchange *ex, int with_call)
{
    const qn_api_request_limits limits = {
        .vocab_size = 32000, .default_temperature = -1, .default_top_p = -1, .default_top_k = -1};
    const int32_t said[3] = {300, 301, 302};
    qn_api_error error;
    qn_completion *c = qn_calloc(1, sizeof *c);
    assert_non_null(c);
    c->ex = ex;
    c->keeps_said = 1;
    assert_int_equal(qn_api_request_read(body, strlen(body), QN_REQUEST_CHAT, &limits, &c->request, &error),
                     0);
    assert_int_equal(qn_api_request_read_messages(&c->request, &error), 0);
    assert_true(qn_look_ahead_is_wanted(c));
    qn_said_add(&c->said, &(qn_answer_event){.kind = QN_ANSWER_CONTENT, .text = answer, .n = strlen(answer)});
    if (with_call) {
        qn_said_add(&c->said,
                    &(qn_answer_event){.kind = QN_ANSWER_CALL_BEGIN, .id = "call_1", .text = "f", .n = 1});
        qn_said_add(&c->said, &(qn_answer_event){.kind = QN_ANSWER_CALL_ARGUMENTS, .text = "{}", .n = 2});
        qn_said_add(&c->said, &(qn_answer_event){.kind = QN_ANSWER_CALL_END});
    }
    qn_buf_append(&c->said_ids, said, sizeof said);
    qn_buf_puts(&c->salt, "salt");
    qn_test_ok(qn_said_status(&c->said));
    qn_test_ok(c->said_ids.status);
    return c;
}

static void free_answered(qn_completion *c)
{
    qn_said_free(&c->said);
    qn_buf_free(&c->said_ids);
    qn_api_request_free(&c->request);
    qn_buf_free(&c->salt);
    qn_free(c);
}

/* What the loop does until all are gone. */
static void run(qn_server *s)
{
    while (s->n_look_aheads) {
        qn_wake_take(&s->wake);
        qn_server_look(s);
        qn_workers_collect(s->workers);
        sched_yield();
    }
}

static void runs_out(int with_call)
{
    const qn_server_options options = {.model_name = "mock"};
    int32_t alone[TOKENS], got[TOKENS];
    int64_t live = qn_mem_live_blocks(), done = 0;
    qn_server s = {.options = &options, .model = open_mock()};
    qn_exchange ex = {.server = &s};
    qn_test_ok(qn_wake_open(&s.wake));
    qn_test_ok(qn_workers_new(1, &s.wake, &s.workers));
    generate(s.model, alone);
    for (int64_t nth = 1; !done && nth < NTH_MAX; nth++) {
        qn_completion *c = answered(&ex, with_call);
        qn_buf_printf(&c->salt, " %lld", (long long)nth); /* nothing of the rounds before is known */
        qn_mem_fail_nth(nth);
        qn_look_ahead_begin(c);
        qn_look_ahead_start(&s);
        run(&s);
        qn_mem_fail_nth(0);
        done = s.metrics.n_look_aheads;
        generate(s.model, got);
        assert_memory_equal(got, alone, sizeof got);
        free_answered(c);
    }
    qn_workers_free(s.workers);
    qn_model_close(&s.model);
    qn_wake_close(&s.wake);
    assert_int_equal(done, 1);
    assert_int_equal(qn_mem_live_blocks(), live);
}

static void test_memory_runs_out(void **state)
{
    (void)state;
    for (int with_call = 0; with_call < 2; with_call++) runs_out(with_call);
}

/* Without memory for a thread the threads before it end, and nothing is left. */
static void test_workers_without_memory(void **state)
{
    qn_server s = {.options = NULL};
    qn_status status = QN_E_NOMEM;
    int64_t nth = 0, live = qn_mem_live_blocks();
    (void)state;
    qn_test_ok(qn_wake_open(&s.wake));
    while (status != QN_OK) {
        assert_null(s.workers);
        qn_mem_fail_nth(++nth);
        status = qn_workers_new(3, &s.wake, &s.workers);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        if (status != QN_OK && nth > 1) assert_non_null(strstr(qn_last_error(), "another thread"));
    }
    assert_int_equal(nth, 5); /* the object and three threads fail in turn */
    qn_workers_free(s.workers);
    qn_wake_close(&s.wake);
    assert_int_equal(qn_mem_live_blocks(), live);
}

/* Dropped in each of its phases. */
static void test_dropped(void **state)
{
    const qn_server_options options = {.model_name = "mock"};
    qn_server s = {.options = &options, .model = open_mock()};
    qn_exchange ex = {.server = &s};
    (void)state;
    qn_test_ok(qn_wake_open(&s.wake));
    qn_test_ok(qn_workers_new(2, &s.wake, &s.workers));
    for (int steps = 0; steps < 12; steps++) {
        qn_completion *c = answered(&ex, 0);
        qn_look_ahead_begin(c);
        free_answered(c);
        assert_non_null(s.look_aheads);
        if (steps) qn_look_ahead_start(&s);
        for (int i = 1; i < steps; i++) {
            qn_server_look(&s);
            qn_workers_collect(s.workers);
            for (int k = 0; k < 1 << steps; k++) sched_yield();
        }
        qn_look_ahead_drop_all(&s);
        assert_null(s.look_aheads);
        run(&s);
    }
    /* A draining server begins none. */
    s.http.is_draining = 1;
    qn_completion *c = answered(&ex, 0);
    qn_look_ahead_begin(c);
    assert_true(!s.look_aheads && !s.n_look_aheads && c->request.body);
    free_answered(c);
    qn_workers_free(s.workers);
    qn_wake_close(&s.wake);
    qn_model_close(&s.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(test_workers_without_memory),
        cmocka_unit_test(test_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
