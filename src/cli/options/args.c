#include "cli/options/args.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "cli/options/help.h"
#include "cli/term/out.h"

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

static qn_status set_integer(const qn_arg *arg, char *to, const char *text)
{
    int64_t value;
    if (!qn_args_read_int(text, &value))
        return qn_fail(QN_E_ARG, "%s: '%s' is not a whole number", arg->name, text);
    if ((double)value < arg->low || (double)value > arg->high)
        return qn_fail(QN_E_ARG, "%s: %s is not in the range %.0f to %.0f", arg->name, text, arg->low,
                       arg->high);
    if (arg->kind == QN_ARG_INT32)
        *(int32_t *)(void *)to = (int32_t)value;
    else
        *(int64_t *)(void *)to = value;
    return QN_OK;
}

static qn_status set_real(const qn_arg *arg, char *to, const char *text)
{
    double value;
    if (!qn_args_read_real(text, &value))
        return qn_fail(QN_E_ARG, "%s: '%s' is not a number", arg->name, text);
    if (value < arg->low || value > arg->high)
        return qn_fail(QN_E_ARG, "%s: %s is not in the range %g to %g", arg->name, text, arg->low, arg->high);
    if (arg->kind == QN_ARG_FLOAT)
        *(float *)(void *)to = (float)value;
    else if (arg->kind == QN_ARG_RATIO)
        *(qn_arg_ratio *)(void *)to = (qn_arg_ratio){value, 1};
    else
        *(double *)(void *)to = value;
    return QN_OK;
}

static qn_status set_bytes(const qn_arg *arg, size_t *to, const char *text)
{
    if (read_bytes(text, to)) return QN_OK;
    return qn_fail(QN_E_ARG, "%s: '%s' is not a size such as 512M or 2G", arg->name, text);
}

qn_status qn_args_set(const qn_arg *arg, void *options, const char *text)
{
    char *to = (char *)options + arg->offset;
    int choice;
    switch (arg->kind) {
    case QN_ARG_FLAG:
        *(int *)(void *)to = 1;
        return QN_OK;
    case QN_ARG_INT32:
    case QN_ARG_INT64:
        return set_integer(arg, to, text);
    case QN_ARG_FLOAT:
    case QN_ARG_REAL:
    case QN_ARG_RATIO:
        return set_real(arg, to, text);
    case QN_ARG_UINT64:
        if (!qn_args_read_uint(text, (uint64_t *)(void *)to))
            return qn_fail(QN_E_ARG, "%s: '%s' is not a whole number from 0 to 2^64 - 1", arg->name, text);
        return QN_OK;
    case QN_ARG_BYTES:
        return set_bytes(arg, (size_t *)(void *)to, text);
    case QN_ARG_LIMIT:
        ((qn_arg_limit *)(void *)to)->given = 1;
        return set_bytes(arg, &((qn_arg_limit *)(void *)to)->bytes, text);
    case QN_ARG_TEXT:
        *(const char **)(void *)to = text;
        return QN_OK;
    case QN_ARG_LIST: {
        qn_arg_list *list = (qn_arg_list *)(void *)to;
        if (list->n == QN_ARG_LIST_MAX)
            return qn_fail(QN_E_ARG, "%s is given more than %d times", arg->name, QN_ARG_LIST_MAX);
        list->items[list->n++] = text;
        return QN_OK;
    }
    case QN_ARG_CHOICE:
        choice = find_choice(arg->value, text);
        if (choice < 0) return qn_fail(QN_E_ARG, "%s: '%s' is none of %s", arg->name, text, arg->value);
        *(int *)(void *)to = choice;
        return QN_OK;
    }
    return QN_OK;
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

/* ---- names that are nearly right ----------------------------------------------------------------------- */

enum { NAME_MAX_BYTES = 48, RULE_NAMES_BYTES = 256 };

/* Without hyphens before it, in small letters, '_' as '-'. Returns 0 where it is too long to be one. */
static int plain_name(const char *name, size_t n, char out[NAME_MAX_BYTES])
{
    while (n && *name == '-') name++, n--;
    if (n >= NAME_MAX_BYTES) return 0;
    for (size_t i = 0; i < n; i++)
        out[i] = name[i] == '_' ? '-' : name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] + 32) : name[i];
    out[n] = 0;
    return n > 0;
}

