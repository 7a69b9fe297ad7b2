/* A plan on a card: temporaries lie in one arena there, every step is launched in order, and the host waits only
 * for what it reads. */
#include <string.h>

#include "base/mem.h"
#include "device/cuda/cuda.h"
#include "prim/dtype.h"

/* A slot that a step reads or writes and that is a plain buffer. */
typedef struct {
    int slot;
    qn_buffer *buffer;
    int is_written;
    char *card;                       /* its face in this run */
    size_t used_bytes, written_bytes; /* from its start, in runs of the sizes `measured` */
} buffer_use;

/* The pairs of a step with adapters, as the card has them. */
typedef struct {
    int n;
    qn_cuda_lora *host, *sent; /* [n] of this run; what the card has */
    qn_cuda_lora *card;
    int is_sent;
    int32_t max_rank;
} lora_table;

/* All steps of a run as one graph: of these sizes, addresses and ranks. */
typedef struct {
    qn_sizes sizes;
    uint64_t faces;  /* hash of the addresses of buffers, and of the adapters' largest ranks */
    void *recording; /* NULL: the run came once; the next one alike is recorded */
    size_t bytes;    /* of it, in the ledger */
    uint64_t used;   /* when, in runs */
} recorded;
enum { RECORDINGS = 12 };

/* A run that nobody waited for yet, and the rows' largest numbers with which it began. */
typedef struct {
    int is_begun, is_coming; /* is_coming: bytes are on their way to the host until the mark */
    void *mark;              /* NULL: not made yet */
    int64_t n;               /* numbers that it took, 0: none */
    int32_t *ids;            /* [room] them, on the host, in locked memory */
    int64_t room;
    void *scratch; /* on the card, for finding them */
    size_t scratch_bytes;
} pending;

typedef struct {
    qn_exec base;
    qn_plan plan; /* arrays in it are the program's, which outlives this */
    char *shown;  /* [n_steps] the probe wants it */
    char *arena, *scratch;
    size_t scratch_bytes;
    int n_buffers;
    buffer_use *buffers; /* [n_buffers], each buffer once */
    int *levels;         /* [n_steps] see qn_cuda_step */
    int *use_of;         /* [n_slots] its place in buffers, -1: none */
    lora_table **loras;  /* [n_steps], NULL: none */
    qn_probe_fn *probe;
    void *probe_user;
    qn_sizes sizes, measured;
    int is_measured;
    recorded recordings[RECORDINGS];
    uint64_t n_runs;
    int never_records;
    pending pending;
} cuda_exec;

int qn_cuda_supports(qn_device *d, qn_prim prim)
{
    return 1;
}

static qn_cuda *device_of(const cuda_exec *e)
{
    return (qn_cuda *)e->base.device;
}

static size_t element_bytes(qn_dtype dtype)
{
    size_t bytes = 0;
    qn_dtype_bytes(dtype, 1, &bytes);
    return bytes;
}

static const qn_cuda_weight *weight_of(const cuda_exec *e, const qn_operand *o)
{
    const qn_buffer *b = e->plan.slots[o->slot].buffer;
    return b && b->layout == QN_CUDA_LAYOUT_WEIGHT ? b->data : NULL;
}

/* ---- operands ------------------------------------------------------------------------------------------ */

/* Elements from the slot's start to the last one of the operand; 0: it has none. */
static int64_t extent(const qn_operand *o, const qn_sizes *sizes)
{
    int64_t last = o->offset;
    for (int i = 0; i < o->shape.n; i++) {
        const int64_t n = qn_shape_dim(&o->shape, i, sizes);
        if (n == 0) return 0;
        if (o->stride[i] > 0) last += (n - 1) * o->stride[i];
    }
    return last + 1;
}

