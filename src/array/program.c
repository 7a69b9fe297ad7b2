/* From a graph to a plan: order, fusion, views, groups, memory. */
#include "array/program.h"

#include <stdlib.h>
#include <string.h>

#include "array/eval.h"
#include "base/checked.h"
#include "base/mem.h"
#include "prim/dtype.h"

/* What is known of one array while a plan is made. */
typedef struct {
    qn_array *a;
    int uses;            /* by later arrays and as outputs */
    int output;          /* index + 1 when it is an output */
    int fused;           /* computed inside its only user */
    qn_operand *operand; /* NULL when fused */
} node;

struct qn_program {
    qn_device *device;
    qn_exec *exec;
    qn_plan plan;
    qn_sizes max;
    int n_outputs, n_inputs;
    qn_buffer **output_buffers, **input_buffers; /* input_buffers[i] NULL: not needed */
    qn_buffer **held;                            /* weights and constants that steps read */
    int64_t n_held;
    qn_arena arena;
    size_t bytes;
};

typedef struct {
    const qn_scope *scope;
    qn_program *p;
    node *nodes; /* by mark */
    qn_operand *operands;
    int64_t n;
    int64_t slots_capacity, steps_capacity, held_capacity;
} planner;

/* ---- order: every array that the outputs need, inputs first ------------------------------------------- */

/* All that the outputs need, in any order; each mark is its array's place plus one. */
static qn_status find_all(int n_outputs, qn_array *const *outputs, qn_array ***out, int64_t *n_out)
{
    int64_t capacity = 256, n = 0;
    qn_array **list = qn_alloc((size_t)capacity * sizeof *list);
    if (!list) return QN_E_NOMEM;
    for (int i = 0; i < n_outputs; i++) outputs[i]->mark = -1;
    for (int64_t i = -n_outputs; i < n; i++) {
        int is_root = i < 0;
        int count = is_root ? 1 : list[i]->n_in;
        for (int j = 0; j < count; j++) {
            qn_array *a = is_root ? outputs[i + n_outputs] : list[i]->in[j];
            if (a->mark > 0 && a->mark <= n && list[a->mark - 1] == a) continue;
            if (n == capacity) {
                qn_array **more = qn_realloc(list, 2 * (size_t)capacity * sizeof *list);
                if (!more) {
                    qn_free(list);
                    return QN_E_NOMEM;
                }
                list = more;
                capacity *= 2;
            }
            list[n] = a;
            a->mark = ++n;
        }
    }
    *out = list;
    *n_out = n;
    return QN_OK;
}

static qn_status collect(planner *pl, int n_outputs, qn_array *const *outputs)
{
    qn_array **list;
    int64_t n;
    QN_TRY(find_all(n_outputs, outputs, &list, &n));
    qn_status status = qn_sort_by_id(list, n);
    node *nodes = status == QN_OK ? qn_alloc_array((size_t)n + 1, sizeof *nodes) : NULL;
    if (!nodes) {
        qn_free(list);
        return QN_E_NOMEM;
    }
    for (int64_t i = 0; i < n; i++) {
        node *o = &nodes[i];
        o->a = list[i];
        o->uses = o->output = o->fused = 0;
        list[i]->mark = i;
        for (int j = 0; j < list[i]->n_in; j++) nodes[list[i]->in[j]->mark].uses++; /* inputs come first */
    }
    for (int i = 0; i < n_outputs; i++) {
        nodes[outputs[i]->mark].uses++;
        nodes[outputs[i]->mark].output = i + 1;
    }
    qn_free(list);
    pl->nodes = nodes;
    pl->n = n;
    return QN_OK;
}

/* Part of a chain: what is not f32 is a step of its own. */
static int is_elementwise(const qn_array *a)
{
    return qn_prim_get(a->prim)->kind == QN_CLASS_ELEMENTWISE && a->dtype == QN_DTYPE_F32;
}

/* A step that reads its inputs where they lie, repeated to its output's shape. */
static int is_element_by_element(const qn_array *a)
{
    return qn_prim_get(a->prim)->kind == QN_CLASS_ELEMENTWISE || a->prim == QN_PRIM_COMPARE ||
           a->prim == QN_PRIM_SELECT;
}