const qn_arg *qn_args_find(const qn_arg_spec *spec, const char *name, size_t n, size_t *offset)
{
    char plain[NAME_MAX_BYTES];
    if (!plain_name(name, n, plain)) return NULL;
    for (const qn_arg_group *g = spec->groups; g->args; g++)
        for (const qn_arg *a = g->args; a->name; a++)
            if (strcmp(a->name + 2, plain) == 0) {
                *offset = g->offset;
                return a;
            }
    return NULL;
}

/* Letters that are put in, left out, changed or exchanged with their neighbour (Damerau; optimal alignment).
 */
static size_t distance(const char *a, const char *b)
{
    size_t rows[3][NAME_MAX_BYTES + 1], n = strlen(b);
    for (size_t k = 0; k <= n; k++) rows[0][k] = k;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t *row = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t k = 1; k <= n; k++) {
            size_t best = last[k - 1] + (a[i - 1] != b[k - 1]);
            if (last[k] + 1 < best) best = last[k] + 1;
            if (row[k - 1] + 1 < best) best = row[k - 1] + 1;
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1] && before[k - 2] + 1 < best)
                best = before[k - 2] + 1;
            row[k] = best;
        }
    }
    return rows[strlen(a) % 3][n];
}

/* What peft, mlx_lm and transformers call what an option of ours is. */
static const char *const foreign_names[][2] = {
    {"learning-rate", "--lr"},
    {"iters", "--steps"},
    {"max-steps", "--steps"},
    {"num-train-epochs", "--epochs"},
    {"per-device-train-batch-size", "--batch-size"},
    {"gradient-accumulation-steps", "--accumulate"},
    {"grad-accumulation-steps", "--accumulate"},
    {"gradient-checkpointing", "--checkpoint-layers"},
    {"grad-checkpoint", "--checkpoint-layers"},
    {"max-grad-norm", "--clip-norm"},
    {"max-seq-length", "--max-length"},
    {"warmup-steps", "--warmup"},
    {"steps-per-eval", "--validate-every"},
    {"eval-steps", "--validate-every"},
    {"val-batches", "--validate-batches"},
    {"save-steps", "--save-every"},
    {"adapter-path", "--output"},
    {"output-dir", "--output"},
    {"fine-tune-type", "--method"},
    {"target-modules", "--targets"},
    {"keys", "--targets"},
    {"r", "--rank"},
    {"lora-r", "--rank"},
    {"lora-rank", "--rank"},
    {"lora-alpha", "--alpha"},
    {"lora-dropout", "--dropout"},
    {"use-rslora", "--rslora"},
    {"lr-scheduler-type", "--schedule"},
    {"optim", "--optimizer"},
    /* of inference, where ours is another thing */
    {"max-kv-size", "--context"},
    {"mlock", "--wired-limit"},
};

/* What llama.cpp, Ollama and transformers call an option of ours that means the same and takes the same values: such
 * a name is understood. Of the same name the first that a command has counts. */
static const char *const synonyms[][2] = {
    {"ngl", "--gpu-layers"},
    {"n-gpu-layers", "--gpu-layers"},
    {"ctx-size", "--context"},
    {"num-ctx", "--context"},
    {"n-ctx", "--context"},
    {"n-predict", "--max-tokens"},
    {"predict", "--max-tokens"},
    {"num-predict", "--max-tokens"},
    {"max-new-tokens", "--max-tokens"},
    {"temperature", "--temp"},
    {"repetition-penalty", "--repeat-penalty"},
    {"lora", "--adapter"},
    {"adapter", "--adapter"},
    {"np", "--parallel"},
    {"np", "--slots"},
    {"parallel", "--slots"},
    {"ctk", "--kv-type"},
    {"cache-type-k", "--kv-type"},
    {"chat-template-file", "--template"},
    {"hf-file", "--file"},
    {"md", "--draft-model"},
    {"model-draft", "--draft-model"},
    {"sys", "--system"},
    {"system-prompt", "--system"},
    {"file", "--prompt-file"},
    {"rope-freq-base", "--rope-theta"},
};

/* The foreign name's option; NULL: it is none, or the command has no such option. */
static const qn_arg *find_foreign(const qn_arg_spec *spec, const char *plain)
{
    size_t unused;
    for (size_t i = 0; i < sizeof foreign_names / sizeof foreign_names[0]; i++) {
        const char *own = foreign_names[i][1];
        const qn_arg *arg =
            strcmp(foreign_names[i][0], plain) == 0 ? qn_args_find(spec, own, strlen(own), &unused) : NULL;
        if (arg) return arg;
    }
    return NULL;
}