/* base: where the slot begins; NULL at compile time. */
static qn_cuda_operand operand(const cuda_exec *e, const qn_operand *o, char *base, const qn_sizes *sizes)
{
    qn_cuda_operand c = {.dtype = o->dtype, .n = o->shape.n, .weight = weight_of(e, o)};
    for (int i = 0; i < o->shape.n; i++) {
        c.dim[i] = qn_shape_dim(&o->shape, i, sizes);
        c.stride[i] = o->stride[i];
    }
    if (base && !c.weight) c.data = base + o->offset * (int64_t)element_bytes(o->dtype);
    return c;
}

static char *slot_base(const cuda_exec *e, int slot)
{
    const qn_plan_slot *s = &e->plan.slots[slot];
    if (s->kind == QN_SLOT_TEMP) return e->arena + s->offset_bytes;
    return e->use_of[slot] >= 0 ? e->buffers[e->use_of[slot]].card : NULL;
}

static qn_cuda_device_state *state_of(const qn_plan_step *s, int64_t *layer)
{
    const int attends = s->prim == QN_PRIM_ATTEND;
    if (s->prim == QN_PRIM_INDEX_BLOCKS) {
        *layer = s->params.index.layer;
        return (qn_cuda_device_state *)s->params.index.state;
    }
    if (!attends && s->prim != QN_PRIM_SHORT_CONV && s->prim != QN_PRIM_GATED_DELTA) return NULL;
    *layer = attends ? s->params.attend.layer : s->params.recurrent.layer;
    return (qn_cuda_device_state *)(attends ? s->params.attend.state : s->params.recurrent.state);
}

/* placed 0: at compile time, without addresses. */
static qn_cuda_step step_of(const cuda_exec *e, int i, const qn_sizes *sizes, int placed)
{
    const qn_plan_step *s = &e->plan.steps[i];
    qn_cuda_step c = {.prim = s->prim,
                      .params = &s->params,
                      .precision = e->plan.precision,
                      .group = s->group,
                      .level = e->levels[i],
                      .n_in = s->n_in};
    int64_t layer;
    for (int k = 0; k < s->n_in; k++)
        c.in[k] = operand(e, &s->in[k], placed ? slot_base(e, s->in[k].slot) : NULL, sizes);
    c.out = operand(e, &s->out, placed ? slot_base(e, s->out.slot) : NULL, sizes);
    if (s->prim == QN_PRIM_MATMUL)
        c.transposed = s->in[1].stride[0] == 1 && s->in[1].stride[1] == s->in[1].shape.dim[0];
    qn_cuda_device_state *state = state_of(s, &layer);
    if (state) c.state = qn_cuda_state_layer(state, layer);
    if (e->loras[i]) {
        c.lora = e->loras[i]->card;
        c.n_lora = e->loras[i]->n;
        c.max_rank = placed ? e->loras[i]->max_rank : QN_LORA_RANK_MAX;
    }
    c.scratch = e->scratch;
    return c;
}

static void free_pending(cuda_exec *e);
static void free_recording(qn_cuda *d, recorded *r);

/* ---- compiling ----------------------------------------------------------------------------------------- */

static const qn_params_lora *pairs_of(const qn_plan_step *s)
{
    return s->prim == QN_PRIM_LORA           ? &s->params.lora
           : s->prim == QN_PRIM_EXPERTS_LORA ? &s->params.experts_lora.lora
                                             : NULL;
}

static qn_status make_table(cuda_exec *e, int i)
{
    qn_cuda *d = device_of(e);
    const qn_params_lora *p = pairs_of(&e->plan.steps[i]);
    if (!p || !p->n_pairs) return QN_OK;
    const size_t n = (size_t)p->n_pairs;
    lora_table *t = e->loras[i] = qn_calloc(1, sizeof *t);
    if (!t) return QN_E_NOMEM;
    t->n = p->n_pairs;
    t->host = qn_calloc(n, sizeof *t->host);
    t->sent = qn_calloc(n, sizeof *t->sent);
    if (!t->host || !t->sent) return QN_E_NOMEM;
    void *card = NULL;
    QN_TRY(qn_cuda_take(d, n * sizeof *t->card, QN_LEDGER_SCRATCH, &card));
    t->card = card;
    return QN_OK;
}

