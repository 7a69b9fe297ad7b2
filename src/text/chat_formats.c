#include "text/chat_formats.h"

#include <string.h>

/* What they share: tools are refused rather than left out in silence, contents may be texts or lists of
 * parts. */
#define HEAD                                                                                       \
    "{%- if tools -%}{{ raise_exception('this built-in chat format has no tools') }}{%- endif -%}" \
    "{%- macro text(content) -%}"                                                                  \
    "{%- if content is string -%}{{ content }}{%- else -%}"                                        \
    "{%- for part in content -%}"                                                                  \
    "{%- if part['type'] == 'text' -%}{{ part['text'] }}"                                          \
    "{%- else -%}{{ raise_exception('this built-in chat format takes text only') }}{%- endif -%}"  \
    "{%- endfor -%}{%- endif -%}{%- endmacro -%}"

static const char gemma[] =
    HEAD "{{ bos_token }}"
         "{%- if messages[0]['role'] == 'system' -%}"
         "{%- set prefix = text(messages[0]['content']) + '\n\n' -%}{%- set turns = messages[1:] -%}"
         "{%- else -%}{%- set prefix = '' -%}{%- set turns = messages -%}{%- endif -%}"
         "{%- for message in turns -%}"
         "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}"
         "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- "
         "endif -%}"
         "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}"
         "{{ (prefix if loop.first else '') + text(message['content']) | trim }}{{ '<end_of_turn>\n' }}"
         "{%- endfor -%}"
         "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}";

static const char qwen[] =
    HEAD "{%- for message in messages -%}"
         "{{ '<|im_start|>' + message['role'] + '\n' + text(message['content']) + '<|im_end|>\n' }}"
         "{%- endfor -%}"
         "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}";

static const char llama3[] = HEAD
    "{{ bos_token }}"
    "{%- for message in messages -%}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ text(message['content']) | trim }}{{ '<|eot_id|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif -%}";

const char *const qn_chat_format_names = "gemma|qwen|llama3";

const char *qn_chat_format_get(const char *name)
{
    if (strcmp(name, "gemma") == 0) return gemma;
    if (strcmp(name, "qwen") == 0) return qwen;
    if (strcmp(name, "llama3") == 0) return llama3;
    return NULL;
}
