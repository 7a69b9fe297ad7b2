#include "model/vision/vision.h"

#include <math.h>
#include <stdio.h>

#include "model/forward/blocks/blocks.h"
#include "model/weights/vision_roles.h"

static qn_array *weight(const qn_vision *v, qn_vision_role role, int64_t layer)
{
    return qn_parameters_vision(v->parameters, qn_vision_index(role, layer));
}

/* x times transpose(weight), plus the bias, which is the next role. */
static qn_array *linear(qn_scope *s, const qn_vision *v, qn_array *x, qn_vision_role role, int64_t layer)
{
    return qn_add(s, qn_linear(s, x, weight(v, role, layer)), weight(v, (qn_vision_role)(role + 1), layer));
}

static qn_array *norm(qn_scope *s, const qn_vision *v, qn_array *x, qn_vision_role role, int64_t layer)
{
    qn_params p = {.norm = {.eps = v->config->vision.norm_eps}};
    qn_array *in[] = {x, weight(v, role, layer), weight(v, (qn_vision_role)(role + 1), layer)};
    return qn_apply(s, QN_PRIM_LAYER_NORM, &p, 3, in, NULL, QN_DTYPE_F32);
}

static qn_array *activation(qn_scope *s, const qn_vision *v, qn_array *x)
{
    switch (v->config->vision.hidden_act) {
    case QN_VISION_GELU:
        return qn_unary(s, QN_PRIM_GELU, x);
    case QN_VISION_GELU_TANH:
        return qn_unary(s, QN_PRIM_GELU_TANH, x);
    case QN_VISION_SILU:
        return qn_unary(s, QN_PRIM_SILU, x);
    default: /* x * sigmoid(1.702 x) */
        return qn_mul(s, x, qn_unary(s, QN_PRIM_SIGMOID, qn_scale(s, x, 1.702f)));
    }
}

static qn_array *attention(qn_scope *s, const qn_vision *v, qn_array *x, qn_array *table, int64_t layer)
{
    const qn_vision_config *c = &v->config->vision;
    const int64_t heads[] = {c->num_heads, c->embed_dim / c->num_heads};
    qn_array *all = linear(s, v, x, QN_VISION_QKV, layer), *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = qn_reshape_rows(s, qn_slice_last(s, all, i * c->embed_dim, c->embed_dim), 2, heads);
    for (int i = 0; i < 2; i++) part[i] = qn_rope(s, part[i], table, 0);
    qn_params_attend p = {.state = v->state, .whole = 1, .scale = (float)(1 / sqrt((double)heads[1]))};
    qn_array *o = qn_attend(s, &p, part[0], part[1], part[2], v->positions, v->row_begin, v->blocks, NULL);
    return linear(s, v, qn_reshape_rows(s, o, 1, &c->embed_dim), QN_VISION_PROJ, layer);
}

/* Half of a head's pairs turn by the row, half by the column, with the same frequencies. */
static qn_array *rope_table(qn_scope *s, const qn_vision *v)
{
    const qn_vision_config *c = &v->config->vision;
    const int64_t n = c->embed_dim / c->num_heads / 4;
    qn_array *frequencies = qn_parameters_vision_rope(v->parameters);
    const qn_rope_section sections[] = {{v->rows, frequencies, n}, {v->columns, frequencies, n}};
    return qn_block_rope_table(s, 2, sections, 1);
}

/* merge_size^2 patches in a row become a token. */
static qn_array *merge(qn_scope *s, const qn_vision *v, qn_array *x)
{
    const qn_vision_config *c = &v->config->vision;
    const int64_t each = c->processor.merge_size * c->processor.merge_size;
    x = norm(s, v, x, QN_VISION_MERGER_NORM, 0);
    if (!x) return NULL;
    const int64_t dims[] = {qn_array_shape(x)->dim[0] / each, each * c->embed_dim};
    x = linear(s, v, qn_reshape_sym(s, x, qn_shape_make(2, dims)), QN_VISION_MERGER_UP, 0);
    return linear(s, v, qn_unary(s, QN_PRIM_GELU, x), QN_VISION_MERGER_DOWN, 0);
}

qn_array *qn_vision_forward(qn_scope *s, const qn_vision *v)
{
    qn_array *table = rope_table(s, v), *x = qn_linear(s, v->patches, weight(v, QN_VISION_PATCH, 0));
    qn_scope_prefix(s, "%s", "");
    for (int64_t i = 0; i < v->config->vision.depth; i++) {
        char name[32];
        snprintf(name, sizeof name, "vision.%lld", (long long)i + 1);
        x = qn_add(s, x, attention(s, v, norm(s, v, x, QN_VISION_NORM1, i), table, i));
        qn_array *h = linear(s, v, norm(s, v, x, QN_VISION_NORM2, i), QN_VISION_FC1, i);
        x = qn_add(s, x, linear(s, v, activation(s, v, h), QN_VISION_FC2, i));
        x = qn_label(s, x, name);
    }
    return qn_label(s, merge(s, v, x), "vision.features");
}

void qn_vision_places(const qn_image_processor *p, const qn_image_grid *grid, int32_t *rows, int32_t *columns)
{
    const int64_t merge = p->merge_size;
    for (int64_t row = 0; row < grid->rows; row += merge)
        for (int64_t column = 0; column < grid->columns; column += merge)
            for (int64_t i = 0; i < merge * merge; i++) {
                *rows++ = (int32_t)(row + i / merge);
                *columns++ = (int32_t)(column + i % merge);
            }
}
