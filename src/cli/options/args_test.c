#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "cli/command.h"
#include "cli/options/args.h"

typedef struct {
    const char *text, *ids;
    qn_arg_list images;
} source;

typedef struct {
    int raw, json, kind;
    int32_t logprobs;
    int64_t stride;
    uint64_t seed;
    float temperature;
    double rate;
    size_t room;
    qn_arg_limit limit;
    source from;
} options;

#define AT(field) offsetof(options, field)
static const qn_arg own_args[] = {
    {"--raw", 'r', QN_ARG_FLAG, AT(raw), 0, 0, NULL, ""},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, ""},
    {"--kind", 0, QN_ARG_CHOICE, AT(kind), 0, 0, "plain|fancy", ""},
    {"--logprobs", 0, QN_ARG_INT32, AT(logprobs), 0, 20, "N", ""},
    {"--stride", 0, QN_ARG_INT64, AT(stride), 1, 100, "N", ""},
    {"--seed", 0, QN_ARG_UINT64, AT(seed), 0, 0, "N", ""},
    {"--temp", 0, QN_ARG_FLOAT, AT(temperature), 0, 10, "T", ""},
    {"--rate", 0, QN_ARG_REAL, AT(rate), 0, 1, "X", ""},
    {"--room", 0, QN_ARG_BYTES, AT(room), 0, 0, "SIZE", ""},
    {"--limit", 0, QN_ARG_LIMIT, AT(limit), 0, 0, "SIZE", ""},
    {0},
};
#undef AT
#define AT(field) offsetof(source, field)
static const qn_arg source_args[] = {
    {"--text", 'p', QN_ARG_TEXT, AT(text), 0, 0, "TEXT", ""},
    {"--ids", 0, QN_ARG_TEXT, AT(ids), 0, 0, "FILE", ""},
    {"--image", 0, QN_ARG_LIST, AT(images), 0, 0, "FILE", ""},
    {0},
};

