#include "constrain/validate/value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/map.h"
#include "base/mem.h"

enum { FEW_MEMBERS = 8 };

typedef struct {
    qn_arena *arena;
    const qn_decimal *numbers; /* of the text, in its order; NULL: the json_t's own */
} reading;

static int by_key(const void *a, const void *b, void *of)
{
    const qn_value *children = of, *x = &children[*(const uint32_t *)a], *y = &children[*(const uint32_t *)b];
    uint32_t n = x->key_bytes < y->key_bytes ? x->key_bytes : y->key_bytes;
    int order = memcmp(x->key, y->key, n);
    return order ? order : (x->key_bytes > y->key_bytes) - (x->key_bytes < y->key_bytes);
}

static int sort_members(reading *r, qn_value *object)
{
    if (object->n <= FEW_MEMBERS) return 1;
    object->sorted = qn_arena_alloc(r->arena, object->n * sizeof *object->sorted);
    if (!object->sorted) return 0;
    for (uint32_t i = 0; i < object->n; i++) object->sorted[i] = i;
    qsort_r(object->sorted, object->n, sizeof *object->sorted, by_key, object->children);
    return 1;
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

static int read_integer(reading *r, json_int_t value, qn_value *v)
{
    if (r->numbers) {
        v->number = r->numbers[value];
        return 1;
    }
    char text[32];
    int n = snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, value);
    char *copy = qn_arena_strndup(r->arena, text, (size_t)n);
    if (copy) v->number = qn_decimal_read(copy, (size_t)n);
    return copy != NULL;
}

static int read_real(reading *r, double value, qn_value *v)
{
    char text[40];
    int n = 0;
    for (int digits = 15; digits <= 17; digits++) {
        n = snprintf(text, sizeof text, "%.*g", digits, value);
        for (int i = 0; i < n; i++)
            if (text[i] == ',') text[i] = '.'; /* of the locale */
        if (strtod(text, NULL) == value) break;
    }
    /* A real stays one in its spelling. */
    if (!strpbrk(text, ".e")) n += snprintf(text + n, sizeof text - (size_t)n, ".0");
    char *copy = qn_arena_strndup(r->arena, text, (size_t)n);
    if (copy) v->number = qn_decimal_read(copy, (size_t)n);
    return copy != NULL;
}

/* ---- trees --------------------------------------------------------------------------------------------- */

static int fill(reading *r, const json_t *json, qn_value *v);

static int fill_object(reading *r, const json_t *json, qn_value *v)
{
    v->n = (uint32_t)json_object_size(json);
    v->children = qn_arena_calloc(r->arena, v->n, sizeof *v->children);
    if (!v->children) return 0;
    uint32_t i = 0;
    void *at;
    for (at = json_object_iter((json_t *)json); at; at = json_object_iter_next((json_t *)json, at), i++) {
        qn_value *child = &v->children[i];
        child->parent = v;
        child->index = i;
        child->key_bytes = (uint32_t)json_object_iter_key_len(at);
        child->key = qn_arena_strndup(r->arena, json_object_iter_key(at), child->key_bytes);
        if (!child->key || !fill(r, json_object_iter_value(at), child)) return 0;
    }
    return sort_members(r, v);
}

