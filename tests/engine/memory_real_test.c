/* A real model under a limit of its weights and 64 MiB, through the public API. */
#include <quern/quern.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { PROMPT = 1600, SHORT = 16, MIB = 1 << 20 };

/* How a generation ended: its status, with the end and the number of new tokens. */
static qn_status generate(qn_model *model, int64_t n_prompt, int64_t max_tokens, qn_end *end, int64_t *n_new)
{
    static int32_t ids[PROMPT];
    for (int i = 0; i < PROMPT; i++) ids[i] = 100 + i * 7 % 4000;
    qn_ids row = {ids, n_prompt};
    qn_generate_options o = {.max_tokens = max_tokens, .ignore_eos = 1};
    qn_generation *g = NULL;
    qn_token t = {.end = QN_END_NONE};
    qn_status status = QN_OK;
    qn_test_ok(qn_generation_open(model, &(qn_prompt){.rows = &row, .n_rows = 1}, &o, &g));
    for (*n_new = 0; t.end == QN_END_NONE; *n_new += t.end == QN_END_NONE) status = qn_generation_next(g, &t);
    *end = t.end;
    qn_generation_close(g);
    return status;
}

static qn_memory memory_of(const qn_model *model)
{
    qn_memory m;
    qn_test_ok(qn_model_get_memory(model, &m));
    return m;
}

/* The limit comes when the model is open, with all of its context promised. */
static void limit_set_later(void **state)
{
    qn_model *model = NULL;
    qn_end end;
    int64_t n;
    qn_test_ok(qn_model_open(qn_test_need_model("smollm2"), NULL, &model));
    size_t limit = memory_of(model).weights_bytes + 64 * MIB;
    qn_test_ok(qn_model_set_memory_limit(model, limit, NULL));
    assert_int_equal(generate(model, PROMPT, 0, &end, &n), QN_E_NOMEM);
    assert_int_equal(end, QN_END_ERROR);
    if (!strstr(qn_last_error(), "memory limit: kv needs ")) fail_msg("%s", qn_last_error());
    assert_true(n > 0 && n < 4000);
    assert_int_equal(generate(model, 40, SHORT, &end, &n), QN_OK);
    assert_int_equal(end, QN_END_LENGTH);
    assert_true(memory_of(model).peak_memory_bytes <= limit);
    qn_test_ok(qn_model_clear_cache(model));
    assert_int_equal(memory_of(model).cache_memory_bytes, 0);
    assert_int_equal(memory_of(model).kv_bytes, 0);
    qn_model_close(&model);
}

/* Opened under the limit, it has a context that fits; more is refused at once. */
static void limit_at_open(void **state)
{
    qn_model *model = NULL;
    qn_model_info info;
    qn_end end;
    int64_t n;
    const char *path = qn_test_need_model("smollm2");
    qn_test_ok(qn_model_open(path, NULL, &model));
    size_t limit = memory_of(model).weights_bytes + 64 * MIB;
    qn_model_close(&model);
    qn_model_options o = {.memory_limit_bytes = limit};
    qn_test_ok(qn_model_open(path, &o, &model));
    qn_test_ok(qn_model_get_info(model, &info));
    assert_true(info.context_size > PROMPT && info.context_size < info.model_context_size);
    assert_non_null(strstr(info.notes, "memory"));
    assert_int_equal(generate(model, PROMPT, info.context_size, &end, &n), QN_OK);
    assert_int_equal(end, QN_END_LENGTH);
    assert_true(memory_of(model).peak_memory_bytes <= limit);
    qn_model_close(&model);
    o.context_size = info.model_context_size;
    assert_int_equal(qn_model_open(path, &o, &model), QN_E_NOMEM);
    if (!strstr(qn_last_error(), "for keys, values")) fail_msg("%s", qn_last_error());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(limit_set_later), cmocka_unit_test(limit_at_open)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
