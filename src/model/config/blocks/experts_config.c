#include "model/config/blocks/experts_config.h"

#include <stddef.h>
#include <string.h>

enum { EXPERTS_MAX = 4096, CHOSEN_MAX = 256, WIDTH_MAX = 1 << 24, LAYERS_MAX = 4096, LABEL_MAX = 160 };

/* The first of these names that the description has, be it as null; else the one that the family has a
 * default for, else the first. */
static const char *spelled(const qn_fields *f, const char *const *names)
{
    for (const char *const *n = names; *n; n++) {
        const json_t *value = qn_fields_get(f, *n);
        if (value && !json_is_null(value)) return *n;
    }
    for (const char *const *n = names; *n; n++)
        if (qn_fields_get(f, *n)) return *n;
    for (const char *const *n = names; *n; n++)
        for (const qn_field_default *d = f->defaults; d && d->name; d++)
            if (strcmp(d->name, *n) == 0) return *n;
    return names[0];
}

static const char *const count_names[] = {"num_experts", "num_local_experts", "n_routed_experts", NULL};
static const char *const chosen_names[] = {"num_experts_per_tok", "top_k_experts", "experts_per_token", NULL};

static qn_status read_sizes(const qn_family_experts *family, const qn_fields *f, qn_model_config *c)
{
    qn_experts_config *e = &c->experts;
    char label[LABEL_MAX], other[LABEL_MAX];
    const char *count = spelled(f, count_names), *chosen = spelled(f, chosen_names);
    QN_TRY(qn_fields_required_int(f, count, 1, EXPERTS_MAX, &e->num_experts));
    QN_TRY(qn_fields_required_int(f, chosen, 1, CHOSEN_MAX, &e->num_experts_per_tok));
    if (e->num_experts_per_tok > e->num_experts)
        return qn_fail(QN_E_FORMAT, "%s: %s is %lld, but %s is %lld", f->file,
                       qn_fields_label(f, chosen, label, sizeof label), (long long)e->num_experts_per_tok,
                       qn_fields_label(f, count, other, sizeof other), (long long)e->num_experts);
    /* Where experts have no width of their own, all of the block is said to be theirs. */
    e->moe_intermediate_size = c->intermediate_size;
    QN_TRY(qn_fields_int(f, "moe_intermediate_size", 1, WIDTH_MAX, &e->moe_intermediate_size, NULL));
    e->score = family->score;
    e->bias = family->bias;
    e->correction_bias = family->correction_bias;
    if (family->bias_key) QN_TRY(qn_fields_bool(f, family->bias_key, &e->correction_bias, NULL));
    e->router_norm = family->router_norm;
    e->expert_scale = family->expert_scale;
    e->scales_input = family->scales_input;
    e->swiglu_alpha = family->swiglu_alpha;
    if (family->swiglu_alpha > 0) {
        double limit = 0;
        QN_TRY(qn_fields_number(f, "swiglu_limit", 1e-3, 1e9, &limit, NULL));
        e->swiglu_limit = (float)limit;
    }
    return QN_OK;
}

/* A field of published files that transformers does not read; another value would be another routing. */
static qn_status check_known(const qn_fields *f, const char *name, const char *known)
{
    const char *value = known;
    char label[LABEL_MAX];
    QN_TRY(qn_fields_string(f, name, &value, NULL));
    if (strcmp(value, known) != 0)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s is \"%.40s\", which is not supported (known: %s)", f->file,
                       qn_fields_label(f, name, label, sizeof label), value, known);
    return QN_OK;
}

/* *grouped: 1 where the best groups are chosen first. */
static qn_status read_method(const qn_fields *f, int *grouped)
{
    static const char name[] = "topk_method";
    const char *method = "greedy";
    char label[LABEL_MAX];
    QN_TRY(qn_fields_string(f, name, &method, NULL));
    *grouped = strcmp(method, "group_limited_greedy") == 0;
    if (*grouped || strcmp(method, "greedy") == 0) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED,
                   "%s: %s is \"%.40s\", which is not supported (known: greedy, group_limited_greedy)",
                   f->file, qn_fields_label(f, name, label, sizeof label), method);
}

