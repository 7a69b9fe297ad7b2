#include "text/tools/tool_formats.h"

#include <stdio.h>
#include <string.h>

/* The first row whose evidence the template contains is taken: what other rows' evidence is part of comes
 * first. */
static const qn_call_format calls[] = {
    {.name = "harmony",
     .evidence = {{"<|channel|>commentary", "functions."}},
     .body = QN_CALL_JSON,
     .header = {.open = "<|start|>",
                .close = "<|message|>",
                .reasoning = "analysis",
                .call = "to=functions.",
                .role = "assistant",
                .reasoning_header = "<|channel|>analysis",
                .content_header = "<|channel|>final",
                .call_headers = {{"<|channel|>commentary to=functions.", ""},
                                 {" to=functions.", "<|channel|>commentary"}},
                .types = {" <|constrain|>json", " json", "<|constrain|>json"},
                .next = "<|end|>",
                .last = "<|call|>"},
     .drop = {"<|call|>", "<|end|>", "<|return|>"}},
    {.name = "functionary",
     .evidence = {{">>>all"}},
     .body = QN_CALL_JSON,
     .header = {.open = ">>>",
                .close = "\n",
                .call = "",
                .content = "all",
                .role = "",
                .content_header = "all",
                .call_headers = {{"", ""}},
                .next = ""}},
    {.name = "atem",
     .evidence = {{"<atem:function_calls>"}},
     .open = "<atem:function_calls>",
     .close = "</atem:function_calls>",
     .body = QN_CALL_TAGS,
     .marks = {.call_open = "<atem:invoke name=\"",
               .name_end = "\"",
               .call_close = "</atem:invoke>",
               .parameter_open = "<atem:parameter name=\"",
               .parameter_name_end = "\"",
               .parameter_close = "</atem:parameter>"},
     .header = {.open = "<|start|>",
                .close = "<|message|>",
                .reasoning = "to=self",
                .role = "assistant",
                .reasoning_header = " to=self",
                .content_header = " to=user",
                .call_headers = {{" to=", ""}},
                .next = "<|eom|>",
                .last = "<|eot|>"},
     .drop = {"<|eom|>", "<|eot|>"}},
    {.name = "dsml_calls",
     .evidence = {{"dsml_token + 'tool_calls>"}},
     .open = "<｜DSML｜tool_calls>",
     .close = "</｜DSML｜tool_calls>",
     .body = QN_CALL_TAGS,
     .marks = {.call_open = "<｜DSML｜invoke name=\"",
               .name_end = "\"",
               .call_close = "</｜DSML｜invoke>",
               .parameter_open = "<｜DSML｜parameter name=\"",
               .parameter_name_end = "\"",
               .parameter_close = "</｜DSML｜parameter>"}},
    {.name = "dsml",
     .evidence = {{"dsml_token + 'function_calls>"}},
     .open = "<｜DSML｜function_calls>",
     .close = "</｜DSML｜function_calls>",
     .body = QN_CALL_TAGS,
     .marks = {.call_open = "<｜DSML｜invoke name=\"",
               .name_end = "\"",
               .call_close = "</｜DSML｜invoke>",
               .parameter_open = "<｜DSML｜parameter name=\"",
               .parameter_name_end = "\"",
               .parameter_close = "</｜DSML｜parameter>"}},
    {.name = "minimax",
     .evidence = {{"<minimax:tool_call>", "<invoke name="}},
     .open = "<minimax:tool_call>",
     .close = "</minimax:tool_call>",
     .body = QN_CALL_TAGS,
     .marks = {.call_open = "<invoke name=\"",
               .name_end = "\"",
               .call_close = "</invoke>",
               .parameter_open = "<parameter name=\"",
               .parameter_name_end = "\"",
               .parameter_close = "</parameter>"}},
    {.name = "seed",
     .evidence = {{"<seed:tool_call>", "<function="}},
     .open = "<seed:tool_call>",
     .close = "</seed:tool_call>",
     .body = QN_CALL_TAGS,
     .marks = {.call_open = "<function=",
               .name_end = ">",
               .call_close = "</function>",
               .parameter_open = "<parameter=",
               .parameter_name_end = ">",
               .parameter_close = "</parameter>"}},
    {.name = "qwen_coder",
     .evidence = {{"<tool_call>", "<function="}},
     .open = "<tool_call>",
     .close = "</tool_call>",
     .body = QN_CALL_TAGS,
     .marks = {.call_open = "<function=",
               .name_end = ">",
               .call_close = "</function>",
               .parameter_open = "<parameter=",
               .parameter_name_end = ">",
               .parameter_close = "</parameter>",
               .value_lines = 1}},
    {.name = "minicpm",
     .evidence = {{"<function name=\"", "<param name=\""}},
     .open = "<function name=\"",
     .close = "</function>",
     .is_bare = 1,
     .body = QN_CALL_TAGS,
     .marks = {.call_open = "<function name=\"",
               .name_end = "\"",
               .call_close = "</function>",
               .parameter_open = "<param name=\"",
               .parameter_name_end = "\"",
               .parameter_close = "</param>"}},
    {.name = "glm",
     .evidence = {{"<tool_call>", "<arg_key>"}},
     .open = "<tool_call>",
     .close = "</tool_call>",
     .body = QN_CALL_KEYS,
     .marks = {.key_open = "<arg_key>",
               .key_close = "</arg_key>",
               .parameter_open = "<arg_value>",
               .parameter_close = "</arg_value>"}},
    {.name = "glm4",
     .evidence = {{"<|observation|>", "Json 格式表示调用的参数"}},
     .is_bare = 1,
     .body = QN_CALL_JSON,
     .header = {.open = "<|assistant|>",
                .close = "\n",
                .call = "",
                .content = "",
                .role = "",
                .content_header = "",
                .call_headers = {{"", ""}},
                .next = ""}},
    {.name = "kimi",
     .evidence = {{"<|tool_calls_section_begin|>"}},
     .open = "<|tool_calls_section_begin|>",
     .close = "<|tool_calls_section_end|>",
     .body = QN_CALL_NAMED,
     .marks = {.call_open = "<|tool_call_begin|>",
               .name_end = "<|tool_call_argument_begin|>",
               .call_close = "<|tool_call_end|>"}},
    {.name = "deepseek",
     .evidence = {{"<｜tool▁calls▁begin｜>"}},
     .open = "<｜tool▁calls▁begin｜>",
     .close = "<｜tool▁calls▁end｜>",
     .body = QN_CALL_NAMED,
     .marks = {.call_open = "<｜tool▁call▁begin｜>",
               .name_end = "<｜tool▁sep｜>",
               .call_close = "<｜tool▁call▁end｜>"}},
    {.name = "gemma",
     .evidence = {{"<|tool_call>", "<tool_call|>"}},
     .open = "<|tool_call>",
     .close = "<tool_call|>",
     .body = QN_CALL_LOOSE},
    {.name = "apertus",
     .evidence = {{"<|tools_prefix|>"}},
     .open = "<|tools_prefix|>",
     .close = "<|tools_suffix|>",
     .body = QN_CALL_KEYED,
     .writes_array = 1},
    {.name = "command_r7b",
     .evidence = {{"<|START_ACTION|>"}},
     .open = "<|START_ACTION|>",
     .close = "<|END_ACTION|>",
     .body = QN_CALL_JSON,
     .name_key = "tool_name",
     .arguments_key = "parameters",
     .writes_array = 1,
     .drop = {"<|START_RESPONSE|>", "<|END_RESPONSE|>"}},
    {.name = "command_r",
     .evidence = {{"Action:", "\"tool_name\""}},
     .open = "Action:\n```json\n",
     .close = "```",
     .body = QN_CALL_JSON,
     .name_key = "tool_name",
     .arguments_key = "parameters",
     .writes_array = 1},
    {.name = "lfm2",
     .evidence = {{"<|tool_call_start|>"},
                  {"<|tool_list_start|>"},
                  {"List of tools: [", "keep_past_thinking"}},
     .open = "<|tool_call_start|>",
     .close = "<|tool_call_end|>",
     .body = QN_CALL_PYTHON,
     .writes_array = 1},
    {.name = "olmo3",
     .evidence = {{"<function_calls>"}},
     .open = "<function_calls>",
     .close = "</function_calls>",
     .body = QN_CALL_PYTHON},
    {.name = "pythonic",
     .evidence = {{"[func_name1("}},
     .open = "[",
     .is_bare = 1,
     .body = QN_CALL_PYTHON,
     .writes_array = 1,
     .drop = {"<|python_start|>", "<|python_end|>", "<|python_tag|>"}},
    {.name = "nemotron",
     .evidence = {{"<TOOLCALL>"}},
     .open = "<TOOLCALL>",
     .close = "</TOOLCALL>",
     .body = QN_CALL_JSON,
     .writes_array = 1},
    {.name = "gigachat_function_call",
     .evidence = {{"<|function_call|>"}},
     .open = "<|function_call|>",
     .close = "<|message_sep|>",
     .body = QN_CALL_JSON},
    {.name = "gigachat",
     .evidence = {{"function call", "<|role_sep|>"}},
     .open = "<|message_sep|>\n\nfunction call<|role_sep|>\n",
     .close = "<|message_sep|>",
     .body = QN_CALL_JSON},
    {.name = "functools",
     .evidence = {{" functools["}},
     .open = "functools",
     .body = QN_CALL_JSON,
     .writes_array = 1},
    {.name = "phi4",
     .evidence = {{"<|/tool_call|>"}, {"<|/tool|>"}},
     .open = "<|tool_call|>",
     .close = "<|/tool_call|>",
     .body = QN_CALL_JSON,
     .writes_array = 1},
    {.name = "granite",
     .evidence = {{"<|tool_call|>"}},
     .open = "<|tool_call|>",
     .body = QN_CALL_JSON,
     .writes_array = 1},
    {.name = "hunyuan",
     .evidence = {{"<tool_calls>", "</answer>"}, {"hy_Assistant", "</answer>"}, {"<|extra_0|>", "</answer>"}},
     .open = "<tool_calls>",
     .close = "</tool_calls>",
     .body = QN_CALL_JSON,
     .writes_array = 1,
     .drop = {"<answer>", "</answer>"}},
    {.name = "tool_calls",
     .evidence = {{"<tool_calls>", "</tool_calls>"}},
     .open = "<tool_calls>",
     .close = "</tool_calls>",
     .body = QN_CALL_JSON,
     .writes_array = 1,
     .drop = {"[END FINAL RESPONSE]"}},
    {.name = "ernie",
     .evidence = {{"<tool_call>", "</response>"}},
     .open = "<tool_call>",
     .close = "</tool_call>",
     .body = QN_CALL_JSON,
     .drop = {"<response>", "</response>"}},
    {.name = "hermes",
     .evidence = {{"<tool_call>"}},
     .open = "<tool_call>",
     .close = "</tool_call>",
     .body = QN_CALL_JSON},
    {.name = "mistral_named",
     .evidence = {{"[TOOL_CALLS]", "[ARGS]"}},
     .open = "[TOOL_CALLS]",
     .body = QN_CALL_NAMED,
     .marks = {.name_end = "[ARGS]", .id_open = "[CALL_ID]"}},
    {.name = "mistral",
     .evidence = {{"[TOOL_CALLS]"}},
     .open = "[TOOL_CALLS]",
     .body = QN_CALL_JSON,
     .writes_array = 1},
    {.name = "llama4",
     .evidence = {{"<|header_start|>", "\"parameters\":"}},
     .open = "{",
     .is_bare = 1,
     .body = QN_CALL_JSON,
     .arguments_key = "parameters",
     .drop = {"<|python_start|>", "<|python_end|>"}},
    {.name = "llama3",
     .evidence = {{"<|start_header_id|>", "\"parameters\":"}},
     .open = "{",
     .is_bare = 1,
     .body = QN_CALL_JSON,
     .arguments_key = "parameters",
     .drop = {"<|python_tag|>"}},
};

