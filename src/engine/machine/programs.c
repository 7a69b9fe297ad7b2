/* The programs of an engine, and where their inputs lie. */
#include "engine/machine/engine_parts.h"

enum { LOGITS_BYTES = 8 << 20 /* of one block of logits, unless there are more sequences */ };

enum { PROGRAMS = 5 };

/* The engine's programs become those of all, and all has those that it had. */
static void exchange(qn_engine *e, qn_program *all[PROGRAMS])
{
    qn_program **own[PROGRAMS] = {&e->body, &e->head, &e->norm, &e->embed, &e->first};
    for (int i = 0; i < PROGRAMS; i++) {
        qn_program *p = *own[i];
        *own[i] = all[i];
        all[i] = p;
    }
}

void qn_engine_free_programs(qn_engine *e)
{
    qn_program *all[PROGRAMS] = {NULL};
    exchange(e, all);
    for (int i = 0; i < PROGRAMS; i++) qn_program_free(all[i]);
}

/* ---- inputs ------------------------------------------------------------------------------------------- */

static qn_shape vector(qn_symbol symbol, int64_t extra)
{
    qn_shape s = qn_shape_sym(symbol, 0, NULL);
    s.dim[0] = extra;
    return s;
}

static qn_array *row_floats(qn_scope *s, int64_t width)
{
    return qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &width));
}

/* What an embedding is made from. */
static void add_ids(const qn_engine *e, qn_scope *s, qn_forward *f)
{
    f->ids = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_R, 0));
    if (!e->config.vision.family) return;
    f->embeds = row_floats(s, qn_vision_width(&e->config.vision, e->config.hidden_size));
    f->is_embed = row_floats(s, 1);
}

/* The inputs of layers beside their stream, in the order of bind_rows. */
static void add_rows(const qn_engine *e, qn_scope *s, qn_part part, qn_forward *f)
{
    const int is_card = part == QN_PART_CARD;
    f->positions = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_R, 0));
    f->row_begin = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_S, 1));
    for (int i = 0; i < e->groups.n; i++) {
        int64_t width = 1 + e->table_size[i];
        f->state[i] = is_card ? e->card.states[i] : e->states[i];
        f->blocks[i] = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_S, 1, &width));
    }
    f->recurrent = is_card ? e->card.recurrent : e->recurrent;
    if (e->slots) {
        f->slots = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_S, 0));
        f->reset = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_S, 0));
    }
    if (e->config.rope_short_positions) f->is_long = row_floats(s, 1);
    for (int i = 0; e->config.rope[0].mrope_section[0] && i < QN_ROPE_SECTIONS; i++)
        f->rope_positions[i] = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_R, 0));
    f->row_adapters = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_R, 0));
}

/* n: the number of the first of these inputs. */
static void bind_rows(const qn_engine *e, qn_program *p, int n, qn_row_inputs *out)
{
    qn_row_inputs r = {.positions = qn_program_input(p, n), .row_begin = qn_program_input(p, n + 1)};
    n += 2;
    for (int i = 0; i < e->groups.n; i++) r.blocks[i] = qn_program_input(p, n++);
    if (e->slots) {
        r.slot_ids = qn_program_input(p, n++);
        r.reset = qn_program_input(p, n++);
    }
    if (e->config.rope_short_positions) r.is_long = qn_program_input(p, n++);
    for (int i = 0; e->config.rope[0].mrope_section[0] && i < QN_ROPE_SECTIONS; i++)
        r.rope_positions[i] = qn_program_input(p, n++);
    r.row_adapters = qn_program_input(p, n);
    *out = r;
}

