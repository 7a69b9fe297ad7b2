/* State on another device against the CPU's: attention over pages and recurrent layers with slots, of random
 * shapes and parameters, step by step while sequences grow, pages are copied, saved and brought back. All
 * units hold NaN in the beginning: nothing may read what was not written.
 *
 * QN_SEED=n in the environment repeats a run. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "array/program.h"
#include "base/mem.h"
#include "base/random.h"
#include "cache/pages.h"
#include "prim/blocks.h"
#include "tests/devices/other_compare.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

enum { WORLDS = 24, STEPS = 14, SEQUENCES = 3, ROWS = 160, UNITS = 96, PAGES = 40, LAYERS = 2, OUTPUTS = 3 };

static uint64_t draws_seed, n_draws;

/* In [0, n). */
static int64_t roll(int64_t n)
{
    return (int64_t)(qn_random_bits(draws_seed, n_draws++) % (uint64_t)n);
}

static void fill(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = (float)(2 * qn_random_unit(draws_seed, n_draws++) - 1);
}

/* One device's half of a world. */
typedef struct {
    qn_device *device;
    qn_state *state, *keys; /* keys: of an index; NULL: there is none */
    qn_program *program;
} side;

/* Steps, whose inputs both sides get. */
typedef struct {
    int64_t n_sequences, n_rows;
    int64_t of[SEQUENCES], rows[SEQUENCES]; /* which sequence, and its new rows */
    int32_t row_begin[SEQUENCES + 1];
    int32_t marks[SEQUENCES]; /* of the sequence's block table */
} step;

static void draw_step(step *st, int64_t most, const int64_t *length, int64_t longest)
{
    *st = (step){0};
    const int64_t same = roll(2) ? 1 + roll(most) : 0; /* as many rows of each: they are computed together */
    for (int64_t i = 0; i < SEQUENCES; i++) {
        int64_t n = same ? same : 1 + (roll(3) ? 0 : roll(most));
        if (n > longest - length[i]) n = longest - length[i];
        if (n <= 0 || (roll(4) == 0 && st->n_rows)) continue;
        st->of[st->n_sequences] = i;
        st->rows[st->n_sequences] = n;
        st->n_rows += n;
        st->row_begin[++st->n_sequences] = (int32_t)st->n_rows;
    }
}

static void put(side *s, int input, const void *data, size_t bytes)
{
    void *to = qn_program_input(s->program, input);
    if (to) memcpy(to, data, bytes);
}

static void compare(const side *sides, const step *st, int n_outputs, int64_t width, const char *world)
{
    char why[256];
    for (int i = 0; i < n_outputs; i++) {
        const float *want = qn_program_output(sides[0].program, i),
                    *got = qn_program_output(sides[1].program, i);
        const int64_t n = st->n_rows * width;
        const qn_test_tolerance t = {qn_test_bound_of(QN_TEST_PAGES), qn_test_largest(QN_DTYPE_F32, n, want)};
        if (qn_test_differ(QN_DTYPE_F32, n, got, want, t, why))
            fail_msg("%s: output %d of %lld rows: %s\n  QN_SEED=%llu repeats it", world, i,
                     (long long)st->n_rows, why, (unsigned long long)draws_seed);
    }
}

static void new_state(side *s, const qn_state_spec *spec, int half, qn_state **state)
{
    OK(s->device->ops->state_new(s->device, spec, state));
    const size_t bytes = s->device->ops->state_unit_bytes(*state);
    char *bad = qn_alloc(bytes);
    memset(bad, 0xff, bytes);
    for (int32_t u = 0; u < (half ? spec->n_units / 2 : spec->n_units); u++)
        s->device->ops->state_write(*state, u, bad);
    qn_free(bad);
}

static void close_side(side *s)
{
    qn_program_free(s->program);
    s->device->ops->state_free(s->state);
    if (s->keys) s->device->ops->state_free(s->keys);
}

