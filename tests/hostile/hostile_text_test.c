/* Templates, messages and options that nobody should trust, through the public API as a user meets them. By
 * the names of the list of known cases:
 *   T1   templates that reach for the host (CVE-2026-5760, CVE-2024-34359)
 *   T1b  templates that loop, recurse or grow (GHSA-4hhp-h66f-j5j7)
 *   T3   special tokens forged in messages
 *   J6   options that are no numbers or out of range, ids out of vocabulary
 * What work costs is bounded by counts of steps and bytes, and so are these tests: none looks at a clock. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>
#include <quern/quern.h>

#include "base/buf.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "tests/hostile/hostile.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))
enum { MIB = 1 << 20 };

/* ---- T1, T1b: templates -------------------------------------------------------------------------------- */

/* The template must fail so, having taken no more than its budget of memory. */
static void render_refused(const char *text, qn_status status, const char *pattern)
{
    qn_model *m = qn_test_open_model(qn_test_need_fixture("models/llama"), text);
    const qn_message message = {"user", "Hi"};
    const qn_prompt prompt = {.messages = &message, .n_messages = 1};
    int32_t *ids = NULL;
    int64_t n, blocks = qn_mem_live_blocks();
    size_t before = qn_mem_reset_peak();
    qn_test_expect(text, qn_chat_render(m, &prompt, NULL, &ids, &n), status, pattern);
    assert_true(qn_mem_peak_bytes() - before < 48u * MIB);
    qn_buffer_free(ids);
    assert_int_equal(qn_mem_live_blocks(), blocks);
    qn_model_close(&m);
}

static void test_reaching_out(void **state)
{
    static const char *const cases[][2] = {
        {"{{ ''.__class__ }}", "access to attribute '__class__' of 'str' object is unsafe"},
        {"{{ ''['__class__'] }}", "access to attribute '__class__' of 'str' object is unsafe"},
        {"{{ ''|attr('__class__') }}", "access to attribute '__class__' of 'str' object is unsafe"},
        {"{{ ['']|map(attribute='__class__')|list }}", "*'__class__' of 'str' object is unsafe"},
        {"{{ '{0.__class__}'.format('') }}", "access to attribute '__class__' of 'str' object is unsafe"},
        {"{{ '{0[__class__]}'.format('') }}", "access to attribute '__class__' of 'str' object is unsafe"},
        {"{{ '{a.__class__}'.format(a='') }}", "access to attribute '__class__' of 'str' object is unsafe"},
        {"{{ '{a}'.format_map({'a': 1}) }}", "'str object' has no attribute 'format_map'"},
        {"{{ ().__class__.__mro__ }}", "access to attribute '__class__' of 'tuple' object is unsafe"},
        {"{{ {}.__init__ }}", "access to attribute '__init__' of 'dict' object is unsafe"},
        {"{{ raise_exception.__globals__ }}", "*'__globals__' of 'function' object is unsafe"},
        {"{{ cycler.__init__.__globals__.os }}", "*'__init__' of 'function' object is unsafe"},
        {"{{ namespace.__init__ }}", "access to attribute '__init__' of 'function' object is unsafe"},
        {"{% for i in [1] %}{{ loop.__class__ }}{% endfor %}", "*'__class__' of 'LoopContext' object*"},
        {"{% macro m() %}{% endmacro %}{{ m.__code__ }}", "*'__code__' of 'Macro' object is unsafe"},
        {"{{ self.__init__ }}", "access to attribute '__init__' of 'Namespace' object is unsafe"},
        {"{{ ''.mro() }}", "'str object' has no attribute 'mro'"},
        {"{{ messages.append(1) }}", "*'append' of 'list' object is unsafe"},
        {"{{ messages[0].update(a=1) }}", "*'update' of 'dict' object is unsafe"},
        {"{{ messages[0].pop('role') }}", "*'pop' of 'dict' object is unsafe"},
        {"{{ ''.encode() }}", "access to attribute 'encode' of 'str' object is unsafe"},
        {"{{ lipsum() }}", "'lipsum' is undefined"},
        {"{{ open('x') }}", "'open' is undefined"},
        {"{{ config.items() }}", "'config' is undefined"},
    };
    static const char *const syntax[][2] = {
        {"{% include 'x' %}", "'include' is not allowed in a chat template"},
        {"{% import 'x' as y %}", "'import' is not allowed in a chat template"},
        {"{% from 'x' import y %}", "'from' is not allowed in a chat template"},
        {"{% extends 'x' %}", "'extends' is not allowed in a chat template"},
        {"{% debug %}", "unknown or misplaced tag 'debug'"},
        {"{{ (x for x in y) }}", "expected ')', found 'for'"},
        {"{{ lambda: 1 }}", "expected '}}', found ':'"},
    };
    char pattern[200];
    for (size_t i = 0; i < COUNT(cases); i++) {
        snprintf(pattern, sizeof pattern, "chat template: line 1: %s", cases[i][1]);
        render_refused(cases[i][0], QN_E_ARG, pattern);
    }
    for (size_t i = 0; i < COUNT(syntax); i++) {
        snprintf(pattern, sizeof pattern, "chat template: line 1: %s", syntax[i][1]);
        render_refused(syntax[i][0], i < 4 ? QN_E_UNSUPPORTED : QN_E_FORMAT, pattern);
    }
}

