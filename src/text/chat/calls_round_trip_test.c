/* parse(render(calls)) = calls: random calls go through a chat template, and what the template writes of them is
 * read as the same calls, however the text is cut. The templates are the real ones of the fixtures, and short ones
 * that write calls as families do whose template is not there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
/* cmocka wants these before it */
#include <cmocka.h>
#include <dirent.h>
#include <jansson.h>

#include "base/buf.h"
#include "base/json/json.h"
#include "base/json/json_value.h"
#include "base/mem.h"
#include "base/random.h"
#include "tests/support/fixtures.h"
#include "text/jinja/template.h"
#include "text/tools/tool_calls.h"

enum { ROUNDS = 40, CALLS_MAX = 3 };

/* What a template's strings cannot hold, because it writes them without escapes. */
enum {
    ESCAPES = 1,   /* backslashes */
    END_QUOTES = 2 /* quotes before a comma, a colon, a closing bracket, or the end */
};

static uint64_t draws;

static uint64_t draw(uint64_t n)
{
    return qn_random_bits(77, draws++) % n;
}

/* ---- random calls --------------------------------------------------------------------------------------- */

static const char question[] = "Which is it, zebra or quagga?";

static void draw_string(qn_buf *b, unsigned no)
{
    static const char *const pieces[] = {"a",       "Rome", " ",    "\n",       "it's",
                                         "a\"b\"c", "[x]",  "{y}",  "(z)",      "<b>",
                                         "=",       "a,b",  "k: v", "\xc3\xa9", "\xf0\x9f\x98\x80",
                                         "true",    "null", "17",   "\t",       "'",
                                         "\\d\\",   "\",",  "')",   "\\n"};
    qn_buf_puts(b, "s"); /* white space at the ends goes with marks */
    for (uint64_t n = draw(6); n > 0; n--) {
        const char *piece = pieces[draw(sizeof pieces / sizeof *pieces)];
        if ((no & ESCAPES) && strchr(piece, '\\')) continue;
        if ((no & END_QUOTES) && strpbrk(piece, "'\"") && !strchr("ia", piece[0])) continue;
        qn_buf_puts(b, piece);
    }
    qn_buf_puts(b, "e");
}

static json_t *draw_text(unsigned no)
{
    qn_buf b = {0};
    draw_string(&b, no);
    json_t *s = json_stringn(b.data, b.length);
    qn_buf_free(&b);
    return s;
}

static json_t *draw_value(unsigned no, int depth)
{
    static const double reals[] = {0.5, -1.25, 1e-7, 2.5e9};
    json_t *v;
    switch (draw(depth ? 8 : 6)) {
    case 0:
        return json_integer((json_int_t)draw(2000) - 1000);
    case 1:
        return json_real(reals[draw(4)]);
    case 2:
        return json_true();
    case 3:
        return json_null();
    case 4:
        return json_false();
    case 6:
        v = json_array();
        for (uint64_t n = draw(3); n > 0; n--) json_array_append_new(v, draw_value(no, depth - 1));
        return v;
    case 7:
        v = json_object();
        for (uint64_t n = draw(3); n > 0; n--) {
            char key[8];
            snprintf(key, sizeof key, "k%d", (int)n);
            json_object_set_new(v, key, draw_value(no, depth - 1));
        }
        return v;
    default:
        return draw_text(no);
    }
}

/* "text" is a string by its schema, "any" is another value. */
static json_t *draw_call(unsigned no)
{
    static const char *const names[] = {"look", "get_weather", "run"};
    json_t *arguments = json_object();
    if (draw(4)) json_object_set_new(arguments, "text", draw_text(no));
    if (draw(2)) {
        json_t *value = draw_value(no, 2);
        if (json_is_string(value)) {
            json_decref(value);
            value = json_integer(3);
        }
        json_object_set_new(arguments, "any", value);
    }
    return json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", "call00001", "type", "function", "function", "name",
                     names[draw(3)], "arguments", arguments);
}

static json_t *tools_of(void)
{
    static const char tool[] =
        "{\"type\":\"function\",\"function\":{\"name\":\"%s\",\"description\":\"d\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"text\":{\"type\":\"string\",\"description\":\"t\"},\"any\":{"
        "\"description\":"
        "\"a\",\"type\":[\"object\",\"array\",\"number\",\"boolean\",\"null\"]}},\"required\":[]}}}";
    json_t *list = json_array();
    for (int i = 0; i < 3; i++) {
        char text[512];
        json_t *one = NULL;
        snprintf(text, sizeof text, tool, i == 0 ? "look" : i == 1 ? "get_weather" : "run");
        assert_int_equal(qn_json_parse("tool", text, strlen(text), &one), QN_OK);
        json_array_append_new(list, one);
    }
    return list;
}