/* ---- slots and steps ---------------------------------------------------------------------------------- */

static qn_status grow(void **array, int64_t need, int64_t *capacity, size_t size)
{
    if (need < *capacity) return QN_OK;
    int64_t more = *capacity ? *capacity * 2 : 64;
    void *p = qn_realloc(*array, (size_t)more * size);
    if (!p) return QN_E_NOMEM;
    *array = p;
    *capacity = more;
    return QN_OK;
}

static qn_status add_slot(planner *pl, qn_plan_slot slot, int *index)
{
    qn_plan *plan = &pl->p->plan;
    QN_TRY(grow((void **)&plan->slots, plan->n_slots, &pl->slots_capacity, sizeof *plan->slots));
    *index = plan->n_slots;
    plan->slots[plan->n_slots++] = slot;
    return QN_OK;
}

static qn_status hold(planner *pl, qn_buffer *b)
{
    qn_program *p = pl->p;
    QN_TRY(grow((void **)&p->held, p->n_held, &pl->held_capacity, sizeof *p->held));
    p->held[p->n_held++] = qn_buffer_retain(b);
    return QN_OK;
}

static qn_operand contiguous(int slot, qn_dtype dtype, const qn_shape *shape)
{
    qn_operand o = {.slot = slot, .dtype = dtype, .shape = *shape};
    qn_shape_strides(shape, o.stride);
    return o;
}

static qn_status max_bytes(const qn_program *p, qn_dtype dtype, const qn_shape *shape, size_t *bytes)
{
    int64_t rows = shape->n ? qn_shape_dim(shape, 0, &p->max) : 1, row = shape->n ? qn_shape_row(shape) : 1;
    size_t row_bytes;
    char text[96];
    if (!qn_dtype_is_plain(dtype) || rows < 0 || !qn_dtype_bytes(dtype, row, &row_bytes) ||
        !qn_mul_size(row_bytes, (size_t)rows, bytes) || !qn_align_size(*bytes ? *bytes : 1, 64, bytes))
        return qn_fail(QN_E_ARG, "array %s of %s is too large", qn_shape_text(shape, text, sizeof text),
                       qn_dtype_name(dtype));
    return QN_OK;
}

static int is_contiguous(const qn_operand *o, int from)
{
    int64_t s = 1;
    for (int i = o->shape.n - 1; i >= from; i--) {
        if (o->stride[i] != s && !(o->shape.dim[i] == 1 && !(i == 0 && qn_shape_is_symbolic(&o->shape))))
            return 0;
        s *= o->shape.dim[i];
    }
    return 1;
}

static qn_status new_output(planner *pl, const node *n, qn_operand *out)
{
    qn_program *p = pl->p;
    size_t bytes;
    int slot;
    QN_TRY(max_bytes(p, n->a->dtype, &n->a->shape, &bytes));
    if (n->output) {
        qn_buffer *b;
        QN_TRY(p->device->ops->alloc(p->device, bytes, QN_LEDGER_SCRATCH, &b));
        p->output_buffers[n->output - 1] = b;
        p->bytes += bytes;
        QN_TRY(add_slot(pl, (qn_plan_slot){QN_SLOT_BUFFER, 0, bytes, b}, &slot));
    } else {
        QN_TRY(add_slot(pl, (qn_plan_slot){QN_SLOT_TEMP, 0, bytes, NULL}, &slot));
    }
    *out = contiguous(slot, n->a->dtype, &n->a->shape);
    return QN_OK;
}

static qn_status add_step(planner *pl, const qn_plan_step *step)
{
    qn_plan *plan = &pl->p->plan;
    QN_TRY(grow((void **)&plan->steps, plan->n_steps, &pl->steps_capacity, sizeof *plan->steps));
    qn_operand *in = qn_arena_alloc(&pl->p->arena, (size_t)step->n_in * sizeof *in);
    if (!in) return QN_E_NOMEM;
    memcpy(in, step->in, (size_t)step->n_in * sizeof *in);
    plan->steps[plan->n_steps] = *step;
    plan->steps[plan->n_steps++].in = in;
    return QN_OK;
}

