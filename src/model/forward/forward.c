#include "model/forward/forward.h"

#include <math.h>
#include <stdio.h>

#include "array/build.h"
#include "base/mem.h"
#include "model/forward/blocks/blocks.h"

/* What layers share of one run. */
typedef struct {
    qn_array *table[QN_ROPE_SETS];
    qn_array *query_scale;  /* [R, 1, 1]; NULL: none */
    qn_array *layer_inputs; /* NULL: none */
    qn_block_kv kv[QN_LAYER_GROUPS_MAX];
} common;

qn_array *qn_forward_weight(const qn_forward *f, qn_weight_role role, int64_t layer)
{
    const qn_trained_matrix *m = qn_trained_get(f->trained, role, layer);
    return m && m->weight ? m->weight : qn_parameters_get(f->parameters, role, layer);
}

static qn_array *feed_forward(qn_scope *s, const qn_forward *f, qn_array *x, int64_t i)
{
    const qn_layer_config *l = &f->config->layers[i];
    if (l->has_mlp && l->has_experts) return qn_block_mlp_and_experts(s, f, x, i);
    x = qn_block_norm(s, f, x, QN_WEIGHT_FFN_NORM, i);
    return l->has_experts ? qn_block_experts(s, f, x, i) : qn_block_mlp(s, f, x, i);
}

/* What a block reads of the stream x, or of several. */
static qn_array *read_stream(qn_scope *s, const qn_forward *f, qn_array *x, qn_hyper_place place, int64_t i,
                             qn_block_streams *of)
{
    return f->config->hyper.hc_count ? qn_block_hyper_read(s, f, x, place, i, of) : x;
}

static qn_array *add_to_stream(qn_scope *s, const qn_forward *f, qn_array *x, const qn_block_streams *of,
                               qn_array *h)
{
    h = qn_scale(s, h, f->config->residual_scale);
    return f->config->hyper.hc_count ? qn_block_hyper_write(s, f, of, h) : qn_add(s, x, h);
}

/* What the layer makes of its rows by looking at others. */
static qn_array *mixed(qn_scope *s, const qn_forward *f, qn_array *x, const qn_block_positions *at,
                       common *all, int64_t i)
{
    const qn_layer_config *l = &f->config->layers[i];
    qn_array *h;
    switch (l->mixer) {
    case QN_MIXER_NONE:
        break;
    case QN_MIXER_ATTENTION:
        h = qn_block_attention(s, f, qn_scale(s, x, f->config->attention_in_scale), at,
                               &all->kv[f->groups->group_of[i]], i);
        h = qn_scale(s, h, f->config->attention_out_scale);
        return l->beside_state_space ? qn_add(s, qn_block_state_space(s, f, x, i), h) : h;
    case QN_MIXER_STATE_SPACE:
        return qn_block_state_space(s, f, x, i);
    case QN_MIXER_LATENT:
        return qn_block_latent_attention(s, f, x, at, &all->kv[f->groups->group_of[i]], i);
    case QN_MIXER_CHANNEL_DELTA:
        return qn_block_channel_delta(s, f, x, i);
    case QN_MIXER_DELTA:
        return qn_block_gated_delta(s, f, x, i);
    case QN_MIXER_SHORT_CONV:
        return qn_block_short_conv(s, f, x, i);
    }
    return x;
}

/* The layer without what the per-layer input adds. */
static qn_array *blocks(qn_scope *s, const qn_forward *f, qn_array *x, common *all, int64_t i)
{
    int rope = f->config->layers[i].rope;
    const int is_unscaled = f->config->query_scale_no_rope && rope != QN_ROPE_NONE;
    const qn_block_positions at = {rope == QN_ROPE_NONE ? NULL : all->table[rope],
                                   is_unscaled ? NULL : all->query_scale};
    const qn_layer_config *l = &f->config->layers[i];
    qn_array *normed = x, *h;
    qn_block_streams of = {NULL, NULL, NULL};
    if (l->ngrams) x = qn_block_ngrams(s, f, x, i);
    if (l->mixer != QN_MIXER_NONE) {
        normed = read_stream(s, f, x, QN_HYPER_ATTN, i, &of);
        normed = qn_block_norm(s, f, normed, QN_WEIGHT_ATTN_NORM, i);
        h = mixed(s, f, normed, &at, all, i);
        x = add_to_stream(s, f, x, &of, qn_block_norm(s, f, h, QN_WEIGHT_POST_ATTN_NORM, i));
        x = qn_block_norm(s, f, x, QN_WEIGHT_SUM_ATTN_NORM, i);
    }
    if (f->config->laurel_rank > 0)
        x = qn_scale(s, qn_add(s, x, qn_block_laurel(s, f, normed, i)), 1 / sqrtf(2));
    if (l->has_mlp || l->has_experts) {
        h = f->config->parallel_blocks ? normed : read_stream(s, f, x, QN_HYPER_FFN, i, &of);
        h = feed_forward(s, f, h, i);
        x = add_to_stream(s, f, x, &of, qn_block_norm(s, f, h, QN_WEIGHT_POST_FFN_NORM, i));
        x = qn_block_norm(s, f, x, QN_WEIGHT_SUM_FFN_NORM, i);
    }
    return x;
}

