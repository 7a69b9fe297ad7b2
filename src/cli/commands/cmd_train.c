/* quern train: fine-tunes a model on a data set. */
#include <math.h>
#include <quern/quern.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/options/model_name.h"
#include "cli/options/options.h"
#include "cli/term/fold.h"
#include "cli/term/interrupt.h"
#include "cli/term/out.h"
#include "cli/train/answer_check.h"
#include "cli/train/config_file.h"
#include "cli/train/train_options.h"
#include "cli/train/train_progress.h"
#include "cli/train/train_report.h"

static const qn_arg_group train_groups[] = {
    {NULL, qn_train_run_args, 0, qn_train_run_rules},
    {"What is trained", qn_train_what_args, 0, NULL},
    {"Steps", qn_train_step_args, 0, NULL},
    {"Data", qn_train_data_args, 0, NULL},
    {"Rotary positions", qn_rope_args, offsetof(qn_train_cli, rope), qn_rope_rules},
    {0}};
const qn_arg_spec qn_train_spec = {
    "quern train MODEL DATA -o DIR [options]",
    "Fine-tunes a model. It trains a LoRA or DoRA adapter for weights of any type, or the weights\n"
    "themselves. DATA is a jsonl file of chats, prompts with completions, or texts; or a folder with\n"
    "train.jsonl and valid.jsonl. The command writes to DIR: last/ and best/ (for --adapter),\n"
    "state.safetensors (for --resume), log.jsonl and report.html. Ctrl-C saves the training and ends.",
    train_groups,
    0,
    2,
    NULL};

/* What one run knows from its events. */
typedef struct {
    qn_training *training;
    qn_train_progress progress;
    qn_train_report_about about;
    qn_buf log_path, report_path;
    qn_train_step_report last; /* step 0: none was taken */
    double valid_loss, best_loss, seconds;
    int has_begun, is_stopped, report_failed;
} run_state;

/* ---- before training ----------------------------------------------------------------------------------- */

/* The command line, over the file that it may name. Returns 0 to go on, as qn_args_parse. */
static int read_options(int argc, char **argv, qn_train_cli *out, qn_arena *texts, int *exit_code)
{
    qn_train_cli o = QN_TRAIN_CLI_UNSET;
    const qn_train_cli unset = QN_TRAIN_CLI_UNSET;
    const char *positional[QN_POSITIONAL_MAX];
    int n = 0;
    if (qn_args_parse(&qn_train_spec, &o, argc, argv, positional, &n, exit_code)) return 1;
    *exit_code = QN_EXIT_USAGE;
    if (o.config) {
        const char *file = o.config;
        o = unset;
        if (qn_config_file_read(file, &qn_train_spec, "--config", &o, texts) != QN_OK) {
            qn_out_fail();
            return 1;
        }
        if (qn_args_parse(&qn_train_spec, &o, argc, argv, positional, &n, exit_code)) return 1;
    }
    if (n > 0) o.o.model_path = positional[0];
    if (n > 1) o.o.data_path = positional[1];
    if (qn_train_options_finish(&o)) return 1;
    *out = o;
    return 0;
}

static void note_lines(const char *lines)
{
    while (*lines) {
        const int n = (int)strcspn(lines, "\n");
        qn_out_note("%.*s", n, lines);
        lines += n + (lines[n] == '\n');
    }
}

static void put_info_json(qn_buf *b, const qn_train_info *i)
{
    qn_json_put_text(b, "architecture", i->architecture);
    qn_json_put_text(b, "device", i->device);
    qn_json_put_text(b, "cpu_set", i->cpu_set);
    qn_json_put_int(b, "n_threads", i->n_threads);
    qn_json_put_int(b, "vocab_size", i->vocab_size);
    qn_json_put_exact(b, "uniform_loss", i->uniform_loss);
    qn_json_put_int(b, "n_model_parameters", i->n_model_parameters);
    qn_json_put_int(b, "n_arrays", i->n_arrays);
    qn_json_put_int(b, "n_trained", i->n_trained);
    qn_json_put_int(b, "n_lines", i->n_lines);
    qn_json_put_int(b, "n_bad_lines", i->n_bad_lines);
    qn_json_put_int(b, "n_cut_lines", i->n_cut_lines);
    qn_json_put_int(b, "n_tokens", i->n_tokens);
    qn_json_put_int(b, "n_counted", i->n_counted);
    qn_json_put_int(b, "n_valid_lines", i->n_valid_lines);
    qn_json_put_int(b, "batch_tokens", i->batch_tokens);
    qn_json_put_int(b, "batch_sequences", i->batch_sequences);
    qn_json_put_int(b, "n_steps", i->n_steps);
    qn_json_put_int(b, "step", i->step);
    qn_json_put_int(b, "memory_bytes", (int64_t)i->memory_bytes);
    qn_json_put_int(b, "peak_memory_bytes", (int64_t)i->peak_memory_bytes);
    if (i->device_peak_memory_bytes) {
        qn_json_put_int(b, "device_memory_bytes", (int64_t)i->device_memory_bytes);
        qn_json_put_int(b, "device_peak_memory_bytes", (int64_t)i->device_peak_memory_bytes);
    }
}

