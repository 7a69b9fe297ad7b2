#include "cli/term/line.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "cli/term/editor.h"
#include "cli/term/interrupt.h"
#include "cli/term/out.h"

enum { HISTORY_LINES = 1000, LINE_BYTES_MAX = 64 << 20, PATH_BYTES = 4096, PIPE_BYTES = 4096 };

struct qn_line_reader {
    EditLine *edit; /* NULL: a pipe */
    History *history;
    locale_t locale;
    char history_path[PATH_BYTES]; /* "": not kept */
    char prompt[64];
    int marks_pastes;       /* the terminal was asked to */
    int forgets;            /* the history is neither added to nor saved */
    qn_status status;       /* of what a key did */
    char bytes[PIPE_BYTES]; /* read from a pipe, from i_byte on not handed out */
    size_t i_byte, n_bytes;
};

/* Asks the terminal to put marks around what is pasted, and to do so no more. */
static const char paste_on[] = "\033[?2004h", paste_off[] = "\033[?2004l";
/* What a process that is ended by force leaves behind. */
static const char plain_terminal[] = "\033[0m\033[?2004l";

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

static qn_line_reader *get_reader(EditLine *edit)
{
    qn_line_reader *r = NULL;
    el_get(edit, EL_CLIENTDATA, &r);
    return r;
}

static char *show_prompt(EditLine *edit)
{
    return get_reader(edit)->prompt;
}

/* -1 at Ctrl-C, which is not lost when it comes just before the wait, and at an error. */
static int wait_for_input(void)
{
    struct pollfd files[] = {{STDIN_FILENO, POLLIN, 0}, {qn_interrupt_file(), POLLIN, 0}};
    do {
        if (poll(files, 2, -1) < 0 && (errno != EINTR || files[1].fd < 0)) return -1;
        if (files[1].revents) return -1;
    } while (!files[0].revents);
    return 0;
}

/* Waits for one character of UTF-8; bytes that are none are passed over. -1 at Ctrl-C and at an error; 0: the
 * terminal is gone. */
static int read_character(EditLine *edit, wchar_t *out)
{
    char bytes[4];
    size_t n = 0;
    for (;;) {
        uint32_t c;
        int incomplete;
        if (wait_for_input() < 0) return -1;
        ssize_t n_read = read(STDIN_FILENO, bytes + n, 1);
        if (n_read <= 0) return (int)n_read;
        if (qn_utf8_decode(bytes, ++n, &c)) {
            *out = (wchar_t)c;
            return 1;
        }
        qn_utf8_invalid_length(bytes, n, &incomplete);
        if (!incomplete) n = 0;
    }
}

/* ---- what keys do ---- */

/* Reads what is pasted, up to its closing mark, as wide characters. Line ends become '\n', other control
 * characters but tabs are left out, the last line's end too. */
static qn_status read_paste(EditLine *edit, qn_buf *text)
{
    static const wchar_t closing[] = L"\033[201~";
    enum { N_CLOSING = sizeof closing / sizeof *closing - 1 };
    size_t n_matched = 0;
    wchar_t c;
    while (n_matched < N_CLOSING) {
        if (el_wgetc(edit, &c) != 1) return qn_fail(QN_E_IO, "the paste was interrupted");
        n_matched = c == closing[n_matched] ? n_matched + 1 : c == closing[0];
        if (c == L'\r') c = L'\n';
        if ((c >= 0x20 && c != 0x7f) || c == L'\n' || c == L'\t') qn_buf_append(text, &c, sizeof c);
    }
    QN_TRY(text->status);
    text->length -= (N_CLOSING - 1) * sizeof c; /* all of the mark but its escape, which is a control */
    const wchar_t *characters = (const wchar_t *)(const void *)text->data;
    if (text->length && characters[text->length / sizeof c - 1] == L'\n') text->length -= sizeof c;
    c = 0;
    qn_buf_append(text, &c, sizeof c);
    return text->status;
}

static unsigned char paste(EditLine *edit, int key)
{
    qn_line_reader *r = get_reader(edit);
    qn_buf text = {.limit_bytes = LINE_BYTES_MAX};
    r->status = read_paste(edit, &text);
    if (r->status == QN_OK && text.length > sizeof(wchar_t) &&
        el_winsertstr(edit, (const wchar_t *)(const void *)text.data) != 0)
        r->status = qn_fail(QN_E_NOMEM, "there is no memory for the paste");
    qn_buf_free(&text);
    return r->status == QN_OK ? CC_REFRESH : CC_EOF;
}

static qn_status edit_text(EditLine *edit, qn_buf *text)
{
    const LineInfo *line = el_line(edit);
    qn_buf_append(text, line->buffer, (size_t)(line->lastchar - line->buffer));
    QN_TRY(text->status);
    QN_TRY(qn_editor_run(text->data, text->length, text));
    if (text->length && memchr(text->data, 0, text->length))
        return qn_fail(QN_E_FORMAT, "the text has a NUL character");
    return QN_OK;
}

