/* quern: finds the command and hands over. */
#include <fcntl.h>
#include <quern/quern.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/options/args.h"
#include "cli/options/help.h"
#include "cli/term/fold.h"
#include "cli/term/out.h"

const qn_command qn_commands[] = {
    {"run", "answer one prompt", qn_cmd_run, &qn_run_spec},
    {"chat", "chat with a model", qn_cmd_chat, &qn_chat_spec},
    {"serve", "serve OpenAI's API over HTTP", qn_cmd_serve, &qn_serve_spec},
    {"pull", "fetch a model by its name", qn_cmd_pull, &qn_pull_spec},
    {"list", "list the models that were fetched", qn_cmd_list, &qn_list_spec},
    {"show", "show what a fetched model is", qn_cmd_show, &qn_show_spec},
    {"rm", "remove a fetched model", qn_cmd_rm, &qn_rm_spec},
    {"models", "list the models below a folder", qn_cmd_models, &qn_models_spec},
    {"inspect", "show metadata and tensors of model files", qn_cmd_inspect, &qn_inspect_spec},
    {"doctor", "find out why a model does not work, and how to fix it", qn_cmd_doctor, &qn_doctor_spec},
    {"pack", "write packed weights to a file, for fast starts", qn_cmd_pack, &qn_pack_spec},
    {"train", "fine-tune a model on your data", qn_cmd_train, &qn_train_spec},
    {"eval", "compute loss and perplexity over a data set", qn_cmd_eval, &qn_eval_spec},
    {"fuse", "merge an adapter into a model's weights", qn_cmd_fuse, &qn_fuse_spec},
    {"tokenize", "convert text to token ids and back", qn_cmd_tokenize, &qn_tokenize_spec},
    {"template", "render messages with a chat template", qn_cmd_template, &qn_template_spec},
    {"classify", "choose the most probable answer to each prompt", qn_cmd_classify, &qn_classify_spec},
    {"constrain", "check JSON schemas as constraints, and measure them", qn_cmd_constrain,
     &qn_constrain_spec},
    {"batch", "answer many prompts", qn_cmd_batch, &qn_batch_spec},
    {"embed", "compute a vector for each text", qn_cmd_embed, &qn_embed_spec},
    {"rerank", "order documents by how relevant they are to a query", qn_cmd_rerank, &qn_rerank_spec},
    {"score", "compute the perplexity of a text", qn_cmd_score, &qn_score_spec},
    {"logits", "write the logits of token ids to a file", qn_cmd_logits, &qn_logits_spec},
    {"bench", "measure the speed and memory of a model", qn_cmd_bench, &qn_bench_spec},
    {"trace", "compare or sum up traces written with QUERN_TRACE=FILE", qn_cmd_trace, &qn_trace_spec},
    {"completions", "print a shell completion script", qn_cmd_completions, &qn_completions_spec},
    {0},
};

enum { COMMAND_COLUMNS = 14 };

static int print_help(void)
{
    printf("Usage: quern COMMAND [options]\n\n");
    qn_help_text("Runs language models from Hugging Face directories, MLX directories and GGUF files.", 0);
    printf("\nCommands:\n");
    for (const qn_command *c = qn_commands; c->name; c++) {
        printf("  %-11s ", c->name);
        qn_help_text(c->summary, COMMAND_COLUMNS);
    }
    putchar('\n');
    qn_help_text("`quern COMMAND --help` lists a command's options; `quern --version` prints versions and "
                 "devices.",
                 0);
    return QN_EXIT_OK;
}

/* "cpu: NAME, set avx2 (of scalar avx2), 4 threads" and what is to be said about the device. */
static qn_status print_device(const qn_device_info *device)
{
    qn_buf text = {0};
    qn_buf_printf(&text, "%s: %s, set %s (of %s), %d thread%s", device->name,
                  device->description[0] ? device->description : "unnamed", device->set, device->sets,
                  (int)device->n_threads, qn_out_plural(device->n_threads));
    qn_buf_printf(&text, "%s%s", *device->note ? "; " : "", device->note);
    return qn_fold_out_line(&text, 2);
}

static int print_version(void)
{
    printf("quern %s\n", qn_version());
    qn_device_info device;
    qn_status status;
    for (size_t i = 0; (status = qn_device_get_info(i, &device)) != QN_E_NOT_FOUND; i++) {
        qn_buf why = {0};
        if (status != QN_OK) qn_buf_puts(&why, qn_last_error());
        status = status == QN_OK ? print_device(&device) : qn_fold_out_line(&why, 2);
        if (status != QN_OK) return qn_out_fail();
    }
    return QN_EXIT_OK;
}

static const qn_command *find_command(const char *name)
{
    const qn_command *c = qn_commands;
    while (c->name && strcmp(c->name, name) != 0) c++;
    return c->name ? c : NULL;
}

/* A model's path where a command is due, and words that are nearly commands. */
static int fail_unknown(const char *name)
{
    const size_t n = strlen(name);
    const qn_command *best = NULL;
    int least = 3;
    if (name[0] == '-') return qn_args_fail(NULL, "unknown option %s", name);
    if ((n > 5 && strcmp(name + n - 5, ".gguf") == 0) || strchr(name, '/') || access(name, F_OK) == 0)
        return qn_args_fail(NULL, "%s is no command; for a model: quern chat %s, or quern run %s -p PROMPT",
                            name, name, name);
    for (const qn_command *c = qn_commands; c->name; c++) {
        const int d = qn_args_is_near(name, c->name);
        if (d < least) {
            least = d;
            best = c;
        }
    }
    if (best) return qn_args_fail(NULL, "unknown command %s; did you mean %s?", name, best->name);
    return qn_args_fail(NULL, "unknown command %s", name);
}

static int run_command(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : NULL;
    if (!name) return qn_args_fail(NULL, "no command given");
    const qn_command *c = find_command(name);
    if (c) return c->run(argc - 1, argv + 1);
    if (strcmp(name, "help") == 0 && argc > 2) {
        char *help[] = {argv[2], "--help", NULL};
        c = find_command(argv[2]);
        return c ? c->run(2, help) : qn_args_fail(NULL, "unknown command %s", argv[2]);
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0)
        return print_help();
    if (strcmp(name, "--version") == 0 || strcmp(name, "-v") == 0 || strcmp(name, "version") == 0)
        return print_version();
    return fail_unknown(name);
}

/* A standard stream that was closed would be the number of the next file to be opened, so that results went
 * into it. What is opened here in its place can neither be read nor written as the stream would be. */
static void occupy_closed_streams(void)
{
    for (int file = STDIN_FILENO; file <= STDERR_FILENO; file++)
        if (fcntl(file, F_GETFD) < 0) open("/dev/null", file == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/* 0: a setting is wrong, which was said. */
static int check_environment(void)
{
    const char *kept = getenv("QUERN_KEPT_BYTES");
    if (!kept || strspn(kept, "0123456789") == strlen(kept)) return 1;
    qn_args_fail(NULL, "QUERN_KEPT_BYTES: %s is not a number of bytes", kept);
    return 0;
}

int main(int argc, char **argv)
{
    occupy_closed_streams();
    signal(SIGXFSZ, SIG_IGN); /* a file that may grow no further is an error of writing, which is told */
    if (!check_environment()) return QN_EXIT_USAGE;
    int code = run_command(argc, argv);
    /* Results are flushed as they are written; a help that nobody could read is a failure as well. */
    return code == QN_EXIT_OK && qn_out_write("", 0) != QN_OK ? qn_out_fail() : code;
}
