/* "prompt_logprobs", as vLLM's API has it: for each token of the prompt an object of log-probabilities by token id, and
 * null for the first, before which nothing stands. It may be long, so a worker writes it. */
#include "base/json/json_write.h"
#include "server/openai/write.h"

static void put_entry(const qn_model *model, int32_t id, float logprob, int32_t rank, qn_buf *b)
{
    char *text;
    size_t n;
    if (b->data && b->length && b->data[b->length - 1] != '{') qn_buf_putc(b, ',');
    qn_buf_printf(b, "\"%d\":{\"logprob\":", (int)id);
    qn_write_logprob(b, logprob);
    qn_buf_printf(b, ",\"rank\":%d,\"decoded_token\":", (int)rank);
    qn_write_token_text(model, id, &text, &n);
    qn_json_text(b, text ? text : "", n);
    qn_buf_putc(b, '}');
    qn_buffer_free(text);
}

/* The token itself comes first, then the likeliest ones. */
static void put_position(const qn_model *model, const qn_prompt_token *t, int64_t n_top, qn_buf *b)
{
    qn_buf_putc(b, '{');
    put_entry(model, t->id, t->logprob, t->rank, b);
    for (int32_t i = 0; i < t->n_top && i < n_top; i++)
        if (t->top[i].id != t->id) put_entry(model, t->top[i].id, t->top[i].logprob, i + 1, b);
    qn_buf_putc(b, '}');
}

static qn_status make_list(const qn_completion *c, qn_completion_choice *choice)
{
    qn_buf *b = &choice->prompt_logprobs;
    qn_generation_stats stats;
    qn_prompt_token t;
    QN_TRY(qn_generation_get_stats(choice->generation, &stats));
    qn_buf_puts(b, "[null");
    for (int64_t i = 1; i < stats.n_prompt_tokens && b->status == QN_OK; i++) {
        QN_TRY(qn_generation_get_prompt_token(choice->generation, 0, i, &t));
        qn_buf_putc(b, ',');
        put_position(c->ex->server->model, &t, c->request.prompt_logprobs, b);
    }
    qn_buf_putc(b, ']');
    return b->status;
}

qn_status qn_openai_make_rest(qn_completion *c)
{
    for (size_t i = 0; i < c->n_choices; i += (size_t)c->request.n) QN_TRY(make_list(c, &c->choices[i]));
    return QN_OK;
}

void qn_openai_put_prompt_logprobs(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    const qn_buf *list = &c->choices[choice->index - choice->index % c->request.n].prompt_logprobs;
    if (c->request.prompt_logprobs < 0) return;
    qn_json_key(out, "prompt_logprobs");
    qn_buf_append(out, list->data, list->length);
}
