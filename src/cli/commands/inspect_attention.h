/* quern inspect --attention: what a model computes over a prompt, as a table, a file of tensors, a picture.
 */
#ifndef QN_CLI_COMMANDS_INSPECT_ATTENTION_H
#define QN_CLI_COMMANDS_INSPECT_ATTENTION_H

#include "cli/options/options.h"

typedef struct {
    const char *prompt, *ids_path, *out_path, *png_path, *adapter;
    qn_arg_list layers;
    int chat, special, queries, hidden, mean;
} qn_attention_options;
extern const qn_arg qn_attention_args[];
extern const qn_arg_rule qn_attention_rules[];

/* Returns the exit code. load is prepared and ended here. */
int qn_inspect_attention(const char *path, qn_load_options *load, const qn_attention_options *o, int json);

#endif
