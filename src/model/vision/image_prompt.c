#include "model/vision/image_prompt.h"

static const struct {
    const char *begin, *end;
} pairs[] = {{"<|image>", "<image|>"},
             {"<start_of_image>", "<end_of_image>"},
             {"<img>", "</img>"},
             {"<|image_start|>", "<|image_end|>"}};
enum { N_PAIRS = sizeof pairs / sizeof pairs[0] };

const char *qn_image_begin_word(int i)
{
    return i < N_PAIRS ? pairs[i].begin : NULL;
}

const char *qn_image_end_word(int i)
{
    return i < N_PAIRS ? pairs[i].end : NULL;
}

const char *qn_image_mark(const qn_image_processor *p, const qn_image_words *words)
{
    if (p->prompt == QN_IMAGE_PROMPT_PARAGRAPH) return words->begin;
    return p->prompt == QN_IMAGE_PROMPT_GRID ? "<|image|>" : words->image;
}

static void repeat(qn_buf *out, const char *word, int64_t n)
{
    for (int64_t i = 0; i < n; i++) qn_buf_puts(out, word);
}

static void put_rows(const qn_image_grid *view, const qn_image_words *words, qn_buf *out)
{
    for (int64_t row = 1; row <= view->token_rows; row++) {
        repeat(out, words->image, view->token_columns);
        qn_buf_puts(out, row < view->token_rows ? "[IMG_BREAK]" : "[IMG_END]");
    }
}

static void put_tiles(const qn_image_plan *plan, const qn_image_words *words, qn_buf *out)
{
    static const char around[] = "<fake_token_around_image>";
    const int64_t n = qn_image_grid_tokens(&plan->tile);
    const int is_cut = qn_image_plan_views(plan) > 1;
    for (int64_t row = 1; is_cut && row <= plan->tile_rows; row++) {
        for (int64_t column = 1; column <= plan->tile_columns; column++) {
            qn_buf_printf(out, "%s<row_%lld_col_%lld>", around, (long long)row, (long long)column);
            repeat(out, words->image, n);
        }
        qn_buf_puts(out, "\n");
    }
    qn_buf_printf(out, "%s%s<global-img>", is_cut ? "\n" : "", around);
    repeat(out, words->image, is_cut ? qn_image_grid_tokens(&plan->whole) : n);
    qn_buf_puts(out, around);
}

static void put_grid(const qn_image_plan *plan, const qn_image_words *words, qn_buf *out)
{
    const int64_t n = qn_image_grid_tokens(&plan->tile);
    const int is_cut = qn_image_plan_views(plan) > 1;
    qn_buf_puts(out, "<|image_start|>");
    for (int64_t row = 0; is_cut && row < plan->tile_rows; row++) {
        for (int64_t column = 0; column < plan->tile_columns; column++) {
            if (column) qn_buf_puts(out, "<|tile_x_separator|>");
            repeat(out, words->image, n);
        }
        qn_buf_puts(out, "<|tile_y_separator|>");
    }
    qn_buf_puts(out, "<|image|>");
    repeat(out, words->image, is_cut ? qn_image_grid_tokens(&plan->whole) : n);
    qn_buf_puts(out, "<|image_end|>");
}

static void put_marked(const qn_image_plan *plan, const qn_image_words *words, qn_buf *out)
{
    const int64_t n_tiles = plan->tile_rows * plan->tile_columns, n = qn_image_grid_tokens(&plan->tile);
    qn_buf_puts(out, "<|image_start|>");
    for (int64_t i = 0; i < n_tiles; i++) {
        if (n_tiles > 1)
            qn_buf_printf(out, "<|img_row_%lld_col_%lld|>", (long long)(i / plan->tile_columns) + 1,
                          (long long)(i % plan->tile_columns) + 1);
        repeat(out, words->image, n);
    }
    if (plan->whole.height) {
        qn_buf_puts(out, "<|img_thumbnail|>");
        repeat(out, words->image, qn_image_grid_tokens(&plan->whole));
    }
    qn_buf_puts(out, "<|image_end|>");
}

void qn_image_prompt_put(const qn_image_processor *p, const qn_image_plan *plan, const qn_image_words *words,
                         qn_buf *out)
{
    const char *line = p->prompt == QN_IMAGE_PROMPT_PARAGRAPH ? "\n\n" : "";
    switch (p->prompt) {
    case QN_IMAGE_PROMPT_ROWS:
        put_rows(&plan->tile, words, out);
        break;
    case QN_IMAGE_PROMPT_TILES:
        put_tiles(plan, words, out);
        break;
    case QN_IMAGE_PROMPT_GRID:
        put_grid(plan, words, out);
        break;
    case QN_IMAGE_PROMPT_MARKED:
        put_marked(plan, words, out);
        break;
    default:
        qn_buf_printf(out, "%s%s", line, words->begin ? words->begin : "");
        repeat(out, words->image, qn_image_plan_tokens(plan));
        qn_buf_printf(out, "%s%s", words->end ? words->end : "", line);
    }
}
