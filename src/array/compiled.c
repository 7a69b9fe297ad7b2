/* Compiled functions: programs by the shapes of their inputs. */
#include <string.h>

#include "array/eval.h"
#include "array/program.h"
#include "base/mem.h"
#include "prim/dtype.h"

enum { PROGRAMS_DEFAULT = 32, ROWS_MIN = 16 };

/* One program and what it fits: inputs of these types and shapes. */
typedef struct {
    qn_shape *shapes; /* [n_in], of the inputs; symbolic in R where rows may vary */
    qn_dtype *dtypes;
    int n_in;
    qn_program *program;
    qn_dtype *out_dtypes; /* [n_out] */
    qn_shape *out_shapes;
    qn_scope *trace; /* shapeless: holds the graph, for more rows; else NULL */
    qn_array **outputs;
    int64_t max_rows;
    int64_t last_call;
} entry;

struct qn_compiled {
    qn_device *device;
    qn_precision precision;
    qn_function *fn;
    void *user;
    int n_out;
    qn_compile_options options;
    entry *entries; /* [options.max_programs] */
    int n_entries;
    qn_compiled_figures figures;
};

static void entry_free(entry *e)
{
    qn_program_free(e->program);
    qn_scope_free(e->trace);
    qn_free(e->shapes);
    qn_free(e->dtypes);
    qn_free(e->out_dtypes);
    qn_free(e->out_shapes);
    qn_free(e->outputs);
    *e = (entry){0};
}

qn_status qn_compile(qn_scope *s, qn_function *fn, void *user, int n_out, const qn_compile_options *options,
                     qn_compiled **out)
{
    qn_compile_options o = options ? *options : (qn_compile_options){0};
    if (o.max_programs <= 0) o.max_programs = PROGRAMS_DEFAULT;
    if (!fn || n_out < 1 || o.max_rows < 0)
        return qn_fail(QN_E_ARG, "qn_compile: there is no function, or there are no outputs");
    qn_compiled *c = qn_calloc(1, sizeof *c);
    entry *entries = qn_calloc((size_t)o.max_programs, sizeof *entries);
    if (!c || !entries) {
        qn_free(c);
        qn_free(entries);
        return QN_E_NOMEM;
    }
    *c = (qn_compiled){.device = qn_device_retain(s->device),
                       .precision = s->precision,
                       .fn = fn,
                       .user = user,
                       .n_out = n_out,
                       .options = o,
                       .entries = entries};
    *out = c;
    return QN_OK;
}

void qn_compiled_free(qn_compiled *c)
{
    if (!c) return;
    for (int i = 0; i < c->n_entries; i++) entry_free(&c->entries[i]);
    qn_free(c->entries);
    qn_device_close(c->device);
    qn_free(c);
}

qn_compiled_figures qn_compiled_get_figures(const qn_compiled *c)
{
    qn_compiled_figures f = c->figures;
    f.n_kept = c->n_entries;
    return f;
}

/* ---- tracing ------------------------------------------------------------------------------------------ */

static int has_rows(const qn_compiled *c, int i, const qn_array *a)
{
    return c->options.shapeless && a->shape.n > 0 && !(i < 32 && c->options.fixed_inputs >> i & 1);
}

/* The shape that a program knows of an input. */
static qn_shape known_shape(const qn_compiled *c, int i, const qn_array *a)
{
    return has_rows(c, i, a) ? qn_shape_sym(QN_SYM_R, a->shape.n - 1, a->shape.dim + 1) : a->shape;
}

static qn_status plan(qn_compiled *c, entry *e, qn_scope *trace, qn_array **outputs, int64_t rows)
{
    qn_program *p;
    qn_program_options o = {.name = "compiled", .precision = c->precision, .max = {{rows}}};
    QN_TRY(qn_program_new(trace, &o, c->n_out, outputs, &p));
    qn_program_free(e->program);
    e->program = p;
    e->max_rows = rows;
    c->figures.n_plans++;
    return QN_OK;
}

