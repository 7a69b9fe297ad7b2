#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cli/train/config_file.h"

typedef struct {
    int strict, method;
    int32_t rank;
    int64_t steps;
    uint64_t seed;
    float dropout;
    double lr;
    size_t limit;
    const char *data, *targets, *config;
    qn_arg_list stop;
} options;

#define AT(field) offsetof(options, field)
static const qn_arg args[] = {
    {"--strict", 0, QN_ARG_FLAG, AT(strict), 0, 0, NULL, ""},
    {"--method", 0, QN_ARG_CHOICE, AT(method), 0, 0, "lora|dora|full", ""},
    {"--rank", 0, QN_ARG_INT32, AT(rank), 1, 1024, "N", ""},
    {"--max-steps", 0, QN_ARG_INT64, AT(steps), 0, 1e9, "N", ""},
    {"--seed", 0, QN_ARG_UINT64, AT(seed), 0, 0, "N", ""},
    {"--dropout", 0, QN_ARG_FLOAT, AT(dropout), 0, 1, "P", ""},
    {"--lr", 0, QN_ARG_REAL, AT(lr), 0, 1, "RATE", ""},
    {"--memory-limit", 0, QN_ARG_BYTES, AT(limit), 0, 0, "SIZE", ""},
    {"--data", 0, QN_ARG_TEXT, AT(data), 0, 0, "PATH", ""},
    {"--targets", 0, QN_ARG_TEXT, AT(targets), 0, 0, "LIST", ""},
    {"--stop", 0, QN_ARG_LIST, AT(stop), 0, 0, "TEXT", ""},
    {"--config", 0, QN_ARG_TEXT, AT(config), 0, 0, "FILE", ""},
    {0},
};
static const qn_arg_group groups[] = {{NULL, args, 0, NULL}, {0}};
static const qn_arg_spec spec = {"", "", groups, 0, 0, NULL};

static qn_status take(const char *text, options *o, qn_arena *texts)
{
    memset(o, 0, sizeof *o);
    return qn_config_file_take("t.yaml", text, strlen(text), &spec, "--config", o, texts);
}

static void check_all(const char *text)
{
    options o;
    qn_arena texts = {0};
    qn_status status = take(text, &o, &texts);
    if (status != QN_OK) fail_msg("%s: %s", text, qn_last_error());
    assert_int_equal(o.strict, 1);
    assert_int_equal(o.method, 1);
    assert_int_equal(o.rank, 16);
    assert_int_equal(o.steps, 100);
    assert_true(o.seed == UINT64_MAX);
    assert_true(o.dropout == 0.1f);
    assert_true(o.lr == 2e-5);
    assert_int_equal(o.limit, 2u << 20);
    assert_string_equal(o.data, "a b/\xc3\xa9.jsonl");
    assert_string_equal(o.targets, "q_proj,v_proj");
    assert_int_equal(o.stop.n, 2);
    assert_string_equal(o.stop.items[1], "7");
    qn_arena_clear(&texts);
}

static void test_yaml_and_json_say_the_same(void **state)
{
    check_all(
        "# how\nstrict: yes\nmethod: dora\nrank: 16\nmax_steps: 100\nseed: 18446744073709551615\n"
        "dropout: 0.1\nlr: 2e-5\nmemory-limit: 2M\ndata: a b/\xc3\xa9.jsonl\ntargets:\n- q_proj\n- v_proj\n"
        "stop: [x, '7']\n");
    check_all("---\n{strict: true, method: \"dora\", rank: 16, max-steps: 100, seed: 18446744073709551615,\n"
              "dropout: .1, lr: 0.00002, memory-limit: 2097152, data: 'a b/\xc3\xa9.jsonl',\n"
              "targets: 'q_proj,v_proj', stop: [x, 7]}\n...\n");
    check_all("{\n\t\"strict\": true,\r\n\t\"method\":\"dora\", \"rank\":16,\"max_steps\":100,\n"
              "\"seed\":18446744073709551615,\"dropout\":1e-1,\"lr\":2E-5,\"memory_limit\":\"2MiB\",\n"
              "\"data\":\"a b\\/\\u00e9.jsonl\",\"targets\":[\"q_proj\",\"v_proj\"],\"stop\":[\"x\",\"7\"]}");
}

