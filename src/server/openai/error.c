#include <string.h>

#include "base/json/json_write.h"
#include "server/openai/openai.h"

static const char *type_of(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 429:
        return "rate_limit_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

static void put_optional(qn_buf *b, const char *key, const char *text)
{
    qn_json_key(b, key);
    if (text && text[0])
        qn_json_text(b, text, strlen(text));
    else
        qn_buf_puts(b, "null");
}

void qn_openai_error_write(const qn_api_error *e, const char *request_id, int in_stream, qn_buf *out)
{
    qn_buf_puts(out, in_stream ? "data: {" : "{");
    qn_json_key(out, "error");
    qn_json_open(out, '{');
    qn_json_put_text(out, "message", e->message);
    qn_json_put_text(out, "type", type_of(e->status));
    put_optional(out, "param", e->param);
    put_optional(out, "code", e->code);
    if (e->n_ctx) {
        qn_json_put_int(out, "n_prompt_tokens", e->n_prompt_tokens);
        qn_json_put_int(out, "n_ctx", e->n_ctx);
    }
    qn_json_put_text(out, "request_id", request_id);
    qn_json_close(out, '}');
    qn_buf_puts(out, in_stream ? "}\n\n" : "}");
}
