/* What the program API has to carry, checked against golden values by programs that are built by hand: ragged
 * attention against attention over pages, a recurrent layer (gated delta net) and layers of experts, in one
 * go, in pieces and in company. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "array/program.h"
#include "base/mem.h"
#include "model/forward/blocks/blocks.h"
#include "quant/types.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/json_file.h"
#include "train/step/base.h"

enum { ROWS_MAX = 512, SEQUENCES_MAX = 3, PAGES = 40 };

static qn_safetensors *open_tensors(const char *fmt, const char *name)
{
    char path[128];
    qn_safetensors *st;
    snprintf(path, sizeof path, fmt, name);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    return st;
}

static json_t *open_json(const char *fmt, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, fmt, name);
    return qn_test_json(qn_test_need_fixture(path));
}

static qn_shape rows_shape(qn_symbol symbol, int64_t extra, int n, const int64_t *dims)
{
    qn_shape s = qn_shape_sym(symbol, n, dims);
    s.dim[0] = extra;
    return s;
}

/* Largest difference over the largest expected value. */
static double difference(const float *got, const float *want, int64_t n)
{
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        if (fabs(want[i]) > largest) largest = fabs(want[i]);
        if (!(fabs((double)got[i] - want[i]) <= worst)) worst = fabs((double)got[i] - want[i]);
    }
    return largest > 0 ? worst / largest : worst;
}

/* ---- a whole model without the engine ----------------------------------------------------------------- */

static void model_open(qn_train_base *m, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "models/%s", name);
    qn_test_ok(qn_train_base_open(qn_test_need_fixture(path), NULL, 2, 0, m));
}

/* ---- attention: ragged against pages ------------------------------------------------------------------ */

/* Logits of all rows of three prompts of 310, 38 and 24 tokens, in one step; with or without pages. */
static float *prompts_logits(qn_train_base *m, const qn_safetensors *st, int with_pages, int64_t *n)
{
    static const int prompt[SEQUENCES_MAX] = {2, 1, 3};
    int64_t width = 1 + PAGES / SEQUENCES_MAX, at = 0;
    qn_scope *s = qn_scope_new(m->device);
    qn_forward f = {.config = &m->config, .parameters = m->parameters, .groups = &m->groups};
    f.ids = qn_input(s, QN_DTYPE_I32, rows_shape(QN_SYM_R, 0, 0, NULL));
    f.positions = qn_input(s, QN_DTYPE_I32, rows_shape(QN_SYM_R, 0, 0, NULL));
    f.row_begin = qn_input(s, QN_DTYPE_I32, rows_shape(QN_SYM_S, 1, 0, NULL));
    qn_array *rows = qn_input(s, QN_DTYPE_I32, rows_shape(QN_SYM_L, 0, 0, NULL));
    for (int g = 0; with_pages && g < m->groups.n; g++) {
        const qn_layer_group *l = &m->groups.group[g];
        qn_state_spec spec = {.kind = QN_STATE_PAGES,
                              .n_layers = l->n_layers,
                              .n_units = PAGES,
                              .kv_heads = l->num_key_value_heads,
                              .head_dim = l->head_dim,
                              .v_dim = l->head_dim,
                              .dtype = QN_DTYPE_F32};
        qn_test_ok(m->device->ops->state_new(m->device, &spec, &f.state[g]));
        f.blocks[g] = qn_input(s, QN_DTYPE_I32, rows_shape(QN_SYM_S, 0, 1, &width));
    }
    qn_array *logits = qn_forward_head(s, &f, qn_forward_body(s, &f), rows);
    qn_program *p;
    qn_program_options o = {
        .name = "forward", .max = {{ROWS_MAX, SEQUENCES_MAX, ROWS_MAX}}, .precision = QN_PRECISION_EXACT};
    qn_test_ok(qn_program_new(s, &o, 1, &logits, &p));
    qn_scope_free(s);
    int32_t *row_begin = qn_program_input(p, 2);
    row_begin[0] = 0;
    for (int i = 0; i < SEQUENCES_MAX; i++) {
        const qn_tensor_view *ids = qn_test_tensor(st, "prompt%d.ids", prompt[i]);
        memcpy((int32_t *)qn_program_input(p, 0) + at, ids->data, ids->size_bytes);
        for (int64_t k = 0; k < ids->n_elements; k++)
            ((int32_t *)qn_program_input(p, 1))[at + k] = (int32_t)k;
        row_begin[i + 1] = (int32_t)(at += ids->n_elements);
        for (int g = 0; with_pages && g < m->groups.n; g++) {
            int32_t *row = (int32_t *)qn_program_input(p, 4 + g) + i * width;
            row[0] = 0;
            for (int k = 1; k < width; k++) row[k] = (int32_t)(PAGES - k - i * (width - 1));
        }
    }
    for (int64_t k = 0; k < at; k++) ((int32_t *)qn_program_input(p, 3))[k] = (int32_t)k;
    qn_test_ok(qn_program_run(p, &(qn_sizes){{at, SEQUENCES_MAX, at}}));
    *n = at * m->config.vocab_size;
    float *copy = qn_alloc((size_t)*n * sizeof *copy);
    memcpy(copy, qn_program_output(p, 0), (size_t)*n * sizeof *copy);
    qn_program_free(p);
    for (int g = 0; g < m->groups.n; g++) m->device->ops->state_free(f.state[g]);
    return copy;
}