static void free_table(cuda_exec *e, lora_table *t)
{
    if (!t) return;
    qn_cuda_give(device_of(e), (size_t)t->n * sizeof *t->card, QN_LEDGER_SCRATCH, t->card);
    qn_free(t->host);
    qn_free(t->sent);
    qn_free(t);
}

static void use_buffer(cuda_exec *e, int slot, int is_written)
{
    qn_buffer *b = e->plan.slots[slot].buffer;
    if (!b || b->layout != QN_CUDA_LAYOUT_PLAIN) return;
    int i = 0;
    while (i < e->n_buffers && e->buffers[i].buffer != b) i++;
    if (i == e->n_buffers) e->buffers[e->n_buffers++] = (buffer_use){.slot = slot, .buffer = b};
    e->buffers[i].is_written |= is_written;
    e->use_of[slot] = i;
}

/* A group may hold a chain of row-local steps, each of which reads what the one before it wrote. */
static int find_level(const cuda_exec *e, int i)
{
    const qn_plan_step *steps = e->plan.steps;
    int level = 0;
    for (int j = i - 1; j >= 0 && steps[j].group == steps[i].group; j--)
        for (int k = 0; k < steps[i].n_in; k++)
            if (steps[i].in[k].slot == steps[j].out.slot && e->levels[j] >= level) level = e->levels[j] + 1;
    return level;
}

static qn_status prepare(cuda_exec *e)
{
    qn_cuda *d = device_of(e);
    const qn_plan *plan = &e->plan;
    const size_t n_steps = (size_t)plan->n_steps + 1, n_slots = (size_t)plan->n_slots + 1;
    e->shown = qn_calloc(n_steps, 1);
    e->loras = qn_calloc(n_steps, sizeof *e->loras);
    e->levels = qn_calloc(n_steps, sizeof *e->levels);
    e->buffers = qn_calloc(n_slots, sizeof *e->buffers);
    e->use_of = qn_alloc_array(n_slots, sizeof *e->use_of);
    if (!e->shown || !e->loras || !e->levels || !e->buffers || !e->use_of) return QN_E_NOMEM;
    for (int i = 0; i < plan->n_slots; i++) e->use_of[i] = -1;
    QN_TRY(qn_cuda_check_weights(plan));
    for (int i = 0; i < plan->n_steps; i++) {
        const qn_plan_step *s = &plan->steps[i];
        e->levels[i] = find_level(e, i);
        for (int k = 0; k < s->n_in; k++) use_buffer(e, s->in[k].slot, 0);
        use_buffer(e, s->out.slot, 1);
        QN_TRY(make_table(e, i));
        const qn_cuda_step c = step_of(e, i, &plan->max, 0);
        const size_t bytes = d->shim->scratch_bytes(&c);
        if (bytes > e->scratch_bytes) e->scratch_bytes = bytes;
    }
    void *p = NULL;
    if (plan->arena_bytes) QN_TRY(qn_cuda_take(d, plan->arena_bytes, QN_LEDGER_SCRATCH, &p));
    e->arena = p;
    p = NULL;
    if (e->scratch_bytes) QN_TRY(qn_cuda_take(d, e->scratch_bytes, QN_LEDGER_SCRATCH, &p));
    e->scratch = p;
    return QN_OK;
}

qn_status qn_cuda_compile(qn_device *base, const qn_plan *plan, qn_exec **out)
{
    cuda_exec *e = qn_calloc(1, sizeof *e);
    if (!e) return QN_E_NOMEM;
    e->base.device = base;
    e->plan = *plan;
    const qn_status status = prepare(e);
    if (status != QN_OK) {
        qn_cuda_exec_free(&e->base);
        return status;
    }
    *out = &e->base;
    return QN_OK;
}

