#include "cli/train/config_file.h"

#include <string.h>
#include <yaml.h>

#include "base/buf.h"
#include "cli/term/input.h"

enum { KEYS_MAX = 256, ITEMS_MAX = 1024 };

/* One file on its way into options. */
typedef struct {
    const char *name;
    yaml_parser_t parser;
    yaml_event_t event; /* the last one, while has_event */
    int has_event;
    const qn_arg_spec *spec;
    const char *not_here;
    void *options;
    qn_arena *texts;
    const qn_arg *seen[KEYS_MAX]; /* [n_seen], with their lines */
    int seen_line[KEYS_MAX];
    int n_seen;
} reading;

static int line_of(const reading *r)
{
    return (int)r->event.start_mark.line + 1;
}

/* FILE:LINE before the thread's message. */
static qn_status at_line(const reading *r, int line, qn_status status)
{
    return qn_fail_prefix(status, "%s:%d", r->name, line);
}

static void drop_event(reading *r)
{
    if (r->has_event) yaml_event_delete(&r->event);
    r->has_event = 0;
}

/* Anchors, aliases and tags are refused wherever they stand. */
static qn_status refuse_references(const reading *r)
{
    const yaml_event_t *e = &r->event;
    const void *anchor = NULL, *tag = NULL;
    if (e->type == YAML_ALIAS_EVENT) anchor = e->data.alias.anchor;
    if (e->type == YAML_SCALAR_EVENT) anchor = e->data.scalar.anchor, tag = e->data.scalar.tag;
    if (e->type == YAML_SEQUENCE_START_EVENT)
        anchor = e->data.sequence_start.anchor, tag = e->data.sequence_start.tag;
    if (e->type == YAML_MAPPING_START_EVENT)
        anchor = e->data.mapping_start.anchor, tag = e->data.mapping_start.tag;
    if (!anchor && !tag) return QN_OK;
    return at_line(
        r, line_of(r),
        qn_fail(QN_E_FORMAT, anchor ? "anchors and aliases are not supported" : "tags are not supported"));
}

static qn_status next_event(reading *r)
{
    drop_event(r);
    if (!yaml_parser_parse(&r->parser, &r->event)) {
        const yaml_parser_t *p = &r->parser;
        if (p->error == YAML_MEMORY_ERROR) return qn_fail(QN_E_NOMEM, "%s: out of memory", r->name);
        return qn_fail(QN_E_FORMAT, "%s:%zu: neither YAML nor JSON: %s", r->name,
                       (p->error == YAML_READER_ERROR ? p->mark.line : p->problem_mark.line) + 1,
                       p->problem ? p->problem : "it cannot be read");
    }
    r->has_event = 1;
    return refuse_references(r);
}

/* The scalar that the event is, its bytes kept. */
static qn_status keep_scalar(const reading *r, const char **out)
{
    const char *bytes = (const char *)r->event.data.scalar.value;
    const size_t n = r->event.data.scalar.length;
    if (memchr(bytes, 0, n)) return at_line(r, line_of(r), qn_fail(QN_E_FORMAT, "it has a NUL character"));
    *out = qn_arena_strndup(r->texts, bytes, n);
    return *out ? QN_OK : QN_E_NOMEM;
}

static int is_one_of(const char *text, const char *const *words)
{
    while (*words && strcmp(text, *words) != 0) words++;
    return *words != NULL;
}

static const char *const words_true[] = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", NULL};
static const char *const words_false[] = {"false", "False", "FALSE", "no",  "No",
                                          "NO",    "off",   "Off",   "OFF", NULL};
static const char *const words_null[] = {"null", "Null", "NULL", "~", "", NULL};

static int takes_list(const qn_arg *arg)
{
    return arg->kind == QN_ARG_LIST || (arg->kind == QN_ARG_TEXT && strcmp(arg->value, "LIST") == 0);
}

/* Is the scalar's type one that the option could have? What a number says is args.c's business. */
static qn_status check_type(const qn_arg *arg, const char *text, int is_plain)
{
    const int is_text = arg->kind == QN_ARG_TEXT || arg->kind == QN_ARG_LIST;
    const int is_bool = is_plain && (is_one_of(text, words_true) || is_one_of(text, words_false));
    const char *key = arg->name + 2;
    if (arg->kind == QN_ARG_FLAG && !is_bool)
        return qn_fail(QN_E_ARG, "%s: '%s' is neither true nor false", key, text);
    if (arg->kind == QN_ARG_FLAG || arg->kind == QN_ARG_CHOICE || arg->kind == QN_ARG_BYTES ||
        arg->kind == QN_ARG_LIMIT)
        return QN_OK;
    if (is_bool)
        return qn_fail(QN_E_ARG, "%s: expected a %s, not %s%s", key, is_text ? "text" : "number", text,
                       is_text ? " (quotes make it a text)" : "");
    if (!is_text && !is_plain)
        return qn_fail(QN_E_ARG, "%s: expected a number, not the text '%s'", key, text);
    return QN_OK;
}

