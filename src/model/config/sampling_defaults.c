#include "model/config/sampling_defaults.h"

#include <jansson.h>
#include <string.h>

#include "base/buf.h"
#include "base/json/json.h"
#include "base/mem.h"

typedef struct {
    const json_t *object;
    qn_sampling_defaults *out;
    qn_buf said, refused; /* "temperature 0.7, ..."; "num_beams, ..." */
} reader;

static void say(qn_buf *b, const char *key)
{
    qn_buf_printf(b, "%s%s", b->length ? ", " : "", key);
}

/* A number in the range; `unset` else. */
static float read_number(reader *r, const char *key, double low, double high, float unset)
{
    const json_t *value = json_object_get(r->object, key);
    const double number = json_number_value(value);
    if (!value || json_is_null(value)) return unset;
    if (!json_is_number(value) || !(number >= low && number <= high)) {
        say(&r->refused, key);
        return unset;
    }
    say(&r->said, key);
    qn_buf_printf(&r->said, " %.6g", number);
    return (float)number;
}

/* ---- rows of ids ---------------------------------------------------------------------------------------- */

static int is_id(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) < INT32_MAX;
}

static int is_row(const json_t *row)
{
    const size_t n = json_array_size(row);
    for (size_t i = 0; i < n; i++)
        if (!is_id(json_array_get(row, i))) return 0;
    return n && n <= QN_BAD_WORD_TOKENS_MAX;
}

/* How many rows the key has; 0: none, or they are none that we take. */
static size_t count_rows(reader *r, const char *key, int of_rows)
{
    const json_t *list = json_object_get(r->object, key);
    const size_t n = json_array_size(list);
    size_t i = 0;
    while (i < n && (of_rows ? is_row(json_array_get(list, i)) : is_id(json_array_get(list, i)))) i++;
    if (!list || json_is_null(list) || (json_is_array(list) && !n)) return 0;
    const int fits = json_is_array(list) && i == n && n <= QN_BAD_WORDS_MAX;
    say(fits ? &r->said : &r->refused, key);
    if (fits) qn_buf_printf(&r->said, " (%zu)", n);
    return fits ? n : 0;
}

static int put_row(reader *r, const json_t *row, qn_ids *out)
{
    const size_t n = json_is_array(row) ? json_array_size(row) : 1;
    int32_t *ids = qn_arena_calloc(&r->out->arena, n, sizeof *ids);
    if (!ids) return 0;
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_is_array(row) ? json_array_get(row, i) : row);
    *out = (qn_ids){ids, (int64_t)n};
    return 1;
}

static qn_status read_bad_ids(reader *r)
{
    static const char *const keys[] = {"bad_words_ids", "suppress_tokens"};
    size_t n[2] = {count_rows(r, keys[0], 1), count_rows(r, keys[1], 0)}, done = 0;
    if (n[0] + n[1] > QN_BAD_WORDS_MAX) n[1] = QN_BAD_WORDS_MAX - n[0];
    qn_ids *rows = qn_arena_calloc(&r->out->arena, n[0] + n[1] + 1, sizeof *rows);
    if (!rows) return QN_E_NOMEM;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < n[k]; i++)
            if (!put_row(r, json_array_get(json_object_get(r->object, keys[k]), i), &rows[done++]))
                return QN_E_NOMEM;
    r->out->bad_ids = done ? rows : NULL;
    r->out->n_bad_ids = done;
    return QN_OK;
}

/* ---- what is not done ----------------------------------------------------------------------------------- */

/* Keys that change answers in transformers and that we do not have, with the number by which they do not. */
static void list_others(reader *r)
{
    static const struct {
        const char *key;
        double off, off_too;
    } rows[] = {
        {"begin_suppress_tokens", 0, 0},
        {"diversity_penalty", 0, 0},
        {"encoder_no_repeat_ngram_size", 0, 0},
        {"encoder_repetition_penalty", 1, 1},
        {"epsilon_cutoff", 0, 0},
        {"eta_cutoff", 0, 0},
        {"exponential_decay_length_penalty", 0, 0},
        {"forced_bos_token_id", -1, -1},
        {"forced_eos_token_id", -1, -1},
        {"guidance_scale", 1, 1},
        {"max_new_tokens", -1, -1},
        {"min_length", 0, 0},
        {"min_new_tokens", 0, 0},
        {"no_repeat_ngram_size", 0, 0},
        {"num_beam_groups", 1, 1},
        {"num_beams", 1, 1},
        {"num_return_sequences", 1, 1},
        {"penalty_alpha", 0, 0},
        {"sequence_bias", 0, 0},
        {"stop_strings", 0, 0},
        {"top_h", 0, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const json_t *value = json_object_get(r->object, rows[i].key);
        const double number = json_number_value(value);
        if (!value || json_is_null(value) || json_is_false(value)) continue;
        if (json_is_number(value) && (number == rows[i].off || number == rows[i].off_too)) continue;
        if ((json_is_array(value) && !json_array_size(value)) ||
            (json_is_object(value) && !json_object_size(value)))
            continue;
        say(&r->refused, rows[i].key);
    }
}

static qn_status read_keys(reader *r)
{
    qn_sampling_defaults *d = r->out;
    const json_t *sample = json_object_get(r->object, "do_sample");
    d->temperature = read_number(r, "temperature", 0, 1000, -1);
    d->top_p = read_number(r, "top_p", 0, 1, -1);
    d->top_k = (int32_t)read_number(r, "top_k", 0, INT32_MAX, -1);
    d->min_p = read_number(r, "min_p", 0, 1, 0);
    d->typical_p = read_number(r, "typical_p", 0, 1, 0);
    d->repeat_penalty = read_number(r, "repetition_penalty", 0.01, 100, 0);
    if (json_is_boolean(sample)) say(&r->said, json_is_true(sample) ? "do_sample true" : "do_sample false");
    if (json_is_false(sample)) d->temperature = 0;
    QN_TRY(read_bad_ids(r));
    list_others(r);
    if (r->refused.length) {
        qn_buf_printf(&r->said, "%snot applied: ", r->said.length ? "; " : "");
        qn_buf_append(&r->said, r->refused.data, r->refused.length);
    }
    if (r->said.status != QN_OK || r->refused.status != QN_OK) return QN_E_NOMEM;
    d->text = qn_arena_strndup(&d->arena, r->said.data ? r->said.data : "", r->said.length);
    return d->text ? QN_OK : QN_E_NOMEM;
}

qn_status qn_sampling_defaults_read(qn_source *src, qn_sampling_defaults *out)
{
    const char *path = qn_source_side_path(src, QN_SIDE_GENERATION_CONFIG), *text;
    size_t n;
    json_t *json = NULL;
    *out = (qn_sampling_defaults){.temperature = -1, .top_p = -1, .top_k = -1, .text = ""};
    if (!path) return QN_OK;
    QN_TRY(qn_source_side_text(src, QN_SIDE_GENERATION_CONFIG, &text, &n));
    QN_TRY(qn_json_parse_python(path, text, n, &json));
    reader r = {.object = json, .out = out};
    qn_status status = read_keys(&r);
    qn_buf_free(&r.said);
    qn_buf_free(&r.refused);
    json_decref(json);
    return status;
}

void qn_sampling_defaults_free(qn_sampling_defaults *d)
{
    qn_arena_clear(&d->arena);
    *d = (qn_sampling_defaults){0};
}
