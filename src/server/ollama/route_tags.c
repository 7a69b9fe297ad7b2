/* GET /api/tags and /api/ps: the model, which is always loaded, and its adapters. */
#include <quern/adapter.h>
#include <quern/memory.h>

#include "base/json/json_write.h"
#include "server/core/write.h"
#include "server/ollama/model.h"
#include "server/ollama/ollama.h"

static void put_model(const qn_server *s, const char *adapter, int is_ps, qn_buf *out)
{
    static const int64_t never = INT64_C(253402300799); /* the last second of the year 9999 */
    qn_device_memory device = {0};
    if (qn_model_get_device_memory(s->model, &device) != QN_OK) device.weights_bytes = 0;
    qn_json_open(out, '{');
    qn_ollama_write_name(s, out, "name", adapter);
    qn_ollama_write_name(s, out, "model", adapter);
    qn_ollama_write_identity(s, out, adapter);
    qn_ollama_write_details(s, out);
    if (is_ps) {
        qn_write_time(out, "expires_at", never, 0);
        qn_json_put_int(out, "size_vram", (int64_t)device.weights_bytes);
        qn_json_put_int(out, "context_length", s->info.context_size);
    } else {
        qn_write_time(out, "modified_at", s->created_s, 0);
    }
    qn_json_close(out, '}');
}

static void reply(qn_exchange *ex, int is_ps)
{
    const qn_server *s = ex->server;
    qn_adapter_info info;
    qn_api_error error;
    qn_buf b = {0};
    qn_json_open(&b, '{');
    qn_json_key(&b, "models");
    qn_json_open(&b, '[');
    put_model(s, NULL, is_ps, &b);
    for (int64_t i = 0; qn_adapter_get_info(s->model, i, &info) == QN_OK; i++)
        put_model(s, info.name, is_ps, &b);
    qn_json_close(&b, ']');
    qn_json_close(&b, '}');
    if (b.status == QN_OK) {
        qn_exchange_reply(ex, 200, "application/json", NULL, b.data, b.length);
    } else {
        qn_api_fail_status(&error, b.status);
        qn_exchange_fail(ex, &error);
    }
    qn_buf_free(&b);
}

void qn_route_ollama_tags(qn_exchange *ex)
{
    reply(ex, 0);
}

void qn_route_ollama_ps(qn_exchange *ex)
{
    reply(ex, 1);
}