/* ---- render and parse ----------------------------------------------------------------------------------- */

/* 0: the template raised. */
static int render(const qn_template *t, json_t *messages, json_t *tools, int generate, qn_rendered *out)
{
    json_t *context = json_pack("{s:O,s:O,s:b,s:s,s:s}", "messages", messages, "tools", tools,
                                "add_generation_prompt", generate, "bos_token", "<s>", "eos_token", "</s>");
    qn_render_options o = {.now = "2026-03-14T15:09:26"};
    qn_status status = qn_template_render(t, context, &o, out);
    json_decref(context);
    return status == QN_OK;
}

/* Where the answer begins in `whole`: behind what it shares with the prompt, less a mark that is cut. */
static size_t begin_of_answer(const char *whole, const char *prompt)
{
    size_t n = 0;
    while (whole[n] && whole[n] == prompt[n]) n++;
    if (!prompt[n]) return n;
    for (size_t i = n; i > 0 && n - i < 40 && !strchr(">]\n", whole[i - 1]); i--)
        if (strchr("<[", whole[i - 1])) return i - 1;
    return n;
}

static json_t *read_calls(const qn_answer_options *o, const char *text, size_t n, uint64_t seed)
{
    json_t *calls = json_array();
    qn_buf name = {0}, arguments = {0};
    qn_answer *a = NULL;
    assert_int_equal(qn_answer_new(o, &a), QN_OK);
    for (size_t at = 0, i = 0; at <= n; i++) {
        size_t piece = seed ? qn_random_bits(seed, i) % 9 + 1 : n, n_events;
        if (piece > n - at) piece = n - at;
        int is_last = at == n;
        assert_int_equal(is_last ? qn_answer_finish(a) : qn_answer_feed(a, text + at, piece), QN_OK);
        const qn_answer_event *e = qn_answer_get_events(a, &n_events);
        for (size_t k = 0; k < n_events; k++) {
            if (e[k].kind == QN_ANSWER_CALL_BEGIN) {
                qn_buf_reset(&name);
                qn_buf_reset(&arguments);
                qn_buf_puts(&name, e[k].text);
            }
            if (e[k].kind == QN_ANSWER_CALL_ARGUMENTS) qn_buf_append(&arguments, e[k].text, e[k].n);
            if (e[k].kind != QN_ANSWER_CALL_END || e[k].is_malformed) continue;
            json_t *value = NULL;
            assert_int_equal(qn_json_parse("arguments", arguments.data, arguments.length, &value), QN_OK);
            json_array_append_new(calls, json_pack("{s:s,s:o}", "name", name.data, "arguments", value));
        }
        at += piece;
        if (is_last) break;
    }
    qn_answer_free(a);
    qn_buf_free(&name);
    qn_buf_free(&arguments);
    return calls;
}

/* The question, and an answer of these calls. */
static json_t *talk_of(const json_t *calls, int as_text)
{
    size_t i;
    json_t *call, *list = json_deep_copy(calls);
    json_array_foreach(list, i, call)
    {
        json_t *f = json_object_get(call, "function"), *arguments = json_object_get(f, "arguments");
        qn_buf text = {0};
        if (as_text) qn_json_write_value(&text, arguments);
        if (as_text) json_object_set_new(f, "arguments", json_stringn(text.data, text.length));
        qn_buf_free(&text);
    }
    return json_pack("[{s:s,s:s},{s:s,s:s,s:o}]", "role", "user", "content", question, "role", "assistant",
                     "content", "", "tool_calls", list);
}

/* How many calls of a message the template shows, arguments being objects or text: 0 to 2. */
static int count_shown(const qn_template *t, json_t *tools, int as_text)
{
    json_t *calls =
        json_pack("[{s:s,s:s,s:{s:s,s:{s:s}}},{s:s,s:s,s:{s:s,s:{s:s}}}]", "id", "call00001", "type",
                  "function", "function", "name", "look", "arguments", "text", "firstword", "id", "call00002",
                  "type", "function", "function", "name", "look", "arguments", "text", "secondword");
    int n = 0;
    for (size_t want = 2; want > 0 && !n; want--) {
        json_t *messages = talk_of(calls, as_text);
        qn_rendered whole = {0};
        if (render(t, messages, tools, 0, &whole) && strstr(whole.text, "firstword"))
            n = strstr(whole.text, "secondword") ? 2 : 1;
        qn_rendered_free(&whole);
        json_decref(messages);
        json_array_remove(calls, 1);
    }
    json_decref(calls);
    return n;
}