/* Makes a view contiguous (all of it, or all but the first dimension's stride). */
static qn_status copy_if_strided(planner *pl, qn_operand *o, int from)
{
    if (is_contiguous(o, from)) return QN_OK;
    size_t bytes;
    int slot;
    qn_operand in[1];
    qn_plan_step step = {.prim = QN_PRIM_COPY, .n_in = 1, .in = in, .label = ""};
    QN_TRY(max_bytes(pl->p, o->dtype, &o->shape, &bytes));
    QN_TRY(add_slot(pl, (qn_plan_slot){QN_SLOT_TEMP, 0, bytes, NULL}, &slot));
    step.in[0] = *o;
    step.out = contiguous(slot, o->dtype, &o->shape);
    QN_TRY(add_step(pl, &step));
    *o = step.out;
    return QN_OK;
}

static int same_first_dim(const qn_shape *a, const qn_shape *b)
{
    return a->n && b->n && a->dim[0] == b->dim[0] && memcmp(a->sym, b->sym, sizeof a->sym) == 0;
}

/* ---- views -------------------------------------------------------------------------------------------- */

static qn_status place_view(planner *pl, node *n)
{
    const qn_array *a = n->a;
    qn_operand from = *pl->nodes[a->in[0]->mark].operand, o = from;
    o.shape = a->shape;
    switch (a->prim) {
    case QN_PRIM_RESHAPE: {
        int keeps_rows = same_first_dim(&from.shape, &a->shape); /* then they may lie apart */
        QN_TRY(copy_if_strided(pl, &from, keeps_rows));
        o = contiguous(from.slot, from.dtype, &a->shape);
        o.offset = from.offset;
        if (keeps_rows) o.stride[0] = from.stride[0];
        break;
    }
    case QN_PRIM_TRANSPOSE:
        for (int i = 0; i < a->shape.n; i++) o.stride[i] = from.stride[a->params.transpose.perm[i]];
        break;
    case QN_PRIM_SLICE:
        for (int i = 0; i < a->shape.n; i++) {
            const int64_t step = a->params.slice.step[i];
            o.offset += a->params.slice.begin[i] * from.stride[i];
            if (step) o.stride[i] *= step;
        }
        break;
    case QN_PRIM_STRIDED:
        QN_TRY(copy_if_strided(pl, &from, 0));
        o = from;
        o.shape = a->shape;
        o.offset += a->params.strided.offset;
        memcpy(o.stride, a->params.strided.stride, sizeof o.stride);
        break;
    default: /* BROADCAST */
        for (int i = 0; i < a->shape.n; i++) {
            int j = i - (a->shape.n - from.shape.n);
            int repeated =
                j < 0 || (from.shape.dim[j] == 1 && !(j == 0 && qn_shape_is_symbolic(&from.shape)));
            o.stride[i] = repeated ? 0 : from.stride[j];
        }
    }
    *n->operand = o;
    return QN_OK;
}

/* An input of an element-wise step, repeated to the output's shape. */
static qn_operand repeat_to(const qn_operand *from, const qn_shape *shape)
{
    qn_operand o = *from;
    o.shape = *shape;
    for (int i = 0; i < shape->n; i++) {
        int j = i - (shape->n - from->shape.n);
        int repeated = j < 0 || (from->shape.dim[j] == 1 && !(j == 0 && qn_shape_is_symbolic(&from->shape)) &&
                                 !(shape->dim[i] == 1 && !(i == 0 && qn_shape_is_symbolic(shape))));
        o.stride[i] = repeated ? 0 : from->stride[j];
    }
    return o;
}

/* ---- fusion ------------------------------------------------------------------------------------------- */

/* A chain as it grows: instructions in order, inputs without repetition. */
typedef struct {
    qn_params params;
    int n_in;
    const qn_array *in[QN_MAX_INPUTS];
} chain;

static int chain_input(chain *c, const qn_array *a)
{
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i] == a) return i;
    if (c->n_in == QN_MAX_INPUTS) return -1;
    c->in[c->n_in] = a;
    return c->n_in++;
}