static int fill(reading *r, const json_t *json, qn_value *v)
{
    switch (json_typeof(json)) {
    case JSON_NULL:
        v->kind = QN_VALUE_NULL;
        return 1;
    case JSON_TRUE:
    case JSON_FALSE:
        v->kind = QN_VALUE_BOOLEAN;
        v->is_true = json_is_true(json);
        return 1;
    case JSON_INTEGER:
        v->kind = QN_VALUE_NUMBER;
        return read_integer(r, json_integer_value(json), v);
    case JSON_REAL:
        v->kind = QN_VALUE_NUMBER;
        return read_real(r, json_real_value(json), v);
    case JSON_STRING:
        v->kind = QN_VALUE_STRING;
        v->n = (uint32_t)json_string_length(json);
        v->text = qn_arena_strndup(r->arena, json_string_value(json), v->n);
        return v->text != NULL;
    case JSON_ARRAY:
        v->kind = QN_VALUE_ARRAY;
        v->n = (uint32_t)json_array_size(json);
        v->children = qn_arena_calloc(r->arena, v->n, sizeof *v->children);
        if (!v->children) return 0;
        for (uint32_t i = 0; i < v->n; i++) {
            v->children[i].parent = v;
            v->children[i].index = i;
            if (!fill(r, json_array_get(json, i), &v->children[i])) return 0;
        }
        return 1;
    case JSON_OBJECT:
        v->kind = QN_VALUE_OBJECT;
        return fill_object(r, json, v);
    }
    return 0;
}

static qn_status build(reading *r, const json_t *json, const qn_value **out)
{
    qn_value *root = qn_arena_calloc(r->arena, 1, sizeof *root);
    if (!root || !fill(r, json, root)) return qn_fail_nomem(sizeof *root);
    *out = root;
    return QN_OK;
}

