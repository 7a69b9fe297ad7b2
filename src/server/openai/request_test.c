/* The table of request fields, and bodies while memory runs out. What each field does is tested through the
 * server (tests/server/test_server_api.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
/* cmocka wants these before it */
#include <cmocka.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "server/openai/request.h"

static const qn_api_request_limits limits = {.vocab_size = 100,
                                             .default_temperature = -1,
                                             .default_top_p = -1,
                                             .default_top_k = -1,
                                             .allow_template_kwargs = 1};

/* A name stands once for a route; what it needs is there; what is refused or reported says why. */
static void test_table(void **state)
{
    (void)state;
    for (const qn_field *f = qn_api_request_fields; f->name; f++) {
        json_t *list = NULL;
        for (const qn_field *g = qn_api_request_fields; g < f; g++)
            assert_false(strcmp(f->name, g->name) == 0 && (f->routes & g->routes));
        assert_true(f->routes && f->low <= f->high);
        assert_int_equal(f->kind == QN_FIELD_OWN, f->read != NULL);
        assert_int_equal(f->kind == QN_FIELD_REPORTED || f->kind == QN_FIELD_REFUSED, f->note != NULL);
        if (!f->harmless) continue;
        assert_int_equal(f->kind, QN_FIELD_REFUSED);
        assert_int_equal(qn_json_parse(f->name, f->harmless, strlen(f->harmless), &list), QN_OK);
        assert_true(json_is_array(list) && json_array_size(list) > 0);
        json_decref(list);
    }
}

static int read_body(const char *text, qn_api_request *r, qn_api_error *error)
{
    return qn_api_request_read(text, strlen(text), QN_REQUEST_CHAT, &limits, r, error);
}

static void test_options(void **state)
{
    static qn_api_request r;
    qn_api_error error;
    (void)state;
    assert_int_equal(
        read_body("{\"messages\":[],\"seed\":-3,\"top_p\":0,\"logit_bias\":{\"7\":-100},\"stop\":\"x\","
                  "\"user\":\"me\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
                  &r, &error),
        0);
    assert_true(r.o.seed == (uint64_t)-3 && r.o.top_k == 1 && r.o.top_p == 1 && r.o.temperature == 1);
    assert_int_equal(r.o.logit_bias[0].id, 7);
    assert_string_equal(r.o.stop_strings[0], "x");
    assert_true(r.include_usage && r.warnings.length);
    qn_api_request_free(&r);
    assert_int_equal(read_body("{\"messages\":[],\"min_p\":1,\"seed\":0}", &r, &error), 0);
    assert_true(r.o.min_p == 0 && r.o.top_k == 1 && r.o.seed != 0);
    qn_api_request_free(&r);
    assert_int_equal(read_body("{\"messages\":[],\"max_tokens\":-1}", &r, &error), 0);
    assert_int_equal(r.o.max_tokens, 0);
    qn_api_request_free(&r);
    assert_int_equal(read_body("{\"messages\":[],\"top_k\":-3}", &r, &error), 400);
    assert_string_equal(error.param, "top_k");
    qn_api_request_free(&r);
}

static void test_lenient(void **state)
{
    static qn_api_request r;
    static const char text[] = "{\"messages\":[],\"mystery\":1,\"user\":\"me\"}";
    qn_api_request_limits lenient = limits;
    qn_api_error error;
    (void)state;
    lenient.lenient = 1;
    assert_int_equal(read_body(text, &r, &error), 400);
    assert_string_equal(error.param, "mystery");
    qn_api_request_free(&r);
    assert_int_equal(qn_api_request_read(text, strlen(text), QN_REQUEST_CHAT, &lenient, &r, &error), 0);
    assert_non_null(strstr(r.warnings.data, "mystery"));
    assert_non_null(strstr(r.warnings.data, "user"));
    qn_api_request_free(&r);
}

