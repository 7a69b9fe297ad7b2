#include "model/vision/vision.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/forward/blocks/blocks.h"
#include "model/weights/vision_roles.h"

/* Inputs of rows that see each other. */
typedef struct {
    qn_array *row_begin, *positions; /* [n + 1], [n_rows] i32 */
} sequences;

/* The graph's inputs beside patches; NULL where the layout has none. */
typedef struct {
    const qn_vision_config *c;
    const qn_parameters *parameters;
    const qn_vision_layout *layout;
    qn_array *patches;
    qn_array *source, *is_class, *rows, *columns, *kept;
    sequences views, windows;
    qn_array *table[2]; /* of cosines and sines; [1] where halves of a head turn by themselves */
} tower;

/* ---- inputs --------------------------------------------------------------------------------------------- */

static qn_array *numbers(qn_scope *s, const void *there, int64_t n)
{
    return there ? qn_input(s, QN_DTYPE_I32, qn_shape_make(1, &n)) : NULL;
}

static sequences sequence_inputs(qn_scope *s, const qn_vision_layout *l, const qn_vision_sequences *own)
{
    sequences q = {NULL, NULL};
    if (!own->n) return q;
    q.row_begin = numbers(s, own->row_begin, own->n + 1);
    q.positions = numbers(s, own->positions, l->n_rows);
    return q;
}

/* In the order in which qn_vision_fill goes through them; learned positions come last. */
static void make_inputs(qn_scope *s, tower *t)
{
    const qn_vision_layout *l = t->layout;
    const int64_t patches[] = {l->n_patches, qn_vision_patch_floats(t->c)}, column[] = {l->n_rows, 1};
    t->patches = qn_input(s, QN_DTYPE_F32, qn_shape_make(2, patches));
    t->source = numbers(s, l->source, l->n_rows);
    t->is_class = l->is_class ? qn_input(s, QN_DTYPE_F32, qn_shape_make(2, column)) : NULL;
    t->rows = numbers(s, l->rows, l->n_rows);
    t->columns = numbers(s, l->columns, l->n_rows);
    t->kept = numbers(s, l->kept, l->n_patches);
    t->views = sequence_inputs(s, l, &l->views);
    t->windows = sequence_inputs(s, l, &l->windows);
}

static int fill(qn_program *p, int i, const void *from, int64_t n)
{
    void *to = from ? qn_program_input(p, i) : NULL;
    if (!from) return i;
    if (to)
        memcpy(to, from,
               (size_t)n * sizeof(float)); /* i32 are as large; without layers some inputs are not read */
    return i + 1;
}

static int fill_sequences(qn_program *p, int i, const qn_vision_layout *l, const qn_vision_sequences *own)
{
    if (!own->n) return i;
    i = fill(p, i, own->row_begin, own->n + 1);
    return fill(p, i, own->positions, l->n_rows);
}

void qn_vision_fill(qn_program *p, const qn_vision_config *v, const qn_vision_layout *l, const float *patches)
{
    int i = fill(p, 0, patches, l->n_patches * qn_vision_patch_floats(v));
    i = fill(p, i, l->source, l->n_rows);
    i = fill(p, i, l->is_class, l->n_rows);
    i = fill(p, i, l->rows, l->n_rows);
    i = fill(p, i, l->columns, l->n_rows);
    i = fill(p, i, l->kept, l->n_patches);
    i = fill_sequences(p, i, l, &l->views);
    i = fill_sequences(p, i, l, &l->windows);
    for (int64_t t = 0; t < l->n_taps; t++) {
        i = fill(p, i, l->taps + t * l->n_rows, l->n_rows);
        i = fill(p, i, l->weights + t * l->n_rows, l->n_rows);
    }
}

int64_t qn_vision_patch_floats(const qn_vision_config *v)
{
    return qn_image_patch_floats(&v->processor);
}

/* ---- pieces --------------------------------------------------------------------------------------------- */

static qn_array *weight(const tower *t, qn_vision_role role, int64_t layer)
{
    return qn_parameters_vision(t->parameters, qn_vision_index(role, layer));
}