void qn_cuda_exec_free(qn_exec *base)
{
    cuda_exec *e = (cuda_exec *)base;
    if (!e) return;
    qn_cuda *d = device_of(e);
    free_pending(e);
    for (int i = 0; i < RECORDINGS; i++) free_recording(d, &e->recordings[i]);
    for (int i = 0; e->loras && i < e->plan.n_steps; i++) free_table(e, e->loras[i]);
    qn_cuda_give(d, e->plan.arena_bytes, QN_LEDGER_SCRATCH, e->arena);
    qn_cuda_give(d, e->scratch_bytes, QN_LEDGER_SCRATCH, e->scratch);
    qn_free(e->shown);
    qn_free(e->loras);
    qn_free(e->levels);
    qn_free(e->buffers);
    qn_free(e->use_of);
    qn_free(e);
}

/* ---- before a run -------------------------------------------------------------------------------------- */

static void larger(size_t *most, size_t bytes)
{
    if (bytes > *most) *most = bytes;
}

/* So many bytes of each buffer do the steps of this run look at, and write. */
static void measure_uses(cuda_exec *e)
{
    if (e->is_measured && memcmp(&e->sizes, &e->measured, sizeof e->sizes) == 0) return;
    for (int i = 0; i < e->n_buffers; i++) e->buffers[i].used_bytes = e->buffers[i].written_bytes = 0;
    for (int i = 0; i < e->plan.n_steps; i++) {
        const qn_plan_step *s = &e->plan.steps[i];
        for (int k = 0; k <= s->n_in; k++) {
            const qn_operand *o = k < s->n_in ? &s->in[k] : &s->out;
            if (e->use_of[o->slot] < 0) continue;
            buffer_use *u = &e->buffers[e->use_of[o->slot]];
            const size_t bytes = (size_t)extent(o, &e->sizes) * element_bytes(o->dtype);
            larger(&u->used_bytes, bytes);
            if (k == s->n_in) larger(&u->written_bytes, bytes);
        }
    }
    e->measured = e->sizes;
    e->is_measured = 1;
}

/* All but `guessed` (NULL: none), which the card itself writes. */
static qn_status place_buffers(cuda_exec *e, const qn_buffer *guessed)
{
    qn_cuda *d = device_of(e);
    measure_uses(e);
    for (int i = 0; i < e->n_buffers; i++) {
        buffer_use *u = &e->buffers[i];
        if (u->buffer != guessed) QN_TRY(qn_cuda_face(d, u->buffer, u->used_bytes, &u->card));
    }
    return QN_OK;
}

/* An operand's numbers on the host: it is an input of the program, or a constant. */
static qn_status host_numbers(const cuda_exec *e, const qn_operand *o, const int32_t **out)
{
    qn_buffer *b = e->plan.slots[o->slot].buffer;
    const void *data;
    if (!b) return qn_fail(QN_E_UNSUPPORTED, "device cuda: pages and slots must be inputs of the program");
    QN_TRY(qn_cuda_peek(device_of(e), b, &data));
    *out = (const int32_t *)data + o->offset;
    return QN_OK;
}

/* Memory behind the pages that this run writes or reads. */
static qn_status reach_pages(const cuda_exec *e, const qn_plan_step *s, qn_cuda_device_state *state)
{
    const int32_t *positions = NULL, *row_begin = NULL, *blocks = NULL;
    const qn_operand *in = s->in + (s->prim == QN_PRIM_INDEX_BLOCKS ? 2 : 3); /* these three */
    QN_TRY(host_numbers(e, &in[0], &positions));
    QN_TRY(host_numbers(e, &in[1], &row_begin));
    QN_TRY(host_numbers(e, &in[2], &blocks));
    const int64_t n = qn_shape_dim(&in[1].shape, 0, &e->sizes) - 1;
    for (int64_t i = 0; i < n; i++) {
        if (row_begin[i + 1] <= row_begin[i]) continue;
        const int32_t *table = blocks + i * in[2].stride[0];
        const int64_t pages = positions[row_begin[i + 1] - 1] / QN_PAGE_TOKENS + 1 - table[0];
        const int64_t first = positions[row_begin[i]] / QN_PAGE_TOKENS - table[0];
        for (int64_t p = first > 0 ? first : 0; p < pages; p++)
            QN_TRY(qn_cuda_state_reach(state, table[1 + p]));
    }
    return QN_OK;
}

