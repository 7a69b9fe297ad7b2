/* Attention over chosen blocks, and the index that chooses them: over pages, all rows at once or in chunks, beside
 * another sequence, on several threads, and ragged. Against a definition in double; and the same bits in all of these.
 * QN_SEED=n in the environment draws other problems. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "array/program.h"
#include "base/mem.h"
#include "base/random.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

enum {
    MOST = 900,
    COMPANY = 70,
    PAGES = MOST / QN_PAGE_TOKENS + 1,
    UNITS = 2 * PAGES,
    TOP_MAX = 64,
    HEADS_MAX = 24,
    DIM_MAX = 40,
    CASES = 40
};

static uint64_t seed = 5, drawn;

/* In [0, n). */
static int64_t roll(int64_t n)
{
    return (int64_t)(qn_random_bits(seed, drawn++) % (uint64_t)n);
}

/* What is computed; rows [n, ..] of each input, those of the sequence first and then its company's. */
typedef struct {
    int64_t n, heads, kv_heads, dim, v_dim, index_heads, index_dim, block, top, window;
    int v_in_k, no_tail, has_weights, has_sinks;
    float softcap;
    qn_dtype dtype;
    float *q, *k, *v, *index_q, *index_k, *weights, sinks[HEADS_MAX];
    char text[240];
} problem;

