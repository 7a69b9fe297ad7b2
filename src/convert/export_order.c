#include "convert/export_order.h"

#include <math.h>
#include <string.h>

#include "model/config/families.h"
#include "model/weights/row_order.h"

void qn_export_forms(qn_model_config *target)
{
    qn_delta_config *d = &target->delta;
    if (!target->family->latent)
        target->rope_interleaved = target->family->gguf_rope_interleaved || target->family->rope_interleaved;
    target->norm_offset = target->final_norm_offset = 0;
    target->rates_given = 1;
    d->z_apart = d->by_head;
    d->tiled =
        target->family->delta == QN_DELTA_SPLIT && d->linear_num_value_heads != d->linear_num_key_heads;
}

qn_weight_role qn_export_source(const qn_model_config *target, qn_weight_role role)
{
    if (!target->delta.z_apart) return role;
    if (role == QN_WEIGHT_DELTA_QKV || role == QN_WEIGHT_DELTA_Z) return QN_WEIGHT_DELTA_QKVZ;
    return role == QN_WEIGHT_DELTA_QKVZ ? QN_WEIGHT_ROLE_COUNT : role;
}

/* Of rows that value heads have, `size` of each: the row before heads were put key head after key head. */
static int64_t untiled(const qn_delta_config *d, int64_t row, int64_t size)
{
    const int64_t nk = d->linear_num_key_heads, each = d->linear_num_value_heads / nk, head = row / size;
    return (head % nk * each + head / nk) * size + row % size;
}

/* Rows of one value head behind *first rows that stay; 0: the role's rows are of no value heads. */
static int64_t rows_of_head(const qn_delta_config *d, qn_weight_role role, int64_t *first)
{
    *first = 0;
    switch (role) {
    case QN_WEIGHT_DELTA_QKV:
    case QN_WEIGHT_CONV:
        *first = 2 * d->linear_num_key_heads * d->linear_key_head_dim;
        return d->linear_value_head_dim;
    case QN_WEIGHT_DELTA_Z:
        return d->linear_value_head_dim;
    case QN_WEIGHT_DELTA_A:
    case QN_WEIGHT_DELTA_B:
    case QN_WEIGHT_DELTA_A_LOG:
    case QN_WEIGHT_DELTA_DT_BIAS:
        return 1;
    default:
        return 0;
    }
}

/* A row of queries, keys and values, or of gates, among those of a projection that holds all of one key head together. */
static int64_t row_by_head(const qn_delta_config *d, qn_weight_role role, int64_t row)
{
    const int64_t nk = d->linear_num_key_heads, dk = d->linear_key_head_dim,
                  dv = d->linear_num_value_heads / nk * d->linear_value_head_dim, all = 2 * dk + 2 * dv;
    if (role == QN_WEIGHT_DELTA_Z) return row / dv * all + 2 * dk + dv + row % dv;
    if (row < nk * dk) return row / dk * all + row % dk;
    row -= nk * dk;
    if (row < nk * dk) return row / dk * all + dk + row % dk;
    row -= nk * dk;
    return row / dv * all + 2 * dk + row % dv;
}

int qn_export_moves_rows(const qn_model_config *target, qn_weight_role role)
{
    int64_t first;
    return qn_row_order_differs(target, role) || qn_export_source(target, role) != role ||
           (target->delta.tiled && rows_of_head(&target->delta, role, &first));
}

int64_t qn_export_row(const qn_model_config *target, qn_weight_role role, int64_t layer, int64_t row)
{
    const qn_delta_config *d = &target->delta;
    int64_t first;
    const int64_t size = d->tiled ? rows_of_head(d, role, &first) : 0;
    if (size) return row < first ? row : first + untiled(d, row - first, size);
    if (qn_export_source(target, role) != role) return row_by_head(d, role, row);
    return qn_row_order_published(target, role, layer, row);
}

int qn_export_moves_columns(const qn_model_config *target, qn_weight_role role)
{
    return target->delta.tiled && role == QN_WEIGHT_DELTA_OUT;
}

void qn_export_columns(const qn_model_config *target, const float *from, float *to)
{
    const qn_delta_config *d = &target->delta;
    const int64_t dv = d->linear_value_head_dim;
    for (int64_t i = 0; i < d->linear_num_value_heads; i++)
        memcpy(to + i * dv, from + untiled(d, i * dv, dv), (size_t)dv * sizeof *to);
}

float qn_export_scale(const qn_model_config *published, qn_weight_role role, int64_t row)
{
    const qn_model_config *c = published;
    const qn_state_space_config *s = &c->state_space;
    const int64_t inner = s->mamba_n_heads * s->mamba_d_head, shared = s->mamba_n_groups * s->mamba_d_state;
    const int64_t parts[QN_SSM_PARTS] = {inner, inner, shared, shared, s->mamba_n_heads};
    int part = 0;
    if (!c->family->many_multipliers) return 1;
    switch (role) {
    case QN_WEIGHT_EMBED:
        return c->embedding_scale;
    case QN_WEIGHT_LM_HEAD:
        return c->logits_scale;
    case QN_WEIGHT_Q:
    case QN_WEIGHT_V:
        return c->attention_in_scale;
    case QN_WEIGHT_K:
        return c->attention_in_scale * c->key_scale;
    case QN_WEIGHT_O:
        return c->attention_out_scale;
    case QN_WEIGHT_GATE:
        return c->gate_scale;
    case QN_WEIGHT_DOWN:
        return c->mlp_out_scale;
    case QN_WEIGHT_SSM_OUT:
        return s->out_scale;
    case QN_WEIGHT_SSM_IN:
        while (part < QN_SSM_PARTS - 1 && row >= parts[part]) row -= parts[part++];
        return s->in_scale * s->part_scale[part];
    default:
        return 1;
    }
}

void qn_export_fold(qn_model_config *c)
{
    qn_state_space_config *s = &c->state_space;
    if (!c->family->many_multipliers) return;
    c->embedding_scale = c->logits_scale = c->attention_in_scale = c->key_scale = c->attention_out_scale =
        c->gate_scale = c->mlp_out_scale = 1;
    s->in_scale = s->out_scale = 1;
    for (int i = 0; i < QN_SSM_PARTS; i++) s->part_scale[i] = 1;
}

float qn_export_number(qn_weight_role role, float x)
{
    return role == QN_WEIGHT_SSM_A_LOG || role == QN_WEIGHT_DELTA_A_LOG ? -expf(x) : x;
}
