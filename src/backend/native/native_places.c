/* What takes the places of pictures in a chat, by the model's own image processor. */
#include <string.h>

#include "backend/native/native_parts.h"
#include "backend/text/model_text.h"
#include "base/mem.h"
#include "model/vision/image_prompt.h"

static int has_word(const qn_tokenizer *t, const char *word)
{
    return qn_tokenizer_find(t, word, strlen(word)) >= 0;
}

static int needs_pair(const qn_image_processor *p)
{
    return p->prompt == QN_IMAGE_PROMPT_ENCLOSED || p->prompt == QN_IMAGE_PROMPT_PARAGRAPH;
}

static qn_status find_words(const native_model *m, const qn_vision_config *v, native_places *out,
                            qn_image_words *words)
{
    const qn_tokenizer *t = qn_chat_text_tokenizer(m->text);
    size_t n = 0;
    const char *image = qn_tokenizer_token_text(t, v->image_token_id, &n);
    if (!image || !n)
        return qn_fail(QN_E_UNSUPPORTED, "the tokenizer has no token %d, which stands for an image",
                       (int)v->image_token_id);
    out->image = qn_calloc(n + 1, 1);
    if (!out->image) return QN_E_NOMEM;
    memcpy(out->image, image, n);
    *words = (qn_image_words){.image = out->image};
    if (!needs_pair(&v->processor)) return QN_OK;
    for (int i = 0; qn_image_begin_word(i) && !words->begin; i++)
        if (has_word(t, qn_image_begin_word(i)) && has_word(t, qn_image_end_word(i)))
            *words = (qn_image_words){out->image, qn_image_begin_word(i), qn_image_end_word(i)};
    if (words->begin) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "the tokenizer has no tokens that begin and end an image");
}

static qn_status put_text(const qn_image_processor *p, const qn_image *image, const qn_image_words *words,
                          char **out)
{
    qn_image_plan plan;
    qn_buf b = {0};
    QN_TRY(qn_image_plan_of(p, image->width, image->height, &plan));
    qn_image_prompt_put(p, &plan, words, &b);
    *out = qn_buf_take(&b, NULL);
    qn_buf_free(&b);
    return *out ? QN_OK : QN_E_NOMEM;
}

static qn_status make(const native_model *m, const qn_prompt *prompt, native_places *out)
{
    const qn_vision_config *v = &qn_engine_config(m->engine)->vision;
    qn_image_words words = {0};
    QN_TRY(qn_model_text_need(m->text, m->path));
    QN_TRY(find_words(m, v, out, &words));
    out->texts = qn_calloc(prompt->n_images, sizeof *out->texts);
    if (!out->texts) return QN_E_NOMEM;
    for (; out->n < prompt->n_images; out->n++) {
        qn_status status = put_text(&v->processor, &prompt->images[out->n], &words, &out->texts[out->n]);
        if (status != QN_OK) return qn_fail_prefix(status, "image %zu", out->n + 1);
    }
    out->places =
        (qn_chat_places){qn_image_mark(&v->processor, &words), (const char *const *)out->texts, out->n};
    out->of = &out->places;
    return QN_OK;
}

qn_status qn_native_places_make(const native_model *m, const qn_prompt *prompt, native_places *out)
{
    const qn_vision_config *v = &qn_engine_config(m->engine)->vision;
    *out = (native_places){0};
    if (!prompt->n_images || !prompt->conversation || !v->family ||
        v->processor.prompt == QN_IMAGE_PROMPT_PLAIN)
        return QN_OK;
    qn_status status = make(m, prompt, out);
    if (status != QN_OK) qn_native_places_free(out);
    return status;
}

void qn_native_places_free(native_places *p)
{
    for (size_t i = 0; p->texts && i < p->n; i++) qn_free(p->texts[i]);
    qn_free(p->texts);
    qn_free(p->image);
    *p = (native_places){0};
}

qn_status qn_native_text_ids(const native_model *m, const qn_prompt *prompt, int32_t **ids, size_t *n_ids)
{
    native_places places;
    QN_TRY(qn_native_places_make(m, prompt, &places));
    qn_status status = qn_model_text_prompt(m->text, m->path, prompt, places.of, ids, n_ids);
    qn_native_places_free(&places);
    return status;
}