static float *numbers(int64_t n)
{
    float *x = qn_alloc_array((size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(2 * qn_random_unit(seed, drawn++) - 1);
    return x;
}

static problem draw(void)
{
    problem p = {.kv_heads = 1 + roll(2), .dim = 4 * (1 + roll(8)), .index_dim = 4 * (1 + roll(5))};
    const int64_t rows = (p.n = 1 + roll(roll(3) ? 200 : MOST)) + COMPANY;
    p.heads = p.kv_heads * (1 + roll(roll(4) ? 3 : 12));
    p.v_in_k = roll(3) == 0;
    p.v_dim = p.v_in_k ? p.dim - roll(3) : 3 * (1 + roll(8));
    if (p.v_in_k) p.kv_heads = 1;
    p.index_heads = 1 + roll(8);
    p.block = 1 + roll(roll(2) ? 5 : 40);
    p.top = 1 + roll(roll(2) ? 4 : TOP_MAX);
    p.window = roll(3) ? 0 : 1 + roll(300);
    p.no_tail = roll(4) == 0;
    p.has_weights = (int)roll(2);
    p.has_sinks = roll(4) == 0;
    p.softcap = roll(4) ? 0 : 3;
    p.q = numbers(rows * p.heads * p.dim);
    p.k = numbers(rows * p.kv_heads * p.dim);
    p.v = numbers(rows * p.kv_heads * p.v_dim);
    for (int64_t r = 0; p.v_in_k && r < rows; r++)
        memcpy(p.v + r * p.v_dim, p.k + r * p.dim, (size_t)p.v_dim * sizeof *p.v);
    p.index_q = numbers(rows * p.index_heads * p.index_dim);
    p.index_k = numbers(rows * p.index_dim);
    p.weights = numbers(rows * p.index_heads);
    for (int64_t h = 0; h < p.heads; h++) p.sinks[h] = (float)roll(3);
    p.dtype = QN_DTYPE_F32;
    snprintf(p.text, sizeof p.text,
             "%d rows, %d heads over %d of %d and %d%s, index of %d heads of %d, %d blocks of %d, window "
             "%d%s%s%s, "
             "softcap %g",
             (int)p.n, (int)p.heads, (int)p.kv_heads, (int)p.dim, (int)p.v_dim, p.v_in_k ? " in keys" : "",
             (int)p.index_heads, (int)p.index_dim, (int)p.top, (int)p.block, (int)p.window,
             p.no_tail ? ", no tail" : "", p.has_weights ? ", weights" : "", p.has_sinks ? ", sinks" : "",
             (double)p.softcap);
    return p;
}

static void done(problem *p)
{
    float *all[] = {p->q, p->k, p->v, p->index_q, p->index_k, p->weights};
    for (int i = 0; i < 6; i++) qn_free(all[i]);
}

/* ---- computing ----------------------------------------------------------------------------------------- */

/* How: ragged, or over pages, in chunks of at most `chunk` rows (0: all at once), alone or with company. */
typedef struct {
    int n_threads, ragged, company;
    int64_t chunk;
} way;

typedef struct {
    int32_t *chosen; /* [n, top] */
    float *out;      /* [n, heads, v_dim] */
} result;

static result room(const problem *p)
{
    return (result){qn_alloc_array((size_t)(p->n * p->top), sizeof(int32_t)),
                    qn_alloc_array((size_t)(p->n * p->heads * p->v_dim), sizeof(float))};
}

static void result_free(result *r)
{
    qn_free(r->chosen);
    qn_free(r->out);
}

typedef struct {
    qn_device *device;
    qn_state *kv, *keys;
    qn_program *program;
} machine;

static void bad_units(machine *m, qn_state *state)
{
    const size_t bytes = m->device->ops->state_unit_bytes(state);
    char *bad = qn_alloc(bytes);
    memset(bad, 0xff, bytes);
    for (int32_t u = 0; u < UNITS; u++) m->device->ops->state_write(state, u, bad);
    qn_free(bad);
}

static machine make(const problem *p, const way *w)
{
    machine m = {.device = NULL};
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = w->n_threads}, &m.device));
    qn_scope *s = qn_scope_new(m.device);
    const int64_t width = 1 + PAGES,
                  d[] = {p->heads, p->dim,         p->kv_heads,  p->dim,       p->kv_heads,
                         p->v_dim, p->index_heads, p->index_dim, p->index_dim, p->index_heads};
    qn_state_spec kv = {.kind = QN_STATE_PAGES,
                        .n_layers = 1,
                        .n_units = UNITS,
                        .kv_heads = p->kv_heads,
                        .head_dim = p->dim,
                        .v_dim = p->v_dim,
                        .v_in_k = p->v_in_k,
                        .dtype = p->dtype},
                  keys = {.kind = QN_STATE_PAGES,
                          .n_layers = 1,
                          .n_units = UNITS,
                          .kv_heads = 1,
                          .head_dim = p->index_dim,
                          .v_dim = p->index_dim,
                          .v_in_k = 1,
                          .dtype = QN_DTYPE_F32};
    if (!w->ragged) {
        OK(m.device->ops->state_new(m.device, &kv, &m.kv));
        OK(m.device->ops->state_new(m.device, &keys, &m.keys));
        bad_units(&m, m.kv);
        bad_units(&m, m.keys);
    }
    qn_array *q = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 2, d)),
             *k = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 2, d + 2)),
             *v = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 2, d + 4)),
             *index_q = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 2, d + 6)),
             *index_k = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, d + 8)),
             *weights = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, d + 9)),
             *sinks = qn_from_data(s, QN_DTYPE_F32, 1, &p->heads, p->sinks),
             *positions = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_R, 0, NULL));
    qn_shape ends = qn_shape_sym(QN_SYM_S, 0, NULL);
    ends.dim[0] = 1;
    qn_array *row_begin = qn_input(s, QN_DTYPE_I32, ends),
             *blocks = w->ragged ? NULL : qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_S, 1, &width));
    const qn_params_index i = {.state = m.keys,
                               .has_weights = p->has_weights,
                               .top = (int32_t)p->top,
                               .scale = 0.3f,
                               .block = p->block,
                               .window = p->window};
    const qn_params_attend a = {.state = m.kv,
                                .has_sinks = p->has_sinks,
                                .window = p->window,
                                .block = p->block,
                                .no_tail = p->no_tail,
                                .scale = 0.4f,
                                .softcap = p->softcap};
    qn_array *chosen = qn_index_blocks(s, &i, index_q, index_k, positions, row_begin, blocks, weights);
    qn_array *out[] = {chosen, qn_attend_chosen(s, &a, q, k, v, positions, row_begin, blocks, sinks, chosen)};
    OK(qn_scope_status(s));
    OK(qn_program_new(s,
                      &(qn_program_options){
                          .name = "chosen", .max = {{MOST + COMPANY, 2, 0}}, .precision = QN_PRECISION_EXACT},
                      2, out, &m.program));
    qn_scope_free(s);
    return m;
}

static void put(const machine *m, int input, const float *from, int64_t row, int64_t begin, int64_t n,
                int64_t at)
{
    float *to = qn_program_input(m->program, input);
    if (to) memcpy(to + at * row, from + begin * row, (size_t)(n * row) * sizeof *to);
}

