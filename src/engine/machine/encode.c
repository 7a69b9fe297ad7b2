#include "engine/machine/encode.h"

#include <string.h>

#include "engine/machine/engine_parts.h"

enum { STEP_ROWS = 512, CONTEXT_MAX = 131072 };

int qn_engine_encodes(const qn_engine *e)
{
    return e->config.encoder.both_ways;
}

int64_t qn_engine_encoded_size(const qn_engine *e)
{
    const int64_t own = e->config.encoder.embedding_dim;
    return own > 0 ? own : e->config.hidden_size;
}

int64_t qn_engine_encode_rows(const qn_engine *e)
{
    return e->encoder.max_rows;
}

/* ---- programs ----------------------------------------------------------------------------------------- */

static qn_array *row_ids(qn_scope *s)
{
    return qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_R, 0, NULL));
}

static qn_forward forward_of(const qn_engine *e)
{
    return (qn_forward){.config = &e->config,
                        .parameters = e->parameters,
                        .groups = &e->groups,
                        .adapters = e->adapters,
                        .context_size = e->info.context_size};
}

/* From ids to vectors. */
static qn_status make_rows(qn_engine *e, qn_scope *s)
{
    qn_forward f = forward_of(e);
    qn_shape ends = qn_shape_sym(QN_SYM_S, 0, NULL);
    ends.dim[0] = 1;
    f.ids = row_ids(s);
    f.positions = row_ids(s);
    f.row_begin = qn_input(s, QN_DTYPE_I32, ends);
    f.row_adapters = row_ids(s);
    if (e->config.encoder.position_rows) f.places = row_ids(s);
    if (e->config.encoder.type_vocab_size) f.types = row_ids(s);
    qn_array *x = qn_forward_encode(s, &f);
    const qn_program_options o = {.name = "encode",
                                  .max = {{e->encoder.max_rows, QN_ENCODE_SEQUENCES, 0}},
                                  .precision = e->info.precision,
                                  .narrow = e->info.precision == QN_PRECISION_FAST};
    return qn_program_new(s, &o, 1, &x, &e->body);
}

/* From what the head reads of each sequence to scores. */
static qn_status make_scores(qn_engine *e, qn_scope *s)
{
    qn_forward f = forward_of(e);
    qn_array *x = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_L, 1, &e->config.hidden_size));
    f.row_adapters = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_L, 0, NULL));
    qn_array *scores = qn_forward_classify(s, &f, x);
    const qn_program_options o = {
        .name = "classify", .max = {{0, 0, QN_ENCODE_SEQUENCES}}, .precision = e->info.precision};
    return qn_program_new(s, &o, 1, &scores, &e->head);
}

static void bind_inputs(qn_engine *e)
{
    qn_encoder_inputs *in = &e->encoder;
    int n = 0;
    e->ids = qn_program_input(e->body, n++);
    e->rows = (qn_row_inputs){.positions = qn_program_input(e->body, n),
                              .row_begin = qn_program_input(e->body, n + 1)};
    n += 2;
    e->rows.row_adapters = qn_program_input(e->body, n++);
    in->places = e->config.encoder.position_rows ? qn_program_input(e->body, n++) : NULL;
    in->types = e->config.encoder.type_vocab_size ? qn_program_input(e->body, n++) : NULL;
    in->read = e->head ? qn_program_input(e->head, 0) : NULL;
    e->logit_adapters = e->head ? qn_program_input(e->head, 1) : NULL;
    qn_engine_show_steps(e);
}

qn_status qn_encoder_make_programs(qn_engine *e)
{
    qn_scope *s = qn_scope_new(e->device);
    if (!s) return QN_E_NOMEM;
    qn_adapters_begin_programs(e->adapters);
    qn_status status = make_rows(e, s);
    qn_scope_free(s);
    if (status == QN_OK && e->config.encoder.num_labels) {
        s = qn_scope_new(e->device);
        status = s ? make_scores(e, s) : QN_E_NOMEM;
        qn_scope_free(s);
    }
    QN_TRY(status);
    QN_TRY(qn_adapters_check_programs(e->adapters));
    bind_inputs(e);
    return QN_OK;
}

void qn_encoder_bind(qn_engine *e)
{
    bind_inputs(e);
}

qn_status qn_encoder_fit(qn_engine *e, int64_t wish)
{
    const int64_t own = e->config.max_position_embeddings;
    if (wish > own && e->config.encoder.position_rows)
        return qn_fail(QN_E_ARG, "context size %lld: the model has learned positions for %lld tokens alone",
                       (long long)wish, (long long)own);
    if (wish > own)
        qn_buf_printf(&e->notes, "context size %lld is above the model's own %lld: quality may suffer\n",
                      (long long)wish, (long long)own);
    e->info.model_context_size = own;
    e->info.context_size = wish > 0 ? wish : own < CONTEXT_MAX ? own : CONTEXT_MAX;
    e->encoder.max_rows = e->info.context_size < STEP_ROWS ? e->info.context_size : STEP_ROWS;
    /* A device that wants many rows gets them from several sequences. */
    if (e->device->ops->describe(e->device).prefill_rows && e->info.max_rows > e->encoder.max_rows)
        e->encoder.max_rows = e->info.max_rows;
    return qn_encoder_make_programs(e);
}

