/* A plan on MLX: each slot that a step writes becomes an array of the run, each operand a view of one. The
 * arena of the plan is not used as such, but its bytes are what the ledger counts for the run's arrays. */
#include <string.h>

#include "base/mem.h"
#include "device/mlx/mlx.h"
#include "prim/dtype.h"

/* Smaller inputs are copied, so that the host may write the next ones while this run's state is still
 * computed. */
enum { COPY_BYTES = 256 << 10 };

typedef struct {
    qn_exec base;
    qn_plan plan;       /* arrays in it are the program's, which outlives this */
    int *last;          /* [n_slots] the last step that reads or writes it, -1: none */
    qn_mlx_memo **memo; /* [n_steps] */
    char *shown;        /* [n_steps] the probe wants it */
    int n_states;
    qn_mlx_state **states;        /* [n_states], each once */
    qn_mlx_device_state **owners; /* [n_states], of them */
    qn_mlx_array **slots;         /* [n_slots], of the run */
    qn_mlx_array **held;          /* of the run: what was handed over without a copy, until all is computed */
    int n_held, held_capacity;
    int borrows;         /* the run handed over memory that is the host's */
    int is_pending;      /* started, and neither finished nor discarded */
    qn_mlx_array *guess; /* i32 [n], with it: what it has as an input; NULL: nothing */
    qn_probe_fn *probe;
    void *probe_user;
    qn_sizes sizes;
} mlx_exec;

int qn_mlx_supports(qn_device *d, qn_prim prim)
{
    return 1;
}

/* ---- operands ----------------------------------------------------------------------------------------- */

static qn_mlx *device_of(const mlx_exec *e)
{
    return (qn_mlx *)e->base.device;
}

static size_t element_bytes(qn_dtype dtype)
{
    size_t bytes = 0;
    qn_dtype_bytes(dtype, 1, &bytes);
    return bytes;
}

static void dims_of(const mlx_exec *e, const qn_shape *shape, int64_t *dims)
{
    for (int i = 0; i < shape->n; i++) dims[i] = qn_shape_dim(shape, i, &e->sizes);
}

static int is_contiguous(int n, const int64_t *dims, const int64_t *strides)
{
    int64_t s = 1;
    for (int i = n - 1; i >= 0; i--) {
        if (strides[i] != s && dims[i] != 1) return 0;
        s *= dims[i];
    }
    return 1;
}

static qn_status hold(mlx_exec *e, qn_mlx_array *a)
{
    if (e->n_held == e->held_capacity) {
        const int more = e->held_capacity ? 2 * e->held_capacity : 64;
        qn_mlx_array **held = qn_realloc(e->held, (size_t)more * sizeof *held);
        if (!held) {
            device_of(e)->shim->array_free(a);
            return QN_E_NOMEM;
        }
        e->held = held;
        e->held_capacity = more;
    }
    e->held[e->n_held++] = a;
    return QN_OK;
}

/* Memory of the host as an array that is held until the run is over. */
static qn_status hand_over(mlx_exec *e, const void *data, int n, const int64_t *dims, qn_dtype dtype,
                           qn_mlx_array **out)
{
    const qn_mlx_shim *shim = device_of(e)->shim;
    size_t bytes = element_bytes(dtype);
    for (int i = 0; i < n; i++) bytes *= (size_t)dims[i];
    const int borrow = bytes > COPY_BYTES;
    e->borrows |= borrow;
    QN_TRY(qn_mlx_check(shim, shim->array_new(data, n, dims, dtype, borrow, out)));
    return hold(e, *out);
}

/* What lies in the buffer of a slot that no step has written: the operand itself where its elements lie one
 * after the other, else a view of the whole buffer. */
