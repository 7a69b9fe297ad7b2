/* The programs of an engine, and where their inputs lie. */
#include "engine/machine/engine_parts.h"

enum { LOGITS_BYTES = 8 << 20 /* of one block of logits, unless there are more sequences */ };

void qn_engine_free_programs(qn_engine *e)
{
    qn_program_free(e->body);
    qn_program_free(e->head);
    qn_program_free(e->norm);
    e->body = e->head = e->norm = NULL;
}

static qn_shape vector(qn_symbol symbol, int64_t extra)
{
    qn_shape s = qn_shape_sym(symbol, 0, NULL);
    s.dim[0] = extra;
    return s;
}

/* Where the programs' inputs lie, in the order in which make_programs makes them. */
static void bind_inputs(qn_engine *e)
{
    int n = 3;
    e->ids = qn_program_input(e->body, 0);
    e->positions = qn_program_input(e->body, 1);
    e->row_begin = qn_program_input(e->body, 2);
    for (int i = 0; i < e->groups.n; i++) e->blocks[i] = qn_program_input(e->body, n++);
    if (e->recurrent) {
        e->slot_ids = qn_program_input(e->body, n++);
        e->reset = qn_program_input(e->body, n++);
    }
    if (e->config.rope_short_positions) e->is_long = qn_program_input(e->body, n++);
    for (int i = 0; e->config.rope[0].mrope_section[0] && i < QN_ROPE_SECTIONS; i++)
        e->rope_positions[i] = qn_program_input(e->body, n++);
    if (e->config.vision.depth) {
        e->embeds = qn_program_input(e->body, n++);
        e->is_embed = qn_program_input(e->body, n++);
    }
    e->row_adapters = qn_program_input(e->body, n++);
    e->logit_rows = qn_program_input(e->head, 0);
    e->logit_adapters = qn_program_input(e->head, 1);
    e->norm_rows = qn_program_input(e->norm, 0);
    qn_engine_show_steps(e);
}

qn_status qn_engine_make_programs(qn_engine *e)
{
    qn_scope *s = qn_scope_new(e->device), *h = qn_scope_new(e->device), *n = qn_scope_new(e->device);
    qn_status status = QN_E_NOMEM;
    if (!s || !h || !n) goto out;
    qn_forward f = {.config = &e->config,
                    .parameters = e->parameters,
                    .groups = &e->groups,
                    .adapters = e->adapters,
                    .context_size = e->info.context_size};
    f.ids = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_R, 0));
    f.positions = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_R, 0));
    f.row_begin = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_S, 1));
    for (int i = 0; i < e->groups.n; i++) {
        int64_t width = 1 + e->table_size[i];
        f.state[i] = e->states[i];
        f.blocks[i] = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_S, 1, &width));
    }
    f.recurrent = e->recurrent;
    if (e->recurrent) {
        f.slots = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_S, 0));
        f.reset = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_S, 0));
    }
    if (e->config.rope_short_positions)
        f.is_long = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, (int64_t[]){1}));
    for (int i = 0; e->config.rope[0].mrope_section[0] && i < QN_ROPE_SECTIONS; i++)
        f.rope_positions[i] = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_R, 0));
    if (e->config.vision.depth) {
        f.embeds = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &e->config.hidden_size));
        f.is_embed = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, (int64_t[]){1}));
    }
    f.row_adapters = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_R, 0));
    qn_adapters_begin_programs(e->adapters);
    qn_program_options o = {.name = "body",
                            .max = {{e->info.max_rows, e->info.max_sequences, 0}},
                            .precision = e->info.precision};
    qn_array *hidden = qn_forward_body(s, &f);
    if ((status = qn_program_new(s, &o, 1, &hidden, &e->body)) != QN_OK) goto out;

    e->max_logit_rows = LOGITS_BYTES / (4 * e->config.vocab_size);
    if (e->max_logit_rows > QN_LOGIT_ROWS) e->max_logit_rows = QN_LOGIT_ROWS;
    if (e->max_logit_rows < e->info.max_sequences) e->max_logit_rows = e->info.max_sequences;
    qn_shape hidden_shape = qn_shape_make(2, (int64_t[]){e->info.max_rows, e->config.hidden_size});
    qn_array *from = qn_from_buffer(h, QN_DTYPE_F32, hidden_shape, qn_program_output_buffer(e->body, 0));
    qn_array *rows = qn_input(h, QN_DTYPE_I32, vector(QN_SYM_L, 0));
    f.row_adapters = qn_input(h, QN_DTYPE_I32, vector(QN_SYM_L, 0));
    qn_array *logits = qn_forward_head(h, &f, from, rows);
    qn_program_options ho = {
        .name = "head", .max = {{0, 0, e->max_logit_rows}}, .precision = e->info.precision};
    if ((status = qn_program_new(h, &ho, 1, &logits, &e->head)) != QN_OK) goto out;

    from = qn_from_buffer(n, QN_DTYPE_F32, hidden_shape, qn_program_output_buffer(e->body, 0));
    rows = qn_input(n, QN_DTYPE_I32, vector(QN_SYM_L, 0));
    qn_array *normed = qn_forward_norm(n, &f, from, rows);
    qn_program_options no = {.name = "norm", .max = {{0, 0, QN_NORM_ROWS}}, .precision = e->info.precision};
    if ((status = qn_program_new(n, &no, 1, &normed, &e->norm)) != QN_OK) goto out;
    if ((status = qn_adapters_check_programs(e->adapters)) != QN_OK) goto out;
    bind_inputs(e);
out:
    qn_scope_free(s);
    qn_scope_free(h);
    qn_scope_free(n);
    return status;
}

qn_status qn_engine_renew_programs(qn_engine *e)
{
    qn_program *body = e->body, *head = e->head, *norm = e->norm;
    if (!qn_adapters_want_programs(e->adapters)) return QN_OK;
    qn_ahead_discard(e);
    e->body = e->head = e->norm = NULL;
    qn_status status = qn_engine_make_programs(e);
    if (status == QN_OK) {
        qn_program_free(body);
        qn_program_free(head);
        qn_program_free(norm);
        return QN_OK;
    }
    qn_engine_free_programs(e);
    e->body = body;
    e->head = head;
    e->norm = norm;
    bind_inputs(e);
    return status;
}

/* For the probes: the rows of a step lie in its inputs. */
static void see(void *user, const qn_probe_view *view)
{
    qn_engine *e = user;
    const qn_probe_rows rows = {view->sizes->v[QN_SYM_R], view->sizes->v[QN_SYM_S], e->ids, e->positions,
                                e->row_begin};
    qn_probes_see(&e->probes, &rows, view);
}

static int wants(void *user, const qn_plan_step *step)
{
    const qn_engine *e = user;
    return qn_probes_want_step(&e->probes, step);
}

void qn_engine_show_steps(qn_engine *e)
{
    qn_probe_fn *fn = e->probe;
    qn_probe_wants_fn *wanted = NULL;
    void *user = e->probe_user;
    qn_ahead_discard(e);
    if (!fn && qn_probes_want_steps(&e->probes)) {
        fn = see;
        wanted = wants;
        user = e;
    }
    qn_program_set_probe(e->body, fn, wanted, user);
    qn_program_set_probe(e->head, fn, wanted, user);
    qn_program_set_probe(e->norm, fn, wanted, user);
}

void qn_engine_set_probe(qn_engine *e, qn_probe_fn *probe, void *user)
{
    e->probe = probe;
    e->probe_user = user;
    qn_engine_show_steps(e);
}
