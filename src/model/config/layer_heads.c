#include "model/config/layer_heads.h"

#include <stdio.h>

enum { HEADS_MAX = 1 << 16, LABEL_MAX = 160 };

static const char global_head_dim[] = "global_head_dim";

/* The head_dim that the query projection of the first layer of a kind has; 0: there is none to look at. */
static int64_t seen_head_dim(const qn_source *src, const qn_family *family, const qn_model_config *c,
                             qn_layer_kind kind)
{
    int64_t i = 0;
    while (i < c->num_hidden_layers && c->layers[i].kind != kind) i++;
    const qn_tensor_view *q =
        i < c->num_hidden_layers ? qn_family_find_weight(family, src, QN_WEIGHT_Q, i, NULL) : NULL;
    if (!q || q->n_dims != 2 || q->shape[0] % c->num_attention_heads) return 0;
    int64_t head_dim = q->shape[0] / c->num_attention_heads;
    return head_dim <= HEADS_MAX ? head_dim : 0;
}

/* GGUF says nowhere that values are keys: 1 where the first full layer has a projection of keys and none of
 * values. */
static int lacks_values(const qn_family *family, const qn_source *src, const qn_model_config *c)
{
    int64_t i = 0;
    while (i < c->num_hidden_layers && c->layers[i].kind != QN_LAYER_FULL) i++;
    return i < c->num_hidden_layers && qn_family_find_weight(family, src, QN_WEIGHT_K, i, NULL) &&
           !qn_family_find_weight(family, src, QN_WEIGHT_V, i, NULL);
}

/* Full layers may have heads of another size, global_head_dim, and another number of key heads. As said, else
 * what the query projection has, else the family's, else those of the other layers. */
static qn_status read_full_layers(const qn_source *src, const qn_family *family, const qn_fields *f,
                                  qn_model_config *c)
{
    static const char groups[] = "num_global_key_value_heads";
    char label[LABEL_MAX];
    int found = 0, value_is_key = 0;
    int64_t head_dim = 0, kv_heads = c->num_key_value_heads, seen;
    QN_TRY(qn_fields_int(f, global_head_dim, 1, HEADS_MAX, &head_dim, &found));
    if (found && !qn_fields_get(f, global_head_dim) && (seen = seen_head_dim(src, family, c, QN_LAYER_FULL)))
        head_dim = seen;
    if (found && !qn_fields_get(f, "head_dim") && (seen = seen_head_dim(src, family, c, QN_LAYER_SLIDING)))
        c->head_dim = seen;
    if (!found) head_dim = c->head_dim;
    QN_TRY(qn_fields_bool(f, "attention_k_eq_v", &value_is_key, NULL));
    if (f->gguf_architecture && found) value_is_key = lacks_values(family, src, c);
    /* As in the reference, without the one the other is not looked at. */
    if (value_is_key || f->gguf_architecture || family->layer_heads)
        QN_TRY(qn_fields_int(f, groups, 1, HEADS_MAX, &kv_heads, NULL));
    if (c->num_attention_heads % kv_heads)
        return qn_fail(QN_E_FORMAT, "%s: num_attention_heads %lld is not a multiple of %s %lld", f->file,
                       (long long)c->num_attention_heads, qn_fields_label(f, groups, label, sizeof label),
                       (long long)kv_heads);
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        qn_layer_config *l = &c->layers[i];
        int full = l->kind == QN_LAYER_FULL;
        l->head_dim = l->v_head_dim = full ? head_dim : c->head_dim;
        l->num_key_value_heads = full ? kv_heads : c->num_key_value_heads;
        l->value_is_key = full && value_is_key;
    }
    return QN_OK;
}

/* What per_layer_config says of one layer. Heads of another size than those of its kind would turn otherwise. */
static qn_status read_one_layer(const qn_fields *own, qn_model_config *c, int64_t i)
{
    qn_layer_config *l = &c->layers[i];
    int64_t head_dim = l->head_dim, kv_heads = l->num_key_value_heads;
    char label[LABEL_MAX];
    QN_TRY(qn_fields_int(own, "head_dim", 1, HEADS_MAX, &head_dim, NULL));
    QN_TRY(qn_fields_int(own, "num_key_value_heads", 1, HEADS_MAX, &kv_heads, NULL));
    if (head_dim != l->head_dim)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s of layer %lld is %lld, but layers of its kind have %lld",
                       own->file, qn_fields_label(own, "head_dim", label, sizeof label), (long long)i,
                       (long long)head_dim, (long long)l->head_dim);
    if (c->num_attention_heads % kv_heads)
        return qn_fail(QN_E_FORMAT, "%s: num_attention_heads %lld is not a multiple of %s %lld of layer %lld",
                       own->file, (long long)c->num_attention_heads,
                       qn_fields_label(own, "num_key_value_heads", label, sizeof label), (long long)kv_heads,
                       (long long)i);
    l->num_key_value_heads = kv_heads;
    return QN_OK;
}

/* per_layer_config: {"2": {"head_dim": 32, "num_key_value_heads": 1}}, as transformers 5 writes it. */
static qn_status read_each_layer(const qn_fields *f, qn_model_config *c)
{
    static const char name[] = "per_layer_config";
    qn_fields all;
    int found = 0;
    QN_TRY(qn_fields_object(f, name, "per_layer_config.", &all, &found));
    for (int64_t i = 0; found && i < c->num_hidden_layers; i++) {
        char number[24];
        qn_fields own;
        int has_own = 0;
        snprintf(number, sizeof number, "%lld", (long long)i);
        QN_TRY(qn_fields_object(&all, number, "per_layer_config.", &own, &has_own));
        if (has_own) QN_TRY(read_one_layer(&own, c, i));
    }
    return QN_OK;
}

/* The last num_kv_shared_layers layers read the keys and values of the last layer of their kind before them;
 * their MLP may be twice as wide. */
static qn_status read_sharing(const qn_fields *f, qn_model_config *c)
{
    static const char name[] = "num_kv_shared_layers";
    char label[LABEL_MAX];
    int64_t shared = 0;
    int wide = 0;
    QN_TRY(qn_fields_int(f, name, 0, c->num_hidden_layers - 1, &shared, NULL));
    QN_TRY(qn_fields_bool(f, "use_double_wide_mlp", &wide, NULL));
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        qn_layer_config *l = &c->layers[i];
        int64_t from = c->num_hidden_layers - shared - 1;
        l->kv_layer = i;
        if (i <= from || l->mixer != QN_MIXER_ATTENTION) continue;
        while (from >= 0 && (c->layers[from].kind != l->kind || c->layers[from].mixer != l->mixer)) from--;
        if (from < 0)
            return qn_fail(
                QN_E_FORMAT,
                "%s: %s is %lld, but no earlier layer has the kind of layer %lld, so there are no keys and "
                "values to share",
                f->file, qn_fields_label(f, name, label, sizeof label), (long long)shared, (long long)i);
        l->kv_layer = from;
        if (wide) l->intermediate_size *= 2;
    }
    return QN_OK;
}

qn_status qn_layer_heads_read(const qn_source *src, const qn_family *family, const qn_fields *f,
                              qn_model_config *c)
{
    QN_TRY(read_full_layers(src, family, f, c));
    QN_TRY(read_each_layer(f, c));
    return read_sharing(f, c);
}
