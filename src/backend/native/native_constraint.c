/* The constraints of a model: its vocabulary as a trie, made when it is first needed, and what was compiled. */
#include <string.h>

#include "backend/native/native_parts.h"
#include "base/mem.h"
#include "text/tools/tool_formats.h"

enum { KEPT_BYTES = 64 << 20 /* of compiled constraints, for the next request that has the same */ };

/* The ledger says what the constraints take now. The lock is held. */
static qn_status count_bytes(native_model *m)
{
    qn_ledger *ledger = qn_engine_ledger(m->engine);
    const size_t now = qn_vocabulary_bytes(m->vocabulary) + qn_constraint_cache_bytes(m->constraints),
                 before = m->constraints_bytes;
    if (now > before) QN_TRY(qn_ledger_reserve(ledger, QN_LEDGER_OTHER, now - before));
    if (now < before) qn_ledger_release(ledger, QN_LEDGER_OTHER, before - now);
    m->constraints_bytes = now;
    return QN_OK;
}

/* The lock is held. */
static qn_status make_vocabulary(native_model *m)
{
    if (m->constraints) return QN_OK;
    QN_TRY(qn_model_text_need(m->text, m->path));
    if (!m->vocabulary)
        QN_TRY(qn_vocabulary_new(qn_chat_text_tokenizer(m->text), m->stop_ids, (size_t)m->n_stop_ids,
                                 &m->vocabulary));
    return qn_constraint_cache_new(m->vocabulary, KEPT_BYTES, &m->constraints);
}

static qn_status compile(native_model *m, const qn_constraint_source *source, qn_constraint **out)
{
    qn_constraint *c = NULL;
    pthread_mutex_lock(&m->constraints_lock);
    qn_status status = make_vocabulary(m);
    qn_constraint_cache *cache = m->constraints;
    pthread_mutex_unlock(&m->constraints_lock);
    if (status == QN_OK) status = qn_constraint_cache_get(cache, source, NULL, &c);
    if (status != QN_OK) return status;
    pthread_mutex_lock(&m->constraints_lock);
    status = count_bytes(m);
    pthread_mutex_unlock(&m->constraints_lock);
    if (status != QN_OK) {
        qn_constraint_release(c);
        return status;
    }
    *out = c;
    return QN_OK;
}

qn_status qn_native_constraint_open(void *model, const qn_constraint_options *o, qn_constraint **out)
{
    native_model *m = model;
    qn_constraint_source source = {
        .kind = o->kind,
        .text = o->text ? o->text : "",
        .n = o->text_bytes,
        .tools = {.mode = o->tool_calls, .name = o->tool_name, .is_one_call = o->is_one_call}};
    QN_TRY(qn_model_text_need(m->text, m->path));
    if (o->kind == QN_CONSTRAIN_TOOLS) {
        source.tools.format = qn_chat_text_answer_format(m->text, 1);
        if (!source.tools.format.calls)
            return qn_fail(QN_E_UNSUPPORTED,
                           "the model's chat template shows no format of tool calls that is known here, so "
                           "calls cannot be constrained");
    }
    return compile(m, &source, out);
}

/* ---- behind reasoning ---------------------------------------------------------------------------------- */

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static const char *find_last(const char *text, const char *what)
{
    const char *last = NULL;
    for (const char *at = text; (at = strstr(at, what)); at++) last = at;
    return last;
}

/* By what the prompt ends with. */
qn_native_begin qn_native_find_begin(const char *open, const char *close, const char *prompt, int continues)
{
    size_t n = strlen(prompt), n_open = strlen(open), n_close = strlen(close);
    const char *last_open = find_last(prompt, open), *last_close = find_last(prompt, close);
    while (n && is_space(prompt[n - 1])) n--;
    if (n >= n_open && memcmp(prompt + n - n_open, open, n_open) == 0) return QN_NATIVE_AFTER_REASONING;
    if (n >= n_close && memcmp(prompt + n - n_close, close, n_close) == 0) return QN_NATIVE_AT_ONCE;
    if (!continues) return QN_NATIVE_WITH_OR_WITHOUT;
    return last_open && (!last_close || last_close < last_open) ? QN_NATIVE_AFTER_REASONING
                                                                : QN_NATIVE_AT_ONCE;
}

qn_status qn_native_constraint_fit(void *model, const qn_prompt *prompt, qn_constraint *given,
                                   qn_constraint **out)
{
    native_model *m = model;
    char *text = NULL;
    if (!m->vocabulary || qn_constraint_get_vocabulary(given) != m->vocabulary)
        return qn_fail(QN_E_ARG, "constraint: it was compiled for another model");
    qn_constraint_source source = *qn_constraint_get_source(given);
    const int is_tools = source.kind == QN_CONSTRAIN_TOOLS;
    const qn_answer_format format =
        is_tools ? source.tools.format : qn_chat_text_answer_format(m->text, prompt->tools_json != NULL);
    const qn_reasoning_format *r = qn_chat_text_answer_format(m->text, 0).reasoning;
    const int has_headers = qn_answer_has_headers(format);
    if (!prompt->conversation || (!r && !has_headers)) {
        *out = qn_constraint_retain(given);
        return QN_OK;
    }
    qn_status status = qn_model_text_render(m->text, m->path, prompt, NULL, &text, NULL, NULL);
    const int in_header = status == QN_OK && qn_answer_begins_in_header(format, text, strlen(text));
    if (status == QN_OK && has_headers && (is_tools || in_header || !r)) {
        source.tools.in_text = is_tools && !in_header;
        source.messages = is_tools || !in_header ? NULL : format.calls;
        status = compile(m, &source, out);
        qn_free(text);
        return status;
    }
    const qn_native_begin begin = status == QN_OK
                                      ? qn_native_find_begin(r->open, r->close, text, prompt->continue_final)
                                      : QN_NATIVE_AT_ONCE;
    if (status == QN_OK && begin == QN_NATIVE_AT_ONCE) *out = qn_constraint_retain(given);
    if (status == QN_OK && begin != QN_NATIVE_AT_ONCE) {
        source.after = r->close;
        source.n_after = strlen(r->close);
        source.may_skip_after = begin == QN_NATIVE_WITH_OR_WITHOUT;
        source.opens = begin == QN_NATIVE_WITH_OR_WITHOUT ? r->open : NULL;
        source.n_opens = source.opens ? strlen(r->open) : 0;
        status = compile(m, &source, out);
    }
    qn_free(text);
    return status;
}

void qn_native_free_constraints(native_model *m)
{
    qn_constraint_cache_free(m->constraints);
    qn_vocabulary_release(m->vocabulary);
    if (m->engine) qn_ledger_release(qn_engine_ledger(m->engine), QN_LEDGER_OTHER, m->constraints_bytes);
    pthread_mutex_destroy(&m->constraints_lock);
}