/* Members of an object within the body are named with what they stand in. */
static void test_members(void **state)
{
    static qn_api_request r;
    qn_api_error error;
    json_t *object = NULL;
    (void)state;
    static const struct {
        const char *text, *param, *message;
    } cases[] = {{"{\"top_k\":\"x\"}", "options.top_k", "options.top_k must be an integer, not a string"},
                 {"{\"stop\":[1]}", "options.stop", "options.stop must be a string"},
                 {"{\"mystery\":1}", "options.mystery", "unknown parameter: options.mystery"},
                 {"{\"best_of\":4}", "options.best_of", "options.best_of is not supported"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_api_request_start(&r, QN_REQUEST_COMPLETIONS);
        assert_int_equal(qn_json_parse("x", cases[i].text, strlen(cases[i].text), &object), QN_OK);
        assert_int_equal(qn_api_request_read_members(object, "options.", qn_api_request_fields,
                                                     QN_REQUEST_COMPLETIONS, &limits, &r, &error),
                         400);
        assert_string_equal(error.param, cases[i].param);
        assert_ptr_equal(strstr(error.message, cases[i].message), error.message);
        json_decref(object);
        qn_api_request_free(&r);
    }
}

static void test_sampler_steps(void **state)
{
    static qn_api_request r;
    static const qn_api_request_limits with_defaults = {.vocab_size = 100,
                                                        .default_temperature = 0.5f,
                                                        .default_top_p = 0.25f,
                                                        .default_top_k = 7,
                                                        .allow_template_kwargs = 1};
    qn_api_error error;
    (void)state;
    assert_int_equal(read_body("{\"messages\":[]}", &r, &error), 0);
    const qn_generate_options *o = &r.o;
    assert_true(o->repeat_last_n == -1 && o->dry_penalty_last_n == -1 && !o->sampler_order &&
                !o->dry_sequence_breakers && !o->allowed_ids && !o->n_bad_words && !o->n_bad_ids);
    qn_api_request_free(&r);
    assert_int_equal(
        read_body("{\"messages\":[],\"bad_words\":[[1,2],\"a\",[3],\"b\"],\"allowed_token_ids\":[4,5],"
                  "\"dry_sequence_breakers\":[],\"samplers\":[\"typ_p\",\"penalties\"],\"mirostat\":2,"
                  "\"repeat_penalty\":2,\"presence_penalty\":1,\"repeat_last_n\":0,\"dry_multiplier\":1,"
                  "\"dry_penalty_last_n\":0}",
                  &r, &error),
        0);
    assert_true(o->n_bad_ids == 2 && o->bad_ids[0].n_ids == 2 && o->bad_ids[0].ids[1] == 2);
    assert_true(o->bad_ids[1].n_ids == 1 && o->bad_ids[1].ids[0] == 3);
    assert_true(o->n_bad_words == 2 && strcmp(o->bad_words[1], "b") == 0);
    assert_true(o->n_allowed_ids == 2 && o->allowed_ids[1] == 5);
    assert_true(o->dry_sequence_breakers && !o->n_dry_sequence_breakers);
    assert_true(o->n_sampler_order == 3 && o->sampler_order[0] == QN_SAMPLER_TYPICAL_P &&
                o->sampler_order[1] == QN_SAMPLER_REPEAT_PENALTY &&
                o->sampler_order[2] == QN_SAMPLER_MIROSTAT);
    assert_true(o->repeat_penalty == 1 && o->presence_penalty == 0 && o->dry_multiplier == 0);
    qn_api_request_free(&r);
    /* The model's defaults do not cut before mirostat; what the client sends does. */
    const char *const bodies[] = {"{\"messages\":[]}", "{\"messages\":[],\"mirostat\":1}",
                                  "{\"messages\":[],\"mirostat\":1,\"top_k\":3,\"top_p\":0.75}"};
    const int32_t top_k[] = {7, 0, 3};
    const float top_p[] = {0.25f, 1, 0.75f};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(
            qn_api_request_read(bodies[i], strlen(bodies[i]), QN_REQUEST_CHAT, &with_defaults, &r, &error),
            0);
        assert_true(o->top_k == top_k[i] && o->top_p == top_p[i] && o->temperature == 0.5f);
        qn_api_request_free(&r);
    }
}