static void ragged_is_paged(void **state)
{
    const char *const names[] = {"llama", "gemma3_text"};
    for (int i = 0; i < 2; i++) {
        qn_safetensors *st = open_tensors("models/%s/expected.safetensors", names[i]);
        qn_train_base m;
        model_open(&m, names[i]);
        int64_t n;
        float *ragged = prompts_logits(&m, st, 0, &n), *paged = prompts_logits(&m, st, 1, &n);
        double d = difference(ragged, paged, n);
        printf("%s: ragged and paged attention differ by %.1e of the largest logit\n", names[i], d);
        if (!(d <= 2e-5)) fail_msg("%s: ragged and paged attention differ by %g", names[i], d);
        qn_free(ragged);
        qn_free(paged);
        qn_train_base_close(&m);
        qn_safetensors_close(st);
    }
}

/* ---- one layer of other kinds ------------------------------------------------------------------------- */

typedef struct {
    qn_device *device;
    qn_scope *scope;
    qn_safetensors *weights, *expected;
    json_t *config;
    qn_array *row_begin, *slots, *reset, *positions, *blocks; /* inputs */
    qn_state *state[2];
    qn_program *program;
} layer;

static int64_t number(const layer *l, const char *key)
{
    return json_integer_value(json_object_get(l->config, key));
}

static float real(const layer *l, const char *key)
{
    return (float)json_number_value(json_object_get(l->config, key));
}

/* A small tensor of any shape as f32. */
static qn_array *plain(layer *l, const char *name, int n, const int64_t *dims)
{
    char full[128];
    snprintf(full, sizeof full, "model.layers.0.%s", name);
    const qn_tensor_view *v = qn_test_tensor(l->weights, full, 0);
    float *values = qn_alloc_array((size_t)v->n_elements, sizeof *values);
    qn_type_get(v->dtype)->decode(qn_type_get(v->dtype), v->data, v->n_elements, values);
    qn_shape shape = n ? qn_shape_make(n, dims) : qn_shape_make(v->n_dims, v->shape);
    qn_array *a = qn_from_data(l->scope, QN_DTYPE_F32, shape.n, shape.dim, values);
    qn_free(values);
    return a;
}

/* Matrices of equal shape, one below the other: one for "%s" without a number, else n by their number. */
static qn_array *matrices(layer *l, const char *fmt, int64_t n)
{
    qn_weight_part parts[256] = {{NULL}};
    const qn_tensor_view *v = NULL;
    qn_buffer *b;
    for (int i = 0; i < n; i++) {
        char name[128], full[160];
        snprintf(name, sizeof name, fmt, i);
        snprintf(full, sizeof full, "model.layers.0.%s", name);
        v = qn_test_tensor(l->weights, full, 0);
        parts[i].data = v->data;
    }
    qn_weight w = {
        .dtype = v->dtype, .n_parts = n, .n_out = v->shape[0], .n_in = v->shape[1], .parts = parts};
    qn_test_ok(l->device->ops->import_weights(l->device, 1, &w, &b));
    int is_one = strchr(fmt, '%') == NULL;
    int64_t dims[3] = {n, v->shape[0], v->shape[1]};
    qn_array *a = qn_from_buffer(l->scope, v->dtype, qn_shape_make(3 - is_one, dims + is_one), b);
    qn_buffer_release(b);
    return a;
}