qn_status qn_value_of_json(qn_arena *arena, const json_t *json, const qn_value **out)
{
    reading r = {.arena = arena};
    return build(&r, json, out);
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* jansson keeps numbers as doubles or 64 bits, and refuses what is larger. So it sees in place of each number
 * the number's index among them. */
static qn_status number_off(reading *r, const char *text, size_t n, qn_buf *out, qn_decimal **out_numbers)
{
    size_t count = 0, room = 0;
    for (size_t i = 0; i < n; i++) room += is_digit(text[i]) && (!i || !is_digit(text[i - 1]));
    qn_decimal *numbers = qn_arena_alloc(r->arena, (room + 1) * sizeof *numbers);
    if (!numbers) return qn_fail_nomem((room + 1) * sizeof *numbers);
    for (size_t i = 0, begin; i < n;) {
        begin = i;
        if (text[i] == '"') {
            for (i++; i < n && text[i] != '"'; i++)
                if (text[i] == '\\') i++;
            i = i < n ? i + 1 : n;
            qn_buf_append(out, text + begin, i - begin);
        } else if (text[i] == '-' || is_digit(text[i])) {
            size_t length = qn_decimal_length(text + i, n - i);
            if (length) numbers[count] = qn_decimal_read(text + i, length);
            if (length) qn_buf_printf(out, "%zu", count++);
            i += length ? length : 1;
            /* What is no number, as "01", "-" and "1-2", must not become one. */
            if (!length || (i < n && (is_digit(text[i]) || text[i] == '.' || text[i] == '-')))
                qn_buf_putc(out, 'x');
        } else {
            qn_buf_putc(out, text[i++]);
        }
    }
    *out_numbers = numbers;
    return out->status;
}

qn_status qn_value_read(qn_arena *arena, const char *what, const char *text, size_t n, const qn_value **out)
{
    if (n > QN_VALUE_TEXT_MAX)
        return qn_fail(QN_E_FORMAT, "%s: longer than %d MiB", what, QN_VALUE_TEXT_MAX >> 20);
    reading r = {.arena = arena};
    qn_buf numbered = {0};
    qn_decimal *numbers = NULL;
    json_t *json = NULL;
    char *copy = qn_arena_strndup(arena, text, n); /* the numbers point there */
    qn_status status = copy ? number_off(&r, copy, n, &numbered, &numbers) : qn_fail_nomem(n);
    if (status == QN_OK)
        status = qn_json_parse(what, numbered.data ? numbered.data : "", numbered.length, &json);
    if (status == QN_E_FORMAT) {
        /* The place must be the user's. */
        json_t *unused = NULL;
        if (qn_json_parse(what, text, n, &unused) == QN_OK) {
            json_decref(unused);
            status = qn_fail(QN_E_FORMAT, "%s: malformed JSON", what);
        }
    }
    r.numbers = numbers;
    if (status == QN_OK) status = build(&r, json, out);
    json_decref(json);
    qn_buf_free(&numbered);
    return status;
}

/* ---- looking ------------------------------------------------------------------------------------------- */

const qn_value *qn_value_get(const qn_value *object, const char *key, size_t key_bytes)
{
    if (object->kind != QN_VALUE_OBJECT) return NULL;
    if (!object->sorted) {
        for (uint32_t i = 0; i < object->n; i++) {
            const qn_value *child = &object->children[i];
            if (child->key_bytes == key_bytes && !memcmp(child->key, key, key_bytes)) return child;
        }
        return NULL;
    }
    uint32_t low = 0, high = object->n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const qn_value *child = &object->children[object->sorted[middle]];
        size_t n = child->key_bytes < key_bytes ? child->key_bytes : key_bytes;
        int order = memcmp(child->key, key, n);
        if (!order) order = (child->key_bytes > key_bytes) - (child->key_bytes < key_bytes);
        if (!order) return child;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

int qn_value_equal(const qn_value *a, const qn_value *b, int64_t *steps)
{
    if (--*steps < 0 || a->kind != b->kind) return 0;
    switch ((qn_value_kind)a->kind) {
    case QN_VALUE_NULL:
        return 1;
    case QN_VALUE_BOOLEAN:
        return a->is_true == b->is_true;
    case QN_VALUE_NUMBER:
        return !qn_decimal_compare(&a->number, &b->number);
    case QN_VALUE_STRING:
        return a->n == b->n && !memcmp(a->text, b->text, a->n);
    case QN_VALUE_ARRAY:
        if (a->n != b->n) return 0;
        for (uint32_t i = 0; i < a->n; i++)
            if (!qn_value_equal(&a->children[i], &b->children[i], steps)) return 0;
        return 1;
    case QN_VALUE_OBJECT:
        if (a->n != b->n) return 0;
        for (uint32_t i = 0; i < a->n; i++) {
            const qn_value *x = &a->children[i], *y = qn_value_get(b, x->key, x->key_bytes);
            if (!y || !qn_value_equal(x, y, steps)) return 0;
        }
        return 1;
    }
    return 0;
}

uint64_t qn_value_hash(const qn_value *v, int64_t *steps)
{
    uint64_t h = v->kind;
    --*steps;
    switch ((qn_value_kind)v->kind) {
    case QN_VALUE_NULL:
        return h;
    case QN_VALUE_BOOLEAN:
        return h + 16 * (v->is_true + 1u);
    case QN_VALUE_NUMBER:
        return qn_decimal_hash(&v->number);
    case QN_VALUE_STRING:
        return qn_hash_bytes(v->text, v->n, h);
    case QN_VALUE_ARRAY:
        for (uint32_t i = 0; i < v->n && *steps >= 0; i++) {
            uint64_t child = qn_value_hash(&v->children[i], steps);
            h = qn_hash_bytes(&child, sizeof child, h);
        }
        return h;
    case QN_VALUE_OBJECT:
        for (uint32_t i = 0; i < v->n && *steps >= 0; i++) {
            const qn_value *child = &v->children[i];
            h += qn_hash_bytes(child->key, child->key_bytes, qn_value_hash(child, steps)); /* any order */
        }
        return h;
    }
    return h;
}

int64_t qn_value_length(const qn_value *string)
{
    int64_t count = 0;
    for (uint32_t i = 0; i < string->n; i++) count += ((unsigned char)string->text[i] & 0xc0) != 0x80;
    return count;
}

/* ---- pointers and texts -------------------------------------------------------------------------------- */

void qn_value_pointer(const qn_value *v, qn_buf *out)
{
    if (!v->parent) return;
    qn_value_pointer(v->parent, out);
    qn_buf_putc(out, '/');
    if (!v->key) {
        qn_buf_printf(out, "%u", v->index);
        return;
    }
    for (uint32_t i = 0; i < v->key_bytes; i++) {
        if (v->key[i] == '~')
            qn_buf_puts(out, "~0");
        else if (v->key[i] == '/')
            qn_buf_puts(out, "~1");
        else
            qn_buf_putc(out, v->key[i]);
    }
}

static int get_index(const char *text, size_t n, uint32_t *out)
{
    uint64_t value = 0;
    if (!n || n > 9 || (n > 1 && *text == '0')) return 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9') return 0;
        value = value * 10 + (uint64_t)(text[i] - '0');
    }
    *out = (uint32_t)value;
    return 1;
}

/* The child of v that one token of a pointer names. */
static const qn_value *child_at(const qn_value *v, const char *token, size_t n)
{
    uint32_t index;
    if (v->kind == QN_VALUE_ARRAY)
        return get_index(token, n, &index) && index < v->n ? &v->children[index] : NULL;
    if (v->kind != QN_VALUE_OBJECT) return NULL;
    if (!memchr(token, '~', n)) return qn_value_get(v, token, n);
    for (uint32_t i = 0; i < v->n; i++) {
        const qn_value *child = &v->children[i];
        size_t at = 0;
        uint32_t k = 0;
        for (; at < n && k < child->key_bytes; at++, k++) {
            char c = token[at];
            if (c == '~' && at + 1 < n && (token[at + 1] == '0' || token[at + 1] == '1'))
                c = token[++at] == '0' ? '~' : '/';
            if (c != child->key[k]) break;
        }
        if (at == n && k == child->key_bytes) return child;
    }
    return NULL;
}

const qn_value *qn_value_at(const qn_value *root, const char *pointer, size_t n)
{
    const qn_value *v = root;
    for (size_t i = 0; i < n && v;) {
        if (pointer[i] != '/') return NULL;
        size_t begin = ++i;
        while (i < n && pointer[i] != '/') i++;
        v = child_at(v, pointer + begin, i - begin);
    }
    return v;
}

static void show(const qn_value *v, size_t n_max, qn_buf *out)
{
    if (out->length > n_max) return; /* the rest is cut */
    switch ((qn_value_kind)v->kind) {
    case QN_VALUE_NULL:
        qn_buf_puts(out, "null");
        break;
    case QN_VALUE_BOOLEAN:
        qn_buf_puts(out, v->is_true ? "true" : "false");
        break;
    case QN_VALUE_NUMBER:
        qn_buf_append(out, v->number.text, v->number.n_text < n_max ? v->number.n_text : n_max + 1);
        break;
    case QN_VALUE_STRING:
        qn_buf_json_string(out, v->text, v->n < 4 * n_max ? v->n : 4 * n_max);
        break;
    case QN_VALUE_ARRAY:
    case QN_VALUE_OBJECT:
        qn_buf_putc(out, v->kind == QN_VALUE_ARRAY ? '[' : '{');
        for (uint32_t i = 0; i < v->n && out->length <= n_max; i++) {
            if (i) qn_buf_puts(out, ", ");
            if (v->kind == QN_VALUE_OBJECT) {
                qn_buf_json_string(out, v->children[i].key, v->children[i].key_bytes);
                qn_buf_puts(out, ": ");
            }
            show(&v->children[i], n_max, out);
        }
        qn_buf_putc(out, v->kind == QN_VALUE_ARRAY ? ']' : '}');
        break;
    }
}

void qn_value_show(const qn_value *v, size_t n_max, qn_buf *out)
{
    qn_buf whole = {0};
    show(v, n_max, &whole);
    size_t n = whole.length;
    if (n > n_max) {
        for (n = n_max; n && ((unsigned char)whole.data[n] & 0xc0) == 0x80;) n--;
    }
    qn_buf_append(out, whole.data ? whole.data : "", n);
    if (n < whole.length) qn_buf_puts(out, "...");
    if (whole.status != QN_OK && out->status == QN_OK) out->status = whole.status;
    qn_buf_free(&whole);
}