static qn_status read_routing(const qn_family_experts *family, const qn_fields *f, qn_experts_config *e)
{
    char label[LABEL_MAX], other[LABEL_MAX];
    double scale = 1;
    int grouped = 1;
    if (family->correction_bias) {
        QN_TRY(check_known(f, "scoring_func", "sigmoid"));
        QN_TRY(check_known(f, "topk_method", "noaux_tc"));
    }
    /* Sigmoids may all be 0; softmax has a share of 1 / num_experts at least. */
    e->topk_norm_eps = family->topk_norm_eps > 0      ? family->topk_norm_eps
                       : e->score == QN_SCORE_SIGMOID ? 1e-20f
                                                      : 0;
    e->norm_topk_prob = family->norm_topk_prob || (f->gguf_architecture && family->gguf_norm_topk_prob);
    if (!family->norm_topk_prob && !family->never_normed)
        QN_TRY(qn_fields_bool(f, "norm_topk_prob", &e->norm_topk_prob, NULL));
    QN_TRY(qn_fields_number(f, "routed_scaling_factor", 1e-6, 1e6, &scale, NULL));
    e->routed_scaling_factor = (float)scale;
    e->n_group = e->topk_group = 1;
    e->group_scores = family->group_scores ? family->group_scores : 2;
    if (family->method_groups && !f->gguf_architecture) {
        QN_TRY(read_method(f, &grouped));
        if (!grouped) return QN_OK;
    }
    QN_TRY(qn_fields_int(f, "n_group", 1, EXPERTS_MAX, &e->n_group, NULL));
    if (e->num_experts % e->n_group)
        return qn_fail(QN_E_FORMAT, "%s: %lld experts are not a multiple of %s %lld", f->file,
                       (long long)e->num_experts, qn_fields_label(f, "n_group", label, sizeof label),
                       (long long)e->n_group);
    QN_TRY(qn_fields_int(f, "topk_group", 1, e->n_group, &e->topk_group, NULL));
    int64_t each = e->num_experts / e->n_group;
    if (e->n_group > 1 && each < e->group_scores)
        return qn_fail(QN_E_FORMAT, "%s: %s is %lld: groups of %lld experts do not have two best ones",
                       f->file, qn_fields_label(f, "n_group", label, sizeof label), (long long)e->n_group,
                       (long long)each);
    if (e->topk_group * each < e->num_experts_per_tok)
        return qn_fail(QN_E_FORMAT, "%s: %s is %lld: that many groups hold only %lld experts, but %s is %lld",
                       f->file, qn_fields_label(f, "topk_group", label, sizeof label),
                       (long long)e->topk_group, (long long)(e->topk_group * each),
                       qn_fields_label(f, spelled(f, chosen_names), other, sizeof other),
                       (long long)e->num_experts_per_tok);
    return QN_OK;
}

static qn_status read_shared(const qn_family_experts *family, const qn_fields *f, qn_experts_config *e)
{
    int64_t n = 0;
    char label[LABEL_MAX];
    QN_TRY(qn_fields_int(f, "n_shared_experts", 0, EXPERTS_MAX, &n, NULL));
    e->shared_intermediate_size = n * e->moe_intermediate_size;
    QN_TRY(qn_fields_int(f, "shared_expert_intermediate_size", 0, WIDTH_MAX, &e->shared_intermediate_size,
                         NULL));
    if (e->shared_intermediate_size > WIDTH_MAX)
        return qn_fail(QN_E_FORMAT, "%s: %s is %lld, which gives a shared expert of size %lld", f->file,
                       qn_fields_label(f, "n_shared_experts", label, sizeof label), (long long)n,
                       (long long)e->shared_intermediate_size);
    e->shared_gate = family->shared_gate && e->shared_intermediate_size > 0;
    return QN_OK;
}

/* mlp_layer_types, "dense" or "sparse" for each layer; without it all but the first have experts. */
static qn_status read_listed_layers(const qn_family_experts *family, const qn_fields *f, qn_model_config *c)
{
    int64_t dense = 1;
    const json_t *list = qn_fields_get(f, "mlp_layer_types");
    char label[LABEL_MAX];
    const int none = !list || json_is_null(list);
    if (family->first_dense) QN_TRY(qn_fields_int(f, "first_k_dense_replace", 0, LAYERS_MAX, &dense, NULL));
    qn_fields_label(f, "mlp_layer_types", label, sizeof label);
    if (!none && (!json_is_array(list) || json_array_size(list) < (size_t)c->num_hidden_layers))
        return qn_fail(QN_E_FORMAT, "%s: %s: expected an array of num_hidden_layers (%lld) names", f->file,
                       label, (long long)c->num_hidden_layers);
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        const char *type =
            none ? (i < dense ? "dense" : "sparse") : json_string_value(json_array_get(list, (size_t)i));
        int sparse = type && strcmp(type, "sparse") == 0;
        if (!type || (!sparse && strcmp(type, "dense") != 0))
            return qn_fail(QN_E_FORMAT, "%s: %s[%lld] is neither \"dense\" nor \"sparse\"", f->file, label,
                           (long long)i);
        c->layers[i].has_experts = sparse;
        c->layers[i].has_mlp = !sparse;
    }
    return QN_OK;
}

/* Where the number of experts may be 0: MLPs of the size that the shared expert has. */
static qn_status read_none(const qn_fields *f, int *wanted, qn_model_config *c)
{
    static const char size[] = "shared_expert_intermediate_size";
    int64_t n = 0;
    QN_TRY(qn_fields_int(f, spelled(f, count_names), 0, EXPERTS_MAX, &n, NULL));
    *wanted = n > 0;
    if (n) return QN_OK;
    QN_TRY(qn_fields_required_int(f, size, 1, WIDTH_MAX, &c->intermediate_size));
    for (int64_t i = 0; i < c->num_hidden_layers; i++) c->layers[i].intermediate_size = c->intermediate_size;
    return QN_OK;
}

