/* Compiling a plan into steps with fixed addresses, and running it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "device/cpu/wide.h"
#include "device/host.h"
#include "quant/types.h"

/* Rows that go through row-local steps together: what a few steps make of them stays in the second-level
 * cache. */
enum { TURN_ROWS = 8 };

struct qn_cpu_exec {
    qn_exec base;
    char *name;
    qn_buffer *arena, *scratch, *shared, *split;
    size_t scratch_bytes, gated_bytes, shared_bytes; /* gated: at the end of scratch */
    qn_precision precision;
    int n_steps;
    qn_cpu_step *steps;
    char *labels;
    qn_probe_fn *probe;
    void *probe_user;
    FILE *trace;
    qn_sizes sizes;
    int64_t step_began_ns;
};

static const qn_cpu_prim *const table[QN_PRIM_COUNT] = {
#define S(name) [QN_PRIM_##name] = NULL,
#define E(name, inputs) [QN_PRIM_##name] = &qn_cpu_typed, /* f32 comes as FUSED */
#define P(name, rows) [QN_PRIM_##name] = &qn_cpu_##name,
#include "prim/primitives.def"
};

int qn_cpu_supports(qn_device *d, qn_prim prim)
{
    return table[prim] != NULL;
}

/* ---- compiling ---------------------------------------------------------------------------------------- */

static char *address(const qn_cpu_exec *e, const qn_plan *plan, const qn_operand *o)
{
    const qn_plan_slot *slot = &plan->slots[o->slot];
    char *base =
        slot->kind == QN_SLOT_TEMP ? (char *)e->arena->data + slot->offset_bytes : slot->buffer->data;
    const qn_type *type = qn_type_get(o->dtype);
    return base + (size_t)(o->offset / type->block_elements) * type->block_bytes;
}

static char *copy_text(char **at, const char *text)
{
    size_t n = strlen(text) + 1;
    char *copy = memcpy(*at, text, n);
    *at += n;
    return copy;
}

static qn_status copy_labels(qn_cpu_exec *e, const qn_plan *plan)
{
    size_t n = strlen(plan->name) + 1;
    for (int i = 0; i < plan->n_steps; i++) n += strlen(plan->steps[i].label) + 1;
    char *at = e->labels = qn_alloc(n);
    if (!at) return QN_E_NOMEM;
    e->name = copy_text(&at, plan->name);
    for (int i = 0; i < plan->n_steps; i++) e->steps[i].plan.label = copy_text(&at, plan->steps[i].label);
    return QN_OK;
}

/* The same rows of the same width: a view may begin where another one does and differ from it. */
static int same_activations(const qn_cpu_step *s, const qn_cpu_step *t)
{
    const qn_operand *a = &s->plan.in[0], *b = &t->plan.in[0];
    return s->packs == QN_CPU_PACKS_ROWS && t->packs == s->packs && s->in[0] == t->in[0] &&
           s->act == t->act && qn_shape_equal(&a->shape, &b->shape) &&
           memcmp(a->stride, b->stride, (size_t)a->shape.n * sizeof *a->stride) == 0;
}

static int same_row_count(const qn_cpu_step *s, const qn_cpu_step *t)
{
    qn_shape a = s->plan.in[0].shape, b = t->plan.in[0].shape;
    a.dim[a.n - 1] = b.dim[b.n - 1] = 1;
    return qn_shape_equal(&a, &b);
}

/* Matmuls in a row, of one group, that read the same activations pack them once; others alternate between two
 * areas, so that packing never overwrites what a slower worker still reads: each packing ends with a barrier.
 * One of few rows has no such barrier, so where the number of rows changes one is put before. */
static void share_activations(qn_cpu_exec *e)
{
    int area = 0;
    const qn_cpu_step *last = NULL; /* that packed */
    for (int i = 0; i < e->n_steps; i++) {
        qn_cpu_step *s = &e->steps[i], *t = i ? s - 1 : NULL;
        if (!s->packs) continue;
        s->repack = !(t && t->plan.group == s->plan.group && same_activations(s, t));
        s->area = s->repack ? (area ^= 1) : area;
        if (last && last->plan.group == s->plan.group && !same_row_count(s, last)) t->barrier_after = 1;
        last = s;
    }
}

/* ---- turns of row-local steps ------------------------------------------------------------------------- */

/* A vector may be one row to its primitive, and then one worker computes it. */
static int is_row_local(const qn_cpu_step *s)
{
    return qn_prim_get(s->plan.prim)->row_local && s->plan.out.shape.n > 1;
}

static int same_rows(const qn_shape *a, const qn_shape *b)
{
    return a->dim[0] == b->dim[0] && memcmp(a->sym, b->sym, sizeof a->sym) == 0;
}