/* x within the bounds that the tower has for what a matrix reads (first 0) or gives (first 2). */
static qn_array *within(qn_scope *s, const tower *t, qn_array *x, qn_vision_role role, int first,
                        int64_t layer)
{
    int k = 0;
    while (t->c->clipped_linears && qn_vision_bounded(k) != QN_VISION_ROLE_COUNT &&
           qn_vision_bounded(k) != role)
        k++;
    if (!t->c->clipped_linears || qn_vision_bounded(k) != role) return x;
    const qn_vision_role bound = (qn_vision_role)(QN_VISION_BOUNDS + QN_VISION_BOUNDS_EACH * k + first);
    x = qn_binary(s, QN_PRIM_MAXIMUM, x, weight(t, bound, layer));
    return qn_binary(s, QN_PRIM_MINIMUM, x, weight(t, (qn_vision_role)(bound + 1), layer));
}

/* x times transpose(weight), plus the bias, which is the next role, where there is one. */
static qn_array *linear(qn_scope *s, const tower *t, qn_array *x, qn_vision_role role, int64_t layer)
{
    qn_array *bias = weight(t, (qn_vision_role)(role + 1), layer);
    x = qn_linear(s, within(s, t, x, role, 0, layer), weight(t, role, layer));
    return within(s, t, bias ? qn_add(s, x, bias) : x, role, 2, layer);
}

/* x itself where the tower has no such norm. */
static qn_array *norm(qn_scope *s, const tower *t, qn_array *x, int is_rms, qn_vision_role role,
                      int64_t layer)
{
    qn_array *w = weight(t, role, layer);
    if (!w) return x;
    const int is_end = role == QN_VISION_PRE_NORM || role == QN_VISION_POST_NORM;
    const float eps = is_end && t->c->end_norm_eps > 0 ? t->c->end_norm_eps : t->c->norm_eps;
    if (is_rms) return qn_rms_norm(s, x, w, eps, 0);
    return qn_layer_norm(s, x, w, weight(t, (qn_vision_role)(role + 1), layer), eps);
}

/* x times a number of each channel, where the tower has them. */
static qn_array *scaled(qn_scope *s, const tower *t, qn_array *x, qn_vision_role role, int64_t layer)
{
    qn_array *w = weight(t, role, layer);
    return w ? qn_mul(s, x, w) : x;
}

static qn_array *activation(qn_scope *s, qn_vision_act act, qn_array *x)
{
    switch (act) {
    case QN_VISION_GELU:
        return qn_unary(s, QN_PRIM_GELU, x);
    case QN_VISION_GELU_TANH:
        return qn_unary(s, QN_PRIM_GELU_TANH, x);
    case QN_VISION_SILU:
        return qn_unary(s, QN_PRIM_SILU, x);
    case QN_VISION_QUICK_GELU:
        break;
    }
    return qn_mul(s, x, qn_unary(s, QN_PRIM_SIGMOID, qn_scale(s, x, 1.702f)));
}

/* ---- layers --------------------------------------------------------------------------------------------- */

/* Cosines and sines of the rows: see qn_vision_rope. */
static void make_tables(qn_scope *s, tower *t)
{
    const int64_t n = t->c->head_dim / 4;
    if (t->c->rope == QN_VISION_ROPE_NONE) return;
    qn_array *all = qn_parameters_vision_rope(t->parameters), *first = qn_slice_last(s, all, 0, n),
             *second = qn_slice_last(s, all, n, n);
    const qn_rope_section by_row = {t->rows, first, n}, by_column = {t->columns, second, n};
    const int swapped = t->c->rope == QN_VISION_ROPE_NEIGHBOURS || t->c->rope == QN_VISION_ROPE_COLUMN_FIRST;
    const qn_rope_section sections[] = {swapped ? by_column : by_row, swapped ? by_row : by_column};
    if (t->c->rope == QN_VISION_ROPE_APART) {
        t->table[0] = qn_rope_table(s, t->columns, first, 1);
        t->table[1] = qn_rope_table(s, t->rows, second, 1);
    } else {
        t->table[0] = qn_block_rope_table(s, 2, sections, 1);
    }
}

/* Heads x [R, heads, head_dim] turned by their places. */
static qn_array *turned(qn_scope *s, const tower *t, qn_array *x)
{
    const int64_t half = t->c->head_dim / 2;
    if (!t->table[0]) return x;
    if (!t->table[1])
        return qn_rope(s, x, t->table[0], t->c->rope_beside || t->c->rope == QN_VISION_ROPE_NEIGHBOURS);
    qn_array *parts[2];
    for (int i = 0; i < 2; i++) parts[i] = qn_rope(s, qn_slice_last(s, x, i * half, half), t->table[i], 0);
    return qn_concat(s, 2, parts);
}

