/* GET /, and which version of the API is spoken. */
#include <quern/quern.h>
#include <string.h>

#include "base/json/json_write.h"
#include "server/ollama/ollama.h"

void qn_route_ollama_root(qn_exchange *ex)
{
    static const char text[] = "Ollama is running";
    qn_exchange_reply(ex, 200, "text/plain; charset=utf-8", NULL, text, sizeof text - 1);
}

void qn_route_ollama_version(qn_exchange *ex)
{
    qn_buf b = {0};
    qn_api_error error;
    qn_json_open(&b, '{');
    qn_json_put_text(&b, "version", QN_OLLAMA_VERSION);
    qn_json_put_text(&b, "quern", qn_version());
    qn_json_close(&b, '}');
    if (b.status == QN_OK) {
        qn_exchange_reply(ex, 200, "application/json", NULL, b.data, b.length);
    } else {
        qn_api_fail_status(&error, b.status);
        qn_exchange_fail(ex, &error);
    }
    qn_buf_free(&b);
}
