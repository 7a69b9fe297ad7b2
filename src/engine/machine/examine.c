#include "engine/machine/examine.h"

#include <math.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "model/weights/weight_experts.h"
#include "model/weights/weights.h"

/* Elements by their type's name; types beyond so many are not counted. */
enum { TYPES_MAX = 64 };
typedef struct {
    struct {
        const char *name;
        int64_t n_elements;
    } types[TYPES_MAX];
    int n;
} type_counts;

int qn_examine_bits(const char *type_name)
{
    int bits = 0;
    if (strchr(type_name, ' ')) return 0; /* "number 77": a type that has no name */
    while (*type_name && (*type_name < '0' || *type_name > '9')) type_name++;
    for (; *type_name >= '0' && *type_name <= '9' && bits < 100; type_name++)
        bits = bits * 10 + (*type_name - '0');
    return bits;
}

/* The next tensor in use behind (*role, *layer), which begin at (0, 0); NULL after the last. */
static const qn_tensor_view *next(const qn_weights *w, const qn_model_config *c, int *role, int64_t *layer)
{
    while (*layer < c->num_hidden_layers) {
        int r = (*role)++;
        if (r == QN_WEIGHT_ROLE_COUNT) {
            *role = QN_WEIGHT_MODEL_COUNT;
            ++*layer;
            continue;
        }
        if (r == QN_WEIGHT_LM_HEAD && qn_weights_tied(w)) continue;
        const qn_tensor_view *v =
            qn_weights_get(w, (qn_weight_role)r, r < QN_WEIGHT_MODEL_COUNT ? 0 : *layer);
        if (v) return v;
    }
    /* Then the vision tower, counted on in *layer. */
    for (int64_t i; (i = *layer - c->num_hidden_layers) < qn_weights_vision_count(w);) {
        ++*layer;
        if (qn_weights_vision(w, i)) return qn_weights_vision(w, i);
    }
    return NULL;
}

static void count_type(type_counts *c, const qn_tensor_view *v)
{
    int i = 0;
    while (i < c->n && strcmp(c->types[i].name, v->type_name) != 0) i++;
    if (i == TYPES_MAX) return;
    if (i == c->n) {
        c->types[i].name = v->type_name;
        c->types[i].n_elements = 0;
        c->n++;
    }
    c->types[i].n_elements += v->n_elements;
}

static const char *most_common(const type_counts *c)
{
    int most = 0;
    for (int i = 1; i < c->n; i++)
        if (c->types[i].n_elements > c->types[most].n_elements) most = i;
    return c->n ? c->types[most].name : "";
}

const char *qn_examine_type(const qn_source *src)
{
    type_counts counts = {.n = 0};
    for (int64_t i = 0; i < qn_source_count(src); i++) count_type(&counts, qn_source_get(src, i));
    return most_common(&counts);
}

/* The i-th tensor of the files that a weight lies in: itself, or the one that it is a part of, then its
 * scales and biases; or all that experts lie in. NULL at the end. */
static const qn_tensor_view *stored(const qn_tensor_view *v, int64_t i)
{
    const qn_tensor_view *parts[] = {v, v->scales, v->biases};
    if (v->experts) return qn_weight_experts_stored(v->experts, i);
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
        if (parts[k] && i-- == 0) return parts[k]->whole ? parts[k]->whole : parts[k];
    return NULL;
}

/* Counts what no weight before lay in. */
static qn_status mark(qn_map *used, const qn_tensor_view *v, qn_examination *out)
{
    const qn_tensor_view *t;
    for (int64_t i = 0; (t = stored(v, i)); i++) {
        int seen;
        QN_TRY(qn_map_set(used, t->name, strlen(t->name), 1, NULL, &seen));
        if (seen) continue;
        out->size_bytes += t->size_bytes;
        out->n_tensors += i == 0 || v->experts != NULL;
    }
    return QN_OK;
}

/* What was read with the config is no weight, but used. */
static int is_used(const qn_map *used, const char *name)
{
    static const char *const of_config[] = {"rope_freqs.weight", "rope_factors_short.weight",
                                            "rope_factors_long.weight"};
    int64_t ignored;
    for (size_t i = 0; i < sizeof of_config / sizeof *of_config; i++)
        if (strcmp(name, of_config[i]) == 0) return 1;
    return qn_map_get(used, name, strlen(name), &ignored);
}