/* One of queries, keys and values (0, 1, 2), [R, heads * head_dim]; all: the three of them, NULL: apart. */
static qn_array *projected(qn_scope *s, const tower *t, qn_array *x, qn_array *all, int i, int64_t layer)
{
    static const qn_vision_role roles[] = {QN_VISION_Q, QN_VISION_K, QN_VISION_V};
    const int64_t width = t->c->num_heads * t->c->head_dim;
    return all ? qn_slice_last(s, all, i * width, width) : linear(s, t, x, roles[i], layer);
}

static qn_array *attention(qn_scope *s, const tower *t, qn_array *x, int64_t layer)
{
    static const qn_vision_role norms[] = {QN_VISION_Q_NORM, QN_VISION_K_NORM};
    const qn_vision_config *c = t->c;
    const int64_t heads[] = {c->num_heads, c->head_dim}, width = c->num_heads * c->head_dim;
    const float qk_eps = c->qk_norm_eps != 0 ? c->qk_norm_eps : c->norm_eps;
    const sequences *seen = qn_vision_is_full(c, layer) ? &t->views : &t->windows;
    qn_array *part[3], *all = weight(t, QN_VISION_QKV, layer) ? linear(s, t, x, QN_VISION_QKV, layer) : NULL;
    for (int i = 0; i < 3; i++) {
        part[i] = projected(s, t, x, all, i, layer);
        qn_array *w = i < 2 && c->qk_norm ? weight(t, norms[i], layer) : NULL;
        if (w && c->qk_norm == 1) part[i] = qn_rms_norm(s, part[i], w, qk_eps, 0);
        part[i] = qn_reshape_rows(s, part[i], 2, heads);
        if (w && c->qk_norm == 2) part[i] = qn_rms_norm(s, part[i], w, qk_eps, 0);
        if (i < 2) part[i] = turned(s, t, part[i]);
    }
    if (c->value_norm) part[2] = qn_rms_norm(s, part[2], NULL, c->norm_eps, 0);
    qn_params_attend p = {.whole = 1, .scale = c->attention_scale};
    qn_array *o = qn_attend(s, &p, part[0], part[1], part[2], seen->positions, seen->row_begin, NULL, NULL);
    return linear(s, t, qn_reshape_rows(s, o, 1, &width), QN_VISION_PROJ, layer);
}

/* act(gate) * up, both within mlp_limit before. */
static qn_array *gated(qn_scope *s, const tower *t, qn_array *gate, qn_array *up)
{
    const float limit = t->c->mlp_limit;
    if (limit > 0) {
        gate = qn_binary(s, QN_PRIM_MINIMUM, gate, qn_scalar(s, limit));
        up = qn_binary(s, QN_PRIM_MINIMUM, up, qn_scalar(s, limit));
        up = qn_binary(s, QN_PRIM_MAXIMUM, up, qn_scalar(s, -limit));
    }
    return qn_mul(s, activation(s, t->c->hidden_act, gate), up);
}

static qn_array *mlp(qn_scope *s, const tower *t, qn_array *x, int64_t layer)
{
    qn_array *up = linear(s, t, x, QN_VISION_FC1, layer);
    if (t->c->gated_mlp)
        up = gated(s, t, linear(s, t, x, QN_VISION_GATE, layer), up);
    else
        up = activation(s, t->c->hidden_act, up);
    return linear(s, t, up, QN_VISION_FC2, layer);
}

static qn_array *block(qn_scope *s, const tower *t, qn_array *x, int64_t layer)
{
    const int is_rms = t->c->rms_norm;
    qn_array *h = attention(s, t, norm(s, t, x, is_rms, QN_VISION_NORM1, layer), layer);
    h = norm(s, t, h, 1, QN_VISION_POST_NORM1, layer);
    x = qn_add(s, x, scaled(s, t, h, QN_VISION_SCALE1, layer));
    h = mlp(s, t, norm(s, t, x, is_rms, QN_VISION_NORM2, layer), layer);
    h = norm(s, t, h, 1, QN_VISION_POST_NORM2, layer);
    return qn_add(s, x, scaled(s, t, h, QN_VISION_SCALE2, layer));
}

/* ---- embedding ------------------------------------------------------------------------------------------ */