/* Counts what a chain would hold when `a` is computed inside it; 0 when it gets too large. */
static int chain_fits(planner *pl, const qn_array *a, chain *c)
{
    if (++c->params.fused.n > QN_FUSED_MAX) return 0;
    for (int i = 0; i < a->n_in; i++) {
        const node *in = &pl->nodes[a->in[i]->mark];
        if (in->fused ? !chain_fits(pl, in->a, c) : chain_input(c, in->a) < 0) return 0;
    }
    return 1;
}

/* An element-wise array with one use, of its user's shape, is computed inside that user. */
static void mark_fused(planner *pl)
{
    for (int64_t i = 0; i < pl->n; i++) {
        qn_array *a = pl->nodes[i].a;
        if (!is_elementwise(a)) continue;
        for (int j = 0; j < a->n_in; j++) {
            node *in = &pl->nodes[a->in[j]->mark];
            if (!is_elementwise(in->a) || in->uses != 1 || in->output || in->a->label ||
                !qn_shape_equal(&in->a->shape, &a->shape))
                continue;
            in->fused = 1;
            chain c;
            c.params.fused.n = c.n_in = 0;
            if (!chain_fits(pl, a, &c)) in->fused = 0;
        }
    }
}

/* Emits a's instructions; returns the index of its result. */
static int emit(planner *pl, chain *c, const qn_array *a)
{
    int arg[2] = {0, 0};
    for (int i = 0; i < a->n_in; i++) {
        const node *in = &pl->nodes[a->in[i]->mark];
        arg[i] = in->fused ? emit(pl, c, in->a) : ~chain_input(c, in->a);
    }
    c->params.fused.op[c->params.fused.n] = (qn_fused_op){(uint8_t)a->prim, (int8_t)arg[0], (int8_t)arg[1]};
    return c->params.fused.n++;
}

/* ---- planning ----------------------------------------------------------------------------------------- */

static int is_packed(const planner *pl, const qn_operand *o)
{
    const qn_buffer *b = pl->p->plan.slots[o->slot].buffer;
    return b && b->layout != 0;
}

/* Makes an input such as its primitive wants it. COPY, products of plain matrices and what goes along an axis
 * take any strides, the others contiguous rows; a vector, a plain head of a loss, the weight of a
 * convolution, and what multiplies a packed weight as one run of rows, is whole. */
static qn_status ready_input(planner *pl, qn_plan_step *step, int i)
{
    qn_operand *o = &step->in[i];
    switch (step->prim) {
    case QN_PRIM_COPY:
    case QN_PRIM_SUM:
    case QN_PRIM_MIN:
    case QN_PRIM_PROD:
    case QN_PRIM_ARG_MAX:
    case QN_PRIM_SCAN:
    case QN_PRIM_ARG_SORT:
    case QN_PRIM_UPDATE:
    case QN_PRIM_MATMUL_ROWS:
        return QN_OK;
    case QN_PRIM_MATMUL:
        return i == 0 && is_packed(pl, &step->in[1]) ? copy_if_strided(pl, o, o->shape.n > 2 ? 0 : 1) : QN_OK;
    case QN_PRIM_CROSS_ENTROPY:
    case QN_PRIM_CROSS_ENTROPY_GRAD: /* a plain head is one run of rows */
        return copy_if_strided(pl, o, i == 1 && !is_packed(pl, o) ? 0 : o->shape.n > 1 ? 1 : 0);
    case QN_PRIM_SHORT_CONV:
    case QN_PRIM_SHORT_CONV_GRAD:
        return copy_if_strided(pl, o, i == 1 || o->shape.n == 1 ? 0 : 1);
    default:
        return copy_if_strided(pl, o, o->shape.n > 1 ? 1 : 0);
    }
}

