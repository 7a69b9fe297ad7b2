/* What a recorded run began, made a list of ops for the step kernel: products that read the same rows become one,
 * norms before and element-wise steps behind a product become part of it. */
#include "device/cuda/step/step_kernel.cuh"

#include <stdlib.h>
#include <string.h>

typedef struct {
    qn_step_op op;
    int group, level, step;
    size_t shared_bytes;
} note;

struct qn_cuda_notes {
    note *list;
    int n, room;
    int group, level, step;
    int is_whole; /* all of it can be played */
};

qn_cuda_notes *qn_cuda_notes_new(void)
{
    qn_cuda_notes *n = (qn_cuda_notes *)calloc(1, sizeof *n);
    if (n) n->is_whole = 1;
    return n;
}

void qn_cuda_notes_free(qn_cuda_notes *n)
{
    if (!n) return;
    free(n->list);
    free(n);
}

void qn_cuda_notes_set_step(qn_cuda_notes *n, int group, int level)
{
    n->group = group;
    n->level = level;
    n->step++;
}

static note *add(qn_cuda_notes *n)
{
    if (n->n == n->room) {
        const int room = n->room ? 2 * n->room : 256;
        note *list = (note *)realloc(n->list, (size_t)room * sizeof *list);
        if (!list) return NULL;
        n->list = list;
        n->room = room;
    }
    note *at = &n->list[n->n++];
    memset(at, 0, sizeof *at);
    return at;
}

void qn_cuda_note_op(qn_cuda_context *c, int op, int64_t grid, int block, size_t shared_bytes,
                     const void *work, size_t work_bytes)
{
    qn_cuda_notes *n = c->notes;
    if (!n || !n->is_whole || grid <= 0) return;
    n->is_whole = 0;
    if (op == QN_OP_NONE || work_bytes > QN_STEP_WORK || grid > INT32_MAX || block > QN_STEP_THREADS) return;
    if (op == QN_OP_ATTEND && !qn_step_can_attend((const qn_attend_op *)work)) return;
    if (op == QN_OP_PRODUCT && !qn_step_can_multiply((const qn_step_product *)work)) return;
    note *to = add(n);
    if (!to) return;
    to->op = {op, (int32_t)grid, block, 0, 0, {}, {}};
    memcpy(to->op.work, work, work_bytes);
    to->group = n->group;
    to->level = n->level;
    to->step = n->step;
    to->shared_bytes = shared_bytes;
    n->is_whole = 1;
}

/* ---- joining ------------------------------------------------------------------------------------------- */

static qn_step_product *product_of(note *n)
{
    return n->op.op == QN_OP_PRODUCT ? (qn_step_product *)n->op.work : NULL;
}

/* What is joined is read and written at the same time. */

typedef struct {
    const float *begin, *end;
} floats;

static floats rows_of(const float *x, int64_t row, int64_t n, int64_t width)
{
    return {x, n ? x + (n - 1) * row + width : x};
}

static int meet(floats a, floats b)
{
    return a.begin < b.end && b.begin < a.end;
}

/* What every block reads while others already write results. */
static floats read_of(const qn_step_product *p)
{
    return rows_of(p->x, p->x_row, p->rows, p->n_in);
}

static floats results_of(const qn_step_product *p, int i)
{
    return rows_of(p->matrix[i].out, p->matrix[i].out_stride, p->rows, p->matrix[i].w.n_out);
}

/* Products of one group that read the same rows. */
static int join_products(note *a, note *b)
{
    qn_step_product *p = product_of(a), *q = product_of(b);
    const int reads_normed = p && q && p->has_norm && q->x == p->normed && q->x_row == p->n_in;
    if (!p || !q || a->group != b->group || p->rows != q->rows ||
        !(reads_normed || (!p->has_norm && p->x == q->x && p->x_row == q->x_row)) || p->n_in != q->n_in ||
        p->padded != q->padded || p->epilogue.out || q->has_norm ||
        p->n_matrices + q->n_matrices > QN_STEP_MATRICES)
        return 0;
    for (int i = 0; i < q->n_matrices; i++)
        if (meet(read_of(p), results_of(q, i))) return 0;
    for (int i = 0; i < q->n_matrices; i++) p->matrix[p->n_matrices++] = q->matrix[i];
    return 1;
}