static const qn_reasoning_format reasoning[] = {
    {"Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"},
    {"<seed:think>", "</seed:think>"},
    {"<|START_THINKING|>", "<|END_THINKING|>"},
    {"<|inner_prefix|>", "<|inner_suffix|>"},
    {"<|channel>thought", "<channel|>"},
    {"<thinking>", "</thinking>"},
    {"<thought>", "</thought>"},
    {"<think>", "</think>"},
    {"[THINK]", "[/THINK]"},
};

static int contains(const char *text, size_t n, const char *what)
{
    size_t m = strlen(what);
    for (const char *p = text, *end = text + n; m <= (size_t)(end - p); p++) {
        p = memchr(p, what[0], (size_t)(end - p) - m + 1);
        if (!p) return 0;
        if (memcmp(p, what, m) == 0) return 1;
    }
    return 0;
}

static int has_evidence(const qn_call_format *f, const char *text, size_t n)
{
    for (int i = 0; i < QN_CALL_EVIDENCE && f->evidence[i][0]; i++)
        if (contains(text, n, f->evidence[i][0]) &&
            (!f->evidence[i][1] || contains(text, n, f->evidence[i][1])))
            return 1;
    return 0;
}

qn_answer_format qn_answer_format_choose(const char *chat_template, size_t n)
{
    qn_answer_format f = {0};
    for (size_t i = 0; i < sizeof calls / sizeof *calls && !f.calls; i++)
        if (has_evidence(&calls[i], chat_template, n)) f.calls = &calls[i];
    for (size_t i = 0; i < sizeof reasoning / sizeof *reasoning && !f.reasoning; i++)
        if (contains(chat_template, n, reasoning[i].close)) f.reasoning = &reasoning[i];
    return f;
}