static qn_status buffer_operand(mlx_exec *e, const qn_operand *o, const int64_t *dims, qn_mlx_array **out)
{
    const qn_mlx_shim *shim = device_of(e)->shim;
    const qn_buffer *b = e->plan.slots[o->slot].buffer;
    const size_t each = element_bytes(o->dtype);
    if (is_contiguous(o->shape.n, dims, o->stride))
        return hand_over(e, (const char *)b->data + o->offset * (int64_t)each, o->shape.n, dims, o->dtype,
                         out);
    qn_mlx_array *whole;
    const int64_t elements = (int64_t)(b->size_bytes / each);
    QN_TRY(hand_over(e, b->data, 1, &elements, o->dtype, &whole));
    QN_TRY(qn_mlx_check(shim, shim->array_view(whole, o->offset, o->shape.n, dims, o->stride, out)));
    return hold(e, *out);
}

/* An operand as an array. owned 1: to be freed after the step. */
static qn_status operand(mlx_exec *e, const qn_operand *o, qn_mlx_array **out, int *owned)
{
    const qn_mlx_shim *shim = device_of(e)->shim;
    int64_t dims[QN_MAX_DIMS];
    dims_of(e, &o->shape, dims);
    *owned = 0;
    if (!e->slots[o->slot]) return buffer_operand(e, o, dims, out);
    *owned = 1;
    return qn_mlx_check(shim,
                        shim->array_view(e->slots[o->slot], o->offset, o->shape.n, dims, o->stride, out));
}

static qn_mlx_weight *weight_of(const mlx_exec *e, const qn_operand *o)
{
    const qn_buffer *b = e->plan.slots[o->slot].buffer;
    return b && b->layout == QN_MLX_LAYOUT_WEIGHT ? b->data : NULL;
}

/* ---- probes ------------------------------------------------------------------------------------------- */

/* A slot's contents on the host: a buffer's where no step wrote it. *copy is to be freed. */
static qn_status show_slot(mlx_exec *e, const qn_operand *o, void **copy, const char **begin)
{
    const qn_mlx_shim *shim = device_of(e)->shim;
    const qn_plan_slot *slot = &e->plan.slots[o->slot];
    const size_t each = element_bytes(o->dtype);
    *copy = NULL;
    if (weight_of(e, o)) {
        *begin = slot->buffer->data;
        return QN_OK;
    }
    const char *data = slot->buffer ? slot->buffer->data : NULL;
    if (e->slots[o->slot]) {
        size_t bytes = 0;
        for (int i = 0; i < e->plan.n_steps; i++)
            if (e->plan.steps[i].out.slot == o->slot)
                bytes = (size_t)qn_shape_elements(&e->plan.steps[i].out.shape, &e->sizes) * each;
        *copy = qn_alloc(bytes ? bytes : 1);
        if (!*copy) return QN_E_NOMEM;
        QN_TRY(qn_mlx_check(shim, shim->array_read(e->slots[o->slot], *copy, bytes)));
        data = *copy;
    }
    *begin = data + o->offset * (int64_t)each;
    return QN_OK;
}

static qn_status show(mlx_exec *e, const qn_plan_step *s)
{
    void *copies[QN_MAX_INPUTS + 1] = {0};
    const char *begin[QN_MAX_INPUTS + 1];
    qn_status status = show_slot(e, &s->out, &copies[s->n_in], &begin[s->n_in]);
    for (int k = 0; k < s->n_in && status == QN_OK; k++)
        status = show_slot(e, &s->in[k], &copies[k], &begin[k]);
    if (status == QN_OK)
        e->probe(e->probe_user, &(qn_probe_view){s, (const void *const *)begin, begin[s->n_in], &e->sizes});
    for (int k = 0; k <= s->n_in; k++) qn_free(copies[k]);
    return status;
}

void qn_mlx_set_probe(qn_exec *base, qn_probe_fn *probe, qn_probe_wants_fn *wants, void *user)
{
    mlx_exec *e = (mlx_exec *)base;
    e->probe = probe;
    e->probe_user = user;
    for (int i = 0; i < e->plan.n_steps; i++)
        e->shown[i] = probe && (!wants || wants(user, &e->plan.steps[i]));
}

/* ---- running ------------------------------------------------------------------------------------------ */

