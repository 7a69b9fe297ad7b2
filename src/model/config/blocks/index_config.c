#include "model/config/blocks/index_config.h"

#include <math.h>
#include <string.h>

#include "base/log.h"

enum { HEADS_MAX = 1 << 16, BLOCK_MAX = 1 << 12, TOP_MAX = 1 << 24, PERIOD_MAX = 1 << 20, LABEL_MAX = 160 };

static const char types_name[] = "indexer_types", pattern_name[] = "index_topk_pattern";

/* 1: own, 0: shared, -1: neither. */
static int has_own(const json_t *type)
{
    const char *name = json_string_value(type);
    if (name && strcmp(name, "full") == 0) return 1;
    return name && strcmp(name, "shared") == 0 ? 0 : -1;
}

static qn_status unknown(const qn_fields *f, const char *name, int64_t layer)
{
    char label[LABEL_MAX];
    return qn_fail(QN_E_FORMAT, "%s: %s[%lld] is neither \"full\" nor \"shared\"", f->file,
                   qn_fields_label(f, name, label, sizeof label), (long long)layer);
}

/* Which layers have an index of their own: a list says it, or a letter for each layer, or a period. */
typedef struct {
    const json_t *types; /* NULL: none */
    const char *letters; /* NULL: none */
    const char *name;    /* of the field */
    int64_t period, offset;
} owners;

static qn_status read_owners(const qn_fields *f, int64_t n_layers, owners *o)
{
    char label[LABEL_MAX];
    *o = (owners){.types = qn_fields_get(f, types_name), .name = types_name, .period = 1, .offset = 2};
    if (!o->types || json_is_null(o->types)) {
        o->name = pattern_name;
        o->types = qn_fields_get(f, pattern_name);
        o->letters = json_string_value(o->types);
        if (json_is_null(o->types)) o->types = NULL;
    }
    if (!o->types) {
        QN_TRY(qn_fields_int(f, "index_topk_freq", 0, PERIOD_MAX, &o->period, NULL));
        if (o->period < 1) o->period = 1;
        return qn_fields_int(f, "index_skip_topk_offset", -PERIOD_MAX, PERIOD_MAX, &o->offset, NULL);
    }
    const size_t n = o->letters ? strlen(o->letters) : json_array_size(o->types);
    if ((o->letters || json_is_array(o->types)) && n == (size_t)n_layers) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s: expected a list of num_hidden_layers (%lld) names", f->file,
                   qn_fields_label(f, o->name, label, sizeof label), (long long)n_layers);
}

static int owns(const owners *o, int64_t layer)
{
    if (o->letters) return o->letters[layer] == 'F' ? 1 : o->letters[layer] == 'S' ? 0 : -1;
    if (o->types) return has_own(json_array_get(o->types, (size_t)layer));
    const int64_t behind = layer - o->offset + 1;
    return behind < 0 || behind % o->period == 0;
}

/* GGUF files may say of a layer that its blocks have no size: readers of such files do without the index then. */
static int is_indexed(const qn_fields *f, int64_t layer)
{
    const json_t *list = f->gguf_architecture ? qn_fields_get(f, "indexed_layers") : NULL;
    char label[LABEL_MAX];
    if (!list || json_is_true(json_array_get(list, (size_t)layer))) return 1;
    qn_log(QN_LOG_WARNING,
           "%s: %s is 0 for layer %lld: its index is not used, and the layer attends to all positions",
           f->file, qn_fields_label(f, "compress_ratios", label, sizeof label), (long long)layer);
    return 0;
}

static qn_status read_layers(const qn_fields *f, qn_model_config *c)
{
    owners o;
    int64_t last = -1;
    QN_TRY(read_owners(f, c->num_hidden_layers, &o));
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        const int own = owns(&o, i);
        if (own < 0) return unknown(f, o.name, i);
        if (!qn_layer_attends(&c->layers[i]) || !is_indexed(f, i)) continue;
        if (own) last = i;
        if (last < 0)
            return qn_fail(QN_E_FORMAT, "%s: layer %lld shares the index of a layer before, but none has one",
                           f->file, (long long)i);
        c->layers[i].indexed = 1;
        c->layers[i].index_layer = last;
    }
    return QN_OK;
}

/* GGUF has a key for the epsilon of the norm of keys, which is fixed. */
static qn_status check_eps(const qn_fields *f)
{
    static const char name[] = "index_norm_eps";
    double eps = 1e-6;
    char label[LABEL_MAX];
    if (f->gguf_architecture) QN_TRY(qn_fields_number(f, name, 0, 1, &eps, NULL));
    if (fabs(eps - 1e-6) <= 1e-12) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: %s is %g, which is not supported (known: 1e-06)", f->file,
                   qn_fields_label(f, name, label, sizeof label), eps);
}

qn_status qn_index_config_read(const qn_fields *f, const qn_family *family, qn_model_config *c)
{
    static const char top[] = "index_topk", pool[] = "index_kpool";
    qn_index_config *x = &c->index;
    char label[LABEL_MAX], other[LABEL_MAX];
    int64_t key_heads = 1;
    int tail = 1;
    if (family->index == QN_INDEX_NONE) return QN_OK;
    if (family->index == QN_INDEX_GATED) QN_TRY(check_eps(f));
    if (f->gguf_architecture && family->index == QN_INDEX_MEAN && !qn_fields_get(f, pool)) {
        x->pool = family->index;
        for (int64_t i = 0; i < c->num_hidden_layers; i++)
            if (qn_layer_attends(&c->layers[i])) (void)is_indexed(f, i); /* which says so */
        return QN_OK;
    }
    QN_TRY(qn_fields_required_int(f, "index_n_heads", 1, HEADS_MAX, &x->index_n_heads));
    QN_TRY(qn_fields_required_int(f, "index_head_dim", 1, HEADS_MAX, &x->index_head_dim));
    QN_TRY(qn_fields_required_int(f, pool, 1, BLOCK_MAX, &x->index_kpool));
    QN_TRY(qn_fields_required_int(f, top, 1, TOP_MAX, &x->index_topk));
    QN_TRY(qn_fields_int(f, "indexer_kv_heads", 1, 1, &key_heads, NULL));
    QN_TRY(qn_fields_bool(f, "index_kpool_always_select_tail", &tail, NULL));
    if (x->index_topk % x->index_kpool)
        return qn_fail(QN_E_FORMAT, "%s: %s is %lld, expected a multiple of %s (%lld)", f->file,
                       qn_fields_label(f, top, label, sizeof label), (long long)x->index_topk,
                       qn_fields_label(f, pool, other, sizeof other), (long long)x->index_kpool);
    for (int i = 0; family->index == QN_INDEX_MEAN && i < c->n_rope; i++)
        if (c->rope[i].rotary_dim > x->index_head_dim)
            return qn_fail(QN_E_FORMAT,
                           "%s: %s is %lld, expected at least the %lld dimensions that are rotated", f->file,
                           qn_fields_label(f, "index_head_dim", label, sizeof label),
                           (long long)x->index_head_dim, (long long)c->rope[i].rotary_dim);
    x->pool = family->index;
    x->no_tail = !tail;
    return read_layers(f, c);
}

int64_t qn_index_channels(const qn_model_config *c)
{
    const qn_index_config *x = &c->index;
    if (x->pool == QN_INDEX_GATED) return 2 * x->index_head_dim * x->index_kpool;
    return x->index_head_dim + (c->rope[0].mrope_section[0] ? QN_ROPE_SECTIONS : 0);
}
