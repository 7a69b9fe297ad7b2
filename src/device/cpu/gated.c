/* One or two products of the same rows, the chain that makes one value of theirs (silu(gate) x up), and the
 * packing of it for the product behind: as one step, for many rows. A worker computes a few columns of some
 * rows at a time and packs them while they are in its second-level cache; the results in between, twice the
 * widest of a layer, are never written. Rows and columns are what the steps on their own would give, bit by
 * bit. */
#include "device/cpu/cpu.h"

enum {
    COLUMNS = 64,        /* at a time at most */
    UNIT = 2 * QN_PANEL, /* whole blocks of packed activations */
    ROWS = 256,          /* at a time at most */
    ROWS_MIN = 64,       /* of a step: fewer pass over the panels before they pass over rows */
    X_BYTES = 768 << 10  /* the packed rows that stay in the second-level cache while panels pass */
};

enum { MADE = ROWS * COLUMNS }; /* the results of a product */

_Static_assert(QN_CPU_GATED_BYTES == 2 * MADE * sizeof(float) + QN_CPU_CHAIN_BYTES,
               "those of two, and a chain's");

static int is_whole(const qn_operand *o, const qn_operand *of)
{
    return o->slot == of->slot && o->offset == 0 && o->dtype == QN_DTYPE_F32 && o->shape.n == 2 &&
           qn_shape_equal(&o->shape, &of->shape) && o->stride[1] == 1 && o->stride[0] == o->shape.dim[1];
}

static int is_read_by(const qn_cpu_step *s, int slot)
{
    for (int i = 0; i < s->plan.n_in; i++)
        if (s->plan.in[i].slot == slot) return 1;
    return 0;
}

/* The products before the chain that make its inputs: 1 or 2, 0 if others do. */
static int n_products(const qn_cpu_step *steps, int at)
{
    const qn_cpu_step *s = &steps[at];
    int n = 0, first = at;
    for (int i = 0; i < s->plan.n_in; i++) {
        int from = at - 1;
        while (from >= 0 && from >= at - 2 && !is_whole(&s->plan.in[i], &steps[from].plan.out)) from--;
        if (from < 0 || from < at - 2) return 0;
        if (from < first) first = from;
    }
    n = at - first;
    for (int i = first; i < at; i++) {
        const qn_cpu_step *p = &steps[i];
        if (p->packs != QN_CPU_PACKS_ROWS || p->plan.prim != QN_PRIM_MATMUL ||
            p->plan.out.dtype != QN_DTYPE_F32 || p->plan.in[0].shape.n != 2 || (i > first && p->repack) ||
            p->barrier_after != (i == at - 1) || !is_read_by(s, p->plan.out.slot))
            return 0;
    }
    return n;
}

/* What p makes is read by step `reader` alone. */
static int is_read_only_by(const qn_cpu_step *steps, int n_steps, const qn_plan *plan, const qn_cpu_step *p,
                           int reader)
{
    for (int i = 0; i < n_steps; i++)
        if (i != reader && is_read_by(&steps[i], p->plan.out.slot)) return 0;
    return plan->slots[p->plan.out.slot].kind == QN_SLOT_TEMP;
}

/* What s makes is read by those products alone for which it is packed. */
static int is_read_packed(const qn_cpu_step *steps, int n_steps, const qn_plan *plan, const qn_cpu_step *s)
{
    const int slot = s->plan.out.slot;
    for (int i = 0; i < n_steps; i++)
        if (is_read_by(&steps[i], slot) && !(steps[i].ready && steps[i].plan.in[0].slot == slot)) return 0;
    return plan->slots[slot].kind == QN_SLOT_TEMP;
}

int qn_cpu_find_gated(qn_cpu_step *steps, int n_steps, const qn_plan *plan)
{
    int any = 0;
    for (int i = 1; i < n_steps; i++) {
        qn_cpu_step *s = &steps[i];
        const qn_cpu_step *behind = s->pack_behind;
        if (s->turns != 1 || s->plan.prim != QN_PRIM_FUSED || !behind ||
            !is_whole(&behind->plan.in[0], &s->plan.out) || s->plan.out.shape.dim[1] % UNIT ||
            qn_shape_dim(&s->plan.out.shape, 0, &plan->max) < ROWS_MIN)
            continue;
        const int n = n_products(steps, i);
        int alone = n > 0 && is_read_packed(steps, n_steps, plan, s);
        for (int p = i - n; p < i && alone; p++) alone = is_read_only_by(steps, n_steps, plan, &steps[p], i);
        if (!alone) continue;
        steps[i - n].gated = n;
        any = 1;
    }
    return any;
}

