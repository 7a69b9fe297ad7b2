#include "cli/term/word_wrap.h"

#include "base/utf8.h"

enum { TAB_COLUMNS = 8, FENCE_INDENT_MAX = 3, FENCE_MARKS = 3, ZERO_WIDTH_JOINER = 0x200d };

void qn_word_wrap_begin(qn_word_wrap *w, int width)
{
    qn_buf spaces = w->spaces, word = w->word;
    qn_buf_reset(&spaces);
    qn_buf_reset(&word);
    *w = (qn_word_wrap){.width = width > 0 ? width : 0, .spaces = spaces, .word = word};
}

void qn_word_wrap_end(qn_word_wrap *w)
{
    qn_buf_free(&w->spaces);
    qn_buf_free(&w->word);
}

/* The terminal goes to its next line by itself when a character does not fit. */
static void advance(qn_word_wrap *w, int width)
{
    w->column = w->width && w->column + width > w->width ? width : w->column + width;
}

static void write_spaces(qn_word_wrap *w, qn_buf *out)
{
    qn_buf_append(out, w->spaces.data, w->spaces.length);
    w->column += w->spaces_width;
}

static void drop_spaces(qn_word_wrap *w, qn_buf *out)
{
    if (w->spaces.status != QN_OK) out->status = w->spaces.status;
    qn_buf_reset(&w->spaces);
    w->spaces_width = 0;
}

/* Writes the held word, on the next line when it does not fit this one. */
static void end_word(qn_word_wrap *w, qn_buf *out)
{
    if (!w->word.length) return;
    if (w->width && w->column > 0 && w->column + w->spaces_width + w->word_width > w->width) {
        qn_buf_putc(out, '\n');
        w->column = 0;
    } else {
        write_spaces(w, out);
    }
    drop_spaces(w, out);
    qn_buf_append(out, w->word.data, w->word.length);
    advance(w, w->word_width);
    if (w->word.status != QN_OK) out->status = w->word.status;
    qn_buf_reset(&w->word);
    w->word_width = w->word_is_wide = 0;
}

void qn_word_wrap_flush(qn_word_wrap *w, qn_buf *out)
{
    end_word(w, out);
    /* Spaces at the end of a line are not worth a line of their own. */
    if (!w->width || w->column + w->spaces_width <= w->width) write_spaces(w, out);
    drop_spaces(w, out);
}

void qn_word_wrap_mark(qn_word_wrap *w, const char *bytes)
{
    qn_buf_puts(&w->word, bytes);
}

/* Does this character complete the three marks with which a line begins or ends a block of code? */
static int completes_fence(qn_word_wrap *w, uint32_t c)
{
    if (w->n_marks < 0) return 0;
    if (c == ' ' && !w->n_marks && w->indent < FENCE_INDENT_MAX) {
        w->indent++;
        return 0;
    }
    int same = w->n_marks ? c == w->mark : (c == '`' || c == '~') && (!w->in_fence || c == w->mark);
    if (!same) {
        w->n_marks = -1;
        return 0;
    }
    w->mark = c;
    if (++w->n_marks < FENCE_MARKS) return 0;
    w->n_marks = -1;
    return 1;
}

/* Closing marks of Chinese and Japanese, and what changes the sign before it: no line begins with them. */
static int sticks_to_what_is_before(uint32_t c)
{
    static const uint16_t marks[] = {0x3001, 0x3002, 0x3009, 0x300b, 0x300d, 0x300f, 0x3011, 0x3015,
                                     0x30fc, 0xff01, 0xff09, 0xff0c, 0xff0e, 0xff1a, 0xff1b, 0xff1f};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (c == marks[i]) return 1;
    return c >= 0x1f3fb && c <= 0x1f3ff;
}

static void start_line(qn_word_wrap *w)
{
    w->column = w->is_long = w->on_fence = w->indent = w->n_marks = 0;
}

static void put_character(qn_word_wrap *w, uint32_t c, const char *bytes, size_t n, qn_buf *out)
{
    if (c == '\n') {
        qn_word_wrap_flush(w, out);
        qn_buf_putc(out, '\n');
        start_line(w);
        return;
    }
    if (completes_fence(w, c)) {
        qn_word_wrap_flush(w, out);
        w->in_fence = !w->in_fence;
        w->on_fence = 1;
    }
    if (!w->width || w->in_fence || w->on_fence) {
        qn_word_wrap_flush(w, out);
        qn_buf_append(out, bytes, n);
        return;
    }
    if (c == ' ' || c == '\t') {
        end_word(w, out);
        w->is_long = 0;
        qn_buf_append(&w->spaces, bytes, n);
        w->spaces_width += c == ' ' ? 1 : TAB_COLUMNS - (w->column + w->spaces_width) % TAB_COLUMNS;
        return;
    }
    int width = qn_utf8_width(c);
    if (width && (width == 2 || w->word_is_wide) && w->last != ZERO_WIDTH_JOINER &&
        !sticks_to_what_is_before(c)) {
        end_word(w, out);
        w->is_long = 0;
    }
    qn_buf_append(&w->word, bytes, n);
    w->word_width += width;
    if (width) w->word_is_wide = width == 2;
    if (w->is_long) {
        qn_buf_append(out, w->word.data, w->word.length);
        advance(w, w->word_width);
        qn_buf_reset(&w->word);
        w->word_width = 0;
    } else if (w->word_width > w->width) {
        int word_width = w->word_width % w->width;
        end_word(w, out);
        w->column = word_width ? word_width : w->width;
        w->is_long = 1;
    }
}

void qn_word_wrap_put(qn_word_wrap *w, const char *text, size_t n, qn_buf *out)
{
    for (size_t i = 0; i < n;) {
        uint32_t c = 0;
        size_t used = qn_utf8_decode(text + i, n - i, &c);
        if (used == 0) { /* the caller's promise is broken; nothing raw passes */
            used = 1;
            c = 0x80;
        }
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
            const char shown = (char)(c ^ 0x40);
            put_character(w, '^', "^", 1, out);
            put_character(w, (uint32_t)shown, &shown, 1, out);
        } else if (c >= 0x80 && c < 0xa0) {
            put_character(w, 0xfffd, "\xef\xbf\xbd", 3, out);
        } else {
            put_character(w, c, text + i, used, out);
        }
        w->last = c;
        i += used;
    }
}
