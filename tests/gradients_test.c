/* Every primitive's gradient and tangent is stated: by a rule, by its fallback, or not, and why. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include "array/tape.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

static void all_is_stated(void **state)
{
    static qn_stated (*const table[3])(qn_prim prim, const char **why) = {
        qn_gradient_stated, qn_tangent_stated, qn_fallback_stated};
    static const char *const what[3] = {"gradient", "tangent", "fallback"};
    for (int p = 0; p < QN_PRIM_COUNT; p++)
        for (int t = 0; t < 3; t++) {
            const char *name = qn_prim_get((qn_prim)p)->name, *why, *fallback;
            switch (table[t]((qn_prim)p, &why)) {
            case QN_UNSTATED:
                fail_msg("the %s of %s is not stated", what[t], name);
                break;
            case QN_BY_RULE:
                break;
            case QN_BY_ITS_FALLBACK:
                if (t == 2 || qn_fallback_stated((qn_prim)p, &fallback) != QN_BY_RULE)
                    fail_msg("the %s of %s is by a fallback that is not there", what[t], name);
                break;
            case QN_STATED_NONE:
                if (!why || !*why) fail_msg("why %s has no %s is not said", name, what[t]);
                break;
            }
        }
}

/* A gradient goes through a narrow type and comes back in the type of what was cast. */
static void casts(void **state)
{
    static const qn_dtype narrow[2] = {QN_DTYPE_F16, QN_DTYPE_BF16};
    qn_device *d;
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = 1}, &d));
    for (int i = 0; i < 2; i++) {
        qn_scope *s = qn_scope_new(d);
        const int64_t n = 3;
        qn_array *x = qn_from_data(s, QN_DTYPE_F32, qn_shape_make(1, &n), (float[]){1, -0.5f, 1.0001f});
        qn_array *g = qn_from_data(s, QN_DTYPE_F32, qn_shape_make(1, &n), (float[]){2, 3, 4}), *out[3];
        qn_array *y = qn_apply(s, QN_PRIM_CAST, NULL, 1, &x, NULL, narrow[i]);
        out[0] = qn_apply(s, QN_PRIM_CAST, NULL, 1, &y, NULL, QN_DTYPE_F32);
        OK(qn_vjp(s, out[0], g, 1, &x, &out[1]));
        OK(qn_jvp(s, out[0], 1, &x, &g, &out[2]));
        assert_int_equal(qn_array_dtype(y), narrow[i]);
        assert_int_equal(qn_array_dtype(out[1]), QN_DTYPE_F32);
        OK(qn_eval(s, 3, out));
        assert_memory_equal(qn_array_data(out[0]), ((float[]){1, -0.5f, 1}), 12);
        assert_memory_equal(qn_array_data(out[1]), ((float[]){2, 3, 4}), 12);
        assert_memory_equal(qn_array_data(out[2]), ((float[]){2, 3, 4}), 12);
        qn_scope_free(s);
    }
    qn_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_is_stated), cmocka_unit_test(casts)};
    return cmocka_run_group_tests_name("gradients", tests, NULL, NULL);
}
