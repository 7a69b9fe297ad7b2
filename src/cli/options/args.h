/* Command-line options as tables: a command lists its options with the place where each value goes.
 *
 * Strict: an unknown option, a missing value, a number with anything behind it or out of range is a usage
 * error with one sentence. `--name value`, `--name=value`, `-name value`, `-n value`, `-n=value`, `-nvalue`;
 * `--` ends the options. `-m MODEL` is MODEL; what other programs call an option is understood where it means the
 * same, and else answered with our word. Help is printed from the same tables (help.h). */
#ifndef QN_CLI_OPTIONS_ARGS_H
#define QN_CLI_OPTIONS_ARGS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum {
    QN_ARG_FLAG,   /* int, set to 1 */
    QN_ARG_INT32,  /* int32_t in [low, high] */
    QN_ARG_INT64,  /* int64_t in [low, high] */
    QN_ARG_UINT64, /* uint64_t */
    QN_ARG_FLOAT,  /* float in [low, high] */
    QN_ARG_REAL,   /* double in [low, high] */
    QN_ARG_RATIO,  /* qn_arg_ratio: the same, where 0 is something else than nothing given */
    QN_ARG_BYTES,  /* size_t; K, M, G, T behind it are powers of 1024 */
    QN_ARG_LIMIT,  /* qn_arg_limit: the same, where 0 is something else than nothing given */
    QN_ARG_TEXT,   /* const char * */
    QN_ARG_LIST,   /* qn_arg_list: may be given several times */
    QN_ARG_CHOICE  /* int: index into the words of `choices` */
} qn_arg_kind;

enum { QN_ARG_LIST_MAX = 64 };
typedef struct {
    const char *items[QN_ARG_LIST_MAX];
    size_t n;
} qn_arg_list;

typedef struct {
    size_t bytes;
    int given;
} qn_arg_limit;

typedef struct {
    double value;
    int given;
} qn_arg_ratio;

typedef struct {
    const char *name; /* "--max-tokens" */
    char letter;      /* 'n' for -n; 0: none */
    qn_arg_kind kind;
    size_t offset;     /* of the value in the group's base */
    double low, high;  /* for numbers */
    const char *value; /* how help calls the value: "N". For choices "high|fast|exact" */
    const char *help;
} qn_arg;

/* Which options go together. An option is given if its value is not the unset one: a flag of 0, no text, an
 * empty list, the first of the choices, a number outside its range. A rule names no number whose unset value
 * lies in the range. */
typedef struct {
    const char *names; /* the options that the rule is about, with spaces; NULL: each option of the group */
    const char *excludes; /* none of these may be given beside them, or NULL; help lists it */
    const char *needs;    /* one of these must be given too, or NULL; an option's help says it */
    const char *why;      /* the reason behind the sentence, or NULL */
} qn_arg_rule;

typedef struct {
    const char *title;        /* a heading in help; NULL: "Options" */
    const qn_arg *args;       /* up to a row without a name */
    size_t offset;            /* of the structure that they fill in the command's options */
    const qn_arg_rule *rules; /* up to a row that neither excludes nor needs, or NULL */
} qn_arg_group;

/* Constant data: help, shell completions and the check of the manual page read it without running anything.
 */
typedef struct {
    const char *usage;          /* "quern run MODEL [-p PROMPT] [options]" */
    const char *about;          /* a paragraph for help */
    const qn_arg_group *groups; /* up to a group without args */
    int n_positional_min, n_positional_max;
    const char *words; /* what the first argument must be, "diff|sum"; NULL: a path */
} qn_arg_spec;

enum { QN_POSITIONAL_MAX = 4 };

/* Parses argv[1..argc) into the command's options and checks the rules. positional[0..*n_positional) get what
 * is no option. Returns 0 to go on; else *exit_code is what the command returns: help was printed, or a usage
 * error. */
int qn_args_parse(const qn_arg_spec *spec, void *options, int argc, char **argv, const char **positional,
                  int *n_positional, int *exit_code);
/* Puts one value where its option's goes, for whoever reads options elsewhere than from argv: text as behind
 * the option, of a flag anything. The text of QN_ARG_TEXT and QN_ARG_LIST is kept by reference. QN_E_ARG,
 * with a sentence that begins with the option's name. */
qn_status qn_args_set(const qn_arg *arg, void *options, const char *text);
/* Do the options that are given obey the rules of all groups? QN_E_ARG, with a sentence that names the two
 * options: "--ids cannot be used with --prompt", "--tokens needs --json". */
qn_status qn_args_check(const qn_arg_spec *spec, const void *options);
/* The option called name (n bytes, with or without the two hyphens, '_' as '-'); *offset is its group's.
 * NULL: none. */
const qn_arg *qn_args_find(const qn_arg_spec *spec, const char *name, size_t n, size_t *offset);
/* The option that name may be meant for: a slip of the hand away, or what other programs call it. NULL: none.
 */
const qn_arg *qn_args_nearest(const qn_arg_spec *spec, const char *name, size_t n);
/* How many slips of the hand `typed` is away from a word, 0 to 2; more, if it is not near. Case and '_' do not
 * count. */
int qn_args_is_near(const char *typed, const char *word);
/* Prints "quern: SENTENCE (see `quern NAME --help`)"; returns QN_EXIT_USAGE. command NULL: none. */
int qn_args_fail(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Whole-text numbers; 0 when s is none or does not fit. */
int qn_args_read_int(const char *s, int64_t *out);
int qn_args_read_uint(const char *s, uint64_t *out);
int qn_args_read_real(const char *s, double *out);

#endif