/* The rows of a table that are kept as plain floats, [n, width]. */
static qn_array *plain(qn_scope *s, qn_array *w, int64_t width)
{
    if (!w) return NULL;
    const int64_t dims[] = {qn_array_shape(w)->dim[0] / width, width};
    return qn_reshape_sym(s, w, qn_shape_make(2, dims));
}

static qn_array *with_positions(qn_scope *s, const tower *t, qn_array *x)
{
    const int64_t n_rows = t->layout->n_rows, column[] = {n_rows, 1};
    qn_array *table = plain(s, weight(t, QN_VISION_POSITIONS, 0), t->c->embed_dim), *sum = NULL;
    for (int64_t i = 0; i < t->layout->n_taps; i++) {
        qn_array *rows = qn_take(s, table, qn_input(s, QN_DTYPE_I32, qn_shape_make(1, &n_rows)));
        rows = qn_mul(s, rows, qn_input(s, QN_DTYPE_F32, qn_shape_make(2, column)));
        sum = sum ? qn_add(s, sum, rows) : rows;
    }
    return sum ? qn_add(s, x, sum) : x;
}

static qn_array *embedded(qn_scope *s, const tower *t)
{
    const qn_vision_config *c = t->c;
    qn_array *x = t->patches;
    if (c->patch_factor != 0) x = qn_add(s, qn_scale(s, x, c->patch_factor), qn_scalar(s, c->patch_offset));
    x = norm(s, t, x, 0, QN_VISION_PATCH_NORM, 0);
    qn_array *later = weight(t, QN_VISION_PATCH_LATER, 0);
    qn_array *at_second = later ? qn_linear(s, x, later) : NULL;
    x = linear(s, t, x, QN_VISION_PATCH, 0);
    if (later) x = qn_add(s, x, at_second);
    x = norm(s, t, x, c->rms_norm, QN_VISION_EMBED_NORM, 0);
    if (t->source) x = qn_take(s, x, t->source);
    if (t->is_class) { /* times 1 and plus 0 is exact */
        qn_array *is_patch = qn_sub(s, qn_scalar(s, 1), t->is_class);
        x = qn_add(s, qn_mul(s, x, is_patch), qn_mul(s, weight(t, QN_VISION_CLASS, 0), t->is_class));
    }
    return norm(s, t, with_positions(s, t, x), c->rms_norm, QN_VISION_PRE_NORM, 0);
}

/* ---- tokens --------------------------------------------------------------------------------------------- */

/* The patches x [N, embed_dim] of a token as one row. */
static qn_array *merged(qn_scope *s, const tower *t, qn_array *x)
{
    const int64_t width = t->c->embed_dim, m = t->c->processor.merge_size, each = m * m,
                  tokens = t->layout->n_patches / each;
    const int64_t apart[] = {tokens, each, width}, row[] = {tokens, each * width}, one[] = {tokens, width};
    switch (t->c->merge) {
    case QN_VISION_MERGE_MEAN:
        x = qn_mean(s, qn_reshape_sym(s, x, qn_shape_make(3, apart)), 1);
        return qn_reshape_sym(s, x, qn_shape_make(2, one));
    case QN_VISION_MERGE_CHANNELS:
        x = qn_swap_axes(s, qn_reshape_sym(s, x, qn_shape_make(3, apart)), 1, 2);
        break;
    case QN_VISION_MERGE_ROWS:
        break;
    }
    return qn_reshape_sym(s, x, qn_shape_make(2, row));
}

/* The norm before or behind the merging; x itself where there is none in this place. */
static qn_array *merge_norm(qn_scope *s, const tower *t, qn_array *x, int when)
{
    const qn_vision_config *c = t->c;
    qn_array *w = weight(t, QN_VISION_MERGER_NORM, 0);
    if (c->merge_norm != when) return x;
    if (c->merge_rms) return qn_rms_norm(s, x, w, c->merge_norm_eps, c->merge_norm_offset);
    return qn_layer_norm(s, x, w, weight(t, QN_VISION_MERGER_NORM_BIAS, 0), c->merge_norm_eps);
}

