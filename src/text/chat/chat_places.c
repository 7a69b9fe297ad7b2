#include "text/chat/chat_places.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

/* Appends text[0..n) with its marks replaced; *k counts them. */
static void fill(const char *text, size_t n, const qn_chat_places *places, size_t *k, qn_buf *out)
{
    const size_t n_mark = strlen(places->mark);
    for (const char *end = text + n; text < end;) {
        const char *at = memmem(text, (size_t)(end - text), places->mark, n_mark);
        qn_buf_append(out, text, (size_t)((at ? at : end) - text));
        if (!at) return;
        if (*k < places->n_texts) qn_buf_puts(out, places->texts[*k]);
        ++*k;
        text = at + n_mark;
    }
}

/* places [n_segments] get the segments' new offsets and lengths. */
static qn_status fill_all(const qn_rendered *r, const qn_chat_places *places, qn_rendered_segment *made,
                          qn_buf *out)
{
    size_t k = 0;
    for (size_t i = 0; i < r->n_segments; i++) {
        const qn_rendered_segment *s = &r->segments[i];
        const size_t from = out->length;
        if (s->trusted)
            fill(r->text + s->offset, s->n, places, &k, out);
        else
            qn_buf_append(out, r->text + s->offset, s->n);
        made[i] = (qn_rendered_segment){from, out->length - from, s->trusted};
    }
    if (out->status != QN_OK || k == places->n_texts) return out->status;
    return qn_fail(
        QN_E_ARG,
        "%zu image(s) were given, but the prompt has places for %zu, as the chat template writes it",
        places->n_texts, k);
}

qn_status qn_chat_places_fill(qn_rendered *r, const qn_chat_places *places)
{
    qn_buf out = {0};
    size_t n = 0;
    qn_rendered_segment *made = qn_alloc_array(r->n_segments + 1, sizeof *made);
    qn_status status = made ? fill_all(r, places, made, &out) : QN_E_NOMEM;
    char *text = status == QN_OK ? qn_buf_take(&out, &n) : NULL;
    if (status == QN_OK && !text) status = QN_E_NOMEM;
    qn_buf_free(&out);
    if (status != QN_OK) {
        qn_free(made);
        return status;
    }
    qn_free(r->text);
    qn_free(r->segments);
    r->text = text;
    r->n = n;
    r->segments = made;
    r->n_generations = 0;
    return QN_OK;
}
