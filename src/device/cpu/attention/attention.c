/* Attention. Over pages: rows are written to their pages, then all workers share tiles of rows x groups of
 * heads. Without a state: ragged.c. */
#include <stdatomic.h>
#include <string.h>

#include "device/cpu/attention/chosen.h"
#include "device/cpu/attention/ragged.h"
#include "device/cpu/cpu.h"
#include "prim/blocks.h"

/* ---- over pages --------------------------------------------------------------------------------------- */

/* A row that is cut is written by all workers, each its key heads. */
static void write_rows(const qn_cpu_run *run, const qn_cpu_step *s, const qn_kv_layout *kv)
{
    const qn_operand *k = &s->plan.in[1], *v = &s->plan.in[2], *table = &s->plan.in[5];
    const int32_t *positions = (const int32_t *)s->in[3], *row_begin = (const int32_t *)s->in[4],
                  *blocks = (const int32_t *)s->in[5];
    int64_t begin = 0, end = 1, sequence = 0, head, end_head;
    qn_cpu_heads(run, kv->kv_heads, &head, &end_head);
    if (!run->cut) qn_cpu_share(run, qn_cpu_rows(run, &s->plan.out), &begin, &end);
    for (int64_t r = begin, n; r < end; r += n) {
        while (row_begin[sequence + 1] <= r) sequence++;
        const int32_t *row = blocks + sequence * table->stride[0];
        const int64_t slot = positions[r] % QN_PAGE_TOKENS,
                      past = row_begin[sequence + 1] < end ? row_begin[sequence + 1] : end;
        n = QN_PAGE_TOKENS - slot < past - r ? QN_PAGE_TOKENS - slot : past - r;
        run->kernels->kv_write(kv, head, end_head - head,
                               row[1 + positions[r] / QN_PAGE_TOKENS - qn_blocks_before(row[0])], slot, n,
                               (const float *)s->in[1] + r * k->stride[0] + head * kv->head_dim, k->stride[0],
                               (const float *)s->in[2] + r * v->stride[0] + head * kv->v_dim, v->stride[0]);
    }
}

/* A tile of rows of one sequence. What a page of positions costs is the pairs of row and head that look at it
 * and what reading its keys and values adds. The pages of a tile that is not shared count one by one: one at
 * the beginning of a prompt sees an eighth of its group, the last one all. */
typedef struct {
    const int32_t *blocks; /* of the sequence, behind the first column */
    int64_t row, n_rows, position;
    int64_t
        seen; /* positions that all its rows see, as qn_attend_args.seen; 0: each row those up to its own */
    int64_t window, chunk_at;
    int64_t first_group, n_groups, cost_of_group;
} tile_of_rows;

enum { READING = 8, GROUP_PAGES = QN_ATTN_GROUP / QN_PAGE_TOKENS }; /* READING in pairs */

/* The tile of sequence i that begins at row r: at most n_rows rows of one chunk, or one row if each row has its own
 * window. */
static tile_of_rows tile_at(const qn_cpu_step *s, int64_t i, int64_t r, int64_t n_rows)
{
    const int32_t *positions = (const int32_t *)s->in[3], *row_begin = (const int32_t *)s->in[4],
                  *table = (const int32_t *)s->in[5] + i * s->plan.in[5].stride[0];
    const int64_t shared = s->plan.in[0].shape.dim[1] / s->plan.in[1].shape.dim[1], before = r - row_begin[i];
    int64_t window = s->plan.params.attend.window, chunk = s->plan.params.attend.chunk;
    tile_of_rows t = {.blocks = table + 1, .row = r, .n_rows = row_begin[i + 1] - r};
    if (t.n_rows > n_rows) t.n_rows = n_rows;
    const int64_t not_here = qn_blocks_before(table[0]) * QN_PAGE_TOKENS;
    t.position = positions[r] - not_here;
    if (chunk) {
        const int64_t left = chunk - positions[r] % chunk;
        t.chunk_at = not_here % chunk;
        if (t.n_rows > left) t.n_rows = left;
    }
    if (table[0] & QN_BLOCKS_BACK && window) {
        t.n_rows = 1;
        if (window <= before) window = before + 1;
    }
    t.window = window;
    const int64_t from = qn_attend_first(window, chunk, t.chunk_at, t.position), pairs = t.n_rows * shared;
    int64_t end = t.position + t.n_rows;
    if (s->plan.params.attend.whole) end = t.seen = t.position + row_begin[i + 1] - r;
    if (table[0] & QN_BLOCKS_WHOLE) {
        end = t.position + row_begin[i + 1] - r;
        t.seen = -end;
    }
    t.first_group = from / QN_ATTN_GROUP;
    t.n_groups = (end + QN_ATTN_GROUP - 1) / QN_ATTN_GROUP - t.first_group;
    t.cost_of_group = GROUP_PAGES * (pairs + READING);
    if (pairs > s->split_pairs) {
        const int64_t pages = (end + QN_PAGE_TOKENS - 1) / QN_PAGE_TOKENS - from / QN_PAGE_TOKENS;
        t.cost_of_group = (pages * (pairs + READING) + t.n_groups - 1) / t.n_groups;
    }
    return t;
}

