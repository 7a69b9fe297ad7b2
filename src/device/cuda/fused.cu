/* FUSED: chains of element-wise operations on f32. A thread computes one element, or four neighbours, and goes
 * through the chain once: the last result stays in registers, earlier ones that are used again lie in shared
 * memory. Chains that models have most often are kernels without a loop. */
#include "device/cuda/math.cuh"
#include "device/cuda/places.cuh"

enum { BLOCK = 128, WIDE = 4, NOT_KEPT = 255 };

typedef struct {
    uint8_t op, two;
    int8_t a, b;  /* >= 0: result of instruction a; < 0: input ~a */
    uint8_t slot; /* where the result is kept; NOT_KEPT: the next instruction alone uses it */
} instruction;

typedef struct {
    float *out;
    const float *in[QN_MAX_INPUTS];
    int n_ops;
    instruction op[QN_FUSED_MAX];
    qn_places<QN_MAX_INPUTS> places;
} chain;

/* W neighbours. */
template <int W> struct alignas(4 * W) lanes {
    float x[W];
};

/* ---- on the card --------------------------------------------------------------------------------------- */

template <int W> static __device__ __forceinline__ lanes<W> load(const chain &c, int k, const qn_indices &x)
{
    const float *p = c.in[k] + qn_place_in(c.places, k, x);
    if (c.places.stride[k][0]) return *(const lanes<W> *)p;
    lanes<W> v;
    QN_UNROLL
    for (int i = 0; i < W; i++) v.x[i] = *p;
    return v;
}

/* Kept results of a thread: kept[slot][W][BLOCK], from its own first one on. */
template <int W> static __device__ __forceinline__ lanes<W> get(const float *kept, int slot)
{
    lanes<W> v;
    QN_UNROLL
    for (int w = 0; w < W; w++) v.x[w] = kept[(slot * W + w) * BLOCK];
    return v;
}

template <int W> static __device__ __forceinline__ void put(float *kept, int slot, const lanes<W> &v)
{
    QN_UNROLL
    for (int w = 0; w < W; w++) kept[(slot * W + w) * BLOCK] = v.x[w];
}

static __device__ __forceinline__ float apply(int op, float a, float b)
{
    switch (op) {
#define E(name, inputs)  \
    case QN_PRIM_##name: \
        return op_##name(a, b);
#include "prim/elementwise.def"
    default:
        return a;
    }
}

template <int W> static __global__ void any_chain(chain c)
{
    QN_SHARED(shared);
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= c.places.total) return;
    float *kept = (float *)shared + threadIdx.x;
    const qn_indices x = qn_indices_of(c.places, i);
    lanes<W> t = {};
    for (int n = 0; n < c.n_ops; n++) {
        const instruction op = c.op[n];
        lanes<W> v[2];
        QN_UNROLL
        for (int side = 0; side < 2; side++) {
            const int from = side ? op.b : op.a;
            if (side && !op.two)
                v[side] = v[0];
            else if (from < 0)
                v[side] = load<W>(c, ~from, x);
            else if (from == n - 1)
                v[side] = t;
            else
                v[side] = get<W>(kept, c.op[from].slot);
        }
        QN_UNROLL
        for (int w = 0; w < W; w++) t.x[w] = apply(op.op, v[0].x[w], v[1].x[w]);
        if (op.slot != NOT_KEPT) put<W>(kept, op.slot, t);
    }
    ((lanes<W> *)c.out)[i] = t;
}

/* SECOND(FIRST(input 0), input 1); FIRST may be COPY. */
template <int W, int FIRST, int SECOND> static __global__ void pair(chain c)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= c.places.total) return;
    const qn_indices x = qn_indices_of(c.places, i);
    lanes<W> a = load<W>(c, 0, x);
    const lanes<W> b = load<W>(c, 1, x);
    QN_UNROLL
    for (int w = 0; w < W; w++) {
        if (FIRST != QN_PRIM_COPY) a.x[w] = apply(FIRST, a.x[w], 0);
        a.x[w] = apply(SECOND, a.x[w], b.x[w]);
    }
    ((lanes<W> *)c.out)[i] = a;
}

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

typedef void chain_kernel(chain c);
typedef struct {
    int first, second;
    chain_kernel *one, *wide;
} known_pair;

#define PAIR(first, second)                                                            \
    {                                                                                  \
        QN_PRIM_##first, QN_PRIM_##second, pair<1, QN_PRIM_##first, QN_PRIM_##second>, \
            pair<WIDE, QN_PRIM_##first, QN_PRIM_##second>                              \
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
static int plan_results(const qn_params *p, chain *c)
{
    int n_slots = 0;
    c->n_ops = p->fused.n;
    for (int i = 0; i < c->n_ops; i++) {
        const qn_fused_op *f = &p->fused.op[i];
        const int two = takes_two(f->op);
        const int8_t from[2] = {f->a, two ? f->b : f->a};
        c->op[i] = {f->op, (uint8_t)two, f->a, f->b, NOT_KEPT};
        for (int side = 0; side < 2; side++) {
            const int at = from[side];
            if (at >= 0 && at < i - 1 && c->op[at].slot == NOT_KEPT) c->op[at].slot = (uint8_t)n_slots++;
        }
    }
    return n_slots;
}

/* 1: four elements a thread. Few elements go one a thread, so that more of the card works at them. */
static int is_wide(const qn_cuda_context *c, const chain *x, int n_in)
{
    if (x->places.total < (int64_t)c->n_sm * BLOCK * WIDE || (uintptr_t)x->out % (4 * WIDE)) return 0;
    for (int k = 0; k < n_in; k++)
        if (!qn_places_in_groups(x->places, k, x->in[k], WIDE, 4)) return 0;
    return 1;
}

static qn_status launch(qn_cuda_context *c, const qn_cuda_step *s)
{
    chain x = {};
    qn_cuda_step ordered = *s;
    const known_pair *two = find_pair(s->params, ordered.in, s->in);
    const int n_slots = plan_results(s->params, &x), n_in = two ? 2 : s->n_in;
    x.out = (float *)s->out.data;
    for (int k = 0; k < n_in; k++) x.in[k] = (const float *)ordered.in[k].data;
    x.places = qn_places_of<QN_MAX_INPUTS>(&ordered, n_in);
    const int wide = is_wide(c, &x, n_in);
    if (wide) qn_places_group(&x.places, WIDE);
    chain_kernel *const kernel = two ? (wide ? two->wide : two->one) : wide ? any_chain<WIDE> : any_chain<1>;
    const size_t kept_bytes = two ? 0 : sizeof(float) * (size_t)(n_slots * BLOCK * (wide ? WIDE : 1));
    return qn_cuda_begin(c, kernel, qn_blocks(x.places.total, BLOCK), BLOCK, kept_bytes, x);
}

extern const qn_cuda_prim qn_cuda_prim_FUSED;
const qn_cuda_prim qn_cuda_prim_FUSED = {launch, NULL};