static qn_state *state_of(const qn_plan_step *s)
{
    if (s->prim == QN_PRIM_ATTEND) return s->params.attend.state;
    if (s->prim == QN_PRIM_SHORT_CONV || s->prim == QN_PRIM_GATED_DELTA) return s->params.recurrent.state;
    return NULL;
}

static qn_status lora_of(const qn_plan_step *s, qn_mlx_lora **out)
{
    const qn_params_lora *p = s->prim == QN_PRIM_LORA ? &s->params.lora : &s->params.experts_lora.lora;
    qn_mlx_lora *l = qn_calloc((size_t)p->n_pairs, sizeof *l);
    if (!l) return QN_E_NOMEM;
    for (int32_t i = 0; i < p->n_pairs; i++) {
        const qn_lora_pair *pair = &p->pairs[i];
        if (!pair->data) continue;
        const float *data = pair->data->data;
        l[i] = (qn_mlx_lora){data + pair->a, data + pair->b, pair->gain >= 0 ? data + pair->gain : NULL,
                             pair->rank, pair->scale};
    }
    *out = l;
    return QN_OK;
}

static qn_status run_step(mlx_exec *e, int i)
{
    qn_mlx *d = device_of(e);
    const qn_plan_step *s = &e->plan.steps[i];
    qn_mlx_array *in[QN_MAX_INPUTS] = {0};
    qn_mlx_weight *weight[QN_MAX_INPUTS] = {0};
    int owned[QN_MAX_INPUTS] = {0};
    int64_t dims[QN_MAX_DIMS];
    qn_mlx_lora *lora = NULL;
    qn_status status = QN_OK;
    dims_of(e, &s->out.shape, dims);
    qn_mlx_step step = {.prim = s->prim,
                        .params = &s->params,
                        .n_in = s->n_in,
                        .in = in,
                        .weight = weight,
                        .n_dims = s->out.shape.n,
                        .shape = dims,
                        .dtype = s->out.dtype,
                        .memo = &e->memo[i],
                        .budget_bytes = qn_mlx_room(d)};
    for (int k = 0; k < s->n_in && status == QN_OK; k++) {
        weight[k] = weight_of(e, &s->in[k]);
        if (!weight[k]) status = operand(e, &s->in[k], &in[k], &owned[k]);
    }
    if (s->prim == QN_PRIM_MATMUL)
        step.transposed = s->in[1].stride[0] == 1 && s->in[1].stride[1] == s->in[1].shape.dim[0];
    const qn_state *state = state_of(s);
    if (state) step.state = ((const qn_mlx_device_state *)state)->mlx;
    if ((s->prim == QN_PRIM_LORA || s->prim == QN_PRIM_EXPERTS_LORA) && status == QN_OK) {
        status = lora_of(s, &lora);
        e->borrows = 1; /* the adapters' memory */
    }
    step.lora = lora;
    if (status == QN_OK) status = qn_mlx_check(d->shim, d->shim->apply(&step, &e->slots[s->out.slot]));
    for (int k = 0; k < s->n_in; k++)
        if (owned[k]) d->shim->array_free(in[k]);
    qn_free(lora);
    if (status != QN_OK) return *s->label ? qn_fail_prefix(status, "%s", s->label) : status;
    return e->shown[i] ? show(e, s) : QN_OK;
}

static void let_go(mlx_exec *e, int slot)
{
    device_of(e)->shim->array_free(e->slots[slot]);
    e->slots[slot] = NULL;
}

/* Begins to compute all that the program gives, and what it leaves in states; waits for neither, but where
 * they need memory that is the host's. */