static qn_array *layer(qn_scope *s, const qn_forward *f, qn_array *x, common *all, int64_t i)
{
    x = blocks(s, f, x, all, i);
    if (all->layer_inputs) x = qn_add(s, x, qn_block_layer_input(s, f, x, all->layer_inputs, i));
    qn_array *scale = qn_forward_weight(f, QN_WEIGHT_LAYER_SCALE, i);
    return scale ? qn_mul(s, x, scale) : x;
}

/* What the positions of rows multiply their queries by, [R, 1, 1]: config.h's query_scale_beta. */
static qn_array *query_scale(qn_scope *s, const qn_forward *f)
{
    const qn_model_config *c = f->config;
    if (c->query_scale_beta == 0) return NULL;
    qn_array *p = qn_astype(s, f->positions, QN_DTYPE_F32);
    if (c->query_scale_first != 0) p = qn_add(s, p, qn_scalar(s, c->query_scale_first));
    p = qn_unary(s, QN_PRIM_FLOOR, qn_div(s, p, qn_scalar(s, c->query_scale_positions)));
    p = qn_unary(s, QN_PRIM_LOG, qn_add(s, p, qn_scalar(s, 1)));
    p = qn_add(s, qn_scale(s, p, c->query_scale_beta), qn_scalar(s, 1));
    return qn_reshape_rows(s, p, 2, (int64_t[]){1, 1});
}

/* Later layers read keys and values, or the choice of blocks, that layer i made: what comes back from them joins what comes from the
 * layer itself, so it cannot be built anew for one of both. */
static int gives_kv(const qn_model_config *c, int64_t i)
{
    for (int64_t j = i + 1; j < c->num_hidden_layers; j++)
        if (c->layers[j].kv_layer == i || (c->layers[j].indexed && c->layers[j].index_layer == i)) return 1;
    return 0;
}

/* All layers over several streams. A gradient keeps all of them. */
static qn_array *over_streams(qn_scope *s, const qn_forward *f, qn_array *x, common *all)
{
    const qn_model_config *c = f->config;
    qn_array *streams[QN_ALTUP_INPUTS_MAX], *predicted[QN_ALTUP_INPUTS_MAX];
    char name[32] = "hidden.0";
    qn_block_altup_begin(s, f, x, streams);
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        streams[c->altup_active_idx] = qn_label(s, streams[c->altup_active_idx], name);
        qn_scope_prefix(s, "layer.%lld.", (long long)i);
        qn_block_altup_predict(s, f, streams, predicted, i);
        x = blocks(s, f, predicted[c->altup_active_idx], all, i);
        qn_block_altup_correct(s, f, predicted, x, all->layer_inputs, streams, i);
        qn_scope_prefix(s, "%s", "");
        snprintf(name, sizeof name, "hidden.%lld", (long long)i + 1);
    }
    streams[c->altup_active_idx] = qn_label(s, streams[c->altup_active_idx], name);
    return qn_block_altup_end(s, f, streams);
}

qn_array *qn_forward_embed(qn_scope *s, const qn_forward *f, qn_array **layer_inputs)
{
    const qn_model_config *c = f->config;
    qn_scope_prefix(s, "%s", "");
    qn_array *x = qn_block_embedding(s, f, f->ids);
    x = qn_scale(s, x, c->embedding_scale);
    if (c->plain_embed_norm) x = qn_rms_norm(s, x, NULL, c->rms_norm_eps, 0);
    if (f->embeds) {
        qn_array *is_text = qn_sub(s, qn_scalar(s, 1), f->is_embed), *embeds = f->embeds;
        if (c->vision.n_deepstack) embeds = qn_slice_last(s, embeds, 0, c->hidden_size);
        x = qn_add(s, qn_mul(s, x, is_text), qn_mul(s, embeds, f->is_embed));
    }
    if (f->types) x = qn_add(s, x, qn_take(s, qn_forward_weight(f, QN_WEIGHT_TYPE_EMBED, 0), f->types));
    if (f->places) x = qn_add(s, x, qn_take(s, qn_forward_weight(f, QN_WEIGHT_POSITION_EMBED, 0), f->places));
    x = qn_block_norm(s, f, x, QN_WEIGHT_EMBED_NORM, 0);
    if (!c->altup_num_inputs && !c->hyper.hc_count) x = qn_label(s, x, "hidden.0");
    *layer_inputs = qn_block_layer_inputs(s, f, x);
    return x;
}

