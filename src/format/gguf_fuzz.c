/* Any bytes: refused, or everything that the reader shows can be read. */
#include "format/gguf.h"

#include <stdlib.h>

static volatile uint8_t sink;

static void touch(const void *data, size_t n)
{
    const uint8_t *p = data;
    if (n) sink = (uint8_t)(p[0] + p[n - 1]);
}

static void walk_values(const qn_gguf *g)
{
    for (int64_t i = 0; i < qn_gguf_value_count(g); i++) {
        const qn_gguf_value *v = qn_gguf_value_get(g, i);
        int64_t whole;
        uint64_t natural;
        double real;
        int flag;
        float reals[4];
        int64_t wholes[4];
        qn_gguf_string s;
        qn_gguf_strings strings;
        if (qn_gguf_value_find(g, v->key) != v) abort();
        touch(v->data, v->size_bytes);
        qn_gguf_get_i64(g, v->key, -5, 1000, &whole);
        qn_gguf_get_u64(g, v->key, 1000, &natural);
        qn_gguf_get_f64(g, v->key, -1, 1, &real);
        qn_gguf_get_bool(g, v->key, &flag);
        qn_gguf_get_i64s(g, v->key, INT64_MIN, INT64_MAX, 4, wholes);
        qn_gguf_get_f32s(g, v->key, 4, reals);
        if (qn_gguf_get_string(g, v->key, &s) == QN_OK) touch(s.data, s.length);
        if (qn_gguf_get_strings(g, v->key, &strings) == QN_OK)
            while (qn_gguf_strings_next(&strings, &s)) touch(s.data, s.length);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_gguf *g = NULL;
    if (qn_gguf_open_bytes("fuzz.gguf", data, size, &g) != QN_OK) return 0;
    walk_values(g);
    for (int64_t i = 0; i < qn_gguf_count(g); i++) {
        const qn_tensor_view *v = qn_gguf_get(g, i);
        char text[16];
        qn_view_shape_text(v, text, sizeof text);
        if (qn_gguf_find(g, v->name) != v) abort();
        if (v->supported) touch(v->data, v->size_bytes);
    }
    qn_gguf_close(g);
    return 0;
}
