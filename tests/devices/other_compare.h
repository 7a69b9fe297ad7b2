/* Tests of any device beside the CPU: which devices are tested, what is expected of each, and comparisons of
 * its results with those of "cpu" with the scalar instruction set, which is the reference. One thread. */
#ifndef QUERN_TESTS_OTHER_COMPARE_H
#define QUERN_TESTS_OTHER_COMPARE_H

#include "device/device.h"
#include "prim/prim.h"

/* ---- the device that is tested ------------------------------------------------------------------------ */

/* How far results may be off. Relative to the largest number of a result, unless the line says otherwise. */
typedef enum {
    QN_TEST_F16, /* primitives by the type of their numbers, of each number if elements do not meet */
    QN_TEST_BF16,
    QN_TEST_F32,
    QN_TEST_F64,
    QN_TEST_SUM,         /* sums, softmax and norms of long lines; chains of elementwise primitives */
    QN_TEST_GRAPH,       /* random graphs, and 1 if their largest number is less */
    QN_TEST_PAGES,       /* attention over pages */
    QN_TEST_SLOTS,       /* recurrent layers */
    QN_TEST_MATMUL_F32,  /* products of arrays */
    QN_TEST_MATMUL_BF16, /* these are rounded behind the product */
    QN_TEST_MATMUL_F64,  /* absolute */
    QN_TEST_PRODUCT,     /* products with weights, additions of adapters, losses by a head */
    QN_TEST_LOGITS,      /* absolute: logits of whole models */
    QN_TEST_LOGITS_WIDE, /* absolute: of the kinds whose golden tolerance is wide (tests/support/models/golden_states.h) */
    QN_TEST_LOSS, /* training beside peft: see qn_lora_bounds */
    QN_TEST_GRADIENT,
    QN_TEST_WEIGHT,
    QN_TEST_TOLERANCES
} qn_test_bound;

/* The process's memory as the device's own library counts it. */
typedef struct {
    size_t active_bytes, peak_bytes, cache_bytes;
} qn_test_usage;

/* What the tests expect of a device: a row of the table in other_compare.c, its gaps filled with the defaults
 * that stand behind the fields. */
typedef struct {
    const char *name;
    double tolerance[QN_TEST_TOLERANCES]; /* 0: the usual one */
    /* Primitives whose results may differ though tests/devices/other_primitives_test.c says EXACT. NULL: none. */
    const qn_prim *inexact;
    int n_inexact;
    /* Part of the sentence that refuses f64. NULL: f64 is computed. */
    const char *f64_refusal;
    /* Part of the sentence that refuses keys and values of q8_0 and q4_0. NULL: they are taken. */
    const char *kv_refusal;
    /* What an element of a weight of bf16 may differ by, as a share of its row's largest. */
    double row_loss;
    /* A variable of the environment, 1 or 0: chains are compiled or not. NULL: there is no such choice. */
    const char *compile_variable;
    /* Sums depend on the batch: what a sequence gets in company may have other bits. */
    int sums_by_batch;
    /* The memory of states is taken as units are written, and the ledger counts what is spare as keys. */
    int counts_spare;
    /* It says how much memory it has taken. NULL: it does not. */
    void (*get_usage)(qn_test_usage *out);
} qn_test_expectations;

/* Runs the tests once for each device of the registry that opens, without "cpu", or for $QN_TEST_DEVICE alone.
 * Returns how many failed. If no device opens, the tests run once, and those that call qn_test_other are
 * skipped. */
struct CMUnitTest;
int qn_test_run_others(const char *group, const struct CMUnitTest *tests, size_t n_tests,
                       int (*setup)(void **), int (*teardown)(void **));

/* The device of the group that runs. If none opens, the running test ends as skipped, with one line that says
 * why. */
const qn_test_expectations *qn_test_other(void);
double qn_test_bound_of(qn_test_bound which);
int qn_test_may_differ(qn_prim prim);
/* 1: this is how the device refuses what it has no type for. The last error of this thread is read. */
int qn_test_refuses_f64(qn_status status);
/* 0 and zeros: the device does not tell. */
int qn_test_get_usage(qn_test_usage *out);

/* ---- two devices side by side ------------------------------------------------------------------------- */

typedef struct {
    qn_device *cpu, *other;
} qn_test_pair;

/* Opens "cpu" with the scalar set, and the device that is tested. compile: it compiles chains, if it has the
 * choice (on MLX's CPU by a compiler of the machine). */
qn_test_pair qn_test_pair_open(int compile);
void qn_test_pair_close(qn_test_pair *p);

/* By how much numbers may differ: relative * the larger one of |want| and least. Integers not at all; NaN
 * meets NaN, and an infinity its like. */
typedef struct {
    double relative, least;
} qn_test_tolerance;
/* got and want [n] of one plain type. 1: they differ, and why (256 bytes) says where. */
int qn_test_differ(qn_dtype dtype, int64_t n, const void *got, const void *want, qn_test_tolerance t,
                   char *why);
/* The largest |x| of n numbers that is finite. */
double qn_test_largest(qn_dtype dtype, int64_t n, const void *x);

#endif
