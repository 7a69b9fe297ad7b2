/* Answers taken apart: every format, every cut, and what real templates make of real calls. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/buf.h"
#include "base/json/json.h"
#include "base/json/json_steps.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "tests/support/fixtures.h"
#include "text/tools/loose_json.h"
#include "text/tools/tool_calls.h"
#include "text/tools/tool_formats.h"

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"look\",\"parameters\":{"
    "\"type\":\"object\",\"properties\":{"
    "\"city\":{\"type\":\"string\"},\"zip\":{\"type\":[\"string\",\"null\"]},"
    "\"days\":{\"type\":\"integer\"}}}}},{\"name\":\"see\",\"parameters\":{"
    "\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},"
    "\"b\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},"
    "\"c\":{\"$ref\":\"#/$defs/c~1d\"},\"d\":{\"anyOf\":[{\"type\":\"string\"},"
    "{\"type\":\"integer\"}]},\"e\":{\"$ref\":\"#/$defs/e\"}},\"$defs\":{\"c/d\":{"
    "\"enum\":[\"1\",\"2\"]},\"e\":{\"allOf\":[{\"$ref\":\"#/$defs/e\"},{\"$ref\":"
    "\"#/$defs/e\"}]}}}}]";

static json_t *tools;

static int set_up(void **state)
{
    return qn_json_parse("tools", tools_text, strlen(tools_text), &tools) != QN_OK;
}

static int tear_down(void **state)
{
    json_decref(tools);
    return 0;
}

/* ---- transcripts ---- */

/* Events as one text, neighbours joined: "text|think:...|bad:...|call NAME ID {...}"; "..." stands behind
 * arguments that break off. */
typedef struct {
    qn_buf text;
    int last; /* kind and flag of what the transcript ends with */
} transcript;

static void note(transcript *t, const qn_answer *a)
{
    size_t n;
    const qn_answer_event *events = qn_answer_get_events(a, &n);
    for (size_t i = 0; i < n; i++) {
        const qn_answer_event *e = &events[i];
        int what = (int)e->kind * 2 + e->is_malformed;
        if (e->kind == QN_ANSWER_CALL_ARGUMENTS) assert_int_equal(qn_utf8_valid_prefix(e->text, e->n), e->n);
        int joins = e->kind <= QN_ANSWER_REASONING && what == t->last;
        if (!joins && e->kind <= QN_ANSWER_CALL_BEGIN && t->text.length) qn_buf_putc(&t->text, '|');
        if (!joins && e->kind == QN_ANSWER_REASONING) qn_buf_puts(&t->text, "think:");
        if (!joins && e->is_malformed && e->kind == QN_ANSWER_CONTENT) qn_buf_puts(&t->text, "bad:");
        if (e->kind == QN_ANSWER_CALL_BEGIN) {
            assert_int_equal(strlen(e->text), e->n);
            qn_buf_printf(&t->text, "call %d %s %s ", (int)e->index, e->text, e->id);
        } else {
            qn_buf_append(&t->text, e->text, e->n);
        }
        if (e->kind == QN_ANSWER_CALL_END && e->is_malformed) qn_buf_puts(&t->text, "...");
        t->last = what;
    }
}

static qn_answer_options with_tools(qn_answer_format format, const char *prompt)
{
    return (qn_answer_options){
        .format = format, .tools = tools, .prompt = prompt, .prompt_bytes = prompt ? strlen(prompt) : 0};
}

/* seed 0: whole; else in pieces of random size. Freed with qn_free. */
static char *run(const qn_answer_options *o, const char *text, size_t n, uint64_t seed)
{
    transcript t = {.last = -1};
    qn_answer *a = NULL;
    assert_int_equal(qn_answer_new(o, &a), QN_OK);
    for (size_t at = 0, i = 0; at < n; i++) {
        size_t piece = seed ? qn_random_bits(seed, i) % (seed % 7 + 2) : n;
        if (piece > n - at) piece = n - at;
        assert_int_equal(qn_answer_feed(a, text + at, piece), QN_OK);
        note(&t, a);
        at += piece;
    }
    assert_int_equal(qn_answer_finish(a), QN_OK);
    note(&t, a);
    qn_answer_free(a);
    if (!t.text.data) qn_buf_puts(&t.text, "");
    return qn_buf_take(&t.text, NULL);
}

static void expect(const qn_answer_options *o, const char *text, const char *want)
{
    for (uint64_t seed = 0; seed < 30; seed++) {
        char *got = run(o, text, strlen(text), seed);
        assert_string_equal(got, want);
        qn_free(got);
    }
}

static qn_answer_format format_of(const char *evidence)
{
    return qn_answer_format_choose(evidence, strlen(evidence));
}

/* ---- examples ---- */

