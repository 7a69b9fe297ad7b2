/* Products of rows with the matrices that their ids name: the experts of one layer as one ragged product.
 *
 * Every worker sorts the pairs (row, choice) by expert; the panels of the experts that somebody asks for are
 * then claimed as one list, so that an expert that nobody asks for costs nothing, not even the first reading
 * of its weights (qn_cpu_warm). The rows of an expert are brought together, as many as fit the caches, and go
 * through the kernels of any other product: a row's bits do not depend on who shares its expert. */
#include <string.h>

#include "device/cpu/cpu.h"

/* GROUP_ROWS: rows of one expert that are multiplied at once: their activations stay in the second-level
 * cache while panels pass. TILE_FLOATS: outputs on their way to where they belong; stay in the first-level
 * cache. */
enum { GROUP_ROWS = 128, TILE_FLOATS = 4096 };

/* One step in one run. */
typedef struct {
    const qn_cpu_run *run;
    const qn_cpu_step *s;
    int64_t n_in, n_out, top, n_panels, n_active;
    size_t row_bytes, panel_bytes;
    const float *bias;                     /* [n_experts, n_out] or NULL */
    const int32_t *begin, *active, *pairs; /* pairs of expert e: pairs[begin[e]] .. pairs[begin[e + 1]] */
    const char *packed;                    /* activations: of rows (EXPERTS), of sorted pairs (EXPERTS_SUM) */
    char *kernel_scratch, *gathered;
    float *tile;
} ragged;

/* ---- pairs -------------------------------------------------------------------------------------------- */

/* Pairs r * top + j by rising expert, in rising order within one. */
static void sort_pairs(ragged *g, int64_t rows)
{
    const qn_operand *ids = &g->s->plan.in[2];
    int64_t n_experts = g->s->plan.in[1].shape.dim[0], n = 0;
    int32_t *begin = (int32_t *)(g->run->scratch + g->s->index_at), *active = begin + n_experts + 1,
            *pairs = active + n_experts;
    memset(begin, 0, (size_t)(n_experts + 1) * sizeof *begin);
    for (int64_t r = 0; r < rows; r++) {
        const int32_t *of_row = (const int32_t *)g->s->in[2] + r * ids->stride[0];
        for (int64_t j = 0; j < g->top; j++) begin[of_row[j] + 1]++;
    }
    for (int64_t e = 0; e < n_experts; e++) {
        if (begin[e + 1]) active[n++] = (int32_t)e;
        begin[e + 1] += begin[e];
    }
    for (int64_t r = 0; r < rows; r++) {
        const int32_t *of_row = (const int32_t *)g->s->in[2] + r * ids->stride[0];
        for (int64_t j = 0; j < g->top; j++) pairs[begin[of_row[j]]++] = (int32_t)(r * g->top + j);
    }
    /* each beginning has moved to its end, which is where the next one began */
    memmove(begin + 1, begin, (size_t)n_experts * sizeof *begin);
    begin[0] = 0;
    g->begin = begin;
    g->active = active;
    g->pairs = pairs;
    g->n_active = n;
}

static ragged start(const qn_cpu_run *run, const qn_cpu_step *s, int bias)
{
    const qn_operand *w = &s->plan.in[1];
    ragged g = {.run = run,
                .s = s,
                .n_in = w->shape.dim[2],
                .n_out = w->shape.dim[1],
                .top = s->plan.in[2].shape.dim[1],
                .n_panels = (w->shape.dim[1] + QN_PANEL - 1) / QN_PANEL,
                .row_bytes = qn_act_row_bytes(s->act, w->shape.dim[2]),
                .panel_bytes = qn_pack_panel_bytes(w->dtype, w->shape.dim[2]),
                .bias = s->plan.params.experts.has_bias ? (const float *)s->in[bias] : NULL,
                .kernel_scratch = run->scratch + s->kernel_at,
                .gathered = run->scratch + s->rows_at,
                .tile = (float *)(run->scratch + s->tile_at)};
    return g;
}

static const float *input_of(const ragged *g, int32_t pair)
{
    const qn_operand *x = &g->s->plan.in[0];
    int64_t r = pair / g->top, j = pair % g->top;
    return (const float *)g->s->in[0] + r * x->stride[0] + (x->shape.n == 3 ? j * g->n_in : 0);
}

/* ---- products ----------------------------------------------------------------------------------------- */

