#include "device/cpu/attention/chosen.h"

#include <string.h>

#include "prim/chosen.h"

enum { HEADS_AT_ONCE = 16, LINE = 64 };

/* What a row sees: pages in rising order, and for each of their positions 0, or -1 where it does not see it. */
typedef struct {
    int32_t *pages;
    float *hidden;
    int64_t n_pages, end; /* end: one behind the last that it sees, counted in these pages */
} sight;

static size_t kernel_part(const qn_cpu_step *s)
{
    const qn_operand *q = &s->plan.in[0], *v = &s->plan.in[2];
    const qn_state *state = s->plan.params.attend.state;
    const size_t bytes =
        qn_attend_scratch_bytes(state ? state->spec.dtype : QN_DTYPE_F32, q->shape.dim[2], v->shape.dim[2]);
    return (bytes + LINE - 1) / LINE * LINE;
}

/* A block of n positions touches so many pages at most. */
static int64_t pages_of_block(int64_t n)
{
    return (n + QN_PAGE_TOKENS - 2) / QN_PAGE_TOKENS + 1;
}

/* Pages of a row at most: those of its blocks and its tail, or all. */
static int64_t most_pages_of(const qn_params_attend *p, int64_t top, int64_t most)
{
    const int64_t each = pages_of_block(p->block), n = (top + 1) * each;
    return n < most ? n : most;
}

static size_t floats_at(int64_t n_pages)
{
    return ((size_t)n_pages * sizeof(int32_t) + LINE - 1) / LINE * LINE;
}

void qn_cpu_chosen_prepare(qn_cpu_step *s, int64_t most_pages, size_t *scratch_bytes)
{
    const int64_t top = s->plan.in[s->plan.n_in - 1].shape.dim[1],
                  n = most_pages_of(&s->plan.params.attend, top, most_pages);
    const size_t need = kernel_part(s) + floats_at(n) + (size_t)n * QN_PAGE_TOKENS * sizeof(float);
    s->most_pages = n;
    if (*scratch_bytes < need) *scratch_bytes = need;
}

static void look(sight *x, qn_chosen_runs *runs, const int32_t *blocks, int64_t before)
{
    int64_t begin, end, last = -1; /* the page before */
    x->n_pages = x->end = 0;
    while (qn_chosen_next(runs, &begin, &end)) {
        begin -= before;
        end -= before;
        for (int64_t at = begin, n; at < end; at += n) {
            const int64_t page = at / QN_PAGE_TOKENS, slot = at % QN_PAGE_TOKENS;
            n = end - at < QN_PAGE_TOKENS - slot ? end - at : QN_PAGE_TOKENS - slot;
            if (page != last) {
                float *new = x->hidden + x->n_pages *QN_PAGE_TOKENS;
                for (int i = 0; i < QN_PAGE_TOKENS; i++) new[i] = -1;
                x->pages[x->n_pages++] = blocks[page];
                last = page;
            }
            x->end = (x->n_pages - 1) * QN_PAGE_TOKENS + slot + n;
            memset(x->hidden + x->end - n, 0, (size_t)n * sizeof *x->hidden);
        }
    }
}

/* Query heads [*head, *head + *n) of piece i: those of one key head, HEADS_AT_ONCE at most. */
static void heads_of(int64_t i, int64_t shared, int64_t *head, int64_t *n)
{
    const int64_t pieces = (shared + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE, first = i % pieces * HEADS_AT_ONCE;
    *head = i / pieces * shared + first;
    *n = shared - first < HEADS_AT_ONCE ? shared - first : HEADS_AT_ONCE;
}

void qn_cpu_attend_chosen(const qn_cpu_run *run, const qn_cpu_step *s, qn_attend_args *a, int chosen,
                          const qn_cpu_rows_at *rows)
{
    const qn_params_attend *p = &s->plan.params.attend;
    const qn_operand *ids = &s->plan.in[chosen];
    const int64_t shared = a->n_heads / a->kv.kv_heads,
                  pieces = (shared + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE * a->kv.kv_heads;
    char *own = run->scratch + kernel_part(s);
    int64_t begin, end, seen = -1; /* the row that x is of */
    sight x = {.pages = (int32_t *)(void *)own};
    x.hidden = (float *)(void *)(own + floats_at(s->most_pages));
    while (qn_cpu_claim(run, rows->n_rows * pieces, &begin, &end))
        for (int64_t at = begin; at < end; at++) {
            const int64_t row = at / pieces;
            int64_t head, n, position, before;
            if (row != seen) {
                const int32_t *blocks;
                rows->place(rows->of, row, &blocks, &position, &before);
                qn_chosen_runs runs = {.chosen = (const int32_t *)(const void *)s->in[chosen] +
                                                 row * ids->stride[0],
                                       .top = ids->shape.dim[1],
                                       .block = p->block,
                                       .first = qn_attend_first(p->window, 0, 0, position),
                                       .position = position,
                                       .no_tail = p->no_tail};
                if (runs.first < before) runs.first = before;
                look(&x, &runs, blocks, before);
                seen = row;
            }
            heads_of(at % pieces, shared, &head, &n);
            a->blocks = x.pages;
            a->hidden = x.hidden;
            a->position = x.end - 1;
            a->q = (const float *)(const void *)s->in[0] + row * a->q_stride;
            a->out = (float *)(void *)s->out + row * a->out_stride;
            if (x.end)
                run->kernels->attend(a, 1, head, n, run->scratch);
            else
                memset(a->out + head * a->kv.v_dim, 0, (size_t)(n * a->kv.v_dim) * sizeof *a->out);
        }
}
