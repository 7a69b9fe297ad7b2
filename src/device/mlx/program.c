/* A plan on MLX: each slot that a step writes becomes an array of the run, each operand a view of one. The
 * arena of the plan is not used as such, but its bytes are what the ledger counts for the run's arrays. */
#include <string.h>

#include "base/mem.h"
#include "device/mlx/program_parts.h"
#include "prim/dtype.h"

int qn_mlx_supports(qn_device *d, qn_prim prim)
{
    return 1;
}

/* ---- probes ------------------------------------------------------------------------------------------- */

/* A slot's contents on the host: a buffer's where no step wrote it. *copy is to be freed. */
static qn_status show_slot(qn_mlx_exec *e, const qn_operand *o, void **copy, const char **begin)
{
    const qn_mlx_shim *shim = qn_mlx_device_of(e)->shim;
    const qn_plan_slot *slot = &e->plan.slots[o->slot];
    const size_t each = qn_mlx_element_bytes(o->dtype);
    *copy = NULL;
    if (qn_mlx_weight_of(e, o)) {
        *begin = slot->buffer->data;
        return QN_OK;
    }
    if (slot->buffer && !e->slots[o->slot]) QN_TRY(qn_mlx_face_read(qn_mlx_device_of(e), slot->buffer));
    const char *data = slot->buffer ? slot->buffer->data : NULL;
    if (e->slots[o->slot]) {
        size_t bytes = 0;
        for (int i = 0; i < e->plan.n_steps; i++)
            if (e->plan.steps[i].out.slot == o->slot)
                bytes = (size_t)qn_shape_elements(&e->plan.steps[i].out.shape, &e->sizes) * each;
        *copy = qn_alloc(bytes ? bytes : 1);
        if (!*copy) return QN_E_NOMEM;
        QN_TRY(qn_mlx_check(shim, shim->array_read(e->slots[o->slot], o->dtype, *copy, bytes)));
        data = *copy;
    }
    *begin = data + o->offset * (int64_t)each;
    return QN_OK;
}

static qn_status show(qn_mlx_exec *e, const qn_plan_step *s)
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
    qn_mlx_exec *e = (qn_mlx_exec *)base;
    e->probe = probe;
    e->probe_user = user;
    for (int i = 0; i < e->plan.n_steps; i++)
        e->shown[i] = probe && (!wants || wants(user, &e->plan.steps[i]));
}

/* ---- running ------------------------------------------------------------------------------------------ */