static qn_status reach_slots(const cuda_exec *e, const qn_plan_step *s, qn_cuda_device_state *state)
{
    const int32_t *slots = NULL;
    const qn_operand *o = &s->in[s->prim == QN_PRIM_SHORT_CONV ? 3 : 6];
    QN_TRY(host_numbers(e, o, &slots));
    const int64_t n = qn_shape_dim(&o->shape, 0, &e->sizes);
    for (int64_t i = 0; i < n; i++) QN_TRY(qn_cuda_state_reach(state, slots[i]));
    return QN_OK;
}

/* All layers of a state have the same units: its first step tells. */
static qn_status reach_states(const cuda_exec *e)
{
    const qn_cuda_device_state *last = NULL;
    for (int i = 0; i < e->plan.n_steps; i++) {
        const qn_plan_step *s = &e->plan.steps[i];
        int64_t layer;
        qn_cuda_device_state *state = state_of(s, &layer);
        if (!state || state == last) continue;
        const int has_pages = s->prim == QN_PRIM_ATTEND || s->prim == QN_PRIM_INDEX_BLOCKS;
        QN_TRY(has_pages ? reach_pages(e, s, state) : reach_slots(e, s, state));
        last = state;
    }
    return QN_OK;
}

/* The pairs may change between runs. */
static qn_status send_pairs(cuda_exec *e, int i)
{
    qn_cuda *d = device_of(e);
    lora_table *t = e->loras[i];
    const qn_params_lora *p = pairs_of(&e->plan.steps[i]);
    t->max_rank = 0;
    for (int k = 0; k < t->n; k++) {
        const qn_lora_pair *pair = &p->pairs[k];
        t->host[k] = (qn_cuda_lora){0};
        if (!pair->data) continue;
        char *base;
        QN_TRY(qn_cuda_face(d, (qn_buffer *)(uintptr_t)pair->data, pair->data->size_bytes, &base));
        const float *data = (const float *)(void *)base;
        t->host[k] = (qn_cuda_lora){data + pair->a, data + pair->b,
                                    pair->gain >= 0 ? data + pair->gain : NULL, pair->rank, pair->scale};
        if (pair->rank > t->max_rank) t->max_rank = pair->rank;
    }
    const size_t bytes = (size_t)t->n * sizeof *t->host;
    if (t->is_sent && memcmp(t->host, t->sent, bytes) == 0) return QN_OK;
    memcpy(t->sent, t->host, bytes);
    t->is_sent = 1;
    return qn_cuda_said(d, d->shim->copy(d->context, t->card, t->sent, bytes));
}

/* ---- probes -------------------------------------------------------------------------------------------- */

/* A slot's contents on the host, from its start to the operand's end, in memory to be freed. */
static qn_status show_operand(const cuda_exec *e, const qn_operand *o, void **copy, const char **begin)
{
    qn_cuda *d = device_of(e);
    const size_t each = element_bytes(o->dtype), bytes = (size_t)extent(o, &e->sizes) * each;
    *copy = NULL;
    *begin = NULL;
    if (weight_of(e, o)) {
        *begin = e->plan.slots[o->slot].buffer->data;
        return QN_OK;
    }
    *copy = qn_alloc(bytes ? bytes : 1);
    if (!*copy) return QN_E_NOMEM;
    QN_TRY(qn_cuda_said(d, d->shim->copy(d->context, *copy, slot_base(e, o->slot), bytes)));
    *begin = (const char *)*copy + o->offset * (int64_t)each;
    return QN_OK;
}

static qn_status show(const cuda_exec *e, const qn_plan_step *s)
{
    qn_cuda *d = device_of(e);
    void *copies[QN_MAX_INPUTS + 1] = {0};
    const char *begin[QN_MAX_INPUTS + 1];
    qn_status status = show_operand(e, &s->out, &copies[s->n_in], &begin[s->n_in]);
    for (int k = 0; k < s->n_in && status == QN_OK; k++)
        status = show_operand(e, &s->in[k], &copies[k], &begin[k]);
    if (status == QN_OK) status = qn_cuda_said(d, d->shim->wait(d->context));
    if (status == QN_OK)
        e->probe(e->probe_user, &(qn_probe_view){s, (const void *const *)begin, begin[s->n_in], &e->sizes});
    for (int k = 0; k <= s->n_in; k++) qn_free(copies[k]);
    return status;
}

