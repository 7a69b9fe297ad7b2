/* Attention over k and v of the same rows: what training differentiates.
 *
 * Keys and values are first laid into pages of f32 that live as long as the step, then the kernels of attention
 * over pages go through them. So a row gets the bits that it gets in an engine that keeps f32. */
#include "device/cpu/attention/ragged.h"

#include "device/cpu/attention/chosen.h"

/* The shared area: numbers of all pages, then the pages. */
typedef struct {
    int64_t n_pages;
    size_t pages_at, size;
} places;

static qn_kv_layout layout_of(const qn_cpu_step *s)
{
    const qn_shape *k = &s->plan.in[1].shape, *v = &s->plan.in[2].shape;
    qn_kv_layout kv = {
        .dtype = QN_DTYPE_F32, .kv_heads = k->dim[1], .head_dim = k->dim[2], .v_dim = v->dim[2]};
    kv.page_stride_bytes = qn_kv_page_bytes(kv.dtype, kv.kv_heads, kv.head_dim, kv.v_dim);
    return kv;
}

/* The pages of each sequence begin at one that is its own: rows / QN_PAGE_TOKENS and one more suffice for it. */
static places place(const qn_cpu_step *s, const qn_sizes *sizes)
{
    const int64_t n_rows = qn_shape_dim(&s->plan.in[1].shape, 0, sizes),
                  n_sequences = qn_cpu_sequences(sizes, &s->plan.in[4]);
    places p = {.n_pages = n_rows / QN_PAGE_TOKENS + n_sequences};
    p.pages_at = ((size_t)p.n_pages * sizeof(int32_t) + 63) / 64 * 64;
    p.size = p.pages_at + (size_t)p.n_pages * layout_of(s).page_stride_bytes;
    return p;
}

static int64_t pages_of(const int32_t *row_begin, int64_t sequence)
{
    return (row_begin[sequence + 1] - row_begin[sequence] + QN_PAGE_TOKENS - 1) / QN_PAGE_TOKENS;
}

/* This worker's share of the pages of all sequences. */
static void write_pages(const qn_cpu_run *run, const qn_cpu_step *s, const qn_kv_layout *kv, int32_t *numbers)
{
    const qn_operand *k = &s->plan.in[1], *v = &s->plan.in[2];
    const int32_t *row_begin = (const int32_t *)s->in[4];
    const int64_t n_sequences = qn_cpu_sequences(&run->sizes, &s->plan.in[4]);
    int64_t begin, end, total = 0, sequence = 0, first = 0; /* first page of the sequence */
    for (int64_t i = 0; i < n_sequences; i++) total += pages_of(row_begin, i);
    qn_pool_share(total, 1, run->thread, run->n_threads, &begin, &end);
    for (int64_t page = begin; page < end; page++) {
        while (page - first >= pages_of(row_begin, sequence)) first += pages_of(row_begin, sequence++);
        const int64_t r = row_begin[sequence] + (page - first) * QN_PAGE_TOKENS,
                      left = row_begin[sequence + 1] - r;
        numbers[page] = (int32_t)page;
        run->kernels->kv_write(kv, 0, kv->kv_heads, page, 0, left < QN_PAGE_TOKENS ? left : QN_PAGE_TOKENS,
                               (const float *)s->in[1] + r * k->stride[0], k->stride[0],
                               (const float *)s->in[2] + r * v->stride[0], v->stride[0]);
    }
}

/* A tile of rows of one sequence against one key head. */
static void attend_tile(const qn_cpu_run *run, const qn_cpu_step *s, qn_attend_args *a, int64_t row,
                        int64_t position, int64_t n_rows, int64_t kv_head)
{
    const int64_t shared = a->n_heads / a->kv.kv_heads;
    a->position = position;
    a->q = (const float *)s->in[0] + row * a->q_stride;
    a->out = (float *)(void *)s->out + row * a->out_stride;
    run->kernels->attend(a, n_rows, kv_head * shared, shared, run->scratch);
}

static int64_t tiles_of(const int32_t *row_begin, int64_t sequence)
{
    return (row_begin[sequence + 1] - row_begin[sequence] + QN_ATTN_ROWS - 1) / QN_ATTN_ROWS;
}

/* The step and the numbers of its pages, for place_row. */
typedef struct {
    const qn_cpu_step *s;
    const int32_t *numbers;
} numbered;

