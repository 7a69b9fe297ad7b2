#include "model/config/blocks/latent_config.h"

#include <math.h>

#include "model/config/families.h"

enum { HEADS_MAX = 1 << 16, LABEL_MAX = 160 };

/* GGUF says the sizes of a head after its keys and values are made, and how much of it is rotated; one key head
 * stands for the latent that all share. */
static qn_status read_gguf(const qn_fields *f, int is_unrotated, qn_latent_config *l)
{
    static const char whole[] = "mla_head_dim", turned[] = "rotary_dim";
    char label[LABEL_MAX], other[LABEL_MAX];
    int64_t head_dim;
    QN_TRY(qn_fields_required_int(f, whole, 1, HEADS_MAX, &head_dim));
    QN_TRY(qn_fields_required_int(f, turned, is_unrotated ? 0 : 2, is_unrotated ? 0 : HEADS_MAX,
                                  &l->qk_rope_head_dim));
    QN_TRY(qn_fields_required_int(f, "mla_v_head_dim", 1, HEADS_MAX, &l->v_head_dim));
    l->qk_nope_head_dim = head_dim - l->qk_rope_head_dim;
    if (l->qk_nope_head_dim >= 1) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s is %lld, expected more than %s %lld", f->file,
                   qn_fields_label(f, whole, label, sizeof label), (long long)head_dim,
                   qn_fields_label(f, turned, other, sizeof other), (long long)l->qk_rope_head_dim);
}

qn_status qn_latent_config_read(const qn_fields *f, qn_model_config *c)
{
    static const char kv_heads[] = "num_key_value_heads";
    qn_latent_config *l = &c->latent;
    char label[LABEL_MAX];
    QN_TRY(qn_fields_int(f, "q_lora_rank", 1, HEADS_MAX, &l->q_lora_rank, NULL));
    QN_TRY(qn_fields_required_int(f, "kv_lora_rank", 1, HEADS_MAX, &l->kv_lora_rank));
    if (f->gguf_architecture) {
        QN_TRY(read_gguf(f, c->family->unrotated, l));
    } else {
        QN_TRY(qn_fields_required_int(f, "qk_nope_head_dim", 1, HEADS_MAX, &l->qk_nope_head_dim));
        QN_TRY(qn_fields_required_int(f, "qk_rope_head_dim", c->family->unrotated ? 0 : 2,
                                      c->family->unrotated ? 0 : HEADS_MAX, &l->qk_rope_head_dim));
        QN_TRY(qn_fields_required_int(f, "v_head_dim", 1, HEADS_MAX, &l->v_head_dim));
    }
    if (l->qk_rope_head_dim % 2)
        return qn_fail(QN_E_FORMAT, "%s: %s is %lld, expected an even number", f->file,
                       qn_fields_label(f, "qk_rope_head_dim", label, sizeof label),
                       (long long)l->qk_rope_head_dim);
    c->num_key_value_heads = c->num_attention_heads;
    if (!f->gguf_architecture)
        QN_TRY(qn_fields_int(f, kv_heads, 1, HEADS_MAX, &c->num_key_value_heads, NULL));
    if (c->num_key_value_heads != c->num_attention_heads)
        return qn_fail(QN_E_FORMAT,
                       "%s: %s is %lld, expected num_attention_heads (%lld): heads share a latent", f->file,
                       qn_fields_label(f, kv_heads, label, sizeof label), (long long)c->num_key_value_heads,
                       (long long)c->num_attention_heads);
    l->norm_eps = 1e-6f;              /* the default of the reference's class, which is given none */
    if (c->family->latent_norm_eps) { /* which is required, and read once more with the others */
        double eps = 0;
        QN_TRY(qn_fields_number(f, "rms_norm_eps", 0, 1, &eps, NULL));
        l->norm_eps = (float)eps;
    }
    c->head_dim = l->qk_rope_head_dim;
    c->rope_interleaved = 1;
    return qn_fields_bool(f, "rope_interleave", &c->rope_interleaved, NULL);
}

void qn_latent_config_finish(qn_model_config *c)
{
    const qn_latent_config *l = &c->latent;
    const qn_rope_config *r = &c->rope[0];
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        if (c->layers[i].mixer != QN_MIXER_ATTENTION) continue;
        c->layers[i].mixer = QN_MIXER_LATENT;
        c->layers[i].num_key_value_heads = 1;
        c->layers[i].head_dim = l->kv_lora_rank + l->qk_rope_head_dim;
        c->layers[i].v_head_dim = l->kv_lora_rank;
    }
    double scale = 1 / sqrt((double)(l->qk_nope_head_dim + l->qk_rope_head_dim)),
           m = c->n_rope ? r->score_mscale : 1;
    c->attention_scale = (float)(scale * m * m);
}