static common make_common(qn_scope *s, const qn_forward *f)
{
    common all = {.layer_inputs = NULL};
    qn_scope_prefix(s, "%s", "");
    for (int i = 0; i < f->config->n_rope; i++) all.table[i] = qn_block_rope(s, f, i);
    all.query_scale = query_scale(s, f);
    return all;
}

/* What rows of pictures get behind layer i: of text it is 0. */
static qn_array *add_vision(qn_scope *s, const qn_forward *f, qn_array *x, int64_t i)
{
    const qn_model_config *c = f->config;
    if (!f->embeds || i >= c->vision.n_deepstack) return x;
    return qn_add(s, x, qn_slice_last(s, f->embeds, (1 + i) * c->hidden_size, c->hidden_size));
}

static qn_array *through_layers(qn_scope *s, const qn_forward *f, qn_array *x, common *all, int64_t begin,
                                int64_t end)
{
    const qn_model_config *c = f->config;
    if (c->altup_num_inputs) return over_streams(s, f, x, all);
    if (c->hyper.hc_count) x = qn_block_hyper_begin(s, f, x);
    for (int64_t i = begin; i < end; i++) {
        char name[32];
        snprintf(name, sizeof name, "hidden.%lld", (long long)i + 1);
        qn_scope_prefix(s, "layer.%lld.", (long long)i);
        qn_array *before = x;
        x = layer(s, f, x, all, i);
        if (f->checkpoint_layers && !gives_kv(c, i)) x = qn_checkpoint_from(s, before, x);
        qn_scope_prefix(s, "%s", "");
        x = add_vision(s, f, qn_label(s, x, name), i);
    }
    return c->hyper.hc_count ? qn_block_hyper_end(s, f, x) : x;
}

qn_array *qn_forward_layers(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *layer_inputs,
                            int64_t begin, int64_t end)
{
    common all = make_common(s, f);
    all.layer_inputs = layer_inputs;
    return through_layers(s, f, x, &all, begin, end);
}

/* What lives as long as the step is made first: behind it the scratch memory is packed without a gap. */
qn_array *qn_forward_body(qn_scope *s, const qn_forward *f)
{
    common all = make_common(s, f);
    qn_array *x = qn_forward_embed(s, f, &all.layer_inputs);
    return through_layers(s, f, x, &all, 0, f->config->num_hidden_layers);
}

qn_array *qn_forward_norm(qn_scope *s, const qn_forward *f, qn_array *hidden, qn_array *rows)
{
    return qn_label(s, qn_block_norm(s, f, qn_take(s, hidden, rows), QN_WEIGHT_FINAL_NORM, 0), "final_norm");
}

qn_array *qn_forward_losses(qn_scope *s, const qn_forward *f, qn_array *hidden, qn_array *rows,
                            qn_array *targets)
{
    const qn_trained_matrix *m = qn_trained_get(f->trained, QN_WEIGHT_LM_HEAD, 0);
    const int has_bias = qn_forward_weight(f, QN_WEIGHT_LM_HEAD_BIAS, 0) != NULL;
    if (has_bias || (m && m->a) || qn_block_is_changed(f, QN_WEIGHT_LM_HEAD, 0) ||
        qn_block_is_changed(f, QN_WEIGHT_LM_HEAD_BIAS, 0)) {
        qn_array *logits = qn_forward_head(s, f, hidden, rows);
        return qn_sub(s, qn_logsumexp(s, logits), qn_take_along(s, logits, targets));
    }
    qn_array *x = qn_forward_norm(s, f, hidden, rows), *head = qn_forward_weight(f, QN_WEIGHT_LM_HEAD, 0);
    x = qn_head_loss(s, x, head, targets, f->config->logits_scale, f->config->final_logit_softcapping);
    return qn_label(s, x, "losses");
}

qn_array *qn_forward_head(qn_scope *s, const qn_forward *f, qn_array *hidden, qn_array *rows)
{
    qn_array *x = qn_block_linear(s, f, qn_forward_norm(s, f, hidden, rows), QN_WEIGHT_LM_HEAD,
                                  QN_WEIGHT_LM_HEAD_BIAS, 0);
    x = qn_scale(s, x, f->config->logits_scale);
    return qn_label(s, qn_block_softcap(s, x, f->config->final_logit_softcapping), "logits");
}