/* Through memory of the host, or from unit to unit. */
static void move_unit_of(const qn_device_ops *ops, qn_state *state, int32_t from, int32_t to, int by_host)
{
    if (!state) return;
    if (!by_host) {
        ops->state_copy(state, from, to);
        return;
    }
    char *bytes = qn_alloc(ops->state_unit_bytes(state));
    ops->state_read(state, from, bytes);
    ops->state_write(state, to, bytes);
    qn_free(bytes);
}

static void move_unit(const side *s, int32_t from, int32_t to, int by_host)
{
    move_unit_of(s->device->ops, s->state, from, to, by_host);
    move_unit_of(s->device->ops, s->keys, from, to, by_host);
}

/* ---- pages -------------------------------------------------------------------------------------------- */

typedef struct {
    qn_state_spec spec, keys; /* keys: of an index, which chooses blocks by the first queries and keys */
    qn_params_attend p;
    int64_t heads, top;
    float sinks[16];
    char text[200];
    int64_t length[SEQUENCES];
    int32_t table[SEQUENCES][PAGES]; /* page of each block */
    int32_t free[UNITS];
    int64_t n_free;
} world;

static void draw_world(world *w)
{
    static const qn_dtype types[] = {QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_BF16, QN_DTYPE_Q8_0, QN_DTYPE_Q4_0};
    const int n_types = qn_test_other()->kv_refusal ? 3 : 5;
    const int64_t kv = 1 + roll(2), shared = 1 + roll(3), dim = 4 * (1 + roll(6));
    *w = (world){.heads = kv * shared};
    w->spec = (qn_state_spec){.kind = QN_STATE_PAGES,
                              .n_layers = LAYERS,
                              .n_units = UNITS,
                              .kv_heads = kv,
                              .head_dim = dim,
                              .v_dim = roll(3) ? dim : 3 * (1 + roll(4)),
                              .dtype = types[roll(n_types)]};
    w->spec.v_in_k = w->spec.v_dim <= dim && roll(4) == 0;
    w->p = (qn_params_attend){.window = roll(2) ? 1 + roll(80) : 0,
                              .chunk = roll(3) ? 0 : 1 + roll(80),
                              .scale = 0.5f,
                              .softcap = roll(3) ? 0 : 2.5f,
                              .has_sinks = roll(3) == 0};
    w->p.whole = !w->p.window && !w->p.chunk && roll(4) == 0;
    if (kv == 1 && !w->p.whole && !w->p.chunk && roll(2)) {
        w->p.block = 1 + roll(40);
        w->p.no_tail = roll(3) == 0;
        w->top = 1 + roll(6);
        w->keys = (qn_state_spec){.kind = QN_STATE_PAGES,
                                  .n_layers = LAYERS,
                                  .n_units = UNITS,
                                  .kv_heads = 1,
                                  .head_dim = dim,
                                  .v_dim = dim,
                                  .v_in_k = 1,
                                  .dtype = QN_DTYPE_F32};
    }
    fill(w->sinks, w->heads);
    for (int32_t u = 0; u < UNITS; u++) w->free[w->n_free++] = u;
    for (int64_t i = UNITS - 1; i > 0; i--) {
        const int64_t j = roll(i + 1);
        const int32_t kept = w->free[i];
        w->free[i] = w->free[j];
        w->free[j] = kept;
    }
    snprintf(w->text, sizeof w->text,
             "%d heads, %d of keys, %d and %d dimensions%s, %s, window %d, chunk %d, softcap %g%s%s, %d "
             "blocks of %d%s",
             (int)w->heads, (int)kv, (int)dim, (int)w->spec.v_dim, w->spec.v_in_k ? " in keys" : "",
             qn_dtype_name(w->spec.dtype), (int)w->p.window, (int)w->p.chunk, (double)w->p.softcap,
             w->p.has_sinks ? ", sinks" : "", w->p.whole ? ", whole" : "", (int)w->top, (int)w->p.block,
             w->p.no_tail ? ", no tail" : "");
}