static qn_status place_step(planner *pl, node *n)
{
    const qn_array *a = n->a;
    qn_operand in[QN_MAX_INPUTS];
    qn_plan_step step = {
        .in = in, .prim = a->prim, .params = a->params, .n_in = a->n_in, .label = a->label ? a->label : ""};
    if (is_elementwise(a)) {
        chain c = {0};
        emit(pl, &c, a);
        step.prim = QN_PRIM_FUSED;
        step.params = c.params;
        step.n_in = c.n_in;
        for (int i = 0; i < c.n_in; i++) step.in[i] = repeat_to(pl->nodes[c.in[i]->mark].operand, &a->shape);
    } else if (is_element_by_element(a)) {
        for (int i = 0; i < a->n_in; i++)
            step.in[i] = repeat_to(pl->nodes[a->in[i]->mark].operand, &a->shape);
    } else {
        for (int i = 0; i < a->n_in; i++) step.in[i] = *pl->nodes[a->in[i]->mark].operand;
        for (int i = 0; i < a->n_in; i++) QN_TRY(ready_input(pl, &step, i));
    }
    QN_TRY(new_output(pl, n, &step.out));
    QN_TRY(add_step(pl, &step));
    *n->operand = step.out;
    return QN_OK;
}

static qn_status place_source(planner *pl, node *n)
{
    qn_program *p = pl->p;
    qn_array *a = n->a;
    int slot;
    if (a->prim == QN_PRIM_DATA) {
        QN_TRY(qn_array_usable(pl->scope, a));
        QN_TRY(hold(pl, a->buffer));
        QN_TRY(add_slot(pl, (qn_plan_slot){QN_SLOT_BUFFER, 0, a->buffer->size_bytes, a->buffer}, &slot));
    } else if (a->input >= p->n_inputs) {
        return qn_fail(QN_E_ARG, "program %s: an input belongs to another scope", p->plan.name);
    } else {
        size_t bytes;
        qn_buffer *b;
        QN_TRY(max_bytes(p, a->dtype, &a->shape, &bytes));
        QN_TRY(p->device->ops->alloc(p->device, bytes, QN_LEDGER_SCRATCH, &b));
        p->input_buffers[a->input] = b;
        if (!qn_buffer_host(b, QN_HOST_KEEPS)) return QN_E_NOMEM;
        p->bytes += bytes;
        QN_TRY(add_slot(pl, (qn_plan_slot){QN_SLOT_BUFFER, 0, bytes, b}, &slot));
    }
    *n->operand = contiguous(slot, a->dtype, &a->shape);
    return QN_OK;
}

/* An output that is a source or a view is copied into a buffer of its own. */
static qn_status copy_output(planner *pl, node *n)
{
    qn_operand in[1];
    qn_plan_step step = {.prim = QN_PRIM_COPY, .n_in = 1, .in = in, .label = ""};
    step.in[0] = *n->operand;
    QN_TRY(new_output(pl, n, &step.out));
    QN_TRY(add_step(pl, &step));
    *n->operand = step.out;
    return QN_OK;
}

/* ---- groups and memory -------------------------------------------------------------------------------- */

/* Does row i of the step read row i, and no other row, of what the producer wrote in input k? */
static int row_by_row(const qn_plan_step *s, int k, const qn_plan_step *producer)
{
    const qn_operand *in = &s->in[k];
    if ((s->prim == QN_PRIM_RMS_NORM || s->prim == QN_PRIM_LAYER_NORM || s->prim == QN_PRIM_ROPE_TABLE) &&
        k > 0)
        return 0;
    if (s->prim == QN_PRIM_RMS_NORM_GRAD && k > 1) return 0;
    if (s->prim == QN_PRIM_TAKE && k == 0) return 0;
    return in->offset >= 0 && same_first_dim(&in->shape, &s->out.shape) &&
           in->stride[0] == producer->out.stride[0];
}

/* A step may join the group of the steps before it when it reads nothing that the group writes, or when all
 * of the group and itself are row-local over the same rows: then each worker goes on with its own rows. */
static qn_status make_groups(qn_plan *plan)
{
    int begin = 0, group = 0, all_local = 0;
    int *writer = qn_alloc_array((size_t)plan->n_slots + 1, sizeof *writer); /* the step that writes a slot */
    if (!writer) return QN_E_NOMEM;
    for (int i = 0; i < plan->n_slots; i++) writer[i] = -1;
    for (int i = 0; i < plan->n_steps; i++) {
        qn_plan_step *s = &plan->steps[i];
        /* a vector may be one row to its primitive, and then one worker computes it */
        const int is_local = qn_prim_get(s->prim)->row_local && s->out.shape.n > 1;
        int independent = 1,
            local = is_local && all_local && same_first_dim(&plan->steps[begin].out.shape, &s->out.shape);
        for (int k = 0; k < s->n_in; k++) {
            int w = writer[s->in[k].slot];
            if (w < begin) continue;
            independent = 0;
            local = local && row_by_row(s, k, &plan->steps[w]);
        }
        if (i > begin && !independent && !local) {
            begin = i;
            group++;
        }
        /* of a group of independent steps all may be local, but over other rows */
        if (i == begin)
            all_local = is_local;
        else
            all_local = all_local && is_local && same_first_dim(&plan->steps[begin].out.shape, &s->out.shape);
        s->group = group;
        writer[s->out.slot] = i;
    }
    plan->n_groups = plan->n_steps ? group + 1 : 0;
    qn_free(writer);
    return QN_OK;
}

