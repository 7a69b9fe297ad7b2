/* A list's results come once each and in order, however it is cut into parts; failures stay with their items;
 * and every item that was made is ended. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <quern/quern.h>

#include "api/lists/list_parts.h"
#include "base/mem.h"
#include "base/status.h"
#include "tests/support/engine_help.h"

enum { PROMPTS = 600, BAD = 7 };

typedef struct {
    qn_prompt_row row;
    int64_t n_taken[2]; /* positions in each pass */
    int *made;
} item;

typedef struct {
    qn_model *model;
    size_t n_alive, most_alive, n_made, n_ended, n_given, room; /* room: items that find memory; 0: all */
    size_t stop_at;                                             /* 0: never */
    int64_t rows_each;
} bench;

static bench *at_work; /* end gets the item alone */

static qn_status prepare(void *user, size_t i_prompt, void *made)
{
    static const int32_t ids[] = {11, 12, 13};
    bench *b = user;
    item *t = made;
    assert_null(t->made);
    qn_prompt_row_make(b->model, &(qn_prompt){.rows = &(qn_ids){ids, 3}, .n_rows = 1}, 0, &t->row);
    b->n_made++;
    if (++b->n_alive > b->most_alive) b->most_alive = b->n_alive;
    if (i_prompt == BAD) return qn_fail(QN_E_ARG, "prompt %d is bad", BAD);
    if (b->room && b->n_alive > b->room) return qn_fail_nomem(1);
    t->made = qn_calloc(1, sizeof *t->made);
    return t->made ? QN_OK : QN_E_NOMEM;
}

/* Whole rows first, then their last two positions, rows_each times. */
static int64_t add_rows(void *user, int pass, void *made, qn_wanted_row *rows)
{
    const bench *b = user;
    item *t = made;
    assert_int_equal(t->row.status, QN_OK);
    const int64_t n = pass ? b->rows_each : 1;
    for (int64_t i = 0; rows && i < n; i++)
        rows[i] = (qn_wanted_row){{t->row.ids, t->row.n_ids}, pass, &t->row, pass ? 100 + i : -1, NULL};
    return n;
}

static qn_status take(void *user, const qn_wanted_row *row, int64_t position, int64_t n, const float *values)
{
    item *t = (item *)row->owner;
    assert_true(row->tag == -1 || (row->tag >= 100 && row->tag < 100 + ((bench *)user)->rows_each));
    assert_true(position >= row->first && position + n <= row->ids.n_ids);
    t->n_taken[row->tag >= 0] += n;
    return QN_OK;
}

static qn_status give(void *user, size_t i_prompt, void *made)
{
    bench *b = user;
    const item *t = made;
    assert_int_equal(i_prompt, b->n_given++);
    if (i_prompt == BAD) {
        assert_int_equal(t->row.status, QN_E_ARG);
        assert_string_equal(qn_prompt_row_message(&t->row), "prompt 7 is bad");
    } else if (t->row.status == QN_OK) {
        assert_int_equal(t->n_taken[0], 3);
        assert_int_equal(t->n_taken[1], 2 * b->rows_each);
    } else {
        assert_int_equal(t->row.status, QN_E_NOMEM);
    }
    return b->stop_at && i_prompt + 1 == b->stop_at ? qn_fail(QN_E_CANCELLED, "stopped") : QN_OK;
}

static void end(void *made)
{
    at_work->n_alive--;
    at_work->n_ended++;
    qn_free(((item *)made)->made);
}

static qn_status run(bench *b, size_t n_prompts, size_t items_max)
{
    const qn_logits_options logits = {.hidden = 1, .no_prefix_cache = 1};
    b->n_alive = b->most_alive = b->n_made = b->n_ended = b->n_given = 0;
    at_work = b;
    qn_status status = qn_list_work_run(&(qn_list_work){.model = b->model,
                                                        .logits = &logits,
                                                        .item_bytes = sizeof(item),
                                                        .items_max = items_max,
                                                        .n_passes = 2,
                                                        .user = b,
                                                        .prepare = prepare,
                                                        .add_rows = add_rows,
                                                        .take = take,
                                                        .give = give,
                                                        .end = end},
                                        n_prompts);
    assert_int_equal(b->n_made, b->n_ended);
    return status;
}

static void begin(bench *b)
{
    *b = (bench){.rows_each = 1};
    const qn_model_options o = {.backend = "mock", .n_threads = 1, .context_size = 128, .parallel_slots = 2};
    qn_test_ok(qn_model_open("3", &o, &b->model));
    qn_test_ok(qn_model_set_cache_limit(b->model, 0, NULL));
}

static void cuts(void **state)
{
    bench b;
    begin(&b);
    qn_test_ok(run(&b, PROMPTS, 0)); /* two rows each, but for the bad one */
    assert_int_equal(b.n_given, PROMPTS);
    assert_int_equal(b.n_made, PROMPTS);
    assert_int_equal(b.most_alive, QN_PROMPT_WINDOW / 2 + 1);
    b.rows_each = 1000;
    qn_test_ok(run(&b, 3, 0)); /* one item has more rows than a part */
    assert_int_equal(b.n_given, 3);
    assert_int_equal(b.most_alive, 1);
    b.rows_each = 0;
    qn_test_ok(run(&b, 20, 6));
    assert_int_equal(b.n_given, 20);
    assert_int_equal(b.most_alive, 6);
    b.stop_at = 9;
    assert_int_equal(run(&b, 20, 6), QN_E_CANCELLED);
    assert_int_equal(b.n_given, 9);
    qn_model_close(&b.model);
}

static void little_room(void **state)
{
    bench b;
    begin(&b);
    b.room = 5;
    qn_test_ok(run(&b, 40, 0)); /* 40, 20, 10, 5 */
    assert_int_equal(b.n_given, 40);
    assert_int_equal(b.n_made, 40 + 20 + 10 + 40);
    qn_model_close(&b.model);
}

static void no_memory(void **state)
{
    bench b;
    begin(&b);
    qn_test_ok(run(&b, 3, 0)); /* what the model keeps is there */
    const int64_t before = qn_mem_live_blocks();
    for (int64_t i = 1, made = 1; made >= i; i++) {
        assert_true(i < 2000);
        made = qn_mem_allocations();
        qn_mem_fail_nth(i);
        const qn_status status = run(&b, 3, 0);
        qn_mem_fail_nth(0);
        made = qn_mem_allocations() - made;
        if (status != QN_OK && status != QN_E_NOMEM) fail_msg("allocation %d: %s", (int)i, qn_last_error());
        if (status == QN_OK) assert_int_equal(b.n_given, 3);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    qn_model_close(&b.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cuts), cmocka_unit_test(little_room),
                                       cmocka_unit_test(no_memory)};
    return cmocka_run_group_tests_name("list_parts", tests, NULL, NULL);
}