/* Two layers that write, and one that reads again what the first wrote, where its queries fit. */
static int make_program(world *w, side *s)
{
    qn_scope *scope = qn_scope_new(s->device);
    const int64_t q_dims[] = {w->heads, w->spec.head_dim}, k_dims[] = {w->spec.kv_heads, w->spec.head_dim},
                  v_dims[] = {w->spec.kv_heads, w->spec.v_dim}, width = 1 + PAGES;
    qn_shape ends = qn_shape_sym(QN_SYM_S, 0, NULL);
    ends.dim[0] = 1;
    qn_array *q = qn_input(scope, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 2, q_dims)),
             *k = qn_input(scope, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 2, k_dims)),
             *v = qn_input(scope, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 2, v_dims)),
             *positions = qn_input(scope, QN_DTYPE_I32, qn_shape_sym(QN_SYM_R, 0, NULL)),
             *row_begin = qn_input(scope, QN_DTYPE_I32, ends),
             *blocks = qn_input(scope, QN_DTYPE_I32, qn_shape_sym(QN_SYM_S, 1, &width)),
             *sinks = w->p.has_sinks ? qn_input(scope, QN_DTYPE_F32, qn_shape_make(1, &w->heads)) : NULL;
    qn_array *out[OUTPUTS], *chosen = NULL;
    int n = 0;
    for (; n < LAYERS; n++) {
        qn_params_attend p = w->p;
        p.state = s->state;
        p.layer = n;
        const qn_params_index x = {.state = s->keys,
                                   .layer = n,
                                   .top = (int32_t)w->top,
                                   .scale = 0.5f,
                                   .block = p.block,
                                   .window = p.window};
        if (p.block)
            chosen = qn_index_blocks(scope, &x, q, qn_reshape_rows(scope, k, 1, &w->spec.head_dim), positions,
                                     row_begin, blocks, NULL);
        out[n] = qn_attend_chosen(scope, &p, q, k, v, positions, row_begin, blocks, sinks, chosen);
    }
    if (w->spec.v_dim == w->spec.head_dim) {
        qn_params_attend p = w->p;
        p.state = s->state;
        p.is_written = 1;
        out[n++] = qn_attend_chosen(scope, &p, out[1], k, v, positions, row_begin, blocks, sinks, chosen);
    }
    OK(qn_scope_status(scope));
    const qn_program_options o = {
        .name = "pages", .max = {{ROWS * SEQUENCES, SEQUENCES, 0}}, .precision = QN_PRECISION_EXACT};
    OK(qn_program_new(scope, &o, n, out, &s->program));
    qn_scope_free(scope);
    return n;
}

/* Some sequences' rows see each other, those behind them too. */
static void draw_marks(step *st)
{
    static const int32_t marks[] = {0, QN_BLOCKS_WHOLE, QN_BLOCKS_WHOLE | QN_BLOCKS_BACK};
    for (int64_t j = 0; j < st->n_sequences; j++) st->marks[j] = marks[roll(3)];
}

/* Blocks that no row will see any more go, eight at a time; new ones come; now and then one moves. */
static void place(world *w, const side *sides, const step *st, int32_t *base)
{
    for (int64_t j = 0; j < st->n_sequences; j++) {
        const int64_t i = st->of[j], begin = w->length[i], end = begin + st->rows[j];
        const int64_t first = w->p.window && begin >= w->p.window ? begin - w->p.window + 1 : 0;
        base[j] = (int32_t)(first / QN_PAGE_TOKENS / 8 * 8);
        for (int64_t b = 0; b * QN_PAGE_TOKENS < end; b++) {
            int32_t *page = &w->table[i][b];
            if (b < base[j] && *page) {
                for (int d = 0; d < 2 && b % 2; d++)
                    sides[d].device->ops->state_drop(sides[d].state, *page - 1);
                w->free[w->n_free++] = *page - 1;
                *page = 0;
            }
            if (b < base[j] || *page) continue;
            *page = w->free[--w->n_free] + 1;
        }
        const int64_t b = base[j] + roll((end + QN_PAGE_TOKENS - 1) / QN_PAGE_TOKENS - base[j]);
        if (!w->n_free || roll(2)) continue;
        const int32_t from = w->table[i][b] - 1, to = w->free[0];
        const int by_host = (int)roll(2);
        for (int d = 0; d < 2; d++) move_unit(&sides[d], from, to, by_host);
        w->free[0] = from;
        w->table[i][b] = to + 1;
    }
}