int64_t qn_cpu_gated_rows(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const int64_t n = qn_cpu_rows(run, &s->plan.out), parts = (n + ROWS - 1) / ROWS,
                  rows = n ? ((n + parts - 1) / parts + 3) / 4 * 4 : 0;
    const size_t row_bytes = qn_act_row_bytes(s->act, s->plan.in[0].shape.dim[1]);
    return n >= ROWS_MIN && (size_t)rows * row_bytes <= X_BYTES ? rows : 0;
}

/* same_rows: the tile before had the same. */
static void one_tile(const qn_cpu_run *run, const qn_cpu_step *s, const char *x, int64_t row, int64_t n_rows,
                     int64_t column, int64_t n_columns, int same_rows)
{
    const qn_cpu_step *chain = s + s->gated, *behind = chain->pack_behind;
    const size_t own_bytes = QN_CPU_OWN_ROWS * qn_act_row_bytes(s->act, s->plan.in[0].shape.dim[1]);
    float *made[2];
    const float *of[QN_MAX_INPUTS];
    for (int i = 0; i < s->gated; i++) {
        const qn_cpu_step *p = &s[i];
        const int64_t n_in = p->plan.in[0].shape.dim[1];
        made[i] = (float *)run->gated + (int64_t)i * MADE;
        qn_matmul_args a = {.dtype = p->plan.in[1].dtype,
                            .act = p->act,
                            .n_in = n_in,
                            .n_out = n_columns,
                            .panels =
                                (const char *)p->weight->data +
                                (size_t)(column / QN_PANEL) * qn_pack_panel_bytes(p->plan.in[1].dtype, n_in),
                            .x = x + (size_t)row * qn_act_row_bytes(p->act, n_in),
                            .n_rows = n_rows,
                            .out = made[i],
                            .out_stride = n_columns,
                            .same_rows = i || same_rows};
        run->kernels->matmul(&a, 0, n_columns / QN_PANEL, run->scratch + own_bytes);
    }
    for (int i = 0; i < chain->plan.n_in; i++)
        of[i] = made[chain->plan.in[i].slot == s[0].plan.out.slot ? 0 : 1];
    /* not in run->scratch, where the next products may find these rows as they left them */
    qn_cpu_fused_chain(run, chain, of, made[0], n_rows * n_columns, (float *)run->gated + 2 * MADE);
    const size_t row_bytes = qn_act_row_bytes(behind->act, chain->plan.out.shape.dim[1]);
    char *to = run->shared[behind->area] + (size_t)row * row_bytes + qn_act_offset(behind->act, column);
    for (int64_t r = 0; r < n_rows; r++, to += row_bytes)
        run->kernels->act_pack(behind->act, n_columns, made[0] + r * n_columns, to);
}

void qn_cpu_run_gated(const qn_cpu_run *run, const qn_cpu_step *s, int64_t rows)
{
    const qn_operand *x = &s->plan.in[0];
    const int64_t n = qn_cpu_rows(run, &s->plan.out), units = s->plan.out.shape.dim[1] / UNIT;
    const char *packed = qn_cpu_pack_rows(run, s, n, x->stride[0], x->shape.dim[1]);
    int64_t begin, end, row_before = -1;
    while (qn_cpu_claim(run, (n + rows - 1) / rows * units, &begin, &end)) {
        for (int64_t i = begin, some; i < end; i += some) {
            const int64_t row = i / units * rows, unit = i % units;
            some = end - i < COLUMNS / UNIT ? end - i : COLUMNS / UNIT;
            if (some > units - unit) some = units - unit;
            one_tile(run, s, packed, row, n - row < rows ? n - row : rows, unit * UNIT, some * UNIT,
                     row == row_before);
            row_before = row;
        }
    }
}
