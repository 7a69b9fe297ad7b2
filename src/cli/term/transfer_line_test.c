/* The line of a fetch: what it shows, and that it never is wider than it may be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "cli/term/transfer_line.h"

static const int64_t mb = 1000000;

static void expect(const qn_hub_progress *p, double rate, int columns, const char *want)
{
    qn_buf b = {0};
    qn_transfer_line_text(&b, p, rate, columns);
    assert_string_equal(b.data ? b.data : "", want);
    qn_buf_free(&b);
}

static void test_wide_lines(void **state)
{
    const qn_hub_progress half = {.done_bytes = 1250 * mb, .total_bytes = 2500 * mb};
    const qn_hub_progress begun = {.total_bytes = 2500 * mb},
                          over = {.done_bytes = 5, .total_bytes = 5, .is_checking = 1};
    const qn_hub_progress waits = {.done_bytes = 5, .total_bytes = 10, .wait_s = 12}, asks = {.wait_s = 12};
    expect(&half, 50e6, 79, " 50%  [==============>             ]  1.2 GB of 2.5 GB  50.0 MB/s  0:25 left");
    expect(&begun, 0, 79, "  0%  [>                           ]  0 B of 2.5 GB");
    expect(&begun, 1e5, 79, "  0%  [>                           ]  0 B of 2.5 GB  100 kB/s  6:56:40 left");
    expect(&over, 1, 79, "100%  [============================]  5 B of 5 B  checking the sum");
    expect(&waits, 1, 79, " 50%  [==============>             ]  5 B of 10 B  waiting 12 s");
    expect(&asks, 1, 79, "the server asks to wait");
}

static void test_narrow_lines(void **state)
{
    const qn_hub_progress half = {.done_bytes = 1250 * mb, .total_bytes = 2500 * mb};
    expect(&half, 50e6, 40, " 50%  1.2 GB of 2.5 GB  50.0 MB/s");
    expect(&half, 50e6, 22, " 50%  1.2 GB of 2.5 GB");
    expect(&half, 50e6, 21, " 50%  [======>      ]");
    expect(&half, 50e6, 4, " 50%");
    for (int columns = 4; columns < 200; columns++)
        for (double rate = 0; rate < 1e12; rate = 10 * rate + 1) {
            qn_buf b = {0};
            qn_transfer_line_text(&b, &half, rate, columns);
            assert_true(b.status == QN_OK && b.length <= (size_t)columns);
            qn_buf_free(&b);
        }
}

static void test_memory_runs_out(void **state)
{
    const qn_hub_progress half = {.done_bytes = 1, .total_bytes = 2};
    for (int n = 1;; n++) {
        qn_buf b = {0};
        const int64_t live = qn_mem_live_blocks();
        qn_mem_fail_nth(n);
        qn_transfer_line_text(&b, &half, 1, 79);
        qn_mem_fail_nth(0);
        const qn_status status = b.status;
        qn_buf_free(&b);
        assert_int_equal(qn_mem_live_blocks(), live);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wide_lines),
        cmocka_unit_test(test_narrow_lines),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