static void feed(const world *w, side *s, const step *st, const int32_t *base, const float *rows)
{
    int32_t positions[ROWS * SEQUENCES], blocks[SEQUENCES * (1 + PAGES)] = {0};
    const int64_t q = w->heads * w->spec.head_dim, k = w->spec.kv_heads * w->spec.head_dim,
                  v = w->spec.kv_heads * w->spec.v_dim;
    for (int64_t j = 0; j < st->n_sequences; j++) {
        int32_t *row = blocks + j * (1 + PAGES);
        row[0] = base[j] | st->marks[j];
        for (int64_t r = 0; r < st->rows[j]; r++)
            positions[st->row_begin[j] + r] = (int32_t)(w->length[st->of[j]] + r);
        for (int64_t b = base[j]; b < PAGES && w->table[st->of[j]][b]; b++)
            row[1 + b - base[j]] = w->table[st->of[j]][b] - 1;
    }
    float *values = qn_alloc_array((size_t)(st->n_rows * v), sizeof *values);
    for (int64_t r = 0; r < st->n_rows * w->spec.kv_heads; r++) /* values are parts of keys, if need be */
        memcpy(values + r * w->spec.v_dim,
               w->spec.v_in_k ? rows + st->n_rows * q + r * w->spec.head_dim
                              : rows + st->n_rows * (q + k) + r * w->spec.v_dim,
               (size_t)w->spec.v_dim * sizeof *values);
    put(s, 0, rows, (size_t)(st->n_rows * q) * sizeof *rows);
    put(s, 1, rows + st->n_rows * q, (size_t)(st->n_rows * k) * sizeof *rows);
    put(s, 2, values, (size_t)(st->n_rows * v) * sizeof *rows);
    put(s, 3, positions, (size_t)st->n_rows * sizeof *positions);
    put(s, 4, st->row_begin, (size_t)(st->n_sequences + 1) * sizeof *st->row_begin);
    put(s, 5, blocks, (size_t)(st->n_sequences * (1 + PAGES)) * sizeof *blocks);
    if (w->p.has_sinks) put(s, 6, w->sinks, (size_t)w->heads * sizeof *w->sinks);
    OK(qn_program_run(s->program, &(qn_sizes){{st->n_rows, st->n_sequences, 0}}));
    qn_free(values);
}

static void pages_of_one_world(const qn_test_pair *pair)
{
    world w;
    step st;
    int n_outputs = 0;
    int32_t base[SEQUENCES];
    side sides[2] = {{.device = pair->cpu}, {.device = pair->other}};
    draw_world(&w);
    const int half = (int)roll(2), is_marked = (int)roll(2);
    for (int d = 0; d < 2; d++) {
        new_state(&sides[d], &w.spec, half, &sides[d].state);
        if (w.p.block) new_state(&sides[d], &w.keys, half, &sides[d].keys);
        n_outputs = make_program(&w, &sides[d]);
    }
    const int64_t row = w.heads * w.spec.head_dim + w.spec.kv_heads * (w.spec.head_dim + w.spec.v_dim);
    float *rows = qn_alloc_array((size_t)(ROWS * SEQUENCES * row), sizeof *rows);
    for (int i = 0; i < STEPS; i++) {
        draw_step(&st, i % 3 ? 4 : ROWS, w.length, UNITS / SEQUENCES * QN_PAGE_TOKENS - 32);
        if (!st.n_rows) continue;
        if (is_marked) draw_marks(&st);
        place(&w, sides, &st, base);
        fill(rows, st.n_rows * row);
        for (int d = 0; d < 2; d++) feed(&w, &sides[d], &st, base, rows);
        compare(sides, &st, n_outputs, w.heads * w.spec.v_dim, w.text);
        for (int64_t j = 0; j < st.n_sequences; j++) w.length[st.of[j]] += st.rows[j];
    }
    for (int d = 0; d < 2; d++) close_side(&sides[d]);
    qn_free(rows);
}