/* Memory that no living temporary takes, by rising offset; the last one has no end. */
typedef struct {
    size_t begin, end;
} gap;
typedef struct {
    gap *gaps;
    int n;
} room;

/* The lowest place where so many bytes fit. */
static size_t take_room(room *r, size_t size)
{
    int i = 0;
    while (r->gaps[i].end - r->gaps[i].begin < size) i++;
    const size_t at = r->gaps[i].begin;
    r->gaps[i].begin += size;
    if (r->gaps[i].begin == r->gaps[i].end)
        memmove(r->gaps + i, r->gaps + i + 1, (size_t)(--r->n - i) * sizeof *r->gaps);
    return at;
}

static void give_back(room *r, size_t begin, size_t end)
{
    int low = 0, high = r->n; /* the first gap behind */
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (r->gaps[mid].begin < end)
            low = mid + 1;
        else
            high = mid;
    }
    const int before = low > 0 && r->gaps[low - 1].end == begin, after = r->gaps[low].begin == end;
    if (before && after) {
        r->gaps[low - 1].end = r->gaps[low].end;
        memmove(r->gaps + low, r->gaps + low + 1, (size_t)(--r->n - low) * sizeof *r->gaps);
    } else if (before) {
        r->gaps[low - 1].end = end;
    } else if (after) {
        r->gaps[low].begin = begin;
    } else {
        memmove(r->gaps + low + 1, r->gaps + low, (size_t)(r->n++ - low) * sizeof *r->gaps);
        r->gaps[low] = (gap){begin, end};
    }
}

/* last [n_slots]: the group of each slot's last use, -1: none. */
static void find_last_uses(const qn_plan *plan, int *last)
{
    for (int i = 0; i < plan->n_slots; i++) last[i] = -1;
    for (int i = 0; i < plan->n_steps; i++) {
        const qn_plan_step *s = &plan->steps[i];
        last[s->out.slot] = s->group;
        for (int k = 0; k < s->n_in; k++) last[s->in[k].slot] = s->group;
    }
}

/* Places temporaries: each at the lowest offset that is free during its life (largest first would pack
 * tighter; first use first is close and simple). A slot is free again only after the group of its last use, and
 * n_more behind it: ending[g] is the first of a chain of temporaries that end with group g, next[] goes on. */
static qn_status place_temporaries(qn_plan *plan, int n_more)
{
    const size_t n = (size_t)plan->n_slots + 1;
    int *last = qn_alloc_array(n, sizeof *last), *next = qn_alloc_array(n, sizeof *next);
    int *ending = qn_alloc_array((size_t)plan->n_groups + 1, sizeof *ending);
    room r = {.gaps = qn_alloc_array(n + 1, sizeof *r.gaps), .n = 1};
    qn_status status = last && next && ending && r.gaps ? QN_OK : QN_E_NOMEM;
    if (status == QN_OK) {
        find_last_uses(plan, last);
        for (int g = 0; g < plan->n_groups; g++) ending[g] = -1;
        r.gaps[0] = (gap){0, SIZE_MAX};
    }
    for (int i = 0, group = 0; i < plan->n_steps && status == QN_OK; i++) {
        const int k = plan->steps[i].out.slot;
        qn_plan_slot *slot = &plan->slots[k];
        for (; group < plan->steps[i].group; group++)
            for (int e = ending[group]; e >= 0; e = next[e])
                give_back(&r, plan->slots[e].offset_bytes,
                          plan->slots[e].offset_bytes + plan->slots[e].size_bytes);
        if (slot->kind != QN_SLOT_TEMP) continue;
        slot->offset_bytes = take_room(&r, slot->size_bytes);
        const int end_group = last[k] + n_more < plan->n_groups ? last[k] + n_more : plan->n_groups - 1;
        next[k] = ending[end_group];
        ending[end_group] = k;
        const size_t end = slot->offset_bytes + slot->size_bytes;
        if (end > plan->arena_bytes) plan->arena_bytes = end;
    }
    qn_free(last);
    qn_free(next);
    qn_free(ending);
    qn_free(r.gaps);
    return status;
}

