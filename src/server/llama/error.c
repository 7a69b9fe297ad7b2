#include <string.h>

#include "base/json/json_write.h"
#include "server/llama/llama.h"

static const char *type_of(const qn_api_error *e)
{
    if (e->code && strcmp(e->code, "context_length_exceeded") == 0) return "exceed_context_size_error";
    switch (e->status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    case 501:
        return "not_supported_error";
    case 503:
        return "unavailable_error";
    default:
        return e->status >= 500 ? "server_error" : "invalid_request_error";
    }
}

void qn_llama_error_write(const qn_api_error *e, const char *request_id, int in_stream, qn_buf *out)
{
    qn_buf_puts(out, in_stream ? "data: {" : "{");
    qn_json_key(out, "error");
    qn_json_open(out, '{');
    qn_json_put_int(out, "code", e->status);
    qn_json_put_text(out, "message", e->message);
    qn_json_put_text(out, "type", type_of(e));
    if (e->param[0]) qn_json_put_text(out, "param", e->param);
    if (e->n_ctx) {
        qn_json_put_int(out, "n_prompt_tokens", e->n_prompt_tokens);
        qn_json_put_int(out, "n_ctx", e->n_ctx);
    }
    qn_json_put_text(out, "request_id", request_id);
    qn_json_close(out, '}');
    qn_buf_puts(out, in_stream ? "}\n\n" : "}");
}