/* May rows of x be packed as soon as the n steps from s on have computed theirs? */
static int packs_row_by_row(const qn_cpu_step *s, int n, const qn_cpu_step *product)
{
    const qn_operand *x = &product->plan.in[0];
    if (x->shape.n != 2 || !same_rows(&x->shape, &s->plan.out.shape)) return 0;
    for (int i = 0; i < n; i++)
        if (s[i].plan.out.slot == x->slot &&
            (x->stride[0] != s[i].plan.out.stride[0] || x->offset < 0 || x->offset >= x->stride[0]))
            return 0;
    return 1;
}

/* Row-local steps of one group over the same rows are walked together. Only they depend on each other inside
 * a group, and then they are all of it (see make_groups in array/program.c). Behind such a group nobody reads
 * packed activations any longer, so its workers may pack those of the product that comes next; the end of
 * the group is the barrier that packing needs. */
static void find_turns(qn_cpu_exec *e, const qn_plan *plan)
{
    for (int i = 0; i < e->n_steps; i++) {
        qn_cpu_step *s = &e->steps[i];
        if (!is_row_local(s)) continue;
        int whole_group = i == 0 || s[-1].barrier_after, n = 1;
        while (i + n < e->n_steps && !s[n - 1].barrier_after && is_row_local(&s[n]) &&
               same_rows(&s->plan.out.shape, &s[n].plan.out.shape))
            n++;
        s->turns = n;
        s->cuts = whole_group && i + n < e->n_steps && s[n - 1].barrier_after && s[n].barrier_after &&
                  qn_cpu_attend_cuts(s, n);
        i += n - 1;
        qn_cpu_step *product = s + n;
        if (i + 1 == e->n_steps || !whole_group || !s[n - 1].barrier_after ||
            product->packs != QN_CPU_PACKS_ROWS || !packs_row_by_row(s, n, product))
            continue;
        const qn_shape *x = &product->plan.in[0].shape;
        size_t bytes = (size_t)qn_shape_dim(x, 0, &plan->max) * qn_act_row_bytes(product->act, x->dim[1]);
        if (e->shared_bytes < bytes) e->shared_bytes = bytes;
        s->pack_behind = product;
        do product++->ready = 1;
        while (product < e->steps + e->n_steps && product->packs && !product->repack);
    }
}

static qn_status open_trace(qn_cpu_exec *e)
{
    const char *path = getenv("QUERN_TRACE");
    if (!path || !*path) return QN_OK;
    e->trace = fopen(path, "a");
    return e->trace ? QN_OK : qn_fail(QN_E_IO, "%s: cannot open the trace file", path);
}

qn_status qn_cpu_compile(qn_device *base, const qn_plan *plan, qn_exec **out)
{
    qn_cpu *d = (qn_cpu *)base;
    qn_cpu_exec *e = qn_calloc(1, sizeof *e);
    if (!e) return QN_E_NOMEM;
    e->base.device = base;
    e->precision = plan->precision;
    e->n_steps = plan->n_steps;
    qn_status status = QN_E_NOMEM;
    e->steps = qn_calloc((size_t)plan->n_steps + 1, sizeof *e->steps);
    if (!e->steps) goto out;
    if (plan->arena_bytes &&
        (status = qn_host_alloc(base, plan->arena_bytes, QN_LEDGER_SCRATCH, &e->arena)) != QN_OK)
        goto out;
    for (int i = 0; i < plan->n_steps; i++) {
        qn_cpu_step *s = &e->steps[i];
        const qn_cpu_prim *prim = table[plan->steps[i].prim];
        s->plan = plan->steps[i];
        s->fn = prim->fn;
        s->barrier_after = i + 1 == plan->n_steps || plan->steps[i + 1].group != s->plan.group;
        for (int k = 0; k < s->plan.n_in; k++) s->in[k] = address(e, plan, &s->plan.in[k]);
        s->out = address(e, plan, &s->plan.out);
        if (prim->prepare &&
            (status = prim->prepare(d, plan, s, &e->scratch_bytes, &e->shared_bytes)) != QN_OK)
            goto out;
    }
    share_activations(e);
    find_turns(e, plan);
    e->gated_bytes = qn_cpu_find_gated(e->steps, e->n_steps, plan) ? QN_CPU_GATED_BYTES : 0;
    size_t split_bytes = 0;
    for (int i = 0; i < e->n_steps; i++)
        if (e->steps[i].split_bytes > split_bytes) split_bytes = e->steps[i].split_bytes;
    if ((status = copy_labels(e, plan)) != QN_OK) goto out;
    if ((status = open_trace(e)) != QN_OK) goto out;
    e->scratch_bytes = (e->scratch_bytes + 4095) / 4096 * 4096 + e->gated_bytes;
    e->shared_bytes = (e->shared_bytes + 4095) / 4096 * 4096;
    size_t n = (size_t)qn_pool_threads(d->pool);
    if (e->scratch_bytes &&
        (status = qn_host_alloc(base, n * e->scratch_bytes, QN_LEDGER_SCRATCH, &e->scratch)) != QN_OK)
        goto out;
    if (e->shared_bytes &&
        (status = qn_host_alloc(base, 2 * e->shared_bytes, QN_LEDGER_SCRATCH, &e->shared)) != QN_OK)
        goto out;
    if (split_bytes && n > 1 &&
        (status = qn_host_alloc(base, (n - 1) * split_bytes, QN_LEDGER_SCRATCH, &e->split)) != QN_OK)
        goto out;
    status = QN_OK;
out:
    if (status != QN_OK) {
        qn_cpu_exec_free(&e->base);
        return status;
    }
    qn_cpu_set_probe(&e->base, NULL, NULL, NULL);
    *out = &e->base;
    return QN_OK;
}