/* As much as is known to be needed, at once. */
static qn_status make_room(planner *pl)
{
    qn_plan *plan = &pl->p->plan;
    int64_t n = 1;
    for (int64_t i = 0; i < pl->n; i++) n += !pl->nodes[i].fused;
    pl->operands = qn_alloc_array((size_t)n, sizeof *pl->operands);
    plan->steps = qn_alloc_array((size_t)n, sizeof *plan->steps);
    plan->slots = qn_alloc_array((size_t)n, sizeof *plan->slots);
    if (!pl->operands || !plan->steps || !plan->slots) return QN_E_NOMEM;
    pl->steps_capacity = pl->slots_capacity = n;
    for (int64_t i = 0, k = 0; i < pl->n; i++)
        pl->nodes[i].operand = pl->nodes[i].fused ? NULL : &pl->operands[k++];
    return QN_OK;
}

static qn_status plan_all(planner *pl, int n_outputs, qn_array *const *outputs)
{
    qn_program *p = pl->p;
    mark_fused(pl);
    QN_TRY(make_room(pl));
    for (int64_t i = 0; i < pl->n; i++) {
        node *n = &pl->nodes[i];
        if (n->fused) continue;
        qn_prim_class class = qn_prim_get(n->a->prim)->kind;
        if (n->a->prim == QN_PRIM_DATA || n->a->prim == QN_PRIM_INPUT)
            QN_TRY(place_source(pl, n));
        else if (class == QN_CLASS_SOURCE)
            QN_TRY(place_view(pl, n));
        else if (!p->device->ops->supports(p->device, n->a->prim))
            return qn_fail(QN_E_UNSUPPORTED, "device %s has no %s", p->device->ops->name,
                           qn_prim_get(n->a->prim)->name);
        else
            QN_TRY(place_step(pl, n));
        if (class == QN_CLASS_SOURCE && n->output) QN_TRY(copy_output(pl, n));
    }
    for (int i = 0; i < n_outputs; i++) {
        const node *n = &pl->nodes[outputs[i]->mark];
        if (n->output != i + 1) /* an output that comes twice has one buffer */
            p->output_buffers[i] = qn_buffer_retain(p->output_buffers[n->output - 1]);
    }
    for (int i = 0; i < p->plan.n_steps; i++) {
        const char *label = p->plan.steps[i].label;
        p->plan.steps[i].label = *label ? qn_arena_strndup(&p->arena, label, strlen(label)) : "";
        if (!p->plan.steps[i].label) return QN_E_NOMEM;
    }
    QN_TRY(make_groups(&p->plan));
    return place_temporaries(&p->plan, p->device->ops->n_groups_more);
}

qn_status qn_program_new(qn_scope *s, const qn_program_options *options, int n_outputs,
                         qn_array *const *outputs, qn_program **out)
{
    QN_TRY(qn_scope_status(s));
    for (int i = 0; i < n_outputs; i++)
        if (!outputs[i]) return qn_fail(QN_E_ARG, "program %s: output %d is NULL", options->name, i);
    qn_program *p = qn_calloc(1, sizeof *p);
    if (!p) return QN_E_NOMEM;
    planner pl = {.scope = s, .p = p};
    qn_status status = QN_E_NOMEM;
    p->device = s->device;
    p->max = options->max;
    p->n_outputs = n_outputs;
    p->n_inputs = s->n_inputs;
    p->plan.name = options->name;
    p->plan.precision = options->precision;
    p->plan.narrow = options->narrow;
    p->plan.max = options->max;
    p->output_buffers = qn_calloc((size_t)n_outputs + 1, sizeof *p->output_buffers);
    p->input_buffers = qn_calloc((size_t)s->n_inputs + 1, sizeof *p->input_buffers);
    if (!p->output_buffers || !p->input_buffers) goto out;
    if ((status = collect(&pl, n_outputs, outputs)) != QN_OK) goto out;
    if ((status = plan_all(&pl, n_outputs, outputs)) != QN_OK) goto out;
    status = p->device->ops->compile(p->device, &p->plan, &p->exec);
out:
    qn_free(pl.nodes);
    qn_free(pl.operands);
    if (status != QN_OK) {
        qn_program_free(p);
        return status;
    }
    p->bytes += p->plan.arena_bytes;
    *out = p;
    return QN_OK;
}

