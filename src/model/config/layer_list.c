#include "model/config/layer_list.h"

#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"

enum { LABEL_MAX = 160 };

static const char full[] = "full_attention", sliding[] = "sliding_attention", chunked[] = "chunked_attention",
                  linear[] = "linear_attention", indexed[] = "indexed_attention", conv[] = "conv",
                  mlp[] = "mlp", moe[] = "moe";
static const char letters_name[] = "hybrid_override_pattern";
/* What the reference's class takes for a list that is absent. */
static const char letters_otherwise[] = "ME*-";

const char *qn_layer_list_recurrent(const qn_family *family)
{
    return family->recurrent == QN_MIXER_SHORT_CONV ? conv : linear;
}

/* A list of n_layers names: names[i] of layer i; NULL fails. */
static qn_status list_of(int64_t n_layers, const char *(*name)(const void *of, int64_t i), const void *of,
                         json_t **made)
{
    json_t *list = json_array();
    for (int64_t i = 0; list && i < n_layers; i++)
        if (json_array_append_new(list, json_string(name(of, i)))) {
            json_decref(list);
            list = NULL;
        }
    if (!list) return qn_fail_nomem((size_t)n_layers * sizeof *list);
    *made = list;
    return QN_OK;
}

static const char *name_in_turn(const void *of, int64_t i)
{
    (void)of;
    return i % 4 == 2 ? full : i % 4 == 0 && i > 0 ? sliding : conv;
}

/* 1 where `indices`, NULL or an array of numbers, has i. */
static int names_index(const json_t *indices, int64_t i)
{
    for (size_t k = 0; k < json_array_size(indices); k++)
        if (json_integer_value(json_array_get(indices, k)) == i) return 1;
    return 0;
}

static const char *name_by_index(const void *of, int64_t i)
{
    const json_t *indices = of;
    return names_index(indices, i) ? full : conv;
}

static const char *name_linear(const void *of, int64_t i)
{
    (void)of;
    (void)i;
    return linear;
}

/* NULL: an unknown letter. */
static const char *of_letter(char letter)
{
    return letter == 'M' ? linear : letter == '*' ? full : letter == '-' ? mlp : letter == 'E' ? moe : NULL;
}

static const char *name_by_letter(const void *of, int64_t i)
{
    const char *letters = of;
    return of_letter(letters[i]);
}

static const char *name_full(const void *of, int64_t i)
{
    (void)of;
    (void)i;
    return full;
}

static qn_status check_indices(const qn_fields *f, const char *name, const json_t *indices)
{
    char label[LABEL_MAX];
    qn_fields_label(f, name, label, sizeof label);
    if (!json_is_array(indices))
        return qn_fail(QN_E_FORMAT, "%s: %s: expected an array of layers", f->file, label);
    for (size_t i = 0; i < json_array_size(indices); i++)
        if (!json_is_integer(json_array_get(indices, i)))
            return qn_fail(QN_E_FORMAT, "%s: %s[%zu] is not a layer", f->file, label, i);
    return QN_OK;
}

static const char *name_fourth_full(const void *of, int64_t i)
{
    (void)of;
    return i && i % 4 == 0 ? full : linear;
}

static const char *name_by_number(const void *of, int64_t i)
{
    const json_t *numbers = of;
    return names_index(numbers, i + 1) ? full : linear;
}

/* Two lists that name each layer once, from 1 on. */
static qn_status by_attn_config(const qn_fields *f, int64_t n_layers, json_t **made)
{
    static const char attends[] = "full_attn_layers", recurs[] = "kda_layers";
    qn_fields own = {.path = ""};
    int found = 0;
    QN_TRY(qn_fields_object(f, "linear_attn_config", "linear_attn_config.", &own, &found));
    const json_t *full_ones = found ? qn_fields_get(&own, attends) : NULL,
                 *linear_ones = found ? qn_fields_get(&own, recurs) : NULL;
    if (!full_ones || !linear_ones) return list_of(n_layers, name_fourth_full, NULL, made);
    QN_TRY(check_indices(&own, attends, full_ones));
    QN_TRY(check_indices(&own, recurs, linear_ones));
    for (int64_t i = 1; i <= n_layers; i++)
        if (names_index(full_ones, i) == names_index(linear_ones, i))
            return qn_fail(QN_E_FORMAT, "%s: linear_attn_config names layer %lld %s", f->file, (long long)i,
                           names_index(full_ones, i) ? "twice" : "nowhere");
    return list_of(n_layers, name_by_number, full_ones, made);
}

static qn_status by_indices(const qn_fields *f, int64_t n_layers, json_t **made)
{
    static const char name[] = "full_attn_idxs";
    const json_t *indices = qn_fields_get(f, name);
    if (!indices || json_is_null(indices)) return list_of(n_layers, name_full, NULL, made);
    QN_TRY(check_indices(f, name, indices));
    return list_of(n_layers, name_by_index, indices, made);
}

