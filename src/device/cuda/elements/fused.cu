/* FUSED (fused.cuh). Chains that models have most often are kernels without a loop. */
#include "device/cuda/elements/fused.cuh"

enum { WIDE = 4 };

/* SECOND(FIRST(input 0), input 1); FIRST may be COPY. */
template <int W, int FIRST, int SECOND> struct pair {
    typedef qn_chain work;
    enum { OP = W == 1 ? QN_OP_CHAIN : 0 };

    static __device__ void run(const qn_body &b, const work &c)
    {
        const int64_t i = b.block * QN_CHAIN_BLOCK + threadIdx.x;
        if (i >= c.places.total) return;
        const qn_indices x = qn_indices_of(c.places, i);
        qn_lanes<W> a = qn_load_lanes<W>(c, 0, x);
        const qn_lanes<W> other = qn_load_lanes<W>(c, 1, x);
        QN_UNROLL
        for (int w = 0; w < W; w++) {
            if (FIRST != QN_PRIM_COPY) a.x[w] = qn_apply_op(FIRST, a.x[w], 0);
            a.x[w] = qn_apply_op(SECOND, a.x[w], other.x[w]);
        }
        ((qn_lanes<W> *)c.out)[i] = a;
    }
};

/* ---- on the host --------------------------------------------------------------------------------------- */

static int takes_two(int op)
{
    switch (op) {
#define E(name, inputs)  \
    case QN_PRIM_##name: \
        return inputs == 2;
#include "prim/elementwise.def"
    default:
        return 0;
    }
}

typedef qn_status begin_chain(qn_cuda_context *c, int64_t grid, int block, size_t shared_bytes,
                              const qn_chain &x);
typedef struct {
    int first, second;
    begin_chain *one, *wide;
} known_pair;

#define PAIR(first, second)                                                                                \
    {                                                                                                      \
        QN_PRIM_##first, QN_PRIM_##second, qn_cuda_begin_body<pair<1, QN_PRIM_##first, QN_PRIM_##second>>, \
            qn_cuda_begin_body<pair<WIDE, QN_PRIM_##first, QN_PRIM_##second>>                              \
    }
static const known_pair known[] = {PAIR(COPY, ADD),      PAIR(COPY, SUB),   PAIR(COPY, MUL),
                                   PAIR(COPY, DIV),      PAIR(SILU, MUL),   PAIR(GELU, MUL),
                                   PAIR(GELU_TANH, MUL), PAIR(SIGMOID, MUL)};

/* The kernel of a chain that is one of the known pairs; NULL: it is none. Puts its inputs in their order. */
static const known_pair *find_pair(const qn_params *p, qn_cuda_operand in[2], const qn_cuda_operand *from)
{
    const qn_fused_op *op = p->fused.op, *last = &op[p->fused.n - 1];
    if (p->fused.n > 2 || !takes_two(last->op)) return NULL;
    int a = last->a, b = last->b, first = QN_PRIM_COPY;
    if (p->fused.n == 2) {
        if (takes_two(op[0].op) || last->op != QN_PRIM_MUL || (a == 0) == (b == 0)) return NULL;
        b = a == 0 ? b : a;
        a = op[0].a;
        first = op[0].op;
    }
    if (a >= 0 || b >= 0) return NULL;
    for (const known_pair &k : known)
        if (k.first == first && k.second == last->op) {
            in[0] = from[~a];
            in[1] = from[~b];
            return &k;
        }
    return NULL;
}

/* Copies instructions and finds places for results that are used again; returns how many places. */
static int plan_results(const qn_params *p, qn_chain *c)
{
    int n_slots = 0;
    c->n_ops = p->fused.n;
    for (int i = 0; i < c->n_ops; i++) {
        const qn_fused_op *f = &p->fused.op[i];
        const int two = takes_two(f->op);
        const int8_t from[2] = {f->a, two ? f->b : f->a};
        c->op[i] = {f->op, (uint8_t)two, f->a, f->b, QN_NOT_KEPT};
        for (int side = 0; side < 2; side++) {
            const int at = from[side];
            if (at >= 0 && at < i - 1 && c->op[at].slot == QN_NOT_KEPT) c->op[at].slot = (uint8_t)n_slots++;
        }
    }
    return n_slots;
}

/* The same chain over its two inputs in their order, as any_chain and the step kernel read it. */
static void name_pair(const known_pair *k, qn_chain *c)
{
    const int n = k->first == QN_PRIM_COPY ? 0 : 1;
    if (n) c->op[0] = {(uint8_t)k->first, 0, -1, -1, QN_NOT_KEPT};
    c->op[n] = {(uint8_t)k->second, 1, (int8_t)(n ? 0 : -1), -2, QN_NOT_KEPT};
    c->n_ops = n + 1;
}

/* 1: four elements a thread. Few elements go one a thread, so that more of the card works at them. */
static int is_wide(const qn_cuda_context *c, const qn_chain *x, int n_in)
{
    if (x->places.total < (int64_t)c->n_sm * QN_CHAIN_BLOCK * WIDE || (uintptr_t)x->out % (4 * WIDE))
        return 0;
    for (int k = 0; k < n_in; k++)
        if (!qn_places_in_groups(x->places, k, x->in[k], WIDE, 4)) return 0;
    return 1;
}

static qn_status launch(qn_cuda_context *c, const qn_cuda_step *s)
{
    qn_chain x = {};
    qn_cuda_step ordered = *s;
    const known_pair *two = find_pair(s->params, ordered.in, s->in);
    const int n_slots = plan_results(s->params, &x), n_in = two ? 2 : s->n_in;
    x.out = (float *)s->out.data;
    for (int k = 0; k < n_in; k++) x.in[k] = (const float *)ordered.in[k].data;
    if (two) name_pair(two, &x);
    x.places = qn_places_of<QN_MAX_INPUTS>(&ordered, n_in);
    const int wide = is_wide(c, &x, n_in);
    if (wide) qn_places_group(&x.places, WIDE);
    begin_chain *const begin = two    ? (wide ? two->wide : two->one)
                               : wide ? qn_cuda_begin_body<qn_any_chain<WIDE>>
                                      : qn_cuda_begin_body<qn_any_chain<1>>;
    const size_t kept_bytes =
        two ? 0 : sizeof(float) * (size_t)(n_slots * QN_CHAIN_BLOCK * (wide ? WIDE : 1));
    return begin(c, qn_blocks(x.places.total, QN_CHAIN_BLOCK), QN_CHAIN_BLOCK, kept_bytes, x);
}

extern const qn_cuda_prim qn_cuda_prim_FUSED;
const qn_cuda_prim qn_cuda_prim_FUSED = {launch, NULL};