static int64_t room_for(const qn_compiled *c, int64_t rows)
{
    int64_t room = ROWS_MIN;
    if (!c->options.shapeless) return 0;
    if (c->options.max_rows) return c->options.max_rows;
    while (room < rows && room < INT64_MAX / 2) room *= 2;
    return room;
}

static qn_status trace_into(qn_compiled *c, entry *e, qn_scope *trace, int n_in, qn_array *const *in,
                            int64_t rows)
{
    qn_array **inputs = qn_calloc((size_t)n_in + 1, sizeof *inputs);
    e->n_in = n_in;
    e->shapes = qn_calloc((size_t)n_in + 1, sizeof *e->shapes);
    e->dtypes = qn_calloc((size_t)n_in + 1, sizeof *e->dtypes);
    e->out_shapes = qn_calloc((size_t)c->n_out, sizeof *e->out_shapes);
    e->out_dtypes = qn_calloc((size_t)c->n_out, sizeof *e->out_dtypes);
    e->outputs = qn_calloc((size_t)c->n_out, sizeof *e->outputs);
    qn_status status =
        inputs && e->shapes && e->dtypes && e->out_shapes && e->out_dtypes && e->outputs ? QN_OK : QN_E_NOMEM;
    for (int i = 0; i < n_in && status == QN_OK; i++) {
        e->shapes[i] = known_shape(c, i, in[i]);
        e->dtypes[i] = in[i]->dtype;
        inputs[i] = qn_input(trace, in[i]->dtype, e->shapes[i]);
        status = qn_scope_status(trace);
    }
    if (status == QN_OK) status = c->fn(c->user, trace, n_in, inputs, c->n_out, e->outputs);
    if (status == QN_OK) status = qn_scope_status(trace);
    for (int i = 0; i < c->n_out && status == QN_OK; i++) {
        const qn_array *a = e->outputs[i];
        if (!a) {
            status = qn_fail(QN_E_ARG, "the function made no output %d", i);
        } else {
            e->out_shapes[i] = a->shape;
            e->out_dtypes[i] = a->dtype;
        }
    }
    if (status == QN_OK) c->figures.n_traces++;
    if (status == QN_OK) status = plan(c, e, trace, e->outputs, room_for(c, rows));
    qn_free(inputs);
    return status;
}

/* A new entry, in the place of the one that was not called for longest where all are taken. */
static qn_status add_entry(qn_compiled *c, qn_scope *s, int n_in, qn_array *const *in, int64_t rows,
                           entry **out)
{
    entry made = {0};
    qn_scope *trace = qn_scope_inner(s);
    if (!trace) return QN_E_NOMEM;
    trace->traced = 1;
    qn_status status = trace_into(c, &made, trace, n_in, in, rows);
    if (status == QN_OK && c->options.shapeless)
        made.trace = trace;
    else
        qn_scope_free(trace);
    if (status != QN_OK) {
        entry_free(&made);
        return status;
    }
    entry *at = &c->entries[0];
    if (c->n_entries < c->options.max_programs) {
        at = &c->entries[c->n_entries++];
    } else {
        for (int i = 1; i < c->n_entries; i++)
            if (c->entries[i].last_call < at->last_call) at = &c->entries[i];
        entry_free(at);
    }
    *at = made;
    *out = at;
    return QN_OK;
}

/* ---- calling ------------------------------------------------------------------------------------------ */

static int fits(const qn_compiled *c, const entry *e, int n_in, qn_array *const *in)
{
    if (e->n_in != n_in) return 0;
    for (int i = 0; i < n_in; i++) {
        qn_shape shape = known_shape(c, i, in[i]);
        if (e->dtypes[i] != in[i]->dtype || !qn_shape_equal(&e->shapes[i], &shape)) return 0;
    }
    return 1;
}

