#include "text/chat/chat_continue.h"

#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/split/unicode.h"

/* transformers' own words. A template that trims takes the space at the end away. */
static const char mark[] = "CONTINUE_FINAL_MESSAGE_TAG ";
enum { MARK = sizeof mark - 2 };

/* ---- the mark ------------------------------------------------------------------------------------------ */

static json_t *with_mark(const json_t *text)
{
    const size_t n = json_string_length(text);
    char *joined = qn_alloc(n + sizeof mark);
    if (!joined) return NULL;
    memcpy(joined, json_string_value(text), n);
    memcpy(joined + n, mark, sizeof mark);
    json_t *marked = json_stringn_nocheck(joined, n + sizeof mark - 1);
    qn_free(joined);
    return marked;
}

/* A copy of object in which the text of one member has the mark; NULL: out of memory. */
static json_t *copy_marked(const json_t *object, const char *key)
{
    json_t *copy = qn_json_copy(object);
    if (copy && json_object_set_new(copy, key, with_mark(json_object_get(object, key))) == 0) return copy;
    json_decref(copy);
    return NULL;
}

qn_status qn_chat_continue_mark(json_t *messages, json_t **final)
{
    const size_t last = json_array_size(messages) - 1;
    const json_t *message = json_array_get(messages, last), *content = json_object_get(message, "content");
    json_t *text = NULL, *copy = NULL;
    if (json_is_string(content)) {
        text = (json_t *)content;
        copy = copy_marked(message, "content");
    } else {
        size_t i = json_array_size(content);
        while (i && !text) {
            json_t *part = json_object_get(json_array_get(content, --i), "text");
            if (json_is_string(part)) text = part;
        }
        if (!text)
            return qn_fail(QN_E_ARG, "continue_final_message: the last message has no text to continue");
        json_t *parts = qn_json_copy(content);
        copy = parts ? qn_json_copy(message) : NULL;
        if (!copy || json_array_set_new(parts, i, copy_marked(json_array_get(content, i), "text")) ||
            json_object_set(copy, "content", parts)) {
            json_decref(copy);
            copy = NULL;
        }
        json_decref(parts);
    }
    text = json_stringn_nocheck(json_string_value(text), json_string_length(text));
    if (!text) json_decref(copy);
    if (!text || !copy || json_array_set_new(messages, last, copy)) {
        json_decref(text);
        return qn_fail_nomem(sizeof mark);
    }
    *final = text;
    return QN_OK;
}

/* ---- the cut ------------------------------------------------------------------------------------------- */

/* As Python's str.isspace. */
static int is_space(uint32_t cp)
{
    return qn_cp_is_space(cp) || (cp >= 28 && cp <= 31);
}

/* text[0..n) without white space at its end. */
static size_t trim_right(const char *text, size_t n)
{
    while (n) {
        size_t at = n - 1;
        while (at && n - at < 4 && ((unsigned char)text[at] & 0xc0) == 0x80) at--;
        uint32_t cp = 0;
        if (!qn_utf8_decode(text + at, n - at, &cp) || !is_space(cp)) break;
        n = at;
    }
    return n;
}

static size_t count_left(const char *text, size_t n)
{
    size_t at = 0;
    for (uint32_t cp; at < n;) {
        size_t bytes = qn_utf8_decode(text + at, n - at, &cp);
        if (!bytes || !is_space(cp)) break;
        at += bytes;
    }
    return at;
}

/* Where the bytes that end at n and come from the caller begin. */
static size_t begin_of_message(const qn_rendered *r, size_t n)
{
    for (size_t i = 0; i < r->n_segments; i++) {
        const qn_rendered_segment *s = &r->segments[i];
        if (s->offset < n && n <= s->offset + s->n) return s->trusted ? n : s->offset;
    }
    return n;
}

static void cut(qn_rendered *r, size_t n)
{
    r->n = n;
    r->text[n] = 0;
    while (r->n_segments && r->segments[r->n_segments - 1].offset >= n) r->n_segments--;
    if (r->n_segments) r->segments[r->n_segments - 1].n = n - r->segments[r->n_segments - 1].offset;
    while (r->n_generations && r->generations[r->n_generations - 1].offset >= n) r->n_generations--;
    for (size_t i = 0; i < r->n_generations; i++)
        if (r->generations[i].offset + r->generations[i].n > n)
            r->generations[i].n = n - r->generations[i].offset;
}

qn_status qn_chat_continue_cut(qn_rendered *r, const json_t *final)
{
    const char *text = json_string_value(final);
    size_t at = r->n < MARK ? 0 : r->n - MARK + 1, n_text = json_string_length(final), end;
    while (at && memcmp(r->text + at - 1, mark, MARK) != 0) at--;
    if (at) {
        size_t n = --at;
        if (r->n - at <= MARK || r->text[at + MARK] != ' ') {
            size_t from = begin_of_message(r, at);
            n = from + trim_right(r->text + from, at - from);
        }
        cut(r, n);
        end = trim_right(r->text, n);
        n_text = trim_right(text, n_text);
        size_t left = count_left(text, n_text);
        text += left;
        n_text -= left;
        if (n_text <= end && memcmp(r->text + end - n_text, text, n_text) == 0) return QN_OK;
    }
    return qn_fail(QN_E_ARG, "the last message cannot be continued: the model's chat template does not show "
                             "its text as it is");
}
