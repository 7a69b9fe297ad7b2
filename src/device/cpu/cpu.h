/* The CPU device, inside: all workers walk a program's steps together; each computes its share of a step, and
 * they meet at a barrier at the end of each group of steps. Row-local steps that follow each other are walked
 * a few rows at a time, so that a row goes from one to the next while it is in the cache. Who computes what
 * never matters to a result. */
#ifndef QN_DEVICE_CPU_CPU_H
#define QN_DEVICE_CPU_CPU_H

#include "base/threads.h"
#include "device/cpu/kernels/kernels.h"
#include "device/device.h"

typedef struct {
    qn_device base;
    const qn_kernels *kernels;
    qn_pool *pool;
} qn_cpu;

enum { QN_CPU_LAYOUT_PLAIN = 0, QN_CPU_LAYOUT_PANELS = 1 };

typedef struct qn_cpu_step qn_cpu_step;
typedef struct qn_cpu_exec qn_cpu_exec;

/* What a step sees in one run. */
typedef struct {
    const qn_kernels *kernels;
    qn_pool *pool;
    qn_sizes sizes;
    char *scratch;   /* of this worker */
    char *shared[2]; /* packed activations, see matmul.c */
    char *split;     /* parts of attention, see attention.c */
    char *gated;     /* of this worker: columns of products, see gated.c */
    qn_precision precision;
    int thread, n_threads;
    int64_t turn_from, turn_to; /* the rows for which row-local steps are called now; turn_to 0: own share */
    int64_t cut; /* each worker computes its share of so many key heads of a single row; 0: whole rows */
} qn_cpu_run;

typedef void qn_cpu_fn(const qn_cpu_run *run, const qn_cpu_step *step);

/* Which activations a step packs before it multiplies them. Rows: one after the other, so that steps that
 * read the same ones may share them. */
typedef enum { QN_CPU_PACKS_NOTHING, QN_CPU_PACKS_ROWS, QN_CPU_PACKS_PAIRS } qn_cpu_packs;

/* Up to this many rows every worker packs all activations for itself: cheaper than one more barrier. */
enum { QN_CPU_OWN_ROWS = 4 };

/* A result of so many numbers is kept by no cache until somebody reads it, and is written past them: half of
 * the time of writing is otherwise spent on reading what is overwritten. */
enum { QN_CPU_STREAM_ELEMENTS = 1 << 22 };

struct qn_cpu_step {
    qn_cpu_fn *fn;
    qn_plan_step plan;
    char *in[QN_MAX_INPUTS], *out; /* addresses: fixed when the program is compiled */
    int barrier_after;
    /* matmul */
    const qn_buffer *weight; /* packed panels, or NULL */
    qn_act act;
    qn_cpu_packs packs;
    int area;   /* which shared area holds the packed activations */
    int repack; /* 0: an earlier step of the same group packed the same activations there */
    int ready;  /* the row-local steps before packed them, unless they are shown */
    /* experts: places in a worker's scratch, see experts.c */
    size_t kernel_at, tile_at, rows_at, index_at;
    int wanted; /* by the probe */
    int shown;  /* to the probe or a trace, once all workers have done their share */
    /* row-local */
    int turns;                      /* this many steps from here on are walked together; 0: no such step */
    int apart;                      /* but not now, for one of them is shown */
    const qn_cpu_step *pack_behind; /* and then the same rows are packed for this product, or NULL */
    int gated; /* so many products from here on and the chain behind them are one step, see gated.c */
    int cuts;  /* they and the attention behind them may be cut by key heads: qn_cpu_attend_cuts */
    /* attention over pages: the most pairs of row and head that workers share, what they leave each other */
    int64_t split_pairs;
    size_t split_bytes;
    int64_t most_pages; /* over chosen blocks: of a row */
};

/* What a primitive of this device is made of. */
typedef struct {
    qn_cpu_fn *fn;
    /* Fills the step's own fields; scratch_bytes (per worker) and shared_bytes grow to what it needs. May be
     * NULL. */
    qn_status (*prepare)(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                         size_t *shared_bytes);
} qn_cpu_prim;

#define S(name)
#define E(name, inputs)
#define P(name, rows) extern const qn_cpu_prim qn_cpu_##name;
#include "prim/primitives.def"

/* Rows of the step's output in this run, and this worker's share of them. */
static inline int64_t qn_cpu_rows(const qn_cpu_run *run, const qn_operand *o)
{
    return o->shape.n ? qn_shape_dim(&o->shape, 0, &run->sizes) : 1;
}

/* Sequences of a step, by the shape of its input row_begin. */
static inline int64_t qn_cpu_sequences(const qn_sizes *sizes, const qn_operand *row_begin)
{
    return qn_shape_dim(&row_begin->shape, 0, sizes) - 1;
}

/* In a turn of row-local steps, whose n is the number of rows: the rows of the turn. */
static inline void qn_cpu_share(const qn_cpu_run *run, int64_t n, int64_t *begin, int64_t *end)
{
    if (run->turn_to) {
        *begin = run->turn_from;
        *end = run->turn_to;
        return;
    }
    qn_pool_share(n, 1, run->thread, run->n_threads, begin, end);
}

/* Of n heads of a row this worker's part, if the row is cut: n is a multiple of the key heads. */
static inline void qn_cpu_heads(const qn_cpu_run *run, int64_t n, int64_t *begin, int64_t *end)
{
    *begin = 0;
    *end = n;
    if (!run->cut) return;
    qn_pool_share(run->cut, 1, run->thread, run->n_threads, begin, end);
    *begin *= n / run->cut;
    *end *= n / run->cut;
}

/* The next piece of a step's n items for this worker, 0 when none is left: qn_pool_claim. For the steps where
 * the time goes; rows of small ones are shared out beforehand. */
