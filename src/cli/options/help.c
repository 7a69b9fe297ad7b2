#include "cli/options/help.h"

#include <stdio.h>
#include <string.h>

#include "cli/term/fold.h"

enum { LEFT_COLUMNS = 32, WIDTH_MIN = 48, WIDTH_MAX = 120, NAMES_BYTES = 256 };

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
    const int columns = qn_fold_columns(stdout);
    return columns < WIDTH_MIN ? WIDTH_MIN : columns > WIDTH_MAX ? WIDTH_MAX : columns;
}

/* Words from column `at` on; further lines begin at `indent`. */
static void put_wrapped(const char *text, int at, int indent, int width, int keep_lines)
{
    qn_buf b = {0};
    qn_fold_put(&b, text, at, indent, width, QN_FOLD_LONG | (keep_lines ? QN_FOLD_LINES : 0));
    if (b.status == QN_OK) puts(b.data ? b.data : "");
    qn_buf_free(&b);
}

void qn_help_text(const char *text, int indent)
{
    put_wrapped(text, indent, indent, find_width(), 0);
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