void qn_cuda_set_probe(qn_exec *base, qn_probe_fn *probe, qn_probe_wants_fn *wants, void *user)
{
    cuda_exec *e = (cuda_exec *)base;
    e->probe = probe;
    e->probe_user = user;
    for (int i = 0; i < e->plan.n_steps; i++)
        e->shown[i] = probe && (!wants || wants(user, &e->plan.steps[i]));
}

/* ---- running ------------------------------------------------------------------------------------------- */

static qn_status launch_all(cuda_exec *e)
{
    qn_cuda *d = device_of(e);
    for (int i = 0; i < e->plan.n_steps; i++) {
        const qn_plan_step *s = &e->plan.steps[i];
        const qn_cuda_step c = step_of(e, i, &e->sizes, 1);
        const qn_status status = qn_cuda_said(d, d->shim->launch(d->context, &c));
        if (status != QN_OK) return *s->label ? qn_fail_prefix(status, "%s", s->label) : status;
        if (e->shown[i]) QN_TRY(show(e, s));
    }
    return QN_OK;
}

/* ---- recordings ---------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t hash_faces(const cuda_exec *e)
{
    uint64_t h = 1;
    for (int i = 0; i < e->n_buffers; i++) h = mix(h, (uintptr_t)e->buffers[i].card);
    for (int i = 0; i < e->plan.n_steps; i++)
        if (e->loras[i]) h = mix(h, (uint64_t)e->loras[i]->max_rank + 1);
    return h;
}

static void free_recording(qn_cuda *d, recorded *r)
{
    d->shim->recording_free(d->context, r->recording);
    qn_ledger_release(d->base.ledger, QN_LEDGER_SCRATCH, r->bytes);
    r->recording = NULL;
    r->bytes = 0;
}

/* 0: the ledger has no room for it, and it is gone. */
static int count_recording(qn_cuda *d, recorded *r)
{
    const size_t bytes = d->shim->recording_bytes(r->recording);
    const int fits = qn_ledger_reserve(d->base.ledger, QN_LEDGER_SCRATCH, bytes) == QN_OK;
    if (fits)
        r->bytes = bytes;
    else
        free_recording(d, r);
    return fits;
}

/* That of this run, or the one that was used longest ago, made its own. */
static recorded *find_recording(cuda_exec *e)
{
    qn_cuda *d = device_of(e);
    const uint64_t faces = hash_faces(e);
    recorded *oldest = &e->recordings[0];
    e->n_runs++;
    for (int i = 0; i < RECORDINGS; i++) {
        recorded *r = &e->recordings[i];
        if (r->used && r->faces == faces && memcmp(&r->sizes, &e->sizes, sizeof r->sizes) == 0) return r;
        if (r->used < oldest->used) oldest = r;
    }
    free_recording(d, oldest);
    *oldest = (recorded){.sizes = e->sizes, .faces = faces};
    return oldest;
}

/* The second run alike is recorded. A device that cannot record launches for ever. */
static qn_status launch_or_replay(cuda_exec *e)
{
    qn_cuda *d = device_of(e);
    if (e->probe || e->never_records) return launch_all(e);
    recorded *r = find_recording(e);
    const int is_second = r->used && !r->recording;
    r->used = e->n_runs;
    if (is_second) {
        if (d->shim->record(d->context) != QN_OK) {
            e->never_records = 1;
            return launch_all(e);
        }
        const qn_status status = launch_all(e), ended = d->shim->record_end(d->context, &r->recording);
        if (status != QN_OK) { /* a part of the run must not be replayed */
            free_recording(d, r);
            return status;
        }
        e->never_records = ended != QN_OK || !count_recording(d, r);
    }
    if (!r->recording) return launch_all(e);
    return qn_cuda_said(d, d->shim->replay(d->context, r->recording));
}