#define FOR(body) "{% for i in range(99999) %}{% for j in range(9) %}" body "{% endfor %}{% endfor %}"
#define GROW(start, step) \
    "{% set ns = namespace(x=" start ") %}{% for i in range(60) %}{% set ns.x = " step " %}{% endfor %}"

static void test_growing(void **state)
{
    static const char steps[] = "the template needs more than 10* steps"; /* the context adds some */
    static const char memory[] = "memory budget of 33* bytes is used up";
    static const char output[] = "more than 8388608 bytes of output";
    static const char depth[] = "the template nests or recurses deeper than 1000 levels";
    static const struct {
        const char *text, *says;
        int is_value; /* a value out of range, not a budget */
    } cases[] = {
        {"{% for i in range(10**9) %}{% endfor %}", "a range has more than 100000 numbers", 0},
        {"{{ 'x'*10**9 }}", output, 0},
        {"{{ ('x'*10**9)|length }}", output, 0},
        {"{{ [1] * 10**9 }}", steps, 0},
        {FOR(FOR("")), steps, 0},
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", depth, 0},
        {"{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(99) }}", steps, 0},
        {"{% macro m() %}{{ caller() }}{% endmacro %}{% macro r() %}{% call m() %}{{ r() }}{% endcall %}"
         "{% endmacro %}{{ r() }}",
         depth, 0},
        {"{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", depth, 0},
        {GROW("'a'", "ns.x ~ ns.x"), memory, 0},
        {GROW("'a'", "ns.x + ns.x"), memory, 0},
        {GROW("'a'", "ns.x|replace('a', 'aaaa')"), "*", 0},
        {GROW("'ab'", "[ns.x, ns.x]|join(ns.x)"), memory, 0},
        {GROW("'ab'", "'%s%s' % (ns.x, ns.x)"), memory, 0},
        {GROW("'ab'", "'{}{}'.format(ns.x, ns.x)"), memory, 0},
        {GROW("[1]", "ns.x + ns.x"), steps, 0},
        {GROW("'a'", "[ns.x, ns.x]") "{{ ns.x|tojson }}", steps, 0},
        {GROW("'a'", "[ns.x, ns.x]") "{{ ns.x|string|length }}", steps, 0},
        {GROW("'a'", "[ns.x, ns.x]") "{{ ns.x == ns.x }}", "*", -1},
        {"{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x "
         "}}",
         depth, 0},
        {"{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", depth, 0},
        {"{% set ns = namespace(d={}) %}" FOR("{% set ns.d = dict(ns.d, **{i ~ '-' ~ j: i}) %}"), memory, 0},
        {"{% set ns = namespace(s='') %}" FOR("{% set ns.s = ns.s ~ 'xxxxxxxxxx' %}"), memory, 0},
        {"{{ '%1000000000d' % 1 }}", "a width above 10000 is not supported", 1},
        {"{{ '%.1000000000f' % 1 }}", "a width above 10000 is not supported", 1},
        {"{{ '%*d' % (1000000000, 1) }}", "a width above 10000 is not supported", 1},
        {"{{ '{:1000000000}'.format(1) }}", "a width above 10000 is not supported", 1},
        {"{{ '%1000000000d'|format(1) }}", "a width above 10000 is not supported", 1},
        {"{{ 'a\nb'|indent(10**9) }}", output, 0},
        {"{{ 'a'|center(10**9) }}", memory, 0},
        {"{{ 'a'.ljust(10**9) }}", memory, 0},
        {"{{ 'a'.zfill(10**9) }}", memory, 0},
        {"{{ 'a\tb'.expandtabs(10**9) }}", memory, 0},
        {"{{ range(99999)|join('x'*100000) }}", memory, 0},
        {"{{ range(9)|batch(10**9, 1)|list }}", steps, 0},
        {"{{ range(9)|slice(10**9, 1)|list }}", steps, 0},
        {"{{ [1]|tojson(indent=10**9) }}", "tojson: bad indent", 1},
        {"{{ 10**4000 * 10**4000 }}", "an integer has more than 4300 digits", 0},
        {"{% set l = range(99999)|list %}" FOR("{{ 100001 in l }}"), steps, 0},
        {"{% set s = 'a'*900000 %}" FOR("{% set t = s.find('b') %}"), steps, 0},
        {"{% set s = 'a'*900000 %}{% set n = 'a'*400000 ~ 'b' %}{{ s.rfind(n) }}", steps, 0},
        {"{% set s = 'a'*900000 %}{% set n = 'b' ~ 'a'*400000 %}{{ s.rsplit(n)|length }}", "*", -1},
        {"{% set s = 'a'*900000 %}{% set n = 'a'*400000 ~ 'b' %}{{ s.rsplit(n)|length }}", steps, 0},
        {"{% set s = 'a'*900000 %}" FOR("{% set t = s|upper|title|reverse|length %}"), steps, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char pattern[200];
        qn_status status = cases[i].is_value > 0 ? QN_E_ARG : QN_E_FULL;
        snprintf(pattern, sizeof pattern, "chat template: line *: %s", cases[i].says);
        render_refused(cases[i].text, cases[i].is_value < 0 ? QN_OK : status, pattern);
    }
}

static void test_deep_sources(void **state)
{
    static const struct {
        const char *before, *unit, *after, *says;
    } cases[] = {
        {"{{ ", "[", " }}", "brackets nest too deeply"},
        {"{{ ", "(", " }}", "brackets nest too deeply"},
        {"{{ ", "{1:", " }}", "brackets nest too deeply"},
        {"{{ ", "-", "1 }}", "*deep*"},
        {"{{ ", "not ", "1 }}", "*deep*"},
        {"{{ 1", "+1", " }}", "an expression is more than 600 levels deep"},
        {"{{ 1", "|string", " }}", "an expression is more than 600 levels deep"},
        {"{{ 1", "()", " }}", "an expression is more than 600 levels deep"},
        {"{{ 1", " < 2", " }}", "a chain of comparisons is too long"},
        {"", "{% if 1 %}", "", "nested more than 160 levels deep"},
        {"", "{% for x in [] %}", "", "nested more than 160 levels deep"},
        {"", "{% macro f() %}", "", "nested more than 160 levels deep"},
        {"{{ '", "a", "", "a string is not closed"},
        {"{#", "a", "", "*comment*"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char pattern[200];
        char *text = qn_test_repeat(cases[i].before, cases[i].unit, 50000, cases[i].after);
        snprintf(pattern, sizeof pattern, "chat template: line 1: %s", cases[i].says);
        render_refused(text, QN_E_FORMAT, pattern);
        qn_buffer_free(text);
    }
    char *text = qn_test_repeat("{{ ", "9", 50000, " }}");
    render_refused(text, QN_E_FULL, "chat template: an integer has more than 4300 digits");
    qn_buffer_free(text);
    text = qn_test_repeat("", " ", MIB + 1, "");
    render_refused(text, QN_E_FORMAT,
                   "chat template: the template has 1048577 bytes, at most 1048576 are allowed");
    qn_buffer_free(text);
}

/* ---- T3: special tokens in messages ---------------------------------------------------------------------
 */

/* The special tokens of a model's tokenizer.json, joined; with their ids in *ids (qn_buf of int32_t). */
static char *all_specials(const char *folder, qn_buf *ids)
{
    qn_buf text = {0}, joined = {0};
    json_t *file = NULL, *token;
    size_t i;
    FILE *f = fopen(qn_test_path(folder, "tokenizer.json"), "rb");
    char block[65536];
    assert_non_null(f);
    for (size_t got; (got = fread(block, 1, sizeof block, f)) > 0;) qn_buf_append(&text, block, got);
    fclose(f);
    assert_int_equal(qn_json_parse("tokenizer.json", text.data, text.length, &file), QN_OK);
    json_array_foreach(json_object_get(file, "added_tokens"), i, token)
    {
        int32_t id = (int32_t)json_integer_value(json_object_get(token, "id"));
        if (!json_is_true(json_object_get(token, "special"))) continue;
        qn_buf_puts(&joined, json_string_value(json_object_get(token, "content")));
        qn_buf_append(ids, &id, sizeof id);
    }
    json_decref(file);
    qn_buf_free(&text);
    assert_int_equal(joined.status, QN_OK);
    return qn_buf_take(&joined, NULL);
}

static int64_t count_specials(const int32_t *ids, int64_t n, const qn_buf *specials)
{
    const int32_t *special = (const int32_t *)(const void *)specials->data;
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++)
        for (size_t k = 0; k < specials->length / sizeof *special; k++) found += ids[i] == special[k];
    return found;
}

/* Specials among the ids of a chat in which the user says content; the streaming way in gets as many ids. */
static int64_t specials_of_chat(qn_model *m, const char *content, const qn_buf *specials)
{
    const qn_message message = {"user", content};
    const qn_prompt prompt = {.messages = &message, .n_messages = 1};
    const qn_generate_options one = {.max_tokens = 1};
    int32_t *ids = NULL;
    int64_t n = 0;
    qn_generation *g = NULL;
    qn_generation_stats stats;
    qn_token token;
    qn_test_expect("render", qn_chat_render(m, &prompt, NULL, &ids, &n), QN_OK, "");
    qn_test_expect("chat", qn_chat(m, &message, 1, &one, &g), QN_OK, "");
    assert_int_equal(qn_generation_next(g, &token), QN_OK);
    assert_int_equal(qn_generation_get_stats(g, &stats), QN_OK);
    assert_int_equal(stats.n_prompt_tokens, n);
    qn_generation_close(g);
    int64_t found = count_specials(ids, n, specials);
    qn_buffer_free(ids);
    return found;
}

static void forge(const char *folder)
{
    qn_model *m = NULL;
    const qn_model_options o = {.n_threads = 1};
    qn_model_info info;
    qn_buf specials = {0};
    if (qn_model_open(folder, &o, &m) != QN_OK) fail_msg("%s", qn_last_error());
    assert_int_equal(qn_model_get_info(m, &info), QN_OK);
    char *forged = all_specials(folder, &specials), *text = NULL;
    int32_t *ids = NULL;
    int64_t n = 0, known = (int64_t)(specials.length / sizeof(int32_t));
    assert_true(known > 0);
    /* As text of a stranger, and as text that may hold them. */
    assert_int_equal(qn_model_encode(m, forged, strlen(forged), NULL, &ids, &n), QN_OK);
    assert_int_equal(count_specials(ids, n, &specials), 0);
    assert_int_equal(qn_model_decode(m, ids, n, NULL, &text, NULL), QN_OK);
    assert_non_null(strstr(text, forged));
    qn_buffer_free(text);
    qn_buffer_free(ids);
    const qn_encode_options special = {.special = 1};
    assert_int_equal(qn_model_encode(m, forged, strlen(forged), &special, &ids, &n), QN_OK);
    assert_int_equal(count_specials(ids, n, &specials), known);
    qn_buffer_free(ids);
    if (info.has_chat_template)
        assert_int_equal(specials_of_chat(m, forged, &specials), specials_of_chat(m, "x", &specials));
    qn_buffer_free(forged);
    qn_buf_free(&specials);
    qn_model_close(&m);
}

static void test_forged_specials(void **state)
{
    static const char *const models[] = {"llama",       "qwen2",  "qwen3",   "gemma", "gemma2",
                                         "gemma3_text", "gemma3", "mistral", "phi3",  "deepseek_r1_distill"};
    char relative[100];
    int n = 0;
    for (size_t i = 0; i < COUNT(models); i++) {
        snprintf(relative, sizeof relative, "models/%s/tokenizer.json", models[i]);
        if (!qn_test_fixture(relative)) continue;
        snprintf(relative, sizeof relative, "models/%s", models[i]);
        const char *folder = qn_test_fixture(relative);
        qn_model *m = NULL;
        if (qn_model_open(folder, NULL, &m) == QN_E_UNSUPPORTED) continue; /* a family that is not known */
        qn_model_close(&m);
        forge(folder);
        n++;
    }
    if (!n) qn_test_leave_out("no models with a tokenizer among the fixtures");
}

/* ---- J6: options, ids and messages ----------------------------------------------------------------------
 */

static void test_generate_options(void **state)
{
    static const int32_t far[] = {3, 640}, negative[] = {-1};
    static const char *const no_string[] = {"ok", ""}, *const bad_string[] = {"a\xff"};
    static const qn_sampler_step twice[] = {QN_SAMPLER_TOP_P, QN_SAMPLER_TOP_P},
                                 none[] = {(qn_sampler_step)99};
    const struct {
        qn_generate_options o;
        const char *says;
        qn_status status; /* 0: QN_E_ARG */
    } cases[] = {
        {{.temperature = NAN}, "temperature: *nan is not in the range 0 to 1000", 0},
        {{.temperature = INFINITY}, "temperature: inf is not in the range 0 to 1000", 0},
        {{.temperature = -INFINITY}, "temperature: -inf is not in the range 0 to 1000", 0},
        {{.temperature = -0.5f}, "temperature: -0.5 is not in the range 0 to 1000", 0},
        {{.temperature = 1e30f}, "temperature: 1e+30 is not in the range 0 to 1000", 0},
        {{.top_p = NAN}, "top_p: *nan is not in the range 0 to 1", 0},
        {{.top_p = INFINITY}, "top_p: inf is not in the range 0 to 1", 0},
        {{.top_p = -1}, "top_p: -1 is not in the range 0 to 1", 0},
        {{.top_p = 1.5f}, "top_p: 1.5 is not in the range 0 to 1", 0},
        {{.min_p = NAN}, "min_p: *nan is not in the range 0 to 1", 0},
        {{.min_p = -INFINITY}, "min_p: -inf is not in the range 0 to 1", 0},
        {{.min_p = 2}, "min_p: 2 is not in the range 0 to 1", 0},
        {{.top_k = -1}, "top_k: -1 is not in the range 0 to 2.14748e+09", 0},
        {{.top_k = INT32_MIN}, "top_k: -2.14748e+09 is not in the range 0 to 2.14748e+09", 0},
        {{.repeat_penalty = NAN}, "repeat_penalty: *nan is not in the range 0.01 to 100", 0},
        {{.repeat_penalty = INFINITY}, "repeat_penalty: inf is not in the range 0.01 to 100", 0},
        {{.repeat_penalty = -1}, "repeat_penalty: -1 is not in the range 0.01 to 100", 0},
        {{.repeat_penalty = 1e9f}, "repeat_penalty: 1e+09 is not in the range 0.01 to 100", 0},
        {{.max_tokens = -1}, "max_tokens: -1 is negative", 0},
        {{.max_tokens = INT64_MIN}, "max_tokens: -9223372036854775808 is negative", 0},
        {{.deadline_ms = -1}, "deadline_ms: -1 is negative", 0},
        {{.sampler_order = twice, .n_sampler_order = 2}, "sampler_order: top_p appears twice", 0},
        {{.sampler_order = none, .n_sampler_order = 1}, "sampler_order: 99 is not a step", 0},
        {{.n_sampler_order = 2}, "sampler_order is NULL", 0},
        {{.n_stop_strings = 1}, "stop_strings is NULL", 0},
        {{.stop_strings = no_string, .n_stop_strings = 2}, "stop string 1 is empty", 0},
        {{.stop_strings = bad_string, .n_stop_strings = 1},
         "stop string: not valid UTF-8 at byte 1",
         QN_E_FORMAT},
        {{.n_stop_ids = 1}, "stop_ids is NULL", 0},
        {{.stop_ids = far, .n_stop_ids = 2}, "stop_ids: token id 640 is outside the vocabulary of 640", 0},
        {{.stop_ids = negative, .n_stop_ids = 1},
         "stop_ids: token id -1 is outside the vocabulary of 640",
         0},
    };
    qn_model *m = qn_test_open_model(qn_test_need_fixture("models/llama"), NULL);
    qn_generation *g = NULL;
    for (size_t i = 0; i < COUNT(cases); i++)
        qn_test_expect(cases[i].says, qn_generate(m, "a", &cases[i].o, &g),
                       cases[i].status != QN_OK ? cases[i].status : QN_E_ARG, cases[i].says);
    /* The ends of the ranges do work. */
    const qn_generate_options odd = {.max_tokens = 2,
                                     .temperature = 1e-38f,
                                     .top_p = 1e-30f,
                                     .min_p = 1,
                                     .top_k = INT32_MAX,
                                     .repeat_penalty = 100,
                                     .seed = 1};
    qn_token token = {.end = QN_END_NONE};
    assert_int_equal(qn_generate(m, "a", &odd, &g), QN_OK);
    while (token.end == QN_END_NONE) assert_int_equal(qn_generation_next(g, &token), QN_OK);
    assert_int_equal(token.end, QN_END_LENGTH);
    qn_generation_close(g);
    qn_model_close(&m);
}

static void test_model_options(void **state)
{
    const struct {
        qn_model_options o;
        const char *says;
    } cases[] = {
        {{.n_threads = -1}, "n_threads: -1 is not in the range 0 to 1024"},
        {{.n_threads = INT32_MAX}, "n_threads: 2147483647 is not in the range 0 to 1024"},
        {{.context_size = -1}, "context_size: -1 is not in the range 0 to 2147483647"},
        {{.context_size = INT64_MAX},
         "context_size: 9223372036854775807 is not in the range 0 to 2147483647"},
        {{.parallel_slots = -1}, "parallel_slots: -1 is not in the range 0 to 1024"},
        {{.parallel_slots = 100000}, "parallel_slots: 100000 is not in the range 0 to 1024"},
        {{.prefill_chunk = INT32_MIN}, "prefill_chunk: -2147483648 is not in the range 0 to 2147483647"},
        {{.precision = (qn_precision)77}, "precision: 77 is not in the range 0 to 2"},
    };
    const char *path = qn_test_need_fixture("models/llama");
    qn_model *m = NULL;
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_test_expect(cases[i].says, qn_model_open(path, &cases[i].o, &m), QN_E_ARG, cases[i].says);
        assert_null(m);
    }
}

