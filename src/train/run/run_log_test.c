/* The log of a training: what an event becomes, and what a log that goes on keeps of whatever lies there. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "format/files/mmap.h"
#include "tests/support/engine_help.h"
#include "tests/support/scratch.h"
#include "train/run/run_log.h"

static char *read_text(const char *path)
{
    char *bytes = NULL, *text;
    size_t n;
    qn_test_ok(qn_file_read(path, 1 << 30, &bytes, &n));
    text = qn_strndup(bytes, n);
    qn_free(bytes);
    return text;
}

static void events(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "log.jsonl");
    qn_run_log *l;
    const qn_train_step_report report = {
        .step = 3, .n_steps = 9, .loss = 1.0 / 3, .rate = NAN, .n_tokens = 7};
    qn_test_ok(qn_run_log_open(path, -1, &l));
    qn_test_ok(qn_run_log_put(l, &(qn_train_event){.kind = QN_TRAIN_EVENT_START}, "a=1\nb=x\"y\n"));
    qn_test_ok(qn_run_log_put(l, &(qn_train_event){.kind = QN_TRAIN_EVENT_STEP, .step = 3, .report = &report},
                              NULL));
    qn_test_ok(qn_run_log_put(
        l, &(qn_train_event){.kind = QN_TRAIN_EVENT_NOTE, .step = 3, .text = "\n{\x01\xff"}, NULL));
    qn_test_ok(qn_run_log_put(
        l,
        &(qn_train_event){.kind = QN_TRAIN_EVENT_VALID, .step = 3, .valid_loss = 0.1, .best_loss = INFINITY},
        NULL));
    qn_run_log_close(l);
    char *text = read_text(path), *rest = text;
    json_t *e[4];
    for (int i = 0; i < 4; i++) {
        char *line = strtok_r(i ? NULL : text, "\n", &rest);
        json_error_t error;
        assert_non_null(line);
        if (!(e[i] = json_loads(line, 0, &error))) fail_msg("%s: %s", error.text, line);
    }
    assert_null(strtok_r(NULL, "\n", &rest));
    json_t *settings = json_object_get(e[0], "settings");
    assert_string_equal(json_string_value(json_object_get(settings, "a")), "1");
    assert_string_equal(json_string_value(json_object_get(settings, "b")), "x\"y");
    assert_int_equal(json_object_size(settings), 2);
    assert_string_equal(json_string_value(json_object_get(e[1], "event")), "step");
    assert_true(json_real_value(json_object_get(e[1], "loss")) == 1.0 / 3); /* all bits */
    assert_true(json_is_null(json_object_get(e[1], "rate")));
    assert_int_equal(json_integer_value(json_object_get(e[1], "n_tokens")), 7);
    assert_string_equal(json_string_value(json_object_get(e[2], "text")), "\n{\x01\xef\xbf\xbd");
    assert_true(json_real_value(json_object_get(e[3], "valid_loss")) == 0.1);
    assert_true(json_is_null(json_object_get(e[3], "best_loss")));
    for (int i = 0; i < 4; i++) json_decref(e[i]);
    qn_free(text);
    qn_test_remove(folder);
}

static void kept(const char *folder, const char *was, size_t n, int64_t step, size_t want)
{
    const char *path = qn_test_write(folder, "log.jsonl", was, n);
    qn_run_log *l;
    qn_test_ok(qn_run_log_open(path, step, &l));
    qn_run_log_close(l);
    char *text = read_text(path);
    if (strlen(text) != want || memcmp(text, was, want) != 0)
        fail_msg("step %d: kept \"%s\" of \"%s\"", (int)step, text, was);
    qn_free(text);
}

static void goes_on(void **state)
{
    const char *folder = qn_test_scratch();
    static const char lines[] =
        "{\"step\":0}\n{\"step\":1,\"x\":[{}]}\n{\"step\":2}\n{\"step\":2}\n{\"step\":3}\n";
    const size_t n = strlen(lines), two = strlen("{\"step\":0}\n{\"step\":1,\"x\":[{}]}\n");
    kept(folder, lines, n, -1, 0);
    kept(folder, lines, n, 1, two);
    kept(folder, lines, n, 2, n - strlen("{\"step\":3}\n"));
    kept(folder, lines, n, 99, n);
    kept(folder, lines, n - 1, 99, n - strlen("{\"step\":3}\n")); /* the last was cut off */
    kept(folder, "", 0, 5, 0);
    static const char *const odd[] = {
        "x\n", "\n", "3\n", "[]\n", "{}\n", "{\"step\":\"1\"}\n", "{\"step\":1.5}\n"};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        char text[64];
        snprintf(text, sizeof text, "{\"step\":1}\n%s{\"step\":1}\n", odd[i]);
        kept(folder, text, strlen(text), 5, strlen("{\"step\":1}\n"));
    }
    /* Lines over the ends of chunks, and one without an end. */
    qn_buf b = {0};
    while (b.length < 200000) qn_buf_printf(&b, "{\"step\":%zu,\"pad\":\"%0*d\"}\n", b.length, 700, 0);
    kept(folder, b.data, b.length, 1 << 20, b.length);
    const size_t whole = b.length;
    while (b.length < 3000000) qn_buf_puts(&b, "0123456789012345678901234567890123456789");
    kept(folder, b.data, b.length, 1 << 20, whole);
    qn_buf_free(&b);
    qn_test_remove(folder);
}

static void one_writer(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "log.jsonl");
    qn_run_log *first, *second = NULL;
    qn_test_ok(qn_run_log_open(path, -1, &first));
    qn_test_ok(qn_run_log_put(first, &(qn_train_event){.kind = QN_TRAIN_EVENT_START}, ""));
    assert_int_equal(qn_run_log_open(path, -1, &second), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "another training is writing to it"));
    char *text = read_text(path); /* who is refused takes nothing away */
    assert_true(strlen(text) > 10);
    qn_free(text);
    qn_run_log_close(first);
    qn_test_ok(qn_run_log_open(path, 0, &second));
    qn_run_log_close(second);
    assert_int_equal(qn_run_log_open(qn_test_path(folder, "no/log"), 0, &second), QN_E_IO);
    assert_int_equal(qn_run_log_open(folder, 0, &second), QN_E_IO);
    qn_test_remove(folder);
}

static void out_of_memory(void **state)
{
    const char *folder = qn_test_scratch();
    static const char lines[] = "{\"step\":0}\n{\"step\":1}\n";
    const int64_t live = qn_mem_live_blocks();
    for (int64_t n = 1, reached = 1; reached; n++) {
        const char *path = qn_test_write(folder, "log.jsonl", lines, strlen(lines));
        const int64_t made = qn_mem_allocations();
        qn_run_log *l = NULL;
        qn_mem_fail_nth(n);
        qn_status status = qn_run_log_open(path, 1, &l);
        if (status == QN_OK) status = qn_run_log_put(l, &(qn_train_event){.kind = QN_TRAIN_EVENT_DONE}, NULL);
        qn_run_log_close(l);
        qn_mem_fail_nth(0);
        reached = qn_mem_allocations() - made >= n;
        assert_int_equal(status, reached ? QN_E_NOMEM : QN_OK);
        assert_int_equal(qn_mem_live_blocks(), live);
        char *text = read_text(path); /* what was there stays */
        assert_memory_equal(text, lines, strlen(lines));
        qn_free(text);
    }
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(events), cmocka_unit_test(goes_on),
                                       cmocka_unit_test(one_writer), cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests_name("run_log", tests, NULL, NULL);
}
