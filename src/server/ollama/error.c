#include "base/json/json_write.h"
#include "server/ollama/ollama.h"

void qn_ollama_error_write(const qn_api_error *e, const char *request_id, int in_stream, qn_buf *out)
{
    qn_json_open(out, '{');
    qn_json_put_text(out, "error", e->message);
    if (e->code) qn_json_put_text(out, "code", e->code);
    if (e->param[0]) qn_json_put_text(out, "param", e->param);
    qn_json_put_text(out, "request_id", request_id);
    qn_json_close(out, '}');
    if (in_stream) qn_buf_putc(out, '\n');
}