/* As many rows as leave every worker some tiles; those of one key head share what is read. */
static int64_t rows_of_tile(const qn_cpu_run *run, const int32_t *row_begin, int64_t n_sequences,
                            int64_t kv_heads, int64_t shared)
{
    int64_t n_rows = QN_ATTN_ROWS;
    for (; n_rows > 1 && n_rows * shared > 8; n_rows /= 2) {
        int64_t tiles = 0;
        for (int64_t i = 0; i < n_sequences; i++)
            tiles += (row_begin[i + 1] - row_begin[i] + n_rows - 1) / n_rows;
        if (tiles * kv_heads >= 8 * run->n_threads) break;
    }
    return n_rows;
}

/* Workers may share one key head of a tile: each leaves its groups' results behind, and the last one to come
 * merges them. In run->split there is a counter for each worker whose share ends inside of a tile, then for
 * each room for the results. Between two runs a counter is 0. */
typedef struct {
    atomic_int n_done;
    char apart[64 - sizeof(atomic_int)];
} meeting;

/* Groups that begin below `share`, of a tile whose cost begins at `cost`. */
static int64_t groups_below(const tile_of_rows *t, int64_t cost, int64_t share)
{
    int64_t n = share <= cost ? 0 : (share - cost + t->cost_of_group - 1) / t->cost_of_group;
    return n > t->n_groups ? t->n_groups : n;
}

typedef struct {
    int64_t begin, end, total;
} work_share;

static work_share share_of(const qn_cpu_run *run, int64_t total, int worker)
{
    work_share w = {.total = total};
    qn_pool_share(total, 1, worker, run->n_threads, &w.begin, &w.end);
    return w;
}

/* Groups [begin, end) of a tile and key head of which other workers have the rest. */
static void attend_shared(const qn_cpu_run *run, const qn_cpu_step *s, qn_attend_args *a,
                          const tile_of_rows *t, int64_t kv_head, int64_t cost, int64_t total, int64_t begin,
                          int64_t end)
{
    const int64_t shared = a->n_heads / a->kv.kv_heads, n_pairs = t->n_rows * shared;
    int first = -1, n_workers = 0;
    for (int w = 0; w < run->n_threads; w++) {
        work_share other = share_of(run, total, w);
        if (groups_below(t, cost, other.begin) == groups_below(t, cost, other.end)) continue;
        if (first < 0) first = w;
        n_workers++;
    }
    meeting *meet = (meeting *)run->split + first;
    char *parts = run->split + (size_t)(run->n_threads - 1) * sizeof *meet +
                  (size_t)first * (s->split_bytes - sizeof *meet);
    size_t part = qn_attend_part_bytes(a->kv.dtype, a->kv.v_dim, n_pairs);
    run->kernels->attend_part(a, t->n_rows, kv_head * shared, shared, t->first_group + begin,
                              t->first_group + end, (float *)(parts + (size_t)begin * part), run->scratch);
    if (atomic_fetch_add_explicit(&meet->n_done, 1, memory_order_acq_rel) + 1 < n_workers) return;
    atomic_store_explicit(&meet->n_done, 0, memory_order_relaxed);
    run->kernels->attend_merge(a, t->n_rows, kv_head * shared, shared, (const float *)parts, run->scratch);
}

/* Key heads [kv_head, kv_head + n_kv) of a tile whose cost begins at `cost`: neighbours that are mine as a
 * whole go together. */
