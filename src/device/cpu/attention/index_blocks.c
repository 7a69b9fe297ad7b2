/* The blocks that rows attend to: each scores the keys of all that it sees as a whole, and takes the best.
 *
 * Workers claim rows. If there are fewer rows than workers, they claim tiles of keys, and the scores meet in the shared
 * area. Each score is summed in one order, so both ways choose the same blocks. */
#include <string.h>

#include "device/cpu/cpu.h"
#include "prim/blocks.h"

enum { KEYS = 256, LINE = 64 }; /* KEYS: scored at a time */

/* A row and its candidates: blocks [first, first + n). */
typedef struct {
    int64_t row, sequence_begin, before; /* before: positions before the table */
    const int32_t *table;                /* NULL without a state */
    int64_t first, n;
} candidates;

typedef struct {
    const qn_cpu_run *run;
    const qn_cpu_step *s;
    const qn_params_index *p;
    const char *pages; /* of the layer; NULL without a state */
    size_t page_stride;
    int64_t heads, dim, most; /* most: candidates of a row */
    float *keys, *products, *scores;
} index_work;

static size_t lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

/* Candidates of a row at most. */
static int64_t most_of(const qn_cpu_step *s, const qn_sizes *sizes)
{
    const qn_params_index *p = &s->plan.params.index;
    const int64_t positions = p->state ? (s->plan.in[4].shape.dim[1] - 1) * QN_PAGE_TOKENS
                                       : qn_shape_dim(&s->plan.in[0].shape, 0, sizes);
    return positions / p->block + 1;
}

static char *page_of(const index_work *w, int32_t page)
{
    return (char *)w->pages + (size_t)page * w->page_stride;
}

/* This worker's share of the rows of k, as they are. */
static void write_rows(const index_work *w)
{
    const qn_cpu_step *s = w->s;
    const qn_operand *k = &s->plan.in[1], *blocks = &s->plan.in[4];
    const int32_t *positions = (const int32_t *)s->in[2], *row_begin = (const int32_t *)s->in[3],
                  *table = (const int32_t *)s->in[4];
    int64_t begin, end;
    qn_cpu_share(w->run, qn_cpu_rows(w->run, &s->plan.out), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        while (row_begin[1] <= r) {
            row_begin++;
            table += blocks->stride[0];
        }
        const int64_t at = positions[r] - qn_blocks_before(table[0]) * QN_PAGE_TOKENS;
        float *page = (float *)(void *)page_of(w, table[1 + at / QN_PAGE_TOKENS]);
        memcpy(page + at % QN_PAGE_TOKENS * w->dim, (const float *)s->in[1] + r * k->stride[0],
               (size_t)w->dim * sizeof *page);
    }
}

static candidates candidates_of(const index_work *w, int64_t row)
{
    const qn_cpu_step *s = w->s;
    const int32_t *row_begin = (const int32_t *)s->in[3];
    candidates c = {.row = row};
    int64_t sequence = 0;
    while (row_begin[sequence + 1] <= row) sequence++;
    c.sequence_begin = row_begin[sequence];
    int64_t position = row - c.sequence_begin;
    if (w->p->state) {
        const int32_t *table = (const int32_t *)s->in[4] + sequence * s->plan.in[4].stride[0];
        c.before = qn_blocks_before(table[0]) * QN_PAGE_TOKENS;
        c.table = table + 1;
        position = ((const int32_t *)s->in[2])[row];
    }
    int64_t from = qn_attend_first(w->p->window, 0, 0, position);
    if (from < c.before) from = c.before;
    c.first = (from + w->p->block - 1) / w->p->block;
    c.n = (position + 1) / w->p->block - c.first;
    if (c.n < 0) c.n = 0;
    return c;
}

