/* POST /v1/embeddings. */
#include "base/bytes/base64.h"
#include "base/json/json_write.h"
#include "server/core/tasks/embedding.h"
#include "server/core/write.h"
#include "server/openai/openai.h"
#include "server/openai/request.h"

static int read_body(const char *text, size_t n, const qn_api_request_limits *limits, qn_api_request *out,
                     qn_api_error *error)
{
    return qn_api_request_read(text, n, QN_REQUEST_EMBEDDINGS, limits, out, error);
}

static void write_begin(const qn_embedding *e, qn_buf *out)
{
    (void)e;
    qn_buf_puts(out, "{\"object\":\"list\",\"data\":[");
}

static void write_vector(const qn_embedding *e, const qn_embed_result *result, qn_buf *out)
{
    qn_json_open(out, '{');
    qn_json_put_text(out, "object", "embedding");
    qn_json_put_int(out, "index", (int64_t)result->i_prompt);
    qn_json_key(out, "embedding");
    if (e->task->request.base64) {
        qn_buf_putc(out, '"');
        qn_base64_encode(result->vector, (size_t)result->n_values * sizeof *result->vector, out);
        qn_buf_putc(out, '"');
    } else {
        qn_embedding_write(result, out);
    }
    qn_json_close(out, '}');
}

static void write_end(const qn_embedding *e, qn_buf *out)
{
    qn_json_close(out, ']');
    qn_json_put_text(out, "model", e->model);
    qn_json_key(out, "usage");
    qn_json_open(out, '{');
    qn_json_put_int(out, "prompt_tokens", e->n_tokens);
    qn_json_put_int(out, "total_tokens", e->n_tokens);
    qn_json_close(out, '}');
    qn_write_warnings(&e->task->request, out);
    qn_json_close(out, '}');
}

static const qn_prompt_forms forms = {.content = 1, .prompts_max = QN_EMBEDDING_INPUTS_MAX};
static const qn_embed_dialect dialect = {.read = read_body,
                                         .field = "input",
                                         .forms = &forms,
                                         .write_begin = write_begin,
                                         .write_vector = write_vector,
                                         .write_end = write_end};

void qn_route_embeddings(qn_exchange *ex)
{
    qn_embedding_begin(ex, &dialect);
}
