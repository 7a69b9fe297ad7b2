#include "server/core/infill.h"

#include <quern/tokenizer.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* How families spell the marks: before, behind, gap; then of a repository and of a file in it, if there are any. */
static const struct marks {
    const char *prefix, *suffix, *middle, *repo, *file;
} known[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"}, /* Qwen, Gemma */
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", NULL, "<|file_separator|>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<repo_name>", "<file_sep>"}, /* StarCoder, SmolLM */
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>", NULL, NULL},                  /* SantaCoder */
    {"\xe2\x96\x81<PRE>", "\xe2\x96\x81<SUF>", "\xe2\x96\x81<MID>", NULL, NULL},   /* CodeLlama */
    {"<PRE>", "<SUF>", "<MID>", NULL, NULL},
    {"<|prefix|>", "<|suffix|>", "<|middle|>", NULL, NULL},
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", NULL, NULL}, /* GLM */
};

/* The id of a mark; -1: the model has no such token. */
static int32_t find_mark(const qn_model *model, const char *text)
{
    int32_t *ids = NULL, id = -1;
    int64_t n = 0;
    if (!text) return -1;
    if (qn_model_encode(model, text, strlen(text), &(qn_encode_options){.special = 1}, &ids, &n) == QN_OK &&
        n == 1)
        id = ids[0];
    qn_buffer_free(ids);
    return id;
}

typedef struct {
    int32_t prefix, suffix, middle, repo, file; /* -1: none */
} mark_ids;

static int find_marks(const qn_model *model, mark_ids *out)
{
    int found = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const mark_ids m = {find_mark(model, known[i].prefix), find_mark(model, known[i].suffix),
                            find_mark(model, known[i].middle), find_mark(model, known[i].repo),
                            find_mark(model, known[i].file)};
        if (m.prefix < 0 || m.suffix < 0 || m.middle < 0) continue;
        if (!found || (out->file < 0 && m.file >= 0)) *out = m;
        found = 1;
    }
    return found;
}

int qn_infill_is_known(const qn_model *model)
{
    mark_ids marks;
    return find_marks(model, &marks);
}

/* ---- the prompt ---------------------------------------------------------------------------------------- */

typedef struct {
    const qn_model *model;
    json_t *ids;
    qn_status status; /* the first failure sticks */
} writer;

static void put_id(writer *w, int32_t id)
{
    if (w->status == QN_OK && id >= 0 && json_array_append_new(w->ids, json_integer(id)))
        w->status = qn_fail_nomem(0);
}

/* Special tokens that are written in it stay plain text: it is a file's. */
static void put_text(writer *w, const char *text, size_t n_bytes, int bos)
{
    int32_t *ids = NULL;
    int64_t n = 0;
    if (w->status != QN_OK || (!n_bytes && !bos)) return;
    w->status = qn_model_encode(w->model, text, n_bytes, &(qn_encode_options){.bos = bos}, &ids, &n);
    for (int64_t i = 0; i < n; i++) put_id(w, ids[i]);
    qn_buffer_free(ids);
}

static void put_json(writer *w, const json_t *text)
{
    if (text) put_text(w, json_string_value(text), json_string_length(text), 0);
}

/* What the tokenizer puts before a text, where it does; what it puts behind would end the prompt. */
static void put_bos(writer *w)
{
    int32_t *with = NULL, *without = NULL;
    int64_t n_with = 0, n_without = 0;
    static const char probe[] = "a";
    if (w->status == QN_OK)
        w->status = qn_model_encode(w->model, probe, 1, &(qn_encode_options){.bos = 1}, &with, &n_with);
    if (w->status == QN_OK) w->status = qn_model_encode(w->model, probe, 1, NULL, &without, &n_without);
    for (int64_t i = 0; w->status == QN_OK && i < n_with && n_without && with[i] != without[0]; i++)
        put_id(w, with[i]);
    qn_buffer_free(with);
    qn_buffer_free(without);
}

static int put_extra(writer *w, const mark_ids *marks, const json_t *extra, const char *param,
                     qn_api_error *error)
{
    static const char plain[] = "\n\n--- snippet ---\n\n", project[] = "project\n", end[] = "\n";
    const size_t n = json_array_size(extra);
    char where[128];
    if (extra && !json_is_array(extra))
        return qn_api_fail(error, 400, "invalid_type", param, "%s must be an array of files", param);
    if (n > QN_INFILL_EXTRA_MAX)
        return qn_api_fail(error, 400, "invalid_value", param, "%s has %zu files, at most %d are allowed",
                           param, n, (int)QN_INFILL_EXTRA_MAX);
    if (n && marks->repo >= 0) {
        put_id(w, marks->repo);
        put_text(w, project, sizeof project - 1, 0);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *file = json_array_get(extra, i), *name = json_object_get(file, "filename"),
                     *text = json_object_get(file, "text");
        snprintf(where, sizeof where, "%s[%zu]", param, i);
        if (!json_is_string(text) || (name && !json_is_null(name) && !json_is_string(name)))
            return qn_api_fail(error, 400, "invalid_value", where,
                               "%s must be an object of a filename and a text", where);
        if (marks->file >= 0) {
            put_id(w, marks->file);
            put_json(w, json_is_string(name) ? name : NULL);
            put_text(w, end, sizeof end - 1, 0);
        } else {
            put_text(w, plain, sizeof plain - 1, 0);
        }
        put_json(w, text);
    }
    if (n && marks->file >= 0) {
        static const char last[] = "filename\n";
        put_id(w, marks->file);
        put_text(w, last, sizeof last - 1, 0);
    }
    return 0;
}

int qn_infill_make(const qn_model *model, const qn_infill *parts, const char *param, const char *extra_param,
                   json_t **out, qn_api_error *error)
{
    mark_ids marks;
    writer w = {model, json_array(), QN_OK};
    int refused = 0;
    if (!w.ids) return qn_api_fail_status(error, qn_fail_nomem(0));
    if (!find_marks(model, &marks))
        refused = qn_api_fail(
            error, 400, "unsupported", param,
            "%s is not supported: the model has no tokens that mark a gap (fill in the middle)", param);
    if (refused) goto out;
    put_bos(&w);
    refused = put_extra(&w, &marks, parts->extra, extra_param, error);
    put_id(&w, marks.prefix);
    put_json(&w, parts->prefix);
    put_id(&w, marks.suffix);
    put_json(&w, parts->suffix);
    put_id(&w, marks.middle);
    put_json(&w, parts->begun);
    if (!refused && w.status != QN_OK) refused = qn_api_fail_status(error, w.status);
out:
    if (!refused)
        *out = w.ids;
    else
        json_decref(w.ids);
    return refused;
}