static void place_row(const void *of, int64_t row, const int32_t **blocks, int64_t *position, int64_t *before)
{
    const numbered *n = of;
    const int32_t *row_begin = (const int32_t *)n->s->in[4];
    int64_t sequence = 0, pages = 0;
    for (; row_begin[sequence + 1] <= row; sequence++) pages += pages_of(row_begin, sequence);
    *blocks = n->numbers + pages;
    *position = row - row_begin[sequence];
    *before = 0;
}

/* Workers claim tiles of one key head. */
static void attend_all(const qn_cpu_run *run, const qn_cpu_step *s, const qn_kv_layout *kv,
                       const int32_t *numbers)
{
    const qn_params_attend *p = &s->plan.params.attend;
    const int32_t *positions = (const int32_t *)s->in[3], *row_begin = (const int32_t *)s->in[4];
    const int64_t n_sequences = qn_cpu_sequences(&run->sizes, &s->plan.in[4]);
    qn_attend_args a = {.kv = *kv,
                        .n_heads = s->plan.in[0].shape.dim[1],
                        .q_stride = s->plan.in[0].stride[0],
                        .out_stride = s->plan.in[0].shape.dim[1] * kv->v_dim,
                        .window = p->window,
                        .chunk = p->chunk,
                        .scale = p->scale,
                        .softcap = p->softcap,
                        .sinks = p->has_sinks ? (const float *)s->in[5] : NULL};
    int64_t total = 0, begin, end;
    if (p->block) {
        const numbered of = {s, numbers};
        const qn_cpu_rows_at rows = {.n_rows = row_begin[n_sequences], .place = place_row, .of = &of};
        a.window = 0;
        qn_cpu_attend_chosen(run, s, &a, s->plan.n_in - 1, &rows);
        return;
    }
    for (int64_t i = 0; i < n_sequences; i++) total += tiles_of(row_begin, i);
    while (qn_cpu_claim(run, total * kv->kv_heads, &begin, &end)) {
        int64_t sequence = 0, tiles = 0, pages = 0; /* of the sequences before */
        for (int64_t at = begin; at < end; at++) {
            const int64_t tile = at / kv->kv_heads;
            for (; tile - tiles >= tiles_of(row_begin, sequence); sequence++) {
                tiles += tiles_of(row_begin, sequence);
                pages += pages_of(row_begin, sequence);
            }
            const int64_t position = (tile - tiles) * QN_ATTN_ROWS, row = row_begin[sequence] + position,
                          left = row_begin[sequence + 1] - row;
            a.blocks = numbers + pages;
            a.chunk_at = p->chunk ? positions[row_begin[sequence]] % p->chunk : 0;
            a.seen = p->whole ? row_begin[sequence + 1] - row_begin[sequence] : 0;
            attend_tile(run, s, &a, row, position, left < QN_ATTN_ROWS ? left : QN_ATTN_ROWS,
                        at % kv->kv_heads);
        }
    }
}

void qn_cpu_attend_ragged(const qn_cpu_run *run, const qn_cpu_step *s)
{
    char *shared = run->shared[0];
    int32_t *numbers = (int32_t *)(void *)shared;
    qn_kv_layout kv = layout_of(s);
    kv.pages = shared + place(s, &run->sizes).pages_at;
    qn_pool_barrier(run->pool); /* others may still read what lies in the shared area */
    write_pages(run, s, &kv, numbers);
    qn_pool_barrier(run->pool);
    attend_all(run, s, &kv, numbers);
    qn_pool_barrier(run->pool); /* nor may others write there meanwhile */
}

void qn_cpu_ragged_prepare(const qn_plan *plan, qn_cpu_step *s, size_t *scratch_bytes, size_t *shared_bytes)
{
    const qn_kv_layout kv = layout_of(s);
    const size_t own = qn_attend_scratch_bytes(kv.dtype, kv.head_dim, kv.v_dim),
                 shared = place(s, &plan->max).size;
    if (*scratch_bytes < own) *scratch_bytes = own;
    if (*shared_bytes < shared) *shared_bytes = shared;
    if (s->plan.params.attend.block) qn_cpu_chosen_prepare(s, place(s, &plan->max).n_pages, scratch_bytes);
}