static qn_status set_scalar(reading *r, const qn_arg *arg, void *options)
{
    const int is_plain = r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE, line = line_of(r);
    const char *text = NULL;
    QN_TRY(keep_scalar(r, &text));
    if (is_plain && is_one_of(text, words_null)) return QN_OK;
    qn_status status = check_type(arg, text, is_plain);
    if (status == QN_OK && arg->kind == QN_ARG_FLAG)
        *(int *)(void *)((char *)options + arg->offset) = is_one_of(text, words_true);
    else if (status == QN_OK)
        status = qn_args_set(arg, options, text);
    return status == QN_OK ? QN_OK : at_line(r, line, status);
}

/* The items up to the end of the list: each a value, or all of them with commas between. */
static qn_status set_list(reading *r, const qn_arg *arg, void *options)
{
    const int line = line_of(r);
    qn_buf joined = {0};
    qn_status status = QN_OK;
    int n = 0;
    if (!takes_list(arg))
        return at_line(r, line, qn_fail(QN_E_ARG, "%s: expected one value, not a list", arg->name + 2));
    for (; status == QN_OK; n++) {
        status = next_event(r);
        if (status != QN_OK || r->event.type == YAML_SEQUENCE_END_EVENT) break;
        if (r->event.type != YAML_SCALAR_EVENT || n == ITEMS_MAX) {
            status =
                at_line(r, line_of(r),
                        n == ITEMS_MAX ? qn_fail(QN_E_FULL, "%s: the list is too long", arg->name + 2)
                                       : qn_fail(QN_E_ARG, "%s: expected a list of words", arg->name + 2));
        } else if (arg->kind == QN_ARG_LIST) {
            status = set_scalar(r, arg, options);
        } else {
            const char *text = NULL;
            status = keep_scalar(r, &text);
            if (n) qn_buf_putc(&joined, ',');
            if (text) qn_buf_puts(&joined, text);
            if (status == QN_OK) status = joined.status;
        }
    }
    if (status == QN_OK && arg->kind != QN_ARG_LIST) {
        const char *text = qn_arena_strndup(r->texts, joined.data ? joined.data : "", joined.length);
        status = text ? qn_args_set(arg, options, text) : QN_E_NOMEM;
    }
    qn_buf_free(&joined);
    return status;
}

/* The option that the key names, which must not have stood here before. */
static qn_status find_key(reading *r, const char *key, const qn_arg **out, size_t *offset)
{
    const int line = line_of(r);
    const qn_arg *arg = qn_args_find(r->spec, key, strlen(key), offset);
    if (!arg) {
        arg = qn_args_nearest(r->spec, key, strlen(key));
        return at_line(r, line,
                       arg ? qn_fail(QN_E_ARG, "unknown key '%s'; did you mean %s?", key, arg->name + 2)
                           : qn_fail(QN_E_ARG, "unknown key '%s'", key));
    }
    if (r->not_here && strcmp(arg->name, r->not_here) == 0)
        return at_line(r, line, qn_fail(QN_E_ARG, "'%s' cannot be set in a file", key));
    for (int i = 0; i < r->n_seen; i++)
        if (r->seen[i] == arg)
            return at_line(r, line,
                           qn_fail(QN_E_ARG, "'%s' is already set in line %d", key, r->seen_line[i]));
    if (r->n_seen == KEYS_MAX) return at_line(r, line, qn_fail(QN_E_FULL, "there are too many keys"));
    r->seen[r->n_seen] = arg;
    r->seen_line[r->n_seen++] = line;
    *out = arg;
    return QN_OK;
}

static qn_status take_pair(reading *r)
{
    const qn_arg *arg = NULL;
    size_t offset = 0;
    if (r->event.type != YAML_SCALAR_EVENT)
        return at_line(r, line_of(r), qn_fail(QN_E_FORMAT, "expected a key, such as rank"));
    const char *key = NULL;
    QN_TRY(keep_scalar(r, &key));
    QN_TRY(find_key(r, key, &arg, &offset));
    QN_TRY(next_event(r));
    void *options = (char *)r->options + offset;
    if (r->event.type == YAML_SCALAR_EVENT) return set_scalar(r, arg, options);
    if (r->event.type == YAML_SEQUENCE_START_EVENT) return set_list(r, arg, options);
    return at_line(r, line_of(r),
                   qn_fail(QN_E_ARG, "%s: expected one value, not keys and values", arg->name + 2));
}