static qn_status count_rows(const qn_compiled *c, int n_in, qn_array *const *in, int64_t *rows)
{
    int64_t r = -1;
    for (int i = 0; i < n_in; i++) {
        if (!has_rows(c, i, in[i])) continue;
        if (r >= 0 && r != in[i]->shape.dim[0])
            return qn_fail(QN_E_ARG, "a shapeless call has inputs of %lld and of %lld rows (input %d)",
                           (long long)r, (long long)in[i]->shape.dim[0], i);
        r = in[i]->shape.dim[0];
    }
    *rows = r < 0 ? 0 : r;
    if (c->options.max_rows && *rows > c->options.max_rows)
        return qn_fail(QN_E_ARG, "a shapeless call has %lld rows, at most %lld are allowed", (long long)r,
                       (long long)c->options.max_rows);
    return QN_OK;
}

static qn_status bind_inputs(qn_scope *s, const entry *e, int n_in, qn_array *const *in)
{
    for (int i = 0; i < n_in; i++) {
        void *to = qn_program_input(e->program, i);
        if (to) QN_TRY(qn_array_read(s, in[i], in[i]->dtype, to, qn_array_size(in[i])));
    }
    return QN_OK;
}

static qn_status take_outputs(qn_compiled *c, qn_scope *s, const entry *e, const qn_sizes *sizes,
                              qn_array **out)
{
    for (int i = 0; i < c->n_out; i++) {
        qn_shape shape = e->out_shapes[i];
        void *to = NULL;
        size_t bytes;
        if (shape.n) shape.dim[0] = qn_shape_dim(&shape, 0, sizes);
        out[i] = qn_array_alloc(s, "a compiled function", e->out_dtypes[i], shape.n, shape.dim, &to);
        if (!out[i]) return qn_scope_status(s);
        qn_dtype_bytes(e->out_dtypes[i], qn_array_size(out[i]), &bytes);
        const void *from;
        QN_TRY(qn_program_read(e->program, i, &from));
        memcpy(to, from, bytes);
    }
    return QN_OK;
}

static qn_status replay(qn_compiled *c, qn_scope *s, int n_in, qn_array *const *in, qn_array **out)
{
    int64_t rows = 0;
    entry *e = NULL;
    QN_TRY(qn_eval(s, n_in, in)); /* what is not computed yet, together */
    QN_TRY(count_rows(c, n_in, in, &rows));
    for (int i = 0; i < c->n_entries && !e; i++)
        if (fits(c, &c->entries[i], n_in, in)) e = &c->entries[i];
    if (!e) QN_TRY(add_entry(c, s, n_in, in, rows, &e));
    if (rows > e->max_rows) QN_TRY(plan(c, e, e->trace, e->outputs, room_for(c, rows)));
    e->last_call = ++c->figures.n_calls;
    QN_TRY(bind_inputs(s, e, n_in, in));
    const qn_sizes sizes = {{rows}};
    QN_TRY(qn_program_run(e->program, &sizes));
    return take_outputs(c, s, e, &sizes, out);
}

/* Inputs and outputs may be the same places of the caller's. */
static qn_status inline_call(qn_compiled *c, qn_scope *s, int n_in, qn_array *const *in, qn_array **out)
{
    qn_array **own = qn_calloc((size_t)n_in + 1, sizeof *own);
    if (!own) return QN_E_NOMEM;
    if (n_in) memcpy(own, in, (size_t)n_in * sizeof *own);
    for (int i = 0; i < c->n_out; i++) out[i] = NULL;
    qn_status status = c->fn(c->user, s, n_in, own, c->n_out, out);
    qn_free(own);
    return status;
}

qn_status qn_compiled_call(qn_compiled *c, qn_scope *s, int n_in, qn_array *const *in, qn_array **out)
{
    QN_TRY(qn_scope_status(s));
    qn_status status = QN_OK;
    if (s->device != c->device) status = qn_fail(QN_E_ARG, "the function was compiled for another device");
    for (int i = 0; i < n_in && status == QN_OK; i++)
        if (!in[i]) status = qn_fail(QN_E_ARG, "a compiled function: input %d is NULL", i);
    if (status == QN_OK && s->traced) {
        status = inline_call(c, s, n_in, in, out);
    } else if (status == QN_OK) {
        status = replay(c, s, n_in, in, out);
    }
    if (status != QN_OK) qn_scope_fail(s, status);
    return status;
}
