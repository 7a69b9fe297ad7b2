/* The forms of prompts that llama.cpp's server takes beside OpenAI's: lists of texts and token ids together, and
 * objects. They become texts and lists of ids, which the rest of the server takes. On a worker. */
#ifndef QN_SERVER_CORE_FIELDS_PROMPT_FORMS_H
#define QN_SERVER_CORE_FIELDS_PROMPT_FORMS_H

#include <quern/model.h>

#include "server/core/request.h"

/* Constant data. */
typedef struct {
    int special;     /* special tokens in texts of a mixed list are recognised */
    int text_begins; /* a mixed list may begin with a text; else it begins with an id */
    int content;     /* {"content": [{"type": "text", "text"}]} is a prompt, too */
    size_t prompts_max;
} qn_prompt_forms;

/* A prompt, or an array of them. *out is owned by the caller. Returns 0, or the HTTP status of a refusal. */
int qn_prompt_form_make(const qn_model *model, const json_t *prompt, const char *param,
                        const qn_prompt_forms *forms, json_t **out, qn_api_error *error);

#endif
