/* Chains of element-wise primitives, tile by tile. What goes straight on from one cheap operation to the next
 * stays in registers; what is used later, or comes from a function that costs more than loading and storing
 * it, lies in a tile in L1. */
#include <string.h>

#include "device/cpu/cpu.h"

enum { TILE = QN_CPU_CHAIN_BYTES / QN_FUSED_MAX / sizeof(float) };

enum { STREAM_RUN = 1 << 14 }; /* of a result that is written past the caches: shorter runs are not */

static const int kernel_of[QN_PRIM_COUNT] = {
#define E(name, inputs) [QN_PRIM_##name] = QN_EW_##name,
#include "prim/primitives.def"
};

static const uint8_t is_link[QN_EW_COUNT] = {
#define IS_LINK(name) [QN_EW_##name] = 1,
    QN_EW_LINK_LIST(IS_LINK)
#undef IS_LINK
};

static qn_status fused_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                               size_t *shared_bytes)
{
    size_t need = QN_CPU_CHAIN_BYTES;
    if (*scratch_bytes < need) *scratch_bytes = need;
    return QN_OK;
}

/* Instructions first .. last: one function, or a run of links that begins with the first one's input `begin`.
 */
typedef struct {
    int first, last, is_run;
    int begin; /* as in qn_fused_op */
} piece;

typedef struct {
    const qn_cpu_run *run;
    float *tiles; /* QN_CPU_CHAIN_BYTES: tile i has what instruction i made */
    const qn_cpu_step *s;
    int n_pieces, streams; /* 1: results are written past the caches */
    piece pieces[QN_FUSED_MAX];
    const float *in[QN_MAX_INPUTS];
    int64_t step[QN_MAX_INPUTS]; /* 1 or 0 */
} chain;

static int inputs_of(const qn_fused_op *op)
{
    return qn_prim_get((qn_prim)op->op)->elementwise_inputs;
}

static void cut_into_pieces(chain *c)
{
    const qn_fused_op *op = c->s->plan.params.fused.op;
    const int n = c->s->plan.params.fused.n;
    int uses[QN_FUSED_MAX] = {0};
    for (int i = 0; i < n; i++) {
        if (op[i].a >= 0) uses[op[i].a]++;
        if (inputs_of(&op[i]) == 2 && op[i].b >= 0 && op[i].b != op[i].a) uses[op[i].b]++;
    }
    c->n_pieces = 0;
    for (int i = 0; i < n; i++) {
        const int links = is_link[kernel_of[op[i].op]], two = inputs_of(&op[i]) == 2;
        piece *p = c->n_pieces ? &c->pieces[c->n_pieces - 1] : NULL;
        if (links && p && p->is_run && p->last == i - 1 && uses[i - 1] == 1 &&
            (op[i].a == i - 1 || (two && op[i].b == i - 1)))
            p->last = i;
        else
            c->pieces[c->n_pieces++] = (piece){i, i, links, op[i].a};
    }
}

/* Where elements [at, ..) of an operand lie. */
static const float *operand(const chain *c, int index, int64_t at, int64_t *step)
{
    *step = index >= 0 ? 1 : c->step[~index];
    return index >= 0 ? c->tiles + (int64_t)index * TILE : c->in[~index] + at * *step;
}

static void run_piece(const chain *c, const piece *p, int64_t at, float *to, int64_t n, int streams)
{
    const qn_fused_op *op = c->s->plan.params.fused.op + p->first;
    const qn_kernels *k = c->run->kernels;
    int64_t a_step, b_step;
    const float *a = operand(c, p->begin, at, &a_step);
    if (!p->is_run) {
        const float *b = operand(c, op->b, at, &b_step);
        k->ew[kernel_of[op->op]](to, a, a_step, b, b_step, n);
        return;
    }
    qn_ew_link links[QN_FUSED_MAX];
    for (int i = p->first; i <= p->last; i++, op++) {
        qn_ew_link *l = &links[i - p->first];
        const int two = inputs_of(op) == 2, on = i > p->first;
        *l = (qn_ew_link){.op = (uint8_t)kernel_of[op->op], .swapped = (uint8_t)(on && op->a != i - 1)};
        const int other = l->swapped ? op->a : op->b;
        if (two && !(on && other == i - 1)) l->other = operand(c, other, at, &l->step);
    }
    k->ew_chain(to, a, a_step, links, p->last - p->first + 1, n, streams);
}

