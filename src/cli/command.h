/* The commands of quern: one file each (cmd_NAME.c), one row each in main.c.
 *
 * A command gets its own arguments (argv[0] is its name), parses them by args.h, works through the public API
 * and returns the exit code. Failures below it have set the thread's message; it reports them once through
 * qn_out_fail. */
#ifndef QN_CLI_COMMAND_H
#define QN_CLI_COMMAND_H

#include "base/status.h"
#include "cli/options/args.h"

enum { QN_EXIT_OK = 0, QN_EXIT_ERROR = 1, QN_EXIT_USAGE = 2, QN_EXIT_INTERRUPTED = 130 };

typedef struct {
    const char *name;
    const char *summary; /* one line for `quern --help` */
    int (*run)(int argc, char **argv);
    const qn_arg_spec *spec; /* the one that run parses by */
} qn_command;

/* The one table, in the order of help; the last has the name NULL. */
extern const qn_command qn_commands[];

int qn_cmd_batch(int argc, char **argv);
int qn_cmd_bench(int argc, char **argv);
int qn_cmd_chat(int argc, char **argv);
int qn_cmd_classify(int argc, char **argv);
int qn_cmd_completions(int argc, char **argv);
int qn_cmd_constrain(int argc, char **argv);
int qn_cmd_doctor(int argc, char **argv);
int qn_cmd_embed(int argc, char **argv);
int qn_cmd_eval(int argc, char **argv);
int qn_cmd_fuse(int argc, char **argv);
int qn_cmd_inspect(int argc, char **argv);
int qn_cmd_list(int argc, char **argv);
int qn_cmd_logits(int argc, char **argv);
int qn_cmd_models(int argc, char **argv);
int qn_cmd_pack(int argc, char **argv);
int qn_cmd_pull(int argc, char **argv);
int qn_cmd_rerank(int argc, char **argv);
int qn_cmd_rm(int argc, char **argv);
int qn_cmd_run(int argc, char **argv);
int qn_cmd_score(int argc, char **argv);
int qn_cmd_serve(int argc, char **argv);
int qn_cmd_show(int argc, char **argv);
int qn_cmd_template(int argc, char **argv);
int qn_cmd_tokenize(int argc, char **argv);
int qn_cmd_trace(int argc, char **argv);
int qn_cmd_train(int argc, char **argv);

extern const qn_arg_spec qn_batch_spec, qn_bench_spec, qn_chat_spec, qn_classify_spec, qn_completions_spec,
    qn_constrain_spec, qn_doctor_spec, qn_embed_spec, qn_eval_spec, qn_fuse_spec, qn_inspect_spec,
    qn_list_spec, qn_logits_spec, qn_models_spec, qn_pack_spec, qn_pull_spec, qn_rerank_spec, qn_rm_spec,
    qn_run_spec, qn_score_spec, qn_serve_spec, qn_show_spec, qn_template_spec, qn_tokenize_spec,
    qn_trace_spec, qn_train_spec;

#endif