static qn_status read_letters(const qn_fields *f, const char **letters)
{
    char label[LABEL_MAX];
    *letters = letters_otherwise;
    QN_TRY(qn_fields_string(f, letters_name, letters, NULL));
    for (const char *at = *letters; *at; at++)
        if (!of_letter(*at))
            return qn_fail(QN_E_UNSUPPORTED,
                           "%s: %s has the letter '%c', which is not supported (known: M * - E)", f->file,
                           qn_fields_label(f, letters_name, label, sizeof label), *at);
    return QN_OK;
}

qn_status qn_layer_list_count(const qn_fields *f, int64_t max, int64_t *n)
{
    static const char name[] = "layer_types";
    const json_t *types = qn_fields_get(f, name);
    const char *letters;
    char label[LABEL_MAX];
    const int is_list = json_is_array(types);
    QN_TRY(read_letters(f, &letters));
    const size_t count = is_list ? json_array_size(types) : strlen(letters);
    if (count < 1 || count > (size_t)max)
        return qn_fail(QN_E_FORMAT, "%s: %s has %zu layers, expected 1 to %lld", f->file,
                       qn_fields_label(f, is_list ? name : letters_name, label, sizeof label), count,
                       (long long)max);
    *n = (int64_t)count;
    return QN_OK;
}

qn_status qn_layer_list_read(const qn_fields *f, const qn_family *family, int64_t n_layers,
                             const json_t **types, json_t **made)
{
    static const char name[] = "layer_types";
    const json_t *said = qn_fields_get(f, name);
    const char *letters;
    char label[LABEL_MAX];
    *made = NULL;
    if (family->recur == QN_RECUR_BESIDE) said = NULL;
    *types = said && !json_is_null(said) ? said : NULL;
    if (*types || family->recurrent == QN_MIXER_ATTENTION) return QN_OK;
    switch (family->recur) {
    case QN_RECUR_INTERVAL:
        return QN_OK;
    case QN_RECUR_BESIDE:
        QN_TRY(list_of(n_layers, name_full, NULL, made));
        break;
    case QN_RECUR_ATTN_CONFIG:
        QN_TRY(by_attn_config(f, n_layers, made));
        break;
    case QN_RECUR_EVERY:
        QN_TRY(list_of(n_layers, name_linear, NULL, made));
        break;
    case QN_RECUR_LETTERS:
        QN_TRY(read_letters(f, &letters));
        QN_TRY(list_of(n_layers, name_by_letter, letters, made));
        break;
    case QN_RECUR_INDEXED:
        QN_TRY(by_indices(f, n_layers, made));
        break;
    case QN_RECUR_TURNS:
        QN_TRY(list_of(n_layers, name_in_turn, NULL, made));
        break;
    case QN_RECUR_LISTED:
        return qn_fail(QN_E_FORMAT, "%s: %s is missing", f->file,
                       qn_fields_label(f, name, label, sizeof label));
    }
    *types = *made;
    return QN_OK;
}

int qn_layer_list_mixer(const qn_family *family, const char *name)
{
    if (family->index && strcmp(name, indexed) == 0) return QN_MIXER_ATTENTION;
    /* "attention" was the name before transformers 5. */
    if (strcmp(name, full) == 0 || strcmp(name, "attention") == 0 ||
        strcmp(name, qn_layer_list_narrow(family)) == 0)
        return QN_MIXER_ATTENTION;
    if (family->single_blocks && (strcmp(name, mlp) == 0 || strcmp(name, moe) == 0)) return QN_MIXER_NONE;
    /* "mamba" was the name before transformers 5. */
    if (family->recurrent == QN_MIXER_STATE_SPACE && strcmp(name, "mamba") == 0) return QN_MIXER_STATE_SPACE;
    if (family->recurrent != QN_MIXER_ATTENTION && strcmp(name, qn_layer_list_recurrent(family)) == 0)
        return (int)family->recurrent;
    return -1;
}

const char *qn_layer_list_narrow(const qn_family *family)
{
    return family->slide == QN_SLIDE_CHUNKS ? chunked : sliding;
}

const char *qn_layer_list_known(const qn_family *family)
{
    if (family->slide == QN_SLIDE_CHUNKS) return "full_attention, chunked_attention";
    if (family->recurrent == QN_MIXER_ATTENTION) return "full_attention, sliding_attention";
    if (family->index) return "full_attention, indexed_attention, linear_attention";
    if (family->single_blocks) return "full_attention, linear_attention, mlp, moe";
    return family->recurrent == QN_MIXER_SHORT_CONV ? "full_attention, sliding_attention, conv"
                                                    : "full_attention, sliding_attention, linear_attention";
}