static void test_prompts(void **state)
{
    static const int32_t far[] = {3, 640}, negative[] = {INT32_MIN};
    const qn_ids rows[] = {{far, 2}, {negative, 1}, {far, 0}, {far, -1}};
    const qn_message bad = {"user", "a\xff"}, bad_role = {"\xc3", "a"}, half = {"user", NULL};
    char *deep = qn_test_repeat("[{\"role\":\"user\",\"content\":", "[", 50000, "");
    const struct {
        qn_prompt p;
        qn_status status;
        const char *says;
    } cases[] = {
        {{0},
         QN_E_ARG,
         "a prompt needs exactly one of text, rows, messages, messages_json and conversation; 0 are given"},
        {{.text = "a", .messages_json = "[]"}, QN_E_ARG, "a prompt needs exactly one of *; 2 are given"},
        {{.rows = &rows[0], .n_rows = 1},
         QN_E_ARG,
         "token id 640 at position 1 is outside the vocabulary of 640"},
        {{.rows = &rows[1], .n_rows = 1},
         QN_E_ARG,
         "token id -2147483648 at position 0 is outside the vocabulary of 640"},
        {{.rows = &rows[2], .n_rows = 1}, QN_E_ARG, "row 0 has no token ids"},
        {{.rows = &rows[3], .n_rows = 1}, QN_E_ARG, "row 0 has no token ids"},
        {{.rows = rows, .n_rows = -1}, QN_E_ARG, "n_rows: -1 rows"},
        {{.messages = &bad, .n_messages = 1}, QN_E_FORMAT, "a message's content: not valid UTF-8 at byte 1"},
        {{.messages = &bad_role, .n_messages = 1},
         QN_E_FORMAT,
         "a message's role: not valid UTF-8 at byte 0"},
        {{.messages = &half, .n_messages = 1}, QN_E_ARG, "message 0 has no role or no content"},
        {{.messages_json = ""}, QN_E_FORMAT, "messages_json: *"},
        {{.messages_json = "{}"}, QN_E_ARG, "messages_json is not an array"},
        {{.messages_json = "[1]"}, QN_E_ARG, "messages[0]*"},
        {{.messages_json = "[{\"content\":\"x\"}]"}, QN_E_ARG, "messages[0].role*"},
        {{.messages_json = "[{\"role\":[],\"content\":\"x\"}]"}, QN_E_ARG, "messages[0].role*"},
        {{.messages_json = "[{\"role\":\"user\",\"content\":\"\\ud800\"}]"}, QN_E_FORMAT, "messages_json: *"},
        {{.messages_json = deep}, QN_E_FORMAT, "messages_json: *deep*"},
        {{.messages_json = "[]", .tools_json = "{}"}, QN_E_ARG, "tools_json is not an array"},
        {{.messages_json = "[]", .variables_json = "[]"}, QN_E_ARG, "variables_json is not an object"},
    };
    static const char strict[] =
        "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}"
        "{{ raise_exception('role ' ~ m.role ~ ' of message ' ~ loop.index0 ~ ' is not known') }}"
        "{% endif %}{{ m.content }}{% endfor %}";
    qn_model *m = qn_test_open_model(qn_test_need_fixture("models/llama"), strict);
    qn_generation *g = NULL;
    for (size_t i = 0; i < COUNT(cases); i++)
        qn_test_expect(cases[i].says, qn_generation_open(m, &cases[i].p, NULL, &g), cases[i].status,
                       cases[i].says);
    const qn_message abbot = {"abbot", "x"}, nobody = {"", "x"}, empty = {"user", ""};
    qn_test_expect("role", qn_chat(m, &abbot, 1, NULL, &g), QN_E_ARG, "role abbot of message 0 is not known");
    qn_test_expect("role", qn_chat(m, &nobody, 1, NULL, &g), QN_E_ARG, "role  of message 0 is not known");
    qn_test_expect("nothing to go on from", qn_chat(m, &empty, 1, NULL, &g), QN_E_ARG,
                   "the chat template * makes an empty text of these messages: *");

    /* 100,000 messages are rendered: the template's budgets grow by them. */
    char *many = qn_test_repeat("[{\"role\":\"user\",\"content\":\"a\"}",
                                ",{\"role\":\"user\",\"content\":\"a\"}", 99999, "]");
    const qn_prompt long_chat = {.messages_json = many};
    qn_test_expect("many messages", qn_generation_open(m, &long_chat, NULL, &g), QN_E_ARG,
                   "the prompt has * tokens, the context holds 64");
    qn_buffer_free(many);
    qn_buffer_free(deep);
    qn_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reaching_out),     cmocka_unit_test(test_growing),
        cmocka_unit_test(test_deep_sources),     cmocka_unit_test(test_forged_specials),
        cmocka_unit_test(test_generate_options), cmocka_unit_test(test_model_options),
        cmocka_unit_test(test_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
