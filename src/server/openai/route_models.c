/* GET /v1/models, /v1/models/NAME: the model that is served, each of its adapters as NAME+ADAPTER, and beside
 * them the model alone as NAME+none. */
#include <string.h>

#include "base/json/json_write.h"
#include "server/core/write.h"
#include "server/openai/openai.h"

static void write_model(const qn_server *s, const char *adapter, qn_buf *b)
{
    qn_buf name = {0};
    qn_buf_puts(&name, s->options->model_name);
    if (adapter) qn_buf_printf(&name, "+%s", adapter);
    if (name.status != QN_OK) b->status = name.status;
    qn_json_open(b, '{');
    qn_json_put_text(b, "id", name.data ? name.data : "");
    qn_json_put_text(b, "object", "model");
    qn_json_put_int(b, "created", s->created_s);
    /* As Anthropic's API has it. */
    qn_json_put_text(b, "type", "model");
    qn_json_put_text(b, "display_name", name.data ? name.data : "");
    qn_write_time(b, "created_at", s->created_s, 0);
    qn_json_put_text(b, "owned_by", "quern");
    qn_json_put_int(b, "context_window", s->info.context_size);
    qn_json_put_text(b, "architecture", s->info.architecture);
    qn_json_put_int(b, "num_parameters", s->info.num_parameters);
    qn_json_put_int(b, "vocab_size", s->info.vocab_size);
    qn_json_put_bool(b, "has_chat_template", s->info.has_chat_template);
    qn_json_close(b, '}');
    qn_buf_free(&name);
}

/* "%2B" is '+' in a path. Writes at most size bytes with the NUL. */
static void decode_path(const char *from, char *to, size_t size)
{
    static const char digits[] = "0123456789abcdef";
    size_t n = 0;
    for (; *from && n + 1 < size; n++) {
        const char *high = from[0] == '%' && from[1] ? strchr(digits, from[1] | 0x20) : NULL;
        const char *low = high && from[2] ? strchr(digits, from[2] | 0x20) : NULL;
        to[n] = low ? (char)((high - digits) * 16 + (low - digits)) : *from;
        from += low ? 3 : 1;
    }
    to[n] = 0;
}

/* The list is one page, as Anthropic's API has it. */
static void put_pages(const qn_server *s, int has_adapters, qn_buf *b)
{
    const char *name = s->options->model_name;
    qn_buf last = {0};
    qn_buf_printf(&last, "%s%s", name, has_adapters ? "+none" : "");
    if (last.status != QN_OK) b->status = last.status;
    qn_json_put_bool(b, "has_more", 0);
    qn_json_put_text(b, "first_id", name);
    qn_json_put_text(b, "last_id", last.data ? last.data : "");
    qn_buf_free(&last);
}

void qn_route_models(qn_exchange *ex)
{
    static const char below[] = "/v1/models/";
    const qn_server *s = ex->server;
    int is_one = strncmp(ex->path, below, sizeof below - 1) == 0;
    char wanted[256] = "";
    const char *adapter = NULL;
    qn_adapter_info info;
    qn_api_error error;
    qn_buf b = {0};
    int64_t n = 0;
    if (is_one) {
        decode_path(ex->path + sizeof below - 1, wanted, sizeof wanted);
        if (qn_completion_check_model(s, wanted, &adapter, &error)) {
            qn_exchange_fail(ex, &error);
            return;
        }
        write_model(s, adapter, &b);
    } else {
        qn_buf_puts(&b, "{\"object\":\"list\",\"data\":[");
        write_model(s, NULL, &b);
        for (; qn_adapter_get_info(s->model, n, &info) == QN_OK; n++) write_model(s, info.name, &b);
        if (n) write_model(s, "none", &b);
        qn_json_close(&b, ']');
        put_pages(s, n > 0, &b);
        qn_json_close(&b, '}');
    }
    if (b.status != QN_OK) {
        qn_api_fail_status(&error, b.status);
        qn_exchange_fail(ex, &error);
    } else {
        qn_exchange_reply(ex, 200, "application/json", NULL, b.data, b.length);
    }
    qn_buf_free(&b);
}
