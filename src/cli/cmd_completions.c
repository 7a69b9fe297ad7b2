/* quern completions: scripts that teach a shell quern's commands and options, made of the tables that
 * commands themselves parse by. */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/options/args.h"
#include "cli/term/out.h"

/* ---- what the tables say ------------------------------------------------------------------------------ */

/* What may follow an option. */
typedef enum { VALUE_NONE, VALUE_CHOICE, VALUE_PATH, VALUE_FREE } value_kind;

static value_kind kind_of(const qn_arg *a)
{
    if (a->kind == QN_ARG_FLAG) return VALUE_NONE;
    if (strchr(a->value, '|')) return VALUE_CHOICE;
    int is_path = strstr(a->value, "FILE") || strstr(a->value, "PATH") || strstr(a->value, "DIR") ||
                  strchr(a->value, '.');
    return is_path && a->kind == QN_ARG_TEXT ? VALUE_PATH : VALUE_FREE;
}

/* The words of "a|b|c" with a space between them. */
static void put_words(qn_buf *b, const char *choices)
{
    for (; *choices; choices++) qn_buf_putc(b, *choices == '|' ? ' ' : *choices);
}

/* Text inside single quotes; each of the characters in `escaped` gets a backslash. */
static void put_quoted(qn_buf *b, const char *text, const char *escaped)
{
    for (; *text; text++) {
        if (strchr(escaped, *text)) qn_buf_putc(b, '\\');
        if (*text == '\'')
            qn_buf_puts(b, "'\\''");
        else
            qn_buf_putc(b, *text);
    }
}

typedef void option_fn(qn_buf *b, const qn_command *c, const qn_arg *a);

static void for_each_option(qn_buf *b, const qn_command *c, option_fn *fn)
{
    for (const qn_arg_group *g = c->spec->groups; g->args; g++)
        for (const qn_arg *a = g->args; a->name; a++) fn(b, c, a);
}

/* ---- bash --------------------------------------------------------------------------------------------- */

static void bash_value(qn_buf *b, const qn_command *c, const qn_arg *a)
{
    value_kind kind = kind_of(a);
    if (kind == VALUE_NONE) return;
    qn_buf_printf(b, "    '%s %s'", c->name, a->name);
    if (a->letter) qn_buf_printf(b, " | '%s -%c'", c->name, a->letter);
    if (kind == VALUE_CHOICE) {
        qn_buf_puts(b, ") words='");
        put_words(b, a->value);
        qn_buf_puts(b, "' ;;\n");
    } else {
        qn_buf_puts(b,
                    kind == VALUE_PATH ? ") return ;;\n" : ") compopt +o default 2>/dev/null; return ;;\n");
    }
}

static void bash_name(qn_buf *b, const qn_command *c, const qn_arg *a)
{
    qn_buf_printf(b, " %s", a->name);
    if (a->letter) qn_buf_printf(b, " -%c", a->letter);
}

static void put_bash(qn_buf *b)
{
    qn_buf_puts(
        b, "# bash completion of quern, made by `quern completions bash`. An empty COMPREPLY offers files.\n"
           "_quern()\n{\n"
           "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=\n"
           "    if [ \"$before\" = = ]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
           "    if [ \"$current\" = = ]; then before=${COMP_WORDS[COMP_CWORD-1]}; current=; fi\n"
           "    COMPREPLY=()\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
           "        words='--help --version");
    for (const qn_command *c = qn_commands; c->name; c++) qn_buf_printf(b, " %s", c->name);
    qn_buf_puts(b, "'\n    else\n    case \"${COMP_WORDS[1]} $before\" in\n");
    for (const qn_command *c = qn_commands; c->name; c++) for_each_option(b, c, bash_value);
    qn_buf_puts(b, "    esac\n    if [ -z \"$words\" ]; then\n    case \"${COMP_WORDS[1]} $current\" in\n");
    for (const qn_command *c = qn_commands; c->name; c++) {
        qn_buf_printf(b, "    '%s -'*) words='--help -h", c->name);
        for_each_option(b, c, bash_name);
        qn_buf_puts(b, "' ;;\n");
        if (!c->spec->words) continue;
        qn_buf_printf(b, "    '%s '*) [ \"$COMP_CWORD\" -ne 2 ] || words='", c->name);
        put_words(b, c->spec->words);
        qn_buf_puts(b, "' ;;\n");
    }
    qn_buf_puts(b, "    esac\n    fi\n    fi\n"
                   "    [ -z \"$words\" ] || COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
                   "}\n"
                   "complete -o default -F _quern quern\n");
}

/* ---- zsh ---------------------------------------------------------------------------------------------- */

static void zsh_option(qn_buf *b, const qn_command *c, const qn_arg *a)
{
    value_kind kind = kind_of(a);
    const char *star = a->kind == QN_ARG_LIST ? "*" : "";
    qn_buf_puts(b, " \\\n            ");
    if (a->letter && a->kind != QN_ARG_LIST)
        qn_buf_printf(b, "'(-%c %s)'{-%c,%s}'[", a->letter, a->name, a->letter, a->name);
    else
        qn_buf_printf(b, "'%s%s[", star, a->name);
    put_quoted(b, a->help, "[]:\\");
    qn_buf_puts(b, "]");
    if (kind != VALUE_NONE) {
        qn_buf_puts(b, ":");
        put_quoted(b, kind == VALUE_CHOICE ? "value" : a->value, ":\\");
        qn_buf_puts(b, ":");
        if (kind == VALUE_CHOICE) {
            qn_buf_puts(b, "(");
            put_words(b, a->value);
            qn_buf_puts(b, ")");
        } else if (kind == VALUE_PATH) {
            qn_buf_puts(b, "_files");
        }
    }
    qn_buf_puts(b, "'");
}

