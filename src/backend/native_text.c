/* What is about text: encoding and decoding, chats, prompts. */
#include <string.h>

#include "backend/native_parts.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/prefixes.h"

qn_status qn_native_need_text(const native_model *m)
{
    if (m->text) return QN_OK;
    return qn_fail(
        QN_E_NOT_FOUND,
        "%s: there is no tokenizer (tokenizer.json), so text cannot become token ids or come out of "
        "them; logits and run --ids work",
        m->path);
}

qn_status qn_native_encode(void *model, const char *text, size_t n_bytes, const qn_encode_options *options,
                           int32_t **ids, int64_t *n_ids)
{
    size_t n;
    unsigned flags = (options->special ? QN_ENCODE_SPECIAL : 0) | (options->bos ? QN_ENCODE_BOS : 0);
    const native_model *m = model;
    QN_TRY(qn_native_need_text(m));
    const qn_tokenizer *t = qn_chat_text_tokenizer(m->text);
    QN_TRY(qn_tokenizer_encode(t, text, n_bytes, flags, ids, &n));
    *n_ids = (int64_t)n;
    return QN_OK;
}

qn_status qn_native_decode(void *model, const int32_t *ids, int64_t n_ids, const qn_decode_options *options,
                           char **text, size_t *n_bytes)
{
    const native_model *m = model;
    int64_t vocabulary = qn_engine_config(m->engine)->vocab_size;
    QN_TRY(qn_native_need_text(m));
    for (int64_t i = 0; i < n_ids; i++)
        if (ids[i] < 0 || ids[i] >= vocabulary)
            return qn_fail(QN_E_ARG, "token id %d is outside the vocabulary of %lld", (int)ids[i],
                           (long long)vocabulary);
    qn_buf b = {0};
    unsigned flags = options->skip_special ? QN_DECODE_SKIP_SPECIAL : 0;
    qn_status status = qn_tokenizer_decode(qn_chat_text_tokenizer(m->text), ids, (size_t)n_ids, flags, &b);
    size_t n;
    char *bytes = qn_buf_take(&b, &n);
    if (status == QN_OK && !bytes) status = QN_E_NOMEM;
    if (status != QN_OK) {
        qn_free(bytes);
        return status;
    }
    *text = bytes;
    *n_bytes = n;
    return QN_OK;
}

int qn_native_is_stop_id(void *model, int32_t id)
{
    return qn_native_has_stop_id(model, id);
}

/* The template's request out of a prompt that is a chat. */
static qn_status make_request(const qn_prompt *prompt, json_t **out)
{
    json_t *request = NULL, *messages = NULL, *tools = NULL;
    qn_status status = QN_OK;
    if (prompt->variables_json)
        status =
            qn_json_parse("variables_json", prompt->variables_json, strlen(prompt->variables_json), &request);
    else if (!(request = json_object()))
        status = qn_fail_nomem(sizeof(json_t *));
    if (status == QN_OK && !json_is_object(request))
        status = qn_fail(QN_E_ARG, "variables_json is not an object");
    if (status == QN_OK)
        status =
            qn_json_parse("messages_json", prompt->messages_json, strlen(prompt->messages_json), &messages);
    if (status == QN_OK && !json_is_array(messages))
        status = qn_fail(QN_E_ARG, "messages_json is not an array");
    if (status == QN_OK && prompt->tools_json)
        status = qn_json_parse("tools_json", prompt->tools_json, strlen(prompt->tools_json), &tools);
    if (status == QN_OK && tools && !json_is_array(tools))
        status = qn_fail(QN_E_ARG, "tools_json is not an array");
    if (status == QN_OK) {
        int failed = json_object_set(request, "messages", messages) ||
                     (tools && json_object_set(request, "tools", tools));
        if (!json_object_get(request, "add_generation_prompt"))
            failed |= json_object_set_new(request, "add_generation_prompt", json_true());
        if (failed) status = qn_fail_nomem(sizeof(json_t *));
    }
    json_decref(messages);
    json_decref(tools);
    if (status == QN_OK)
        *out = request;
    else
        json_decref(request);
    return status;
}