/* n rows of the sequence from `begin` on, and company_n of its company's. */
static void step(const problem *p, const machine *m, const way *w, int64_t begin, int64_t n,
                 int64_t company_begin, int64_t company_n, result *r)
{
    const int64_t total = n + company_n, n_sequences = company_n ? 2 : 1,
                  of[] = {begin, p->n + company_begin}, rows[] = {n, company_n}, out = p->heads * p->v_dim;
    int32_t *positions = qn_program_input(m->program, 6), *row_begin = qn_program_input(m->program, 7),
            *table = w->ragged ? NULL : qn_program_input(m->program, 8);
    row_begin[0] = 0;
    for (int64_t i = 0, at = 0; i < n_sequences; at += rows[i++]) {
        put(m, 0, p->q, p->heads * p->dim, of[i], rows[i], at);
        put(m, 1, p->k, p->kv_heads * p->dim, of[i], rows[i], at);
        put(m, 2, p->v, p->kv_heads * p->v_dim, of[i], rows[i], at);
        put(m, 3, p->index_q, p->index_heads * p->index_dim, of[i], rows[i], at);
        put(m, 4, p->index_k, p->index_dim, of[i], rows[i], at);
        put(m, 5, p->weights, p->index_heads, of[i], rows[i], at);
        for (int64_t j = 0; positions && j < rows[i]; j++)
            positions[at + j] = (int32_t)((i ? company_begin : begin) + j);
        row_begin[i + 1] = (int32_t)(at + rows[i]);
        if (!table) continue;
        /* The sequence's pages that lie before its window are not in its table. */
        const int64_t first = i || !p->window || begin < p->window ? 0 : begin - p->window + 1;
        int32_t *row = table + i * (1 + PAGES);
        row[0] = (int32_t)(first / QN_PAGE_TOKENS / 8 * 8);
        for (int64_t j = 0; j < PAGES; j++) row[1 + j] = (int32_t)((2 * (j + row[0]) + i) % UNITS);
    }
    OK(qn_program_run(m->program, &(qn_sizes){{total, n_sequences, 0}}));
    memcpy(r->chosen + begin * p->top, qn_program_output(m->program, 0),
           (size_t)(n * p->top) * sizeof *r->chosen);
    memcpy(r->out + begin * out, qn_program_output(m->program, 1), (size_t)(n * out) * sizeof *r->out);
}

static result compute(const problem *p, const way *w)
{
    machine m = make(p, w);
    result r = room(p);
    int64_t company = 0;
    for (int64_t at = 0, n; at < p->n; at += n) {
        n = w->chunk ? 1 + roll(w->chunk) : p->n;
        if (n > p->n - at) n = p->n - at;
        int64_t more = !w->company ? 0 : w->ragged ? COMPANY : roll(COMPANY / 2);
        if (more > COMPANY - company) more = COMPANY - company;
        step(p, &m, w, at, n, company, more, &r);
        company += more;
    }
    qn_program_free(m.program);
    if (m.kv) m.device->ops->state_free(m.kv);
    if (m.keys) m.device->ops->state_free(m.keys);
    qn_device_close(m.device);
    return r;
}

/* ---- the definition ------------------------------------------------------------------------------------ */

static double dot(const float *x, const float *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * y[i];
    return sum;
}

static int64_t first_seen(const problem *p, int64_t row)
{
    return p->window && row >= p->window ? row - p->window + 1 : 0;
}

/* The blocks of a row into chosen [top]; 0: two scores are so near that f32 may see it otherwise. */
static int choose(const problem *p, int64_t row, int32_t *chosen)
{
    static double scores[MOST];
    static char taken[MOST];
    const int64_t first = (first_seen(p, row) + p->block - 1) / p->block, end = (row + 1) / p->block;
    int64_t n = 0;
    int is_clear = 1;
    for (int64_t b = first; b < end; b++) {
        scores[b] = taken[b] = 0;
        for (int64_t h = 0; h < p->index_heads; h++) {
            const double x =
                0.3 * dot(p->index_q + (row * p->index_heads + h) * p->index_dim,
                          p->index_k + (b * p->block + p->block - 1) * p->index_dim, p->index_dim);
            if (x > 0) scores[b] += x * (p->has_weights ? (double)p->weights[row * p->index_heads + h] : 1);
        }
    }
    for (; n < p->top; n++) {
        int64_t best = -1;
        for (int64_t b = first; b < end; b++)
            if (!taken[b] && (best < 0 || scores[b] > scores[best])) best = b;
        if (best < 0) break;
        taken[best] = 1;
        for (int64_t b = first; b < end && n == p->top - 1; b++)
            if (!taken[b] && scores[b] != scores[best] && scores[best] - scores[b] < 1e-5) is_clear = 0;
    }
    n = 0;
    for (int64_t b = first; b < end; b++)
        if (taken[b]) chosen[n++] = (int32_t)b;
    while (n < p->top) chosen[n++] = -1;
    return is_clear;
}

static int sees(const problem *p, const int32_t *chosen, int64_t row, int64_t at)
{
    if (at > row || at < first_seen(p, row)) return 0;
    if (at >= (row + 1) / p->block * p->block) return !p->no_tail;
    for (int64_t i = 0; i < p->top; i++)
        if (chosen[i] == at / p->block) return 1;
    return 0;
}

