/* Arrays, gradients, one compiled program: fits a curve with a small network.
 * Build: cc arrays.c $(pkg-config --cflags --libs quern) -o arrays */
#include <quern/quern.h>
#include <stdio.h>

enum { POINTS = 64, WIDTH = 16, STEPS = 2000, N = 4 };

/* in: x [POINTS, 1], y [POINTS, 1], then the N arrays of the network; out[0]: the mean squared error. */
static qn_status loss(void *user, qn_scope *s, int n_in, qn_array *const *in, int n_out, qn_array **out)
{
    qn_array *hidden = qn_tanh(s, qn_add(s, qn_matmul(s, in[0], in[2]), in[3]));
    qn_array *wrong_by = qn_sub(s, qn_add(s, qn_matmul(s, hidden, in[4]), in[5]), in[1]);
    out[0] = qn_scale(s, qn_sum(s, qn_mul(s, wrong_by, wrong_by), 0), 1.0 / POINTS);
    return qn_scope_status(s);
}

/* The same inputs; out: the error, and the network a step further. */
static qn_status descend(void *user, qn_scope *s, int n_in, qn_array *const *in, int n_out, qn_array **out)
{
    static const int network[N] = {2, 3, 4, 5};
    qn_array *grads[N];
    qn_status status = qn_value_and_grad(s, loss, NULL, n_in, in, N, network, 1, out, grads);
    for (int i = 0; i < N && status == QN_OK; i++)
        out[1 + i] = qn_sub(s, in[2 + i], qn_scale(s, grads[i], 0.1));
    return status == QN_OK ? qn_scope_status(s) : status;
}

static qn_status fit(qn_scope *s, qn_compiled *step)
{
    qn_array *x = qn_reshape(s, qn_linspace(s, QN_DTYPE_F32, -1, 1, POINTS), 2, (int64_t[]){POINTS, 1});
    qn_array *slopes = qn_linspace(s, QN_DTYPE_F32, -4, 4, WIDTH);
    qn_array *in[2 + N] = {x,
                           qn_mul(s, x, qn_mul(s, x, x)), /* the curve: x^3 */
                           qn_reshape(s, slopes, 2, (int64_t[]){1, WIDTH}),
                           qn_linspace(s, QN_DTYPE_F32, 1, -1, WIDTH),
                           qn_zeros(s, QN_DTYPE_F32, 2, (int64_t[]){WIDTH, 1}),
                           qn_zeros(s, QN_DTYPE_F32, 1, (int64_t[]){1})};
    qn_array *out[1 + N];
    const int64_t mark = qn_scope_mark(s);
    for (int i = 0; i < STEPS; i++) {
        qn_status status = qn_compiled_call(step, s, 2 + N, in, out);
        if (status != QN_OK) return status;
        for (int k = 0; k < N; k++) in[2 + k] = out[1 + k];
        qn_scope_sweep(s, mark, 1 + N, out); /* the last step's arrays go */
        double error;
        if (i % 500 && i + 1 < STEPS) continue;
        if ((status = qn_array_item(s, out[0], &error)) != QN_OK) return status;
        printf("step %4d: error %.6f\n", i, error);
    }
    const qn_compiled_figures figures = qn_compiled_get_figures(step);
    printf("%lld calls of %lld program; the last layer:\n%s\n", (long long)figures.n_calls,
           (long long)figures.n_plans, qn_array_text(s, qn_transpose(s, in[4])));
    return qn_scope_status(s);
}

int main(void)
{
    qn_scope *s = NULL;
    qn_compiled *step = NULL;
    qn_status status = qn_scope_open(0, 0, &s);
    if (status == QN_OK) status = qn_compile(s, descend, NULL, 1 + N, NULL, &step);
    if (status == QN_OK) status = fit(s, step);
    if (status != QN_OK) fprintf(stderr, "arrays: %s\n", qn_last_error());
    qn_compiled_free(step);
    qn_scope_close(s);
    return status == QN_OK ? 0 : 1;
}