/* "name:       text" and a line end. */
static void put_row(qn_buf *b, const char *name, const char *fmt, ...) QN_PRINTF(3, 4);
static void put_row(qn_buf *b, const char *name, const char *fmt, ...)
{
    enum { TEXT_COLUMN = 12 };
    char text[240];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    qn_buf_printf(b, "%-*s", TEXT_COLUMN, name);
    qn_fold_put(b, text, TEXT_COLUMN, TEXT_COLUMN, qn_fold_terminal(stdout), 0);
    qn_buf_putc(b, '\n');
}

static void put_info(qn_buf *b, const qn_train_info *i)
{
    char size[32], card[32];
    put_row(b, "trained:", "%lld numbers in %lld arrays (the model has %lld: %.3g%%)",
            (long long)i->n_trained, (long long)i->n_arrays, (long long)i->n_model_parameters,
            i->n_model_parameters > 0 ? 100 * (double)i->n_trained / (double)i->n_model_parameters : 0);
    put_row(b, "lines:", "%lld, %lld bad, %lld cut; %lld for validation", (long long)i->n_lines,
            (long long)i->n_bad_lines, (long long)i->n_cut_lines, (long long)i->n_valid_lines);
    put_row(b, "tokens:", "%lld, of which %lld count", (long long)i->n_tokens, (long long)i->n_counted);
    put_row(b, "batches:", "at most %lld tokens, %lld lines", (long long)i->batch_tokens,
            (long long)i->batch_sequences);
    put_row(b, "steps:", "%lld, of which %lld are done", (long long)i->n_steps, (long long)i->step);
    put_row(b, "memory:", "%s before the first step%s%s%s",
            qn_out_size_text(i->memory_bytes, size, sizeof size), i->device_memory_bytes ? ", and " : "",
            i->device_memory_bytes ? qn_out_size_text(i->device_memory_bytes, card, sizeof card) : "",
            i->device_memory_bytes ? " of the card's" : "");
}

/* What --dry-run prints. */
static qn_status print_info(const qn_train_info *info, int as_json)
{
    qn_buf b = {0};
    if (!as_json) {
        put_info(&b, info);
        if (b.status == QN_OK) b.length--; /* qn_out_line puts a line end */
        return qn_out_line(&b);
    }
    qn_json_open(&b, '{');
    put_info_json(&b, info);
    qn_json_close(&b, '}');
    return qn_out_line(&b);
}

static qn_status print_batch(qn_training *t)
{
    char *text = NULL;
    QN_TRY(qn_training_show_batch(t, qn_out_has_style(stdout), &text));
    const qn_status status = qn_out_write(text, strlen(text));
    qn_buffer_free(text);
    return status;
}

/* ---- while it runs ------------------------------------------------------------------------------------- */

/* A page that cannot be written is no reason to stop; its first failure is told. */
static void write_report(run_state *r)
{
    if (qn_train_report_write(r->log_path.data, r->report_path.data, &r->about) == QN_OK) return;
    if (!r->report_failed) {
        qn_train_progress_clear(&r->progress);
        qn_out_note("warning: %s", qn_last_error());
    }
    r->report_failed = 1;
}

static int on_event(void *user, const qn_train_event *event)
{
    run_state *r = user;
    qn_train_progress_put(&r->progress, event);
    switch (event->kind) {
    case QN_TRAIN_EVENT_START:
        r->has_begun = 1;
        break;
    case QN_TRAIN_EVENT_STEP:
        r->last = *event->report;
        break;
    case QN_TRAIN_EVENT_VALID:
        write_report(r);
        break;
    case QN_TRAIN_EVENT_STOPPED:
    case QN_TRAIN_EVENT_DONE:
        r->valid_loss = event->valid_loss;
        r->best_loss = event->best_loss;
        r->seconds = event->seconds;
        r->is_stopped = event->kind == QN_TRAIN_EVENT_STOPPED;
        break;
    default:
        break;
    }
    return 0;
}

