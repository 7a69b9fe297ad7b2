#include "cli/chat/chat_session.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes/base64.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "cli/term/input.h"
#include "cli/term/out.h"
#include "media/png_writer.h"

enum { FILE_BYTES_MAX = 64 << 20, MESSAGES_MIN = 16, PICTURES_MAX = 64 };

static const char *const roles[] = {"system", "user", "assistant"};

/* ---- pictures ---- */

size_t qn_chat_session_pictures(const qn_chat_session *s, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += s->n_images[i];
    return sum;
}

static void drop_pictures(qn_chat_session *s, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) qn_free((void *)s->pictures[i].rgb);
    if (begin < end)
        memmove(s->pictures + begin, s->pictures + end, (s->n_pictures - end) * sizeof *s->pictures);
    s->n_pictures -= end - begin;
}

void qn_chat_session_detach(qn_chat_session *s)
{
    drop_pictures(s, qn_chat_session_pictures(s, s->n_messages), s->n_pictures);
}

qn_status qn_chat_session_attach(qn_chat_session *s, qn_picture *picture)
{
    if (s->n_pictures == PICTURES_MAX)
        return qn_fail(QN_E_FULL, "a conversation has at most %d pictures; /clear forgets them",
                       (int)PICTURES_MAX);
    if (!s->pictures && !(s->pictures = qn_alloc_array(PICTURES_MAX, sizeof *s->pictures))) return QN_E_NOMEM;
    s->pictures[s->n_pictures++] = (qn_image){picture->rgb, picture->width, picture->height, 0};
    *picture = (qn_picture){0};
    return QN_OK;
}

/* ---- messages ---- */

void qn_chat_session_end(qn_chat_session *s)
{
    qn_chat_session_truncate(s, 0);
    qn_chat_session_detach(s);
    qn_free(s->pictures);
    s->pictures = NULL;
    qn_free(s->messages);
    qn_free(s->n_images);
    s->messages = NULL;
    s->n_images = NULL;
    s->capacity = 0;
}

/* The role with static storage; NULL: none of ours. */
static const char *find_role(const char *role)
{
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strcmp(roles[i], role) == 0) return roles[i];
    return NULL;
}

static int is_role(const qn_message *m, const char *role)
{
    return strcmp(m->role, role) == 0;
}

static qn_status reserve(qn_chat_session *s)
{
    if (s->n_messages < s->capacity) return QN_OK;
    size_t capacity = s->capacity ? 2 * s->capacity : MESSAGES_MIN;
    qn_message *messages = qn_realloc(s->messages, capacity * sizeof *messages);
    if (!messages) return QN_E_NOMEM;
    s->messages = messages;
    size_t *n_images = qn_realloc(s->n_images, capacity * sizeof *n_images);
    if (!n_images) return QN_E_NOMEM;
    s->n_images = n_images;
    s->capacity = capacity;
    return QN_OK;
}

static qn_status copy_content(const char *content, size_t n, char **out)
{
    size_t valid = qn_utf8_valid_prefix(content, n);
    if (valid < n) return qn_fail(QN_E_FORMAT, "not valid UTF-8 at byte %zu", valid);
    if (n && memchr(content, 0, n)) return qn_fail(QN_E_FORMAT, "the text has a NUL character");
    char *copy = qn_strndup(content, n);
    if (!copy) return QN_E_NOMEM;
    *out = copy;
    return QN_OK;
}

qn_status qn_chat_session_add(qn_chat_session *s, const char *role, const char *content, size_t n)
{
    char *copy = NULL;
    const char *known = find_role(role);
    if (!known)
        return qn_fail(QN_E_ARG, "role: '%.60s' is none of %s, %s and %s", role, roles[0], roles[1],
                       roles[2]);
    QN_TRY(reserve(s));
    QN_TRY(copy_content(content, n, &copy));
    s->n_images[s->n_messages] =
        strcmp(known, "user") == 0 ? s->n_pictures - qn_chat_session_pictures(s, s->n_messages) : 0;
    s->messages[s->n_messages++] = (qn_message){known, copy};
    return QN_OK;
}

void qn_chat_session_truncate(qn_chat_session *s, size_t keep)
{
    if (keep >= s->n_messages) return;
    drop_pictures(s, qn_chat_session_pictures(s, keep), qn_chat_session_pictures(s, s->n_messages));
    while (s->n_messages > keep) qn_free((char *)s->messages[--s->n_messages].content);
}