/* ---- slots -------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t channels, kernel, keys, heads, dk, dv;
    int by_channel, additive;
} recurrent;

static int64_t conv_floats(const recurrent *r)
{
    return (r->kernel - 1) * r->channels;
}

/* x, w, q, k, v, g, beta, row_begin, slots, reset; both primitives in each of two layers. */
static int make_recurrent(const recurrent *r, side *s)
{
    qn_scope *scope = qn_scope_new(s->device);
    qn_shape ends = qn_shape_sym(QN_SYM_S, 0, NULL);
    ends.dim[0] = 1;
    const int64_t w_dims[] = {r->kernel, r->channels}, q_dims[] = {r->keys, r->dk},
                  v_dims[] = {r->heads, r->dv}, g_dims[] = {r->heads, r->dk};
    qn_array *in[10] = {qn_input(scope, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &r->channels)),
                        qn_input(scope, QN_DTYPE_F32, qn_shape_make(2, w_dims)),
                        qn_input(scope, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 2, q_dims)),
                        qn_input(scope, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 2, q_dims)),
                        qn_input(scope, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 2, v_dims)),
                        qn_input(scope, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1 + r->by_channel, g_dims)),
                        qn_input(scope, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &r->heads)),
                        qn_input(scope, QN_DTYPE_I32, ends),
                        qn_input(scope, QN_DTYPE_I32, qn_shape_sym(QN_SYM_S, 0, NULL)),
                        qn_input(scope, QN_DTYPE_I32, qn_shape_sym(QN_SYM_S, 0, NULL))};
    qn_array *out[2 * LAYERS];
    for (int layer = 0; layer < LAYERS; layer++) {
        qn_params p = {.recurrent = {.state = s->state, .layer = layer}};
        out[layer] = qn_apply(scope, QN_PRIM_SHORT_CONV, &p, 5,
                              (qn_array *[]){in[0], in[1], in[7], in[8], in[9]}, NULL, QN_DTYPE_F32);
        p.recurrent.offset = conv_floats(r);
        p.recurrent.additive = r->additive;
        out[LAYERS + layer] = qn_apply(scope, QN_PRIM_GATED_DELTA, &p, 8, in + 2, NULL, QN_DTYPE_F32);
    }
    OK(qn_scope_status(scope));
    const qn_program_options o = {
        .name = "slots", .max = {{ROWS * SEQUENCES, SEQUENCES, 0}}, .precision = QN_PRECISION_EXACT};
    OK(qn_program_new(scope, &o, 2 * LAYERS, out, &s->program));
    qn_scope_free(scope);
    return 2 * LAYERS;
}

static void compare_recurrent(const side *sides, const recurrent *r, const step *st)
{
    char why[256];
    for (int i = 0; i < 2 * LAYERS; i++) {
        const float *want = qn_program_output(sides[0].program, i),
                    *got = qn_program_output(sides[1].program, i);
        const int64_t n = st->n_rows * (i < LAYERS ? r->channels : r->heads * r->dv);
        const qn_test_tolerance t = {qn_test_bound_of(QN_TEST_SLOTS), qn_test_largest(QN_DTYPE_F32, n, want)};
        if (qn_test_differ(QN_DTYPE_F32, n, got, want, t, why))
            fail_msg("output %d of %lld rows: %s\n  QN_SEED=%llu repeats it", i, (long long)st->n_rows, why,
                     (unsigned long long)draws_seed);
    }
}