static const struct {
    const char *evidence, *name, *prompt, *text, *want;
} examples[] = {
    {"", "none", NULL, " a <tool_call> b \n", " a <tool_call> b \n"},
    {"<tool_call>", "hermes", NULL, " Just a text, a < b.\n\n", " Just a text, a < b.\n\n"},
    {"<tool_call>", "hermes", NULL,
     "Let me see.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": "
     "\"</tool_call>\"}}\n</tool_call>"
     "\n<tool_call>{\"name\":\"two\"}</tool_call>\n",
     "Let me see.|call 0 look  {\"city\": \"</tool_call>\"}|call 1 two  {}"},
    {"<tool_call>", "hermes", NULL, "<tool_call>{\"name\": \"look\", \"arguments\": {}}", "call 0 look  {}"},
    {"<tool_call>", "hermes", NULL, "a\n <tool_call>{\"name\": 3}</tool_call> b",
     "a|bad:\n <tool_call>{\"name\": 3}</tool_call>| b"},
    {"<tool_call>", "hermes", NULL,
     "<tool_call>{\"name\": \"x\", \"arguments\": {\"a\": 1, \"a\": 2}}</tool_call>",
     "call 0 x  {\"a\": 1, \"a\": 2}"},
    {"<tool_call>", "hermes", NULL, "<tool_call>{\"name\": \"look\", \"arguments\": {\"city\": \"Rom",
     "call 0 look  {\"city\": \"Rom..."},
    {"<tool_call>", "hermes", NULL,
     "<tool_call>{\"name\": \"x<tool_call>{\"name\": \"y\", \"arguments\": {}}</tool_call>!",
     "bad:<tool_call>{\"name\": \"x|call 0 y  {}|!"},
    {"<tool_call>", "hermes", NULL,
     "<tool_call>{\"name\": \"x}</tool_call> and <tool_call>{\"name\": \"y\", \"arguments\": {}}</tool_call>",
     "bad:<tool_call>{\"name\": \"x}</tool_call>| and|call 0 y  {}"},
    {"<tool_call>", "hermes", NULL,
     "<tool_call>{\"arguments\": {\"a\": [1]}, \"name\": \"x\"} {\"name\": \"y\", \"arguments\": "
     "null}</tool_call>",
     "call 0 x  {\"a\": [1]}|call 1 y  {}"},
    {"<tool_call>", "hermes", NULL,
     "<tool_call>{\"type\": \"function\", \"id\": \"7\", \"function\": {\"name\": \"x\", \"arguments\": "
     "{}}}</tool_call>",
     "call 0 x 7 {}"},
    {"<tool_call>", "hermes", NULL,
     "<tool_call>{\"name\": \"x\", \"arguments\": {\"a\": \"1\n2\"}}</tool_call>",
     "call 0 x  {\"a\": \"1\\n2\"}"},
    {"<tool_call>", "hermes", NULL,
     "<tool_call>{\"name\": \"x\", \"arguments\": {\"a\": oops}}</tool_call>\n<tool_call>{\"name\": "
     "\"y\"}</tool_call>",
     "call 0 x  {\"a\": ...|bad:oops}}</tool_call>|call 1 y  {}"},
    {"<tool_call>", "hermes", NULL,
     "<tool_call>{\"name\": \"x\", \"arguments\": \"{\\\"a\\\": \\\"\\ud83d\\ude00\\\\n\\\"}\"}",
     "call 0 x  {\"a\": \"\xf0\x9f\x98\x80\\n\"}"},
    {"<tool_call>", "hermes", NULL, "Use <tool_call> for calls.", "Use|bad: <tool_call> for calls."},
    {"<tool_call> </think>", "hermes", "x<|im_start|>assistant\n<think>\n",
     "\nHm.\n\n</think>\n\nSo <think>: <tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": "
     "\\\"\\u00e9\\\"}\"}</tool_call>",
     "think:Hm.|So <think>:|call 0 f  {\"a\": \"\xc3\xa9\"}"},
    {"<tool_call> </think>", "hermes", "x", "\n<think>a <tool_call> b</think>c", "think:a <tool_call> b|c"},
    {"<tool_call> </think>", "hermes", "x", "<think>no end ", "think:no end "},
    {"<tool_call><function=", "qwen_coder", NULL,
     "<tool_call>\n<function=look>\n<parameter=city>\nNew\nYork\n</parameter>\n<parameter=days>\n3\n</"
     "parameter>\n"
     "<parameter=zip>\n12345\n</parameter>\n<parameter=more>\n{'a': [True, None, 'x\"'], \"b\": (1, 2.5)}\n"
     "</parameter>\n</function>\n</tool_call>",
     "call 0 look  {\"city\": \"New\\nYork\", \"days\": 3, \"zip\": \"12345\", \"more\": {\"a\": [true, "
     "null, "
     "\"x\\\"\"], \"b\": [1, 2.5]}}"},
    {"<tool_call><function=", "qwen_coder", NULL,
     "<tool_call><function=f></function><function=g><parameter=a>null</parameter></function></tool_call>",
     "call 0 f  {}|call 1 g  {\"a\": null}"},
    {"<tool_call><function=", "qwen_coder", NULL,
     "<tool_call><function=f><parameter=a>1</function></tool_call>.",
     "bad:<tool_call><function=f><parameter=a>1</function></tool_call>|."},
    {"<tool_call><function=", "qwen_coder", NULL,
     "<tool_call><function=look><parameter=city>\nA\nB</parameter><parameter=days>\n3",
     "call 0 look  {\"city\": \"A\\nB\"...|bad:<parameter=days>\n3"},
    {"<tool_call><function=", "qwen_coder", NULL, "<tool_call><function=look><parameter=city>a</tool_call>b",
     "call 0 look  {\"city\": \"a...|bad:</tool_call>|b"},
    /* The mark in a string of JSON ends no value; in what is no JSON it does. */
    {"<tool_call><function=", "qwen_coder", NULL,
     "<tool_call><function=f><parameter=a>\n[\"</parameter>\", {\"b\": \"</tool_call>\\\"\"}]\n</parameter>"
     "<parameter=b>{\"a\": \"x</parameter></function></tool_call>",
     "call 0 f  {\"a\": [\"</parameter>\", {\"b\": \"</tool_call>\\\"\"}], \"b\": \"{\\\"a\\\": \\\"x\"}"},
    {"<tool_call><function=", "qwen_coder", NULL,
     "<tool_call><function=see><parameter=a>12</parameter><parameter=b>null</parameter><parameter=c>1</"
     "parameter>"
     "<parameter=d>7</parameter><parameter=e>8</parameter></function></tool_call>",
     "call 0 see  {\"a\": \"12\", \"b\": null, \"c\": \"1\", \"d\": 7, \"e\": 8}"},
    {"<tool_call><arg_key>", "glm", NULL, "<tool_call>look", "bad:<tool_call>look"},
    {"<tool_call><arg_key>", "glm", NULL,
     "ok<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>true</arg_value>\n<arg_key>n</"
     "arg_key><arg_value>true"
     "</arg_value>\n</tool_call><tool_call>f</tool_call>",
     "ok|call 0 look  {\"city\": \"true\", \"n\": true}|call 1 f  {}"},
    {"<|start_header_id|> \"parameters\":", "llama3", NULL,
     "{\"name\": \"look\", \"parameters\": {\"city\": \"Rom\"}}; {\"name\": \"f\", \"parameters\": {}}",
     "call 0 look  {\"city\": \"Rom\"}|call 1 f  {}"},
    {"<|start_header_id|> \"parameters\":", "llama3", NULL,
     "<|python_tag|>{\"name\": \"look\", \"parameters\": {}}", "call 0 look  {}"},
    {"<|start_header_id|> \"parameters\":", "llama3", NULL, "{\"answer\": 42}, that is {\"name\": 1}",
     "{\"answer\": 42}, that is {\"name\": 1}"},
    {"[TOOL_CALLS]", "mistral", NULL,
     "[TOOL_CALLS] [{\"name\": \"look\", \"arguments\": {\"a\": \"]\"}, \"id\": \"abc123def\"}, {\"name\": "
     "\"g\"}]",
     "call 0 look  {\"a\": \"]\"}|call 1 g  {}"},
    {"[TOOL_CALLS]", "mistral", NULL,
     "[TOOL_CALLS][{\"id\": \"abc123def\", \"name\": \"look\", \"arguments\": {}}]",
     "call 0 look abc123def {}"},
    {"[TOOL_CALLS]", "mistral", NULL, "[TOOL_CALLS] none", "bad:[TOOL_CALLS]| none"},
    {"[TOOL_CALLS] [ARGS]", "mistral_named", NULL,
     "Well. [TOOL_CALLS]look[CALL_ID]abc123def[ARGS]{\"a\": 1}[TOOL_CALLS]f[ARGS]{}",
     "Well.|call 0 look abc123def {\"a\": 1}|call 1 f  {}"},
    {"[TOOL_CALLS] [ARGS]", "mistral_named", NULL, "[TOOL_CALLS]look[ARGS]no",
     "bad:[TOOL_CALLS]|look[ARGS]no"},
    {"<|tool_call><tool_call|><channel|>", "gemma", "<|turn>model\n",
     "<|channel>thought\nHm.\n<channel|>Yes.<|tool_call>call:look{city:<|\"|>a "
     "\"b\"<|\"|>,n:[1,{x:None}]}<tool_call|>",
     "think:Hm.|Yes.|call 0 look  {\"city\": \"a \\\"b\\\"\", \"n\": [1, {\"x\": null}]}"},
    {"<|tool_call><tool_call|>", "gemma", NULL,
     "<|tool_call>call:look{{\"city\": 'a\\'b'}}<tool_call|><|tool_call>call:f{x:(1,),}<tool_call|>",
     "call 0 look  {\"city\": \"a'b\"}|call 1 f  {\"x\": [1]}"},
    {"<|tool_call><tool_call|>", "gemma", NULL, "<|tool_call>call:look{city:<|\"|>Ro",
     "call 0 look  {\"city\": \"Ro..."},
    {"<|tool_calls_section_begin|>", "kimi", NULL,
     "A<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{\"a\": 1}"
     "<|tool_call_end|><|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
     "<|tool_calls_section_end|>",
     "A|call 0 look functions.look:0 {\"a\": 1}|call 1 f functions.f:1 {}"},
    {"<｜tool▁calls▁begin｜>", "deepseek", NULL,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{\"a\": \"```\"}\n```"
     "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "call 0 look  {\"a\": \"```\"}|call 1 f  {}"},
    {"<|channel|>commentary functions.", "harmony", "<|end|><|start|>assistant",
     "<|channel|>analysis<|message|>Need it. <|end|><|start|>assistant<|channel|>commentary<|message|>I look."
     "<|end|><|start|>assistant<|channel|>commentary to=functions.look "
     "<|constrain|>json<|message|>{\"city\": "
     "\"<|end|>\"}<|call|>",
     "think:Need it.|I look.|call 0 look  {\"city\": \"<|end|>\"}"},
    {"<|channel|>commentary functions.", "harmony", "<|start|>assistant",
     " to=functions.look<|channel|>commentary json<|message|>{\"city\": }<|call|>",
     "call 0 look  {\"city\": ...|bad:}<|call|>"},
    {"<|channel|>commentary functions.", "harmony", "<|start|>assistant",
     "<|channel|>final<|message|>Done <|start|> it.", "Done|bad: <|start|> it."},
    {"<|channel|>commentary functions.", "harmony", "<|start|>assistant",
     "<|channel|>commentary to=functions.analysis_of<|message|>{}<|call|>", "call 0 analysis_of  {}"},
    {"<|channel|>commentary functions.", "harmony", "<|start|>assistant",
     "<|channel|>analysis to=functions.look <|constrain|>json<|message|>{\"city\": \"Rome\"}<|call|>",
     "call 0 look  {\"city\": \"Rome\"}"},
    {">>>all", "functionary", "x>>>",
     "all\n>>> one line, with >>>look\n{} in it that goes on and on and on and on and on and on and on and "
     "on and "
     "on and on and on and on and on and on and on and on and on and on and on and on and on and on and on "
     "and "
     ">>> on and on and on and on and on and on and on and on >>>look\n>>>look\n{}",
     "bad:>>> one line, with >>>look\n|{} in it that goes on and on and on and on and on and on and on and "
     "on and "
     "on and on and on and on and on and on and on and on and on and on and on and on and on and on and on "
     "and|"
     "bad: >>> on and on and on and on and on and on and on and on >>>look\n|call 0 look  {}"},
    {">>>all", "functionary", "x>>>", "all\nLet me look.\n>>>look\n{\"city\": \"\\n>>>\"}",
     "Let me look.|call 0 look  {\"city\": \"\\n>>>\"}"},
    {">>>all", "functionary", "x>>>", "all\nIn Python:\n>>> f(x)\n3", "In Python:|bad:\n>>> f(x)\n|3"},
    {"<atem:function_calls>", "atem", "<|start|>assistant",
     " to=selfie<|message|><atem:function_calls><atem:invoke "
     "name=\"selfie\"></atem:invoke></atem:function_calls>",
     "call 0 selfie  {}"},
    {"<atem:function_calls>", "atem", "<|start|>assistant",
     " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Yes.<|eom|><|start|>assistant "
     "to=look<|message|><atem:function_calls>\n<atem:invoke name=\"look\">\n<atem:parameter name=\"days\">3"
     "</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>",
     "think:Hm.|Yes.|call 0 look  {\"days\": 3}"},
    {"dsml_token + 'tool_calls>", "dsml_calls", NULL,
     "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"look\">\n<｜DSML｜parameter name=\"x\" "
     "string=\"true\">3</｜"
     "DSML｜parameter>\n<｜DSML｜parameter name=\"y\" "
     "string=\"false\">[3]</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
     "</｜DSML｜tool_calls>",
     "call 0 look  {\"x\": \"3\", \"y\": [3]}"},
    {"<function name=\" <param name=\"", "minicpm", NULL,
     "ok\n<function name=\"look\"><param name=\"city\"><![CDATA[a<b</param>]]></param></function>",
     "ok|call 0 look  {\"city\": \"a<b</param>\"}"},
    {"<|START_ACTION|> <|END_THINKING|>", "command_r7b", "<|CHATBOT_TOKEN|>",
     "<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n {\"tool_call_id\": \"0\", \"tool_name\": "
     "\"look\", "
     "\"parameters\": {}}\n]<|END_ACTION|>",
     "think:Hm.|call 0 look 0 {}"},
    {"<|START_ACTION|>", "command_r7b", NULL, "<|START_RESPONSE|>Hello.<|END_RESPONSE|>", "Hello."},
    {"<|tools_prefix|>", "apertus", NULL,
     "<|tools_prefix|>[{\"look\": {\"a\": 1}}, {\"f\": {}}]<|tools_suffix|>",
     "call 0 look  {\"a\": 1}|call 1 f  {}"},
    {"<|tools_prefix|>", "apertus", NULL, "<|tools_prefix|>[{\"a\": {}, \"b\": {}}]<|tools_suffix|>",
     "call 0 a  {}|bad:, \"b\": {}}]<|tools_suffix|>"},
    {" functools[", "functools", NULL, "I look. functools[{\"name\": \"look\", \"arguments\": {}}]",
     "I look.|call 0 look  {}"},
    {"dsml_token + 'function_calls>", "dsml", NULL,
     "<｜DSML｜function_calls><｜DSML｜invoke name=\"look\"><｜DSML｜parameter name=\"city\">Rome"
     "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>",
     "call 0 look  {\"city\": \"Rome\"}"},
    {"<minimax:tool_call> <invoke name=", "minimax", NULL,
     "a<minimax:tool_call>\n<invoke name=\"look\"><parameter name=\"city\">Rome</parameter></invoke>\n"
     "<invoke name=\"f\"></invoke></minimax:tool_call>",
     "a|call 0 look  {\"city\": \"Rome\"}|call 1 f  {}"},
    {"<seed:tool_call> <function=", "seed", NULL,
     "<seed:tool_call><function=look><parameter=days>3</parameter></function></seed:tool_call>b",
     "call 0 look  {\"days\": 3}|b"},
    {"Action: \"tool_name\"", "command_r", NULL,
     "Action:\n```json\n[{\"tool_name\": \"look\", \"parameters\": {\"city\": \"Rome\"}}]\n```",
     "call 0 look  {\"city\": \"Rome\"}"},
    {"<|function_call|>", "gigachat_function_call", NULL,
     "ok<|function_call|>{\"name\": \"look\", \"arguments\": {\"city\": \"Rome\"}}<|message_sep|>",
     "ok|call 0 look  {\"city\": \"Rome\"}"},
    {"function call <|role_sep|>", "gigachat", NULL,
     "ok<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"look\", \"arguments\": {}}<|message_sep|>",
     "ok|call 0 look  {}"},
    {"<|tool_call|>", "granite", NULL, "<|tool_call|>[{\"name\": \"look\", \"arguments\": {\"a\": 1}}]",
     "call 0 look  {\"a\": 1}"},
    {"[BEGIN FINAL RESPONSE] <tool_calls></tool_calls>", "tool_calls",
     "<|begin_assistant|>\nHere are my reasoning steps:\n",
     "One.\n[BEGIN FINAL RESPONSE]\nTwo.\n[END FINAL RESPONSE]\n<tool_calls>[{\"name\": \"f\", "
     "\"arguments\": {}}]"
     "</tool_calls>",
     "think:One.|Two.|call 0 f  {}"},
};

static void test_examples(void **state)
{
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        qn_answer_format format = format_of(examples[i].evidence);
        assert_string_equal(qn_answer_format_name(format), examples[i].name);
        qn_answer_options o = with_tools(format, examples[i].prompt);
        expect(&o, examples[i].text, examples[i].want);
    }
}

static void test_without_tools_nothing_is_a_call(void **state)
{
    qn_answer_options o = with_tools(format_of("<tool_call></think>"), "<think>");
    o.tools = NULL;
    expect(&o, "a</think> <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
           "think:a|<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>");
}

static void test_comes_out_as_soon_as_it_can(void **state)
{
    qn_answer_options o = with_tools(format_of("<tool_call>"), NULL);
    qn_answer *a = NULL;
    size_t n;
    assert_int_equal(qn_answer_new(&o, &a), QN_OK);
    assert_int_equal(qn_answer_feed(a, "Hello <to", 9), QN_OK);
    const qn_answer_event *e = qn_answer_get_events(a, &n);
    assert_int_equal(n, 1);
    assert_memory_equal(e[0].text, "Hello", 5);
    assert_int_equal(e[0].n, 5);
    assert_int_equal(qn_answer_feed(a, "p>", 2), QN_OK);
    e = qn_answer_get_events(a, &n);
    assert_memory_equal(e[0].text, " <top>", 6);
    assert_int_equal(qn_answer_feed(a, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", 50),
                     QN_OK);
    e = qn_answer_get_events(a, &n);
    assert_int_equal(n, 3);
    assert_int_equal(qn_answer_count_calls(a), 1);
    assert_int_equal(qn_answer_count_malformed(a), 0);
    qn_answer_free(a);
}

static char *run_bounded(const char *head, const char *tail, uint64_t seed)
{
    qn_answer_options o = with_tools(format_of("<tool_call>"), NULL);
    qn_buf text = {0};
    o.limit_bytes = 500;
    qn_buf_puts(&text, head);
    for (int i = 0; i < 1000; i++) qn_buf_puts(&text, "<tool_call>");
    qn_buf_puts(&text, tail);
    char *got = run(&o, text.data, text.length, seed);
    qn_buf_free(&text);
    return got;
}

/* Arguments that leave as they come need no memory; those that wait for a name do. */
static void test_memory_is_bounded(void **state)
{
    for (uint64_t seed = 0; seed < 5; seed++) {
        char *got =
            run_bounded("<tool_call>{\"arguments\": {\"a\": \"", "\"}, \"name\": \"f\"}</tool_call>", seed);
        char *whole =
            run_bounded("<tool_call>{\"arguments\": {\"a\": \"", "\"}, \"name\": \"f\"}</tool_call>", 0);
        assert_string_equal(got, whole);
        assert_non_null(strstr(got, "bad:"));
        assert_null(strstr(got, "call 0"));
        qn_free(got);
        qn_free(whole);
        got = run_bounded("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"", "\"}}</tool_call>", seed);
        assert_int_equal(strlen(got), strlen("call 0 f  {\"a\": \"\"}") + 11000);
        assert_null(strstr(got, "bad:"));
        qn_free(got);
    }
}

/* ---- random answers ---- */

/* Pieces of marks, calls and text in any order: no cut of them may matter, and without calls nothing but
 * white space may be lost. */
static void test_random(void **state)
{
    static const char *const evidence[] = {"<tool_call></think>",
                                           "<tool_call><function=",
                                           "<tool_call><arg_key>",
                                           "[TOOL_CALLS]",
                                           ">>>all",
                                           "<|start_header_id|> \"parameters\":",
                                           "<|channel|>commentary functions.",
                                           "<|tool_call><tool_call|>",
                                           "<function name=\" <param name=\"",
                                           "<｜tool▁calls▁begin｜>"};
    static const char *const pieces[] = {
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\\\"<tool_call>\"}}</tool_call>",
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}]",
        "<tool_call><function=f><parameter=a>[1]</parameter></function></tool_call>",
        "<tool_call>f<arg_key>k</arg_key><arg_value>1</arg_value></tool_call>",
        "<|start|>assistant to=functions.f<|message|>{}<|call|>",
        ">>>f\n{}",
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "{\"name\": \"f\", \"arguments\": {\"a\": \"",
        "\"}}",
        "{\"name\": \"f\", \"parameters\": {}}",
        " ",
        "\n",
        "text",
        "\"",
        "<",
        "{",
        "}",
        "[",
        "]",
        "<function=f>",
        "</function>",
        "<parameter=a>",
        "</parameter>",
        "f",
        "<arg_key>k</arg_key>",
        "<arg_value>1</arg_value>",
        "[TOOL_CALLS]",
        ">>>",
        ">>>f\n",
        "<|start|>",
        "<|message|>",
        "<|call|>",
        "<|channel|>commentary to=functions.f<|message|>",
        "<|tool_call>call:f{a:",
        "1}<tool_call|>",
        "<function name=\"f\">",
        "<param name=\"a\">1</param>",
        "\\",
        "\xc3\xa9",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
        ";"};
    enum { N_PIECES = sizeof pieces / sizeof *pieces, N_EVIDENCE = sizeof evidence / sizeof *evidence };
    int64_t n_calls = 0, n_bad = 0;
    for (uint64_t round = 1; round <= 4000; round++) {
        qn_buf text = {0};
        size_t n = qn_random_bits(round, 0) % 24;
        for (size_t i = 0; i < n; i++) qn_buf_puts(&text, pieces[qn_random_bits(round, i + 1) % N_PIECES]);
        if (!text.data) qn_buf_puts(&text, "");
        qn_answer_options o = with_tools(format_of(evidence[round % N_EVIDENCE]), "x");
        if (round % 5 == 0) o.limit_bytes = 40;
        char *want = run(&o, text.data, text.length, 0);
        for (uint64_t seed = 1; seed < 8; seed++) {
            char *got = run(&o, text.data, text.length, seed + round);
            assert_string_equal(got, want);
            qn_free(got);
        }
        n_calls += strstr(want, "call 0 ") != NULL;
        n_bad += strstr(want, "bad:") != NULL;
        qn_free(want);
        qn_buf_free(&text);
    }
    assert_true(n_calls > 100 && n_bad > 100);
}