static qn_status set_off(mlx_exec *e)
{
    const qn_mlx_shim *shim = device_of(e)->shim;
    const qn_plan *plan = &e->plan;
    qn_mlx_array **results = qn_alloc_array((size_t)plan->n_steps + 1, sizeof *results);
    if (!results) return QN_E_NOMEM;
    int n = 0;
    for (int i = 0; i < plan->n_steps; i++)
        if (plan->slots[plan->steps[i].out.slot].kind == QN_SLOT_BUFFER)
            results[n++] = e->slots[plan->steps[i].out.slot];
    qn_status status = qn_mlx_check(shim, shim->eval(n, results, e->n_states, e->states, !e->borrows));
    qn_free(results);
    return status;
}

/* The results, once they are computed, to where the host finds them. */
static qn_status take_results(mlx_exec *e)
{
    const qn_mlx_shim *shim = device_of(e)->shim;
    const qn_plan *plan = &e->plan;
    qn_status status = QN_OK;
    for (int i = 0; i < plan->n_steps && status == QN_OK; i++) {
        const qn_operand *o = &plan->steps[i].out;
        const qn_plan_slot *slot = &plan->slots[o->slot];
        if (slot->kind != QN_SLOT_BUFFER) continue;
        const size_t bytes = (size_t)qn_shape_elements(&o->shape, &e->sizes) * element_bytes(o->dtype);
        status = qn_mlx_check(shim, shim->array_read(e->slots[o->slot], slot->buffer->data, bytes));
    }
    return status;
}

/* Builds all steps and begins to compute them. */
static qn_status build(mlx_exec *e)
{
    qn_status status = QN_OK;
    for (int i = 0; i < e->n_states && status == QN_OK; i++) status = qn_mlx_state_settle(e->owners[i]);
    for (int i = 0; i < e->plan.n_steps && status == QN_OK; i++) {
        const qn_plan_step *s = &e->plan.steps[i];
        status = run_step(e, i);
        for (int k = 0; k < s->n_in && status == QN_OK; k++) {
            const int slot = s->in[k].slot;
            if (e->last[slot] == i && e->slots[slot] && e->plan.slots[slot].kind == QN_SLOT_TEMP)
                let_go(e, slot);
        }
    }
    for (int i = 0; i < e->n_states && status == QN_OK; i++) status = qn_mlx_state_count(e->owners[i]);
    if (status == QN_OK)
        status = set_off(e);
    else if (e->borrows) /* what was written into states so far may wait for memory that is the host's */
        device_of(e)->shim->eval(0, NULL, e->n_states, e->states, 0);
    return status;
}

static void end_run(mlx_exec *e)
{
    for (int i = 0; i < e->plan.n_slots; i++) let_go(e, i);
    for (int i = 0; i < e->n_held; i++) device_of(e)->shim->array_free(e->held[i]);
    device_of(e)->shim->array_free(e->guess);
    e->guess = NULL;
    e->n_held = e->borrows = e->is_pending = 0;
    qn_mlx_keep_limit(device_of(e));
}

static qn_status run(void *arg)
{
    mlx_exec *e = arg;
    qn_status status = build(e);
    if (status == QN_OK) status = take_results(e);
    end_run(e);
    return status;
}

static qn_status discard(void *arg)
{
    end_run(arg);
    return QN_OK;
}

void qn_mlx_discard_program(qn_exec *base)
{
    mlx_exec *e = (mlx_exec *)base;
    if (e->is_pending) qn_mlx_call(device_of(e)->owner, discard, e);
}

qn_status qn_mlx_run_program(qn_exec *base, const qn_sizes *sizes)
{
    mlx_exec *e = (mlx_exec *)base;
    qn_mlx_discard_program(base);
    e->sizes = *sizes;
    return qn_mlx_call(device_of(e)->owner, run, e);
}

/* ---- asynchronous runs -------------------------------------------------------------------------------- */

typedef struct {
    mlx_exec *e, *after;
    const qn_buffer *guessed;
    int64_t n;
    const int32_t *ids;
    int *as_guessed;
} async_call;