/* A field that makes experts another block where it is set. */
static qn_status refuse_latents(const qn_fields *f)
{
    static const char name[] = "moe_latent_size";
    int64_t n = 0;
    int found = 0;
    char label[LABEL_MAX];
    QN_TRY(qn_fields_int(f, name, 1, WIDTH_MAX, &n, &found));
    if (!found) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: %s is %lld: experts over latents are not supported", f->file,
                   qn_fields_label(f, name, label, sizeof label), (long long)n);
}

/* Layers with experts: all but the first ones, all but those that are listed, and of the rest each step-th.
 */
/* *list: an array of layers, or NULL or null. */
static qn_status read_numbers(const qn_fields *f, const char *name, const qn_model_config *c,
                              const json_t **list)
{
    char label[LABEL_MAX];
    *list = qn_fields_get(f, name);
    if (*list && !json_is_null(*list) && !json_is_array(*list))
        return qn_fail(QN_E_FORMAT, "%s: %s: expected an array of layers", f->file,
                       qn_fields_label(f, name, label, sizeof label));
    for (size_t i = 0; i < json_array_size(*list); i++) {
        const json_t *value = json_array_get(*list, i);
        json_int_t layer = json_is_integer(value) ? json_integer_value(value) : -1;
        if (layer < 0 || layer >= c->num_hidden_layers)
            return qn_fail(QN_E_FORMAT, "%s: %s[%zu] is not a layer from 0 to %lld", f->file,
                           qn_fields_label(f, name, label, sizeof label), i,
                           (long long)c->num_hidden_layers - 1);
    }
    return QN_OK;
}

static qn_status read_layers(const qn_family_experts *family, const qn_fields *f, qn_model_config *c)
{
    int64_t dense = 0, step = 1, frequency = 1;
    char label[LABEL_MAX];
    const json_t *dense_ones, *named = NULL;
    QN_TRY(qn_fields_int(f, "first_k_dense_replace", 0, LAYERS_MAX, &dense, NULL));
    QN_TRY(qn_fields_int(f, "decoder_sparse_step", 1, LAYERS_MAX, &step, NULL));
    QN_TRY(qn_fields_int(f, "moe_layer_freq", 1, LAYERS_MAX, &frequency, NULL));
    if (frequency != 1)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s is %lld, which is not supported (known: 1)", f->file,
                       qn_fields_label(f, "moe_layer_freq", label, sizeof label), (long long)frequency);
    for (int64_t i = 0; i < c->num_hidden_layers; i++)
        c->layers[i].has_experts = i >= dense && (i + 1) % step == 0;
    QN_TRY(read_numbers(f, "mlp_only_layers", c, &dense_ones));
    for (size_t i = 0; i < json_array_size(dense_ones); i++)
        c->layers[json_integer_value(json_array_get(dense_ones, i))].has_experts = 0;
    if (family->named_layers) QN_TRY(read_numbers(f, "moe_layers", c, &named));
    for (int64_t i = 0; i < c->num_hidden_layers && json_is_array(named); i++) c->layers[i].has_experts = 0;
    for (size_t i = 0; i < json_array_size(named); i++)
        c->layers[json_integer_value(json_array_get(named, i))].has_experts = 1;
    for (int64_t i = 0; i < c->num_hidden_layers; i++)
        c->layers[i].has_mlp = !c->layers[i].has_experts || family->beside_mlp;
    return QN_OK;
}

qn_status qn_experts_config_read(const qn_family *family, const qn_fields *f, qn_model_config *c)
{
    const qn_family_experts *experts = family->experts;
    int wanted = 1;
    if (experts && f->gguf_architecture &&
        (experts->only_if || family->single_blocks)) { /* which has no such field */
        const json_t *count = qn_fields_get(f, count_names[0]);
        wanted = count && json_integer_value(count) != 0;
    } else if (experts && experts->only_if) {
        wanted = 0;
        QN_TRY(qn_fields_bool(f, experts->only_if, &wanted, NULL));
    }
    if (family->single_blocks) QN_TRY(refuse_latents(f));
    if (experts && experts->optional) QN_TRY(read_none(f, &wanted, c));
    if (experts && !wanted && experts->optional) return QN_OK;
    if (experts && wanted) {
        QN_TRY(read_sizes(experts, f, c));
        QN_TRY(read_routing(experts, f, &c->experts));
        QN_TRY(read_shared(experts, f, &c->experts));
        if (family->single_blocks) return QN_OK; /* the list of layers has said it */
        return experts->listed_layers && !f->gguf_architecture ? read_listed_layers(experts, f, c)
                                                               : read_layers(experts, f, c);
    }
    int64_t n = 0;
    char label[LABEL_MAX];
    const char *name = spelled(f, count_names);
    if (!experts) QN_TRY(qn_fields_int(f, name, 0, 65536, &n, NULL));
    if (n == 0) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: %s is %lld: a mixture of experts is not supported for this family",
                   f->file, qn_fields_label(f, name, label, sizeof label), (long long)n);
}
