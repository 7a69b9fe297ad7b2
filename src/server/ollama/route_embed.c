/* POST /api/embed, and /api/embeddings of old clients, which has one text and one vector. */
#include "base/clock.h"
#include "base/json/json_write.h"
#include "server/core/tasks/embedding.h"
#include "server/core/write.h"
#include "server/ollama/ollama.h"
#include "server/ollama/request.h"

static int read_body(const char *text, size_t n, const qn_api_request_limits *limits, qn_api_request *out,
                     qn_api_error *error)
{
    return qn_ollama_read(text, n, QN_OLLAMA_EMBED, limits, out, error);
}

static void write_begin(const qn_embedding *e, qn_buf *out)
{
    qn_json_open(out, '{');
    qn_json_put_text(out, "model", e->model);
    qn_json_key(out, "embeddings");
    qn_json_open(out, '[');
}

static void write_vector(const qn_embedding *e, const qn_embed_result *result, qn_buf *out)
{
    (void)e;
    qn_embedding_write(result, out);
}

static void write_end(const qn_embedding *e, qn_buf *out)
{
    qn_json_close(out, ']');
    qn_json_put_int(out, "total_duration", qn_clock_ns() - e->task->ex->begin_ns);
    qn_json_put_int(out, "load_duration", 0);
    qn_json_put_int(out, "prompt_eval_count", e->n_tokens);
    qn_write_warnings(&e->task->request, out);
    qn_json_close(out, '}');
}

static const qn_embed_dialect dialect = {.read = read_body,
                                         .field = "input",
                                         .may_be_empty = 1,
                                         .write_begin = write_begin,
                                         .write_vector = write_vector,
                                         .write_end = write_end};

void qn_route_ollama_embed(qn_exchange *ex)
{
    qn_embedding_begin(ex, &dialect);
}

/* ---- /api/embeddings ----------------------------------------------------------------------------------- */

static int read_old_body(const char *text, size_t n, const qn_api_request_limits *limits, qn_api_request *out,
                         qn_api_error *error)
{
    int refused = qn_ollama_read(text, n, QN_OLLAMA_EMBEDDINGS, limits, out, error);
    if (!refused && out->input && !json_is_string(out->input))
        refused = qn_api_fail(error, 400, "invalid_type", "prompt", "prompt must be a string");
    return refused;
}

static void write_old_begin(const qn_embedding *e, qn_buf *out)
{
    qn_json_open(out, '{');
    qn_json_key(out, "embedding");
    if (!e->n_prompts) qn_buf_puts(out, "[]");
}

static void write_old_end(const qn_embedding *e, qn_buf *out)
{
    qn_write_warnings(&e->task->request, out);
    qn_json_close(out, '}');
}

static const qn_embed_dialect old_dialect = {.read = read_old_body,
                                             .field = "prompt",
                                             .may_be_empty = 1,
                                             .write_begin = write_old_begin,
                                             .write_vector = write_vector,
                                             .write_end = write_old_end};

void qn_route_ollama_embeddings(qn_exchange *ex)
{
    qn_embedding_begin(ex, &old_dialect);
}