qn_status qn_chat_session_answer(qn_chat_session *s, size_t keep, const char *content, size_t n)
{
    qn_buf whole = {0};
    char *copy = NULL;
    QN_TRY(reserve(s));
    qn_buf_append(&whole, "", 0);
    for (size_t i = 0; i < n; i++) {
        size_t run = strnlen(content + i, n - i);
        qn_buf_append(&whole, content + i, run);
        i += run;
        if (i < n) qn_buf_puts(&whole, "\xef\xbf\xbd");
    }
    qn_status status = whole.status;
    if (status == QN_OK) status = copy_content(whole.data, whole.length, &copy);
    qn_buf_free(&whole);
    QN_TRY(status);
    qn_chat_session_truncate(s, keep);
    s->n_images[s->n_messages] = 0;
    s->messages[s->n_messages++] = (qn_message){find_role("assistant"), copy};
    return QN_OK;
}

const char *qn_chat_session_system(const qn_chat_session *s)
{
    return s->n_messages && is_role(&s->messages[0], "system") ? s->messages[0].content : NULL;
}

qn_status qn_chat_session_set_system(qn_chat_session *s, const char *text)
{
    char *copy = NULL;
    int has_one = qn_chat_session_system(s) != NULL;
    if (text[0] == 0) {
        if (!has_one) return QN_OK;
        qn_free((char *)s->messages[0].content);
        memmove(s->messages, s->messages + 1, --s->n_messages * sizeof *s->messages);
        memmove(s->n_images, s->n_images + 1, s->n_messages * sizeof *s->n_images);
        return QN_OK;
    }
    QN_TRY(reserve(s));
    QN_TRY(copy_content(text, strlen(text), &copy));
    if (has_one) {
        qn_free((char *)s->messages[0].content);
    } else {
        memmove(s->messages + 1, s->messages, s->n_messages * sizeof *s->messages);
        memmove(s->n_images + 1, s->n_images, s->n_messages * sizeof *s->n_images);
        s->n_images[0] = 0;
        s->n_messages++;
    }
    s->messages[0] = (qn_message){find_role("system"), copy};
    return QN_OK;
}

void qn_chat_session_clear(qn_chat_session *s)
{
    qn_chat_session_truncate(s, qn_chat_session_system(s) ? 1 : 0);
}

size_t qn_chat_session_asked(const qn_chat_session *s)
{
    size_t n = s->n_messages;
    while (n && !is_role(&s->messages[n - 1], "user")) n--;
    return n;
}

/* ---- the file ---- */

static const char data_url[] = "data:image/png;base64,";

static void write_picture(const qn_image *p, qn_buf *out)
{
    const qn_picture picture = {(uint8_t *)p->rgb, p->width, p->height};
    qn_buf file = {0};
    const qn_status status = qn_png_encode(&picture, &file);
    qn_buf_puts(out, "{\"type\": \"image_url\", \"image_url\": {\"url\": \"");
    qn_buf_puts(out, data_url);
    qn_base64_encode(file.data, file.length, out);
    qn_buf_puts(out, "\"}}, ");
    if (status != QN_OK) out->status = status;
    qn_buf_free(&file);
}

void qn_chat_session_write(const qn_chat_session *s, const char *model, qn_buf *out)
{
    qn_buf_puts(out, "{\n  \"model\": ");
    qn_buf_json_string(out, model, strlen(model));
    qn_buf_puts(out, ",\n  \"messages\": [");
    const qn_image *picture = s->pictures;
    for (size_t i = 0; i < s->n_messages; i++) {
        const qn_message *m = &s->messages[i];
        qn_buf_printf(out, "%s\n    {\"role\": \"%s\", \"content\": ", i ? "," : "", m->role);
        if (s->n_images[i]) qn_buf_putc(out, '[');
        for (size_t k = 0; k < s->n_images[i]; k++) write_picture(picture++, out);
        if (s->n_images[i]) qn_buf_puts(out, "{\"type\": \"text\", \"text\": ");
        qn_buf_json_string(out, m->content, strlen(m->content));
        qn_buf_puts(out, s->n_images[i] ? "}]}" : "}");
    }
    qn_buf_puts(out, s->n_messages ? "\n  ],\n" : "],\n");
    qn_chat_settings_write(&s->settings, "  ", out);
    qn_buf_puts(out, "}\n");
}

/* All parts but the last, which is the text. */
static qn_status take_pictures(qn_chat_session *s, const char *what, size_t i, const json_t *parts)
{
    const size_t n = strlen(data_url);
    for (size_t k = 0; k + 1 < json_array_size(parts); k++) {
        const json_t *value = json_object_get(json_object_get(json_array_get(parts, k), "image_url"), "url");
        const char *url = json_string_value(value);
        qn_picture picture = {0};
        qn_buf file = {0};
        if (!url || strncmp(url, data_url, n) != 0)
            return qn_fail(QN_E_FORMAT, "%s: messages[%zu].content[%zu]: no picture as /save writes it", what,
                           i, k);
        qn_status status = qn_base64_decode(url + n, json_string_length(value) - n, &file);
        if (status == QN_OK)
            status = qn_picture_decode(file.data ? file.data : "", file.length, NULL, &picture);
        qn_buf_free(&file);
        if (status == QN_OK) status = qn_chat_session_attach(s, &picture);
        qn_picture_free(&picture);
        if (status != QN_OK) return qn_fail_prefix(status, "%s: messages[%zu].content[%zu]", what, i, k);
    }
    return QN_OK;
}

