#include "cli/args.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "cli/out.h"

int qn_args_fail(const char *command, const char *fmt, ...)
{
    char text[QN_ERROR_TEXT_MAX - 64]; /* the rest of the note has its place */
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    qn_out_note("%s (see `quern %s%s--help`)", text, command ? command : "", command ? " " : "");
    return QN_EXIT_USAGE;
}

/* strtol and strtod pass over it. */
static int is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

int qn_args_read_int(const char *s, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(s, &end, 10);
    if (end == s || *end || errno || is_space(s[0])) return 0;
    *out = value;
    return 1;
}

int qn_args_read_uint(const char *s, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(s, &end, 10);
    if (end == s || *end || errno || s[0] < '0' || s[0] > '9') return 0;
    *out = value;
    return 1;
}

int qn_args_read_real(const char *s, double *out)
{
    char *end;
    errno = 0;
    double value = strtod(s, &end);
    if (end == s || *end || !isfinite(value) || is_space(s[0])) return 0;
    *out = value;
    return 1;
}

static int read_bytes(const char *s, size_t *out)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(s, &end, 10);
    if (end == s || errno || s[0] < '0' || s[0] > '9') return 0;
    static const char units[] = "KMGT";
    if (*end) {
        const char *unit = strchr(units, *end >= 'a' ? *end - 'a' + 'A' : *end);
        if (!unit) return 0;
        int shift = (int)(unit - units + 1) * 10;
        if (value > SIZE_MAX >> shift) return 0;
        value <<= shift;
        end++;
        if (strcmp(end, "iB") != 0 && strcmp(end, "B") != 0 && *end) return 0;
    }
    *out = (size_t)value;
    return 1;
}

/* Index of the word s in "a|b|c", -1: none. */
static int find_choice(const char *choices, const char *s)
{
    size_t n = strlen(s);
    for (int i = 0;; i++) {
        size_t length = strcspn(choices, "|");
        if (n && length == n && memcmp(choices, s, n) == 0) return i;
        if (!choices[length]) return -1;
        choices += length + 1;
    }
}

static int store(const char *command, const qn_arg *arg, void *base, const char *value)
{
    char *to = (char *)base + arg->offset;
    int64_t integer;
    double real;
    int choice;
    switch (arg->kind) {
    case QN_ARG_FLAG:
        *(int *)(void *)to = 1;
        return 0;
    case QN_ARG_INT32:
    case QN_ARG_INT64:
        if (!qn_args_read_int(value, &integer))
            return qn_args_fail(command, "%s: '%s' is not a whole number", arg->name, value);
        if ((double)integer < arg->low || (double)integer > arg->high)
            return qn_args_fail(command, "%s: %s is not in the range %.0f to %.0f", arg->name, value,
                                arg->low, arg->high);
        if (arg->kind == QN_ARG_INT32)
            *(int32_t *)(void *)to = (int32_t)integer;
        else
            *(int64_t *)(void *)to = integer;
        return 0;
    case QN_ARG_UINT64:
        if (!qn_args_read_uint(value, (uint64_t *)(void *)to))
            return qn_args_fail(command, "%s: '%s' is not a whole number from 0 to 2^64 - 1", arg->name,
                                value);
        return 0;
    case QN_ARG_FLOAT:
        if (!qn_args_read_real(value, &real))
            return qn_args_fail(command, "%s: '%s' is not a number", arg->name, value);
        if (real < arg->low || real > arg->high)
            return qn_args_fail(command, "%s: %s is not in the range %g to %g", arg->name, value, arg->low,
                                arg->high);
        *(float *)(void *)to = (float)real;
        return 0;
    case QN_ARG_BYTES:
        if (!read_bytes(value, (size_t *)(void *)to))
            return qn_args_fail(command, "%s: '%s' is not a size such as 512M or 2G", arg->name, value);
        return 0;
    case QN_ARG_TEXT:
        *(const char **)(void *)to = value;
        return 0;
    case QN_ARG_LIST: {
        qn_arg_list *list = (qn_arg_list *)(void *)to;
        if (list->n == QN_ARG_LIST_MAX)
            return qn_args_fail(command, "%s is given more than %d times", arg->name, QN_ARG_LIST_MAX);
        list->items[list->n++] = value;
        return 0;
    }
    case QN_ARG_CHOICE:
        choice = find_choice(arg->value, value);
        if (choice < 0) return qn_args_fail(command, "%s: '%s' is none of %s", arg->name, value, arg->value);
        *(int *)(void *)to = choice;
        return 0;
    }
    return 0;
}

