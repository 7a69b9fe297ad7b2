#include "cli/chat/think_split.h"

#include <string.h>

static const char opening[] = "<think>", closing[] = "</think>";

void qn_think_split_begin(qn_think_split *t, int inside)
{
    *t = (qn_think_split){.state = inside ? QN_THINK_INSIDE : QN_THINK_BEFORE};
}

static void hand_out(const qn_think_split *t, const char *text, size_t n, qn_think_fn *fn, void *user)
{
    if (n) fn(user, t->state == QN_THINK_INSIDE, text, n);
}

void qn_think_split_flush(qn_think_split *t, qn_think_fn *fn, void *user)
{
    hand_out(t, t->held, t->n_held, fn, user);
    t->n_held = 0;
}

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* How many bytes cannot belong to a mark. */
static size_t plain_run(const qn_think_split *t, const char *text, size_t n)
{
    size_t run = 0;
    if (t->state == QN_THINK_INSIDE)
        while (run < n && text[run] != '<') run++;
    else
        while (run < n && is_blank(text[run])) run++;
    return run;
}

static void complete(qn_think_split *t, qn_think_fn *fn, void *user)
{
    int closes = t->state == QN_THINK_INSIDE;
    t->state = QN_THINK_INSIDE;
    qn_think_split_flush(t, fn, user);
    if (closes) t->state = QN_THINK_AFTER;
}

void qn_think_split_put(qn_think_split *t, const char *text, size_t n, qn_think_fn *fn, void *user)
{
    size_t at = 0;
    while (at < n && t->state != QN_THINK_AFTER) {
        size_t run = t->n_held ? 0 : plain_run(t, text + at, n - at);
        hand_out(t, text + at, run, fn, user);
        at += run;
        if (at == n) return;
        const char *mark = t->state == QN_THINK_INSIDE ? closing : opening;
        if (text[at] == mark[t->n_held]) {
            t->held[t->n_held++] = text[at++];
            if (!mark[t->n_held]) complete(t, fn, user);
            continue;
        }
        /* No mark. '<' is its first character alone, so the next one is looked for from here on. */
        if (t->state == QN_THINK_BEFORE) t->state = QN_THINK_AFTER;
        qn_think_split_flush(t, fn, user);
    }
    hand_out(t, text + at, n - at, fn, user);
}

int qn_think_split_is_open(const char *prompt)
{
    size_t n = strlen(prompt), length = sizeof opening - 1;
    while (n && is_blank(prompt[n - 1])) n--;
    return n >= length && memcmp(prompt + n - length, opening, length) == 0;
}