static qn_status take_message(qn_chat_session *s, const char *what, size_t i, const json_t *message)
{
    const json_t *role = json_object_get(message, "role"), *content = json_object_get(message, "content");
    const char *key;
    json_t *value;
    if (!json_is_object(message)) return qn_fail(QN_E_FORMAT, "%s: messages[%zu]: not an object", what, i);
    json_object_foreach((json_t *)message, key, value)
    {
        if (strcmp(key, "role") != 0 && strcmp(key, "content") != 0)
            return qn_fail(QN_E_FORMAT, "%s: messages[%zu]: unknown field %.60s", what, i, key);
    }
    if (!json_is_string(role)) return qn_fail(QN_E_FORMAT, "%s: messages[%zu].role: not a text", what, i);
    if (!find_role(json_string_value(role)))
        return qn_fail(QN_E_FORMAT, "%s: messages[%zu].role: '%.60s' is none of %s, %s and %s", what, i,
                       json_string_value(role), roles[0], roles[1], roles[2]);
    if (json_is_array(content)) {
        if (strcmp(json_string_value(role), "user") != 0)
            return qn_fail(QN_E_FORMAT, "%s: messages[%zu].content: only the user's messages have pictures",
                           what, i);
        QN_TRY(take_pictures(s, what, i, content));
        content = json_object_get(json_array_get(content, json_array_size(content) - 1), "text");
    }
    if (!json_is_string(content))
        return qn_fail(QN_E_FORMAT, "%s: messages[%zu].content: not a text", what, i);
    qn_status status = qn_chat_session_add(s, json_string_value(role), json_string_value(content),
                                           json_string_length(content));
    return status == QN_OK ? QN_OK : qn_fail_prefix(status, "%s: messages[%zu].content", what, i);
}

static qn_status take_all(qn_chat_session *s, const char *what, const json_t *file)
{
    const json_t *messages = json_object_get(file, "messages");
    const char *key;
    json_t *value;
    if (!json_is_object(file)) return qn_fail(QN_E_FORMAT, "%s: not a JSON object", what);
    if (!messages) return qn_fail(QN_E_FORMAT, "%s: the field messages is missing", what);
    if (!json_is_array(messages)) return qn_fail(QN_E_FORMAT, "%s: messages: not a list", what);
    json_object_foreach((json_t *)file, key, value)
    {
        int known = 0;
        if (strcmp(key, "messages") == 0) continue;
        if (strcmp(key, "model") == 0) {
            if (!json_is_string(value)) return qn_fail(QN_E_FORMAT, "%s: model: not a text", what);
            continue;
        }
        QN_TRY(qn_chat_settings_take(what, key, value, &s->settings, &known));
        if (!known) return qn_fail(QN_E_FORMAT, "%s: unknown field %.60s", what, key);
    }
    for (size_t i = 0; i < json_array_size(messages); i++)
        QN_TRY(take_message(s, what, i, json_array_get(messages, i)));
    return QN_OK;
}

qn_status qn_chat_session_parse(qn_chat_session *s, const char *what, const char *text, size_t n)
{
    qn_chat_session read = {.settings = s->settings};
    json_t *file = NULL;
    QN_TRY(qn_json_parse(what, text, n, &file));
    qn_status status = take_all(&read, what, file);
    json_decref(file);
    if (status != QN_OK) {
        qn_chat_session_end(&read);
        return status;
    }
    qn_chat_session_end(s);
    *s = read;
    return QN_OK;
}

qn_status qn_chat_session_load(qn_chat_session *s, const char *path)
{
    struct stat info;
    qn_buf text = {0};
    if (stat(path, &info) != 0) return qn_fail(QN_E_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return qn_fail(QN_E_IO, "%s: not a regular file", path);
    if (info.st_size > FILE_BYTES_MAX)
        return qn_fail(QN_E_FULL, "%s: %lld bytes; a conversation has at most %d", path,
                       (long long)info.st_size, (int)FILE_BYTES_MAX);
    qn_status status = qn_input_read(path, &text);
    if (status == QN_OK) status = qn_chat_session_parse(s, path, text.data, text.length);
    qn_buf_free(&text);
    return status;
}

qn_status qn_chat_session_save(const qn_chat_session *s, const char *model, const char *path)
{
    struct stat info;
    qn_buf text = {0};
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return qn_fail(QN_E_IO, "%s: not a regular file", path);
    qn_chat_session_write(s, model, &text);
    qn_status status = text.status;
    if (status == QN_OK) status = qn_out_file(path, text.data, text.length, 1);
    qn_buf_free(&text);
    return status;
}