static void attend_tile(const qn_cpu_run *run, const qn_cpu_step *s, qn_attend_args *a, const tile_of_rows *t,
                        int64_t kv_head, int64_t n_kv, int64_t cost, const work_share *mine)
{
    const int64_t each = t->n_groups * t->cost_of_group, shared = a->n_heads / a->kv.kv_heads,
                  splits = t->n_rows * shared <= s->split_pairs;
    int64_t whole = 0; /* heads that end at the current one */
    a->blocks = t->blocks;
    a->position = t->position;
    a->seen = t->seen;
    a->window = t->window;
    a->chunk_at = t->chunk_at;
    a->q = (const float *)s->in[0] + t->row * a->q_stride;
    a->out = (float *)s->out + t->row * a->out_stride;
    for (int64_t h = kv_head; h < kv_head + n_kv; h++, cost += each) {
        int64_t begin = groups_below(t, cost, mine->begin), end = groups_below(t, cost, mine->end);
        if (!splits) { /* whole, to whom its middle belongs */
            const int64_t middle = cost + each / 2;
            end = mine->begin <= middle && middle < mine->end ? t->n_groups : 0;
            begin = 0;
        }
        if (end - begin == t->n_groups) {
            whole++;
            continue;
        }
        if (whole) run->kernels->attend(a, t->n_rows, (h - whole) * shared, whole * shared, run->scratch);
        whole = 0;
        if (begin < end) attend_shared(run, s, a, t, h, cost, mine->total, begin, end);
    }
    if (whole)
        run->kernels->attend(a, t->n_rows, (kv_head + n_kv - whole) * shared, whole * shared, run->scratch);
}

static qn_attend_args arguments(const qn_cpu_step *s, const qn_kv_layout *kv)
{
    const qn_params_attend *p = &s->plan.params.attend;
    const int64_t n_heads = s->plan.in[0].shape.dim[1];
    return (qn_attend_args){.kv = *kv,
                            .n_heads = n_heads,
                            .q_stride = s->plan.in[0].stride[0],
                            .out_stride = n_heads * kv->v_dim,
                            .scale = p->scale,
                            .softcap = p->softcap,
                            .sinks = p->has_sinks ? (const float *)s->in[6] : NULL};
}

/* Sequences outside. Of one that has several tiles key heads come next and tiles inside, so that one head's
 * keys and values stay in cache while its tiles go by; a single tile takes its key heads together, which
 * reads pages as they lie. Each worker takes an equal share of the cost, which may begin and end inside of a
 * tile, at a group. */
static void attend_pages(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_params_attend *p = &s->plan.params.attend;
    const int32_t *row_begin = (const int32_t *)s->in[4];
    qn_kv_layout kv = qn_cpu_state_pages(p->state, p->layer);
    if (!p->is_written) {
        write_rows(run, s, &kv);
        if (!run->cut) qn_pool_barrier(run->pool);
    }
    int64_t n_heads = s->plan.in[0].shape.dim[1], n_sequences = qn_cpu_sequences(&run->sizes, &s->plan.in[4]),
            cost = 0, total = 0,
            n_rows = rows_of_tile(run, row_begin, n_sequences, kv.kv_heads, n_heads / kv.kv_heads);
    qn_attend_args a = arguments(s, &kv);
    a.window = p->window;
    a.chunk = p->chunk;
    for (int64_t i = 0; i < n_sequences; i++) {
        for (int64_t r = row_begin[i]; r < row_begin[i + 1];) {
            tile_of_rows t = tile_at(s, i, r, n_rows);
            total += t.n_groups * t.cost_of_group;
            r += t.n_rows;
        }
    }
    work_share mine = share_of(run, total * kv.kv_heads, run->thread);
    if (run->cut) {
        qn_cpu_heads(run, kv.kv_heads, &mine.begin, &mine.end);
        mine.begin *= total;
        mine.end *= total;
    }
    for (int64_t i = 0; i < n_sequences; i++) {
        int64_t together = row_begin[i + 1] - row_begin[i] <= n_rows ? kv.kv_heads : 1;
        for (int64_t h = 0; h < kv.kv_heads; h += together) {
            for (int64_t r = row_begin[i]; r < row_begin[i + 1];) {
                tile_of_rows t = tile_at(s, i, r, n_rows);
                attend_tile(run, s, &a, &t, h, together, cost, &mine);
                cost += t.n_groups * t.cost_of_group * together;
                r += t.n_rows;
            }
        }
    }
}

/* ---- over chosen blocks of pages ----------------------------------------------------------------------- */

static void place_row(const void *of, int64_t row, const int32_t **blocks, int64_t *position, int64_t *before)
{
    const qn_cpu_step *s = of;
    const int32_t *row_begin = (const int32_t *)s->in[4], *table = (const int32_t *)s->in[5];
    while (row_begin[1] <= row) {
        row_begin++;
        table += s->plan.in[5].stride[0];
    }
    *blocks = table + 1;
    *position = ((const int32_t *)s->in[3])[row];
    *before = qn_blocks_before(table[0]) * QN_PAGE_TOKENS;
}

