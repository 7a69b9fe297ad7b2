/* Attention of which each row sees all rows of its sequence, those behind it too, or of a window to both sides: over
 * pages and ragged, against products and a softmax; its gradients; and the same bits whatever the threads and the company. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "array/program.h"
#include "base/mem.h"
#include "base/random.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

enum { HEADS = 3, DIM = 12, MOST = 700, PAGES = MOST / QN_PAGE_TOKENS + 1, SEQUENCES = 2 };
static const float scale = 0.3f;

static qn_device *open_device(int n_threads)
{
    qn_device *d;
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = n_threads}, &d));
    return d;
}

static void fill(float *x, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) x[i] = (float)(2 * qn_random_unit(seed, (uint64_t)i) - 1);
}

/* A sequence of n rows: out [n, HEADS, DIM]. window 0: none. */
static void definition(const float *q, const float *k, const float *v, int64_t n, int64_t window, float *out)
{
    static double p[MOST];
    for (int64_t r = 0; r < n; r++)
        for (int64_t h = 0; h < HEADS; h++) {
            double largest = -INFINITY, total = 0;
            for (int64_t j = 0; j < n; j++) {
                p[j] = 0;
                for (int64_t d = 0; d < DIM; d++)
                    p[j] += (double)q[(r * HEADS + h) * DIM + d] * k[(j * HEADS + h) * DIM + d];
                p[j] *= scale;
                if (window && llabs(r - j) >= window) p[j] = -INFINITY;
                if (p[j] > largest) largest = p[j];
            }
            for (int64_t j = 0; j < n; j++) total += p[j] = exp(p[j] - largest);
            for (int64_t d = 0; d < DIM; d++) {
                double sum = 0;
                for (int64_t j = 0; j < n; j++) sum += p[j] * v[(j * HEADS + h) * DIM + d];
                out[(r * HEADS + h) * DIM + d] = (float)(sum / total);
            }
        }
}

/* Sequences of n[0] and n[1] rows (0: there is none), q, k and v one after the other in rows. */
static void attend(int n_threads, int paged, int64_t window, const int64_t *n, const float *rows, float *out)
{
    qn_device *device = open_device(n_threads);
    qn_scope *s = qn_scope_new(device);
    qn_state *state = NULL;
    const int64_t total = n[0] + n[1], width = 1 + PAGES, n_sequences = n[1] ? 2 : 1;
    const size_t bytes = (size_t)(total * HEADS * DIM) * sizeof(float);
    qn_state_spec spec = {.kind = QN_STATE_PAGES,
                          .n_layers = 1,
                          .n_units = SEQUENCES * PAGES,
                          .kv_heads = HEADS,
                          .head_dim = DIM,
                          .v_dim = DIM,
                          .dtype = QN_DTYPE_F32};
    if (paged) OK(device->ops->state_new(device, &spec, &state));
    qn_array *in[3], *blocks = NULL;
    for (int i = 0; i < 3; i++)
        in[i] = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 2, (int64_t[]){HEADS, DIM}));
    qn_array *positions = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_R, 0, NULL));
    qn_shape ends = qn_shape_sym(QN_SYM_S, 0, NULL);
    ends.dim[0] = 1;
    qn_array *row_begin = qn_input(s, QN_DTYPE_I32, ends);
    if (paged) blocks = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_S, 1, &width));
    qn_params_attend p = {.state = state, .whole = 1, .window = window, .scale = scale};
    qn_array *o = qn_attend(s, &p, in[0], in[1], in[2], positions, row_begin, blocks, NULL);
    qn_program *program;
    OK(qn_program_new(s, &(qn_program_options){.name = "attend", .max = {{total, SEQUENCES, 0}}}, 1, &o,
                      &program));
    for (int i = 0; i < 3; i++) memcpy(qn_program_input(program, i), rows + i * total * HEADS * DIM, bytes);
    int32_t *at = qn_program_input(program, 3), *begin = qn_program_input(program, 4);
    for (int64_t r = 0; at && r < total; r++) at[r] = (int32_t)(r < n[0] ? r : r - n[0]);
    begin[0] = 0;
    begin[1] = (int32_t)n[0];
    if (n_sequences == 2) begin[2] = (int32_t)total;
    int32_t *table = paged ? qn_program_input(program, 5) : NULL;
    for (int64_t i = 0; paged && i < n_sequences; i++) {
        table[i * width] = 0;
        for (int64_t j = 0; j < PAGES; j++) table[i * width + 1 + j] = (int32_t)(j * SEQUENCES + i);
    }
    OK(qn_program_run(program, &(qn_sizes){{total, n_sequences, 0}}));
    memcpy(out, qn_program_output(program, 0), bytes);
    qn_program_free(program);
    qn_scope_free(s);
    if (state) device->ops->state_free(state);
    qn_device_close(device);
}

static float *rows_of(int64_t n)
{
    float *rows = qn_alloc_array((size_t)(3 * n * HEADS * DIM), sizeof *rows);
    fill(rows, 3 * n * HEADS * DIM, 7);
    return rows;
}