/* Where the programs' inputs lie, in the order in which they were made. */
static void bind_inputs(qn_engine *e)
{
    if (e->config.encoder.both_ways) {
        qn_encoder_bind(e);
        return;
    }
    qn_program *from_ids = e->embed ? e->embed : e->body;
    int n = 0;
    e->ids = qn_program_input(from_ids, n++);
    if (e->config.vision.family) {
        e->embeds = qn_program_input(from_ids, n++);
        e->is_embed = qn_program_input(from_ids, n++);
    }
    if (e->embed) e->card.embed_adapters = qn_program_input(e->embed, n);
    if (!e->card.device) bind_rows(e, e->body, n, &e->rows);
    for (int part = 0; e->card.device && part < QN_PARTS; part++) {
        qn_program *layers = part == QN_PART_CARD ? e->first : e->body;
        const int has_own = e->config.hidden_size_per_layer_input > 0;
        e->card.hidden[part] = qn_program_input(layers, 0);
        e->card.layer_inputs[part] = has_own ? qn_program_input(layers, 1) : NULL;
        bind_rows(e, layers, 1 + has_own, &e->card.rows[part]);
    }
    e->logit_rows = qn_program_input(e->head, 0);
    e->logit_adapters = qn_program_input(e->head, 1);
    e->norm_rows = qn_program_input(e->norm, 0);
    e->norm_adapters = qn_program_input(e->norm, 1);
    qn_engine_show_steps(e);
}

/* ---- making ------------------------------------------------------------------------------------------- */

static qn_forward forward_of(const qn_engine *e, qn_part part)
{
    return (qn_forward){.config = &e->config,
                        .parameters = part == QN_PART_CARD ? e->card.parameters : e->parameters,
                        .groups = &e->groups,
                        .adapters = e->adapters,
                        .context_size = e->info.context_size};
}

/* Of rows and sequences. */
static qn_status make_rows_program(const qn_engine *e, qn_scope *s, const char *name, int n_outputs,
                                   qn_array *const *outputs, qn_program **out)
{
    const qn_program_options o = {.name = name,
                                  .max = {{e->info.max_rows, e->info.max_sequences, 0}},
                                  .precision = e->info.precision,
                                  .narrow = 1};
    return qn_program_new(s, &o, n_outputs, outputs, out);
}

/* From ids to the stream behind the last layer. */
static qn_status make_body(qn_engine *e, qn_scope *s)
{
    qn_forward f = forward_of(e, QN_PART_OWN);
    add_ids(e, s, &f);
    add_rows(e, s, QN_PART_OWN, &f);
    qn_array *hidden = qn_forward_body(s, &f);
    return make_rows_program(e, s, "body", 1, &hidden, &e->body);
}

/* From ids to what the layers of all parts begin with. */
static qn_status make_embed(qn_engine *e, qn_scope *s)
{
    qn_forward f = forward_of(e, QN_PART_OWN);
    add_ids(e, s, &f);
    f.row_adapters = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_R, 0));
    qn_array *outputs[2];
    outputs[0] = qn_forward_embed(s, &f, &outputs[1]);
    return make_rows_program(e, s, "embed", e->config.hidden_size_per_layer_input > 0 ? 2 : 1, outputs,
                             &e->embed);
}

/* The layers of a part. */
static qn_status make_layers(qn_engine *e, qn_scope *s, qn_part part)
{
    const int64_t own = e->config.hidden_size_per_layer_input, n = e->config.num_hidden_layers;
    const int is_card = part == QN_PART_CARD;
    qn_forward f = forward_of(e, part);
    qn_array *x = row_floats(s, e->config.hidden_size), *inputs = own ? row_floats(s, n * own) : NULL;
    add_rows(e, s, part, &f);
    x = qn_forward_layers(s, &f, x, inputs, is_card ? 0 : e->groups.border, is_card ? e->groups.border : n);
    return make_rows_program(e, s, is_card ? "first" : "body", 1, &x, is_card ? &e->first : &e->body);
}

/* From rows of the stream to logits. */
static qn_status make_head(qn_engine *e, qn_scope *s, qn_array *from)
{
    qn_forward f = forward_of(e, QN_PART_OWN);
    qn_array *rows = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_L, 0));
    e->max_logit_rows = LOGITS_BYTES / (4 * e->config.vocab_size);
    if (e->max_logit_rows > QN_LOGIT_ROWS) e->max_logit_rows = QN_LOGIT_ROWS;
    if (e->max_logit_rows < e->info.max_sequences) e->max_logit_rows = e->info.max_sequences;
    f.row_adapters = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_L, 0));
    qn_array *logits = qn_forward_head(s, &f, from, rows);
    const qn_program_options o = {
        .name = "head", .max = {{0, 0, e->max_logit_rows}}, .precision = e->info.precision, .narrow = 1};
    return qn_program_new(s, &o, 1, &logits, &e->head);
}

