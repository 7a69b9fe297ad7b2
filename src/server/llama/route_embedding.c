/* POST /embedding. The answer is an array; warnings are in its last object. */
#include "base/json/json_write.h"
#include "server/core/tasks/embedding.h"
#include "server/core/write.h"
#include "server/llama/llama.h"
#include "server/llama/request.h"

static int read_body(const char *text, size_t n, const qn_api_request_limits *limits, qn_api_request *out,
                     qn_api_error *error)
{
    return qn_llama_read(text, n, QN_LLAMA_EMBEDDING, limits, out, error);
}

static void write_begin(const qn_embedding *e, qn_buf *out)
{
    (void)e;
    qn_json_open(out, '[');
}

static void write_vector(const qn_embedding *e, const qn_embed_result *result, qn_buf *out)
{
    qn_json_open(out, '{');
    qn_json_put_int(out, "index", (int64_t)result->i_prompt);
    /* A list of vectors: one, because they are pooled. */
    qn_json_key(out, "embedding");
    qn_json_open(out, '[');
    qn_embedding_write(result, out);
    qn_json_close(out, ']');
    if (result->i_prompt + 1 == e->n_prompts) qn_write_warnings(&e->task->request, out);
    qn_json_close(out, '}');
}

static void write_end(const qn_embedding *e, qn_buf *out)
{
    (void)e;
    qn_json_close(out, ']');
}

static const qn_prompt_forms forms = {.text_begins = 1, .content = 1, .prompts_max = QN_EMBEDDING_INPUTS_MAX};
static const qn_embed_dialect dialect = {.read = read_body,
                                         .field = "content",
                                         .forms = &forms,
                                         .write_begin = write_begin,
                                         .write_vector = write_vector,
                                         .write_end = write_end};

void qn_route_llama_embedding(qn_exchange *ex)
{
    qn_embedding_begin(ex, &dialect);
}