/* Programs that take so many rows: sequences beyond STEP_ROWS are seldom, and their scratch memory is large. */
static qn_status grow(qn_engine *e, int64_t n_rows)
{
    const int64_t before = e->encoder.max_rows;
    if (n_rows <= before) return QN_OK;
    while (e->encoder.max_rows < n_rows) e->encoder.max_rows *= 2;
    qn_status status = qn_engine_remake_programs(e);
    if (status != QN_OK) e->encoder.max_rows = before;
    return status;
}

/* ---- steps -------------------------------------------------------------------------------------------- */

static qn_status check_row(const qn_engine *e, const qn_encode_row *row)
{
    const int64_t n_types = e->config.encoder.type_vocab_size;
    if (row->n_ids < 1) return qn_fail(QN_E_ARG, "a sequence has no tokens");
    if (row->n_ids > e->info.context_size)
        return qn_fail(QN_E_ARG, "a sequence has %lld tokens, the model takes %lld", (long long)row->n_ids,
                       (long long)e->info.context_size);
    for (int64_t i = 0; i < row->n_ids; i++) {
        if (row->ids[i] < 0 || row->ids[i] >= e->config.vocab_size)
            return qn_fail(QN_E_ARG, "token id %d at position %lld is outside the vocabulary of %lld",
                           (int)row->ids[i], (long long)i, (long long)e->config.vocab_size);
        if (!row->types || row->types[i] == 0) continue;
        if (row->types[i] < 0 || row->types[i] >= n_types)
            return qn_fail(QN_E_ARG, "token type %d at position %lld: the model has %lld types",
                           (int)row->types[i], (long long)i, (long long)(n_types ? n_types : 1));
    }
    return QN_OK;
}

static void put_places(const qn_engine *e, const qn_encode_row *row, int32_t *places)
{
    const qn_encoder_config *c = &e->config.encoder;
    int32_t next = (int32_t)c->position_first;
    for (int64_t i = 0; i < row->n_ids; i++)
        places[i] = c->skips_pad && row->ids[i] == c->pad_token_id ? c->pad_token_id : next++;
}

static void put_row(qn_engine *e, const qn_encode_row *row, int64_t first)
{
    qn_encoder_inputs *in = &e->encoder;
    const size_t bytes = (size_t)row->n_ids * sizeof(int32_t);
    memcpy(e->ids + first, row->ids, bytes);
    if (in->places) put_places(e, row, in->places + first);
    if (in->types && row->types) memcpy(in->types + first, row->types, bytes);
    if (in->types && !row->types) memset(in->types + first, 0, bytes);
    for (int64_t i = 0; i < row->n_ids; i++) {
        if (e->rows.positions) e->rows.positions[first + i] = (int32_t)i;
        if (e->rows.row_adapters) e->rows.row_adapters[first + i] = row->adapter;
    }
}

qn_status qn_engine_encode(qn_engine *e, int64_t n, const qn_encode_row *rows, const float **out)
{
    int64_t total = 0;
    const void *from = NULL;
    if (n < 1 || n > QN_ENCODE_SEQUENCES)
        return qn_fail(QN_E_INTERNAL, "%lld sequences in a step", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        QN_TRY(check_row(e, &rows[i]));
        total += rows[i].n_ids;
    }
    QN_TRY(grow(e, total));
    e->rows.row_begin[0] = 0;
    for (int64_t i = 0, first = 0; i < n; i++) {
        put_row(e, &rows[i], first);
        first += rows[i].n_ids;
        e->rows.row_begin[i + 1] = (int32_t)first;
    }
    QN_TRY(qn_program_run(e->body, &(qn_sizes){{total, n, 0}}));
    QN_TRY(qn_program_read(e->body, 0, &from));
    *out = from;
    return QN_OK;
}

/* What the head reads of a sequence: its first row, or the mean of all. */
static void read_rows(const qn_engine *e, const float *hidden, int64_t n_rows, float *out)
{
    const int64_t width = e->config.hidden_size;
    if (!e->config.encoder.classify_mean) {
        memcpy(out, hidden, (size_t)width * sizeof *out);
        return;
    }
    for (int64_t k = 0; k < width; k++) {
        double sum = 0;
        for (int64_t i = 0; i < n_rows; i++) sum += (double)hidden[i * width + k];
        out[k] = (float)(sum / (double)n_rows);
    }
}

qn_status qn_engine_classify(qn_engine *e, int64_t n, const qn_encode_row *rows, const float **out)
{
    const float *hidden;
    const void *from = NULL;
    const int64_t width = e->config.hidden_size;
    if (!e->head)
        return qn_fail(QN_E_UNSUPPORTED,
                       "the model has no head that scores sequences: it is a %s without one",
                       e->config.architecture);
    QN_TRY(qn_engine_encode(e, n, rows, &hidden));
    for (int64_t i = 0; i < n; i++, hidden += rows[i - 1].n_ids * width) {
        read_rows(e, hidden, rows[i].n_ids, e->encoder.read + i * width);
        if (e->logit_adapters) e->logit_adapters[i] = rows[i].adapter;
    }
    QN_TRY(qn_program_run(e->head, &(qn_sizes){{0, 0, n}}));
    QN_TRY(qn_program_read(e->head, 0, &from));
    *out = from;
    return QN_OK;
}
