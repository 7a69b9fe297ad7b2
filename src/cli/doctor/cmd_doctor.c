/* quern doctor: opens a model step by step and says what is wrong with it and what to do. */
#include <quern/quern.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/doctor/doctor.h"
#include "cli/term/fold.h"
#include "cli/term/out.h"

typedef struct {
    qn_load_options load;
    int32_t max_tokens;
    int no_compute, json;
} doctor_options;

#define AT(field) offsetof(doctor_options, field)
static const qn_arg doctor_args[] = {
    {"--max-tokens", 'n', QN_ARG_INT32, AT(max_tokens), 1, 4096, "N",
     "tokens to generate at the end (default 8)"},
    {"--no-compute", 0, QN_ARG_FLAG, AT(no_compute), 0, 0, NULL,
     "check only the files; do not load the weights"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print one JSON object"},
    {0},
};

enum { TEXT_COLUMN = 20 };

static const char *const found_names[QN_FOUND_COUNT] = {"ok", "warning", "failed", "skipped"};
static const char *const found_styles[QN_FOUND_COUNT] = {"\033[32m", "\033[33m", "\033[31m", "\033[2m"};

static void put_finding(qn_doctor *d, qn_found found, const char *text, const char *next)
{
    qn_buf *b = &d->findings;
    qn_json_open(b, '{');
    qn_json_put_text(b, "step", d->step);
    qn_json_put_text(b, "result", found_names[found]);
    qn_json_put_text(b, "text", text);
    if (next) qn_json_put_text(b, "next", next);
    qn_json_close(b, '}');
    if (d->status == QN_OK) d->status = b->status;
}

static void print_finding(qn_doctor *d, qn_found found, const char *text, const char *next)
{
    qn_buf b = {0};
    const int style = qn_out_has_style(stdout), columns = qn_fold_terminal(stdout);
    qn_buf_printf(&b, "%-10s %s%-8s%s ", d->step, style ? found_styles[found] : "", found_names[found],
                  style ? "\033[0m" : "");
    qn_fold_put_shown(&b, text, strlen(text), TEXT_COLUMN, TEXT_COLUMN, columns, QN_FOLD_LONG);
    if (next) {
        qn_buf_printf(&b, "\n%*s-> ", TEXT_COLUMN, "");
        qn_fold_put_shown(&b, next, strlen(next), TEXT_COLUMN + 3, TEXT_COLUMN + 3, columns, 0);
    }
    qn_status status = qn_out_line(&b);
    if (d->status == QN_OK) d->status = status;
}

static void report(qn_doctor *d, qn_found found, const char *text, const char *next)
{
    d->n_found[found]++;
    (d->json ? put_finding : print_finding)(d, found, text, next);
}

void qn_doctor_say(qn_doctor *d, qn_found found, const char *next, const char *fmt, ...)
{
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    report(d, found, text, next);
}

void qn_doctor_fail(qn_doctor *d, const char *next)
{
    char text[QN_ERROR_TEXT_MAX];
    snprintf(text, sizeof text, "%s", qn_last_error());
    report(d, QN_FOUND_FAILURE, text, next);
}

static void run_steps(qn_doctor *d, int no_compute)
{
    static const struct {
        const char *name;
        void (*run)(qn_doctor *d);
    } steps[] = {
        {"files", qn_doctor_files},         {"config", qn_doctor_config},     {"weights", qn_doctor_weights},
        {"tokenizer", qn_doctor_tokenizer}, {"template", qn_doctor_template}, {"devices", qn_doctor_devices},
        {"memory", qn_doctor_memory},       {"compute", qn_doctor_compute},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps && d->status == QN_OK; i++) {
        d->step = steps[i].name;
        if (steps[i].run != qn_doctor_compute || !no_compute)
            steps[i].run(d);
        else
            qn_doctor_say(d, QN_FOUND_SKIPPED, NULL, "skipped: --no-compute");
    }
}

static qn_status print_end(qn_doctor *d, int no_compute)
{
    int64_t n_failed = d->n_found[QN_FOUND_FAILURE], n_warnings = d->n_found[QN_FOUND_WARNING];
    qn_buf b = {0};
    qn_json_close(&d->findings, ']');
    qn_json_close(&d->figures, '}');
    QN_TRY(d->findings.status);
    QN_TRY(d->figures.status);
    if (d->json) {
        qn_json_open(&b, '{');
        qn_json_put_text(&b, "path", d->path);
        qn_json_put_bool(&b, "ok", n_failed == 0);
        qn_json_put_int(&b, "n_failed", n_failed);
        qn_json_put_int(&b, "n_warnings", n_warnings);
        qn_json_key(&b, "findings");
        qn_buf_append(&b, d->findings.data, d->findings.length);
        qn_json_key(&b, "figures");
        qn_buf_append(&b, d->figures.data, d->figures.length);
        qn_json_close(&b, '}');
    } else {
        qn_buf_puts(&b, n_failed     ? "This model does not work as it is: "
                        : no_compute ? "Nothing wrong was found, but nothing was computed: "
                                     : "This model works: ");
        qn_buf_printf(&b, "%lld failed, %lld warning%s", (long long)n_failed, (long long)n_warnings,
                      qn_out_plural(n_warnings));
    }
    return qn_out_line(&b);
}

static const qn_arg_group doctor_groups[] = {
    {NULL, doctor_args, 0, NULL}, {"Loading", qn_load_args, AT(load), NULL}, {0}};
const qn_arg_spec qn_doctor_spec = {
    "quern doctor MODEL [options]",
    "Checks a model step by step: files, config, weights, tokenizer, template, devices, memory, a few\n"
    "tokens. For each step it prints the result and, if something is wrong, how to fix it. The exit\n"
    "status is 1 if a step failed.",
    doctor_groups,
    1,
    1,
    NULL};

int qn_cmd_doctor(int argc, char **argv)
{
    doctor_options o = {.max_tokens = 8};
    const char *path;
    int n, code;
    if (qn_args_parse(&qn_doctor_spec, &o, argc, argv, &path, &n, &code)) return code;
    qn_status status = qn_load_find(&o.load, &path);
    qn_doctor d = {.path = path, .load = &o.load, .max_tokens = o.max_tokens, .json = o.json};
    qn_json_open(&d.findings, '[');
    qn_json_open(&d.figures, '{');
    if (status == QN_OK) status = qn_load_prepare(&o.load);
    if (status == QN_OK) {
        run_steps(&d, o.no_compute);
        status = d.status;
    }
    if (status == QN_OK) status = print_end(&d, o.no_compute);
    code = status != QN_OK ? qn_out_fail() : d.n_found[QN_FOUND_FAILURE] ? QN_EXIT_ERROR : QN_EXIT_OK;
    qn_config_free(&d.config);
    qn_source_close(d.source);
    qn_buf_free(&d.findings);
    qn_buf_free(&d.figures);
    qn_load_end(&o.load);
    return code;
}