/* The place of the largest number of each row of the first output of `after`, as an array [n]. */
static qn_status guess(mlx_exec *e, const mlx_exec *after)
{
    const qn_mlx_shim *shim = device_of(e)->shim;
    const qn_plan_step *scores = NULL;
    for (int i = 0; i < after->plan.n_steps && !scores; i++)
        if (after->plan.slots[after->plan.steps[i].out.slot].kind == QN_SLOT_BUFFER)
            scores = &after->plan.steps[i];
    if (!scores || scores->out.shape.n != 2 || !after->slots[scores->out.slot] ||
        qn_shape_dim(&scores->out.shape, 0, &after->sizes) != after->sizes.v[QN_SYM_L])
        return qn_fail(QN_E_ARG, "program %s has no rows to make an early step from", after->plan.name);
    const int64_t n = after->sizes.v[QN_SYM_L], one = 1;
    const qn_params params = {.reduce = {.axis = 1}};
    qn_mlx_memo *memo = NULL;
    qn_mlx_array *const in[1] = {after->slots[scores->out.slot]};
    qn_mlx_weight *const weight[1] = {NULL};
    qn_mlx_array *places;
    const qn_mlx_step step = {.prim = QN_PRIM_ARG_MAX,
                              .params = &params,
                              .n_in = 1,
                              .in = in,
                              .weight = weight,
                              .n_dims = 2,
                              .shape = (int64_t[]){n, 1},
                              .dtype = QN_DTYPE_I32,
                              .memo = &memo,
                              .budget_bytes = qn_mlx_room(device_of(e))};
    QN_TRY(qn_mlx_check(shim, shim->apply(&step, &places)));
    qn_status status = qn_mlx_check(shim, shim->array_view(places, 0, 1, &n, &one, &e->guess));
    shim->array_free(places);
    if (memo) shim->memo_free(memo);
    return status;
}

/* The input that lies in this buffer is what is guessed. */
static qn_status take_guess(mlx_exec *e, const mlx_exec *after, const qn_buffer *guessed)
{
    const qn_mlx_shim *shim = device_of(e)->shim;
    int slot = 0;
    while (slot < e->plan.n_slots && e->plan.slots[slot].buffer != guessed) slot++;
    if (!after->is_pending || slot == e->plan.n_slots)
        return qn_fail(QN_E_ARG, "program %s cannot make an early step from %s", e->plan.name,
                       after->plan.name);
    QN_TRY(guess(e, after));
    QN_TRY(qn_mlx_check(shim, shim->eval(1, &e->guess, 0, NULL, 1)));
    const int64_t n = after->sizes.v[QN_SYM_L], one = 1;
    return qn_mlx_check(shim, shim->array_view(e->guess, 0, 1, &n, &one, &e->slots[slot]));
}

static qn_status start(void *arg)
{
    const async_call *b = arg;
    mlx_exec *e = b->e;
    qn_status status = b->after ? take_guess(e, b->after, b->guessed) : QN_OK;
    if (status == QN_OK) status = build(e);
    e->is_pending = status == QN_OK;
    if (status != QN_OK) end_run(e);
    return status;
}

qn_status qn_mlx_start_program(qn_exec *base, const qn_sizes *sizes, qn_exec *after, const qn_buffer *guessed)
{
    async_call b = {.e = (mlx_exec *)base, .after = (mlx_exec *)after, .guessed = guessed};
    qn_mlx_discard_program(base);
    b.e->sizes = *sizes;
    return qn_mlx_call(device_of(b.e)->owner, start, &b);
}

static qn_status is_as_guessed(const async_call *b)
{
    const qn_mlx_shim *shim = device_of(b->e)->shim;
    int32_t *own = qn_alloc_array((size_t)b->n, sizeof *own);
    if (!own) return QN_E_NOMEM;
    qn_status status = qn_mlx_check(shim, shim->array_read(b->e->guess, own, (size_t)b->n * sizeof *own));
    *b->as_guessed = status == QN_OK && memcmp(own, b->ids, (size_t)b->n * sizeof *own) == 0;
    qn_free(own);
    return status;
}