static qn_array *project(layer *l, qn_array *x, const char *name)
{
    return qn_linear(l->scope, x, matrices(l, name, 1));
}

static qn_array *norm(layer *l, qn_array *x, const char *name, float offset)
{
    return qn_rms_norm(l->scope, x, plain(l, name, 0, NULL), real(l, "rms_norm_eps"), offset);
}

static qn_array *swiglu(layer *l, qn_array *gate, qn_array *up)
{
    return qn_mul(l->scope, qn_unary(l->scope, QN_PRIM_SILU, gate), up);
}

/* Router, the best experts of each row, their outputs weighted and summed. */
static qn_array *experts(layer *l, qn_array *x)
{
    qn_scope *s = l->scope;
    int64_t n = number(l, "num_experts"), top = number(l, "num_experts_per_tok");
    qn_array *p = qn_softmax(s, project(l, x, "mlp.gate.weight"));
    qn_array *ids = qn_top_k_rising(s, p, (int)top), *share = qn_take_along(s, p, ids);
    if (json_is_true(json_object_get(l->config, "norm_topk_prob")))
        share = qn_div(s, share, qn_sum(s, share, 1));
    qn_array *gate = qn_experts(s, x, matrices(l, "mlp.experts.%d.gate_proj.weight", n), ids, NULL);
    qn_array *up = qn_experts(s, x, matrices(l, "mlp.experts.%d.up_proj.weight", n), ids, NULL);
    return qn_experts_sum(s, swiglu(l, gate, up), matrices(l, "mlp.experts.%d.down_proj.weight", n), ids,
                          share, NULL);
}

/* Transformers' Qwen3NextSparseMoeBlock: experts, and one more behind a gate of its own. */
static qn_array *experts_and_shared(layer *l, qn_array *x)
{
    qn_scope *s = l->scope;
    qn_array *h = swiglu(l, project(l, x, "mlp.shared_expert.gate_proj.weight"),
                         project(l, x, "mlp.shared_expert.up_proj.weight"));
    h = project(l, h, "mlp.shared_expert.down_proj.weight");
    qn_array *gate = qn_unary(s, QN_PRIM_SIGMOID, project(l, x, "mlp.shared_expert_gate.weight"));
    return qn_add(s, experts(l, x), qn_mul(s, gate, h));
}

/* x / sqrt(sum(x^2) + 1e-6) */
static qn_array *unit_length(layer *l, qn_array *x)
{
    qn_array *n = qn_sum(l->scope, qn_unary(l->scope, QN_PRIM_SQUARE, x), 2);
    n = qn_unary(l->scope, QN_PRIM_RSQRT, qn_add(l->scope, n, qn_scalar(l->scope, 1e-6f)));
    return qn_mul(l->scope, x, n);
}

static qn_array *recurrent(layer *l, qn_prim prim, int which, int n, qn_array **in)
{
    qn_params p = {.recurrent = {.state = l->state[which]}};
    in[n] = l->row_begin;
    in[n + 1] = l->slots;
    in[n + 2] = l->reset;
    return qn_apply(l->scope, prim, &p, n + 3, in, NULL, QN_DTYPE_F32);
}