/* Arguments leave before their call is whole. */
static void test_arguments_come_as_they_are_written(void **state)
{
    static const struct {
        const char *evidence, *begin, *want;
    } rows[] = {
        {"<tool_call>", "<tool_call>{\"name\": \"look\", \"arguments\": {\"city\": \"Ro", "{\"city\": \"Ro"},
        {"<tool_call>", "<tool_call>{\"name\": \"look\", \"arguments\": \"{\\\"city\\\": \\\"Ro",
         "{\"city\": \"Ro"},
        {"[TOOL_CALLS]", "[TOOL_CALLS][{\"name\": \"look\", \"arguments\": {\"n\": 1", "{\"n\": 1"},
        {"<|start_header_id|> \"parameters\":", "{\"name\": \"look\", \"parameters\": {\"city\": \"Ro",
         "{\"city\": \"Ro"},
        {"<tool_call><function=", "<tool_call><function=look><parameter=city>\nRo", "{\"city\": \"Ro"},
        {"<tool_call><function=", "<tool_call><function=look><parameter=days>3</parameter>", "{\"days\": 3"},
        {"<tool_call><arg_key>", "<tool_call>look<arg_key>city</arg_key><arg_value>Ro", "{\"city\": \"Ro"},
        {"<|tool_call><tool_call|>", "<|tool_call>call:look{city:<|\"|>Ro", "{\"city\": \"Ro"},
        {"<|tools_prefix|>", "<|tools_prefix|>[{\"look\": {\"city\": \"Ro", "{\"city\": \"Ro"},
        {"<|tool_calls_section_begin|>",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{\"a\"",
         "{\"a\""},
        {"<｜tool▁calls▁begin｜>",
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{\"a\"", "{\"a\""},
        {"<|channel|>commentary functions.",
         "<|start|>assistant<|channel|>commentary to=functions.look<|message|>{\"a\"", "{\"a\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_answer_options o = with_tools(format_of(rows[i].evidence), "x");
        qn_answer *a = NULL;
        qn_buf got = {0};
        size_t n;
        assert_int_equal(qn_answer_new(&o, &a), QN_OK);
        assert_int_equal(qn_answer_feed(a, rows[i].begin, strlen(rows[i].begin)), QN_OK);
        const qn_answer_event *e = qn_answer_get_events(a, &n);
        assert_int_equal(n, 2);
        assert_int_equal(e[0].kind, QN_ANSWER_CALL_BEGIN);
        assert_string_equal(e[0].text, "look");
        assert_int_equal(e[1].kind, QN_ANSWER_CALL_ARGUMENTS);
        qn_buf_append(&got, e[1].text, e[1].n);
        assert_string_equal(got.data, rows[i].want);
        qn_buf_free(&got);
        qn_answer_free(a);
    }
}

/* ---- JSON byte by byte ---- */

static int is_json_by_steps(const char *text, size_t n)
{
    qn_json_steps s = {0};
    qn_json_step_result result = QN_JSON_MORE;
    size_t i = 0;
    while (i < n && result == QN_JSON_MORE) result = qn_json_step(&s, text[i++]);
    if (result == QN_JSON_MORE) return qn_json_step(&s, ' ') == QN_JSON_PAST;
    if (result == QN_JSON_PAST) i--;
    while (i < n && strchr(" \t\r\n", text[i]) && text[i]) i++;
    return i == n && result != QN_JSON_BAD;
}

static void test_json_steps(void **state)
{
    static const char *const pieces[] = {
        "{",           "}",           "[",           "]",       ",",
        ":",           "\"a\"",       "\"b\"",       "\"\\n\"", "\"\\ud83d\\ude00\"",
        "\"\\ud83d\"", "\"\\ude00\"", "\"\\u00E9\"", "\"\\x\"", "true",
        "false",       "null",        "nul",         "0",       "-1",
        "01",          "1.5",         "1.",          "2e+3",    "2e",
        "-",           " ",           "\n",          "\"",      "\\",
        "\xc3\xa9"};
    enum { N = sizeof pieces / sizeof *pieces };
    int n_good = 0;
    for (uint64_t round = 1; round <= 200000; round++) {
        qn_buf b = {0};
        size_t n = qn_random_bits(round, 0) % 8 + 1;
        for (size_t i = 0; i < n; i++) qn_buf_puts(&b, pieces[qn_random_bits(round, i + 1) % N]);
        const char *text = b.data;
        json_error_t error;
        json_t *json = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
        int is_too_large = !json && json_error_code(&error) == json_error_numeric_overflow;
        if (!is_too_large && !!json != is_json_by_steps(text, b.length))
            fail_msg("%s: %s", text, json ? "JSON" : error.text);
        n_good += json != NULL;
        json_decref(json);
        qn_buf_free(&b);
    }
    assert_true(n_good > 1000);
    char deep[2 * QN_JSON_DEPTH_MAX + 3];
    for (int depth = QN_JSON_DEPTH_MAX; depth <= QN_JSON_DEPTH_MAX + 1; depth++) {
        memset(deep, '[', (size_t)depth);
        memset(deep + depth, ']', (size_t)depth);
        assert_int_equal(is_json_by_steps(deep, 2 * (size_t)depth), depth <= QN_JSON_DEPTH_MAX);
    }
}

/* ---- templates ---- */

static json_t *read_json(const char *path)
{
    FILE *f = fopen(path, "rb");
    qn_buf b = {0};
    char block[16384];
    json_t *json = NULL;
    if (!f) return NULL;
    for (size_t got; (got = fread(block, 1, sizeof block, f)) > 0;) qn_buf_append(&b, block, got);
    fclose(f);
    assert_int_equal(qn_json_parse(path, b.data, b.length, &json), QN_OK);
    qn_buf_free(&b);
    return json;
}

static const json_t *find_case(const json_t *cases, const char *name)
{
    size_t i;
    json_t *each;
    json_array_foreach((json_t *)cases, i, each)
    {
        if (strcmp(json_string_value(json_object_get(each, "name")), name) == 0 &&
            json_object_get(each, "text"))
            return each;
    }
    return NULL;
}

static const char *text_of(const json_t *c)
{
    return c ? json_string_value(json_object_get(c, "text")) : NULL;
}

/* What follows the prompt of a case's only question. */
static const char *answer_of(const json_t *cases, const json_t *c, size_t *prompt_bytes)
{
    const char *with = text_of(find_case(cases, "user+gen")), *without = text_of(find_case(cases, "user"));
    const char *question = json_string_value(json_object_get(
        json_array_get(json_object_get(json_object_get(c, "context"), "messages"), 0), "content"));
    const char *at = text_of(c);
    for (const char *p; (p = strstr(at, question));) at = p + strlen(question);
    if (with && without && strncmp(with, without, strlen(without)) == 0 && with[strlen(without)]) {
        const char *p = strstr(at, with + strlen(without));
        if (p) at = p + strlen(with + strlen(without));
    }
    *prompt_bytes = (size_t)(at - text_of(c));
    return at;
}

/* The calls of the messages that the text shows, against those that were read. */
static int compare_calls(const char *file, const json_t *c, const qn_answer_format format, const char *answer,
                         size_t prompt_bytes)
{
    const json_t *context = json_object_get(c, "context");
    json_t *calls = NULL, *message, *each;
    size_t i, n, seen = 0;
    int n_calls = 0;
    qn_answer_options o = {.format = format,
                           .tools = json_object_get(context, "tools"),
                           .prompt = text_of(c),
                           .prompt_bytes = prompt_bytes};
    qn_answer *a = NULL;
    if (!json_is_array(o.tools)) o.tools = tools;
    assert_int_equal(qn_answer_new(&o, &a), QN_OK);
    const char *end = strstr(answer, "<|eot_id|>"); /* a stop token, which no answer contains */
    assert_int_equal(qn_answer_feed(a, answer, end ? (size_t)(end - answer) : strlen(answer)), QN_OK);
    if (qn_answer_count_calls(a) == 0) assert_int_equal(qn_answer_finish(a), QN_OK);
    const qn_answer_event *e = qn_answer_get_events(a, &n);
    json_array_foreach(json_object_get(context, "messages"), i, message)
    {
        if (!calls) calls = json_object_get(message, "tool_calls");
    }
    json_array_foreach(calls, i, each)
    {
        const json_t *function = json_object_get(each, "function");
        json_t *arguments = json_object_get(function, "arguments"), *parsed = NULL, *got = NULL;
        const char *name = json_string_value(json_object_get(function, "name"));
        if (!strstr(answer, name)) continue;
        if (json_is_string(arguments)) {
            const char *text = json_string_value(arguments);
            assert_int_equal(qn_json_parse("arguments", text, strlen(text), &parsed), QN_OK);
        }
        while (seen < n && e[seen].kind != QN_ANSWER_CALL_BEGIN) seen++;
        if (seen == n) fail_msg("%s: call of %s not found in %s", file, name, answer);
        assert_string_equal(e[seen].text, name);
        assert_int_equal(qn_json_parse("got", e[seen + 1].text, e[seen + 1].n, &got), QN_OK);
        if (!json_equal(parsed ? parsed : arguments, got))
            fail_msg("%s: %s: other arguments: %.*s", file, name, (int)e[seen + 1].n, e[seen + 1].text);
        json_decref(parsed);
        json_decref(got);
        seen++;
        n_calls++;
    }
    assert_int_equal(qn_answer_count_calls(a), n_calls);
    assert_int_equal(qn_answer_count_malformed(a), 0);
    char *whole = run(&o, answer, strlen(answer), 0);
    for (uint64_t seed = 1; seed < 8; seed++) {
        char *cut = run(&o, answer, strlen(answer), seed);
        assert_string_equal(cut, whole);
        qn_free(cut);
    }
    qn_free(whole);
    qn_answer_free(a);
    return n_calls;
}

static void test_templates(void **state)
{
    static const char *const names[] = {"tool_call_and_result", "parallel_calls", "string_arguments+gen"};
    char folder[1024];
    int n_templates = 0;
    snprintf(folder, sizeof folder, "%s", qn_test_need_fixture("templates"));
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d));) {
        char path[2048];
        const char *end = strstr(entry->d_name, ".cases.json");
        if (!end) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        json_t *cases = read_json(path),
               *array = json_is_array(cases) ? cases : json_object_get(cases, "cases");
        snprintf(path, sizeof path, "%s/%.*s.jinja", folder, (int)(end - entry->d_name), entry->d_name);
        FILE *f = fopen(path, "rb");
        char text[65536];
        size_t n = f ? fread(text, 1, sizeof text, f) : 0;
        if (f) fclose(f);
        qn_answer_format format = qn_answer_format_choose(text, n);
        int n_calls = 0;
        for (size_t i = 0; i < sizeof names / sizeof *names && format.calls; i++) {
            const json_t *c = find_case(array, names[i]);
            size_t prompt_bytes;
            const char *answer = c ? answer_of(array, c, &prompt_bytes) : NULL;
            if (answer) n_calls += compare_calls(entry->d_name, c, format, answer, prompt_bytes);
        }
        print_message("%s: %s, %d calls\n", entry->d_name, qn_answer_format_name(format), n_calls);
        n_templates += n_calls > 0;
        json_decref(cases);
    }
    closedir(d);
    assert_true(n_templates > 0);
}

