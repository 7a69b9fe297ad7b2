/* Estimates of what steps take, from made-up measurements. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/schedule/step_costs.h"

static void of_those_that_decode(void **state)
{
    qn_step_costs c = {0};
    assert_true(qn_step_costs_get(&c, 1) == 0);
    qn_step_costs_note(&c, 1, 100);
    assert_true(qn_step_costs_get(&c, 1) == 100);
    assert_true(qn_step_costs_get(&c, 5) > 100 && qn_step_costs_get(&c, 5) < 200); /* worth a try */
    qn_step_costs_note(&c, 9, 500);
    assert_true(qn_step_costs_get(&c, 5) == 300);
    qn_step_costs_note(&c, 0, 5);
    qn_step_costs_note(&c, QN_STEP_ROWS + 1, 5);
    qn_step_costs_note(&c, 1, -5);
    for (int i = 0; i < 100; i++) qn_step_costs_note(&c, 1, i == 50 ? 1e9 : 200);
    assert_true(qn_step_costs_get(&c, 1) > 190 && qn_step_costs_get(&c, 1) < 210);
    for (int i = 0; i < 5000; i++) qn_step_costs_note(&c, 1, 200);
    assert_true(qn_step_costs_get(&c, 9) < 400); /* forgotten: to be tried again */
    assert_false(qn_step_costs_known(&c, 9));
}

static void about_as_many_are_known(void **state)
{
    qn_step_costs c = {0};
    assert_false(qn_step_costs_known(&c, 1));
    qn_step_costs_note(&c, 3, 100);
    qn_step_costs_note(&c, 16, 400);
    for (int n = 0; n <= QN_STEP_ROWS; n++)
        assert_int_equal(qn_step_costs_known(&c, n), n == 3 || n == 4 || (n >= 13 && n <= 21));
    /* Nobody will measure these. */
    qn_step_costs_note(&c, QN_STEP_ROWS + 1, 900);
    assert_true(qn_step_costs_known(&c, QN_STEP_ROWS + 1));
}

static void of_prompts(void **state)
{
    qn_prompt_costs c = {0};
    assert_true(qn_prompt_costs_get(&c, 16) == 0);
    assert_int_equal(qn_prompt_costs_rows(&c, 1), 2 * QN_PROMPT_TILE);
    qn_prompt_costs_note(&c, 0, 5);
    qn_prompt_costs_note(&c, 16, -5);
    assert_true(qn_prompt_costs_get(&c, 16) == 0);
    qn_prompt_costs_note(&c, 64, 400);
    assert_true(qn_prompt_costs_get(&c, 49) == 400 && qn_prompt_costs_get(&c, 64) == 400);
    assert_true(qn_prompt_costs_get(&c, 16) == 100 &&
                qn_prompt_costs_get(&c, 128) == 800); /* in proportion */
    qn_prompt_costs between = c;
    qn_prompt_costs_note(&between, 6 * QN_PROMPT_TILE, 440);
    assert_true(qn_prompt_costs_get(&between, 5 * QN_PROMPT_TILE) == (between.ns[4] + between.ns[6]) / 2);
    assert_int_equal(qn_prompt_costs_rows(&c, 99), 16); /* one tile at least */
    assert_int_equal(qn_prompt_costs_rows(&c, 299), 32);
    assert_int_equal(qn_prompt_costs_rows(&c, 300), 48);
    assert_int_equal(qn_prompt_costs_rows(&c, 1e9), QN_PROMPT_TILE * QN_PROMPT_TILES);
    /* More than all tiles in proportion. */
    qn_prompt_costs big = {0};
    qn_prompt_costs_note(&big, 2 * QN_PROMPT_TILE * QN_PROMPT_TILES, 6400);
    assert_true(qn_prompt_costs_get(&big, 16) == 50);
}

/* Two tiles take four times as long as one, three hardly more than two. */
static double stairs(int64_t rows, double depth)
{
    return depth * (rows <= 16 ? 10 : rows <= 32 ? 40 : 42 + (double)(rows - 48) / 2);
}

/* Steps of as many rows as are asked for: their number when it has settled. */
static int64_t settles(qn_prompt_costs *c, double aim, double depth)
{
    int64_t rows = 0;
    for (int i = 0; i < 40; i++) {
        rows = qn_prompt_costs_rows(c, aim);
        qn_prompt_costs_note(c, rows, stairs(rows, depth));
    }
    return rows;
}

static void prompts_find_their_step(void **state)
{
    qn_prompt_costs c = {0};
    qn_prompt_costs_note(&c, 512, stairs(512, 1)); /* nobody decoded */
    assert_int_equal(settles(&c, 38, 1), 16);
    assert_int_equal(settles(&c, 45, 1), 48);
    /* A longer prompt: all grow alike. */
    assert_int_equal(settles(&c, 45, 2), 16);
    assert_true(qn_prompt_costs_get(&c, 48) > 70);
    assert_int_equal(settles(&c, 45, 1), 48);
    /* What was disturbed once is tried again. */
    qn_prompt_costs d = {0};
    for (int i = 0; i < 4; i++) qn_prompt_costs_note(&d, 16, 10);
    qn_prompt_costs_note(&d, 32, 100);
    assert_int_equal(qn_prompt_costs_rows(&d, 36), 16);
    int tried = 0;
    for (int i = 0; i < 5000 && !tried; i++) {
        qn_prompt_costs_note(&d, 16, 10);
        tried = qn_prompt_costs_rows(&d, 36) > 16;
    }
    assert_true(tried);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_those_that_decode),
        cmocka_unit_test(about_as_many_are_known),
        cmocka_unit_test(of_prompts),
        cmocka_unit_test(prompts_find_their_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