void qn_cpu_exec_free(qn_exec *base)
{
    qn_cpu_exec *e = (qn_cpu_exec *)base;
    if (!e) return;
    qn_buffer_release(e->arena);
    qn_buffer_release(e->scratch);
    qn_buffer_release(e->shared);
    qn_buffer_release(e->split);
    if (e->trace) fclose(e->trace);
    qn_free(e->steps);
    qn_free(e->labels);
    qn_free(e);
}

/* ---- showing steps ------------------------------------------------------------------------------------ */

/* The turns from s on are taken apart, or no longer: then a product behind them packs its rows itself. */
static void take_apart(const qn_cpu_exec *e, qn_cpu_step *s, int apart)
{
    s->apart = apart;
    qn_cpu_step *product = (qn_cpu_step *)(uintptr_t)s->pack_behind;
    if (!product) return;
    do product++->ready = !apart;
    while (product < e->steps + e->n_steps && product->packs && !product->repack);
}

void qn_cpu_set_probe(qn_exec *base, qn_probe_fn *probe, qn_probe_wants_fn *wants, void *user)
{
    qn_cpu_exec *e = (qn_cpu_exec *)base;
    e->probe = probe;
    e->probe_user = user;
    for (int i = 0; i < e->n_steps; i++) {
        qn_cpu_step *s = &e->steps[i];
        s->wanted = probe && (!wants || wants(user, &s->plan));
        s->shown = s->wanted || e->trace;
    }
    for (int i = 0; i < e->n_steps; i++) {
        int any = 0;
        for (int k = 0; k < e->steps[i].turns; k++) any |= e->steps[i + k].shown;
        if (e->steps[i].turns) take_apart(e, &e->steps[i], any);
        for (int k = 0; k <= e->steps[i].gated; k++) any |= e->steps[i + k].shown;
        if (e->steps[i].gated) e->steps[i].apart = any;
    }
}

/* ---- running ------------------------------------------------------------------------------------------ */

/* One line of JSON a step: name, kernel, time, bytes of the output and a hash of its bits. */
static void write_trace(qn_cpu_exec *e, const qn_cpu_step *s)
{
    const qn_operand *o = &s->plan.out;
    const qn_type *type = qn_type_get(o->dtype);
    size_t bytes =
        (size_t)qn_shape_elements(&o->shape, &e->sizes) / (size_t)type->block_elements * type->block_bytes;
    char shape[96];
    fprintf(e->trace,
            "{\"program\":\"%s\",\"step\":%d,\"name\":\"%s\",\"kernel\":\"%s.%s\",\"shape\":\"%s\",\"ns\":%"
            "lld,\"bytes\":%zu,"
            "\"hash\":\"%016llx\"}\n",
            e->name, (int)(s - e->steps), s->plan.label, qn_prim_get(s->plan.prim)->name,
            ((qn_cpu *)e->base.device)->kernels->name, qn_shape_text(&o->shape, shape, sizeof shape),
            (long long)(qn_clock_ns() - e->step_began_ns), bytes,
            (unsigned long long)qn_hash_bytes(s->out, bytes, 0));
}

typedef struct {
    qn_cpu_exec *e;
    const qn_cpu_step *s;
} showing;

/* By the worker that finished its share last, while the others wait. */
static void show_step(void *arg)
{
    const showing *w = arg;
    const qn_cpu_step *s = w->s;
    if (w->e->trace) write_trace(w->e, s);
    if (s->wanted) {
        const void *in[QN_MAX_INPUTS];
        for (int i = 0; i < s->plan.n_in; i++) in[i] = s->in[i];
        w->e->probe(w->e->probe_user, &(qn_probe_view){&s->plan, in, s->out, &w->e->sizes});
    }
    if (w->e->trace) w->e->step_began_ns = qn_clock_ns();
}

