/* The table of fields of llama.cpp's API, what fields say together, and bodies while memory runs out. What each field
 * does is tested through the server (tests/server/test_server_llama.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka wants these before it */
#include <cmocka.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "server/llama/llama.h"
#include "server/llama/request.h"

static const qn_api_request_limits limits = {.vocab_size = 100,
                                             .default_temperature = -1,
                                             .default_top_p = -1,
                                             .default_top_k = -1,
                                             .context_size = 64};

static void test_table(void **state)
{
    const qn_field *table = qn_llama_fields;
    (void)state;
    for (const qn_field *f = table; f->name; f++) {
        json_t *list = NULL;
        for (const qn_field *g = table; g < f; g++)
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

static int read_body(const char *text, unsigned route, qn_api_request *r, qn_api_error *error)
{
    return qn_llama_read(text, strlen(text), route, &limits, r, error);
}

static void test_options(void **state)
{
    static qn_api_request r;
    qn_api_error error;
    (void)state;
    assert_int_equal(read_body("{\"prompt\":\"a\",\"n_predict\":0,\"n_probs\":2,\"seed\":4294967295}",
                               QN_LLAMA_COMPLETION, &r, &error),
                     0);
    assert_true(r.only_prompt && r.o.max_tokens == 1 && r.o.n_top_logprobs == 2 && !r.has_seed && r.special);
    qn_api_request_free(&r);
    assert_int_equal(read_body("{\"prompt\":\"a\",\"n_predict\":-1}", QN_LLAMA_COMPLETION, &r, &error), 0);
    assert_true(!r.only_prompt && r.o.max_tokens == 0);
    qn_api_request_free(&r);
    assert_int_equal(read_body("{\"prompt\":\"a\"}", QN_LLAMA_TOKENIZE, &r, &error), 0);
    assert_true(r.adds_special && r.special);
    qn_api_request_free(&r);
    assert_int_equal(read_body("{\"content\":\"a\",\"parse_special\":false}", QN_LLAMA_TOKENIZE, &r, &error),
                     0);
    assert_true(!r.adds_special && !r.special);
    qn_api_request_free(&r);
    assert_int_equal(read_body("{\"json_schema\":5,\"prompt\":\"a\"}", QN_LLAMA_COMPLETION, &r, &error), 400);
    assert_string_equal(error.param, "json_schema");
    qn_api_request_free(&r);
}

/* Which of two APIs a body of /completions is for. */
static void test_own_bodies(void **state)
{
    static const struct {
        const char *text;
        int is_own;
    } cases[] = {{"{\"n_predict\":1}", 1},
                 {"{\"prompt\":\"n_predict\"}", 0},
                 {"{\"x\":{\"n_probs\":1}}", 0},
                 {"{\"response_fields\":[]}", 1},
                 {"[\"n_predict\"]", 0},
                 {"{", 0},
                 {"", 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(qn_llama_is_own(cases[i].text, strlen(cases[i].text)), cases[i].is_own);
}

/* Forms of prompts that need no tokenizer. */
static void test_prompts(void **state)
{
    static const struct {
        const char *text, *made; /* NULL: refused */
    } cases[] = {{"[\"a\"]", "[\"a\"]"},
                 {"[1, 2]", "[1, 2]"},
                 {"[[1, 2]]", "[[1, 2]]"},
                 {"[\"a\", [1], {\"prompt_string\": \"b\"}]", "[\"a\", [1], \"b\"]"},
                 {"[{\"prompt_string\": \"b\", \"multimodal_data\": []}]", "[\"b\"]"},
                 {"[]", NULL},
                 {"[[]]", NULL},
                 {"[{}]", NULL},
                 {"[{\"prompt_string\": \"a\", \"multimodal_data\": [\"x\"]}]", NULL}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *prompt = NULL, *wanted = NULL, *made = NULL;
        qn_api_error error;
        assert_int_equal(qn_json_parse("prompt", cases[i].text, strlen(cases[i].text), &prompt), QN_OK);
        const int status = qn_llama_make_prompt(NULL, prompt, "prompt", &made, &error);
        assert_int_equal(status, cases[i].made ? 0 : 400);
        if (cases[i].made) {
            assert_int_equal(qn_json_parse("made", cases[i].made, strlen(cases[i].made), &wanted), QN_OK);
            assert_true(json_equal(made, wanted));
        }
        json_decref(wanted);
        json_decref(made);
        json_decref(prompt);
    }
}

static void test_memory_runs_out(void **state)
{
    static const char text[] = "{\"prompt\":[\"a\",[1],{\"prompt_string\":\"b\"}],\"n_predict\":5,\"id_"
                               "slot\":1,\"stop\":[\"a\"],\"lora\":[],"
                               "\"response_fields\":[\"a\"],\"samplers\":[\"top_k\"]}";
    static qn_api_request r;
    int64_t live = qn_mem_live_blocks();
    int done = 0;
    (void)state;
    for (int64_t nth = 1; !done && nth < 2000; nth++) {
        qn_api_error error = {0};
        qn_mem_fail_nth(nth);
        int status = read_body(text, QN_LLAMA_COMPLETION, &r, &error);
        if (!status) status = qn_llama_make_prompt(NULL, r.prompt, "prompt", &r.made, &error);
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
        cmocka_unit_test(test_table),           cmocka_unit_test(test_options),
        cmocka_unit_test(test_own_bodies),      cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
