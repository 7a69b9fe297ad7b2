/* Any bytes: refused, or everything that the reader shows can be read, and a copy that the writer makes of it
 * shows the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format/gguf/gguf_writer.h"

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

static qn_status copy(const qn_gguf *g, const char *path)
{
    qn_gguf_writer *w = NULL;
    qn_status status = qn_gguf_writer_new(path, &w);
    for (int64_t i = 0; i < qn_gguf_value_count(g) && status == QN_OK; i++)
        status = qn_gguf_writer_copy(w, qn_gguf_value_get(g, i));
    for (int64_t i = 0; i < qn_gguf_count(g) && status == QN_OK; i++) {
        const qn_tensor_view *v = qn_gguf_get(g, i);
        status = qn_view_check(v);
        if (status == QN_OK) status = qn_gguf_writer_add(w, v->name, v->dtype, v->n_dims, v->shape, NULL);
    }
    if (status == QN_OK) status = qn_gguf_writer_begin(w);
    for (int64_t i = 0; i < qn_gguf_count(g) && status == QN_OK; i++)
        status = qn_gguf_writer_write(w, i, 0, qn_gguf_get(g, i)->data, qn_gguf_get(g, i)->size_bytes);
    if (status == QN_OK) status = qn_gguf_writer_finish(w);
    qn_gguf_writer_free(w);
    return status;
}

static void compare(const qn_gguf *a, const qn_gguf *b)
{
    if (qn_gguf_value_count(a) != qn_gguf_value_count(b) || qn_gguf_count(a) != qn_gguf_count(b)) abort();
    for (int64_t i = 0; i < qn_gguf_value_count(a); i++) {
        const qn_gguf_value *x = qn_gguf_value_get(a, i), *y = qn_gguf_value_get(b, i);
        if (strcmp(x->key, y->key) != 0 || x->type != y->type || x->count != y->count ||
            x->element_type != y->element_type || x->size_bytes != y->size_bytes ||
            memcmp(x->data, y->data, x->size_bytes) != 0)
            abort();
    }
    for (int64_t i = 0; i < qn_gguf_count(a); i++) {
        const qn_tensor_view *x = qn_gguf_get(a, i), *y = qn_gguf_get(b, i);
        if (strcmp(x->name, y->name) != 0 || x->dtype != y->dtype || x->n_dims != y->n_dims ||
            memcmp(x->shape, y->shape, sizeof x->shape) != 0 || memcmp(x->data, y->data, x->size_bytes) != 0)
            abort();
    }
}

/* What is too large to be written is refused; whatever is written opens. */
static void write_and_read(const qn_gguf *g)
{
    static char path[512];
    const char *folder = getenv("TMPDIR");
    qn_gguf *copied = NULL;
    snprintf(path, sizeof path, "%s/quern-fuzz-%ld.gguf", folder && *folder ? folder : P_tmpdir,
             (long)getpid());
    if (copy(g, path) != QN_OK) return;
    if (qn_gguf_open(path, &copied) != QN_OK) abort();
    compare(g, copied);
    qn_gguf_close(copied);
    unlink(path);
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
    write_and_read(g);
    qn_gguf_close(g);
    return 0;
}
