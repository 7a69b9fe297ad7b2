#include "cli/chat/chat_screen.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/term/out.h"

static const char dim[] = "\033[2m", plain[] = "\033[0m";

void qn_chat_screen_open(qn_chat_screen *s)
{
    s->is_terminal = isatty(STDOUT_FILENO);
    s->has_style = qn_out_has_style(stdout);
}

void qn_chat_screen_close(qn_chat_screen *s)
{
    qn_word_wrap_end(&s->wrap);
    qn_buf_free(&s->out);
}

/* Columns of the terminal; 0: it does not tell. */
static int get_width(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

static qn_status write_out(qn_chat_screen *s)
{
    QN_TRY(s->out.status);
    qn_status status = s->out.length ? qn_out_write(s->out.data, s->out.length) : QN_OK;
    qn_buf_reset(&s->out);
    return status;
}

static void put_run(void *user, int is_thinking, const char *text, size_t n)
{
    qn_chat_screen *s = user;
    if (s->has_style && is_thinking != s->is_dim) {
        qn_word_wrap_mark(&s->wrap, is_thinking ? dim : plain);
        s->is_dim = is_thinking;
    }
    qn_word_wrap_put(&s->wrap, text, n, &s->out);
}

qn_status qn_chat_screen_begin(qn_chat_screen *s, int wraps, int is_thinking)
{
    qn_buf_reset(&s->out);
    s->is_dim = 0;
    if (!s->is_terminal) return QN_OK;
    qn_word_wrap_begin(&s->wrap, wraps ? get_width() : 0);
    qn_think_split_begin(&s->think, is_thinking);
    if (!is_thinking || s->has_style) return QN_OK;
    return qn_chat_screen_put(s, "<think>\n", strlen("<think>\n"));
}

qn_status qn_chat_screen_put(qn_chat_screen *s, const char *text, size_t n)
{
    if (!s->is_terminal) return n ? qn_out_write(text, n) : QN_OK;
    qn_think_split_put(&s->think, text, n, put_run, s);
    return write_out(s);
}

qn_status qn_chat_screen_end(qn_chat_screen *s)
{
    if (!s->is_terminal) return qn_out_write("\n", 1);
    qn_think_split_flush(&s->think, put_run, s);
    qn_word_wrap_flush(&s->wrap, &s->out);
    if (s->is_dim) qn_buf_puts(&s->out, plain);
    s->is_dim = 0;
    qn_buf_putc(&s->out, '\n');
    return write_out(s);
}

qn_status qn_chat_screen_say(FILE *stream, const char *text, size_t n)
{
    qn_word_wrap clean = {0};
    qn_buf out = {0};
    if (isatty(fileno(stream))) {
        qn_word_wrap_begin(&clean, 0);
        qn_word_wrap_put(&clean, text, n, &out);
        qn_word_wrap_flush(&clean, &out);
    } else {
        qn_buf_append(&out, text, n);
    }
    qn_buf_putc(&out, '\n');
    qn_status status = out.status;
    if (status == QN_OK && stream == stdout)
        status = qn_out_write(out.data, out.length);
    else if (status == QN_OK && fwrite(out.data, 1, out.length, stream) != out.length)
        status = qn_fail(QN_E_IO, "standard error: %s", strerror(errno));
    qn_word_wrap_end(&clean);
    qn_buf_free(&out);
    return status;
}
