#include "cli/constrain/text_place.h"

#include <string.h>

#include "base/json/json.h"

/* An open bracket: where its pointer ends, and the index of the child that is read. */
typedef struct {
    size_t pointer_bytes;
    size_t index;
    int is_array;
} level;

typedef struct {
    qn_buf *pointer;
    level levels[QN_JSON_DEPTH_MAX + 1];
    int depth;
    int is_key; /* a string that begins now is a key */
} walk;

static void put_token(qn_buf *pointer, const char *key, size_t n)
{
    qn_buf_putc(pointer, '/');
    for (size_t i = 0; i < n; i++) {
        if (key[i] == '~')
            qn_buf_puts(pointer, "~0");
        else if (key[i] == '/')
            qn_buf_puts(pointer, "~1");
        else
            qn_buf_putc(pointer, key[i]);
    }
}

/* The pointer of the level's child that begins now. A key with escapes stands as it is written. */
static void enter_child(walk *w, const char *key, size_t n)
{
    if (!w->depth || w->pointer->status != QN_OK) return;
    level *l = &w->levels[w->depth - 1];
    if (w->pointer->data) w->pointer->data[w->pointer->length = l->pointer_bytes] = 0;
    if (l->is_array)
        qn_buf_printf(w->pointer, "/%zu", l->index);
    else
        put_token(w->pointer, key, n);
}

static void open_bracket(walk *w, int is_array)
{
    if (w->depth > QN_JSON_DEPTH_MAX) return;
    w->levels[w->depth++] = (level){w->pointer->length, 0, is_array};
    w->is_key = !is_array;
    if (is_array) enter_child(w, "", 0);
}

static void close_bracket(walk *w)
{
    if (!w->depth) return;
    w->depth--;
    if (w->pointer->data && w->pointer->status == QN_OK)
        w->pointer->data[w->pointer->length = w->levels[w->depth].pointer_bytes] = 0;
    w->is_key = 0;
}

void qn_text_place_find(const char *text, size_t n, size_t offset, qn_text_place *out)
{
    *out = (qn_text_place){.line = 1, .column = 1};
    walk w = {.pointer = &out->pointer};
    if (offset > n) offset = n;
    for (size_t i = 0; i < offset; i++) {
        if (text[i] == '\n') {
            out->line++;
            out->column = 1;
        } else if (((unsigned char)text[i] & 0xc0) != 0x80) {
            out->column++;
        }
    }
    for (size_t i = 0; i < offset; i++) {
        if (text[i] == '"') {
            size_t begin = ++i;
            while (i < offset && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
            if (i < offset && w.is_key) enter_child(&w, text + begin, i - begin);
            w.is_key = 0;
        } else if (text[i] == '{' || text[i] == '[') {
            open_bracket(&w, text[i] == '[');
        } else if (text[i] == '}' || text[i] == ']') {
            close_bracket(&w);
        } else if (text[i] == ',' && w.depth) {
            level *l = &w.levels[w.depth - 1];
            l->index++;
            if (l->is_array) enter_child(&w, "", 0);
            w.is_key = !l->is_array;
            if (w.is_key && w.pointer->data && w.pointer->status == QN_OK)
                w.pointer->data[w.pointer->length = l->pointer_bytes] = 0;
        }
    }
}