/* n elements, of which the first is c->in's. */
static void run_chain(const chain *c, float *out, int64_t n)
{
    const int n_ops = c->s->plan.params.fused.n;
    const int streams = c->streams && n >= STREAM_RUN;
    /* streaming stores go to whole lines: a first tile ends where one begins */
    int64_t m = streams ? (int64_t)(-(uintptr_t)out / sizeof *out % 16) : 0;
    for (int64_t at = 0; at < n; at += m, m = 0) {
        if (m == 0) m = n - at < TILE ? n - at : TILE;
        for (int i = 0; i < c->n_pieces; i++) {
            const piece *p = &c->pieces[i];
            float *tile = c->tiles + (int64_t)p->last * TILE;
            const int ends = p->last + 1 == n_ops, line = streams && (uintptr_t)(out + at) % 64 == 0;
            run_piece(c, p, at, ends && !(line && !p->is_run) ? out + at : tile, m, ends && line);
            if (ends && line && !p->is_run) c->run->kernels->ew_chain(out + at, tile, 1, NULL, 0, m, 1);
        }
    }
    if (streams) c->run->kernels->ew_chain(out, out, 1, NULL, 0, 0, 2);
}

void qn_cpu_fused_chain(const qn_cpu_run *run, const qn_cpu_step *s, const float *const *in, float *out,
                        int64_t n, float *tiles)
{
    chain c = {.run = run, .s = s, .tiles = tiles};
    for (int i = 0; i < s->plan.n_in; i++) {
        c.in[i] = in[i];
        c.step[i] = 1;
    }
    cut_into_pieces(&c);
    run_chain(&c, out, n);
}

/* The first dimension of the longest tail over which every input is contiguous, or constant. */
static int inner_from(const qn_cpu_step *s, int64_t *step)
{
    int n = s->plan.out.shape.n, from = n;
    for (int i = 0; i < s->plan.n_in; i++) step[i] = -1;
    int64_t run = 1;
    for (int d = n - 1; d >= 0; d--) {
        int64_t size = s->plan.out.shape.dim[d];
        int single = size == 1 && !(d == 0 && qn_shape_is_symbolic(&s->plan.out.shape));
        int64_t next[QN_MAX_INPUTS];
        for (int i = 0; i < s->plan.n_in; i++) {
            int64_t stride = s->plan.in[i].stride[d];
            next[i] = step[i];
            if (single) continue;
            int64_t kind = stride == 0 ? 0 : stride == run ? 1 : 2;
            if (kind == 2 || (step[i] >= 0 && step[i] != kind)) return from;
            next[i] = kind;
        }
        memcpy(step, next, (size_t)s->plan.n_in * sizeof *step);
        run *= size;
        from = d;
    }
    return from;
}

static void fused_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *o = &s->plan.out;
    chain c = {.run = run, .s = s, .tiles = (float *)run->scratch};
    int64_t begin, end;
    int n = o->shape.n, from = inner_from(s, c.step), n_in = s->plan.n_in;
    for (int i = 0; i < n_in; i++)
        if (c.step[i] < 0) c.step[i] = 0;
    qn_cpu_share(run, qn_cpu_rows(run, o), &begin, &end);
    if (begin >= end) return;
    cut_into_pieces(&c);
    int64_t row = qn_shape_row(&o->shape);
    c.streams = qn_shape_elements(&o->shape, &run->sizes) >= QN_CPU_STREAM_ELEMENTS;
    if (from == 0) { /* one run over all of this worker's rows */
        for (int i = 0; i < n_in; i++) c.in[i] = (const float *)s->in[i] + begin * row * c.step[i];
        run_chain(&c, (float *)s->out + begin * row, (end - begin) * row);
        return;
    }
    int64_t inner = 1, index[QN_MAX_DIMS] = {begin};
    for (int d = from; d < n; d++) inner *= o->shape.dim[d];
    for (float *out = (float *)s->out + begin * row; index[0] < end; out += inner) {
        for (int i = 0; i < n_in; i++) {
            int64_t at = 0;
            for (int d = 0; d < from; d++) at += index[d] * s->plan.in[i].stride[d];
            c.in[i] = (const float *)s->in[i] + at;
        }
        run_chain(&c, out, inner);
        int d = from - 1;
        while (d > 0 && ++index[d] == o->shape.dim[d]) index[d--] = 0;
        if (d == 0) index[0]++;
    }
}

const qn_cpu_prim qn_cpu_FUSED = {fused_run, fused_prepare};