/* Transformers' Qwen3NextGatedDeltaNet. The two projections interleave their parts by key head. */
static qn_array *delta_net(layer *l, qn_array *x)
{
    qn_scope *s = l->scope;
    int64_t nk = number(l, "linear_num_key_heads"), nv = number(l, "linear_num_value_heads"),
            dk = number(l, "linear_key_head_dim"), dv = number(l, "linear_value_head_dim"), each = nv / nk;
    qn_array *in = qn_reshape_rows(s, project(l, x, "linear_attn.in_proj_qkvz.weight"), 2,
                                   (int64_t[]){nk, 2 * dk + 2 * each * dv});
    qn_array *ba =
        qn_reshape_rows(s, project(l, x, "linear_attn.in_proj_ba.weight"), 2, (int64_t[]){nk, 2 * each});
    qn_array *parts[3] = {
        qn_reshape_rows(s, qn_slice_last(s, in, 0, dk), 1, (int64_t[]){nk * dk}),
        qn_reshape_rows(s, qn_slice_last(s, in, dk, dk), 1, (int64_t[]){nk * dk}),
        qn_reshape_rows(s, qn_slice_last(s, in, 2 * dk, each * dv), 1, (int64_t[]){nv * dv})};
    qn_array *z =
        qn_reshape_rows(s, qn_slice_last(s, in, 2 * dk + each * dv, each * dv), 2, (int64_t[]){nv, dv});
    qn_array *b = qn_reshape_rows(s, qn_slice_last(s, ba, 0, each), 1, (int64_t[]){nv});
    qn_array *a = qn_reshape_rows(s, qn_slice_last(s, ba, each, each), 1, (int64_t[]){nv});

    int64_t channels = 2 * nk * dk + nv * dv;
    qn_array *conv[5] = {qn_concat(s, 3, parts),
                         qn_transpose(s, plain(l, "linear_attn.conv1d.weight", 2,
                                               (int64_t[]){channels, number(l, "linear_conv_kernel_dim")}))};
    qn_array *mixed = qn_unary(s, QN_PRIM_SILU, recurrent(l, QN_PRIM_SHORT_CONV, 0, 2, conv));
    qn_array *q = qn_reshape_rows(s, qn_slice_last(s, mixed, 0, nk * dk), 2, (int64_t[]){nk, dk});
    qn_array *k = qn_reshape_rows(s, qn_slice_last(s, mixed, nk * dk, nk * dk), 2, (int64_t[]){nk, dk});
    qn_array *v = qn_reshape_rows(s, qn_slice_last(s, mixed, 2 * nk * dk, nv * dv), 2, (int64_t[]){nv, dv});

    qn_array *decay = qn_unary(s, QN_PRIM_SOFTPLUS, qn_add(s, a, plain(l, "linear_attn.dt_bias", 0, NULL)));
    qn_array *rate = qn_unary(s, QN_PRIM_EXP, plain(l, "linear_attn.A_log", 0, NULL));
    decay = qn_unary(s, QN_PRIM_NEG, qn_mul(s, rate, decay));
    q = qn_scale(s, unit_length(l, q), 1 / sqrtf((float)dk));
    qn_array *delta[8] = {q, unit_length(l, k), v, decay, qn_unary(s, QN_PRIM_SIGMOID, b)};
    qn_array *o = norm(l, recurrent(l, QN_PRIM_GATED_DELTA, 1, 5, delta), "linear_attn.norm.weight", 0);
    o = qn_mul(s, o, qn_unary(s, QN_PRIM_SILU, z));
    return project(l, qn_reshape_rows(s, o, 1, (int64_t[]){nv * dv}), "linear_attn.out_proj.weight");
}

static qn_array *qwen3_next(layer *l, qn_array *x)
{
    x = qn_add(l->scope, x, delta_net(l, norm(l, x, "input_layernorm.weight", 1)));
    return qn_add(l->scope, x, experts_and_shared(l, norm(l, x, "post_attention_layernorm.weight", 1)));
}

