#include "text/chat/chat_builtin.h"

#include <string.h>

/* Text of a message: a string, or the text parts of a list. What cannot be written is refused, not left out.
 */
#define CONTENT_OF                                                                   \
    "{%- macro content_of(message) -%}\n"                                            \
    "  {%- if message.content is string -%}\n"                                       \
    "    {{- message.content -}}\n"                                                  \
    "  {%- elif message.content is defined and message.content is not none -%}\n"    \
    "    {%- for part in message.content -%}\n"                                      \
    "      {%- if part.type == 'text' -%}\n"                                         \
    "        {{- part.text -}}\n"                                                    \
    "      {%- else -%}\n"                                                           \
    "        {{- raise_exception('this built-in chat format takes text only') -}}\n" \
    "      {%- endif -%}\n"                                                          \
    "    {%- endfor -%}\n"                                                           \
    "  {%- endif -%}\n"                                                              \
    "{%- endmacro -%}\n"
#define NO_TOOLS                                                                                            \
    "{%- if tools -%}{{- raise_exception('this built-in chat format does not support tools') -}}{%- endif " \
    "-%}\n"

static const char gemma[] = NO_TOOLS CONTENT_OF
    "{{- bos_token if bos_token is defined else '<bos>' -}}\n"
    "{%- set ns = namespace(system='') -%}\n"
    "{%- for message in messages -%}\n"
    "  {%- if message.role == 'system' or message.role == 'developer' -%}\n"
    "    {%- set ns.system = ns.system + content_of(message) | trim + '\\n\\n' -%}\n"
    "  {%- elif message.role == 'assistant' or message.role == 'model' -%}\n"
    "    {{- '<start_of_turn>model\\n' -}}\n"
    "    {%- generation -%}\n"
    "      {{- content_of(message) | trim + '<end_of_turn>' -}}\n"
    "    {%- endgeneration -%}\n"
    "    {{- '\\n' -}}\n"
    "  {%- elif message.role == 'user' -%}\n"
    "    {{- '<start_of_turn>user\\n' + ns.system + content_of(message) | trim + '<end_of_turn>\\n' -}}\n"
    "    {%- set ns.system = '' -%}\n"
    "  {%- else -%}\n"
    "    {{- raise_exception('The Gemma format has no role ' ~ message.role) -}}\n"
    "  {%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- if ns.system -%}\n"
    "  {{- '<start_of_turn>user\\n' + ns.system | trim + '<end_of_turn>\\n' -}}\n"
    "{%- endif -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "  {{- '<start_of_turn>model\\n' -}}\n"
    "{%- endif -%}\n";

static const char qwen[] = CONTENT_OF
    "{%- set first = messages[0] if messages else {} -%}\n"
    "{%- if tools -%}\n"
    "  {{- '<|im_start|>system\\n' -}}\n"
    "  {%- if first.role == 'system' -%}\n"
    "    {{- content_of(first) + '\\n\\n' -}}\n"
    "  {%- endif -%}\n"
    "  {{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' -}}\n"
    "  {{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' -}}\n"
    "  {%- for tool in tools -%}\n"
    "    {{- '\\n' -}}{{- tool | tojson -}}\n"
    "  {%- endfor -%}\n"
    "  {{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments ' "
    "-}}\n"
    "  {{- 'within <tool_call></tool_call> XML tags:\\n<tool_call>\\n' -}}\n"
    "  {{- '{\"name\": <function-name>, \"arguments\": <args-json-object>}\\n</tool_call><|im_end|>\\n' -}}\n"
    "{%- endif -%}\n"
    "{%- for message in messages -%}\n"
    "  {%- if message.role == 'assistant' -%}\n"
    "    {{- '<|im_start|>assistant\\n' -}}\n"
    "    {%- generation -%}\n"
    "      {{- content_of(message) -}}\n"
    "      {%- for call in message.tool_calls or [] -%}\n"
    "        {%- set f = call.function if call.function is defined else call -%}\n"
    "        {{- '\\n' if message.content or not loop.first else '' -}}\n"
    "        {{- '<tool_call>\\n{\"name\": \"' + f.name + '\", \"arguments\": ' -}}\n"
    "        {{- f.arguments if f.arguments is string else f.arguments | tojson -}}\n"
    "        {{- '}\\n</tool_call>' -}}\n"
    "      {%- endfor -%}\n"
    "      {{- '<|im_end|>' -}}\n"
    "    {%- endgeneration -%}\n"
    "    {{- '\\n' -}}\n"
    "  {%- elif message.role == 'tool' -%}\n"
    "    {{- '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' else '' -}}\n"
    "    {{- '\\n<tool_response>\\n' + content_of(message) + '\\n</tool_response>' -}}\n"
    "    {{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' else '' -}}\n"
    "  {%- elif not (tools and loop.first and message.role == 'system') -%}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + content_of(message) + '<|im_end|>\\n' -}}\n"
    "  {%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "  {{- '<|im_start|>assistant\\n' -}}\n"
    "{%- endif -%}\n";

static const char llama3[] =
    NO_TOOLS CONTENT_OF "{{- bos_token if bos_token is defined else '<|begin_of_text|>' -}}\n"
                        "{%- for message in messages -%}\n"
                        "  {%- set role = 'ipython' if message.role == 'tool' else message.role -%}\n"
                        "  {{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' -}}\n"
                        "  {%- if role == 'assistant' -%}\n"
                        "    {%- generation -%}\n"
                        "      {{- content_of(message) | trim + '<|eot_id|>' -}}\n"
                        "    {%- endgeneration -%}\n"
                        "  {%- else -%}\n"
                        "    {{- content_of(message) | trim + '<|eot_id|>' -}}\n"
                        "  {%- endif -%}\n"
                        "{%- endfor -%}\n"
                        "{%- if add_generation_prompt -%}\n"
                        "  {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}\n"
                        "{%- endif -%}\n";

const qn_chat_builtin qn_chat_builtins[] = {
    {"gemma", gemma, "<end_of_turn>"},
    {"qwen", qwen, "<|im_end|>"},
    {"llama3", llama3, "<|eot_id|>"},
    {NULL, NULL, NULL},
};

const char *const qn_chat_builtin_names = "gemma|qwen|llama3";

const qn_chat_builtin *qn_chat_builtin_find(const char *name)
{
    for (const qn_chat_builtin *b = qn_chat_builtins; b->name; b++)
        if (strcmp(b->name, name) == 0) return b;
    return NULL;
}