/* A word for a shell. */
static void put_word(qn_buf *b, const char *word)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=./:,@%";
    if (*word && !word[strspn(word, plain)]) {
        qn_buf_puts(b, word);
        return;
    }
    qn_buf_putc(b, '\'');
    for (; *word; word++) {
        if (*word == '\'')
            qn_buf_puts(b, "'\\''");
        else
            qn_buf_putc(b, *word);
    }
    qn_buf_putc(b, '\'');
}

/* A word of a command with the space before it. */
static size_t word_bytes(const char *command)
{
    size_t n = 0;
    for (int is_quoted = 0; command[n] && (!n || is_quoted || command[n] != ' '); n++)
        is_quoted ^= command[n] == '\'';
    return n;
}

/* A command to be copied. Where it does not fit the terminal it goes on behind backslashes, between its options. */
static void put_command(const char *what, const char *command)
{
    enum { INDENT = 2, FURTHER = 6, BACKSLASH = 2 };
    const int columns = qn_fold_terminal(stderr);
    int at = INDENT;
    if (!columns || strlen("quern: ") + strlen(what) + 2 + strlen(command) <= (size_t)columns) {
        fprintf(stderr, "quern: %s: %s\n", what, command);
        return;
    }
    fprintf(stderr, "quern: %s:\n%*s", what, INDENT, "");
    for (size_t n; *command; command += n) {
        n = word_bytes(command);
        /* An option stays with its value. */
        const int has_value = strncmp(command, " -", 2) == 0 && command[n] && command[n + 1] != '-';
        const size_t both = n + (has_value ? word_bytes(command + n) : 0);
        if (at > FURTHER && at + (int)both + BACKSLASH > columns) {
            fprintf(stderr, " \\\n%*s", FURTHER - 1, "");
            at = FURTHER - 1;
        }
        fprintf(stderr, "%.*s", (int)n, command);
        at += (int)n;
    }
    fputc('\n', stderr);
}

/* How to go on: the same command with --resume, before a "--" that ends the options. */
static void note_resume(int argc, char **argv)
{
    qn_buf b = {0};
    int is_said = 0;
    qn_buf_puts(&b, "quern");
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--resume") == 0 || strcmp(argv[i], "--overwrite") == 0) continue;
        if (strcmp(argv[i], "--") == 0 && !is_said) {
            qn_buf_puts(&b, " --resume");
            is_said = 1;
        }
        qn_buf_putc(&b, ' ');
        put_word(&b, argv[i]);
    }
    if (!is_said) qn_buf_puts(&b, " --resume");
    if (b.status == QN_OK) put_command("to continue", b.data);
    qn_buf_free(&b);
}

/* The command that uses the result. */
static void note_use(const qn_train_options *o)
{
    qn_buf b = {0}, path = {0};
    qn_buf_printf(&path, "%s/best", o->out_path);
    if (path.status == QN_OK && access(path.data, F_OK) != 0) { /* nothing was validated */
        qn_buf_reset(&path);
        qn_buf_printf(&path, "%s/last", o->out_path);
    }
    qn_buf_puts(&b, "quern chat ");
    if (path.status == QN_OK && o->method == QN_TRAIN_FULL) {
        put_word(&b, path.data);
    } else if (path.status == QN_OK) {
        put_word(&b, o->model_path);
        qn_buf_puts(&b, " --adapter ");
        put_word(&b, path.data);
        qn_rope_put(&b, &o->rope);
    }
    if (b.status == QN_OK && path.status == QN_OK) put_command("to use it", b.data);
    qn_buf_free(&path);
    qn_buf_free(&b);
}

/* ---- at the end ---------------------------------------------------------------------------------------- */

static qn_status print_result(const run_state *r, const char *out_path, int as_json)
{
    qn_buf b = {0};
    char text[32];
    const qn_train_step_report *last = &r->last;
    const int64_t step = r->about.info.step;
    if (as_json) {
        qn_json_open(&b, '{');
        qn_json_put_text(&b, "state", r->is_stopped ? "stopped" : "done");
        qn_json_put_text(&b, "output", out_path);
        put_info_json(&b, &r->about.info);
        qn_json_put_exact(&b, "loss", last->step ? last->loss : NAN);
        qn_json_put_exact(&b, "valid_loss", r->valid_loss);
        qn_json_put_exact(&b, "best_loss", r->best_loss);
        qn_json_put_real(&b, "time_ms", r->seconds * 1e3);
        qn_json_close(&b, '}');
        return qn_out_line(&b);
    }
    qn_buf said = {0};
    qn_buf_printf(&said, "%lld of %lld steps", (long long)step, (long long)r->about.info.n_steps);
    if (last->step) qn_buf_printf(&said, ", last loss %.4f", last->loss);
    if (isfinite(r->best_loss)) qn_buf_printf(&said, ", best validation %.4f", r->best_loss);
    qn_buf_printf(&said, ", %s", qn_train_time_text(r->seconds, text, sizeof text));
    const int at = qn_out_put_shown(&b, out_path, strlen(out_path), 0);
    qn_buf_puts(&b, ": ");
    if (said.status == QN_OK) qn_fold_put(&b, said.data, at + 2, 2, qn_fold_terminal(stdout), 0);
    if (said.status != QN_OK) b.status = said.status;
    qn_buf_free(&said);
    return qn_out_line(&b);
}