/* Up to the end of the one document. */
static qn_status take_document(reading *r)
{
    QN_TRY(next_event(r)); /* the stream */
    QN_TRY(next_event(r));
    if (r->event.type == YAML_STREAM_END_EVENT) return QN_OK; /* nothing but comments: nothing is said */
    QN_TRY(next_event(r));
    if (r->event.type == YAML_SCALAR_EVENT && r->event.data.scalar.length == 0) {
        /* "---" and nothing behind it */
    } else if (r->event.type != YAML_MAPPING_START_EVENT) {
        return at_line(r, line_of(r), qn_fail(QN_E_FORMAT, "expected keys and values, such as rank: 8"));
    } else {
        QN_TRY(next_event(r));
        while (r->event.type != YAML_MAPPING_END_EVENT) {
            QN_TRY(take_pair(r));
            QN_TRY(next_event(r));
        }
    }
    QN_TRY(next_event(r)); /* the document's end */
    QN_TRY(next_event(r));
    if (r->event.type == YAML_STREAM_END_EVENT) return QN_OK;
    return at_line(r, line_of(r), qn_fail(QN_E_FORMAT, "a second document starts here"));
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

/* Four hexadecimal digits behind "\\u"; -1: they are none. */
static int read_unit(const char *s, size_t n)
{
    int unit = 0;
    if (n < 6 || s[0] != '\\' || s[1] != 'u') return -1;
    for (int i = 2; i < 6; i++) {
        const char c = s[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return -1;
        unit = 16 * unit + digit;
    }
    return unit;
}

/* The one thing of JSON that YAML spells otherwise: a character of two units, "\\ud83c\\udf3e", has one
 * number there, "\\U0001f33e". */
static void join_units(const char *bytes, size_t n, qn_buf *out)
{
    for (size_t i = 0; i < n;) {
        const int high = read_unit(bytes + i, n - i),
                  low = high < 0 ? -1 : read_unit(bytes + i + 6, n - i - 6);
        if (high >= 0xd800 && high < 0xdc00 && low >= 0xdc00 && low < 0xe000) {
            qn_buf_printf(out, "\\U%08x",
                          0x10000u + ((unsigned)high - 0xd800) * 0x400u + ((unsigned)low - 0xdc00));
            i += 12;
        } else {
            const size_t taken = bytes[i] == '\\' && i + 1 < n ? 2 : 1;
            qn_buf_append(out, bytes + i, taken);
            i += taken;
        }
    }
}

qn_status qn_config_file_take(const char *name, const char *bytes, size_t n, const qn_arg_spec *spec,
                              const char *not_here, void *options, qn_arena *texts)
{
    reading r = {.name = name, .spec = spec, .not_here = not_here, .options = options, .texts = texts};
    qn_buf joined = {0};
    size_t first = 0;
    if (n > QN_CONFIG_FILE_BYTES_MAX)
        return qn_fail(QN_E_FULL, "%s: the file has %zu bytes, at most %d are allowed", name, n,
                       QN_CONFIG_FILE_BYTES_MAX);
    while (first < n && strchr(" \t\r\n", bytes[first]) && bytes[first]) first++;
    if (first < n && bytes[first] == '{') {
        join_units(bytes, n, &joined);
        if (joined.status != QN_OK) {
            qn_buf_free(&joined);
            return QN_E_NOMEM;
        }
        bytes = joined.data;
        n = joined.length;
    }
    qn_status status = QN_E_NOMEM;
    if (yaml_parser_initialize(&r.parser)) {
        yaml_parser_set_input_string(&r.parser, (const unsigned char *)bytes, n);
        status = take_document(&r);
        drop_event(&r);
        yaml_parser_delete(&r.parser);
    } else {
        qn_fail(status, "%s: out of memory", name);
    }
    qn_buf_free(&joined);
    return status;
}

qn_status qn_config_file_read(const char *path, const qn_arg_spec *spec, const char *not_here, void *options,
                              qn_arena *texts)
{
    qn_buf text = {0};
    qn_status status = qn_input_read_up_to(path, QN_CONFIG_FILE_BYTES_MAX, &text);
    if (status == QN_OK)
        status = qn_config_file_take(path, text.data ? text.data : "", text.length, spec, not_here, options,
                                     texts);
    qn_buf_free(&text);
    return status;
}
