#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "cli/train/line_chart.h"
#include "cli/train/train_report.h"
#include "tests/support/scratch.h"

/* Two runs: the second goes on from step 3, so that steps 4 and 5 of the first are void. The last line is
 * cut. */
static const char log_text[] =
    "{\"event\":\"start\",\"step\":0,\"settings\":{\"rank\":\"8\",\"lr\":\"1e-05\"}}\n"
    "{\"event\":\"warning\",\"step\":0,\"text\":\"line 4 is <bad> & \\\"so\\\"\"}\n"
    "{\"event\":\"step\",\"step\":1,\"loss\":4.5,\"rate\":1e-5,\"grad_norm\":2,\"n_tokens\":10,\"n_counted\":"
    "4,"
    "\"seconds\":0.5}\n"
    "{\"event\":\"step\",\"step\":2,\"loss\":4.25,\"rate\":1e-5,\"grad_norm\":200,\"n_tokens\":10}\n"
    "{\"event\":\"something new\",\"step\":2}\n[1]\n\n"
    "{\"event\":\"step\",\"step\":3,\"loss\":4,\"rate\":1e-5,\"grad_norm\":1,\"n_tokens\":10}\n"
    "{\"event\":\"valid\",\"step\":3,\"valid_loss\":4.125}\n"
    "{\"event\":\"step\",\"step\":4,\"loss\":9,\"rate\":1e-5,\"grad_norm\":1}\n"
    "{\"event\":\"valid\",\"step\":4,\"valid_loss\":1}\n"
    "{\"event\":\"note\",\"step\":4,\"text\":\"gone\"}\n"
    "{\"event\":\"step\",\"step\":5,\"loss\":9,\"rate\":1e-5,\"grad_norm\":1}\n"
    "{\"event\":\"start\",\"step\":3,\"settings\":{\"rank\":\"16\",\"<b>\":\"</table>\"}}\n"
    "{\"event\":\"step\",\"step\":4,\"loss\":3.75,\"rate\":1e-5,\"grad_norm\":1,\"peak_memory_bytes\":2048}\n"
    "{\"event\":\"step\",\"step\":5,\"loss\":null,\"rate\":1e-5,\"grad_norm\":null}\n"
    "{\"event\":\"valid\",\"step\":5,\"valid_loss\":3.5}\n"
    "{\"event\":\"stopped\",\"step\":5}\n"
    "{\"event\":\"step\",\"step\":6,\"lo";

static void test_log(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_write_text(folder, "log.jsonl", log_text);
    qn_train_log log;
    assert_int_equal(qn_train_log_read(path, &log), QN_OK);
    qn_test_remove(folder);
    assert_int_equal(log.n_runs, 2);
    assert_int_equal(log.n_steps, 5);
    for (int i = 0; i < 5; i++) assert_int_equal(log.steps[i].step, i + 1);
    assert_true(log.steps[3].loss == 3.75 && isnan(log.steps[4].loss) && isnan(log.steps[4].grad_norm));
    assert_int_equal(log.n_valids, 2);
    assert_true(log.valids[0].loss == 4.125 && log.valids[1].loss == 3.5);
    assert_int_equal(log.n_notes, 1);
    assert_int_equal(log.peak_memory_bytes, 2048);
    assert_string_equal(json_string_value(json_object_get(json_object_get(log.start, "settings"), "rank")),
                        "16");
    assert_string_equal(json_string_value(json_object_get(log.end, "event")), "stopped");
    qn_train_log_free(&log);
    assert_int_equal(qn_train_log_read("no/such/log.jsonl", &log), QN_E_IO);
}

static int64_t count(const char *text, const char *what)
{
    int64_t n = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what)) n++;
    return n;
}

/* Of the i-th polyline. */
static int64_t count_points(const char *page, int i)
{
    const char *at = page;
    for (int k = 0; k <= i; k++) {
        at = strstr(at, "<polyline");
        assert_non_null(at);
        at += 9;
    }
    at = strstr(at, "points=\"") + 8;
    int64_t n = 0;
    for (; *at != '"'; at++) n += *at == ',';
    return n;
}

static qn_status make_page_of(const char *path, qn_buf *page)
{
    qn_train_report_about about = {{.model_path = "models/<tiny>/", .data_path = "data & more.jsonl"},
                                   {.architecture = "llama"}};
    qn_train_log log;
    qn_status status = qn_train_log_read(path, &log);
    if (status != QN_OK) return status;
    qn_train_report_put(page, &log, &about);
    qn_train_log_free(&log);
    return page->status;
}

static void make_page(const char *text, qn_buf *page)
{
    const char *folder = qn_test_scratch();
    assert_int_equal(make_page_of(qn_test_write_text(folder, "log.jsonl", text), page), QN_OK);
    qn_test_remove(folder);
}

static void test_page(void **state)
{
    qn_buf page = {0};
    make_page(log_text, &page);
    const char *text = page.data;
    assert_non_null(strstr(text, "<title>&#60;tiny&#62; on data &#38; more.jsonl</title>"));
    assert_int_equal(count(text, "<svg"), 4);
    assert_int_equal(count(text, "</svg>"), 4);
    assert_int_equal(count(text, "<polyline"), 6);
    assert_int_equal(count_points(text, 0), 4); /* step 5 has no finite loss */
    assert_int_equal(count_points(text, 1), 5); /* smoothed */
    assert_int_equal(count_points(text, 2), 2); /* validation */
    assert_int_equal(count_points(text, 4), 5); /* rate */
    assert_non_null(strstr(text, "3.5000 at step 5"));
    assert_non_null(strstr(text, "stopped, step 5"));
    assert_non_null(strstr(text, "&#60;bad&#62; &#38; &#34;so&#34;"));
    assert_null(strstr(text, "<bad>"));
    assert_null(strstr(text, "<script"));
    assert_null(strstr(text, "http:"));
    assert_null(strstr(text, "https:"));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf<"));
    assert_int_equal(count(text, "</table>"), 3);
    qn_buf_free(&page);
}

/* No step yet, and one step. */
static void test_short_logs(void **state)
{
    static const char *const texts[] = {
        "", "{\"event\":\"start\",\"step\":0}\n",
        "{\"event\":\"step\",\"step\":1,\"loss\":0,\"rate\":0,\"grad_norm\":0}\n"};
    for (int i = 0; i < 3; i++) {
        qn_buf page = {0};
        make_page(texts[i], &page);
        assert_int_equal(count(page.data, "nothing yet"), i < 2 ? 3 : 0);
        assert_null(strstr(page.data, "nan"));
        qn_buf_free(&page);
    }
}

static void test_many_points_become_means(void **state)
{
    enum { N = 5001 };
    static qn_chart_point points[N];
    qn_buf b = {0};
    for (int i = 0; i < N; i++) points[i] = (qn_chart_point){i + 1, 1 + i % 2};
    const qn_chart_series s = {.name = "x", .points = points, .n = N};
    qn_line_chart_put(&b, "n", &s, 1, 0);
    assert_int_equal(count_points(b.data, 0), N / 3);
    qn_buf_free(&b);
}

static void test_failing_allocations(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_write_text(folder, "log.jsonl", log_text);
    const int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int64_t n = 1; n < 2000 && status != QN_OK; n++) {
        qn_buf page = {0};
        qn_mem_fail_nth(n);
        status = make_page_of(path, &page);
        qn_mem_fail_nth(0);
        qn_buf_free(&page);
        assert_int_equal(qn_mem_live_blocks(), before);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
    }
    assert_int_equal(status, QN_OK);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_page),
        cmocka_unit_test(test_short_logs),
        cmocka_unit_test(test_many_points_become_means),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