static void attend(const problem *p, int64_t row, int64_t h, const int32_t *chosen, double *out)
{
    static double x[MOST];
    const int64_t kv = h / (p->heads / p->kv_heads);
    double largest = p->has_sinks ? p->sinks[h] : -INFINITY, total = 0;
    for (int64_t at = 0; at <= row; at++) {
        x[at] =
            0.4 * dot(p->q + (row * p->heads + h) * p->dim, p->k + (at * p->kv_heads + kv) * p->dim, p->dim);
        if (p->softcap > 0) x[at] = p->softcap * tanh(x[at] / p->softcap);
        if (!sees(p, chosen, row, at)) x[at] = -INFINITY;
        if (x[at] > largest) largest = x[at];
    }
    if (p->has_sinks) total = exp(p->sinks[h] - largest);
    for (int64_t at = 0; at <= row; at++)
        if (largest > -INFINITY) total += x[at] = exp(x[at] - largest);
    for (int64_t d = 0; d < p->v_dim; d++) {
        out[d] = 0;
        for (int64_t at = 0; at <= row && largest > -INFINITY; at++)
            out[d] += x[at] / total * p->v[(at * p->kv_heads + kv) * p->v_dim + d];
    }
}

static void check_definition(const problem *p, const result *r, double bound)
{
    for (int64_t row = 0; row < p->n; row++) {
        int32_t want[TOP_MAX];
        double out[DIM_MAX];
        const int32_t *got = r->chosen + row * p->top;
        if (choose(p, row, want) && memcmp(want, got, (size_t)p->top * sizeof *want) != 0)
            fail_msg("%s: row %lld chose other blocks", p->text, (long long)row);
        for (int64_t h = 0; h < p->heads; h++) {
            attend(p, row, h, got, out);
            for (int64_t d = 0; d < p->v_dim; d++) {
                const double x = r->out[(row * p->heads + h) * p->v_dim + d];
                if (!(fabs(x - out[d]) < bound))
                    fail_msg("%s: row %lld, head %lld, value %lld: %.9g, expected %.9g", p->text,
                             (long long)row, (long long)h, (long long)d, x, out[d]);
            }
        }
    }
}

static void check_same(const problem *p, const result *a, const result *b, const way *w)
{
    if (memcmp(a->chosen, b->chosen, (size_t)(p->n * p->top) * sizeof *a->chosen) == 0 &&
        memcmp(a->out, b->out, (size_t)(p->n * p->heads * p->v_dim) * sizeof *a->out) == 0)
        return;
    fail_msg("%s: other bits with %d threads, ragged %d, company %d, chunks of %lld", p->text, w->n_threads,
             w->ragged, w->company, (long long)w->chunk);
}

static void test_all_ways(void **state)
{
    static const way ways[] = {{.n_threads = 1, .ragged = 1},
                               {.n_threads = 3, .ragged = 1, .company = 1},
                               {.n_threads = 4},
                               {.n_threads = 1, .company = 1},
                               {.n_threads = 2, .chunk = 1},
                               {.n_threads = 3, .chunk = 40, .company = 1},
                               {.n_threads = 1, .chunk = 90}};
    for (int i = 0; i < CASES; i++) {
        problem p = draw();
        result first = compute(&p, &(way){.n_threads = 1});
        check_definition(&p, &first, 1e-5);
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
            if (ways[k].chunk == 1 && p.n > 200) continue;
            result r = compute(&p, &ways[k]);
            check_same(&p, &first, &r, &ways[k]);
            result_free(&r);
        }
        result_free(&first);
        done(&p);
    }
}

/* Keys and values of 16 bits and of blocks: the same bits in chunks, and what the numbers as they are give, nearly. */
static void test_narrow_pages(void **state)
{
    static const qn_dtype types[] = {QN_DTYPE_F16, QN_DTYPE_BF16, QN_DTYPE_Q8_0, QN_DTYPE_Q4_0};
    static const double bounds[] = {2e-3, 2e-2, 3e-2, 0.6};
    for (int i = 0; i < 12; i++) {
        const way w = {.n_threads = 3, .chunk = 40, .company = 1};
        problem p = draw();
        p.dtype = types[i % 4];
        result whole = compute(&p, &(way){.n_threads = 2}), some = compute(&p, &w);
        check_definition(&p, &whole, bounds[i % 4]);
        check_same(&p, &whole, &some, &w);
        result_free(&whole);
        result_free(&some);
        done(&p);
    }
}

/* More rows than fit into one worker's turn, more keys than are scored at once, on more workers than rows. */
static void test_many_keys(void **state)
{
    problem p;
    do {
        p = draw();
        if (p.n > 700 && p.block < 3) break;
        done(&p);
    } while (1);
    const way w = {.n_threads = 5, .chunk = 3};
    result whole = compute(&p, &(way){.n_threads = 1}), some = compute(&p, &w);
    check_definition(&p, &whole, 1e-5);
    check_same(&p, &whole, &some, &w);
    result_free(&whole);
    result_free(&some);
    done(&p);
}

int main(void)
{
    const char *text = getenv("QN_SEED");
    if (text) seed = strtoull(text, NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_ways), cmocka_unit_test(test_narrow_pages),
                                       cmocka_unit_test(test_many_keys)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