static void test_definition(void **state)
{
    static float want[MOST * HEADS * DIM], got[MOST * HEADS * DIM];
    static const int64_t lengths[] = {1, 5, 33, 256, 257, 600}, windows[] = {0, 1, 9, 33, 300};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths * (sizeof windows / sizeof *windows); i++) {
        const int64_t n = lengths[i % 6], step = n * HEADS * DIM, window = windows[i / 6];
        float *rows = rows_of(n);
        definition(rows, rows + step, rows + 2 * step, n, window, want);
        for (int paged = 0; paged < (window ? 1 : 2); paged++) {
            attend(2, paged, window, (int64_t[]){n, 0}, rows, got);
            for (int64_t j = 0; j < step; j++)
                if (!(fabsf(got[j] - want[j]) < 2e-6f))
                    fail_msg("%lld rows, window %lld, paged %d, value %lld: %.9g, expected %.9g",
                             (long long)n, (long long)window, paged, (long long)j, (double)got[j],
                             (double)want[j]);
        }
        qn_free(rows);
    }
}

static void test_same_bits(void **state)
{
    static float alone[MOST * HEADS * DIM], together[MOST * HEADS * DIM];
    enum { FIRST = 290, SECOND = 67 };
    const int64_t step = (FIRST + SECOND) * HEADS * DIM;
    float *both = rows_of(FIRST + SECOND), *one = qn_alloc_array(3 * FIRST * HEADS * DIM, sizeof *one);
    for (int i = 0; i < 3; i++)
        memcpy(one + i * FIRST * HEADS * DIM, both + i * step, FIRST * HEADS * DIM * sizeof *one);
    for (int form = 0; form < 3; form++) {
        const int paged = form == 1;
        const int64_t window = form == 2 ? 41 : 0;
        attend(1, paged, window, (int64_t[]){FIRST, 0}, one, alone);
        for (int threads = 1; threads < 5; threads++) {
            attend(threads, paged, window, (int64_t[]){FIRST, SECOND}, both, together);
            assert_memory_equal(alone, together, FIRST * HEADS * DIM * sizeof *alone);
        }
    }
    qn_free(both);
    qn_free(one);
}

/* Gradients of the ragged form against those of a softmax over all rows of one sequence. */
static void check_gradient(int64_t window)
{
    enum { N = 9 };
    static float rows[4 * N * HEADS * DIM];
    const int32_t order[] = {1, 0, 2}, begin[] = {0, N}, at[N] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    const int64_t two = 2, n = N;
    qn_device *device = open_device(2);
    qn_scope *s = qn_scope_new(device);
    qn_array *in[4], *by_head[3], *fused[3], *plain[3];
    fill(rows, 4 * N * HEADS * DIM, 9);
    for (int i = 0; i < 4; i++)
        in[i] = qn_from_data(s, QN_DTYPE_F32, 3, (int64_t[]){N, HEADS, DIM}, rows + i * N * HEADS * DIM);
    qn_params_attend p = {.whole = 1, .window = window, .scale = scale};
    qn_array *o = qn_attend(s, &p, in[0], in[1], in[2], qn_from_data(s, QN_DTYPE_I32, 1, &n, at),
                            qn_from_data(s, QN_DTYPE_I32, 1, &two, begin), NULL, NULL);
    for (int i = 0; i < 3; i++) by_head[i] = qn_permute(s, in[i], order);
    qn_array *scores = qn_scale(s, qn_matmul(s, by_head[0], qn_transpose(s, by_head[1])), scale);
    static float mask[N * N];
    for (int i = 0; i < N * N; i++) mask[i] = window && llabs(i / N - i % N) >= window ? -INFINITY : 0;
    scores = qn_add(s, scores, qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){N, N}, mask));
    qn_array *o2 = qn_permute(s, qn_matmul(s, qn_softmax(s, scores), by_head[2]), order);
    OK(qn_vjp(s, o, in[3], 3, in, fused));
    OK(qn_vjp(s, o2, in[3], 3, in, plain));
    qn_array *all[] = {o, o2, fused[0], plain[0], fused[1], plain[1], fused[2], plain[2]};
    OK(qn_eval(s, 8, all));
    for (int i = 0; i < 8; i += 2) {
        const float *a = qn_array_data(all[i]), *b = qn_array_data(all[i + 1]);
        for (int64_t j = 0; j < N * HEADS * DIM; j++)
            if (!(fabsf(a[j] - b[j]) < 1e-5f))
                fail_msg("array %d, value %lld: %.9g, expected %.9g", i, (long long)j, (double)a[j],
                         (double)b[j]);
    }
    qn_scope_free(s);
    qn_device_close(device);
}

static void test_gradient(void **state)
{
    for (int64_t window = 0; window < 5; window += 2) check_gradient(window);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_definition), cmocka_unit_test(test_same_bits),
                                       cmocka_unit_test(test_gradient)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
