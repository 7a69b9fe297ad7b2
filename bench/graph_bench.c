/* What a graph costs before it is computed: nanoseconds a node to build it, and to make a plan of it.
 *
 *     graph_bench [NODES]
 *
 * Three shapes of graphs: a chain of element-wise steps with shared inputs, layers of products and norms as
 * models have them, and the chain's gradient. Each is built and planned again and again; the fastest of the
 * rounds counts. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "array/array.h"
#include "array/program.h"

enum { NODES_IN_ALL = 300000 };

/* Of this thread alone: all of the work is its own, and the machine may have others. */
static int64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The device's part of a plan: fixing addresses, asking each primitive what it needs. */
static qn_device_ops timed;
static const qn_device_ops *own;
static int64_t compile_ns;

static qn_status timed_compile(qn_device *d, const qn_plan *plan, qn_exec **out)
{
    int64_t begin = thread_ns();
    qn_status status = own->compile(d, plan, out);
    compile_ns = thread_ns() - begin;
    return status;
}

static qn_array *chain(qn_scope *s, qn_array *x, qn_array *w, int n)
{
    for (int i = 0; i < n; i += 4) {
        qn_array *y = qn_add(s, qn_mul(s, x, w), x);
        x = qn_sub(s, qn_unary(s, QN_PRIM_TANH, y), w);
    }
    return x;
}

static qn_array *layers(qn_scope *s, qn_array *x, qn_array *w, int n)
{
    for (int i = 0; i < n; i += 7) {
        qn_array *y = qn_rms_norm(s, x, NULL, 1e-5f, 0);
        y = qn_matmul(s, y, qn_transpose(s, w));
        y = qn_unary(s, QN_PRIM_SILU, qn_reshape_sym(s, y, *qn_array_shape(x)));
        x = qn_add(s, x, qn_softmax(s, y));
    }
    return x;
}

static qn_array *with_gradient(qn_scope *s, qn_array *x, qn_array *w, int n)
{
    qn_array *g = NULL;
    if (qn_vjp(s, chain(s, x, w, n / 4), x, 1, &w, &g) != QN_OK) return NULL;
    return g;
}

static int measure(qn_device *d, const char *name,
                   qn_array *(*build)(qn_scope *, qn_array *, qn_array *, int), int n)
{
    double best_build = 1e9, best_plan = 1e9, best_compile = 1e9, best_free = 1e9;
    int64_t nodes = 0;
    int steps = 0;
    for (int round = 0; round * n < NODES_IN_ALL; round++) {
        qn_scope *s = qn_scope_new(d);
        float zeros[64] = {0};
        qn_array *x = qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){8, 8}, zeros);
        qn_array *w = qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){8, 8}, zeros);
        int64_t before = qn_scope_mark(s), t0 = thread_ns();
        qn_array *out = build(s, x, w, n);
        int64_t t1 = thread_ns();
        nodes = qn_scope_mark(s) - before;
        qn_program *p = NULL;
        qn_program_options o = {.name = "bench"};
        if (!out || qn_program_new(s, &o, 1, &out, &p) != QN_OK) {
            fprintf(stderr, "graph_bench: %s\n", qn_last_error());
            qn_scope_free(s);
            return 1;
        }
        int64_t t2 = thread_ns();
        steps = qn_program_steps(p);
        qn_program_free(p);
        qn_scope_free(s);
        int64_t t3 = thread_ns();
        double build_ns = (double)(t1 - t0) / (double)nodes,
               plan_ns = (double)(t2 - t1 - compile_ns) / (double)nodes,
               device_ns = (double)compile_ns / (double)nodes, free_ns = (double)(t3 - t2) / (double)nodes;
        if (build_ns < best_build) best_build = build_ns;
        if (plan_ns < best_plan) best_plan = plan_ns;
        if (device_ns < best_compile) best_compile = device_ns;
        if (free_ns < best_free) best_free = free_ns;
    }
    printf("%-10s %8lld nodes %8d steps: build %4.0f + plan %4.0f = %4.0f ns a node, the device's part "
           "%4.0f, free "
           "%.0f\n",
           name, (long long)nodes, steps, best_build, best_plan, best_build + best_plan, best_compile,
           best_free);
    return 0;
}

int main(int argc, char **argv)
{
    int n = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 10000;
    qn_device *d = NULL;
    if (qn_device_open("cpu", &(qn_device_options){.n_threads = 1}, &d) != QN_OK) {
        fprintf(stderr, "graph_bench: %s\n", qn_last_error());
        return 1;
    }
    own = d->ops;
    timed = *own;
    timed.compile = timed_compile;
    d->ops = &timed;
    int failed = measure(d, "chain", chain, n) || measure(d, "layers", layers, n) ||
                 measure(d, "gradient", with_gradient, n);
    qn_device_close(d);
    return failed;
}
