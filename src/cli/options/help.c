#include "cli/options/help.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { LEFT_COLUMNS = 32, WIDTH_UNKNOWN = 80, WIDTH_MIN = 48, WIDTH_MAX = 120, NAMES_BYTES = 256 };

static const char *const common_options[][2] = {
    {"run",
     "--prompt --prompt-file --system --image --raw --json --stats --max-tokens --temp --top-p --top-k "
     "--seed --stop --context --threads --device --gpu-layers --adapter --template"},
    {"train",
     "--output --config --resume --overwrite --show-batch --dry-run --method --targets --rank --alpha --lr "
     "--epochs --steps --batch-size --max-length --mask --device"},
};

const char *qn_help_common(const char *command)
{
    for (size_t i = 0; i < sizeof common_options / sizeof *common_options; i++)
        if (strcmp(common_options[i][0], command) == 0) return common_options[i][1];
    return NULL;
}

static int find_width(void)
{
    struct winsize size;
    int columns = WIDTH_UNKNOWN;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col) columns = size.ws_col;
    return columns < WIDTH_MIN ? WIDTH_MIN : columns > WIDTH_MAX ? WIDTH_MAX : columns;
}

static int columns_of(const char *s, size_t n)
{
    int columns = 0;
    for (size_t i = 0; i < n; i++) columns += ((unsigned char)s[i] & 0xc0) != 0x80;
    return columns;
}

/* Words from column `at` on; further lines begin at `indent`. A line end in the text stays one if keep_lines. */
static void put_wrapped(const char *text, int at, int indent, int width, int keep_lines)
{
    int is_first = 1;
    while (*text) {
        const size_t gap = strspn(text, " \n");
        const int is_break = keep_lines && memchr(text, '\n', gap) != NULL;
        text += gap;
        const size_t n = strcspn(text, " \n");
        if (!n) break;
        const int columns = columns_of(text, n);
        if (is_break || (!is_first && at + 1 + columns > width)) {
            printf("\n%*s", indent, "");
            at = indent;
            is_first = 1;
        }
        printf("%s%.*s", is_first ? "" : " ", (int)n, text);
        at += columns + !is_first;
        is_first = 0;
        text += n;
    }
    putchar('\n');
}

static void put_option(const qn_arg *a, int width)
{
    char left[128];
    int n = snprintf(left, sizeof left, "  %c%c%c %s%s%s", a->letter ? '-' : ' ', a->letter ? a->letter : ' ',
                     a->letter ? ',' : ' ', a->name, a->value ? " " : "", a->value ? a->value : "");
    if (n > LEFT_COLUMNS - 2)
        printf("%s\n%*s", left, LEFT_COLUMNS, "");
    else
        printf("%-*s", LEFT_COLUMNS, left);
    put_wrapped(a->help, LEFT_COLUMNS, LEFT_COLUMNS, width, 0);
}

/* "--a --b --c" as "--a, --b or --c". */
static const char *list_names(const char *names, char *out, size_t size)
{
    size_t length = 0;
    out[0] = 0;
    for (size_t n; *names && length < size; names += n + (names[n] == ' ')) {
        n = strcspn(names, " ");
        const char *before = !length ? "" : names[n] ? ", " : " or ";
        length += (size_t)snprintf(out + length, size - length, "%s%.*s", before, (int)n, names);
    }
    return out;
}

static void put_rules(const qn_arg_spec *spec, int width)
{
    char names[NAMES_BYTES], others[NAMES_BYTES], line[3 * NAMES_BYTES];
    int n = 0;
    for (const qn_arg_group *g = spec->groups; g->args; g++)
        for (const qn_arg_rule *r = g->rules; r && (r->excludes || r->needs); r++) {
            if (!r->excludes) continue;
            if (n++ == 0) printf("\nRules:\n");
            snprintf(
                line, sizeof line, "%s cannot be used with %s%s%s", list_names(r->names, names, sizeof names),
                list_names(r->excludes, others, sizeof others), r->why ? ": " : "", r->why ? r->why : "");
            printf("  ");
            put_wrapped(line, 2, 4, width, 0);
        }
}

static void put_common(const qn_arg_spec *spec, const char *names, int width)
{
    printf("\nCommon options:\n");
    for (size_t n, offset; *names; names += n + (names[n] == ' ')) {
        n = strcspn(names, " ");
        const qn_arg *a = qn_args_find(spec, names, n, &offset);
        if (a) put_option(a, width);
    }
}

void qn_help_print(const qn_arg_spec *spec, int all)
{
    char command[32] = "";
    const int width = find_width();
    sscanf(spec->usage, "quern %31s", command);
    const char *common = all ? NULL : qn_help_common(command);
    printf("Usage: ");
    put_wrapped(spec->usage, 7, 7, width, 1);
    putchar('\n');
    put_wrapped(spec->about, 0, 0, width, strstr(spec->about, "\n  ") != NULL);
    if (common) {
        put_common(spec, common, width);
        printf("\n`quern %s --help all` lists all options.\n", command);
        return;
    }
    for (const qn_arg_group *g = spec->groups; g->args; g++) {
        printf("\n%s:\n", g->title ? g->title : "Options");
        for (const qn_arg *a = g->args; a->name; a++) put_option(a, width);
    }
    put_rules(spec, width);
}
