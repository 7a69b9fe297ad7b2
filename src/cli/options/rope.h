/* Options that change the rotary positions of a model when it is opened. */
#ifndef QN_CLI_OPTIONS_ROPE_H
#define QN_CLI_OPTIONS_ROPE_H

#include <quern/model.h>

#include "base/buf.h"
#include "cli/options/args.h"

/* Fields of the API's own structure that have a different C type than args.h writes stand beside it. */
typedef struct {
    qn_rope_options o;
    int scaling;
    double freq_scale;
    qn_arg_ratio ext_factor;
} qn_rope_cli;

extern const qn_arg qn_rope_args[];
extern const qn_arg_rule qn_rope_rules[];

/* Fills r->o from the rest; to be called after qn_args_parse. QN_E_ARG: options that contradict each other. */
qn_status qn_rope_finish(qn_rope_cli *r);
/* The options that r->o is made of, each after a space, for a command that repeats them. */
void qn_rope_put(qn_buf *b, const qn_rope_options *o);

#endif