static int join_norm(const note *a, note *b)
{
    qn_step_product *p = product_of(b);
    const qn_lines *n = (const qn_lines *)a->op.work;
    if (a->op.op != QN_OP_RMS_WIDE || !p || p->has_norm || p->x != n->out || p->n_in != n->width ||
        n->lines != 1 || n->total != p->rows || p->x_row != n->width)
        return 0;
    for (int i = 0; i < p->n_matrices; i++)
        if (meet(rows_of(n->x, n->x_stride, p->rows, p->n_in), results_of(p, i))) return 0;
    p->has_norm = 1;
    p->x = n->x;
    p->x_row = n->x_stride;
    p->norm = n->w;
    p->eps = n->eps;
    p->offset = n->offset;
    p->normed = n->out;
    b->op.waits = 1;
    return 1;
}

/* A chain second(first(a), b) over contiguous rows. */
static int is_pair(const qn_chain *c, int *first, int *second)
{
    const qn_instruction *op = c->op;
    if (c->n_ops < 1 || c->n_ops > 2 || c->places.n != 1 || !op[c->n_ops - 1].two) return 0;
    *first = c->n_ops == 2 ? op[0].op : QN_PRIM_COPY;
    *second = op[c->n_ops - 1].op;
    if (c->n_ops == 2 && (op[0].two || op[0].a != -1 || op[1].a != 0 || op[1].b != -2)) return 0;
    if (c->n_ops == 1 && (op[0].a != -1 || op[0].b != -2)) return 0;
    return c->places.stride[0][0] == 1 && c->places.stride[1][0] == 1 && qn_step_knows_pair(*first, *second);
}

static int matrix_of(const qn_step_product *p, const float *out)
{
    for (int i = 0; i < p->n_matrices; i++)
        if (p->matrix[i].out == out) return i;
    return -1;
}

static int join_chain(note *a, const note *b)
{
    qn_step_product *p = product_of(a);
    const qn_chain *c = (const qn_chain *)b->op.work;
    int first, second;
    if (!p || b->op.op != QN_OP_CHAIN || p->epilogue.out || !is_pair(c, &first, &second)) return 0;
    const int i = matrix_of(p, c->in[0]), j = matrix_of(p, c->in[1]);
    if (p->n_matrices != (i >= 0) + (j >= 0) || (p->n_matrices == 2 && i == j) || !a->op.waits) return 0;
    for (int k = 0; k < p->n_matrices; k++)
        if (p->matrix[k].w.n_out != p->matrix[0].w.n_out || p->matrix[k].out_stride != p->matrix[k].w.n_out ||
            c->places.total != p->rows * p->matrix[k].w.n_out)
            return 0;
    const floats out = {c->out, c->out + c->places.total};
    if (meet(read_of(p), out)) return 0;
    /* who read what was normed is part of p: memory that is used again is not written */
    if (p->has_norm && meet(rows_of(p->normed, p->n_in, p->rows, p->n_in), out)) p->normed = NULL;
    p->is_interleaved = 1;
    p->epilogue = {first, second, i, j, c->in[0], c->in[1], c->out};
    return 1;
}

/* 1: the last phase of the list rotates, and does nothing else. */
static int is_rotation_alone(const note *list, int n)
{
    while (--n >= 0 && list[n].op.op == QN_OP_ROTATE)
        if (list[n].op.waits) return 1;
    return 0;
}

/* Keys that the op before rotates go to their pages at once: the writing rotates them itself, and waits for no
 * more than the rotation does. What is rotated stays in memory for others. */
static void join_rotation(const note *list, int n, note *b)
{
    qn_writing *w = (qn_writing *)b->op.work;
    if (b->op.op != QN_OP_WRITE || !is_rotation_alone(list, n)) return;
    for (int i = n - 1; i >= 0 && list[i].op.op == QN_OP_ROTATE; i--) {
        const qn_rotate::work *r = (const qn_rotate::work *)list[i].op.work;
        if (r->out == w->k.x && r->heads == w->kv_heads && r->head_dim == w->k.dim &&
            w->k.stride == r->heads * r->head_dim) {
            w->rotation = *r;
            b->op.waits = 0;
            return;
        }
        if (list[i].op.waits) return;
    }
}

/* Steps of one group by rising level, so that those of one level share a phase. */
static void sort_by_level(note *list, int n)
{
    for (int i = 1; i < n; i++) {
        const note moved = list[i];
        int j = i;
        for (; j > 0 && list[j - 1].group == moved.group && list[j - 1].level > moved.level; j--)
            list[j] = list[j - 1];
        list[j] = moved;
    }
}