/* ---- literals ---- */

static void expect_loose(const char *text, const char *want)
{
    qn_buf out = {0};
    size_t at = 0;
    qn_status status = qn_loose_json(text, strlen(text), &at, &out);
    if (want) {
        assert_int_equal(status, QN_OK);
        assert_int_equal(at, strlen(text));
        assert_string_equal(out.data, want);
    } else {
        assert_true(status != QN_OK || at != strlen(text));
    }
    qn_buf_free(&out);
}

static void test_loose_json(void **state)
{
    expect_loose("{'a': 'b\\'\\x41\\u00e9\\ud83d\\ude00', 'c': ()}",
                 "{\"a\": \"b'A\xc3\xa9\xf0\x9f\x98\x80\", \"c\": []}");
    expect_loose(" [1, -2.5e3, True, None,]", "[1, -2.5e3, true, null]");
    expect_loose("{a:<|\"|>\"'\\<|\"|>,b.c:{}}", "{\"a\": \"\\\"'\\\\\", \"b.c\": {}}");
    expect_loose("\"x\n\"", "\"x\\n\"");
    const char *bad[] = {"",      "{",         "[1 2]", "{'a'}", "{'a': }", "01",     "1.",     "nan", "'a",
                         "'\\q'", "'\\ud800'", "x",     "[,]",   "{,}",     "'\\x4'", "<|\"|>", "--1", "1e"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) expect_loose(bad[i], NULL);
    expect_loose("'\\x\x12\x13'", NULL); /* control characters are no digits */
    qn_buf out = {0};
    size_t at = 0;
    assert_int_not_equal(qn_loose_json("[\0 1]", 5, &at, &out), QN_OK); /* nor is a NUL white space */
    qn_buf_free(&out);
    char deep[4001];
    memset(deep, '[', 4000);
    deep[4000] = 0;
    expect_loose(deep, NULL);
}