qn_status qn_native_chat_render(void *model, const qn_prompt *prompt, char **text, int32_t **ids,
                                int64_t *n_ids)
{
    json_t *request = NULL;
    qn_buf b = {0};
    size_t n = 0;
    int32_t *made = NULL;
    QN_TRY(qn_native_need_text(model));
    QN_TRY(make_request(prompt, &request));
    qn_status status = qn_chat_text_render(((native_model *)model)->text, request, QN_CHAT_TRUST_TEMPLATE, &b,
                                           ids ? &made : NULL, &n);
    json_decref(request);
    char *bytes = status == QN_OK ? qn_buf_take(&b, NULL) : NULL;
    if (status == QN_OK && !bytes) status = QN_E_NOMEM;
    qn_buf_free(&b);
    if (status != QN_OK) {
        qn_free(made);
        return status;
    }
    if (ids) {
        *ids = made;
        *n_ids = (int64_t)n;
    }
    if (text)
        *text = bytes;
    else
        qn_free(bytes);
    return QN_OK;
}

/* Token ids of a prompt that is a text or a chat. */
qn_status qn_native_encode_prompt(native_model *m, const qn_prompt *prompt, int32_t **ids, size_t *n_ids)
{
    QN_TRY(qn_native_need_text(m));
    if (prompt->text) {
        unsigned flags = (prompt->special ? QN_ENCODE_SPECIAL : 0) | (prompt->no_bos ? 0 : QN_ENCODE_BOS);
        return qn_tokenizer_encode(qn_chat_text_tokenizer(m->text), prompt->text, prompt->text_bytes, flags,
                                   ids, n_ids);
    }
    json_t *request = NULL;
    QN_TRY(make_request(prompt, &request));
    qn_status status = qn_chat_text_render(m->text, request, QN_CHAT_TRUST_TEMPLATE, NULL, ids, n_ids);
    json_decref(request);
    return status;
}

/* How many of a chat's ids come before what asks for the answer: a later turn begins with these, whatever the
 * template makes of the answer. 0: the template does not say. Where every position can be gone on from nobody
 * needs to know. */
qn_status qn_native_find_stable(native_model *m, const qn_prompt *prompt, const qn_ids *whole, int64_t *out)
{
    json_t *request = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int64_t n = 0;
    *out = 0;
    if (!prompt->messages_json || !qn_engine_keeps_points(m->engine)) return QN_OK;
    QN_TRY(make_request(prompt, &request));
    qn_status status = QN_E_NOMEM;
    if (json_object_set_new(request, "add_generation_prompt", json_false()) == 0)
        status = qn_chat_text_render(m->text, request, QN_CHAT_TRUST_TEMPLATE, NULL, &ids, &n_ids);
    while (n < whole->n_ids && n < (int64_t)n_ids && ids[n] == whole->ids[n]) n++;
    qn_free(ids);
    json_decref(request);
    if (status == QN_E_NOMEM) return status;
    *out = n;
    return QN_OK;
}

/* A text or chat with a place for an image that nobody gave would be answered as if it had been blank. */
qn_status qn_native_check_no_places(const native_model *m, const int32_t *ids, size_t n_ids)
{
    const qn_vision_config *v = &qn_engine_config(m->engine)->vision;
    for (size_t i = 0; v->depth && i < n_ids; i++)
        if (ids[i] == v->image_token_id)
            return qn_fail(QN_E_ARG, "the prompt has a place for an image, and no image was given");
    return QN_OK;
}

qn_status qn_native_prompt_ids(void *model, const qn_prompt *prompt, int32_t **ids, int64_t *n_ids)
{
    int32_t *made = NULL;
    size_t n = 0;
    QN_TRY(qn_native_encode_prompt(model, prompt, &made, &n));
    qn_status status = qn_native_check_no_places(model, made, n);
    if (status != QN_OK) {
        qn_free(made);
        return status;
    }
    *ids = made;
    *n_ids = (int64_t)n;
    return QN_OK;
}

qn_status qn_native_prompt(native_model *m, const qn_prompt *prompt, int32_t **ids, int64_t *n_ids,
                           int64_t *n_stable)
{
    if (!prompt->rows) QN_TRY(qn_native_prompt_ids(m, prompt, ids, n_ids));
    if (prompt->rows) {
        *n_ids = prompt->rows->n_ids;
        *ids = qn_alloc_array((size_t)*n_ids, sizeof **ids);
        if (!*ids) return QN_E_NOMEM;
        memcpy(*ids, prompt->rows->ids, (size_t)*n_ids * sizeof **ids);
    }
    const qn_ids row = {*ids, *n_ids};
    qn_status status = qn_native_find_stable(m, prompt, &row, n_stable);
    if (status == QN_OK) return QN_OK;
    qn_free(*ids);
    *ids = NULL;
    return status;
}