int qn_args_is_near(const char *typed, const char *word)
{
    char a[NAME_MAX_BYTES], b[NAME_MAX_BYTES];
    if (!plain_name(typed, strlen(typed), a) || !plain_name(word, strlen(word), b)) return NAME_MAX_BYTES;
    const size_t d = distance(a, b);
    return d <= 2 && 2 * d < strlen(a) + (d == 1) ? (int)d : NAME_MAX_BYTES;
}

const qn_arg *qn_args_nearest(const qn_arg_spec *spec, const char *name, size_t n)
{
    char plain[NAME_MAX_BYTES];
    const qn_arg *best = NULL;
    size_t least = NAME_MAX_BYTES;
    if (!plain_name(name, n, plain)) return NULL;
    if ((best = find_foreign(spec, plain))) return best;
    for (const qn_arg_group *g = spec->groups; g->args; g++)
        for (const qn_arg *a = g->args; a->name; a++) {
            size_t d = distance(plain, a->name + 2);
            if (d < least) {
                least = d;
                best = a;
            }
        }
    return least <= 2 && 2 * least < strlen(plain) ? best : NULL;
}

/* The option that a synonym means; NULL: it is none, or the command has no such option. */
static const qn_arg *find_synonym(const qn_arg_spec *spec, const char *name, size_t n, size_t *offset)
{
    char plain[NAME_MAX_BYTES];
    if (!plain_name(name, n, plain)) return NULL;
    for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; i++) {
        const char *own = synonyms[i][1];
        const qn_arg *arg =
            strcmp(synonyms[i][0], plain) == 0 ? qn_args_find(spec, own, strlen(own), offset) : NULL;
        if (arg) return arg;
    }
    return NULL;
}

/* How many bytes of text are the option's name. "-prompt=x": a long name behind one hyphen, as Go programs have
 * it, is not the letter p with a value behind it. *is_long: it is such a name, of this option or (foreign) of
 * other programs. */
static size_t name_length(const qn_arg_spec *spec, const char *text, int *is_long)
{
    char plain[NAME_MAX_BYTES];
    size_t n = strcspn(text, "="), unused;
    *is_long = text[1] != '-' && n > 2 && plain_name(text, n, plain) &&
               (qn_args_find(spec, text, n, &unused) || find_synonym(spec, text, n, &unused) ||
                find_foreign(spec, plain));
    return text[1] == '-' || *is_long ? n : 2;
}

/* Is it what other programs call the model's path? */
static int names_model(const qn_arg_spec *spec, const char *text)
{
    static const char *const names[] = {"model", "m", "model-path", "models"};
    char plain[NAME_MAX_BYTES];
    if (!strstr(spec->usage, "MODEL") || !plain_name(text, strcspn(text, "="), plain)) return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(plain, names[i]) == 0) return 1;
    return 0;
}

/* Says what is wrong with an option that there is not. */
static void fail_unknown(const qn_arg_spec *spec, const char *command, const char *text)
{
    const qn_arg *arg = qn_args_nearest(spec, text, strcspn(text, "="));
    if (arg)
        qn_args_fail(command, "unknown option %s; did you mean %s?", text, arg->name);
    else
        qn_args_fail(command, "unknown option %s", text);
}

/* ---- rules --------------------------------------------------------------------------------------------- */

static int is_given(const qn_arg *arg, const void *group)
{
    const void *at = (const char *)group + arg->offset;
    double number = 0;
    switch (arg->kind) {
    case QN_ARG_FLAG:
    case QN_ARG_CHOICE:
        return *(const int *)at != 0;
    case QN_ARG_TEXT:
        return *(const char *const *)at != NULL;
    case QN_ARG_LIST:
        return ((const qn_arg_list *)at)->n > 0;
    case QN_ARG_LIMIT:
        return ((const qn_arg_limit *)at)->given;
    case QN_ARG_RATIO:
        return ((const qn_arg_ratio *)at)->given;
    case QN_ARG_BYTES:
        return *(const size_t *)at != 0;
    case QN_ARG_UINT64:
        return *(const uint64_t *)at != 0;
    case QN_ARG_INT32:
        number = *(const int32_t *)at;
        break;
    case QN_ARG_INT64:
        number = (double)*(const int64_t *)at;
        break;
    case QN_ARG_FLOAT:
        number = (double)*(const float *)at;
        break;
    case QN_ARG_REAL:
        number = *(const double *)at;
        break;
    }
    return number >= arg->low && number <= arg->high;
}