const char *qn_answer_format_name(qn_answer_format format)
{
    return format.calls ? format.calls->name : "none";
}

const char *qn_answer_reasoning_mark(qn_answer_format format)
{
    return format.reasoning ? format.reasoning->open : "";
}

int qn_answer_get_reasoning_marks(qn_answer_format format, qn_reasoning_marks *out)
{
    const qn_header_marks *h = format.calls ? &format.calls->header : NULL;
    if (h && h->reasoning_header && h->next && *h->next) {
        snprintf(out->open, sizeof out->open, "%s%s", h->reasoning_header, h->close);
        snprintf(out->close, sizeof out->close, "%s", h->next);
        snprintf(out->end, sizeof out->end, "%s%s%s%s%s", h->next, h->open, h->role, h->content_header,
                 h->close);
        return 1;
    }
    if (!format.reasoning) return 0;
    snprintf(out->open, sizeof out->open, "%s", format.reasoning->open);
    snprintf(out->close, sizeof out->close, "%s", format.reasoning->close);
    snprintf(out->end, sizeof out->end, "%s", format.reasoning->close);
    return 1;
}

qn_answer_format qn_answer_format_find(const char *name, const char *reasoning_mark)
{
    qn_answer_format f = {0};
    for (size_t i = 0; name && i < sizeof calls / sizeof *calls; i++)
        if (strcmp(calls[i].name, name) == 0) f.calls = &calls[i];
    for (size_t i = 0; reasoning_mark && i < sizeof reasoning / sizeof *reasoning; i++)
        if (strcmp(reasoning[i].open, reasoning_mark) == 0) f.reasoning = &reasoning[i];
    return f;
}