static void slots_of_one_world(const qn_test_pair *pair)
{
    recurrent r = {1 + roll(40), 1 + roll(4), 1 + roll(2), 0, 1 + roll(24), 1 + roll(24), 0, 0};
    r.heads = r.keys * (1 + roll(3));
    r.by_channel = (int)roll(2);
    r.additive = (int)roll(2);
    const qn_state_spec spec = {.kind = QN_STATE_SLOTS,
                                .n_layers = LAYERS,
                                .n_units = UNITS,
                                .slot_floats = conv_floats(&r) + r.heads * r.dk * r.dv + roll(3)};
    side sides[2] = {{.device = pair->cpu}, {.device = pair->other}};
    for (int d = 0; d < 2; d++) {
        new_state(&sides[d], &spec, 0, &sides[d].state);
        make_recurrent(&r, &sides[d]);
    }
    const int64_t widths[7] = {
        r.channels, 0, r.keys * r.dk, r.keys * r.dk, r.heads * r.dv, r.heads * (r.by_channel ? r.dk : 1),
        r.heads};
    int64_t length[SEQUENCES] = {0};
    int32_t slot[SEQUENCES] = {7, 2, 50};
    float *x = qn_alloc_array(ROWS * SEQUENCES * 512, sizeof *x);
    for (int i = 0; i < STEPS; i++) {
        step st;
        int32_t slots[SEQUENCES], reset[SEQUENCES];
        draw_step(&st, i % 3 ? 4 : ROWS, length, 1000);
        for (int64_t j = 0; j < st.n_sequences; j++) {
            const int64_t k = st.of[j];
            if (roll(5) == 0) length[k] = 0;
            if (length[k] && roll(3) == 0) { /* a unit that nobody has */
                const int32_t to = (int32_t)(60 + k * 10 + roll(10));
                const int by_host = (int)roll(2);
                for (int d = 0; d < 2 && to != slot[k]; d++) move_unit(&sides[d], slot[k], to, by_host);
                slot[k] = to;
            }
            slots[j] = slot[k];
            reset[j] = length[k] == 0;
            length[k] += st.rows[j];
        }
        for (int input = 0; input < 7; input++) {
            const int64_t n = input == 1 ? r.kernel * r.channels : st.n_rows * widths[input];
            fill(x, n);
            for (int64_t k = 0; k < n; k++) { /* decays, shares; keys short enough for states to stay small */
                if (input == 5) x[k] = r.by_channel ? (x[k] + 1) / 2 : x[k] - 1;
                if (input == 6) x[k] = (x[k] + 1) / 2;
                if (input == 3) x[k] *= r.additive ? 0.1f : 0.3f;
            }
            for (int d = 0; d < 2; d++) put(&sides[d], input, x, (size_t)n * sizeof *x);
        }
        for (int d = 0; d < 2; d++) {
            put(&sides[d], 7, st.row_begin, sizeof st.row_begin);
            put(&sides[d], 8, slots, (size_t)st.n_sequences * sizeof *slots);
            put(&sides[d], 9, reset, (size_t)st.n_sequences * sizeof *reset);
            OK(qn_program_run(sides[d].program, &(qn_sizes){{st.n_rows, st.n_sequences, 0}}));
        }
        compare_recurrent(sides, &r, &st);
    }
    for (int d = 0; d < 2; d++) close_side(&sides[d]);
    qn_free(x);
}

/* ---- tests -------------------------------------------------------------------------------------------- */

static void worlds(void (*one)(const qn_test_pair *pair))
{
    const char *text = getenv("QN_SEED");
    qn_test_pair pair = qn_test_pair_open(0);
    const int64_t blocks = qn_mem_live_blocks();
    for (int i = 0; i < (text ? 1 : WORLDS); i++) {
        draws_seed = text ? strtoull(text, NULL, 10) : 1 + (uint64_t)i;
        n_draws = 0;
        one(&pair);
        assert_int_equal(qn_mem_live_blocks(), blocks);
        assert_int_equal(qn_ledger_held(pair.other->ledger, QN_LEDGER_KV), 0);
    }
    qn_test_pair_close(&pair);
}