/* ---- memory ---- */

static void test_runs_out_of_memory(void **state)
{
    static const char text[] = "<think>Hm.</think>So:<tool_call><function=look><parameter=city>\nx\n</"
                               "parameter>\n<parameter=b>{'a': 1}"
                               "</parameter></function></tool_call><tool_call>{</tool_call>";
    qn_answer_options o = with_tools(format_of("<tool_call><function=</think>"), "x");
    for (uint64_t nth = 1; nth < 2000; nth++) {
        int64_t blocks = qn_mem_live_blocks();
        qn_answer *a = NULL;
        qn_mem_fail_nth(nth);
        qn_status status = qn_answer_new(&o, &a);
        if (status == QN_OK) status = qn_answer_feed(a, text, 30);
        if (status == QN_OK) status = qn_answer_feed(a, text + 30, strlen(text) - 30);
        if (status == QN_OK) status = qn_answer_finish(a);
        qn_mem_fail_nth(0);
        qn_answer_free(a);
        assert_int_equal(qn_mem_live_blocks(), blocks);
        if (status == QN_OK) return;
        assert_int_equal(status, QN_E_NOMEM);
    }
    fail();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_without_tools_nothing_is_a_call),
        cmocka_unit_test(test_comes_out_as_soon_as_it_can),
        cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_arguments_come_as_they_are_written),
        cmocka_unit_test(test_json_steps),
        cmocka_unit_test(test_templates),
        cmocka_unit_test(test_loose_json),
        cmocka_unit_test(test_runs_out_of_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