/* Begins what was placed. mark: of what the host wants; NULL: it comes in order. */
static qn_status begin(cuda_exec *e, void *mark, int *is_coming)
{
    qn_cuda *d = device_of(e);
    for (int i = 0; i < e->plan.n_steps; i++)
        if (e->loras[i]) QN_TRY(send_pairs(e, i));
#ifdef QN_SHAKE
    if (e->arena) QN_TRY(qn_cuda_said(d, d->shim->fill(d->context, e->arena, 0xff, e->plan.arena_bytes)));
#endif
    QN_TRY(launch_or_replay(e));
    for (int i = 0; i < e->n_buffers; i++)
        if (e->buffers[i].is_written)
            QN_TRY(qn_cuda_written(d, e->buffers[i].buffer, e->buffers[i].written_bytes, mark, is_coming));
    return QN_OK;
}

/* A failure may come with a later run: the card is only asked where the host waits. */
qn_status qn_cuda_run_program(qn_exec *base, const qn_sizes *sizes)
{
    cuda_exec *e = (cuda_exec *)base;
    int waits = 0;
    qn_cuda_discard_program(base);
    e->sizes = *sizes;
    QN_TRY(reach_states(e));
    QN_TRY(place_buffers(e, NULL));
    QN_TRY(begin(e, NULL, &waits));
    return waits ? qn_cuda_wait(device_of(e)) : QN_OK;
}

/* ---- asynchronous runs --------------------------------------------------------------------------------- */

static void free_pending(cuda_exec *e)
{
    qn_cuda *d = device_of(e);
    pending *p = &e->pending;
    qn_cuda_discard_program(&e->base);
    d->shim->mark_free(d->context, p->mark);
    qn_cuda_give_host(d, (size_t)p->room * sizeof *p->ids, QN_LEDGER_SCRATCH, p->ids);
    qn_cuda_give(d, p->scratch_bytes, QN_LEDGER_SCRATCH, p->scratch);
    *p = (pending){0};
}

/* Room for n numbers on the host and for finding them on the card. */
static qn_status make_room(cuda_exec *e, int64_t n, size_t scratch_bytes)
{
    qn_cuda *d = device_of(e);
    pending *p = &e->pending;
    void *made;
    if (p->room < n) {
        QN_TRY(qn_cuda_take_host(d, (size_t)n * sizeof *p->ids, QN_LEDGER_SCRATCH, &made));
        qn_cuda_give_host(d, (size_t)p->room * sizeof *p->ids, QN_LEDGER_SCRATCH, p->ids);
        p->ids = made;
        p->room = n;
    }
    if (p->scratch_bytes < scratch_bytes) {
        QN_TRY(qn_cuda_take(d, scratch_bytes, QN_LEDGER_SCRATCH, &made));
        qn_cuda_give(d, p->scratch_bytes, QN_LEDGER_SCRATCH, p->scratch);
        p->scratch = made;
        p->scratch_bytes = scratch_bytes;
    }
    return QN_OK;
}

/* The step that writes the first output of a pending run, [L, width]; NULL: there is none such. */
static const qn_plan_step *scores_of(const cuda_exec *after)
{
    for (int i = 0; i < after->plan.n_steps; i++) {
        const qn_operand *o = &after->plan.steps[i].out;
        if (after->plan.slots[o->slot].kind != QN_SLOT_BUFFER) continue;
        const int is_rows = o->shape.n == 2 && o->dtype == QN_DTYPE_F32 &&
                            qn_shape_dim(&o->shape, 0, &after->sizes) == after->sizes.v[QN_SYM_L];
        return is_rows && after->pending.is_begun ? &after->plan.steps[i] : NULL;
    }
    return NULL;
}

static buffer_use *find_use(const cuda_exec *e, const qn_buffer *b)
{
    for (int i = 0; i < e->n_buffers; i++)
        if (e->buffers[i].buffer == b) return &e->buffers[i];
    return NULL;
}