static qn_status run(run_state *r, const qn_train_cli *o, int argc, char **argv)
{
    const char *out = o->o.out_path;
    qn_buf_printf(&r->log_path, "%s/log.jsonl", out);
    qn_buf_printf(&r->report_path, "%s/report.html", out);
    qn_status status = r->log_path.status != QN_OK ? r->log_path.status : r->report_path.status;
    if (status != QN_OK) return status;
    qn_interrupt_watch_training(r->training);
    status = qn_training_run(r->training, on_event, r);
    qn_interrupt_watch_training(NULL);
    qn_train_progress_clear(&r->progress);
    if (status == QN_OK) status = qn_training_get_info(r->training, &r->about.info);
    if (status != QN_OK) {
        qn_out_fail();
        if (r->has_begun) write_report(r);
        /* What is not finite would be so again. */
        if (r->has_begun && status != QN_E_DEVICE) note_resume(argc, argv);
        return status;
    }
    write_report(r);
    status = print_result(r, out, o->json);
    if (status != QN_OK) qn_out_fail();
    if (status == QN_OK && r->is_stopped) note_resume(argc, argv);
    if (status == QN_OK && !r->is_stopped && !o->json) note_use(&o->o);
    return status;
}

/* ---- the command --------------------------------------------------------------------------------------- */

static int train(const qn_train_cli *o, int argc, char **argv)
{
    if (o->schema && qn_answers_check(o->o.data_path, o->o.mask, o->schema) != QN_OK) return qn_out_fail();
    run_state r = {.about = {.options = o->o}, .valid_loss = NAN, .best_loss = NAN};
    qn_train_progress_open(&r.progress);
    if (r.progress.is_live) {
        fputs("reading model and data\r", stderr);
        r.progress.is_shown = 1;
    }
    qn_status status = qn_training_open(&o->o, &r.training);
    qn_train_progress_clear(&r.progress);
    if (status == QN_OK) status = qn_training_get_info(r.training, &r.about.info);
    if (status == QN_OK) qn_note_device(o->o.device, r.about.info.device, r.about.info.device_name);
    int code = status == QN_OK ? QN_EXIT_OK : qn_out_fail();
    if (status == QN_OK && o->lr_is_default && !o->json && !o->show_batch)
        qn_out_note("the learning rate is %g, the default for %s; --lr sets another", o->o.learning_rate,
                    o->o.method == QN_TRAIN_FULL ? "all weights"
                                                 : (o->o.method == QN_TRAIN_DORA ? "DoRA" : "LoRA"));
    if (status == QN_OK && qn_interrupt_taken()) {
        code = QN_EXIT_INTERRUPTED; /* nothing was done yet */
    } else if (status == QN_OK && (o->show_batch || o->dry_run)) {
        note_lines(r.about.info.notes);
        status = o->show_batch ? print_batch(r.training) : print_info(&r.about.info, o->json);
        if (status != QN_OK) code = qn_out_fail();
    } else if (status == QN_OK) {
        status = run(&r, o, argc, argv);
        code = status != QN_OK ? QN_EXIT_ERROR : r.is_stopped ? QN_EXIT_INTERRUPTED : QN_EXIT_OK;
    }
    qn_training_close(r.training);
    qn_buf_free(&r.log_path);
    qn_buf_free(&r.report_path);
    return code;
}

int qn_cmd_train(int argc, char **argv)
{
    qn_train_cli o;
    qn_arena texts = {0};
    int code;
    qn_buf found = {0};
    if (read_options(argc, argv, &o, &texts, &code) == 0) {
        if (o.o.model_path && qn_model_name_take(&o.o.model_path, &found) != QN_OK) {
            code = qn_out_fail();
            goto out;
        }
        qn_interrupt_start(); /* there is something to save */
        if (o.show_batch && !o.o.resume) o.o.out_path = NULL;
        code = train(&o, argc, argv);
    }
out:
    qn_buf_free(&found);
    qn_arena_clear(&texts);
    return code;
}
