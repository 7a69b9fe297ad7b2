#include "server/core/tasks/embedding.h"

#include "base/json/json_write.h"
#include "base/mem.h"
#include "server/core/completion.h"

/* What a worker needs while it computes. */
typedef struct {
    qn_embedding e; /* first */
    qn_task *task;
    const qn_embed_dialect *dialect;
    qn_api_request_prompt *prompts;
} embedding;

static qn_status take_vector(void *user, const qn_embed_result *result)
{
    embedding *v = user;
    qn_task *t = v->task;
    const qn_server *s = t->ex->server;
    const int64_t dimensions = t->request.dimensions;
    if (result->status != QN_OK) {
        qn_fail_copy(result->status, result->message);
        qn_api_fail_status(&t->error, result->status);
        if (result->n_tokens > s->info.context_size)
            qn_api_request_fail_length(v->dialect->field, result->n_tokens, s->info.context_size, &t->error);
        return result->status;
    }
    if (dimensions && dimensions != result->n_values) {
        qn_api_fail(&t->error, 400, "unsupported_parameter", "dimensions",
                    "dimensions supports only the model's own size: %lld", (long long)result->n_values);
        return QN_E_ARG;
    }
    v->e.n_tokens += result->n_tokens;
    v->dialect->write_vector(&v->e, result, &t->answer);
    return t->answer.status;
}

/* A text that is longer than the context becomes the ids that fit. */
static int cut(embedding *v, qn_api_request_prompt *p)
{
    const qn_server *s = v->task->ex->server;
    const int64_t most = s->info.context_size;
    int32_t *ids = NULL;
    int64_t n = p->row.n_ids;
    if (p->prompt.text) {
        const qn_status status = qn_model_encode(s->model, p->prompt.text, p->prompt.text_bytes,
                                                 &(qn_encode_options){.bos = 1}, &ids, &n);
        if (status != QN_OK) return qn_api_fail_status(&v->task->error, status);
    }
    if (n > most && ids) {
        qn_buf_append(&p->ids, ids, (size_t)most * sizeof *ids);
        p->row.ids = (const int32_t *)(const void *)p->ids.data;
        p->prompt = (qn_prompt){.rows = &p->row, .n_rows = 1};
    }
    if (n > most) p->row.n_ids = most;
    qn_buffer_free(ids);
    return p->ids.status == QN_OK ? 0 : qn_api_fail_status(&v->task->error, p->ids.status);
}

static int is_empty(const json_t *input)
{
    return !input || (json_is_string(input) && !json_string_length(input)) ||
           (json_is_array(input) && !json_array_size(input));
}

static int read_prompts(embedding *v)
{
    qn_task *t = v->task;
    const json_t *input = t->request.input;
    const char *field = v->dialect->field;
    if (v->dialect->may_be_empty && is_empty(input)) return 0;
    const int is_full = qn_api_request_hold_texts(&t->request, input, &t->error);
    if (is_full) return is_full;
    if (v->dialect->forms) {
        const int refused = qn_prompt_form_make(t->ex->server->model, input, field, v->dialect->forms,
                                                &t->request.made, &t->error);
        if (refused) return refused;
        input = t->request.made;
    }
    const size_t n = v->e.n_prompts = qn_api_request_count_prompts(input);
    if (n > QN_EMBEDDING_INPUTS_MAX)
        return qn_api_fail(&t->error, 400, "invalid_value", field, "%s has %zu texts, at most %d are allowed",
                           field, n, (int)QN_EMBEDDING_INPUTS_MAX);
    v->prompts = qn_calloc(n, sizeof *v->prompts);
    if (!v->prompts) return qn_api_fail_status(&t->error, QN_E_NOMEM);
    for (size_t i = 0; i < n; i++) {
        int refused = qn_api_request_get_prompt(input, i, field, t->ex->server->info.vocab_size,
                                                &v->prompts[i], &t->error);
        if (!refused && t->request.truncates) refused = cut(v, &v->prompts[i]);
        if (refused) return refused;
    }
    return 0;
}

static void compute(embedding *v, const qn_embed_options *options)
{
    qn_task *t = v->task;
    qn_prompt *prompts = qn_calloc(v->e.n_prompts + 1, sizeof *prompts);
    qn_status status = QN_E_NOMEM;
    v->dialect->write_begin(&v->e, &t->answer);
    for (size_t i = 0; prompts && i < v->e.n_prompts; i++) prompts[i] = v->prompts[i].prompt;
    if (prompts)
        status = v->e.n_prompts
                     ? qn_embed(t->ex->server->model, prompts, v->e.n_prompts, options, take_vector, v)
                     : QN_OK;
    qn_free(prompts);
    if (t->error.status) return;
    if (status != QN_OK) {
        const char *field = options->dimensions && status == QN_E_ARG          ? "dimensions"
                            : options->prompt_name && status == QN_E_NOT_FOUND ? "prompt_name"
                                                                               : NULL;
        if (field)
            qn_api_fail(&t->error, 400, "invalid_value", field, "%s", qn_last_error());
        else
            qn_api_fail_status(&t->error, status);
        return;
    }
    v->dialect->write_end(&v->e, &t->answer);
    t->n_prompt_tokens = v->e.n_tokens;
}

/* A model whose files say how it makes vectors may be one whose first numbers serve by themselves. */
static void choose_dimensions(const embedding *v, qn_embed_options *o)
{
    qn_embedding_info info;
    if (qn_model_get_embedding_info(v->task->ex->server->model, &info) == QN_OK && info.poolings)
        o->dimensions = v->task->request.dimensions;
}

static void run(qn_task *t)
{
    const qn_server *s = t->ex->server;
    const qn_api_request_limits limits = qn_server_request_limits(s);
    qn_embed_options options = {.pooling = s->options->pooling,
                                .cancel = t->cancel,
                                .priority = t->ex->is_idle ? QN_PRIORITY_IDLE : 0};
    embedding v = {.e = {.task = t}, .task = t, .dialect = t->dialect};
    const qn_buf *body = &t->ex->body;
    if (!v.dialect->read(body->data, body->length, &limits, &t->request, &t->error) &&
        !qn_completion_choose_model(s, &t->request, &v.e.model, &options.adapter, &t->error) &&
        !read_prompts(&v)) {
        options.normalise = !t->request.no_normalise;
        options.prompt_name = t->request.prompt_name;
        choose_dimensions(&v, &options);
        compute(&v, &options);
    }
    for (size_t i = 0; v.prompts && i < v.e.n_prompts; i++) qn_buf_free(&v.prompts[i].ids);
    qn_free(v.prompts);
}

void qn_embedding_begin(qn_exchange *ex, const qn_embed_dialect *dialect)
{
    qn_task_begin(ex, run, dialect, 1);
}

void qn_embedding_write(const qn_embed_result *result, qn_buf *out)
{
    qn_json_open(out, '[');
    for (int64_t i = 0; i < result->n_values; i++)
        qn_buf_printf(out, i ? ",%.9g" : "%.9g", (double)result->vector[i]);
    qn_json_close(out, ']');
}