static qn_array *qwen3_moe(layer *l, qn_array *x)
{
    qn_scope *s = l->scope;
    int64_t heads = number(l, "num_attention_heads"), kv_heads = number(l, "num_key_value_heads"),
            dim = number(l, "head_dim"), half = dim / 2;
    float frequencies[512];
    for (int64_t i = 0; i < half; i++)
        frequencies[i] = (float)pow(real(l, "rope_theta"), -(double)i / (double)half);
    qn_array *f = qn_from_data(s, QN_DTYPE_F32, 1, &half, frequencies);
    qn_array *table = qn_rope_table(s, l->positions, f, 1);
    qn_array *h = norm(l, x, "input_layernorm.weight", 0);
    qn_array *q = qn_reshape_rows(s, project(l, h, "self_attn.q_proj.weight"), 2, (int64_t[]){heads, dim});
    qn_array *k = qn_reshape_rows(s, project(l, h, "self_attn.k_proj.weight"), 2, (int64_t[]){kv_heads, dim});
    qn_array *v = qn_reshape_rows(s, project(l, h, "self_attn.v_proj.weight"), 2, (int64_t[]){kv_heads, dim});
    q = qn_rope(s, norm(l, q, "self_attn.q_norm.weight", 0), table, 0);
    k = qn_rope(s, norm(l, k, "self_attn.k_norm.weight", 0), table, 0);
    qn_params_attend p = {.state = l->state[0], .scale = 1 / sqrtf((float)dim)};
    h = qn_attend(s, &p, q, k, v, l->positions, l->row_begin, l->blocks, NULL);
    h = project(l, qn_reshape_rows(s, h, 1, (int64_t[]){heads * dim}), "self_attn.o_proj.weight");
    x = qn_add(s, x, h);
    return qn_add(s, x, experts(l, norm(l, x, "post_attention_layernorm.weight", 0)));
}

static void layer_open(layer *l, const char *name, qn_array *(*build)(layer *, qn_array *), int n_threads)
{
    *l = (layer){0};
    l->weights = open_tensors("models/%s/model.safetensors", name);
    l->expected = open_tensors("models/%s/expected.safetensors", name);
    l->config = open_json("models/%s/config.json", name);
    qn_test_ok(qn_device_open("cpu", &(qn_device_options){.n_threads = n_threads}, &l->device));
    int64_t nk = number(l, "linear_num_key_heads"), nv = number(l, "linear_num_value_heads"),
            dk = number(l, "linear_key_head_dim"), dv = number(l, "linear_value_head_dim"), two = 2;
    qn_state_spec spec = {.kind = QN_STATE_SLOTS, .n_layers = 1, .n_units = 4}, pages = spec;
    const qn_device_ops *ops = l->device->ops;
    if (build == qwen3_next) {
        spec.slot_floats = (number(l, "linear_conv_kernel_dim") - 1) * (2 * nk * dk + nv * dv);
        qn_test_ok(ops->state_new(l->device, &spec, &l->state[0]));
        spec.slot_floats = nv * dk * dv;
        qn_test_ok(ops->state_new(l->device, &spec, &l->state[1]));
    } else {
        pages.kind = QN_STATE_PAGES;
        pages.kv_heads = number(l, "num_key_value_heads");
        pages.head_dim = pages.v_dim = number(l, "head_dim");
        pages.dtype = QN_DTYPE_F32;
        qn_test_ok(ops->state_new(l->device, &pages, &l->state[0]));
    }
    qn_scope *s = l->scope = qn_scope_new(l->device);
    qn_array *x =
        qn_input(s, QN_DTYPE_F32, rows_shape(QN_SYM_R, 0, 1, (int64_t[]){number(l, "hidden_size")}));
    l->row_begin = qn_input(s, QN_DTYPE_I32, rows_shape(QN_SYM_S, 1, 0, NULL));
    l->slots = qn_input(s, QN_DTYPE_I32, rows_shape(QN_SYM_S, 0, 0, NULL));
    l->reset = qn_input(s, QN_DTYPE_I32, rows_shape(QN_SYM_S, 0, 0, NULL));
    l->positions = qn_input(s, QN_DTYPE_I32, rows_shape(QN_SYM_R, 0, 0, NULL));
    l->blocks = qn_input(s, QN_DTYPE_I32, rows_shape(QN_SYM_S, 0, 1, &two));
    qn_array *y = build(l, x);
    qn_program_options o = {
        .name = "layer", .max = {{ROWS_MAX, SEQUENCES_MAX, 0}}, .precision = QN_PRECISION_EXACT};
    qn_test_ok(qn_program_new(s, &o, 1, &y, &l->program));
    qn_scope_free(s);
}

static void layer_close(layer *l)
{
    qn_program_free(l->program);
    for (int i = 0; i < 2; i++) l->device->ops->state_free(l->state[i]);
    qn_device_close(l->device);
    json_decref(l->config);
    qn_safetensors_close(l->expected);
    qn_safetensors_close(l->weights);
}

