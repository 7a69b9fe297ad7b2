/* Any bytes: refused, or every tensor and its text can be read. The header alone must also be JSON to a
 * strict parser, so that no file means different things to different readers. */
#include "format/safetensors/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"

static volatile uint8_t sink;

static void check_header(const uint8_t *data)
{
    uint64_t n;
    json_t *header = NULL;
    memcpy(&n, data, sizeof n);
    if (qn_json_parse("header", (const char *)data + sizeof n, (size_t)n, &header) != QN_OK) abort();
    json_decref(header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_safetensors *s = NULL;
    if (qn_safetensors_open_bytes("fuzz.safetensors", data, size, &s) != QN_OK) return 0;
    check_header(data);
    size_t total = 0;
    for (int64_t i = 0; i < qn_safetensors_count(s); i++) {
        const qn_tensor_view *v = qn_safetensors_get(s, i), *again = NULL;
        char text[16];
        qn_view_shape_text(v, text, sizeof text);
        const uint8_t *p = v->data;
        if (v->size_bytes) sink = (uint8_t)(p[0] + p[v->size_bytes - 1]);
        total += v->size_bytes;
        if (qn_safetensors_find(s, v->name) != v) abort();
        if (qn_safetensors_tensor(s, v->name, &again) == QN_OK && again != v) abort();
    }
    if (total > size) abort();
    const char *key, *value;
    for (int64_t i = 0; qn_safetensors_metadata_at(s, i, &key, &value); i++) sink = (uint8_t)strlen(value);
    qn_safetensors_close(s);
    return 0;
}