static qn_status make_norm(qn_engine *e, qn_scope *s, qn_array *from)
{
    qn_forward f = forward_of(e, QN_PART_OWN);
    qn_array *rows = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_L, 0));
    f.row_adapters = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_L, 0));
    qn_array *normed = qn_forward_norm(s, &f, from, rows);
    const qn_program_options o = {
        .name = "norm", .max = {{0, 0, QN_NORM_ROWS}}, .precision = e->info.precision, .narrow = 1};
    return qn_program_new(s, &o, 1, &normed, &e->norm);
}

typedef enum { BODY, EMBED, FIRST, REST, HEAD, NORM } program_kind;

static qn_status make(qn_engine *e, program_kind kind)
{
    qn_scope *s = qn_scope_new(kind == FIRST ? e->card.device : e->device);
    qn_array *hidden = NULL;
    qn_status status = s ? QN_OK : QN_E_NOMEM;
    if (s && (kind == HEAD || kind == NORM))
        hidden = qn_from_buffer(s, QN_DTYPE_F32,
                                qn_shape_make(2, (int64_t[]){e->info.max_rows, e->config.hidden_size}),
                                qn_program_output_buffer(e->body, 0));
    if (s)
        status = kind == BODY    ? make_body(e, s)
                 : kind == EMBED ? make_embed(e, s)
                 : kind == FIRST ? make_layers(e, s, QN_PART_CARD)
                 : kind == REST  ? make_layers(e, s, QN_PART_OWN)
                 : kind == HEAD  ? make_head(e, s, hidden)
                                 : make_norm(e, s, hidden);
    qn_scope_free(s);
    return status;
}

qn_status qn_engine_make_programs(qn_engine *e)
{
    static const program_kind whole[] = {BODY, HEAD, NORM}, divided[] = {EMBED, FIRST, REST, HEAD, NORM};
    const program_kind *kinds = e->card.device ? divided : whole;
    if (e->config.encoder.both_ways) return qn_encoder_make_programs(e);
    const size_t n = e->card.device ? sizeof divided / sizeof *divided : sizeof whole / sizeof *whole;
    qn_adapters_begin_programs(e->adapters);
    for (size_t i = 0; i < n; i++) QN_TRY(make(e, kinds[i]));
    QN_TRY(qn_adapters_check_programs(e->adapters));
    bind_inputs(e);
    return QN_OK;
}

qn_status qn_engine_renew_programs(qn_engine *e)
{
    return qn_adapters_want_programs(e->adapters) ? qn_engine_remake_programs(e) : QN_OK;
}

qn_status qn_engine_remake_programs(qn_engine *e)
{
    qn_ahead_discard(e);
    qn_program *old[PROGRAMS] = {NULL};
    exchange(e, old);
    qn_status status = qn_engine_make_programs(e);
    if (status != QN_OK) {
        exchange(e, old);
        bind_inputs(e);
    }
    for (int i = 0; i < PROGRAMS; i++) qn_program_free(old[i]);
    return status;
}

/* For the probes: the rows of a step lie in its inputs. */
static void see(void *user, const qn_probe_view *view)
{
    qn_engine *e = user;
    const qn_probe_rows rows = {view->sizes->v[QN_SYM_R], view->sizes->v[QN_SYM_S], e->ids, e->rows.positions,
                                e->rows.row_begin};
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
    qn_program *const all[PROGRAMS] = {e->body, e->head, e->norm, e->embed, e->first};
    for (int i = 0; i < PROGRAMS; i++)
        if (all[i]) qn_program_set_probe(all[i], fn, wanted, user);
}

void qn_engine_set_probe(qn_engine *e, qn_probe_fn *probe, void *user)
{
    e->probe = probe;
    e->probe_user = user;
    qn_engine_show_steps(e);
}