/* The list that is played: joined, with its waits. Returns its length. */
static int join(note *list, int n)
{
    int out = 0;
    sort_by_level(list, n);
    for (int i = 0; i < n; i++) {
        note next = list[i];
        next.op.waits = !i || list[i].group != list[i - 1].group || list[i].level != list[i - 1].level ||
                        list[i].step == list[i - 1].step;
        if (out) {
            note *last = &list[out - 1];
            if (join_products(last, &next)) continue;
            if (join_norm(last, &next)) {
                *last = next;
                continue;
            }
            if (join_chain(last, &next)) {
                last->group = -1; /* what follows waits */
                continue;
            }
            join_rotation(list, out, &next);
            /* what was normed is there behind the next barrier alone */
            const qn_step_product *p = product_of(last);
            if (last->group < 0 || (p && p->has_norm)) next.op.waits = 1;
        }
        list[out++] = next;
    }
    return out;
}

/* ---- a kernel ------------------------------------------------------------------------------------------ */

struct qn_cuda_played {
    qn_step_plan plan;
    void *memory; /* on the card: ops, feeds, the counter */
    size_t memory_bytes;
    unsigned base;
};

static int64_t chunks_of(const qn_cuda_weight *w)
{
    return qn_blocks(w->n_units * w->unit_k, QN_CUDA_CHUNK);
}

static qn_step_feed feed_of(const qn_step_product *p)
{
    qn_step_feed f = {p->n_matrices, p->is_interleaved};
    for (int i = 0; i < p->n_matrices; i++) {
        const qn_cuda_weight *w = &p->matrix[i].w;
        const int units = QN_CUDA_CHUNK / w->unit_k;
        qn_step_stream *s = &f.stream[i];
        s->data = w->data;
        s->n_panels = (int)w->n_panels;
        s->n_chunks = (int)chunks_of(w);
        s->chunk_bytes = units * w->unit_bytes;
        s->panel_bytes = (int)w->n_units * w->unit_bytes;
        s->last_bytes = s->panel_bytes - (s->n_chunks - 1) * s->chunk_bytes;
    }
    return f;
}

/* What the largest op needs of the shared memory, and slots of the ring in what is left. 0: it does not fit. */
static int plan_memory(const note *list, int n, qn_step_plan *plan)
{
    size_t slot = 0, area = 0, sums = 0;
    for (int i = 0; i < n; i++) {
        size_t need = list[i].shared_bytes;
        if (list[i].op.op == QN_OP_ATTEND)
            need = qn_attend_few_bytes(qn_attend_dim(&((const qn_attend_op *)list[i].op.work)->a));
        const qn_step_product *p = product_of((note *)&list[i]);
        if (p) {
            need = (size_t)p->rows * (size_t)qn_step_row_words(p->padded) * sizeof(uint32_t);
            const qn_step_feed f = feed_of(p);
            size_t group = 0;
            for (int k = 0; k < p->n_matrices; k++) {
                const size_t bytes = (size_t)f.stream[k].n_chunks * (size_t)p->rows * 16 * sizeof(float);
                if ((size_t)f.stream[k].chunk_bytes > slot) slot = (size_t)f.stream[k].chunk_bytes;
                group = p->is_interleaved ? group + bytes : bytes > group ? bytes : group;
            }
            if (group > sums) sums = group;
        }
        if (need > area) area = need;
    }
    enum { LEAST_SLOTS = 8, ALL = 227 << 10, STATIC = 8 << 10, SUMS = 12 << 10 };
    if (sums < SUMS) sums = SUMS;
    plan->slot_bytes = (int)((slot + 127) / 128 * 128);
    plan->area_bytes = (int)((area + 127) / 128 * 128);
    plan->sums_bytes = (int)((sums + 127) / 128 * 128);
    const int left = ALL - STATIC - plan->area_bytes - 2 * plan->sums_bytes;
    if (!plan->slot_bytes || left < 0) return 0;
    plan->n_slots = left / plan->slot_bytes;
    if (plan->n_slots > QN_STEP_SLOTS) plan->n_slots = QN_STEP_SLOTS;
    plan->n_warps = plan->n_slots < QN_STEP_WARPS ? plan->n_slots : QN_STEP_WARPS;
    if (plan->n_warps) plan->n_slots -= plan->n_slots % plan->n_warps;
    plan->shared_bytes = (size_t)(plan->n_slots * plan->slot_bytes + plan->area_bytes + 2 * plan->sums_bytes);
    return plan->n_slots >= LEAST_SLOTS;
}