/* Panels [from, to) of an expert for packed rows; out: where column 16 * from of the first row goes.
 * same_rows: those of the product before, with nothing between that uses the kernel's scratch. */
static void product(const ragged *g, int64_t expert, int64_t from, int64_t to, const char *x, int64_t n_rows,
                    int same_rows, float *out, int64_t out_stride)
{
    const char *panels =
        (const char *)g->s->weight->data + (size_t)(expert * g->n_panels + from) * g->panel_bytes;
    int64_t rest = g->n_out - from * QN_PANEL, wide = (to - from) * QN_PANEL;
    qn_matmul_args a = {.dtype = g->s->plan.in[1].dtype,
                        .act = g->s->act,
                        .n_in = g->n_in,
                        .n_out = rest < wide ? rest : wide,
                        .panels = panels,
                        .x = x,
                        .n_rows = n_rows,
                        .out = out,
                        .out_stride = out_stride,
                        .same_rows = same_rows};
    g->run->kernels->matmul(&a, 0, to - from, g->kernel_scratch);
}

/* Columns of `to`, of panels [from, ..), that a tile of n_rows holds. */
static int64_t tile_end(const ragged *g, int64_t from, int64_t to, int64_t n_rows)
{
    int64_t most = TILE_FLOATS / QN_PANEL / n_rows;
    return to - from < most ? to : from + most;
}

static int64_t columns(const ragged *g, int64_t from, int64_t to)
{
    return (to * QN_PANEL < g->n_out ? to * QN_PANEL : g->n_out) - from * QN_PANEL;
}

/* A row's outputs of panels [from, to) with the expert's bias. */
static void add_bias(const ragged *g, int64_t expert, int64_t from, int64_t to, float *y)
{
    if (!g->bias) return;
    const float *bias = g->bias + expert * g->n_out + from * QN_PANEL;
    g->run->kernels->ew[QN_EW_ADD](y, y, 1, bias, 1, columns(g, from, to));
}

/* The packed activations of `n` sorted pairs from `first` on, side by side. */
static const char *gather(const ragged *g, int64_t first, int64_t n)
{
    const int32_t *pairs = g->pairs + first;
    if (g->s->packs == QN_CPU_PACKS_PAIRS) return g->packed + (size_t)first * g->row_bytes;
    if (g->packed && n == 1) return g->packed + (size_t)(pairs[0] / g->top) * g->row_bytes;
    for (int64_t i = 0; i < n; i++) {
        char *to = g->gathered + (size_t)i * g->row_bytes;
        if (g->packed)
            memcpy(to, g->packed + (size_t)(pairs[i] / g->top) * g->row_bytes, g->row_bytes);
        else
            g->run->kernels->act_pack(g->s->act, g->n_in, input_of(g, pairs[i]), to);
    }
    return g->gathered;
}

/* Panels [from, to) of one expert for all its rows, into out [pairs, n_out]. */
static void expert_panels(const ragged *g, float *out, int64_t expert, int64_t from, int64_t to)
{
    qn_cpu_warm(g->run->kernels, g->s->weight, expert, from, to, g->kernel_scratch);
    for (int64_t first = g->begin[expert]; first < g->begin[expert + 1]; first += GROUP_ROWS) {
        int64_t left = g->begin[expert + 1] - first, n = left < GROUP_ROWS ? left : GROUP_ROWS;
        const int32_t *pairs = g->pairs + first;
        const char *x = gather(g, first, n);
        if (n == 1) {
            float *row = out + pairs[0] * g->n_out + from * QN_PANEL;
            product(g, expert, from, to, x, 1, 0, row, g->n_out);
            add_bias(g, expert, from, to, row);
            continue;
        }
        for (int64_t p = from, q; p < to; p = q) {
            q = tile_end(g, p, to, n);
            int64_t wide = (q - p) * QN_PANEL;
            product(g, expert, p, q, x, n, p > from, g->tile, wide);
            for (int64_t i = 0; i < n; i++) {
                float *row = out + pairs[i] * g->n_out + p * QN_PANEL;
                memcpy(row, g->tile + i * wide, (size_t)columns(g, p, q) * sizeof *row);
                add_bias(g, expert, p, q, row);
            }
        }
    }
}