static qn_state *state_of(const qn_plan_step *s)
{
    if (s->prim == QN_PRIM_ATTEND) return s->params.attend.state;
    if (s->prim == QN_PRIM_INDEX_BLOCKS) return s->params.index.state;
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

/* Is the stream between the layers f32? With `high` it is, for exactness. In f16 it is, because f16 ends at 65504 and Gemma 3's
 * numbers are larger. The rows of embeddings begin the stream. A sum of f32 and 16 bits is f32; a norm of f32 gives 16 bits. */
static int keeps_stream(const qn_mlx_exec *e)
{
    return e->plan.precision == QN_PRECISION_HIGH || e->narrow == QN_DTYPE_F16;
}

/* With `high`, the last norm and the products of a quantised head stay f32: its logits are of no use in fewer bits. */
static qn_dtype narrow_of(const qn_mlx_exec *e, const qn_plan_step *s)
{
    const qn_mlx_shim *shim = qn_mlx_device_of(e)->shim;
    if (s->prim == QN_PRIM_TAKE && keeps_stream(e)) return QN_DTYPE_F32;
    if (e->plan.precision != QN_PRECISION_HIGH || !s->out.shape.sym[QN_SYM_L]) return e->narrow;
    if (s->prim == QN_PRIM_RMS_NORM || s->prim == QN_PRIM_LAYER_NORM) return QN_DTYPE_F32;
    const qn_mlx_weight *w = s->prim == QN_PRIM_MATMUL ? qn_mlx_weight_of(e, &s->in[1]) : NULL;
    return w && shim->weight_is_quantised(w) ? QN_DTYPE_F32 : e->narrow;
}

static qn_status run_step(qn_mlx_exec *e, int i)
{
    qn_mlx *d = qn_mlx_device_of(e);
    const qn_plan_step *s = &e->plan.steps[i];
    qn_mlx_array *in[QN_MAX_INPUTS] = {0};
    qn_mlx_weight *weight[QN_MAX_INPUTS] = {0};
    const int32_t *host[QN_MAX_INPUTS] = {0};
    int64_t host_size[QN_MAX_INPUTS];
    int owned[QN_MAX_INPUTS] = {0};
    int64_t dims[QN_MAX_DIMS];
    qn_mlx_lora *lora = NULL;
    qn_status status = QN_OK;
    qn_mlx_dims_of(e, &s->out.shape, dims);
    qn_mlx_step step = {.prim = s->prim,
                        .params = &s->params,
                        .n_in = s->n_in,
                        .in = in,
                        .weight = weight,
                        .host = host,
                        .host_size = host_size,
                        .n_dims = s->out.shape.n,
                        .shape = dims,
                        .dtype = s->out.dtype,
                        .memo = &e->memo[i],
                        .budget_bytes = qn_mlx_room(d),
                        .run = e->run,
                        .narrow = narrow_of(e, s)};
    for (int k = 0; k < s->n_in; k++) {
        weight[k] = qn_mlx_weight_of(e, &s->in[k]);
        if (!weight[k]) host[k] = qn_mlx_numbers_of(e, s, k, &host_size[k]);
    }
    status = qn_mlx_operands(e, s, &step, in, owned);
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

static void let_go(qn_mlx_exec *e, int slot)
{
    qn_mlx_device_of(e)->shim->array_free(e->slots[slot]);
    e->slots[slot] = NULL;
}

/* Rows of logits are for the host: f32. */
static qn_status widen_results(qn_mlx_exec *e)
{
    const qn_mlx_shim *shim = qn_mlx_device_of(e)->shim;
    for (int i = 0; i < e->plan.n_steps && e->narrow != QN_DTYPE_F32; i++) {
        const qn_operand *o = &e->plan.steps[i].out;
        if (e->plan.slots[o->slot].kind != QN_SLOT_BUFFER || !o->shape.sym[QN_SYM_L]) continue;
        qn_mlx_array *a;
        QN_TRY(qn_mlx_check(shim, shim->array_cast(e->slots[o->slot], o->dtype, &a)));
        shim->array_free(e->slots[o->slot]);
        e->slots[o->slot] = a;
    }
    return QN_OK;
}

/* Begins to compute all that the program gives, and what it leaves in states; waits for neither, but where
 * they need memory that is the host's. */
static qn_status set_off(qn_mlx_exec *e)
{
    const qn_mlx_shim *shim = qn_mlx_device_of(e)->shim;
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

/* Hands the results to their buffers. Those that the host asks for after each run are waited for. */
static qn_status give_results(qn_mlx_exec *e)
{
    const qn_mlx *d = qn_mlx_device_of(e);
    const qn_plan *plan = &e->plan;
    qn_status status = QN_OK;
    for (int i = 0; i < plan->n_steps && status == QN_OK; i++) {
        const qn_operand *o = &plan->steps[i].out;
        const qn_plan_slot *slot = &plan->slots[o->slot];
        if (slot->kind != QN_SLOT_BUFFER) continue;
        qn_mlx_array *a = e->slots[o->slot];
        e->slots[o->slot] = NULL;
        status = qn_mlx_face_put(d, slot->buffer, a, o->dtype, qn_shape_elements(&o->shape, &e->sizes));
        const qn_mlx_face *f = slot->buffer->mirror;
        if (status == QN_OK && (f->is_kept || f->is_wanted)) status = qn_mlx_face_read(d, slot->buffer);
    }
    return status;
}

/* Pages are written where they are once nothing reads them any longer, and are copied before: the run before is
 * waited for. On a GPU waiting costs more, as long as there is room for a copy of all. */
static qn_status wait_for_states(qn_mlx_exec *e)
{
    const qn_mlx *d = qn_mlx_device_of(e);
    size_t bytes = 0;
    for (int i = 0; i < e->n_states; i++) bytes += d->shim->state_bytes(e->states[i]);
    if (!bytes || (d->shim->about().on_gpu && bytes < qn_mlx_room(d) / 4)) return QN_OK;
    return qn_mlx_check(d->shim, d->shim->eval(0, NULL, e->n_states, e->states, 0));
}

/* Builds all steps and begins to compute them. */
static qn_status build(qn_mlx_exec *e)
{
    static uint64_t runs; /* of all programs, by the owner's thread */
    qn_status status = QN_OK;
    e->run = ++runs;
    for (int i = 0; i < e->n_states && status == QN_OK; i++) status = qn_mlx_state_settle(e->owners[i]);
    if (status == QN_OK) status = wait_for_states(e);
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
    if (status == QN_OK) status = widen_results(e);
    if (status == QN_OK)
        status = set_off(e);
    else if (e->borrows) /* what was written into states so far may wait for memory that is the host's */
        qn_mlx_device_of(e)->shim->eval(0, NULL, e->n_states, e->states, 0);
    return status;
}

static void end_run(qn_mlx_exec *e)
{
    for (int i = 0; i < e->plan.n_slots; i++) let_go(e, i);
    for (int i = 0; i < e->n_held; i++) qn_mlx_device_of(e)->shim->array_free(e->held[i]);
    qn_mlx_device_of(e)->shim->array_free(e->guess);
    e->guess = NULL;
    e->n_held = e->borrows = e->is_pending = 0;
    qn_mlx_keep_limit(qn_mlx_device_of(e));
}

static qn_status run(void *arg)
{
    qn_mlx_exec *e = arg;
    qn_status status = build(e);
    if (status == QN_OK) status = give_results(e);
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
    qn_mlx_exec *e = (qn_mlx_exec *)base;
    if (e->is_pending) qn_mlx_call(qn_mlx_device_of(e)->owner, discard, e);
}

qn_status qn_mlx_run_program(qn_exec *base, const qn_sizes *sizes)
{
    qn_mlx_exec *e = (qn_mlx_exec *)base;
    qn_mlx_discard_program(base);
    e->sizes = *sizes;
    return qn_mlx_call(qn_mlx_device_of(e)->owner, run, e);
}

/* ---- asynchronous runs -------------------------------------------------------------------------------- */

typedef struct {
    qn_mlx_exec *e, *after;
    const qn_buffer *guessed;
    int64_t n;
    const int32_t *ids;
    int *as_guessed;
} async_call;

/* The place of the largest number of each row of the first output of `after`, as an array [n]. */
static qn_status guess(qn_mlx_exec *e, const qn_mlx_exec *after)
{
    const qn_mlx_shim *shim = qn_mlx_device_of(e)->shim;
    const qn_plan_step *scores = NULL;
    for (int i = 0; i < after->plan.n_steps && !scores; i++)
        if (after->plan.slots[after->plan.steps[i].out.slot].kind == QN_SLOT_BUFFER)
            scores = &after->plan.steps[i];
    if (!scores || scores->out.shape.n != 2 || !after->slots[scores->out.slot] ||
        qn_shape_dim(&scores->out.shape, 0, &after->sizes) != after->sizes.v[QN_SYM_L])
        return qn_fail(QN_E_ARG, "program %s has no rows to make an early step from", after->plan.name);
    return qn_mlx_check(shim, shim->array_largest(after->slots[scores->out.slot], &e->guess));
}

/* The input that lies in this buffer is what is guessed. */
static qn_status take_guess(qn_mlx_exec *e, const qn_mlx_exec *after, const qn_buffer *guessed)
{
    const qn_mlx_shim *shim = qn_mlx_device_of(e)->shim;
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
    qn_mlx_exec *e = b->e;
    qn_status status = b->after ? take_guess(e, b->after, b->guessed) : QN_OK;
    if (status == QN_OK) status = build(e);
    e->is_pending = status == QN_OK;
    if (status != QN_OK) end_run(e);
    return status;
}

qn_status qn_mlx_start_program(qn_exec *base, const qn_sizes *sizes, qn_exec *after, const qn_buffer *guessed)
{
    async_call b = {.e = (qn_mlx_exec *)base, .after = (qn_mlx_exec *)after, .guessed = guessed};
    qn_mlx_discard_program(base);
    b.e->sizes = *sizes;
    return qn_mlx_call(qn_mlx_device_of(b.e)->owner, start, &b);
}

static qn_status is_as_guessed(const async_call *b)
{
    const qn_mlx_shim *shim = qn_mlx_device_of(b->e)->shim;
    int32_t *own = qn_alloc_array((size_t)b->n, sizeof *own);
    if (!own) return QN_E_NOMEM;
    qn_status status =
        qn_mlx_check(shim, shim->array_read(b->e->guess, QN_DTYPE_I32, own, (size_t)b->n * sizeof *own));
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
    if (status == QN_OK && *b->as_guessed) status = give_results(b->e);
    end_run(b->e);
    return status;
}

qn_status qn_mlx_finish_program(qn_exec *base, int64_t n, const int32_t *ids, int *as_guessed)
{
    async_call b = {.e = (qn_mlx_exec *)base, .n = n, .ids = ids, .as_guessed = as_guessed};
    if (!b.e->is_pending) return qn_fail(QN_E_ARG, "program %s was not started", b.e->plan.name);
    return qn_mlx_call(qn_mlx_device_of(b.e)->owner, finish, &b);
}

/* ---- compiling ---------------------------------------------------------------------------------------- */

static void find_last_uses(qn_mlx_exec *e)
{
    for (int i = 0; i < e->plan.n_slots; i++) e->last[i] = -1;
    for (int i = 0; i < e->plan.n_steps; i++) {
        const qn_plan_step *s = &e->plan.steps[i];
        e->last[s->out.slot] = i;
        for (int k = 0; k < s->n_in; k++) e->last[s->in[k].slot] = i;
    }
}

/* The type of 16 bits that the program's weights are best multiplied by. It is F32 if the program may not be
 * narrow, or has layers whose state sums up over all positions. */
static qn_dtype narrow_type(const qn_mlx_exec *e)
{
    const qn_mlx *d = (const qn_mlx *)e->base.device;
    qn_dtype found = QN_DTYPE_F16, wish;
    if (!e->plan.narrow || e->plan.precision == QN_PRECISION_EXACT || !qn_mlx_is_narrow(d, &wish))
        return QN_DTYPE_F32;
    for (int i = 0; i < e->plan.n_steps; i++) {
        const qn_plan_step *s = &e->plan.steps[i];
        if (s->prim == QN_PRIM_SHORT_CONV || s->prim == QN_PRIM_GATED_DELTA) return QN_DTYPE_F32;
        for (int k = 0; k < s->n_in; k++) {
            const qn_mlx_weight *w = qn_mlx_weight_of(e, &s->in[k]);
            if (w && d->shim->weight_type(w) == QN_DTYPE_BF16) found = QN_DTYPE_BF16;
            if (!w && (s->in[k].dtype == QN_DTYPE_F16 || s->in[k].dtype == QN_DTYPE_BF16))
                return QN_DTYPE_F32;
        }
    }
    return wish == QN_DTYPE_F32 ? found : wish;
}

static void find_states(qn_mlx_exec *e)
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
    qn_mlx_exec *e = qn_calloc(1, sizeof *e);
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
    e->narrow = narrow_type(e);
    e->keeps_constants = qn_mlx_device_of(e)->shim->about().on_gpu;
    find_last_uses(e);
    find_states(e);
    *out = &e->base;
    return QN_OK;
}

static qn_status free_memos(void *arg)
{
    qn_mlx_exec *e = arg;
    for (int i = 0; i < e->plan.n_steps; i++)
        if (e->memo[i]) qn_mlx_device_of(e)->shim->memo_free(e->memo[i]);
    return QN_OK;
}

void qn_mlx_exec_free(qn_exec *base)
{
    qn_mlx_exec *e = (qn_mlx_exec *)base;
    if (!e) return;
    qn_mlx_discard_program(base);
    if (e->memo) qn_mlx_call(qn_mlx_device_of(e)->owner, free_memos, e);
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
