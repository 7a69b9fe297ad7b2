#include "server/core/fields/prompt_forms.h"

#include <quern/tokenizer.h>
#include <string.h>

#include "base/mem.h"

static int fail_memory(qn_api_error *error)
{
    return qn_api_fail_status(error, qn_fail_nomem(0));
}

static int fail_form(const char *param, const qn_prompt_forms *forms, qn_api_error *error)
{
    return qn_api_fail(
        error, 400, "invalid_value", param,
        "%s must be a text, a list of token ids%s, {\"prompt_string\": text}, %sor an array of "
        "these, and none may be empty",
        param, forms->text_begins ? " and texts" : ", which may have texts behind the first,",
        forms->content ? "{\"content\": [{\"type\": \"text\", \"text\": text}]}, " : "");
}

/* Does a list have texts, and ids? */
static void look_at(const json_t *list, int *has_texts, int *has_ids)
{
    *has_texts = *has_ids = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        *has_texts |= json_is_string(json_array_get(list, i));
        *has_ids |= json_is_integer(json_array_get(list, i));
    }
}

/* A list of texts and ids, as ids. A text at the beginning gets what the tokenizer puts before one. */
static int join(const qn_model *model, const json_t *list, const char *param, const qn_prompt_forms *forms,
                json_t **out, qn_api_error *error)
{
    json_t *ids = json_array();
    int refused = ids ? 0 : fail_memory(error);
    for (size_t i = 0; i < json_array_size(list) && !refused; i++) {
        const json_t *each = json_array_get(list, i);
        int32_t *of_text = NULL;
        int64_t n = 0;
        if (json_is_integer(each)) {
            if (json_array_append(ids, (json_t *)each)) refused = fail_memory(error);
            continue;
        }
        if (!json_is_string(each) || (!i && !forms->text_begins)) {
            refused = fail_form(param, forms, error);
            continue;
        }
        const qn_encode_options options = {.special = forms->special, .bos = i == 0};
        const qn_status status =
            qn_model_encode(model, json_string_value(each), json_string_length(each), &options, &of_text, &n);
        if (status != QN_OK) refused = qn_api_fail_status(error, status);
        for (int64_t k = 0; k < n && !refused; k++)
            if (json_array_append_new(ids, json_integer(of_text[k]))) refused = fail_memory(error);
        qn_buffer_free(of_text);
    }
    if (refused)
        json_decref(ids);
    else
        *out = ids;
    return refused;
}

/* The texts of parts, one behind the other. */
static int join_parts(const json_t *parts, const char *param, const qn_prompt_forms *forms, json_t **out,
                      qn_api_error *error)
{
    qn_buf text = {0};
    int refused = json_array_size(parts) ? 0 : fail_form(param, forms, error);
    for (size_t i = 0; i < json_array_size(parts) && !refused; i++) {
        const json_t *part = json_array_get(parts, i), *own = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type || strcmp(type, "text") != 0 || !json_is_string(own))
            refused = qn_api_fail(error, 400, "unsupported_content", param,
                                  "%s: content may only have parts of the type \"text\"", param);
        else
            qn_buf_append(&text, json_string_value(own), json_string_length(own));
    }
    if (!refused && text.status != QN_OK) refused = fail_memory(error);
    if (!refused && !(*out = json_stringn(text.data ? text.data : "", text.length)))
        refused = fail_memory(error);
    qn_buf_free(&text);
    return refused;
}

static int make_object(const json_t *prompt, const char *param, const qn_prompt_forms *forms, json_t **out,
                       qn_api_error *error)
{
    const json_t *text = json_object_get(prompt, "prompt_string"),
                 *data = json_object_get(prompt, "multimodal_data"),
                 *content = json_object_get(prompt, "content");
    if (forms->content && !text && json_is_array(content))
        return join_parts(content, param, forms, out, error);
    if (!json_is_string(text)) return fail_form(param, forms, error);
    if (data && !json_is_null(data) && (!json_is_array(data) || json_array_size(data)))
        return qn_api_fail(error, 400, "unsupported_content", param,
                           "%s: multimodal_data is not supported: only text is taken", param);
    *out = json_incref((json_t *)text);
    return 0;
}

static int make_one(const qn_model *model, const json_t *prompt, const char *param,
                    const qn_prompt_forms *forms, json_t **out, qn_api_error *error)
{
    int has_texts, has_ids;
    if (json_is_object(prompt)) return make_object(prompt, param, forms, out, error);
    look_at(prompt, &has_texts, &has_ids);
    if (has_texts) return join(model, prompt, param, forms, out, error);
    if (!json_is_string(prompt) && !has_ids) return fail_form(param, forms, error);
    *out = json_incref((json_t *)prompt);
    return 0;
}

int qn_prompt_form_make(const qn_model *model, const json_t *prompt, const char *param,
                        const qn_prompt_forms *forms, json_t **out, qn_api_error *error)
{
    int has_texts, has_ids, refused = 0;
    look_at(prompt, &has_texts, &has_ids);
    if (!json_is_array(prompt) || has_ids) return make_one(model, prompt, param, forms, out, error);
    if (!json_array_size(prompt)) return fail_form(param, forms, error);
    if (json_array_size(prompt) > forms->prompts_max)
        return qn_api_fail(error, 400, "invalid_value", param, "%s has %zu prompts, at most %zu are allowed",
                           param, json_array_size(prompt), forms->prompts_max);
    json_t *list = json_array();
    if (!list) return fail_memory(error);
    for (size_t i = 0; i < json_array_size(prompt) && !refused; i++) {
        json_t *one = NULL;
        refused = make_one(model, json_array_get(prompt, i), param, forms, &one, error);
        if (!refused && json_array_append_new(list, one)) refused = fail_memory(error);
    }
    if (refused)
        json_decref(list);
    else
        *out = list;
    return refused;
}