static qn_status examine(const qn_source *src, const qn_model_config *c, const qn_weights *w, qn_map *used,
                         qn_examination *out)
{
    type_counts counts = {.n = 0};
    int role = 0;
    int64_t layer = 0;
    const qn_tensor_view *v;
    *out = (qn_examination){.type_name = "", .tied = qn_weights_tied(w)};
    while ((v = next(w, c, &role, &layer))) {
        QN_TRY(mark(used, v, out));
        count_type(&counts, v);
    }
    for (int64_t i = 0; i < qn_source_count(src); i++) {
        v = qn_source_get(src, i);
        if (is_used(used, v->name)) continue;
        if (!out->n_unused++) out->unused = v->name;
        out->unused_bytes += v->size_bytes;
    }
    out->type_name = most_common(&counts);
    out->bits = qn_examine_bits(out->type_name);
    return QN_OK;
}

qn_status qn_examine_weights(const qn_source *src, const qn_model_config *c, qn_examination *out)
{
    qn_weights *w = NULL;
    qn_map *used = qn_map_new((size_t)qn_source_count(src));
    qn_examination found;
    qn_status status = used ? qn_weights_open(src, c, &w) : QN_E_NOMEM;
    if (status == QN_OK) status = examine(src, c, w, used, &found);
    if (status == QN_OK) *out = found;
    qn_weights_close(w);
    qn_map_free(used);
    return status;
}

static qn_status check_vector(const qn_tensor_view *v)
{
    float *values = qn_alloc_array((size_t)v->n_elements, sizeof *values);
    if (!values) return QN_E_NOMEM;
    qn_status status = qn_weights_vector(v, values);
    for (int64_t i = 0; i < v->n_elements && status == QN_OK; i++)
        if (!isfinite(values[i]))
            status = qn_fail(QN_E_FORMAT, "%s: tensor %s: element %lld is %s", v->file, v->name, (long long)i,
                             isnan(values[i]) ? "not a number" : "infinite");
    qn_free(values);
    return status;
}

qn_status qn_examine_vectors(const qn_source *src, const qn_model_config *c, int64_t *n)
{
    qn_weights *w = NULL;
    int role = 0;
    int64_t layer = 0, count = 0;
    const qn_tensor_view *v;
    QN_TRY(qn_weights_open(src, c, &w));
    qn_status status = QN_OK;
    while (status == QN_OK && (v = next(w, c, &role, &layer))) {
        if (v->n_dims != 1) continue;
        status = check_vector(v);
        count++;
    }
    qn_weights_close(w);
    if (status == QN_OK) *n = count;
    return status;
}

static int is_zero(const qn_tensor_view *v)
{
    const qn_tensor_view *parts[] = {v, v->scales, v->biases}, *t;
    for (int64_t i = 0; v->experts && (t = qn_weight_experts_stored(v->experts, i)); i++)
        if (!is_zero(t)) return 0;
    for (size_t i = 0; !v->experts && i < sizeof parts / sizeof *parts; i++) {
        const unsigned char *bytes = parts[i] ? parts[i]->data : NULL;
        for (size_t at = 0; bytes && at < parts[i]->size_bytes; at++)
            if (bytes[at]) return 0;
    }
    return 1;
}

qn_status qn_examine_zeros(const qn_source *src, const qn_model_config *c, int64_t *n, const char **name)
{
    qn_weights *w = NULL;
    int role = 0;
    int64_t layer = 0;
    const qn_tensor_view *v;
    QN_TRY(qn_weights_open(src, c, &w));
    *n = 0;
    *name = NULL;
    while ((v = next(w, c, &role, &layer))) {
        if (v->n_dims < 2 || !is_zero(v)) continue;
        const qn_tensor_view *kept =
            qn_source_find(src, stored(v, 0)->name); /* v may live no longer than w */
        if (!(*n)++ && kept) *name = kept->name;
    }
    qn_weights_close(w);
    return QN_OK;
}