/* What stands for tokens: patches x [N, embed_dim] become [tokens, hidden_size]. */
static qn_array *features(qn_scope *s, const tower *t, qn_array *x)
{
    const qn_vision_config *c = t->c;
    x = merge_norm(s, t, x, 1);
    x = merged(s, t, x);
    if (c->merge_scale_root) x = qn_scale(s, x, sqrtf((float)c->embed_dim));
    if (c->standardize)
        x = qn_mul(s, qn_sub(s, x, weight(t, QN_VISION_SHIFT, 0)), weight(t, QN_VISION_SPREAD, 0));
    if (weight(t, QN_VISION_DOWNSAMPLE, 0)) x = linear(s, t, x, QN_VISION_DOWNSAMPLE, 0);
    if (weight(t, QN_VISION_MERGER, 0)) x = linear(s, t, x, QN_VISION_MERGER, 0);
    if (weight(t, QN_VISION_MERGER_PROJ, 0)) x = linear(s, t, x, QN_VISION_MERGER_PROJ, 0);
    x = merge_norm(s, t, x, 2);
    if (c->merge_norm_gelu) x = qn_unary(s, QN_PRIM_GELU, x);
    if (weight(t, QN_VISION_MERGER_GATE, 0))
        x = gated(s, t, linear(s, t, x, QN_VISION_MERGER_GATE, 0), linear(s, t, x, QN_VISION_MERGER_UP, 0));
    else if (weight(t, QN_VISION_MERGER_UP, 0))
        x = activation(s, c->merge_act, linear(s, t, x, QN_VISION_MERGER_UP, 0));
    if (weight(t, QN_VISION_MERGER_DOWN, 0)) x = linear(s, t, x, QN_VISION_MERGER_DOWN, 0);
    if (c->merge_act_after) x = activation(s, c->merge_act, x);
    if (weight(t, QN_VISION_PROJECTION, 0)) x = linear(s, t, x, QN_VISION_PROJECTION, 0);
    if (c->feature_norm) x = qn_rms_norm(s, x, NULL, c->feature_norm_eps, 0);
    qn_array *turned_projection = weight(t, QN_VISION_TURNED_PROJECTION, 0);
    if (!turned_projection) return x;
    const int64_t width = qn_array_shape(turned_projection)->dim[0] / c->embed_dim;
    return qn_matmul(s, x, plain(s, turned_projection, width));
}

/* What the text's layer number i adds. */
static qn_array *deep_features(qn_scope *s, const tower *t, qn_array *x, int64_t i)
{
    qn_array *w = weight(t, QN_VISION_DEEP_NORM, i), *bias = weight(t, QN_VISION_DEEP_NORM_BIAS, i);
    x = qn_layer_norm(s, merged(s, t, x), w, bias, t->c->merge_norm_eps);
    x = activation(s, t->c->merge_act, linear(s, t, x, QN_VISION_DEEP_UP, i));
    return linear(s, t, x, QN_VISION_DEEP_DOWN, i);
}

/* Rows of patches, in the processor's order. */
static qn_array *patches_of(qn_scope *s, const tower *t, qn_array *x)
{
    return t->kept ? qn_take(s, x, t->kept) : x;
}

/* Which of the deepstack's reads what this layer gives; -1: none. */
static int64_t deep_of(const qn_vision_config *c, int64_t layer)
{
    for (int64_t i = 0; i < c->n_deepstack; i++)
        if (c->deepstack_layers[i] == layer) return i;
    return -1;
}

qn_array *qn_vision_forward(qn_scope *s, const qn_model_config *config, const qn_parameters *parameters,
                            const qn_vision_layout *layout)
{
    tower t = {.c = &config->vision, .parameters = parameters, .layout = layout};
    qn_array *parts[1 + QN_VISION_DEEPSTACK_MAX];
    int n = 1;
    make_inputs(s, &t);
    qn_scope_prefix(s, "%s", "");
    make_tables(s, &t);
    qn_array *x = embedded(s, &t);
    for (int64_t i = 0; i < t.c->depth; i++) {
        char name[32];
        snprintf(name, sizeof name, "vision.%lld", (long long)i + 1);
        x = qn_label(s, block(s, &t, x, i), name);
        /* In the order of layers, whatever that of the list. */
        if (deep_of(t.c, i) >= 0) parts[n++] = deep_features(s, &t, patches_of(s, &t, x), deep_of(t.c, i));
    }
    x = norm(s, &t, x, t.c->rms_norm, QN_VISION_POST_NORM, 0);
    parts[0] = features(s, &t, patches_of(s, &t, x));
    return qn_label(s, n > 1 ? qn_concat(s, n, parts) : parts[0], "vision.features");
}