static qn_status finish(void *arg)
{
    const async_call *b = arg;
    qn_status status = QN_OK;
    *b->as_guessed = 1;
    if (b->e->guess) status = is_as_guessed(b);
    if (status == QN_OK && *b->as_guessed) status = take_results(b->e);
    end_run(b->e);
    return status;
}

qn_status qn_mlx_finish_program(qn_exec *base, int64_t n, const int32_t *ids, int *as_guessed)
{
    async_call b = {.e = (mlx_exec *)base, .n = n, .ids = ids, .as_guessed = as_guessed};
    if (!b.e->is_pending) return qn_fail(QN_E_ARG, "program %s was not started", b.e->plan.name);
    return qn_mlx_call(device_of(b.e)->owner, finish, &b);
}

/* ---- compiling ---------------------------------------------------------------------------------------- */

static void find_last_uses(mlx_exec *e)
{
    for (int i = 0; i < e->plan.n_slots; i++) e->last[i] = -1;
    for (int i = 0; i < e->plan.n_steps; i++) {
        const qn_plan_step *s = &e->plan.steps[i];
        e->last[s->out.slot] = i;
        for (int k = 0; k < s->n_in; k++) e->last[s->in[k].slot] = i;
    }
}

static void find_states(mlx_exec *e)
{
    for (int i = 0; i < e->plan.n_steps; i++) {
        qn_state *state = state_of(&e->plan.steps[i]);
        if (!state) continue;
        qn_mlx_state *s = ((const qn_mlx_device_state *)state)->mlx;
        int known = 0;
        for (int j = 0; j < e->n_states && !known; j++) known = e->states[j] == s;
        if (known) continue;
        e->owners[e->n_states] = (qn_mlx_device_state *)state;
        e->states[e->n_states++] = s;
    }
}

qn_status qn_mlx_compile(qn_device *base, const qn_plan *plan, qn_exec **out)
{
    QN_TRY(qn_mlx_check_weights(plan));
    QN_TRY(qn_ledger_reserve(base->ledger, QN_LEDGER_SCRATCH, plan->arena_bytes));
    const size_t n_slots = (size_t)plan->n_slots + 1, n_steps = (size_t)plan->n_steps + 1;
    mlx_exec *e = qn_calloc(1, sizeof *e);
    if (!e) {
        qn_ledger_release(base->ledger, QN_LEDGER_SCRATCH, plan->arena_bytes);
        return QN_E_NOMEM;
    }
    e->base.device = base;
    e->plan = *plan;
    e->last = qn_alloc_array(n_slots, sizeof *e->last);
    e->slots = qn_calloc(n_slots, sizeof *e->slots);
    e->memo = qn_calloc(n_steps, sizeof *e->memo);
    e->shown = qn_calloc(n_steps, 1);
    e->states = qn_calloc(n_steps, sizeof *e->states);
    e->owners = qn_calloc(n_steps, sizeof *e->owners);
    if (!e->last || !e->slots || !e->memo || !e->shown || !e->states || !e->owners) {
        qn_mlx_exec_free(&e->base);
        return QN_E_NOMEM;
    }
    find_last_uses(e);
    find_states(e);
    *out = &e->base;
    return QN_OK;
}

static qn_status free_memos(void *arg)
{
    mlx_exec *e = arg;
    for (int i = 0; i < e->plan.n_steps; i++)
        if (e->memo[i]) device_of(e)->shim->memo_free(e->memo[i]);
    return QN_OK;
}

void qn_mlx_exec_free(qn_exec *base)
{
    mlx_exec *e = (mlx_exec *)base;
    if (!e) return;
    qn_mlx_discard_program(base);
    if (e->memo) qn_mlx_call(device_of(e)->owner, free_memos, e);
    qn_ledger_release(base->device->ledger, QN_LEDGER_SCRATCH, e->plan.arena_bytes);
    qn_free(e->last);
    qn_free(e->slots);
    qn_free(e->memo);
    qn_free(e->shown);
    qn_free(e->states);
    qn_free(e->owners);
    qn_free(e->held);
    qn_free(e);
}