/* Python's json writes characters beyond 16 bits as two units. */
static void test_characters_of_two_units(void **state)
{
    options o;
    qn_arena texts = {0};
    assert_int_equal(take("{\"data\": \"a\\ud83c\\udf3eb\\u00e9\\\\ud83c\"}", &o, &texts), QN_OK);
    assert_string_equal(o.data, "a\xf0\x9f\x8c\xbe"
                                "b\xc3\xa9\\ud83c");
    assert_int_equal(take("{\"data\": \"\\ud83c\"}", &o, &texts), QN_E_FORMAT);
    assert_int_equal(take("{\"data\": \"\\ud83c\\u0041\"}", &o, &texts), QN_E_FORMAT);
    assert_int_equal(take("{\"data\": \"\\ud83c\\udf3", &o, &texts), QN_E_FORMAT);
    qn_arena_clear(&texts);
}

static void test_nothing_said_changes_nothing(void **state)
{
    static const char *const texts[] = {
        "", "# nothing\n", "{}", "---\n", "data: null\nlr: ~\nrank:\n", "\xef\xbb\xbf{\"targets\": null}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        options o, zero = {0};
        qn_arena arena = {0};
        assert_int_equal(take(texts[i], &o, &arena), QN_OK);
        assert_memory_equal(&o, &zero, sizeof o);
        qn_arena_clear(&arena);
    }
}

