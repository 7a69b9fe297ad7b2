/* One run of a command that works through a list of prompts: batch, classify, embed, score.
 *
 * The run reads the prompts, opens the model, makes the command's call while Ctrl-C can cancel it, frees all
 * and gives the exit code. The command brings its options, the call, and the printing of one result. A failed
 * prompt does not stop the run: it is reported where its result would be, and the exit code is 1. Main
 * thread. */
#ifndef QN_CLI_COMMANDS_LIST_RUN_H
#define QN_CLI_COMMANDS_LIST_RUN_H

#include "cli/commands/prompt_list.h"
#include "cli/options/options.h"

/* What a call gets. All of it belongs to the run. */
typedef struct {
    void *user; /* the command's */
    qn_model *model;
    qn_prompt_list list; /* with its prompts */
    qn_cancel *cancel;   /* set by Ctrl-C: goes into the call's options */
    size_t n_failed;     /* prompts, counted by the two functions of results below */
} qn_list_run;

/* What the command's options say about its list. */
typedef struct {
    qn_load_options load;
    qn_prompt_list_options from;
    int whole;          /* a file is one text, unless it is JSON */
    int raw;            /* texts are taken as they are, even if the model has a chat template */
    const char *system; /* the system message before each text that becomes a chat, or NULL */
    int takes_forms;    /* lines may say what form their answers have */
} qn_list_options;

/* Runs the command `name` on the model at path and returns the exit code; o->load is ended. prepare reads
 * what else the lines hold, before the model is opened; NULL: nothing. call answers the prompts. */
int qn_list_run_command(const char *name, const char *path, qn_list_options *o,
                        qn_status (*prepare)(qn_list_run *run), qn_status (*call)(qn_list_run *run),
                        void *user);

/* Begins a line of JSON: {"index":I,"status":... and the error of a failed prompt. The caller closes it. */
void qn_list_run_open_json(qn_list_run *run, qn_buf *b, size_t i_prompt, qn_status status,
                           const char *message);
/* For results as text: returns 1 if the prompt succeeded; else notes "WHAT I: MESSAGE" and returns 0. */
int qn_list_run_check(qn_list_run *run, const char *what, size_t i_prompt, qn_status status,
                      const char *message);

#endif