/* Rows [begin, end) through the steps from s on, a few at a time. */
static void walk_rows(qn_cpu_run *run, const qn_cpu_step *s, int64_t begin, int64_t end)
{
    for (run->turn_from = begin; run->turn_from < end; run->turn_from = run->turn_to) {
        run->turn_to = end - run->turn_from < TURN_ROWS ? end : run->turn_from + TURN_ROWS;
        for (int i = 0; i < s->turns; i++) s[i].fn(run, &s[i]);
        if (s->pack_behind) qn_cpu_pack_turn(run, s->pack_behind, run->turn_from, run->turn_to);
    }
    run->turn_to = 0;
}

/* Rows of few turns are shared out beforehand, those of many are claimed. */
static void take_turns(qn_cpu_run *run, const qn_cpu_step *s)
{
    int64_t rows = qn_cpu_rows(run, &s->plan.out), begin, end;
    if (rows <= (int64_t)TURN_ROWS * run->n_threads) {
        qn_cpu_share(run, rows, &begin, &end);
        walk_rows(run, s, begin, end);
    } else {
        while (qn_cpu_claim(run, rows, &begin, &end)) walk_rows(run, s, begin, end);
    }
}

static void walk(void *arg, int thread, int n_threads)
{
    qn_cpu_exec *e = arg;
    qn_cpu *d = (qn_cpu *)e->base.device;
    qn_cpu_run run = {.kernels = d->kernels,
                      .pool = d->pool,
                      .sizes = e->sizes,
                      .precision = e->precision,
                      .thread = thread,
                      .n_threads = n_threads};
    if (e->scratch) run.scratch = (char *)e->scratch->data + (size_t)thread * e->scratch_bytes;
    run.gated = run.scratch + (e->scratch_bytes - e->gated_bytes);
    for (int i = 0; i < 2 && e->shared; i++)
        run.shared[i] = (char *)e->shared->data + (size_t)i * e->shared_bytes;
    if (e->split) run.split = e->split->data;
    for (int i = 0, n_apart = 0; i < e->n_steps; i++, n_apart--) {
        const qn_cpu_step *s = &e->steps[i];
        if (s->turns && !s->apart) {
            run.cut = s->cuts ? qn_cpu_attend_cut(&run, s + s->turns) : 0;
            if (run.cut)
                walk_rows(&run, s, 0, 1);
            else
                take_turns(&run, s);
            i += s->turns - 1;
            if (e->steps[i].barrier_after && !run.cut) qn_pool_barrier(d->pool);
            continue;
        }
        const int64_t rows = s->gated && !s->apart ? qn_cpu_gated_rows(&run, s) : 0;
        if (rows) {
            qn_cpu_run_gated(&run, s, rows);
            qn_pool_barrier(d->pool);
            i += s->gated;
            continue;
        }
        if (s->apart) n_apart = s->turns;
        s->fn(&run, s);
        run.cut = 0;
        if (s->shown)
            qn_pool_barrier_call(d->pool, show_step, &(showing){e, s});
        else if (s->barrier_after || n_apart > 0)
            qn_pool_barrier(d->pool);
    }
}

/* What could not be written while the program ran is gone from the buffer: only the mark is left of it. */
static qn_status flush_trace(FILE *f)
{
    const int failed = fflush(f) != 0, error = errno;
    if (!failed && !ferror(f)) return QN_OK;
    clearerr(f);
    return qn_fail(QN_E_IO, "QUERN_TRACE: cannot write the trace: %s",
                   failed ? strerror(error) : "some of its lines are lost");
}

qn_status qn_cpu_run_program(qn_exec *base, const qn_sizes *sizes)
{
    qn_cpu_exec *e = (qn_cpu_exec *)base;
    e->sizes = *sizes;
    if (e->trace) e->step_began_ns = qn_clock_ns();
#ifdef QN_SHAKE
    if (e->arena)
        memset(e->arena->data, 0xff, e->arena->size_bytes); /* NaN: nothing may live from run to run */
#endif
    const int64_t rows = sizes->v[QN_SYM_R] > sizes->v[QN_SYM_L] ? sizes->v[QN_SYM_R] : sizes->v[QN_SYM_L];
    qn_pool *pool = ((qn_cpu *)base->device)->pool;
    if (rows > 0 && rows <= QN_FEW_ROWS)
        qn_pool_run_brief(pool, walk, e);
    else
        qn_pool_run(pool, walk, e);
    return e->trace ? flush_trace(e->trace) : QN_OK;
}
