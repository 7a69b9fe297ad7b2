#include "base/json/json_write.h"
#include "server/anthropic/anthropic.h"

static const char *type_of(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    default:
        return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

void qn_anthropic_error_write(const qn_api_error *e, const char *request_id, int in_stream, qn_buf *out)
{
    qn_buf_puts(out, in_stream ? "event: error\ndata: {" : "{");
    qn_json_put_text(out, "type", "error");
    qn_json_key(out, "error");
    qn_json_open(out, '{');
    qn_json_put_text(out, "type", type_of(e->status));
    qn_json_put_text(out, "message", e->message);
    if (e->code) {
        qn_json_key(out, "details");
        qn_json_open(out, '{');
        qn_json_put_text(out, "error_code", e->code);
        if (e->param[0]) qn_json_put_text(out, "param", e->param);
        qn_json_close(out, '}');
    }
    qn_json_close(out, '}');
    qn_json_put_text(out, "request_id", request_id);
    qn_buf_puts(out, in_stream ? "}\n\n" : "}");
}