/* Fails unless the words, which follow the command's name, give this exit code; -1: the options are taken. */
static void parse(const qn_arg_rule *own, const qn_arg_rule *of_source, options *o, int expected,
                  const char *const *words)
{
    const qn_arg_group groups[] = {
        {NULL, own_args, 0, own}, {"Source", source_args, offsetof(options, from), of_source}, {0}};
    const qn_arg_spec spec = {"", "", groups, 0, 0, NULL};
    char *argv[16] = {(char *)(uintptr_t) "test"};
    const char *positional[QN_POSITIONAL_MAX];
    int argc = 1, n, code = -1;
    *o = (options){.logprobs = -1, .temperature = -1, .rate = -1};
    for (; *words; words++) argv[argc++] = (char *)(uintptr_t)*words;
    const int ends = qn_args_parse(&spec, o, argc, argv, positional, &n, &code);
    assert_int_equal(ends ? code : -1, expected);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void refused(const qn_arg_rule *own, const qn_arg_rule *of_source, const char *sentence,
                    const char *const *words)
{
    options o;
    parse(own, of_source, &o, QN_EXIT_USAGE, words);
    assert_string_equal(qn_last_error(), sentence);
}

static void taken(const qn_arg_rule *own, const qn_arg_rule *of_source, const char *const *words)
{
    options o;
    parse(own, of_source, &o, -1, words);
}

/* As Go programs and llama.cpp write options: a long name behind one hyphen is not a letter with a value. */
static void test_one_hyphen(void **state)
{
    options o;
    parse(NULL, NULL, &o, -1, WORDS("-raw", "-text=a b", "-seed", "7", "-p", "rompt"));
    assert_true(o.raw && o.seed == 7);
    assert_string_equal(o.from.text, "rompt");
    parse(NULL, NULL, &o, -1, WORDS("-prompt"));
    assert_string_equal(o.from.text, "rompt"); /* no option is called so: the letter p */
    parse(NULL, NULL, &o, -1, WORDS("-r", "-ptext"));
    assert_string_equal(o.from.text, "text");
    parse(NULL, NULL, &o, -1, WORDS("-temperature", "1")); /* what others call --temp */
    assert_true(o.temperature == 1);
    parse(NULL, NULL, &o, QN_EXIT_USAGE, WORDS("-learning-rate", "1"));
    parse(NULL, NULL, &o, QN_EXIT_USAGE, WORDS("-raw=1"));
    parse(NULL, NULL, &o, QN_EXIT_USAGE, WORDS("-text"));
}

static void test_excludes(void **state)
{
    const qn_arg_rule rules[] = {{"--raw", .excludes = "--json --ids", .why = "ids have no text"}, {0}};
    taken(rules, NULL, WORDS("--raw"));
    taken(rules, NULL, WORDS("--json", "--ids", "f"));
    taken(rules, NULL, WORDS("--raw", "--text", "a"));
    refused(rules, NULL, "--raw cannot be used with --json: ids have no text", WORDS("--json", "-r"));
    refused(rules, NULL, "--raw cannot be used with --ids: ids have no text", WORDS("--ids=f", "--raw"));
    refused(rules, NULL, "--raw cannot be used with --json: ids have no text",
            WORDS("--ids=f", "--raw", "--json"));
}

static void test_needs(void **state)
{
    const qn_arg_rule one[] = {{"--stride", .needs = "--json"}, {0}};
    const qn_arg_rule many[] = {{"--stride --raw", .needs = "--json --text --ids"}, {0}};
    taken(one, NULL, WORDS("--json"));
    taken(one, NULL, WORDS("--stride", "3", "--json"));
    refused(one, NULL, "--stride needs --json", WORDS("--stride", "3"));
    refused(many, NULL, "--raw needs --json, --text or --ids", WORDS("--raw"));
    taken(many, NULL, WORDS("--raw", "-p", ""));
    taken(many, NULL, WORDS("--stride", "3", "--ids", "f"));
}

static void test_rules_of_a_group(void **state)
{
    const qn_arg_rule all[] = {{NULL, .needs = "--json"}, {"--text", .excludes = "--ids"}, {0}};
    taken(NULL, all, WORDS("--raw", "--stride", "3"));
    refused(NULL, all, "--text needs --json", WORDS("--text", "a"));
    refused(NULL, all, "--image needs --json", WORDS("--image", "a.png", "--raw"));
    taken(NULL, all, WORDS("--image", "a.png", "--json"));
    refused(NULL, all, "--text cannot be used with --ids", WORDS("--json", "--ids", "f", "--text", "a"));
    const qn_arg_rule own[] = {{"--raw", .excludes = "--seed"}, {0}};
    refused(own, all, "--raw cannot be used with --seed", WORDS("--raw", "--seed", "1", "--text", "a"));
}

/* What counts as given, for each kind of option. */
static void test_given(void **state)
{
    static const struct {
        const char *name, *given, *unset; /* a value that counts, and one that does not, or NULL */
    } cases[] = {
        {"--kind", "fancy", "plain"}, {"--logprobs", "0", NULL}, {"--stride", "1", NULL},
        {"--seed", "7", "0"},         {"--temp", "0", NULL},     {"--rate", "0", NULL},
        {"--room", "1K", "0"},        {"--limit", "0", NULL},    {"--text", "", NULL},
        {"--ids", "", NULL},          {"--image", "", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const qn_arg_rule rules[] = {{"--raw", .excludes = cases[i].name}, {0}};
        taken(rules, NULL, WORDS("--raw"));
        parse(rules, NULL, &(options){0}, QN_EXIT_USAGE, WORDS("--raw", cases[i].name, cases[i].given));
        assert_non_null(strstr(qn_last_error(), cases[i].name));
        if (cases[i].unset) taken(rules, NULL, WORDS("--raw", cases[i].name, cases[i].unset));
    }
}

/* The check of options that came from elsewhere than argv. */
static void test_check(void **state)
{
    const qn_arg_rule rules[] = {{"--raw", .excludes = "--json"}, {0}};
    const qn_arg_group groups[] = {{NULL, own_args, 0, rules}, {0}};
    const qn_arg_spec spec = {"", "", groups, 0, 0, NULL};
    options o = {.raw = 1};
    assert_int_equal(qn_args_check(&spec, &o), QN_OK);
    o.json = 1;
    assert_int_equal(qn_args_check(&spec, &o), QN_E_ARG);
    assert_string_equal(qn_last_error(), "--raw cannot be used with --json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_hyphen), cmocka_unit_test(test_excludes),
        cmocka_unit_test(test_needs),      cmocka_unit_test(test_rules_of_a_group),
        cmocka_unit_test(test_given),      cmocka_unit_test(test_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
