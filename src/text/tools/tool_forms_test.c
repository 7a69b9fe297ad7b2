/* Answers taken apart: examples of every form of calls and reasoning. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/answer_text.h"
#include "text/tools/tool_calls.h"

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
    /* Calls as Python has them. */
    {"<|tool_call_start|>", "lfm2", NULL,
     "<|tool_call_start|>[look(city=\"Rome\", days=3), f()]<|tool_call_end|>Looking.",
     "call 0 look  {\"city\": \"Rome\", \"days\": 3}|call 1 f  {}|Looking."},
    {"<|tool_list_start|>", "lfm2", NULL,
     "I look. <|tool_call_start|>[look(city='it\\'s \"x\"', days=[1, -2.5e3, None, {'a': True, \"b\": "
     "(1,)}])]",
     "I look.|call 0 look  {\"city\": \"it's \\\"x\\\"\", \"days\": [1, -2.5e3, null, {\"a\": true, \"b\": "
     "[1]}]}"},
    {"List of tools: [ keep_past_thinking </think>", "lfm2", NULL,
     "<think>Hm.</think><|tool_call_start|>[\n  {\"name\": \"look\", \"arguments\": {\"city\": \"]\"}}\n]"
     "<|tool_call_end|>",
     "think:Hm.|call 0 look  {\"city\": \"]\"}"},
    /* Quotes that nobody escaped. */
    {"<|tool_call_start|>", "lfm2", NULL,
     "<|tool_call_start|>[look(city='it's 'so' \"x\"' , more=\"a \"b\" c\"), f(x=['a', 'b'], y={'k': ''})]",
     "call 0 look  {\"city\": \"it's 'so' \\\"x\\\"\", \"more\": \"a \\\"b\\\" c\"}|call 1 f  {\"x\": "
     "[\"a\", "
     "\"b\"], \"y\": {\"k\": \"\"}}"},
    {"<|tool_call_start|>", "lfm2", NULL,
     "<|tool_call_start|>[f(a=\"\"\"x\n\"y\", '''z\"\"\", b='''''' , c='', d=\"\\d\\n\\x41\\033[0m\\u00e9"
     "\\ud83d\\ude00\\U0001F600\\\\\")]",
     "call 0 f  {\"a\": \"x\\n\\\"y\\\", '''z\", \"b\": \"\", \"c\": \"\", \"d\": "
     "\"\\\\d\\nA\\u001b[0m\xc3\xa9\xf0\x9f\x98\x80\xf0\x9f\x98\x80\\\\\"}"},
    {"<|tool_call_start|>", "lfm2", NULL, "<|tool_call_start|>[look(city=\"Ro",
     "call 0 look  {\"city\": \"Ro..."},
    {"<|tool_call_start|>", "lfm2", NULL, "<|tool_call_start|>[look(\"Rome\")]<|tool_call_end|>x",
     "bad:<|tool_call_start|>[look(\"Rome\")]<|tool_call_end|>|x"},
    {"<|tool_call_start|>", "lfm2", NULL, "<|tool_call_start|>[]<|tool_call_end|>x",
     "bad:<|tool_call_start|>[]<|tool_call_end|>|x"},
    {"<|tool_call_start|>", "lfm2", NULL, "<|tool_call_start|>[look(city=Rome)]<|tool_call_end|>x",
     "bad:<|tool_call_start|>[look(city=Rome)]<|tool_call_end|>|x"},
    {"<|tool_call_start|>", "lfm2", NULL, "<|tool_call_start|>[f(a=1), look(days=1.)]<|tool_call_end|>x",
     "call 0 f  {\"a\": 1}|bad:, look(days=1.)]<|tool_call_end|>|x"},
    {"<function_calls> </think>", "olmo3", "<|im_start|>assistant\n<think>",
     "Hm.</think>So:\n<function_calls>\nlook(city='Rome', days=null)\nf(a=true, "
     "b=\"x\\ny\")\n</function_calls>",
     "think:Hm.|So:|call 0 look  {\"city\": \"Rome\", \"days\": null}|call 1 f  {\"a\": true, \"b\": "
     "\"x\\ny\"}"},
    {"<function_calls>", "olmo3", NULL,
     "<function_calls>[{\"id\": \"c1\", \"type\": \"function\", \"function\": {\"name\": \"look\", "
     "\"arguments\": \"{\\\"city\\\": \\\"Rome\\\"}\"}}]</function_calls>",
     "call 0 look c1 {\"city\": \"Rome\"}"},
    {"<function_calls>", "olmo3", NULL, "<function_calls>look</function_calls>.",
     "bad:<function_calls>look</function_calls>|."},
    {"[func_name1(", "pythonic", NULL, "[look(city=\"Rome\"), see(a='x', b=None)]",
     "call 0 look  {\"city\": \"Rome\"}|call 1 see  {\"a\": \"x\", \"b\": null}"},
    {"[func_name1(", "pythonic", NULL, "<|python_start|>[look(city=\"Rome\")]<|python_end|>",
     "call 0 look  {\"city\": \"Rome\"}"},
    {"[func_name1(", "pythonic", NULL, "[1, 2] and [look(city=\"Rome\")]",
     "[1, 2] and [look(city=\"Rome\")]"},
    {"[func_name1(", "pythonic", NULL, "[print(end='')] prints", "[print(end='')] prints"},
    /* Others' marks around JSON. */
    {"<TOOLCALL> </think>", "nemotron", "Assistant\n<think>\n\n",
     "Hm.\n</think>\n\n<TOOLCALL>[{\"name\": \"look\", \"arguments\": {\"city\": \"Rome\"}}, {\"name\": "
     "\"f\", "
     "\"arguments\": {}}]</TOOLCALL>",
     "think:Hm.|call 0 look  {\"city\": \"Rome\"}|call 1 f  {}"},
    {"<|tool|> <|/tool|>", "phi4", NULL,
     "<|tool_call|>[{\"name\": \"look\", \"arguments\": {\"days\": 3}}]<|/tool_call|>",
     "call 0 look  {\"days\": 3}"},
    {"<tool_calls> </tool_calls> </answer> </think>", "hunyuan", NULL,
     "<think>\nHm.\n</think>\n<answer>\nYes.\n</answer>", "think:Hm.|Yes."},
    {"hy_Assistant </answer> </think>", "hunyuan", NULL,
     "<think>\nHm.\n</think>\n<answer><tool_calls>[{\"name\": \"look\", \"arguments\": "
     "{}}]</tool_calls></answer>",
     "think:Hm.|call 0 look  {}"},
    {"<tool_call> </think> </response>", "ernie", "<think>\n",
     "Hm.\n</think>\n\n<response>\nYes, <b>.\n</response>\n", "think:Hm.|Yes, <b>."},
    {"<tool_call> </think> </response>", "ernie", "<think>\n",
     "Hm.\n</think>\n\n\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"</response>\"}}\n"
     "</tool_call>\n",
     "think:Hm.|call 0 look  {\"city\": \"</response>\"}"},
    {"<|header_start|> \"parameters\":", "llama4", NULL,
     "<|python_start|>I look.<|python_end|>{\"name\": \"look\", \"parameters\": {\"city\": "
     "\"Rome\"}}{\"name\": "
     "\"f\", \"parameters\": {}}",
     "I look.|call 0 look  {\"city\": \"Rome\"}|call 1 f  {}"},
    /* A name on the first line, JSON on the next. */
    {"<|observation|> Json 格式表示调用的参数", "glm4", "x<|assistant|>", "look\n{\"city\": \"Rome\"}",
     "call 0 look  {\"city\": \"Rome\"}"},
    {"<|observation|> Json 格式表示调用的参数", "glm4", "x<|assistant|>", "\nIt is look\n{}.",
     "It is look\n{}."},
    {"<|observation|> Json 格式表示调用的参数", "glm4", "x<|assistant|>", "It is so.\nlook\n{}",
     "It is so.\nlook\n{}"},
    {"<|observation|> Json 格式表示调用的参数", "glm4", "x<|assistant|>", "Sure\n{\"a\": 1}",
     "Sure\n{\"a\": 1}"},
    {"<|observation|> Json 格式表示调用的参数", "glm4", "x<|assistant|>", "look", "look"},
    {"<|observation|> Json 格式表示调用的参数", "glm4", "x<|assistant|>", "look\nat this", "look\nat this"},
    {"<|observation|> Json 格式表示调用的参数", "glm4", "x<|assistant|>", "look\n{\"city\": \"Ro",
     "call 0 look  {\"city\": \"Ro..."},
    {"<|observation|> Json 格式表示调用的参数", "glm4", "x<|assistant|>",
     "look\n{\"days\": 3}<|assistant|>see\n{\"a\": \"x\"}",
     "call 0 look  {\"days\": 3}|call 1 see  {\"a\": \"x\"}"},
    {"<|observation|> Json 格式表示调用的参数", "glm4", "x<|assistant|>", "\nI look.<|assistant|>look\n{}",
     "I look.|call 0 look  {}"},
    /* Reasoning of each kind, before an answer. */
    {"</thought>", "none", "[|assistant|]<thought>\n", "Hm.\n</thought>\n\nYes.", "think:Hm.|Yes."},
    {"</thought>", "none", "x", "<thought>\nHm.\n</thought>\n\nYes.", "think:Hm.|Yes."},
    {"</thinking>", "none", "x", "<thinking>Hm.</thinking>Yes.", "think:Hm.|Yes."},
    {"</seed:think> <seed:tool_call> <function=", "seed", "x",
     "<seed:think>Hm.</seed:think>\n<seed:tool_call>\n<function=look>\n<parameter=city>Rome</parameter>\n</"
     "function>\n"
     "</seed:tool_call>",
     "think:Hm.|call 0 look  {\"city\": \"Rome\"}"},
    {"[THINK] [/THINK] [TOOL_CALLS] [ARGS]", "mistral_named", "[/INST]",
     "[THINK]Hm.[/THINK]Yes.[TOOL_CALLS]look[ARGS]{\"city\": \"Rome\"}",
     "think:Hm.|Yes.|call 0 look  {\"city\": \"Rome\"}"},
    {"<|inner_suffix|> <|tools_prefix|>", "apertus", "<|assistant_start|>",
     "<|inner_prefix|>Hm.<|tools_prefix|>no<|inner_suffix|>Yes.<|tools_prefix|>[{\"look\": "
     "{}}]<|tools_suffix|>",
     "think:Hm.<|tools_prefix|>no|Yes.|call 0 look  {}"},
    {"<minimax:tool_call> <invoke name= </think>", "minimax", "<think>\n",
     "Hm.\n</think>\n\n<minimax:tool_call>\n<invoke name=\"look\">\n<parameter "
     "name=\"city\">Rome</parameter>\n</invoke>\n"
     "</minimax:tool_call>",
     "think:Hm.|call 0 look  {\"city\": \"Rome\"}"},
    {"<tool_call> <arg_key> </think>", "glm", "<|assistant|><think>",
     "Hm.</think>Yes.<tool_call>look<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>",
     "think:Hm.|Yes.|call 0 look  {\"city\": \"Rome\"}"},
    {"<tool_call> <function= </think>", "qwen_coder", "<think>\n",
     "Hm.\n</think>\n\n<tool_call>\n<function=look>\n<parameter=city>\nRome\n</parameter>\n</function>\n</"
     "tool_call>",
     "think:Hm.|call 0 look  {\"city\": \"Rome\"}"},
};

static void test_examples(void **state)
{
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        qn_answer_format format = qn_test_format_of(examples[i].evidence);
        assert_string_equal(qn_answer_format_name(format), examples[i].name);
        qn_answer_options o = qn_test_answer_options(format, examples[i].prompt);
        qn_test_expect_answer(&o, examples[i].text, examples[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
