/* What is about text: encoding and decoding, chats, prompts. */
#include <string.h>

#include "backend/native/native_parts.h"
#include "backend/text/model_text.h"
#include "base/mem.h"
#include "engine/machine/images.h"
#include "engine/machine/prefixes.h"
#include "text/chat/conversation.h"

qn_status qn_native_encode(void *model, const char *text, size_t n_bytes, const qn_encode_options *options,
                           int32_t **ids, int64_t *n_ids)
{
    const native_model *m = model;
    return qn_model_text_encode(m->text, m->path, text, n_bytes, options, ids, n_ids);
}

qn_status qn_native_encode_pair(void *model, const qn_pair *pair, int32_t **ids, int32_t **types, int64_t *n)
{
    const native_model *m = model;
    return qn_model_text_pair(m->text, m->path, pair, ids, types, n);
}

qn_status qn_native_decode(void *model, const int32_t *ids, int64_t n_ids, const qn_decode_options *options,
                           char **text, size_t *n_bytes)
{
    const native_model *m = model;
    return qn_model_text_decode(m->text, m->path, qn_engine_config(m->engine)->vocab_size, ids, n_ids,
                                options, text, n_bytes);
}

int qn_native_is_stop_id(void *model, int32_t id)
{
    return qn_native_has_stop_id(model, id);
}

/* The ids with as many of the image token as the images have: *ids is replaced. */
static qn_status expand_places(const native_model *m, const qn_prompt *prompt, int32_t **ids, int64_t *n_ids)
{
    qn_images *images = NULL;
    QN_TRY(qn_images_new(qn_engine_config(m->engine), prompt->n_images, prompt->images, *ids, *n_ids,
                         INT32_MAX, &images));
    const qn_ids all = qn_images_prompt(images);
    int32_t *copy = qn_alloc_array((size_t)all.n_ids, sizeof *copy);
    if (copy) {
        memcpy(copy, all.ids, (size_t)all.n_ids * sizeof *copy);
        qn_free(*ids);
        *ids = copy;
        *n_ids = all.n_ids;
    }
    qn_images_free(images);
    return copy ? QN_OK : QN_E_NOMEM;
}

qn_status qn_native_chat_render(void *model, const qn_prompt *prompt, char **text, int32_t **ids,
                                int64_t *n_ids)
{
    const native_model *m = model;
    char *made = NULL;
    native_places places = {0};
    QN_TRY(qn_native_places_make(m, prompt, &places));
    qn_status status =
        qn_model_text_render(m->text, m->path, prompt, places.of, text ? &made : NULL, ids, n_ids);
    qn_native_places_free(&places);
    QN_TRY(status);
    status = ids && prompt->n_images ? expand_places(m, prompt, ids, n_ids) : QN_OK;
    if (status == QN_OK) {
        if (text) *text = made;
        return QN_OK;
    }
    qn_free(made);
    qn_free(*ids);
    *ids = NULL;
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
    if (!prompt->conversation || !qn_engine_keeps_points(m->engine)) return QN_OK;
    native_places places = {0};
    QN_TRY(qn_native_places_make(m, prompt, &places));
    qn_status status = qn_conversation_request(prompt->conversation, prompt->continue_final, &request);
    if (status == QN_OK && json_object_set_new(request, "add_generation_prompt", json_false()) != 0)
        status = QN_E_NOMEM;
    if (status == QN_OK) status = qn_model_text_ids(m->text, request, places.of, &ids, &n_ids);
    qn_native_places_free(&places);
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
            return qn_fail(QN_E_ARG, "the prompt has a place for an image, but no image was given");
    return QN_OK;
}

qn_status qn_native_prompt_ids(void *model, const qn_prompt *prompt, int32_t **ids, int64_t *n_ids)
{
    const native_model *m = model;
    int32_t *made = NULL;
    size_t n = 0;
    QN_TRY(qn_native_text_ids(m, prompt, &made, &n));
    qn_status status = qn_native_check_no_places(m, made, n);
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
