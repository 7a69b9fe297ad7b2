/* The bound on the reasoning in a chat's answer: which marks the model's template has, and what is forced. */
#include <string.h>

#include "backend/native/native_parts.h"
#include "base/mem.h"
#include "base/utf8.h"

enum { MESSAGE_BYTES_MAX = 4096 };

static qn_status check_message(const char *message)
{
    const size_t n = message ? strlen(message) : 0;
    if (n > MESSAGE_BYTES_MAX)
        return qn_fail(QN_E_ARG, "reasoning_message: %zu bytes, at most %d are allowed", n,
                       (int)MESSAGE_BYTES_MAX);
    if (n && qn_utf8_valid_prefix(message, n) != n)
        return qn_fail(QN_E_FORMAT, "reasoning_message: not valid UTF-8");
    return QN_OK;
}

/* The message is plain text; in the mark special tokens are recognised. */
static qn_status encode_forced(const qn_tokenizer *t, const char *message, const char *mark, qn_buf *ids)
{
    const struct {
        const char *text;
        unsigned flags;
    } parts[] = {{message ? message : "", 0}, {mark, QN_ENCODE_SPECIAL}};
    for (int i = 0; i < 2; i++) {
        int32_t *of_part = NULL;
        size_t n = 0;
        if (!*parts[i].text) continue;
        QN_TRY(qn_tokenizer_encode(t, parts[i].text, strlen(parts[i].text), parts[i].flags, &of_part, &n));
        qn_buf_append(ids, of_part, n * sizeof *of_part);
        qn_free(of_part);
    }
    return ids->status;
}

qn_status qn_native_bound_reasoning(native_model *m, const qn_prompt *prompt, const qn_generate_options *o,
                                    qn_native_reasoning *out)
{
    qn_answer_format format = {0};
    char *text = NULL;
    *out = (qn_native_reasoning){0};
    QN_TRY(check_message(o->reasoning_message));
    if (!o->max_reasoning_tokens || !prompt->conversation || !m->text) return QN_OK;
    format.calls = qn_chat_text_answer_format(m->text, 1).calls;
    format.reasoning = qn_chat_text_answer_format(m->text, 0).reasoning;
    if (!qn_answer_get_reasoning_marks(format, &out->marks)) return QN_OK;
    const int has_form = o->constraint != NULL;
    const qn_tokenizer *t = qn_chat_text_tokenizer(m->text);
    QN_TRY(encode_forced(t, o->reasoning_message, has_form ? out->marks.close : out->marks.end, &out->ids));
    QN_TRY(qn_model_text_render(m->text, m->path, prompt, NULL, &text, NULL, NULL));
    const qn_native_begin begin =
        qn_native_find_begin(out->marks.open, out->marks.close, text, prompt->continue_final);
    qn_free(text);
    if (has_form && begin == QN_NATIVE_AT_ONCE) return QN_OK; /* a mark in it is its own text */
    out->options = (qn_reasoning_options){.tokenizer = t,
                                          .open = out->marks.open,
                                          .close = out->marks.close,
                                          .begins_inside = begin == QN_NATIVE_AFTER_REASONING,
                                          .most = o->max_reasoning_tokens > 0 ? o->max_reasoning_tokens : 0,
                                          .ids = (const int32_t *)(const void *)out->ids.data,
                                          .n_ids = (int64_t)(out->ids.length / sizeof(int32_t))};
    return QN_OK;
}