static void attend_chosen(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_params_attend *p = &s->plan.params.attend;
    const qn_kv_layout kv = qn_cpu_state_pages(p->state, p->layer);
    const qn_cpu_rows_at rows = {.n_rows = qn_cpu_rows(run, &s->plan.out), .place = place_row, .of = s};
    qn_attend_args a = arguments(s, &kv);
    if (!p->is_written) {
        write_rows(run, s, &kv);
        qn_pool_barrier(run->pool);
    }
    qn_cpu_attend_chosen(run, s, &a, s->plan.n_in - 1, &rows);
}

/* ---- a row that is cut by key heads ------------------------------------------------------------------- */

typedef struct {
    const char *begin, *end;
} memory;

/* Of a single row. */
static memory row_at(const char *at, const qn_operand *o)
{
    return (memory){at, at + (size_t)qn_shape_row(&o->shape) * sizeof(float)};
}

/* Parts of rows that lie in the same place are the same part; others must not touch. */
static int keeps_apart(memory a, memory b)
{
    return a.begin >= b.end || b.begin >= a.end || (a.begin == b.begin && a.end == b.end);
}

static int cuts_by_heads(const qn_cpu_step *s, int64_t kv_heads)
{
    const qn_shape *o = &s->plan.out.shape;
    return (s->plan.prim == QN_PRIM_RMS_NORM || s->plan.prim == QN_PRIM_ROPE) && o->n == 3 &&
           o->dim[1] % kv_heads == 0;
}

/* A worker reads its own part alone of what the steps make, and its part of the attention's result may take
 * the place of something that another worker still needs. */
int qn_cpu_attend_cuts(const qn_cpu_step *s, int n)
{
    const qn_cpu_step *a = s + n;
    const qn_params_attend *p = &a->plan.params.attend;
    if (a->plan.prim != QN_PRIM_ATTEND || !p->state || p->block) return 0;
    const memory result = row_at(a->out, &a->plan.out);
    for (int i = 0; i <= n; i++) {
        const memory made = row_at(s[i].out, &s[i].plan.out);
        if (i < n && (!cuts_by_heads(&s[i], a->plan.in[1].shape.dim[1]) || !keeps_apart(made, result)))
            return 0;
        for (int k = 0; k < s[i].plan.n_in; k++) {
            const memory read = row_at(s[i].in[k], &s[i].plan.in[k]);
            if (i < n && !keeps_apart(read, result)) return 0;
            for (int j = 0; j < i; j++)
                if (!keeps_apart(read, row_at(s[j].out, &s[j].plan.out))) return 0;
        }
    }
    return 1;
}

/* Not where a worker had none, or where whole heads would be uneven shares of many positions. */
int64_t qn_cpu_attend_cut(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const int64_t kv_heads = s->plan.in[1].shape.dim[1];
    if (run->sizes.v[QN_SYM_R] != 1 || run->sizes.v[QN_SYM_S] != 1 || kv_heads < run->n_threads) return 0;
    return kv_heads % run->n_threads == 0 || tile_at(s, 0, 0, 1).n_groups == 1 ? kv_heads : 0;
}

static void attend_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    if (!s->plan.params.attend.state)
        qn_cpu_attend_ragged(run, s);
    else if (s->plan.params.attend.block)
        attend_chosen(run, s);
    else
        attend_pages(run, s);
}

static qn_status attend_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                                size_t *shared_bytes)
{
    const qn_operand *q = &step->plan.in[0], *v = &step->plan.in[2];
    const qn_state *state = step->plan.params.attend.state;
    size_t need = 0;
    if (!state) {
        qn_cpu_ragged_prepare(plan, step, scratch_bytes, shared_bytes);
    } else {
        int64_t positions = (step->plan.in[5].shape.dim[1] - 1) * QN_PAGE_TOKENS,
                shared = q->shape.dim[1] / v->shape.dim[1];
        need = qn_attend_scratch_bytes(state->spec.dtype, q->shape.dim[2], v->shape.dim[2]);
        step->split_pairs = shared < 8 ? 8 : shared > QN_ATTN_PART_PAIRS ? 0 : shared;
        step->split_bytes =
            sizeof(meeting) + (size_t)(positions / QN_ATTN_GROUP + 1) *
                                  qn_attend_part_bytes(state->spec.dtype, v->shape.dim[2], step->split_pairs);
    }
    if (*scratch_bytes < need) *scratch_bytes = need;
    if (state && step->plan.params.attend.block)
        qn_cpu_chosen_prepare(step, step->plan.in[5].shape.dim[1] - 1, scratch_bytes);
    return QN_OK;
}

const qn_cpu_prim qn_cpu_ATTEND = {attend_run, attend_prepare};