/* All experts that somebody asks for, their panels claimed as one list. */
static void all_panels(const ragged *g, float *out)
{
    int64_t begin, end;
    while (qn_cpu_claim(g->run, g->n_active * g->n_panels, &begin, &end))
        while (begin < end) {
            int64_t i = begin / g->n_panels, from = begin - i * g->n_panels,
                    to = end - i * g->n_panels < g->n_panels ? end - i * g->n_panels : g->n_panels;
            expert_panels(g, out, g->active[i], from, to);
            begin = i * g->n_panels + to;
        }
}

static void experts_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *x = &s->plan.in[0];
    int64_t rows = qn_cpu_rows(run, x);
    ragged g = start(run, s, 3);
    if (s->packs) g.packed = qn_cpu_pack_rows(run, s, rows, x->stride[0], g.n_in);
    sort_pairs(&g, rows);
    all_panels(&g, (float *)s->out);
}

/* ---- products and their sum --------------------------------------------------------------------------- */

/* Adds a pair's part of panels [from, to), which y holds, to its row's sum. */
static void add_share(const ragged *g, int32_t pair, int64_t from, int64_t to, float *y)
{
    const qn_kernels *k = g->run->kernels;
    int64_t r = pair / g->top, n = columns(g, from, to);
    const float *share = (const float *)g->s->in[3] + r * g->s->plan.in[3].stride[0] + pair % g->top;
    float *sum = (float *)g->s->out + r * g->n_out + from * QN_PANEL;
    k->ew[QN_EW_MUL](y, y, 1, share, 0, n);
    k->ew[QN_EW_ADD](sum, sum, 1, y, 1, n);
}

static void clear_sums(const ragged *g, int64_t rows, int64_t from, int64_t to)
{
    float *out = (float *)g->s->out + from * QN_PANEL;
    for (int64_t r = 0; r < rows; r++)
        memset(out + r * g->n_out, 0, (size_t)columns(g, from, to) * sizeof *out);
}

/* Few rows: all products first, each expert's panels read in one go, then the sums. Nobody may still read the
 * shared area, which an earlier step of the group may have had. */
static void sum_of_few(const ragged *g, int64_t rows)
{
    float *products = (float *)g->run->shared[g->s->area];
    int64_t from, to;
    qn_pool_barrier(g->run->pool);
    all_panels(g, products);
    qn_pool_barrier(g->run->pool);
    qn_cpu_share(g->run, g->n_panels, &from, &to);
    if (from >= to) return;
    clear_sums(g, rows, from, to);
    for (int64_t i = 0; i < rows * g->top; i++)
        add_share(g, g->pairs[i], from, to, products + g->pairs[i] * g->n_out + from * QN_PANEL);
}

/* Many rows: panels [from, to) of all of them. A worker owns its columns and goes through the experts by
 * rising id, so that products need not be kept; each sum has one owner and one order either way. */
static void sum_panels(const ragged *g, int64_t rows, int64_t from, int64_t to)
{
    clear_sums(g, rows, from, to);
    for (int64_t i = 0; i < g->n_active; i++) {
        int64_t expert = g->active[i], last = g->begin[expert + 1];
        qn_cpu_warm(g->run->kernels, g->s->weight, expert, from, to, g->kernel_scratch);
        for (int64_t first = g->begin[expert]; first < last; first += GROUP_ROWS) {
            int64_t n = last - first < GROUP_ROWS ? last - first : GROUP_ROWS;
            const char *x = gather(g, first, n);
            for (int64_t p = from, q; p < to; p = q) {
                q = tile_end(g, p, to, n);
                int64_t wide = (q - p) * QN_PANEL;
                product(g, expert, p, q, x, n, p > from, g->tile, wide);
                for (int64_t a = 0; a < n; a++) {
                    add_bias(g, expert, p, q, g->tile + a * wide);
                    add_share(g, g->pairs[first + a], p, q, g->tile + a * wide);
                }
            }
        }
    }
}

static void experts_sum_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    int64_t rows = qn_cpu_rows(run, &s->plan.in[0]), begin, end;
    ragged g = start(run, s, 4);
    int own = rows <= QN_CPU_OWN_ROWS;
    char *packed = own ? run->scratch : run->shared[s->area];
    sort_pairs(&g, rows);
    begin = 0;
    end = rows * g.top;
    if (!own) qn_cpu_share(run, rows * g.top, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        run->kernels->act_pack(s->act, g.n_in, input_of(&g, g.pairs[i]), packed + (size_t)i * g.row_bytes);
    g.packed = packed;
    if (own) {
        sum_of_few(&g, rows);
        return;
    }
    qn_pool_barrier(run->pool);
    while (qn_cpu_claim(run, g.n_panels, &begin, &end)) sum_panels(&g, rows, begin, end);
}