void qn_program_free(qn_program *p)
{
    if (!p) return;
    if (p->exec) p->device->ops->exec_free(p->exec);
    for (int i = 0; p->output_buffers && i < p->n_outputs; i++) qn_buffer_release(p->output_buffers[i]);
    for (int i = 0; p->input_buffers && i < p->n_inputs; i++) qn_buffer_release(p->input_buffers[i]);
    for (int64_t i = 0; i < p->n_held; i++) qn_buffer_release(p->held[i]);
    qn_free(p->output_buffers);
    qn_free(p->input_buffers);
    qn_free(p->held);
    qn_free(p->plan.slots);
    qn_free(p->plan.steps);
    qn_arena_clear(&p->arena);
    qn_free(p);
}

void *qn_program_input(qn_program *p, int i)
{
    return i >= 0 && i < p->n_inputs && p->input_buffers[i] ? p->input_buffers[i]->data : NULL;
}

const void *qn_program_output(const qn_program *p, int i)
{
    return qn_buffer_host(p->output_buffers[i], QN_HOST_READS);
}

qn_status qn_program_read(const qn_program *p, int i, const void **out)
{
    const void *data = qn_program_output(p, i);
    if (!data) return QN_E_DEVICE;
    *out = data;
    return QN_OK;
}

qn_buffer *qn_program_output_buffer(const qn_program *p, int i)
{
    return p->output_buffers[i];
}

static qn_status check_sizes(const qn_program *p, const qn_sizes *sizes)
{
    for (int k = 0; k < QN_SYM_COUNT; k++)
        if (sizes->v[k] < 0 || sizes->v[k] > p->max.v[k])
            return qn_fail(QN_E_ARG, "program %s: %c is %lld, at most %lld is allowed", p->plan.name,
                           "RSL"[k], (long long)sizes -> v[k], (long long)p -> max.v[k]);
    return QN_OK;
}

qn_status qn_program_run(qn_program *p, const qn_sizes *sizes)
{
    QN_TRY(check_sizes(p, sizes));
    return p->device->ops->run(p->exec, sizes);
}

int qn_program_may_start(const qn_program *p)
{
    const qn_async_ops *async = p->device->ops->async;
    return async && async->is_useful(p->device);
}

qn_status qn_program_start(qn_program *p, const qn_sizes *sizes, const qn_program *after, int i)
{
    QN_TRY(check_sizes(p, sizes));
    return p->device->ops->async->start(p->exec, sizes, after ? after->exec : NULL,
                                        after ? p->input_buffers[i] : NULL);
}

qn_status qn_program_finish(qn_program *p, int64_t n, const int32_t *ids, int *as_guessed)
{
    return p->device->ops->async->finish(p->exec, n, ids, as_guessed);
}

void qn_program_discard(qn_program *p)
{
    if (p->device->ops->async) p->device->ops->async->discard(p->exec);
}

void qn_program_set_probe(qn_program *p, qn_probe_fn *probe, qn_probe_wants_fn *wants, void *user)
{
    p->device->ops->set_probe(p->exec, probe, wants, user);
}

size_t qn_program_bytes(const qn_program *p)
{
    return p->bytes;
}

int qn_program_steps(const qn_program *p)
{
    return p->plan.n_steps;
}

int qn_program_has_inputs(const qn_program *p)
{
    for (int i = 0; i < p->n_inputs; i++)
        if (p->input_buffers[i]) return 1;
    return 0;
}
