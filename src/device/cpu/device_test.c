/* Opening the device: the limit of its own ledger, and which kernels there are under one. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdlib.h>

#include "base/mem.h"
#include "device/cpu/cpu.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

static const qn_kernels *kernels_under(size_t limit_bytes)
{
    qn_device *d;
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = 2, .memory_limit_bytes = limit_bytes}, &d));
    const qn_kernels *k = ((qn_cpu *)d)->kernels;
    assert_int_equal(qn_ledger_get_limit(d->ledger), limit_bytes);
    qn_device_close(d);
    return k;
}

/* On every set: lean kernels, where there are such, take the place of those whose form of the rows is large
 * beside the limit. */
static void lean_under_a_tight_limit(void **state)
{
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        setenv("QUERN_CPU", *set, 1);
        assert_ptr_equal(kernels_under(0), k);
        assert_ptr_equal(kernels_under((size_t)1 << 40), k);
        assert_ptr_equal(kernels_under(1 << 20), k->lean ? k->lean : k);
        if (k->lean) assert_true(k->rows_bytes > 0 && k->lean->rows_bytes == 0);
    }
    unsetenv("QUERN_CPU");
}

/* A ledger of the caller's stays the caller's. */
static void ledgers(void **state)
{
    const int64_t before = qn_mem_live_blocks();
    qn_ledger *ledger = qn_ledger_new();
    qn_device *d;
    assert_non_null(ledger);
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = 1, .ledger = ledger}, &d));
    assert_ptr_equal(d->ledger, ledger);
    qn_device_close(d);
    assert_int_equal(qn_ledger_get_limit(ledger), 0);
    qn_ledger_free(ledger);
    assert_int_equal(qn_mem_live_blocks(), before);
    qn_status status = QN_E_NOMEM;
    for (int n = 1; status != QN_OK && n < 20; n++) {
        qn_mem_fail_nth(n);
        status = qn_device_open("cpu", &(qn_device_options){.n_threads = 2}, &d);
        qn_mem_fail_nth(0);
        if (status == QN_OK) qn_device_close(d);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    OK(status);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lean_under_a_tight_limit),
        cmocka_unit_test(ledgers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