/* The first of the options in names (with spaces) that is given; NULL: none. */
static const qn_arg *find_given(const qn_arg_spec *spec, const char *names, const void *options)
{
    for (size_t n, offset = 0; *names; names += n + (names[n] == ' ')) {
        n = strcspn(names, " ");
        const qn_arg *arg = find(spec, names, n, &offset);
        assert(arg);
        if (arg && is_given(arg, (const char *)options + offset)) return arg;
    }
    return NULL;
}

/* The options that a rule is about: the first that is given; NULL: none. */
static const qn_arg *find_subject(const qn_arg_spec *spec, const qn_arg_group *g, const qn_arg_rule *rule,
                                  const void *options)
{
    if (rule->names) return find_given(spec, rule->names, options);
    for (const qn_arg *a = g->args; a->name; a++)
        if (is_given(a, (const char *)options + g->offset)) return a;
    return NULL;
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

static qn_status check_rule(const qn_arg_spec *spec, const qn_arg_group *g, const qn_arg_rule *rule,
                            const void *options)
{
    char names[RULE_NAMES_BYTES];
    const char *colon = rule->why ? ": " : "", *why = rule->why ? rule->why : "";
    const qn_arg *arg = find_subject(spec, g, rule, options), *other;
    if (!arg) return QN_OK;
    if (rule->excludes && (other = find_given(spec, rule->excludes, options)))
        return qn_fail(QN_E_ARG, "%s cannot be used with %s%s%s", arg->name, other->name, colon, why);
    if (rule->needs && !find_given(spec, rule->needs, options))
        return qn_fail(QN_E_ARG, "%s needs %s%s%s", arg->name, list_names(rule->needs, names, sizeof names),
                       colon, why);
    return QN_OK;
}

qn_status qn_args_check(const qn_arg_spec *spec, const void *options)
{
    for (const qn_arg_group *g = spec->groups; g->args; g++)
        for (const qn_arg_rule *r = g->rules; r && (r->excludes || r->needs); r++)
            QN_TRY(check_rule(spec, g, r, options));
    return QN_OK;
}

/* ---- parsing ------------------------------------------------------------------------------------------- */

int qn_args_parse(const qn_arg_spec *spec, void *options, int argc, char **argv, const char **positional,
                  int *n_positional, int *exit_code)
{
    const char *command = argv[0], *model = NULL;
    int only_positional = 0, n = 0;
    *exit_code = QN_EXIT_USAGE;
    for (int i = 1; i < argc; i++) {
        const char *text = argv[i];
        if (only_positional || text[0] != '-' || text[1] == 0) {
            if (n == spec->n_positional_max) {
                size_t unused;
                int takes_prompt = find(spec, "--prompt", strlen("--prompt"), &unused) != NULL;
                qn_args_fail(command, "'%s' is one argument too many%s", text,
                             takes_prompt ? " (use -p for a prompt)" : "");
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
            qn_help_print(spec, i + 1 < argc && strcmp(argv[i + 1], "all") == 0);
            *exit_code = QN_EXIT_OK;
            return 1;
        }
        /* "--name=value", "-n=value", "-nvalue" */
        int is_long;
        size_t length = name_length(spec, text, &is_long), offset = 0;
        const char *value = text[length] ? text + length + (text[length] == '=') : NULL;
        const qn_arg *arg =
            is_long ? qn_args_find(spec, text, length, &offset) : find(spec, text, length, &offset);
        if (!arg && names_model(spec, text)) {
            const size_t n_name = strcspn(text, "=");
            if (text[n_name])
                model = text + n_name + 1;
            else if (i + 1 < argc)
                model = argv[++i];
            else {
                qn_args_fail(command, "%s needs a value: the model", text);
                return 1;
            }
            continue;
        }
        if (!arg && (is_long || text[1] == '-')) arg = find_synonym(spec, text, length, &offset);
        if (!arg) {
            fail_unknown(spec, command, text);
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
        if (qn_args_set(arg, (char *)options + offset, value) != QN_OK) {
            qn_args_fail(command, "%s", qn_last_error());
            return 1;
        }
    }
    if (model) {
        if (n == spec->n_positional_max) {
            qn_args_fail(command, "'%s' is one argument too many: the model is %s", positional[n - 1], model);
            return 1;
        }
        memmove(positional + 1, positional, (size_t)n * sizeof *positional);
        positional[0] = model;
        n++;
    }
    if (n < spec->n_positional_min) {
        qn_args_fail(command, "usage: %s", spec->usage);
        return 1;
    }
    if (qn_args_check(spec, options) != QN_OK) {
        qn_args_fail(command, "%s", qn_last_error());
        return 1;
    }
    *n_positional = n;
    return 0;
}