/* The place of the largest number of each row of the first output of `after` goes where `guessed` lies on the card, and
 * to the host. */
static qn_status guess(cuda_exec *e, const cuda_exec *after, const qn_buffer *guessed)
{
    qn_cuda *d = device_of(e);
    pending *p = &e->pending;
    const qn_plan_step *scores = scores_of(after);
    buffer_use *use = find_use(e, guessed);
    if (!scores || !use)
        return qn_fail(QN_E_ARG, "program %s cannot make an early step from %s", e->plan.name,
                       after->plan.name);
    const int64_t n = after->sizes.v[QN_SYM_L];
    const size_t bytes = (size_t)n * sizeof *p->ids;
    const qn_params params = {.reduce = {.axis = 1}};
    QN_TRY(qn_cuda_guessed_face(d, use->buffer, bytes, &use->card));
    qn_cuda_step step = {
        .prim = QN_PRIM_ARG_MAX,
        .params = &params,
        .n_in = 1,
        .in[0] = operand(after, &scores->out, slot_base(after, scores->out.slot), &after->sizes),
        .out = {.data = use->card, .dtype = QN_DTYPE_I32, .n = 2, .dim = {n, 1}, .stride = {1, 1}}};
    QN_TRY(make_room(e, n, d->shim->scratch_bytes(&step)));
    step.scratch = p->scratch;
    QN_TRY(qn_cuda_said(d, d->shim->launch(d->context, &step)));
    QN_TRY(qn_cuda_said(d, d->shim->copy_beside(d->context, p->ids, use->card, bytes, p->mark)));
    p->n = n;
    p->is_coming = 1;
    return QN_OK;
}

static qn_status start(cuda_exec *e, const cuda_exec *after, const qn_buffer *guessed)
{
    qn_cuda *d = device_of(e);
    pending *p = &e->pending;
    if (!p->mark) QN_TRY(qn_cuda_said(d, d->shim->mark_new(d->context, &p->mark)));
    QN_TRY(reach_states(e));
    QN_TRY(place_buffers(e, after ? guessed : NULL));
    if (after) QN_TRY(guess(e, after, guessed));
    return begin(e, p->mark, &p->is_coming);
}

qn_status qn_cuda_start_program(qn_exec *base, const qn_sizes *sizes, qn_exec *after,
                                const qn_buffer *guessed)
{
    cuda_exec *e = (cuda_exec *)base;
    qn_cuda_discard_program(base);
    e->sizes = *sizes;
    e->pending.is_begun = 1;
    const qn_status status = start(e, (cuda_exec *)after, guessed);
    if (status != QN_OK) qn_cuda_discard_program(base);
    return status;
}

/* Waits for what comes to the host. */
static qn_status end(cuda_exec *e)
{
    qn_cuda *d = device_of(e);
    pending *p = &e->pending;
    const int is_coming = p->is_coming;
    p->is_begun = p->is_coming = 0;
    p->n = 0;
    return is_coming ? qn_cuda_said(d, d->shim->mark_wait(d->context, p->mark)) : QN_OK;
}

/* A guess that was right leaves the card's outputs where they are: what reads them there comes later in order. */
qn_status qn_cuda_finish_program(qn_exec *base, int64_t n, const int32_t *ids, int *as_guessed)
{
    cuda_exec *e = (cuda_exec *)base;
    const int64_t n_guessed = e->pending.n;
    if (!e->pending.is_begun) return qn_fail(QN_E_ARG, "program %s was not started", e->plan.name);
    QN_TRY(end(e));
    *as_guessed = n == n_guessed && (!n || memcmp(e->pending.ids, ids, (size_t)n * sizeof *ids) == 0);
    return QN_OK;
}

/* What was begun is computed in its turn all the same. A copy to the host must not come after a later run's, nor read
 * what that writes. */
void qn_cuda_discard_program(qn_exec *base)
{
    if (((cuda_exec *)base)->pending.is_begun) end((cuda_exec *)base);
}