/* What the model's generation_config says counts where the request says nothing. */
static void test_model_defaults(void **state)
{
    static qn_api_request r;
    static const int32_t id = 9;
    static const qn_ids bad = {&id, 1};
    static const qn_api_request_limits given = {.vocab_size = 100,
                                                .default_temperature = -1,
                                                .default_top_p = -1,
                                                .default_top_k = -1,
                                                .default_min_p = 0.25f,
                                                .default_typical_p = 0.5f,
                                                .default_repeat_penalty = 1.5f,
                                                .default_bad_ids = &bad,
                                                .n_default_bad_ids = 1};
    static const struct {
        const char *body;
        float min_p, typical_p, repeat_penalty;
        int32_t bad;
    } rows[] = {
        {"{\"messages\":[]}", 0.25f, 0.5f, 1.5f, 9},
        {"{\"messages\":[],\"min_p\":0,\"typical_p\":1,\"repetition_penalty\":1,\"bad_words\":[[4]]}", 0, 1,
         1, 4},
        {"{\"messages\":[],\"mirostat\":2}", 0, 0, 1.5f, 9},
        {"{\"messages\":[],\"repeat_last_n\":0}", 0.25f, 0.5f, 1, 9},
    };
    qn_api_error error;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const qn_generate_options *o = &r.o;
        assert_int_equal(
            qn_api_request_read(rows[i].body, strlen(rows[i].body), QN_REQUEST_CHAT, &given, &r, &error), 0);
        assert_true(o->min_p == rows[i].min_p && o->typical_p == rows[i].typical_p);
        assert_true(o->repeat_penalty == rows[i].repeat_penalty);
        assert_true(o->n_bad_ids == 1 && o->bad_ids[0].ids[0] == rows[i].bad);
        qn_api_request_free(&r);
    }
}

static void test_ping(void **state)
{
    static const struct {
        const char *value;
        int64_t ms; /* -2: refused */
    } cases[] = {{"null", -1},  {"-1", 0},    {"0", 0},   {"1", 1000},           {"0.1", 100},
                 {"2.5", 2500}, {"0.09", -2}, {"-2", -2}, {"-0.5", -2},          {"2147483648.5", -2},
                 {"\"1\"", -2}, {"true", -2}, {"[]", -2}, {"1e9", 1000000000000}};
    static qn_api_request r;
    qn_api_error error;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"messages\":[],\"stream\":true,\"sse_ping_interval\":%s}",
                 cases[i].value);
        const int status = read_body(text, &r, &error);
        assert_int_equal(status, cases[i].ms == -2 ? 400 : 0);
        if (status)
            assert_string_equal(error.param, "sse_ping_interval");
        else
            assert_true(r.ping_ms == cases[i].ms && !r.warnings.length);
        qn_api_request_free(&r);
    }
    assert_int_equal(read_body("{\"messages\":[]}", &r, &error), 0);
    assert_int_equal(r.ping_ms, -1);
    qn_api_request_free(&r);
    assert_int_equal(read_body("{\"messages\":[],\"sse_ping_interval\":3}", &r, &error), 0);
    assert_non_null(strstr(r.warnings.data, "sse_ping_interval"));
    qn_api_request_free(&r);
}

static void test_memory_runs_out(void **state)
{
    static const char text[] = "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\","
                               "\"text\":\"a\"},{\"type\":\"text\","
                               "\"text\":\"b\"}]},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{"
                               "\"id\":\"1\",\"type\":\"function\","
                               "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":"
                               "\"tool\",\"content\":\"c\","
                               "\"tool_call_id\":\"1\"}],\"user\":\"u\",\"stop\":[\"a\"],\"store\":false,"
                               "\"bad_words\":[[1,2],\"a\"],\"allowed_token_ids\":[4,5]}";
    static qn_api_request r;
    int64_t live = qn_mem_live_blocks();
    int done = 0;
    (void)state;
    for (int64_t nth = 1; !done && nth < 2000; nth++) {
        qn_api_error error = {0};
        qn_mem_fail_nth(nth);
        int status = read_body(text, &r, &error);
        if (!status) status = qn_api_request_read_messages(&r, &error);
        qn_mem_fail_nth(0);
        done = !status;
        if (status) assert_true(error.status == status && error.message[0]);
        qn_api_request_free(&r);
        assert_int_equal(qn_mem_live_blocks(), live);
    }
    assert_true(done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),         cmocka_unit_test(test_options),
        cmocka_unit_test(test_lenient),       cmocka_unit_test(test_members),
        cmocka_unit_test(test_sampler_steps), cmocka_unit_test(test_model_defaults),
        cmocka_unit_test(test_ping),          cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