/* Keys of candidates [begin, end), *stride apart. */
static const float *keys_of(const index_work *w, const candidates *c, int64_t begin, int64_t end,
                            int64_t *stride)
{
    const int64_t block = w->p->block, first = (c->first + begin + 1) * block - 1;
    if (!c->table) {
        const int64_t k_stride = w->s->plan.in[1].stride[0];
        *stride = block * k_stride;
        return (const float *)w->s->in[1] + (c->sequence_begin + first) * k_stride;
    }
    *stride = w->dim;
    for (int64_t i = 0; i < end - begin; i++) {
        const int64_t at = first + i * block - c->before;
        const float *page = (const float *)(const void *)page_of(w, c->table[at / QN_PAGE_TOKENS]);
        memcpy(w->keys + i * w->dim, page + at % QN_PAGE_TOKENS * w->dim, (size_t)w->dim * sizeof *page);
    }
    return w->keys;
}

/* Scores of candidates [begin, end), KEYS at most, into scores + begin. */
static void score(const index_work *w, const candidates *c, int64_t begin, int64_t end, float *scores)
{
    const qn_kernels *k = w->run->kernels;
    const qn_cpu_step *s = w->s;
    const qn_operand *q = &s->plan.in[0];
    const int weights = s->plan.n_in - 1;
    const int64_t n = end - begin;
    int64_t stride;
    const float *keys = keys_of(w, c, begin, end, &stride);
    k->gemm_f32(w->products, KEYS, (const float *)s->in[0] + c->row * q->stride[0], w->dim, 1, keys, 1,
                stride, n, w->dim, 0, w->heads, 0);
    scores += begin;
    memset(scores, 0, (size_t)n * sizeof *scores);
    for (int64_t h = 0; h < w->heads; h++) {
        float *x = w->products + h * KEYS;
        k->ew[QN_EW_MUL](x, x, 1, &w->p->scale, 0, n);
        k->ew[QN_EW_RELU](x, x, 1, x, 1, n);
        if (w->p->has_weights)
            k->ew[QN_EW_MUL](
                x, x, 1, (const float *)s->in[weights] + c->row * s->plan.in[weights].stride[0] + h, 0, n);
        k->ew[QN_EW_ADD](scores, scores, 1, x, 1, n);
    }
}

/* Rises with the number; NaN is below all numbers, and -0 is 0. */
static uint32_t key_of(float x)
{
    const uint32_t sign = UINT32_C(1) << 31;
    uint32_t u;
    if (x != x) return 0;
    if (x == 0) return sign;
    memcpy(&u, &x, sizeof u);
    return u & sign ? ~u : u | sign;
}

/* The least key of the `top` best, byte by byte from the highest; *equal: how many of them have it. */
static uint32_t least_key(const float *scores, int64_t n, int64_t top, int64_t *equal)
{
    uint32_t least = 0, known = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int64_t count[256] = {0};
        int byte = 255;
        for (int64_t i = 0; i < n; i++) {
            const uint32_t key = key_of(scores[i]);
            if ((key & known) == least) count[key >> shift & 255]++;
        }
        for (; count[byte] < top; byte--) top -= count[byte];
        least |= (uint32_t)byte << shift;
        known |= UINT32_C(255) << shift;
    }
    *equal = top;
    return least;
}

static void choose(const index_work *w, const candidates *c, const float *scores)
{
    const int64_t top = w->p->top;
    int32_t *out = (int32_t *)(void *)w->s->out + c->row * top;
    int64_t n = 0, equal = 0;
    const uint32_t least = c->n > top ? least_key(scores, c->n, top, &equal) : 0;
    for (int64_t i = 0; i < c->n; i++) {
        const uint32_t key = c->n > top ? key_of(scores[i]) : 1;
        if (key > least || (key == least && equal-- > 0)) out[n++] = (int32_t)(c->first + i);
    }
    while (n < top) out[n++] = -1;
}