/* Finds the option that text (up to n bytes) names; text begins with '-'. */
static const qn_arg *find(const qn_arg_spec *spec, const char *text, size_t n, size_t *offset)
{
    for (const qn_arg_group *g = spec->groups; g->args; g++) {
        for (const qn_arg *a = g->args; a->name; a++) {
            int is_long = strlen(a->name) == n && memcmp(a->name, text, n) == 0;
            int is_letter = n == 2 && a->letter && text[1] == a->letter;
            if (is_long || is_letter) {
                *offset = g->offset;
                return a;
            }
        }
    }
    return NULL;
}

static void print_help(const qn_arg_spec *spec)
{
    printf("Usage: %s\n\n%s\n", spec->usage, spec->about);
    for (const qn_arg_group *g = spec->groups; g->args; g++) {
        printf("\n%s:\n", g->title ? g->title : "Options");
        for (const qn_arg *a = g->args; a->name; a++) {
            char left[80];
            int n = snprintf(left, sizeof left, "  %c%c%c %s%s%s", a->letter ? '-' : ' ',
                             a->letter ? a->letter : ' ', a->letter ? ',' : ' ', a->name, a->value ? " " : "",
                             a->value ? a->value : "");
            if (n > 30)
                printf("%s\n%32s%s\n", left, "", a->help);
            else
                printf("%-32s%s\n", left, a->help);
        }
    }
}

int qn_args_parse(const qn_arg_spec *spec, void *options, int argc, char **argv, const char **positional,
                  int *n_positional, int *exit_code)
{
    const char *command = argv[0];
    int only_positional = 0, n = 0;
    *exit_code = QN_EXIT_USAGE;
    for (int i = 1; i < argc; i++) {
        const char *text = argv[i];
        if (only_positional || text[0] != '-' || text[1] == 0) {
            if (n == spec->n_positional_max) {
                size_t unused;
                int takes_prompt = find(spec, "--prompt", strlen("--prompt"), &unused) != NULL;
                qn_args_fail(command, "'%s' is one argument too many%s", text,
                             takes_prompt ? " (a prompt goes behind -p)" : "");
                return 1;
            }
            positional[n++] = text;
            continue;
        }
        if (strcmp(text, "--") == 0) {
            only_positional = 1;
            continue;
        }
        if (strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0) {
            print_help(spec);
            *exit_code = QN_EXIT_OK;
            return 1;
        }
        /* "--name=value", "-n=value", "-nvalue" */
        size_t length = text[1] == '-' ? strcspn(text, "=") : 2, offset = 0;
        const char *value = text[length] ? text + length + (text[length] == '=') : NULL;
        const qn_arg *arg = find(spec, text, length, &offset);
        if (!arg) {
            qn_args_fail(command, "unknown option %s", text);
            return 1;
        }
        if (arg->kind == QN_ARG_FLAG) {
            if (value) {
                qn_args_fail(command, "%s takes no value", arg->name);
                return 1;
            }
        } else if (!value) {
            if (i + 1 == argc) {
                qn_args_fail(command, "%s needs a value", arg->name);
                return 1;
            }
            value = argv[++i];
        }
        if (store(command, arg, (char *)options + offset, value)) return 1;
    }
    if (n < spec->n_positional_min) {
        qn_args_fail(command, "usage: %s", spec->usage);
        return 1;
    }
    *n_positional = n;
    return 0;
}