/* Number of calls that went there and back; 0: the template does not write calls. */
static int round_trip(const char *what, const char *text, size_t n_text, const char *format_name, unsigned no)
{
    qn_template *t = NULL;
    qn_answer_format format = qn_answer_format_choose(text, n_text);
    json_t *tools = tools_of();
    int n_done = 0, as_text = 0, n_shown;
    if (format_name) assert_string_equal(qn_answer_format_name(format), format_name);
    if (qn_template_parse(what, text, n_text, &t) != QN_OK) fail_msg("%s: %s", what, qn_last_error());
    n_shown = count_shown(t, tools, 0);
    if (!n_shown) as_text = (n_shown = count_shown(t, tools, 1)) > 0;
    for (int round = 0; round < ROUNDS && format.calls && n_shown; round++) {
        json_t *calls = json_array(), *want = json_array(), *call, *got;
        size_t i;
        for (uint64_t n = draw(n_shown > 1 ? CALLS_MAX : 1) + 1; n > 0; n--)
            json_array_append_new(calls, draw_call(no));
        json_array_foreach(calls, i, call)
        {
            json_t *f = json_object_get(call, "function");
            json_array_append_new(want, json_pack("{s:O,s:O}", "name", json_object_get(f, "name"),
                                                  "arguments", json_object_get(f, "arguments")));
        }
        json_t *asked = json_pack("[{s:s,s:s}]", "role", "user", "content", question);
        json_t *answered = talk_of(calls, as_text);
        qn_rendered prompt = {0}, whole = {0};
        if (render(t, asked, tools, 1, &prompt) && render(t, answered, tools, 0, &whole)) {
            size_t at = begin_of_answer(whole.text, prompt.text);
            const char *answer = whole.text + at;
            qn_answer_options o = {
                .format = format, .tools = tools, .prompt = whole.text, .prompt_bytes = at};
            for (uint64_t seed = 0; seed < 4; seed++) {
                size_t n = strlen(answer);
                const char *end = strstr(answer, "<|eot_id|>"); /* a stop token, which no answer contains */
                if (end) n = (size_t)(end - answer);
                got = read_calls(&o, answer, n, seed);
                if (!json_equal(got, want)) {
                    qn_buf a = {0}, b = {0};
                    qn_json_write_value(&a, got);
                    qn_json_write_value(&b, want);
                    fail_msg("%s, %s: %s\n read as %s\n not as  %s", what, qn_answer_format_name(format),
                             answer, a.data, b.data);
                }
                n_done += (int)json_array_size(got);
                json_decref(got);
            }
        }
        qn_rendered_free(&prompt);
        qn_rendered_free(&whole);
        json_decref(asked);
        json_decref(answered);
        json_decref(calls);
        json_decref(want);
    }
    qn_template_free(t);
    json_decref(tools);
    print_message("%s: %s, %d calls\n", what, qn_answer_format_name(format), n_done);
    return n_done;
}

static void test_real_templates(void **state)
{
    (void)state;
    char folder[1024];
    int n_templates = 0;
    snprintf(folder, sizeof folder, "%s", qn_test_need_fixture("templates"));
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d));) {
        static char text[65536];
        char path[2048];
        if (!strstr(entry->d_name, ".jinja")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        size_t n = fread(text, 1, sizeof text, f);
        fclose(f);
        n_templates += round_trip(entry->d_name, text, n, NULL, 0) > 0;
    }
    closedir(d);
    assert_true(n_templates > 0);
}

/* ---- families whose templates are not there --------------------------------------------------------------- */

#define TURNS(open, close, calls)                                                                         \
    "{% for m in messages %}" open "{{ m.content or '' }}{% if m.tool_calls %}" calls "{% endif %}" close \
    "{% endfor %}"
#define CHATML(calls)                                          \
    TURNS("<|im_start|>{{ m.role }}\n", "<|im_end|>\n", calls) \
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
#define EACH(separator, call)                                                                     \
    "{% for c in m.tool_calls %}{% set f = c.function %}" call "{% if not loop.last %}" separator \
    "{% endif %}{% endfor %}"
#define JSON_CALL "{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}}"
#define ID_CALL \
    "{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}, \"id\": \"{{ c.id }}\"}"
#define PYTHON_CALL(value)                                             \
    "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}=" value \
    "{% if not loop.last %}, {% endif %}{% endfor %})"
#define PLAIN_TEXT "{% if v is string %}'{{ v }}'"
#define INST(calls)                                                                                       \
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{{ m.content " \
    "}}" calls "</s>{% endif %}{% endfor %}"

