#include "train/step/batch_graph.h"

#include <string.h>

/* Inputs in the order in which they are made; sections only where the config has them. */
enum { IN_IDS, IN_POSITIONS, IN_ROW_BEGIN, IN_ROWS, IN_TARGETS, IN_IS_LONG, IN_SECTIONS };

static qn_shape vector(qn_symbol symbol, int64_t extra)
{
    qn_shape s = qn_shape_sym(symbol, 0, NULL);
    s.dim[0] = extra;
    return s;
}

int qn_batch_graph_inputs(qn_scope *s, qn_forward *f, qn_array **rows, qn_array **targets)
{
    const int64_t one = 1;
    int n = IN_SECTIONS;
    f->ids = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_R, 0));
    f->positions = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_R, 0));
    f->row_begin = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_S, 1));
    *rows = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_L, 0));
    *targets = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_L, 1, &one));
    qn_array *is_long = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &one));
    if (f->config->rope_short_positions) f->is_long = is_long;
    for (int i = 0; f->config->rope[0].mrope_section[0] && i < QN_ROPE_SECTIONS; i++, n++)
        f->rope_positions[i] = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_R, 0));
    return n;
}

static qn_status check_batch(const qn_model_config *c, const qn_batch_sizes *o, const qn_train_batch *b)
{
    const int64_t vocab_size = c->vocab_size;
    if (b->n_rows < 1 || b->n_targets < 1 || b->n_sequences < 1)
        return qn_fail(QN_E_ARG, "a batch has %lld tokens and %lld targets", (long long)b->n_rows,
                       (long long)b->n_targets);
    if (b->n_rows > o->n_rows || b->n_sequences > o->n_sequences || b->n_targets > o->n_targets)
        return qn_fail(QN_E_ARG,
                       "a batch has %lld tokens, %lld sequences and %lld targets; the maximum is %lld, %lld "
                       "and %lld",
                       (long long)b->n_rows, (long long)b->n_sequences, (long long)b->n_targets,
                       (long long)o->n_rows, (long long)o->n_sequences, (long long)o->n_targets);
    if (b->row_begin[0] != 0 || b->row_begin[b->n_sequences] != b->n_rows)
        return qn_fail(QN_E_ARG, "the sequences of a batch do not cover its tokens");
    for (int64_t i = 0; i < b->n_sequences; i++)
        if (b->row_begin[i + 1] <= b->row_begin[i])
            return qn_fail(QN_E_ARG, "sequence %lld of a batch is empty", (long long)i);
    for (int64_t i = 0; i < b->n_rows; i++)
        if (b->ids[i] < 0 || b->ids[i] >= vocab_size)
            return qn_fail(QN_E_ARG, "token id %d at row %lld of a batch: the vocabulary has %lld tokens",
                           b->ids[i], (long long)i, (long long)vocab_size);
    for (int64_t i = 0; i < b->n_targets; i++)
        if (b->targets[i] < 0 || b->targets[i] >= vocab_size || b->rows[i] < 0 || b->rows[i] >= b->n_rows)
            return qn_fail(QN_E_ARG, "target %lld of a batch: id %d for row %d", (long long)i, b->targets[i],
                           b->rows[i]);
    return QN_OK;
}

static void copy_ints(qn_program *p, int input, const int32_t *from, int64_t n)
{
    int32_t *to = qn_program_input(p, input);
    if (to) memcpy(to, from, (size_t)n * sizeof *to);
}

static void fill_positions(int32_t *to, const qn_train_batch *b)
{
    for (int64_t s = 0; to && s < b->n_sequences; s++)
        for (int32_t r = b->row_begin[s]; r < b->row_begin[s + 1]; r++) to[r] = r - b->row_begin[s];
}

qn_status qn_batch_graph_fill(qn_program *p, const qn_model_config *c, const qn_batch_sizes *max,
                              const qn_train_batch *b)
{
    const int64_t limit = c->rope_short_positions;
    QN_TRY(check_batch(c, max, b));
    copy_ints(p, IN_IDS, b->ids, b->n_rows);
    copy_ints(p, IN_ROW_BEGIN, b->row_begin, b->n_sequences + 1);
    copy_ints(p, IN_ROWS, b->rows, b->n_targets);
    copy_ints(p, IN_TARGETS, b->targets, b->n_targets);
    fill_positions(qn_program_input(p, IN_POSITIONS), b);
    for (int i = 0; c->rope[0].mrope_section[0] && i < QN_ROPE_SECTIONS; i++)
        fill_positions(qn_program_input(p, IN_SECTIONS + i), b);
    float *is_long = limit ? qn_program_input(p, IN_IS_LONG) : NULL;
    for (int64_t s = 0; is_long && s < b->n_sequences; s++)
        for (int32_t r = b->row_begin[s]; r < b->row_begin[s + 1]; r++)
            is_long[r] = b->row_begin[s + 1] - b->row_begin[s] > limit;
    return QN_OK;
}
