/* Options that several commands share: how a model is loaded and how text is generated. */
#ifndef QN_CLI_OPTIONS_OPTIONS_H
#define QN_CLI_OPTIONS_OPTIONS_H

#include <quern/generate.h>

#include "base/buf.h"
#include "cli/options/args.h"
#include "cli/options/form.h"
#include "cli/options/rope.h"

/* Fields of the API's own structure that have a different C type than args.h writes stand beside it. */
typedef struct {
    qn_buf name, path;
    float scale;
} qn_cli_adapter;
typedef struct {
    qn_model_options o;
    qn_arg_list adapters; /* as given */
    qn_cli_adapter adapter[QN_ARG_LIST_MAX];
    int precision, kv_type;
    qn_arg_limit cache_limit;
    qn_rope_cli rope;
    const char *gpu_layers, *template_path;
    qn_buf template_text;
    int offline;
    int may_fetch;             /* of the command: a named model that is not here is fetched (model_name.h) */
    qn_buf found, found_draft; /* the paths that names mean */
} qn_load_options;
extern const qn_arg qn_load_args[]; /* the first row is --precision */

enum { QN_SAMPLING_IDS_MAX = 4096 };
typedef struct {
    qn_generate_options o;
    float temperature, top_p, min_p, typical_p, repeat_penalty; /* negative: not given */
    int32_t top_k;                                              /* negative: not given */
    int speculate;                                              /* 0: lookup, 1: off */
    int32_t repeat_last_n, dry_last_n; /* 0: what looks at them is off; -1: they have no end */
    qn_arg_list stop, stop_ids, bias, breakers, bad_words, bad_ids, allowed_ids;
    const char *order, *samplers;
    qn_form_options form; /* compiled once there is a model: qn_form_open */
    qn_sampler_step steps[QN_SAMPLER_COUNT];
    int32_t ids[QN_ARG_LIST_MAX];
    qn_logit_bias biases[QN_ARG_LIST_MAX];
    qn_ids bad[QN_ARG_LIST_MAX];
    int32_t pool[QN_SAMPLING_IDS_MAX]; /* bad and allowed ids */
    size_t n_pool;
    int64_t reasoning_budget; /* -1: no limit */
} qn_sampling_options;
extern const qn_arg qn_sampling_args[];
extern const qn_arg_rule qn_sampling_rules[];
/* What must be set before qn_args_parse. */
#define QN_SAMPLING_UNSET                                                                                \
    {                                                                                                    \
        .temperature = -1, .top_p = -1, .top_k = -1, .min_p = -1, .typical_p = -1, .repeat_penalty = -1, \
        .repeat_last_n = -1, .dry_last_n = -1, .reasoning_budget = -1                                    \
    }

/* Fills s->o from the rest; to be called after qn_args_parse. Returns 0, or an exit code after a usage error.
 */
int qn_sampling_finish(const char *command, qn_sampling_options *s);
/* Writes the windows to s->o, and turns off there what a window of 0 turns off. */
void qn_sampling_set_windows(qn_sampling_options *s);
/* Fills l->o from the rest. l keeps the texts; qn_load_end frees them. */
qn_status qn_load_prepare(qn_load_options *l);
/* One line about the card that "auto" took; wish: what was asked for, NULL: nothing. Nothing of the CPU. */
void qn_note_device(const char *wish, const char *device, const char *name);
/* DIR[:SCALE]: *scale is what follows the last ':' when it is a number, else 1. Returns the length of DIR. */
size_t qn_load_read_scale(const char *path, float *scale);
/* Loads what qn_model_open leaves: the adapters behind the first. */
qn_status qn_load_adapters(const qn_load_options *l, qn_model *model);
/* Replaces *path by the path that it means, if it is a name. The text lasts until qn_load_end. qn_load_open does it;
 * this is for what needs the path before. */
qn_status qn_load_find(qn_load_options *l, const char **path);
/* Prepares l and opens the model with its adapters; notes of the load go to standard error. */
qn_status qn_load_open(const char *path, qn_load_options *l, qn_model **out);
/* The same for a list of n prompts: as many sequences together, up to 16, unless --slots says how many.
 */
qn_status qn_load_open_for(const char *path, qn_load_options *l, size_t n_prompts, qn_model **out);
void qn_load_end(qn_load_options *l);

/* Writes {"architecture":...} and {"prefill_tokens_per_sec":...}: the names of the C structures. */
void qn_json_info(qn_buf *b, const qn_model_info *info);
void qn_json_metrics(qn_buf *b, const qn_metrics *metrics);
/* That the seed answers, where no model was named. command: "run", with which a real one is used. */
qn_status qn_note_seed(const char *command, const qn_model *model);
/* What --stats prints, on standard error. */
void qn_note_stats(const qn_generation_stats *stats, qn_end end);
/* The fields of stats, inside an object that is open. */
void qn_json_put_stats(qn_buf *b, const qn_generation_stats *stats);

#endif
