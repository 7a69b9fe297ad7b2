/* POST /completion and /infill. */
#include "server/core/infill.h"
#include "server/core/state.h"
#include "server/llama/bias.h"
#include "server/llama/completion_write.h"
#include "server/llama/llama.h"
#include "server/llama/request.h"

static int read_completion(const char *text, size_t n, const qn_api_request_limits *limits,
                           qn_api_request *out, qn_api_error *error)
{
    int refused = qn_llama_read(text, n, QN_LLAMA_COMPLETION, limits, out, error);
    out->keep_tokens |= out->stream;
    return refused;
}

static int prepare_completion(const qn_server *s, qn_api_request *r, qn_api_error *error)
{
    const int refused = qn_llama_make_prompt(s->model, r->prompt, "prompt", &r->made, error);
    r->prompt = r->made;
    return refused ? refused : qn_llama_set_bias(s, r, error);
}

const qn_dialect qn_llama_completion = {.read = read_completion,
                                        .prepare = prepare_completion,
                                        .prompt_field = "prompt",
                                        .choice_bytes = sizeof(qn_llama_memory),
                                        .stream_type = QN_STREAM_EVENTS,
                                        .write_whole = qn_llama_write_whole,
                                        .write_begin = qn_llama_write_begin,
                                        .write_delta = qn_llama_write_delta,
                                        .write_progress = qn_llama_write_progress,
                                        .write_finish = qn_llama_write_finish,
                                        .write_end = qn_llama_write_end};

void qn_route_llama_completion(qn_exchange *ex)
{
    qn_completion_begin(ex, &qn_llama_completion);
}

/* ---- /infill ------------------------------------------------------------------------------------------- */

static int read_infill(const char *text, size_t n, const qn_api_request_limits *limits, qn_api_request *out,
                       qn_api_error *error)
{
    int refused = qn_llama_read(text, n, QN_LLAMA_INFILL, limits, out, error);
    out->keep_tokens |= out->stream;
    return refused;
}

static int prepare_infill(const qn_server *s, qn_api_request *r, qn_api_error *error)
{
    const qn_infill parts = {r->prefix, r->suffix, r->prompt, r->extra};
    const int refused = qn_infill_make(s->model, &parts, "input_prefix", "input_extra", &r->made, error);
    r->prompt = r->made;
    return refused ? refused : qn_llama_set_bias(s, r, error);
}

static const qn_dialect infill = {.read = read_infill,
                                  .prepare = prepare_infill,
                                  .prompt_field = "input_prefix",
                                  .choice_bytes = sizeof(qn_llama_memory),
                                  .stream_type = QN_STREAM_EVENTS,
                                  .write_whole = qn_llama_write_whole,
                                  .write_begin = qn_llama_write_begin,
                                  .write_delta = qn_llama_write_delta,
                                  .write_progress = qn_llama_write_progress,
                                  .write_finish = qn_llama_write_finish,
                                  .write_end = qn_llama_write_end};

void qn_route_llama_infill(qn_exchange *ex)
{
    qn_completion_begin(ex, &infill);
}