/* The line goes to the editor and comes back to be looked at: it is not sent yet. */
static unsigned char edit_line(EditLine *edit, int key)
{
    qn_buf text = {.limit_bytes = LINE_BYTES_MAX};
    fputc('\n', stdout);
    fflush(stdout);
    el_set(edit, EL_PREP_TERM, 0);
    qn_status status = edit_text(edit, &text);
    el_set(edit, EL_PREP_TERM, 1);
    if (status == QN_OK) {
        const LineInfoW *line = el_wline(edit);
        int n = (int)(line->lastchar - line->buffer), n_behind = (int)(line->lastchar - line->cursor);
        if (n_behind) el_cursor(edit, n_behind);
        el_deletestr(edit, n);
        if (text.length) el_insertstr(edit, text.data);
    } else {
        qn_out_fail();
    }
    qn_buf_free(&text);
    return CC_REDISPLAY;
}

static void bind_keys(EditLine *edit)
{
    el_wset(edit, EL_ADDFN, L"quern-paste", L"Insert the pasted text", paste);
    el_wset(edit, EL_ADDFN, L"quern-edit", L"Open the line in an editor", edit_line);
    el_set(edit, EL_BIND, "\\e[200~", "quern-paste", NULL);
    el_set(edit, EL_BIND, "^G", "quern-edit", NULL);
}

/* libedit needs to know the terminal's character set; nothing else of the locale is taken. Texts are UTF-8
 * here, so a locale that cannot write them gives way to one that can. */
static void choose_locale(qn_line_reader *r)
{
    r->locale = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    if (!r->locale || strcmp(nl_langinfo_l(CODESET, r->locale), "UTF-8") != 0) {
        locale_t wider = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
        if (wider && r->locale) freelocale(r->locale);
        if (wider) r->locale = wider;
    }
    if (r->locale) uselocale(r->locale);
}

static qn_status open_terminal(qn_line_reader *r)
{
    HistEvent event;
    choose_locale(r);
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
    el_wset(r->edit, EL_GETCFN, read_character);
    bind_keys(r->edit);
    el_source(r->edit, NULL);
    /* For the whole session: a paste while an answer comes is one message as well. */
    const char *term = getenv("TERM");
    r->marks_pastes = term && term[0] && strcmp(term, "dumb") != 0;
    if (!r->marks_pastes) return QN_OK;
    qn_interrupt_set_last_words(plain_terminal);
    return qn_out_write(paste_on, strlen(paste_on));
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
    if (r->marks_pastes) {
        qn_interrupt_set_last_words(NULL);
        fputs(paste_off, stdout);
        fflush(stdout);
    }
    if (r->edit && r->history_path[0] && !r->forgets) history(r->history, &event, H_SAVE, r->history_path);
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

void qn_line_keep_history(qn_line_reader *r, int keep)
{
    r->forgets = !keep;
}

int qn_line_keeps_history(const qn_line_reader *r)
{
    return r->edit && !r->forgets && r->history_path[0];
}

static qn_status next_edited(qn_line_reader *r, const char *prompt, qn_buf *text, qn_line_event *event)
{
    int n = 0, bold = qn_out_has_style(stdout);
    HistEvent entered;
    snprintf(r->prompt, sizeof r->prompt, bold ? "\1\033[1m\1%s\1\033[0m\1 " : "%s ", prompt);
    qn_interrupt_taken();
    /* Before the prompt invites anybody to type: libedit would do it after, and lose what came between. */
    el_set(r->edit, EL_PREP_TERM, 1);
    r->status = QN_OK;
    const char *line = el_gets(r->edit, &n);
    if (qn_interrupt_taken()) {
        fputc('\n', stdout);
        *event = QN_LINE_INTERRUPTED;
        return QN_OK;
    }
    QN_TRY(r->status);
    if (!line || n <= 0) {
        fputc('\n', stdout);
        *event = QN_LINE_END;
        return QN_OK;
    }
    size_t length = strlen(line);
    if (length > 1 && !r->forgets) history(r->history, &entered, H_ENTER, line);
    if (length && line[length - 1] == '\n') length--;
    qn_buf_append(text, line, length);
    *event = QN_LINE_TEXT;
    return text->status;
}

/* The next byte of a pipe: 1; 0: its end; -1 at Ctrl-C and at an error. */
static int read_byte(qn_line_reader *r, char *byte)
{
    if (r->i_byte == r->n_bytes) {
        if (wait_for_input() < 0) return -1;
        ssize_t n = read(STDIN_FILENO, r->bytes, sizeof r->bytes);
        if (n <= 0) return (int)n;
        r->i_byte = 0;
        r->n_bytes = (size_t)n;
    }
    *byte = r->bytes[r->i_byte++];
    return 1;
}

static qn_status next_piped(qn_line_reader *r, qn_buf *text, qn_line_event *event)
{
    char c = 0;
    int got;
    while ((got = read_byte(r, &c)) == 1 && c != '\n') qn_buf_putc(text, c);
    int error = errno;
    if (qn_interrupt_taken()) {
        *event = QN_LINE_INTERRUPTED;
        return QN_OK;
    }
    if (got < 0) return qn_fail(QN_E_IO, "standard input: %s", strerror(error));
    *event = got == 0 && text->length == 0 ? QN_LINE_END : QN_LINE_TEXT;
    return text->status;
}

qn_status qn_line_next(qn_line_reader *r, const char *prompt, qn_buf *text, qn_line_event *event)
{
    qn_buf_reset(text);
    text->limit_bytes = LINE_BYTES_MAX;
    qn_buf_append(text, "", 0);
    return r->edit ? next_edited(r, prompt, text, event) : next_piped(r, text, event);
}
