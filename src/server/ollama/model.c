#include "server/ollama/model.h"

#include <inttypes.h>
#include <quern/memory.h>
#include <string.h>

#include "base/json/json_write.h"
#include "base/map.h"

void qn_ollama_write_name(const qn_server *s, qn_buf *out, const char *key, const char *adapter)
{
    const char *name = s->options->model_name;
    qn_buf text = {0};
    qn_buf_printf(&text, "%s%s%s%s", name, adapter ? "+" : "", adapter ? adapter : "",
                  strchr(name, ':') ? "" : ":latest");
    qn_json_key(out, key);
    qn_json_text(out, text.data ? text.data : "", text.length);
    if (text.status != QN_OK) out->status = text.status;
    qn_buf_free(&text);
}

void qn_ollama_write_identity(const qn_server *s, qn_buf *out, const char *adapter)
{
    const qn_model_info *info = &s->info;
    qn_memory memory = {0};
    qn_device_memory device = {0};
    qn_buf text = {0};
    if (qn_model_get_memory(s->model, &memory) != QN_OK) memory.weights_bytes = 0;
    if (qn_model_get_device_memory(s->model, &device) != QN_OK) device.weights_bytes = 0;
    qn_json_put_int(out, "size", (int64_t)(memory.weights_bytes + device.weights_bytes));
    qn_buf_printf(&text, "%s\n%s\n%" PRId64 " %" PRId64 " %d %s", s->options->model_name, info->architecture,
                  info->num_parameters, info->vocab_size, (int)info->quant_bits, adapter ? adapter : "");
    qn_json_key(out, "digest");
    qn_buf_putc(out, '"');
    for (uint64_t i = 0; i < 4; i++)
        qn_buf_printf(out, "%016" PRIx64, qn_hash_bytes(text.data ? text.data : "", text.length, i));
    qn_buf_putc(out, '"');
    if (text.status != QN_OK) out->status = text.status;
    qn_buf_free(&text);
}

/* 134515008 -> "134.5M" */
static void put_count(qn_buf *out, const char *key, int64_t n)
{
    qn_json_key(out, key);
    if (n >= 1000000000)
        qn_buf_printf(out, "\"%.1fB\"", (double)n * 1e-9);
    else if (n >= 1000000)
        qn_buf_printf(out, "\"%.1fM\"", (double)n * 1e-6);
    else
        qn_buf_printf(out, "\"%.1fK\"", (double)n * 1e-3);
}

static int ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

void qn_ollama_write_details(const qn_server *s, qn_buf *out)
{
    const qn_model_info *info = &s->info;
    qn_json_key(out, "details");
    qn_json_open(out, '{');
    qn_json_put_text(out, "parent_model", "");
    qn_json_put_text(out, "format", info->path && ends_with(info->path, ".gguf") ? "gguf" : "safetensors");
    qn_json_put_text(out, "family", info->architecture);
    qn_json_key(out, "families");
    qn_json_open(out, '[');
    qn_json_text(out, info->architecture, strlen(info->architecture));
    qn_json_close(out, ']');
    put_count(out, "parameter_size", info->num_parameters);
    qn_json_key(out, "quantization_level");
    qn_buf_printf(out, "\"%s%d\"", info->quant_bits < 16 ? "Q" : "F", (int)info->quant_bits);
    qn_json_close(out, '}');
}
