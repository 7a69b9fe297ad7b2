#include "cli/train/answer_check.h"

#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "cli/term/input.h"
#include "cli/term/out.h"
#include "constrain/validate/validate.h"
#include "train/data/dataset.h"

enum { SHOWN_MAX = 20 };

typedef struct {
    const qn_schema *schema;
    const char *name; /* of the schema's file */
    const char *file; /* of the data */
    qn_mask mask;
    int64_t line, n_answers, n_wrong, n_without; /* n_without: lines that have no answer to check */
} check;

/* The text behind the reasoning. */
static const char *skip_reasoning(const char *text)
{
    static const char close[] = "</think>";
    const char *at = strstr(text, close);
    return at ? at + strlen(close) : text;
}

static qn_status check_answer(check *c, const char *text)
{
    qn_schema_report report = {0};
    qn_status status = qn_schema_validate_text(c->schema, text, strlen(text), &report);
    c->n_answers++;
    const int is_wrong = status == QN_E_FORMAT || (status == QN_OK && !report.is_valid);
    if (is_wrong && c->n_wrong++ < SHOWN_MAX) {
        if (report.n_failures)
            qn_out_note("warning: %s:%lld: an answer does not satisfy %s: %s: %s: %s", c->file,
                        (long long)c->line, c->name,
                        report.failures[0].instance[0] ? report.failures[0].instance : "the whole",
                        report.failures[0].keyword, report.failures[0].message);
        else
            qn_out_note("warning: %s:%lld: an answer is no JSON: %s", c->file, (long long)c->line,
                        qn_last_error());
    }
    qn_schema_report_clear(&report);
    return is_wrong ? QN_OK : status;
}

static const char *content_of(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role || strcmp(role, "assistant") != 0 || json_array_size(json_object_get(message, "tool_calls")))
        return NULL;
    return json_string_value(json_object_get(message, "content"));
}

static qn_status check_messages(check *c, const json_t *messages)
{
    const size_t n = json_array_size(messages);
    const char *last = NULL;
    for (size_t i = 0; i < n; i++) {
        const char *content = content_of(json_array_get(messages, i));
        if (!content) continue;
        if (c->mask != QN_MASK_LAST) QN_TRY(check_answer(c, skip_reasoning(content)));
        last = content;
    }
    if (last && c->mask == QN_MASK_LAST) QN_TRY(check_answer(c, skip_reasoning(last)));
    c->n_without += !last;
    return QN_OK;
}

static qn_status check_line(check *c, const char *text, size_t n)
{
    json_t *value = NULL;
    qn_status status = qn_json_parse_lenient("line", text, n, &value);
    if (status != QN_OK) return status == QN_E_NOMEM ? status : QN_OK;
    const json_t *messages = json_object_get(value, "messages"),
                 *completion = json_object_get(value, "completion");
    if (json_is_array(messages) || json_is_array(completion))
        status = check_messages(c, json_is_array(messages) ? messages : completion);
    else if (json_is_string(completion))
        status = check_answer(c, skip_reasoning(json_string_value(completion)));
    else
        c->n_without++;
    json_decref(value);
    return status;
}

static qn_status check_file(check *c, const char *path)
{
    qn_buf text = {0};
    QN_TRY(qn_input_read(path, &text));
    qn_status status = QN_OK;
    c->file = path;
    c->line = c->n_answers = c->n_wrong = c->n_without = 0;
    for (const char *at = text.data, *end = at + text.length, *next; at < end && status == QN_OK;
         at = next + 1) {
        next = memchr(at, '\n', (size_t)(end - at));
        if (!next) next = end;
        c->line++;
        if (at[strspn(at, " \t\r")] != '\n' && next > at) status = check_line(c, at, (size_t)(next - at));
    }
    if (status == QN_OK && c->n_wrong)
        qn_out_note("warning: %s: %lld of %lld answers do not satisfy %s", path, (long long)c->n_wrong,
                    (long long)c->n_answers, c->name);
    if (status == QN_OK && c->n_without)
        qn_out_note("warning: %s: %lld lines have no answer that %s could be compared with", path,
                    (long long)c->n_without, c->name);
    qn_buf_free(&text);
    return status;
}

static qn_status check_splits(check *c, const char *data)
{
    static const qn_dataset_split splits[] = {QN_SPLIT_TRAIN, QN_SPLIT_VALID};
    for (size_t i = 0; i < 2; i++) {
        char *file = NULL;
        QN_TRY(qn_dataset_find(data, splits[i], &file));
        if (!file) continue;
        const qn_status status = check_file(c, file);
        qn_free(file);
        QN_TRY(status);
    }
    return QN_OK;
}

qn_status qn_answers_check(const char *data, qn_mask mask, const char *schema)
{
    qn_buf text = {0};
    qn_schema *opened = NULL;
    QN_TRY(qn_input_read(schema, &text));
    qn_status status = qn_schema_open(text.data, text.length, NULL, &opened);
    qn_buf_free(&text);
    if (status != QN_OK) return qn_fail_prefix(status, "%s", schema);
    check c = {.schema = opened, .name = schema, .mask = mask};
    status = check_splits(&c, data);
    qn_schema_close(opened);
    return status;
}