/* Rows [begin, end) of the fixture as the next rows of the sequence in `slot`. */
typedef struct {
    int64_t begin, end;
    int32_t slot;
} piece;

/* One run over the rows of n pieces; the output of piece i goes to out[i] (NULL: nowhere). */
static void feed(layer *l, int n, const piece *pieces, float *const *out)
{
    int64_t width = number(l, "hidden_size"), rows = 0;
    const float *hidden = qn_test_tensor(l->expected, "hidden.0", 0)->data;
    int32_t *row_begin = qn_program_input(l->program, 1), *slots = qn_program_input(l->program, 2),
            *reset = qn_program_input(l->program, 3), *positions = qn_program_input(l->program, 4),
            *blocks = qn_program_input(l->program, 5);
    row_begin[0] = 0;
    for (int i = 0; i < n; i++) {
        int64_t count = pieces[i].end - pieces[i].begin;
        memcpy((float *)qn_program_input(l->program, 0) + rows * width, hidden + pieces[i].begin * width,
               (size_t)(count * width) * sizeof(float));
        for (int64_t k = 0; positions && k < count; k++) positions[rows + k] = (int32_t)(pieces[i].begin + k);
        row_begin[i + 1] = (int32_t)(rows += count);
        if (slots) slots[i] = pieces[i].slot;
        if (reset) reset[i] = pieces[i].begin == 0;
        if (blocks) memcpy(blocks + 2 * i, (int32_t[]){0, pieces[i].slot}, 2 * sizeof *blocks);
    }
    qn_test_ok(qn_program_run(l->program, &(qn_sizes){{rows, n, 0}}));
    for (int i = 0; i < n; i++)
        if (out[i])
            memcpy(out[i], (const float *)qn_program_output(l->program, 0) + row_begin[i] * width,
                   (size_t)((pieces[i].end - pieces[i].begin) * width) * sizeof(float));
}

static void check_layer(const char *name, qn_array *(*build)(layer *, qn_array *))
{
    layer l;
    layer_open(&l, name, build, 2);
    const qn_tensor_view *want = qn_test_tensor(l.expected, "hidden.1", 0);
    int64_t rows = want->shape[0], width = want->shape[1];
    size_t bytes = want->size_bytes;
    float *whole = qn_alloc(bytes), *other = qn_alloc(bytes);
    feed(&l, 1, &(piece){0, rows, 0}, &whole);
    double d = difference(whole, want->data, rows * width);
    printf("%s: hidden.1 differs by %.1e of the largest value, in %d steps\n", name, d,
           qn_program_steps(l.program));
    if (!(d <= 1e-4)) fail_msg("%s: hidden.1 differs by %g of the largest value", name, d);

    /* pieces: 7 rows, the rest; then row by row; in a slot that an earlier sequence left dirty */
    for (int64_t step = 7; step >= 1; step -= 6) {
        for (int64_t at = 0; at < rows;) {
            int64_t end = step == 7 && at > 0 ? rows : at + step < rows ? at + step : rows;
            float *to = other + at * width;
            feed(&l, 1, &(piece){at, end, 1}, &to);
            at = end;
        }
        assert_memory_equal(whole, other, bytes);
    }
    /* in the middle of others, of which one goes on and one begins */
    float *nowhere = NULL;
    feed(&l, 1, &(piece){0, 5, 2}, &nowhere);
    feed(&l, 3, (piece[]){{5, 9, 2}, {0, rows, 3}, {0, 2, 0}}, (float *[]){NULL, other, NULL});
    assert_memory_equal(whole, other, bytes);
    layer_close(&l);
    /* by one worker */
    layer_open(&l, name, build, 1);
    feed(&l, 1, &(piece){0, rows, 0}, &other);
    assert_memory_equal(whole, other, bytes);
    layer_close(&l);
    qn_free(whole);
    qn_free(other);
}

static void recurrent_layer(void **state)
{
    check_layer("qwen3_next", qwen3_next);
}

static void experts_layer(void **state)
{
    check_layer("qwen3_moe", qwen3_moe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ragged_is_paged),
        cmocka_unit_test(recurrent_layer),
        cmocka_unit_test(experts_layer),
    };
    return cmocka_run_group_tests_name("spike", tests, NULL, NULL);
}