static void put_zsh(qn_buf *b)
{
    qn_buf_puts(b, "#compdef quern\n# zsh completion of quern, made by `quern completions zsh`.\n"
                   "_quern()\n{\n"
                   "    local -a commands\n"
                   "    commands=(\n");
    for (const qn_command *c = qn_commands; c->name; c++) {
        qn_buf_printf(b, "        '%s:", c->name);
        put_quoted(b, c->summary, ":\\");
        qn_buf_puts(b, "'\n");
    }
    qn_buf_puts(
        b, "        '--help:list the commands'\n        '--version:versions and devices'\n    )\n"
           "    if (( CURRENT == 2 )); then\n        _describe command commands\n        return\n    fi\n"
           "    shift words\n    (( CURRENT-- ))\n"
           "    case $words[1] in\n");
    for (const qn_command *c = qn_commands; c->name; c++) {
        qn_buf_printf(
            b, "    %s)\n        _arguments -s \\\n            '(-h --help)'{-h,--help}'[list the options]'",
            c->name);
        for_each_option(b, c, zsh_option);
        if (c->spec->words) {
            qn_buf_puts(b, " \\\n            '1:what:(");
            put_words(b, c->spec->words);
            qn_buf_puts(b, ")'");
        }
        if (!c->spec->words || c->spec->n_positional_max > 1)
            qn_buf_puts(b, " \\\n            '*:path:_files'");
        qn_buf_puts(b, "\n        ;;\n");
    }
    qn_buf_puts(b, "    esac\n}\n"
                   "if [ \"$funcstack[1]\" = _quern ]; then _quern \"$@\"; else compdef _quern quern; fi\n");
}

/* ---- fish --------------------------------------------------------------------------------------------- */

/* fish knows \' and \\ inside single quotes. */
static void put_description(qn_buf *b, const char *text)
{
    qn_buf_puts(b, " -d '");
    for (const char *p = text; *p; p++) {
        if (*p == '\'' || *p == '\\') qn_buf_putc(b, '\\');
        qn_buf_putc(b, *p);
    }
    qn_buf_puts(b, "'\n");
}

static void fish_option(qn_buf *b, const qn_command *c, const qn_arg *a)
{
    value_kind kind = kind_of(a);
    qn_buf_printf(b, "complete -c quern -n '__fish_seen_subcommand_from %s' -l %s", c->name, a->name + 2);
    if (a->letter) qn_buf_printf(b, " -s %c", a->letter);
    if (kind == VALUE_CHOICE) {
        qn_buf_puts(b, " -x -a '");
        put_words(b, a->value);
        qn_buf_puts(b, "'");
    } else if (kind != VALUE_NONE) {
        qn_buf_puts(b, kind == VALUE_PATH ? " -r -F" : " -x");
    }
    put_description(b, a->help);
}

static void put_fish(qn_buf *b)
{
    qn_buf_puts(b, "# fish completion of quern, made by `quern completions fish`.\n"
                   "complete -c quern -n __fish_use_subcommand -f\n"
                   "complete -c quern -n __fish_use_subcommand -l version -d 'versions and devices'\n"
                   "complete -c quern -s h -l help -d 'list commands or options'\n");
    for (const qn_command *c = qn_commands; c->name; c++) {
        qn_buf_printf(b, "complete -c quern -n __fish_use_subcommand -a %s", c->name);
        put_description(b, c->summary);
        for_each_option(b, c, fish_option);
        if (!c->spec->words) continue;
        qn_buf_printf(b, "complete -c quern -n '__fish_seen_subcommand_from %s' -a '", c->name);
        put_words(b, c->spec->words);
        qn_buf_puts(b, "'\n");
    }
}

/* ------------------------------------------------------------------------------------------------------- */

static const qn_arg_group completions_groups[] = {{0}};
const qn_arg_spec qn_completions_spec = {
    "quern completions bash|zsh|fish",
    "Prints a script that completes quern's commands and options. To load it in a shell:\n"
    "  bash:  source <(quern completions bash)\n"
    "  zsh:   source <(quern completions zsh), after compinit\n"
    "  fish:  quern completions fish | source",
    completions_groups,
    1,
    1,
    "bash|zsh|fish"};

int qn_cmd_completions(int argc, char **argv)
{
    static const struct {
        const char *shell;
        void (*put)(qn_buf *b);
    } shells[] = {{"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};
    const char *shell;
    int n, code;
    if (qn_args_parse(&qn_completions_spec, NULL, argc, argv, &shell, &n, &code)) return code;
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++) {
        if (strcmp(shells[i].shell, shell) != 0) continue;
        qn_buf b = {0};
        shells[i].put(&b);
        qn_status status = b.status;
        if (status == QN_OK) status = qn_out_write(b.data, b.length);
        qn_buf_free(&b);
        return status == QN_OK ? QN_EXIT_OK : qn_out_fail();
    }
    return qn_args_fail("completions", "'%s' is none of %s", shell, qn_completions_spec.words);
}