/* Ops of one group begin at different blocks. */
static void spread(note *list, int n, int n_blocks)
{
    int64_t first = 0;
    for (int i = 0; i < n; i++) {
        if (list[i].op.waits) first = 0;
        list[i].op.first = (int32_t)(first % n_blocks);
        first += list[i].op.grid;
    }
}

static qn_status upload(qn_cuda_context *c, qn_cuda_played *p, const note *list, int n)
{
    const size_t ops_bytes = (size_t)n * sizeof(qn_step_op), feeds_bytes = (size_t)n * sizeof(qn_step_feed);
    char *staged = (char *)calloc(1, ops_bytes + feeds_bytes);
    if (!staged) return qn_cuda_fail(QN_E_NOMEM, "out of memory");
    for (int i = 0; i < n; i++) {
        memcpy(staged + (size_t)i * sizeof(qn_step_op), &list[i].op, sizeof(qn_step_op));
        const qn_step_product *product = product_of((note *)&list[i]);
        if (!product) continue;
        const qn_step_feed feed = feed_of(product);
        memcpy(staged + ops_bytes + (size_t)p->plan.n_feeds++ * sizeof feed, &feed, sizeof feed);
    }
    p->memory_bytes = ops_bytes + feeds_bytes + 256;
    qn_status status = qn_cuda_check(c, cudaMalloc(&p->memory, p->memory_bytes), "a step");
    char *memory = (char *)p->memory;
    if (status == QN_OK) status = qn_cuda_check(c, cudaMemsetAsync(memory, 0, 256, c->stream), "a step");
    if (status == QN_OK)
        status = qn_cuda_check(
            c,
            cudaMemcpyAsync(memory + 256, staged, ops_bytes + feeds_bytes, cudaMemcpyHostToDevice, c->stream),
            "a step");
    free(staged);
    p->plan.counter = (unsigned *)memory;
    p->plan.ops = (const qn_step_op *)(memory + 256);
    p->plan.feeds = (const qn_step_feed *)(memory + 256 + ops_bytes);
    p->plan.n_ops = n;
    return status;
}

static qn_status make(qn_cuda_context *c, note *list, int n, qn_cuda_played **out)
{
    n = join(list, n);
    qn_cuda_played *p = (qn_cuda_played *)calloc(1, sizeof *p);
    if (!p) return qn_cuda_fail(QN_E_NOMEM, "out of memory");
    if (!plan_memory(list, n, &p->plan)) {
        free(p);
        return QN_OK;
    }
#ifdef QN_CUDA_HOST
    p->plan.n_blocks = 1; /* blocks that wait for each other would have to run at once */
#else
    p->plan.n_blocks = c->n_sm;
#endif
    spread(list, n, p->plan.n_blocks);
    for (int i = 0; i < n; i++) p->plan.n_waits += list[i].op.waits && i;
    const qn_status status = upload(c, p, list, n);
    if (status != QN_OK) {
        qn_cuda_played_free(c, p);
        return status;
    }
    *out = p;
    return QN_OK;
}

qn_status qn_cuda_played_new(qn_cuda_context *c, const qn_cuda_notes *n, qn_cuda_played **out)
{
    int has_product = 0;
    *out = NULL;
    if (!n->is_whole || !qn_step_runs_on(c)) return QN_OK;
    for (int i = 0; i < n->n; i++) has_product |= n->list[i].op.op == QN_OP_PRODUCT;
    if (!has_product) return QN_OK;
    note *list = (note *)malloc((size_t)n->n * sizeof *list);
    if (!list) return qn_cuda_fail(QN_E_NOMEM, "out of memory");
    memcpy(list, n->list, (size_t)n->n * sizeof *list);
    const qn_status status = make(c, list, n->n, out);
    free(list);
    return status;
}

qn_status qn_cuda_played_begin(qn_cuda_context *c, qn_cuda_played *p)
{
    p->plan.base = p->base;
    p->base += (unsigned)(p->plan.n_waits * p->plan.n_blocks);
    return qn_step_launch(c, &p->plan);
}

size_t qn_cuda_played_bytes(const qn_cuda_played *p)
{
    return p ? p->memory_bytes : 0;
}

void qn_cuda_played_free(qn_cuda_context *c, qn_cuda_played *p)
{
    if (!p) return;
    if (p->memory) cudaFree(p->memory);
    free(p);
}