/* clang-format off */
static const struct {
    const char *family, *format;
    unsigned no;
    const char *text;
} families[] = {
    {"exaone4", "hermes", 0,
     "{# </think> #}" TURNS("[|{{ m.role }}|]\n", "[|endofturn|]\n",
                            EACH("\n",
                                 "<tool_call>" JSON_CALL
                                 "</tool_call>")) "{% if add_generation_prompt %}[|assistant|]\n{% endif %}"},
    {"granite 4", "hermes", 0,
     TURNS("<|start_of_role|>{{ m.role }}<|end_of_role|>", "<|end_of_text|>\n",
           EACH("\n", "<tool_call>\n" JSON_CALL
                      "\n</tool_call>")) "{% if add_generation_prompt "
                                         "%}<|start_of_role|>assistant<|end_of_role|>{% endif %}"},
    {"falcon_h1", "hermes", 0,
     CHATML("<tool_call>\n" EACH("\n</tool_call>\n<tool_call>\n", JSON_CALL) "\n</tool_call>")},
    {"granite 3", "granite", 0, CHATML("<|tool_call|>[" EACH(", ", JSON_CALL) "]")},
    {"ernie", "ernie", 0,
     "{# </think> <response> </response> #}" CHATML(
         EACH("", "\n<tool_call>\n" JSON_CALL "\n</tool_call>\n"))},
    {"hunyuan", "hunyuan", 0,
     "{# <answer> </answer> </think> #}" CHATML("<tool_calls>[" EACH(", ", JSON_CALL) "]</tool_calls>")},
    {"nemotron nano 2", "nemotron", 0, CHATML("<TOOLCALL>[" EACH(", ", JSON_CALL) "]</TOOLCALL>")},
    {"phi4-mini", "phi4", 0, CHATML("<|tool_call|>[" EACH(", ", JSON_CALL) "]<|/tool_call|>")},
    {"llama4", "llama4", 0,
     TURNS("<|header_start|>{{ m.role }}<|header_end|>\n\n", "<|eot|>",
           "<|python_start|><|python_end|>" EACH("",
                                                 "{\"name\": \"{{ f.name }}\", \"parameters\": {{ "
                                                 "f.arguments | tojson }}}")) "{% if add_generation_prompt "
                                                                              "%}<|header_start|>assistant<|"
                                                                              "header_end|>\n\n{% endif %}"},
    {"llama4, pythonic", "pythonic", 0,
     "{# [func_name1(a=b)] #}" CHATML("[" EACH(", ", PYTHON_CALL("{{ v | tojson }}")) "]")},
    {"lfm2, as llama.cpp has it", "lfm2", 0,
     CHATML("<|tool_call_start|>[" EACH(", ", ID_CALL) "]<|tool_call_end|>")},
    {"lfm2.5", "lfm2", ESCAPES | END_QUOTES,
     "{# </think> #}" CHATML(
         "<|tool_call_start|>[" EACH(", ", PYTHON_CALL(PLAIN_TEXT "{% elif v is mapping %}{{ v | tojson }}{% else "
                                                                  "%}{{ v | string }}{% endif %}"))
         "]<|tool_call_end|>")},
    {"olmo3", "olmo3", 0,
     "{# </think> #}" CHATML("<function_calls>" EACH("\n", PYTHON_CALL("{{ v | tojson }}")) "</function_calls>")},
    {"olmo3, as vLLM has it", "olmo3", ESCAPES | END_QUOTES,
     CHATML("<function_calls>\n" EACH("\n", PYTHON_CALL(PLAIN_TEXT "{% else %}{{ v | tojson }}{% endif %}"))
            "\n</function_calls>")},
    {"mistral small 3.2", "mistral_named", 0,
     INST(EACH("", "[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}"))},
    {"ministral3, mistral4", "mistral_named", 0,
     "{# [THINK][/THINK] #}" INST(EACH("", "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"))},
    {"mistral small 3.1", "mistral", 0, INST("[TOOL_CALLS][" EACH(", ", ID_CALL) "]")},
    {"kimi_linear", "kimi", 0,
     CHATML("<|tool_calls_section_begin|>"
            EACH("", "<|tool_call_begin|>functions.{{ f.name }}:0<|tool_call_argument_begin|>"
                     "{{ f.arguments | tojson }}<|tool_call_end|>")
            "<|tool_calls_section_end|>")},
    {"deepseek v3.1", "deepseek", 0,
     CHATML("<｜tool▁calls▁begin｜>"
            EACH("", "<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments | tojson }}<｜tool▁call▁end｜>")
            "<｜tool▁calls▁end｜>")},
};

/* clang-format on */

static void test_families(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        assert_true(round_trip(families[i].family, families[i].text, strlen(families[i].text),
                               families[i].format, families[i].no) > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_real_templates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
