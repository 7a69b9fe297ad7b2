#include "backend/text/model_text.h"

#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "text/chat/conversation.h"

qn_status qn_model_text_need(const qn_chat_text *text, const char *path)
{
    if (text) return QN_OK;
    return qn_fail(
        QN_E_NOT_FOUND,
        "%s: there is no tokenizer (tokenizer.json), so text and token ids cannot be converted; logits and "
        "run --ids work without one",
        path);
}

qn_status qn_model_text_encode(const qn_chat_text *text, const char *path, const char *bytes, size_t n_bytes,
                               const qn_encode_options *options, int32_t **ids, int64_t *n_ids)
{
    size_t n;
    unsigned flags = (options->special ? QN_ENCODE_SPECIAL : 0) | (options->bos ? QN_ENCODE_BOS : 0);
    QN_TRY(qn_model_text_need(text, path));
    QN_TRY(qn_tokenizer_encode(qn_chat_text_tokenizer(text), bytes, n_bytes, flags, ids, &n));
    *n_ids = (int64_t)n;
    return QN_OK;
}

qn_status qn_model_text_pair(const qn_chat_text *text, const char *path, const qn_pair *pair, int32_t **ids,
                             int32_t **types, int64_t *n)
{
    const qn_text_segment query = {.text = pair->query, .n = pair->query_bytes},
                          document = {.text = pair->document, .n = pair->document_bytes};
    qn_token_pair made;
    QN_TRY(qn_model_text_need(text, path));
    QN_TRY(
        qn_tokenizer_encode_pair(qn_chat_text_tokenizer(text), &query, &document, QN_ENCODE_BOS, 0, &made));
    *ids = made.ids;
    *types = made.types;
    *n = (int64_t)made.n;
    return QN_OK;
}

qn_status qn_model_text_decode(const qn_chat_text *text, const char *path, int64_t vocab_size,
                               const int32_t *ids, int64_t n_ids, const qn_decode_options *options,
                               char **out, size_t *n_bytes)
{
    QN_TRY(qn_model_text_need(text, path));
    for (int64_t i = 0; i < n_ids; i++)
        if (ids[i] < 0 || ids[i] >= vocab_size)
            return qn_fail(QN_E_ARG, "token id %d is outside the vocabulary of %lld", (int)ids[i],
                           (long long)vocab_size);
    qn_buf b = {0};
    const unsigned flags = (options->skip_special ? QN_DECODE_SKIP_SPECIAL : 0) |
                           (options->is_inner ? QN_DECODE_RAW | QN_DECODE_INNER : 0);
    qn_status status = qn_tokenizer_decode(qn_chat_text_tokenizer(text), ids, (size_t)n_ids, flags, &b);
    size_t n;
    char *bytes = qn_buf_take(&b, &n);
    if (status == QN_OK && !bytes) status = QN_E_NOMEM;
    if (status != QN_OK) {
        qn_free(bytes);
        return status;
    }
    *out = bytes;
    *n_bytes = n;
    return QN_OK;
}

/* As qn_chat_text_render, places filled before the ids are made. */
static qn_status render(const qn_chat_text *text, const json_t *request, const qn_chat_places *places,
                        qn_buf *out, int32_t **ids, size_t *n_ids)
{
    qn_rendered r;
    if (!places) return qn_chat_text_render(text, request, QN_CHAT_TRUST_TEMPLATE, out, ids, n_ids);
    qn_status status = qn_chat_text_render_parts(text, request, &r);
    if (status == QN_OK && out) {
        qn_buf_append(out, r.text, r.n);
        status = out->status;
    }
    if (status == QN_OK) status = qn_chat_places_fill(&r, places);
    if (status == QN_OK && ids) status = qn_chat_text_encode(text, &r, NULL, 0, NULL, ids, n_ids);
    qn_rendered_free(&r);
    return status;
}

qn_status qn_model_text_ids(const qn_chat_text *text, const json_t *request, const qn_chat_places *places,
                            int32_t **ids, size_t *n_ids)
{
    return render(text, request, places, NULL, ids, n_ids);
}

qn_status qn_model_text_render(const qn_chat_text *text, const char *path, const qn_prompt *prompt,
                               const qn_chat_places *places, char **out, int32_t **ids, int64_t *n_ids)
{
    json_t *request = NULL;
    qn_buf b = {0};
    size_t n = 0;
    int32_t *made = NULL;
    QN_TRY(qn_model_text_need(text, path));
    QN_TRY(qn_conversation_request(prompt->conversation, prompt->continue_final, &request));
    qn_status status = render(text, request, places, &b, ids ? &made : NULL, &n);
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
    if (out)
        *out = bytes;
    else
        qn_free(bytes);
    return QN_OK;
}

qn_status qn_model_text_prompt(const qn_chat_text *text, const char *path, const qn_prompt *prompt,
                               const qn_chat_places *places, int32_t **ids, size_t *n_ids)
{
    QN_TRY(qn_model_text_need(text, path));
    if (prompt->text) {
        unsigned flags = (prompt->special ? QN_ENCODE_SPECIAL : 0) | (prompt->no_bos ? 0 : QN_ENCODE_BOS);
        return qn_tokenizer_encode(qn_chat_text_tokenizer(text), prompt->text, prompt->text_bytes, flags, ids,
                                   n_ids);
    }
    json_t *request = NULL;
    QN_TRY(qn_conversation_request(prompt->conversation, prompt->continue_final, &request));
    int32_t *made = NULL;
    size_t n = 0;
    qn_status status = render(text, request, places, NULL, &made, &n);
    json_decref(request);
    if (status == QN_OK && !n) {
        const char *origin = qn_chat_text_origin(text);
        qn_free(made);
        return qn_fail(QN_E_ARG,
                       "the chat template (%s) makes an empty text of these messages: give another one "
                       "(--template FILE), or a prompt without a template (--raw)",
                       origin                       ? origin
                       : qn_chat_text_builtin(text) ? qn_chat_text_builtin(text)
                                                    : "given");
    }
    QN_TRY(status);
    *ids = made;
    *n_ids = n;
    return QN_OK;
}
