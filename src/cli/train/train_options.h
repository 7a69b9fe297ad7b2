/* The options of `quern train`: every field of qn_train_options, and where they come from. */
#ifndef QN_CLI_TRAIN_TRAIN_OPTIONS_H
#define QN_CLI_TRAIN_TRAIN_OPTIONS_H

#include <quern/train.h>

#include "cli/options/args.h"
#include "cli/options/rope.h"

/* Fields of the API's own structure that have a different C type than args.h writes, or whose 0 says
 * something, stand beside it. */
typedef struct {
    qn_train_options o;
    qn_rope_cli rope;
    const char *config, *layers, *schema;
    int method, init, adapter_type, layout, save_type, optimizer, schedule, precision, mask;
    double beta1, beta2, eps, lr, weight_decay, clip_norm; /* negative: not given */
    float alpha;
    int show_batch, dry_run, json;
    int lr_is_default; /* after finish: no rate was given */
} qn_train_cli;

/* What must be set before qn_args_parse. */
#define QN_TRAIN_CLI_UNSET                                                                              \
    {                                                                                                   \
        .beta1 = -1, .beta2 = -1, .eps = -1, .lr = -1, .weight_decay = -1, .clip_norm = -1, .alpha = -1 \
    }

extern const qn_arg qn_train_run_args[], qn_train_what_args[], qn_train_step_args[], qn_train_data_args[];
extern const qn_arg_rule qn_train_run_rules[];

/* Fills t->o from the rest. Returns 0, or an exit code after a usage error. */
int qn_train_options_finish(qn_train_cli *t);

#endif
