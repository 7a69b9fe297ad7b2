#include "server/core/answer.h"

#include <string.h>

/* Texts lie in `bytes`, which moves as it grows, so a part knows where and not what. */
typedef struct {
    qn_answer_kind kind;
    int32_t index;
    int is_malformed;
    size_t at, n; /* of the text */
    size_t id_at; /* CALL_BEGIN: of the id, which ends with a NUL */
} part;

typedef struct {
    int32_t id, n_top;
    float logprob;
    size_t first_top;
    int is_prompt;
} token;

static part *get_parts(const qn_said *s)
{
    return (part *)(void *)s->parts.data;
}

void qn_said_add(qn_said *s, const qn_answer_event *e)
{
    const size_t n_parts = qn_said_count(s);
    const int is_edge = e->kind == QN_ANSWER_CALL_BEGIN || e->kind == QN_ANSWER_CALL_END;
    if ((!is_edge && !e->n) || qn_said_status(s) != QN_OK) return;
    part *last = n_parts ? get_parts(s) + n_parts - 1 : NULL;
    part p = {e->kind, e->index, e->is_malformed, s->bytes.length, e->n, 0};
    qn_buf_append(&s->bytes, e->text, e->n);
    if (!is_edge && last && last->kind == e->kind && last->index == e->index) {
        /* The bytes of the last part end where these begin. */
        last->n += e->n;
        last->is_malformed |= e->is_malformed;
        return;
    }
    if (e->kind == QN_ANSWER_CALL_BEGIN) {
        qn_buf_putc(&s->bytes, 0);
        p.id_at = s->bytes.length;
        qn_buf_puts(&s->bytes, e->id ? e->id : "");
        qn_buf_putc(&s->bytes, 0);
    }
    qn_buf_append(&s->parts, &p, sizeof p);
}

static void add_token(qn_said *s, const qn_said_token *t)
{
    const token kept = {t->id, t->n_top, t->logprob, s->tops.length / sizeof *t->top, t->is_prompt};
    qn_buf_append(&s->tops, t->top, (size_t)t->n_top * sizeof *t->top);
    qn_buf_append(&s->tokens, &kept, sizeof kept);
}

void qn_said_add_token(qn_said *s, const qn_token *t)
{
    add_token(s, &(qn_said_token){t->id, t->logprob, t->top, t->n_top, 0});
}

void qn_said_add_prompt_token(qn_said *s, const qn_prompt_token *t)
{
    add_token(s, &(qn_said_token){t->id, t->logprob, t->top, t->n_top, 1});
}

qn_status qn_said_status(const qn_said *s)
{
    const qn_buf *written[] = {&s->parts, &s->bytes, &s->tokens, &s->tops};
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        if (written[i]->status != QN_OK) return written[i]->status;
    return QN_OK;
}

size_t qn_said_count(const qn_said *s)
{
    return s->parts.length / sizeof(part);
}

qn_answer_event qn_said_get(const qn_said *s, size_t i)
{
    const part *p = get_parts(s) + i;
    return (qn_answer_event){.kind = p->kind,
                             .index = p->index,
                             .is_malformed = p->is_malformed,
                             .text = p->n ? s->bytes.data + p->at : "",
                             .n = p->n,
                             .id = p->id_at ? s->bytes.data + p->id_at : NULL};
}

int qn_said_has(const qn_said *s, qn_answer_kind kind)
{
    for (size_t i = 0; i < qn_said_count(s); i++)
        if (get_parts(s)[i].kind == kind) return 1;
    return 0;
}

void qn_said_join(const qn_said *s, qn_answer_kind kind, int32_t index, qn_buf *out)
{
    for (size_t i = 0; i < qn_said_count(s); i++) {
        const qn_answer_event e = qn_said_get(s, i);
        if (e.kind == kind && (kind != QN_ANSWER_CALL_ARGUMENTS || e.index == index))
            qn_buf_append(out, e.text, e.n);
    }
}

size_t qn_said_count_tokens(const qn_said *s)
{
    return s->tokens.length / sizeof(token);
}

qn_said_token qn_said_get_token(const qn_said *s, size_t i)
{
    const token *t = (const token *)(const void *)s->tokens.data + i;
    const qn_top_logprob *tops = (const qn_top_logprob *)(const void *)s->tops.data;
    return (qn_said_token){t->id, t->logprob, t->n_top ? tops + t->first_top : NULL, t->n_top, t->is_prompt};
}

void qn_said_forget(qn_said *s)
{
    qn_buf *all[] = {&s->parts, &s->bytes, &s->tokens, &s->tops};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) qn_buf_reset(all[i]);
}

void qn_said_free(qn_said *s)
{
    qn_buf *all[] = {&s->parts, &s->bytes, &s->tokens, &s->tops};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) qn_buf_free(all[i]);
}