static void test_refusals_name_the_line(void **state)
{
    static const struct {
        const char *text, *line, *says;
    } cases[] = {
        {"rank: 8\nrnak: 8\n", "t.yaml:2: ", "'rnak'; did you mean rank?"},
        {"learning_rate: 1\n", "t.yaml:1: ", "did you mean lr?"},
        {"max_stpes: 1\n", "t.yaml:1: ", "did you mean max-steps?"},
        {"\n\nsomething: 1\n", "t.yaml:3: ", "unknown key 'something'"},
        {"rank: eight\n", "t.yaml:1: ", "'eight' is not a whole number"},
        {"rank: '8'\n", "t.yaml:1: ", "expected a number, not the text '8'"},
        {"{\"lr\":\n\"1e-5\"}", "t.yaml:2: ", "expected a number"},
        {"rank: 8.5\n", "t.yaml:1: ", "not a whole number"},
        {"rank: 0\n", "t.yaml:1: ", "not in the range 1 to 1024"},
        {"lr: .inf\n", "t.yaml:1: ", "not a number"},
        {"lr: nan\n", "t.yaml:1: ", "not a number"},
        {"lr: true\n", "t.yaml:1: ", "expected a number"},
        {"seed: -1\n", "t.yaml:1: ", "2^64"},
        {"strict: 1\n", "t.yaml:1: ", "neither true nor false"},
        {"strict: 'true'\n", "t.yaml:1: ", "neither true nor false"},
        {"data: no\n", "t.yaml:1: ", "expected a text"},
        {"method: lor\n", "t.yaml:1: ", "none of lora|dora|full"},
        {"memory-limit: much\n", "t.yaml:1: ", "a size"},
        {"rank: 8\nrank: 9\n", "t.yaml:2: ", "line 1"},
        {"max-steps: 8\n\nmax_steps: 9\n", "t.yaml:3: ", "line 1"},
        {"config: a.yaml\n", "t.yaml:1: ", "cannot be set in a file"},
        {"rank: [8]\n", "t.yaml:1: ", "one value"},
        {"rank: {a: 8}\n", "t.yaml:1: ", "one value"},
        {"targets: [[a]]\n", "t.yaml:1: ", "a list of words"},
        {"targets:\n- a\n- b: c\n", "t.yaml:3: ", "a list of words"},
        {"- rank\n", "t.yaml:1: ", "keys and values"},
        {"rank\n", "t.yaml:1: ", "keys and values"},
        {"[a]: 1\n", "t.yaml:1: ", "expected a key"},
        {"rank: 8\n---\nrank: 9\n", "t.yaml:2: ", "second document"},
        {"a: &a [x]\nb: *a\n", "t.yaml:1: ", "unknown key"},
        {"data: &a x\n", "t.yaml:1: ", "anchors"},
        {"data: x\ntargets: [*a]\n", "t.yaml:2: ", "anchors"},
        {"data: !!python/object:os x\n", "t.yaml:1: ", "tags"},
        {"<<: {rank: 8}\n", "t.yaml:1: ", "unknown key"},
        {"data: \"a\\0b\"\n", "t.yaml:1: ", "NUL"},
        {"rank: 8\ndata: \x01\n", "t.yaml:", "neither YAML nor JSON"},
        {"rank: 8\ndata: \xff\xfe\n", "t.yaml:", "neither YAML nor JSON"},
        {"data: 'a'\nlr: 'b\n", "t.yaml:", "neither YAML nor JSON"},
        {"{\"rank\": 8", "t.yaml:", "neither YAML nor JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        options o;
        qn_arena arena = {0};
        const qn_status status = take(cases[i].text, &o, &arena);
        const char *said = qn_last_error();
        if (status == QN_OK || strncmp(said, cases[i].line, strlen(cases[i].line)) != 0 ||
            !strstr(said, cases[i].says))
            fail_msg("%s: status %d, '%s' without '%s' or '%s'", cases[i].text, status, said, cases[i].line,
                     cases[i].says);
        qn_arena_clear(&arena);
    }
}

/* Depth, aliases and size: refused before anything grows. */
static void test_hostile(void **state)
{
    enum { N = QN_CONFIG_FILE_BYTES_MAX };
    static char text[N + 2];
    options o;
    qn_arena arena = {0};
    memset(text, '[', N);
    assert_int_equal(take(text, &o, &arena), QN_E_FORMAT);
    memcpy(text, "targets: ", 9);
    assert_int_equal(take(text, &o, &arena), QN_E_ARG);
    memset(text, '{', N);
    assert_int_equal(take(text, &o, &arena), QN_E_FORMAT);
    memset(text, '-', N);
    assert_int_not_equal(take(text, &o, &arena), QN_OK);
    for (int i = 0; i < N; i += 2) memcpy(text + i, "- ", 2);
    assert_int_not_equal(take(text, &o, &arena), QN_OK);
    memset(text, '\n', N);
    assert_int_equal(take(text, &o, &arena), QN_OK);
    text[N] = '\n';
    assert_int_equal(take(text, &o, &arena), QN_E_FULL);
    memset(text, 0, sizeof text);
    qn_arena_clear(&arena);
    qn_buf many = {0};
    qn_buf_puts(&many, "targets: [a");
    for (int i = 0; i < 2000; i++) qn_buf_puts(&many, ",b");
    qn_buf_puts(&many, "]");
    assert_int_equal(take(many.data, &o, &arena), QN_E_FULL);
    qn_buf_free(&many);
    qn_arena_clear(&arena);
    assert_int_equal(qn_config_file_read("no/such/file.yaml", &spec, NULL, &o, &arena), QN_E_IO);
    assert_non_null(strstr(qn_last_error(), "no/such/file.yaml"));
}

static void test_failing_allocations(void **state)
{
    const int64_t before = qn_mem_live_blocks();
    for (int64_t n = 1; n < 2000; n++) {
        options o;
        qn_arena arena = {0};
        qn_mem_fail_nth(n);
        const qn_status status = take("{\"data\": x, rank: 8, targets: [a, b], stop: [c]}\n", &o, &arena);
        qn_mem_fail_nth(0);
        qn_arena_clear(&arena);
        assert_int_equal(qn_mem_live_blocks(), before);
        if (status == QN_OK) return;
        assert_int_equal(status, QN_E_NOMEM);
    }
    fail_msg("no end of failures");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_yaml_and_json_say_the_same),
        cmocka_unit_test(test_characters_of_two_units),
        cmocka_unit_test(test_nothing_said_changes_nothing),
        cmocka_unit_test(test_refusals_name_the_line),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
