#include "tests/devices/other_golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "device/cpu/kernels/kernels.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

/* In float32 arithmetic logits of up to 20 stay within this; relative L2 of the others as the fixtures'
 * README has it for MLX's types, but for routers that decide otherwise by a hair, which the golden ids avoid.
 */
static const double exact_tolerance = 1e-3, relative_tolerance = 2e-2;

/* A copy of a tensor's data, which mlx_lm lays at any address. */
static void *aligned_copy(const qn_tensor_view *v)
{
    void *copy = test_calloc(v->size_bytes, 1);
    memcpy(copy, v->data, v->size_bytes);
    return copy;
}

void qn_test_other_golden_with(const char *folder, const char *set, qn_engine_options o)
{
    char path[256];
    qn_safetensors *st;
    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    qn_test_ok(qn_safetensors_open(path, &st));
    const qn_tensor_view *logits = qn_test_tensor(st, "logits", 0);
    const int64_t n_ids = qn_test_tensor(st, "ids", 0)->n_elements,
                  n_greedy = qn_test_tensor(st, "greedy", 0)->n_elements;
    int32_t *ids = aligned_copy(qn_test_tensor(st, "ids", 0)),
            *greedy = aligned_copy(qn_test_tensor(st, "greedy", 0)), picked[64];
    float *want = aligned_copy(logits), *got = test_calloc((size_t)logits->n_elements, sizeof *got);
    qn_engine *e = qn_test_engine(folder, set, o);
    double worst = 0, error = 0, all = 0;
    qn_test_logits(e, ids, n_ids, 0, got);
    for (int64_t i = 0; i < logits->n_elements; i++) {
        const double d = (double)got[i] - want[i];
        worst = fmax(worst, fabs(d));
        error += d * d;
        all += (double)want[i] * want[i];
    }
    const char *where = o.device ? o.device
                        : set    ? set
                                 : "",
               *precision = qn_test_precision_name(o.precision);
    print_message("%s %s %s: largest difference %.2g\n", folder, where, precision, worst);
    if (o.precision == QN_PRECISION_EXACT) {
        if (!(worst <= exact_tolerance)) fail_msg("%s: logits differ by %g", where, worst);
        assert_true(n_greedy <= 64);
        qn_test_greedy(e, ids, 12, picked, n_greedy);
        for (int64_t k = 0; k < n_greedy; k++) assert_int_equal(picked[k], greedy[k]);
    } else if (!(sqrt(error / all) <= relative_tolerance)) {
        fail_msg("%s %s: relative L2 %g", where, precision, sqrt(error / all));
    }
    qn_engine_close(e);
    test_free(ids);
    test_free(greedy);
    test_free(want);
    test_free(got);
    qn_safetensors_close(st);
}

void qn_test_other_golden(const char *folder)
{
    for (const char *const *set = qn_kernels_names(); *set; set++)
        for (int p = 0; p < 3; p++)
            qn_test_other_golden_with(folder, *set,
                                      (qn_engine_options){.precision = (qn_precision)p, .n_threads = 2});
}