/* ---- preparing ---------------------------------------------------------------------------------------- */

static void grow(size_t *have, size_t need)
{
    if (*have < need) *have = need;
}

static size_t aligned(size_t n)
{
    return (n + 63) / 64 * 64;
}

/* own: rows that a worker may pack for itself, at the beginning of its scratch; gathered: rows of a group
 * that it copies. */
static qn_status place(const qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, int64_t own, int64_t gathered,
                       size_t *scratch_bytes)
{
    const qn_operand *w = &step->plan.in[1], *ids = &step->plan.in[2];
    const qn_plan_slot *slot = &plan->slots[w->slot];
    if (!slot->buffer || slot->buffer->layout != QN_CPU_LAYOUT_PANELS || w->offset ||
        w->stride[0] != w->shape.dim[1] * w->shape.dim[2])
        return qn_fail(QN_E_UNSUPPORTED, "experts need packed weights, and all of them");
    step->weight = slot->buffer;
    step->act = qn_matmul_act(w->dtype, plan->precision);
    step->repack = 1;
    size_t row_bytes = qn_act_row_bytes(step->act, w->shape.dim[2]), kernel = 0;
    int64_t pairs = qn_shape_elements(&ids->shape, &plan->max), n_index = 2 * w->shape.dim[0] + 1 + pairs;
    if (pairs > INT32_MAX) return qn_fail(QN_E_UNSUPPORTED, "%lld choices of experts", (long long)pairs);
    grow(&kernel, qn_matmul_scratch_bytes(d->kernels, w->dtype, step->act, w->shape.dim[2],
                                          pairs < GROUP_ROWS ? pairs : GROUP_ROWS));
    grow(&kernel, qn_cpu_warm_scratch_bytes(step->weight));
    step->kernel_at = (size_t)own * row_bytes;
    step->tile_at = step->kernel_at + aligned(kernel);
    step->rows_at = step->tile_at + TILE_FLOATS * sizeof(float);
    step->index_at = step->rows_at + (size_t)gathered * row_bytes;
    grow(scratch_bytes, step->index_at + aligned((size_t)n_index * sizeof(int32_t)));
    return QN_OK;
}

static qn_status experts_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                                 size_t *shared_bytes)
{
    const qn_operand *x = &step->plan.in[0];
    int64_t rows = qn_shape_dim(&x->shape, 0, &plan->max);
    step->packs = x->shape.n == 2 ? QN_CPU_PACKS_ROWS : QN_CPU_PACKS_NOTHING;
    QN_TRY(place(d, plan, step, step->packs ? QN_CPU_OWN_ROWS : 0, rows < GROUP_ROWS ? rows : GROUP_ROWS,
                 scratch_bytes));
    if (step->packs && rows > QN_CPU_OWN_ROWS)
        grow(shared_bytes, (size_t)rows * qn_act_row_bytes(step->act, x->shape.dim[1]));
    return QN_OK;
}

static qn_status experts_sum_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                                     size_t *shared_bytes)
{
    const qn_operand *x = &step->plan.in[0];
    int64_t rows = qn_shape_dim(&x->shape, 0, &plan->max), top = x->shape.dim[1];
    step->packs = QN_CPU_PACKS_PAIRS;
    int64_t few = (rows < QN_CPU_OWN_ROWS ? rows : QN_CPU_OWN_ROWS) * top;
    QN_TRY(place(d, plan, step, few, 0, scratch_bytes));
    grow(shared_bytes, (size_t)(few * step->plan.in[1].shape.dim[1]) * sizeof(float));
    if (rows > QN_CPU_OWN_ROWS)
        grow(shared_bytes, (size_t)(rows * top) * qn_act_row_bytes(step->act, x->shape.dim[2]));
    return QN_OK;
}

const qn_cpu_prim qn_cpu_EXPERTS = {experts_run, experts_prepare};
const qn_cpu_prim qn_cpu_EXPERTS_SUM = {experts_sum_run, experts_sum_prepare};