static void pages(void **state)
{
    worlds(pages_of_one_world);
}

static void slots(void **state)
{
    worlds(slots_of_one_world);
}

/* What a state cannot be, and what it counts. */
static void limits(void **state)
{
    qn_test_pair pair = qn_test_pair_open(0);
    qn_device *d = pair.other;
    qn_state *s = NULL;
    qn_state_spec spec = {.kind = QN_STATE_PAGES,
                          .n_layers = 3,
                          .n_units = 1000,
                          .kv_heads = 2,
                          .head_dim = 8,
                          .v_dim = 8,
                          .dtype = QN_DTYPE_Q8_0};
    if (qn_test_other()->kv_refusal) {
        assert_int_equal(d->ops->state_new(d, &spec, &s), QN_E_UNSUPPORTED);
        assert_non_null(strstr(qn_last_error(), qn_test_other()->kv_refusal));
    }
    spec.dtype = QN_DTYPE_F16;
    spec.n_units = INT64_MAX / 2;
    assert_int_equal(d->ops->state_new(d, &spec, &s), QN_E_ARG);
    spec.n_units = 1000;
    OK(d->ops->state_new(d, &spec, &s));
    const size_t unit = d->ops->state_unit_bytes(s);
    assert_int_equal(unit, 3 * 32 * 2 * 16 * 2);
    assert_int_equal(qn_ledger_held(d->ledger, QN_LEDGER_KV), 0);
    char *bytes = qn_calloc(1, unit), *back = qn_calloc(1, unit);
    for (size_t i = 0; i < unit; i += 2) bytes[i] = (char)(i / 2 % 100); /* no NaN */
    d->ops->state_write(s, 2, bytes);
    d->ops->state_read(s, 2, back);
    assert_memory_equal(bytes, back, unit);
    const size_t spare = qn_ledger_held(d->ledger, QN_LEDGER_KV);
    if (qn_test_other()->counts_spare) /* beyond the three units in use */
        assert_true(spare > 0 && spare % unit == 0 && spare < 20 * unit);
    d->ops->state_copy(s, 2, 600);
    d->ops->state_read(s, 600, back);
    assert_memory_equal(bytes, back, unit);
    assert_true(qn_ledger_held(d->ledger, QN_LEDGER_KV) < 1000 * unit);
    d->ops->state_free(s);
    assert_int_equal(qn_ledger_held(d->ledger, QN_LEDGER_KV), 0);
    qn_free(bytes);
    qn_free(back);
    qn_test_pair_close(&pair);
}

/* ---- memory ------------------------------------------------------------------------------------------- */

enum { MOST_PAGES = 400, LEFT_PAGES = 30 };

static void write_page(qn_device *d, qn_state *s, int32_t page, char *bytes, size_t unit)
{
    for (size_t i = 0; i < unit; i += 2) bytes[i] = (char)(((size_t)page + i / 2) % 100); /* no NaN */
    d->ops->state_write(s, page, bytes);
}

static void check_page(qn_device *d, qn_state *s, int32_t page, char *bytes, size_t unit)
{
    d->ops->state_read(s, page, bytes);
    for (size_t i = 0; i < unit; i += 2) assert_int_equal(bytes[i], (char)(((size_t)page + i / 2) % 100));
}

/* The device's own figure and the ledger's: they may differ by what the device needs beside pages. The ledger's
 * alone, if the device does not tell. */
