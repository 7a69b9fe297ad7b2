/* What stands in a prompt for a picture, in each form; places in chats. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <string.h>

#include "base/mem.h"
#include "model/vision/image_prompt.h"
#include "text/chat/chat_places.h"

static qn_image_processor processor(qn_image_rule rule, qn_image_prompt_form form)
{
    return (qn_image_processor){.rule = rule,
                                .prompt = form,
                                .do_resize = 1,
                                .do_split = 1,
                                .patch_size = 4,
                                .merge_size = 2,
                                .temporal_patch_size = 1,
                                .width = 16,
                                .height = 16,
                                .longest_edge = 32,
                                .min_tiles = 1,
                                .max_tiles = 4,
                                .has_thumbnail = 1};
}

/* Of a picture of 32 x 16 pixels: two tiles beside each other where it is cut. */
static void check(qn_image_rule rule, qn_image_prompt_form form, const char *want)
{
    const qn_image_processor p = processor(rule, form);
    const qn_image_words words = {"I", "B", "E"};
    qn_image_plan plan;
    qn_buf out = {0};
    assert_int_equal(qn_image_plan_of(&p, 32, 16, &plan), QN_OK);
    qn_image_prompt_put(&p, &plan, &words, &out);
    assert_string_equal(out.data, want);
    qn_buf_free(&out);
}

static void test_forms(void **state)
{
    check(QN_IMAGE_FIXED, QN_IMAGE_PROMPT_PLAIN, "BIIIIE");
    check(QN_IMAGE_ASPECT, QN_IMAGE_PROMPT_ENCLOSED, "BIIIIIIIIIIIIE");
    check(QN_IMAGE_FIXED, QN_IMAGE_PROMPT_PARAGRAPH, "\n\nBIIIIE\n\n");
    check(QN_IMAGE_LONGEST, QN_IMAGE_PROMPT_ROWS, "II[IMG_END]");
    check(QN_IMAGE_GRID, QN_IMAGE_PROMPT_TILES,
          "<fake_token_around_image><row_1_col_1>IIII<fake_token_around_image><row_1_col_2>IIII\n\n"
          "<fake_token_around_image><global-img>IIII<fake_token_around_image>");
    check(QN_IMAGE_ASPECT, QN_IMAGE_PROMPT_GRID,
          "<|image_start|>IIII<|tile_x_separator|>IIII<|tile_y_separator|><|image|>IIII<|image_end|>");
    check(QN_IMAGE_ASPECT, QN_IMAGE_PROMPT_MARKED,
          "<|image_start|><|img_row_1_col_1|>IIII<|img_row_1_col_2|>IIII<|img_thumbnail|>IIII<|image_end|>");
}

/* A rendered chat of a template's text, a message's and a template's again. */
static qn_rendered rendered(const char *text, size_t first, size_t second)
{
    const size_t n = strlen(text);
    qn_rendered r = {.text = qn_alloc(n + 1), .n = n, .n_segments = 3};
    memcpy(r.text, text, n + 1);
    r.segments = qn_alloc_array(3, sizeof *r.segments);
    r.segments[0] = (qn_rendered_segment){0, first, 1};
    r.segments[1] = (qn_rendered_segment){first, second, 0};
    r.segments[2] = (qn_rendered_segment){first + second, n - first - second, 1};
    return r;
}

static void test_places(void **state)
{
    const char *const texts[] = {"[one]", "[two]"};
    qn_chat_places places = {"<i>", texts, 2};
    qn_rendered r = rendered("a<i>b x<i>y c<i>", 5, 7);
    assert_int_equal(qn_chat_places_fill(&r, &places), QN_OK);
    assert_string_equal(r.text, "a[one]b x<i>y c[two]");
    assert_int_equal(r.n, strlen(r.text));
    assert_int_equal(r.segments[1].offset, 7);
    assert_int_equal(r.segments[1].n, 7);
    assert_int_equal(r.segments[2].n, 6);
    places.n_texts = 1;
    qn_rendered_free(&r);
    r = rendered("a<i>b x<i>y c<i>", 5, 7);
    assert_int_equal(qn_chat_places_fill(&r, &places), QN_E_ARG);
    assert_string_equal(
        qn_last_error(),
        "1 image(s) were given, but the prompt has places for 2, as the chat template writes it");
    assert_string_equal(r.text, "a<i>b x<i>y c<i>");
    qn_rendered_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms), cmocka_unit_test(test_places)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
