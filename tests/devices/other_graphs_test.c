/* 300 random graphs of 5 to 30 primitives, on another device and on the CPU with the scalar set: every result
 * agrees to a share of its largest number (of 1 if that is less). QN_SEED=n in the environment makes others;
 * of a graph that fails the smallest one is shown that does. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "array/program.h"
#include "tests/devices/other_compare.h"
#include "tests/primitives/random_graphs.h"

enum { GRAPHS = 300, COMPILED_GRAPHS = 4, WHY = 1600 };
static const qn_sizes sizes = {.v = {[QN_SYM_S] = 1}}; /* what has sequences has one */

static uint64_t first_seed = 1;

static int use_seed(void **state)
{
    const char *text = getenv("QN_SEED");
    if (text) first_seed = strtoull(text, NULL, 10);
    return 0;
}

/* ---- a graph on two devices --------------------------------------------------------------------------- */

typedef struct {
    qn_scope *scope;
    qn_graph_built built;
    qn_program *program;
} side;

typedef struct {
    qn_device *reference, *other;
    double tolerance;
    int wrong; /* what the other computes wrong, to see that it is found; -1: nothing */
    char why[WHY];
} sides;

static void close_side(side *s)
{
    qn_program_free(s->program);
    if (s->scope) qn_scope_free(s->scope);
}

static qn_status run_side(side *s, qn_device *device, const qn_graph *g, int wrong)
{
    *s = (side){.scope = qn_scope_new(device), .built = {.wrong = wrong}};
    if (!s->scope) return QN_E_NOMEM;
    qn_graph_build(g, s->scope, &s->built);
    QN_TRY(qn_scope_status(s->scope));
    const qn_program_options o = {.name = "graph", .max = sizes, .precision = QN_PRECISION_EXACT};
    QN_TRY(qn_program_new(s->scope, &o, s->built.n_out, s->built.out, &s->program));
    return qn_program_run(s->program, &sizes);
}

static int differ(const side *got, const side *want, double tolerance, char *why)
{
    for (int i = 0; i < want->built.n_out; i++) {
        const qn_dtype dtype = qn_array_dtype(want->built.out[i]);
        const int64_t n = qn_shape_elements(qn_array_shape(want->built.out[i]), NULL);
        const void *a = qn_program_output(got->program, i), *b = qn_program_output(want->program, i);
        const qn_test_tolerance t = {tolerance, fmax(1, qn_test_largest(dtype, n, b))};
        char where[256];
        if (!qn_test_differ(dtype, n, a, b, t, where)) continue;
        snprintf(why, WHY, "result %d: %s", i, where);
        return 1;
    }
    return 0;
}

static int fails(void *user, const qn_graph *g)
{
    sides *d = user;
    side want, got = {0};
    int bad = 0;
    if (run_side(&want, d->reference, g, -1) != QN_OK)
        fail_msg("a graph that the CPU does not compute: %s\n%s", qn_last_error(), want.built.text);
    if (run_side(&got, d->other, g, d->wrong) != QN_OK) {
        snprintf(d->why, WHY, "%s", qn_last_error());
        bad = 1;
    } else {
        bad = differ(&got, &want, d->tolerance, d->why);
    }
    close_side(&got);
    close_side(&want);
    return bad;
}

static void report(sides *d, qn_graph g, uint64_t seed)
{
    qn_graph_built built = {.wrong = -1};
    qn_graph_shrink(&g, fails, d);
    fails(d, &g);
    qn_scope *s = qn_scope_new(d->reference);
    qn_graph_build(&g, s, &built);
    qn_scope_free(s);
    fail_msg("graph %llu, made smaller (dimensions up to %lld):\n%s%s\n  QN_SEED=%llu repeats it",
             (unsigned long long)seed, (long long)g.limit, built.text, d->why,
             (unsigned long long)first_seed);
}

/* ---- tests -------------------------------------------------------------------------------------------- */

static void agree(int compile, int n_graphs)
{
    qn_test_pair pair = qn_test_pair_open(compile);
    sides d = {pair.cpu, pair.other, qn_test_bound_of(QN_TEST_GRAPH), -1, ""};
    int n_prims = 0, n_known = 0;
    uint8_t used[QN_PRIM_COUNT] = {0};
    for (int i = 0; i < n_graphs; i++) {
        const uint64_t seed = first_seed * 100003 + (uint64_t)i;
        qn_graph g;
        qn_graph_built built = {.wrong = -1};
        qn_graph_random(seed, &g);
        if (fails(&d, &g)) report(&d, g, seed);
        qn_scope *s = qn_scope_new(pair.cpu);
        qn_graph_build(&g, s, &built);
        qn_scope_free(s);
        if (built.n_prims < QN_GRAPH_LEAST || built.n_prims > QN_GRAPH_MOST)
            fail_msg("graph %llu has %d primitives", (unsigned long long)seed, built.n_prims);
        n_prims += built.n_prims;
        for (int p = 0; p < QN_PRIM_COUNT; p++) used[p] |= built.used[p];
    }
    for (int p = 0; p < QN_PRIM_COUNT; p++) n_known += used[p];
    printf("QN_SEED=%llu: %d graphs of %d primitives in all, %d different ones, agree to %g\n",
           (unsigned long long)first_seed, n_graphs, n_prims, n_known, d.tolerance);
    qn_test_pair_close(&pair);
}

static void graphs_agree(void **state)
{
    agree(0, GRAPHS);
}

static void compiled_graphs_agree(void **state)
{
    if (qn_test_other()->compile_variable) agree(1, COMPILED_GRAPHS);
}

/* A device that computes one kind of node wrong is found, and what is shown is hardly more than that node.
 * Without another device as well. */
static void failures_are_made_small(void **state)
{
    qn_device *cpu = NULL;
    if (qn_device_open("cpu", &(qn_device_options){.n_threads = 1}, &cpu) != QN_OK)
        fail_msg("%s", qn_last_error());
    for (int kind = 0; kind < qn_graph_kinds(); kind++) {
        sides d = {cpu, cpu, 1e-4, kind, ""};
        qn_graph g;
        int first = 0, kinds_left = 0;
        uint64_t seed = first_seed;
        do qn_graph_random(++seed, &g);
        while (!fails(&d, &g) && seed < first_seed + 1000);
        first = g.n;
        if (!fails(&d, &g)) fail_msg("%s is in no graph, or is not seen", qn_graph_kind_name(kind));
        qn_graph_shrink(&g, fails, &d);
        for (int i = 0; i < g.n; i++) kinds_left += g.node[i].kind == kind;
        if (!fails(&d, &g) || g.n != 1 || kinds_left != 1 || g.limit != 1)
            fail_msg("%s: %d nodes became %d", qn_graph_kind_name(kind), first, g.n);
    }
    qn_device_close(cpu);
}

int main(void)
{
    const struct CMUnitTest own[] = {
        cmocka_unit_test(failures_are_made_small),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_agree),
        cmocka_unit_test(compiled_graphs_agree),
    };
    const int n_failed = cmocka_run_group_tests(own, use_seed, NULL);
    return n_failed + qn_test_run_others("graphs", tests, sizeof tests / sizeof *tests, NULL, NULL);
}