static inline int qn_cpu_claim(const qn_cpu_run *run, int64_t n, int64_t *begin, int64_t *end)
{
    return qn_pool_claim(run->pool, run->thread, n, begin, end);
}

/* The same for panels of a product of so many rows: in few pieces where it is over soon, or where each brings
 * the rows in another form. */
static inline int qn_cpu_claim_panels(const qn_cpu_run *run, qn_act act, int64_t rows, int64_t n,
                                      int64_t *begin, int64_t *end)
{
    const int in_few = rows <= QN_FEW_ROWS || qn_matmul_reforms(run->kernels, act, rows);
    return (in_few ? qn_pool_claim_most : qn_pool_claim)(run->pool, run->thread, n, begin, end);
}

/* matmul.c: the packed rows of in[0], `stride` floats apart. Few are at the beginning of this worker's
 * scratch (QN_CPU_OWN_ROWS), which nothing else may use then; more in the step's shared area, and all workers
 * wait, unless the row-local steps before packed them there. */
const char *qn_cpu_pack_rows(const qn_cpu_run *run, const qn_cpu_step *s, int64_t rows, int64_t stride,
                             int64_t n_in);
/* Of rows [begin, end), after row-local steps, for the product that comes behind them. */
void qn_cpu_pack_turn(const qn_cpu_run *run, const qn_cpu_step *s, int64_t begin, int64_t end);

/* attention.c: a single row whose norms and rotations a worker may do head by head, then write its heads'
 * keys and values and attend to them, all without a barrier. May n row-local steps from s on, which have
 * barriers around them, be cut so, with the attention over pages behind them? */
int qn_cpu_attend_cuts(const qn_cpu_step *s, int n);
/* The key heads among which this run of such a step is cut, 0 if it is not. */
int64_t qn_cpu_attend_cut(const qn_cpu_run *run, const qn_cpu_step *s);

/* fused.c: the chain of step s over n elements from each of in[i] on, those of its inputs. out may be one.
 * tiles: QN_CPU_CHAIN_BYTES, where results in between lie. */
enum { QN_CPU_CHAIN_BYTES = QN_FUSED_MAX * 4096 };
void qn_cpu_fused_chain(const qn_cpu_run *run, const qn_cpu_step *s, const float *const *in, float *out,
                        int64_t n, float *tiles);

/* gated.c: products, the chain that alone reads their results, and the packing for the product behind it.
 * Marks the first of such products; 1: there are some, and each worker needs QN_CPU_GATED_BYTES in
 * run->gated. */
enum { QN_CPU_GATED_BYTES = (128 << 10) + QN_CPU_CHAIN_BYTES };
int qn_cpu_find_gated(qn_cpu_step *steps, int n_steps, const qn_plan *plan);
/* The rows that are taken at a time, 0: in this run the steps are walked on their own. */
int64_t qn_cpu_gated_rows(const qn_cpu_run *run, const qn_cpu_step *s);
void qn_cpu_run_gated(const qn_cpu_run *run, const qn_cpu_step *s, int64_t rows);

/* info.c */
qn_status qn_cpu_get_info(qn_device_info *out);
/* logits.c: qn_device_ops.get_logits_kernels. */
qn_status qn_cpu_get_logits_kernels(const qn_logits_kernels **out);

/* memory.c */
void qn_cpu_free(qn_device *d, qn_buffer *b);

/* weights.c */
qn_status qn_cpu_weight_bytes(qn_device *d, const qn_weight *w, size_t *out);
qn_status qn_cpu_import_weights(qn_device *d, int64_t n, const qn_weight *weights, qn_buffer **out);

/* Cold weights, see qn_weight: a panel is packed by whoever needs it first. */
typedef struct qn_cpu_cold qn_cpu_cold;
void qn_cpu_cold_free(qn_cpu_cold *c);
/* Panels [begin, end) of a part are packed when it returns. scratch: as many bytes as this says, for packing.
 */
void qn_cpu_warm(const qn_kernels *kernels, const qn_buffer *b, int64_t part, int64_t begin, int64_t end,
                 char *scratch);
size_t qn_cpu_warm_scratch_bytes(const qn_buffer *b);

/* state.c */
typedef struct {
    qn_state base;
    char *memory; /* PAGES: [unit][layer][page]; SLOTS: [unit][layer][slot_floats] */
    size_t part_bytes, unit_bytes, size_bytes;
} qn_cpu_state;

qn_status qn_cpu_state_new(qn_device *d, const qn_state_spec *spec, qn_state **out);
void qn_cpu_state_free(qn_state *s);
size_t qn_cpu_state_unit_bytes(const qn_state *s);
void qn_cpu_state_drop(qn_state *s, int32_t unit);
void qn_cpu_state_copy(qn_state *s, int32_t from, int32_t to);
void qn_cpu_state_read(const qn_state *s, int32_t unit, void *bytes);
void qn_cpu_state_write(qn_state *s, int32_t unit, const void *bytes);
/* The pages of one layer, as the kernels want them. */
qn_kv_layout qn_cpu_state_pages(const qn_state *s, int64_t layer);
float *qn_cpu_state_slot(const qn_state *s, int64_t layer, int64_t slot);

/* program.c */
qn_status qn_cpu_compile(qn_device *d, const qn_plan *plan, qn_exec **out);
qn_status qn_cpu_run_program(qn_exec *e, const qn_sizes *sizes);
void qn_cpu_set_probe(qn_exec *e, qn_probe_fn *probe, qn_probe_wants_fn *wants, void *user);
void qn_cpu_exec_free(qn_exec *e);
int qn_cpu_supports(qn_device *d, qn_prim prim);

#endif
