/* GET /props, /lora-adapters and /version: what the server is. */
#include <string.h>

#include "base/json/json_write.h"
#include "server/core/state.h"
#include "server/llama/llama.h"
#include "server/llama/settings.h"

void qn_llama_reply(qn_exchange *ex, qn_buf *b)
{
    qn_api_error error;
    if (b->status == QN_OK) {
        qn_exchange_reply(ex, 200, "application/json", NULL, b->data, b->length);
    } else {
        qn_api_fail_status(&error, b->status);
        qn_exchange_fail(ex, &error);
    }
    qn_buf_free(b);
}

/* Those of a request that sets nothing. */
static void put_default_settings(const qn_server *s, qn_buf *out)
{
    const qn_api_request_limits limits = qn_server_request_limits(s);
    qn_api_request r;
    qn_api_request_start(&r, 0);
    qn_api_request_set_options(&r, &limits);
    qn_json_key(out, "params");
    qn_llama_write_settings(&r, r.o.seed ? r.o.seed : UINT32_MAX, out);
    qn_api_request_free(&r);
}

void qn_route_llama_props(qn_exchange *ex)
{
    const qn_server *s = ex->server;
    qn_buf b = {0};
    qn_json_open(&b, '{');
    qn_json_key(&b, "default_generation_settings");
    qn_json_open(&b, '{');
    qn_llama_put_slot(s, 0, 0, &b);
    put_default_settings(s, &b);
    qn_json_close(&b, '}');
    qn_json_put_int(&b, "total_slots", s->info.parallel_slots);
    qn_json_put_text(&b, "model_alias", s->options->model_name);
    /* The name of the file: where it lies is not the client's business. */
    qn_json_put_text(&b, "model_path",
                     s->options->model_file ? s->options->model_file : s->options->model_name);
    qn_json_put_bool(&b, "has_chat_template", s->info.has_chat_template);
    qn_json_key(&b, "modalities");
    qn_json_open(&b, '{');
    qn_json_put_bool(&b, "vision", 0);
    qn_json_put_bool(&b, "audio", 0);
    qn_json_close(&b, '}');
    qn_json_put_bool(&b, "endpoint_slots", 1);
    qn_json_put_bool(&b, "endpoint_props", 0);
    qn_json_put_bool(&b, "endpoint_metrics", 1);
    qn_json_put_bool(&b, "is_sleeping", 0);
    qn_json_key(&b, "build_info");
    qn_buf_printf(&b, "\"quern-%s\"", qn_version());
    qn_json_close(&b, '}');
    qn_llama_reply(ex, &b);
}

/* The scale is that of requests that name no adapter. */
void qn_route_llama_adapters(qn_exchange *ex)
{
    qn_adapter_info info;
    qn_buf b = {0};
    qn_json_open(&b, '[');
    for (int64_t i = 0; qn_adapter_get_info(ex->server->model, i, &info) == QN_OK; i++) {
        qn_json_open(&b, '{');
        qn_json_put_int(&b, "id", i);
        /* Where the file lies is not the client's business. */
        qn_json_put_text(&b, "path", info.name);
        qn_json_put_real(&b, "scale", info.is_default ? (double)info.scale : 0);
        qn_json_close(&b, '}');
    }
    qn_json_close(&b, ']');
    qn_llama_reply(ex, &b);
}

void qn_route_llama_version(qn_exchange *ex)
{
    qn_buf b = {0};
    qn_json_open(&b, '{');
    qn_json_put_text(&b, "version", qn_version());
    qn_json_close(&b, '}');
    qn_llama_reply(ex, &b);
}

void qn_route_llama_refused(qn_exchange *ex)
{
    qn_api_error error;
    if (strcmp(ex->path, "/lora-adapters") == 0)
        qn_api_fail(&error, 501, "not_supported", NULL,
                    "scales are not changed while requests run: POST /v1/adapters loads an adapter with a "
                    "scale, and a "
                    "request chooses one adapter by its field model");
    else
        qn_api_fail(&error, 501, "not_supported", NULL,
                    "properties are not changed over HTTP: options of quern serve set them");
    qn_exchange_fail(ex, &error);
}