static void all_of(const index_work *w, int64_t row)
{
    const candidates c = candidates_of(w, row);
    for (int64_t i = 0; i < c.n && c.n > w->p->top; i += KEYS)
        score(w, &c, i, c.n - i < KEYS ? c.n : i + KEYS, w->scores);
    choose(w, &c, w->scores);
}

/* Rows that are fewer than workers: tiles of each, [most / KEYS rounded up], then the choices. */
static void together(const index_work *w, int64_t n_rows)
{
    const int64_t tiles = (w->most + KEYS - 1) / KEYS;
    float *scores = (float *)(void *)w->run->shared[0];
    int64_t begin, end;
    qn_pool_barrier(w->run->pool); /* others may still read what lies in the shared area */
    while (qn_cpu_claim(w->run, n_rows * tiles, &begin, &end))
        for (int64_t at = begin; at < end; at++) {
            const candidates c = candidates_of(w, at / tiles);
            const int64_t i = at % tiles * KEYS;
            if (i < c.n && c.n > w->p->top)
                score(w, &c, i, c.n - i < KEYS ? c.n : i + KEYS, scores + at / tiles * w->most);
        }
    qn_pool_barrier(w->run->pool);
    qn_cpu_share(w->run, n_rows, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const candidates c = candidates_of(w, r);
        choose(w, &c, scores + r * w->most);
    }
    qn_pool_barrier(w->run->pool);
}

/* 1: some row has more candidates than are scored at a time. */
static int has_many(const index_work *w, int64_t n_rows)
{
    for (int64_t r = 0; r < n_rows; r++) {
        const int64_t n = candidates_of(w, r).n;
        if (n > KEYS && n > w->p->top) return 1;
    }
    return 0;
}

static void index_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_shape *q = &s->plan.in[0].shape;
    const int64_t n_rows = qn_cpu_rows(run, &s->plan.out);
    index_work w = {.run = run,
                    .s = s,
                    .p = &s->plan.params.index,
                    .heads = q->dim[1],
                    .dim = q->dim[2],
                    .most = most_of(s, &run->sizes),
                    .keys = (float *)(void *)run->scratch};
    int64_t begin, end;
    w.products = (float *)(void *)(run->scratch + lines((size_t)(KEYS * w.dim) * sizeof(float)));
    w.scores = w.products + w.heads * KEYS;
    if (w.p->state) {
        const qn_kv_layout kv = qn_cpu_state_pages(w.p->state, w.p->layer);
        w.pages = kv.pages;
        w.page_stride = kv.page_stride_bytes;
        write_rows(&w);
        qn_pool_barrier(run->pool);
    }
    if (n_rows < run->n_threads && has_many(&w, n_rows)) {
        together(&w, n_rows);
        return;
    }
    while (qn_cpu_claim(run, n_rows, &begin, &end))
        for (int64_t r = begin; r < end; r++) all_of(&w, r);
}

static qn_status index_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                               size_t *shared_bytes)
{
    const qn_shape *q = &step->plan.in[0].shape;
    const qn_state *state = step->plan.params.index.state;
    const size_t most = (size_t)most_of(step, &plan->max) * sizeof(float),
                 need = lines((size_t)(KEYS * q->dim[2]) * sizeof(float)) +
                        (size_t)(q->dim[1] * KEYS) * sizeof(float) + most,
                 shared = (size_t)qn_pool_threads(d->pool) * most;
    if (state && (state->spec.dtype != QN_DTYPE_F32 || state->spec.kv_heads != 1 || !state->spec.v_in_k ||
                  state->spec.head_dim != q->dim[2]))
        return qn_fail(QN_E_ARG, "INDEX_BLOCKS takes pages of f32 with one key head of %lld dimensions alone",
                       (long long)q->dim[2]);
    if (*scratch_bytes < need) *scratch_bytes = need;
    if (*shared_bytes < shared) *shared_bytes = shared;
    return QN_OK;
}

const qn_cpu_prim qn_cpu_INDEX_BLOCKS = {index_run, index_prepare};