static size_t check_ledger(qn_device *d, size_t before)
{
    qn_test_usage usage;
    qn_device_clear_cache(d); /* in its turn: what was dropped is taken in before */
    const size_t held = qn_ledger_held(d->ledger, QN_LEDGER_KV) + qn_ledger_held(d->ledger, QN_LEDGER_CACHE);
    if (!qn_test_get_usage(&usage)) return held;
    const size_t active = usage.active_bytes - before;
    if (active < held || active > held + held / 50 + (64 << 10))
        fail_msg("the device has %zu bytes, the ledger %zu", active, held);
    return active;
}

/* Pages that go give their memory back; what stays is what it was. */
static void dropped(void **state)
{
    qn_test_pair pair = qn_test_pair_open(0);
    qn_device *d = pair.other;
    qn_test_usage usage;
    qn_test_get_usage(&usage);
    const size_t before = usage.active_bytes;
    const qn_state_spec spec = {.kind = QN_STATE_PAGES,
                                .n_layers = 2,
                                .n_units = 2 * MOST_PAGES,
                                .kv_heads = 2,
                                .head_dim = 64,
                                .v_dim = 64,
                                .dtype = QN_DTYPE_F16};
    qn_state *s = NULL;
    qn_pages *pages = NULL;
    int32_t ids[MOST_PAGES];
    OK(d->ops->state_new(d, &spec, &s));
    OK(qn_pages_new(s, &pages));
    const size_t unit = d->ops->state_unit_bytes(s);
    char *bytes = qn_calloc(1, unit);
    qn_ledger_set_cache_limit(d->ledger, 0);
    for (int round = 0; round < 3; round++) {
        OK(qn_pages_reserve(pages, MOST_PAGES, ids));
        for (int i = 0; i < MOST_PAGES; i++) write_page(d, s, ids[i], bytes, unit);
        const size_t full = check_ledger(d, before);
        assert_true(full >= MOST_PAGES * unit);
        for (int i = 0; i < MOST_PAGES; i++)
            if (i % 2) qn_pages_release(pages, ids[i]);
        check_ledger(d, before);
        for (int i = 0; i < MOST_PAGES; i += 2) {
            check_page(d, s, ids[i], bytes, unit);
            if (i >= 2 * LEFT_PAGES) qn_pages_release(pages, ids[i]);
        }
        assert_true(check_ledger(d, before) < full / 4);
        for (int i = 0; i < 2 * LEFT_PAGES; i += 2) {
            check_page(d, s, ids[i], bytes, unit);
            qn_pages_release(pages, ids[i]);
        }
        assert_true(check_ledger(d, before) < full / 50);
    }
    /* What is kept for reuse is not dropped, until somebody else needs the room. */
    qn_ledger_set_cache_limit(d->ledger, SIZE_MAX);
    OK(qn_pages_reserve(pages, MOST_PAGES, ids));
    for (int i = 0; i < MOST_PAGES; i++) write_page(d, s, ids[i], bytes, unit);
    for (int i = 0; i < MOST_PAGES; i++) qn_pages_release(pages, ids[i]);
    const size_t kept = check_ledger(d, before);
    assert_true(kept >= MOST_PAGES * unit);
    assert_int_equal(qn_pages_reclaim(pages, 10 * unit), 10 * unit);
    check_ledger(d, before);
    /* No room for what is spare: it goes as well. */
    qn_ledger_set_limit(d->ledger, qn_ledger_total(d->ledger) - 20 * unit);
    assert_int_equal(qn_pages_reclaim(pages, 20 * unit), 20 * unit);
    assert_true(check_ledger(d, before) <= kept - 20 * unit);
    assert_true(qn_ledger_total(d->ledger) <= qn_ledger_get_limit(d->ledger));
    qn_pages_free(pages);
    d->ops->state_free(s);
    assert_int_equal(qn_ledger_held(d->ledger, QN_LEDGER_KV), 0);
    qn_free(bytes);
    qn_test_pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pages), cmocka_unit_test(slots),
                                       cmocka_unit_test(limits), cmocka_unit_test(dropped)};
    return qn_test_run_others("state", tests, sizeof tests / sizeof *tests, NULL, NULL);
}
