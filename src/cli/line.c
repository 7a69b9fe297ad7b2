#include "cli/line.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/interrupt.h"
#include "cli/out.h"

enum { HISTORY_LINES = 1000, LINE_BYTES_MAX = 64 << 20, PATH_BYTES = 4096 };

struct qn_line_reader {
    EditLine *edit; /* NULL: a pipe */
    History *history;
    locale_t locale;
    char history_path[PATH_BYTES]; /* "": not kept */
    char prompt[64];
};

/* Creates the folders above path. */
static int make_folders(char *path)
{
    for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        int made = mkdir(path, 0700) == 0 || errno == EEXIST;
        *p = '/';
        if (!made) return 0;
    }
    return 1;
}

static void find_history(qn_line_reader *r)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = 0;
    if (state && state[0] == '/')
        n = snprintf(r->history_path, PATH_BYTES, "%s/quern/history", state);
    else if (home && home[0] == '/')
        n = snprintf(r->history_path, PATH_BYTES, "%s/.local/state/quern/history", home);
    if (n <= 0 || n >= PATH_BYTES || !make_folders(r->history_path)) r->history_path[0] = 0;
}

static char *show_prompt(EditLine *edit)
{
    qn_line_reader *r = NULL;
    el_get(edit, EL_CLIENTDATA, &r);
    return r->prompt;
}

static qn_status open_terminal(qn_line_reader *r)
{
    HistEvent event;
    /* libedit needs to know the terminal's character set; nothing else of the locale is taken. */
    r->locale = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    if (r->locale) uselocale(r->locale);
    r->history = history_init();
    r->edit = el_init("quern", stdin, stdout, stderr);
    if (!r->history || !r->edit) return qn_fail(QN_E_IO, "the terminal cannot be used for line editing");
    history(r->history, &event, H_SETSIZE, HISTORY_LINES);
    history(r->history, &event, H_SETUNIQUE, 1);
    find_history(r);
    if (r->history_path[0]) history(r->history, &event, H_LOAD, r->history_path);
    el_set(r->edit, EL_CLIENTDATA, r);
    el_set(r->edit, EL_EDITOR, "emacs");
    el_set(r->edit, EL_PROMPT_ESC, show_prompt, '\1');
    el_set(r->edit, EL_HIST, history, r->history);
    el_set(r->edit, EL_SAFEREAD, 0); /* Ctrl-C interrupts a read instead of being tried again */
    el_source(r->edit, NULL);
    return QN_OK;
}

qn_status qn_line_open(qn_line_reader **out)
{
    qn_line_reader *r = qn_calloc(1, sizeof *r);
    if (!r) return QN_E_NOMEM;
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {
        qn_status status = open_terminal(r);
        if (status != QN_OK) {
            qn_line_close(r);
            return status;
        }
    }
    *out = r;
    return QN_OK;
}

void qn_line_close(qn_line_reader *r)
{
    if (!r) return;
    HistEvent event;
    if (r->edit && r->history_path[0]) history(r->history, &event, H_SAVE, r->history_path);
    if (r->edit) el_end(r->edit);
    if (r->history) history_end(r->history);
    if (r->locale) {
        uselocale(LC_GLOBAL_LOCALE);
        freelocale(r->locale);
    }
    qn_free(r);
}

int qn_line_is_terminal(const qn_line_reader *r)
{
    return r->edit != NULL;
}

static qn_status next_edited(qn_line_reader *r, const char *prompt, qn_buf *text, qn_line_event *event)
{
    int n = 0, bold = qn_out_has_style(stdout);
    HistEvent entered;
    snprintf(r->prompt, sizeof r->prompt, bold ? "\1\033[1m\1%s\1\033[0m\1 " : "%s ", prompt);
    qn_interrupt_taken();
    const char *line = el_gets(r->edit, &n);
    if (qn_interrupt_taken()) {
        fputc('\n', stdout);
        *event = QN_LINE_INTERRUPTED;
        return QN_OK;
    }
    if (!line || n <= 0) {
        fputc('\n', stdout);
        *event = QN_LINE_END;
        return QN_OK;
    }
    size_t length = strlen(line);
    if (length > 1) history(r->history, &entered, H_ENTER, line);
    if (length && line[length - 1] == '\n') length--;
    qn_buf_append(text, line, length);
    *event = QN_LINE_TEXT;
    return text->status;
}

qn_status qn_line_next(qn_line_reader *r, const char *prompt, qn_buf *text, qn_line_event *event)
{
    qn_buf_reset(text);
    text->limit_bytes = LINE_BYTES_MAX;
    qn_buf_append(text, "", 0);
    if (r->edit) return next_edited(r, prompt, text, event);
    int c;
    while ((c = getc(stdin)) != EOF && c != '\n') qn_buf_putc(text, (char)c);
    if (c == EOF && ferror(stdin)) {
        if (errno == EINTR) {
            clearerr(stdin);
            *event = QN_LINE_INTERRUPTED;
            return QN_OK;
        }
        return qn_fail(QN_E_IO, "standard input: %s", strerror(errno));
    }
    *event = c == EOF && text->length == 0 ? QN_LINE_END : QN_LINE_TEXT;
    return text->status;
}
