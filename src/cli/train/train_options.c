#include "cli/train/train_options.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"

#define AT(field) offsetof(qn_train_cli, field)

const qn_arg qn_train_run_args[] = {
    {"--output", 'o', QN_ARG_TEXT, AT(o.out_path), 0, 0, "DIR",
     "the folder for adapter, state, log and report; made when missing"},
    {"--config", 0, QN_ARG_TEXT, AT(config), 0, 0, "FILE",
     "options as YAML or JSON, by their names without hyphens; those given beside it win"},
    {"--model", 0, QN_ARG_TEXT, AT(o.model_path), 0, 0, "PATH", "MODEL, for such a file"},
    {"--data", 0, QN_ARG_TEXT, AT(o.data_path), 0, 0, "PATH", "DATA, for such a file"},
    {"--resume", 0, QN_ARG_FLAG, AT(o.resume), 0, 0, NULL,
     "go on with the training in --output, as if it had never stopped"},
    {"--overwrite", 0, QN_ARG_FLAG, AT(o.overwrite), 0, 0, NULL,
     "begin anew although there is a training in --output"},
    {"--start", 0, QN_ARG_TEXT, AT(o.start_path), 0, 0, "DIR", "an adapter to begin with"},
    {"--layout", 0, QN_ARG_CHOICE, AT(layout), 0, 0, "peft|mlx", "whose files the adapter is written as"},
    {"--save-type", 0, QN_ARG_CHOICE, AT(save_type), 0, 0, "keep|f32|f16|bf16",
     "type of a whole model's numbers (--method full; default: each tensor keeps its own)"},
    {"--validate-every", 0, QN_ARG_INT64, AT(o.validate_every), 1, INT32_MAX, "N",
     "steps between validations (default: at the end of each epoch)"},
    {"--validate-batches", 0, QN_ARG_INT64, AT(o.validate_batches), 1, INT32_MAX, "N",
     "batches of one (default: all)"},
    {"--save-every", 0, QN_ARG_INT64, AT(o.save_every), 1, INT32_MAX, "N",
     "steps between saves (default 100)"},
    {"--show-batch", 0, QN_ARG_FLAG, AT(show_batch), 0, 0, NULL,
     "print the first step's tokens and which of them count, train nothing"},
    {"--dry-run", 0, QN_ARG_FLAG, AT(dry_run), 0, 0, NULL,
     "check everything, print what would be trained, train nothing"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print one JSON object at the end"},
    {0},
};

/* Exclusions alone: the command line is parsed before the file that may give what it needs. */
const qn_arg_rule qn_train_run_rules[] = {{"--resume", .excludes = "--overwrite"}, {0}};

const qn_arg qn_train_what_args[] = {
    {"--method", 0, QN_ARG_CHOICE, AT(method), 0, 0, "lora|dora|full",
     "factors beside the weights, with magnitudes too, or the weights themselves (default lora)"},
    {"--targets", 0, QN_ARG_TEXT, AT(o.targets), 0, 0, "LIST",
     "modules, with commas: q_proj,v_proj or patterns of whole paths (default: all linear layers)"},
    {"--layers", 0, QN_ARG_TEXT, AT(layers), 0, 0, "A:B",
     "layers A to B - 1; either may be left out (default: all)"},
    {"--rank", 0, QN_ARG_INT32, AT(o.rank), 1, 65536, "N", "of the factors (default 8)"},
    {"--alpha", 0, QN_ARG_FLOAT, AT(alpha), 0, 1e9, "X", "alpha / rank is their factor (default 16)"},
    {"--rslora", 0, QN_ARG_FLAG, AT(o.rslora), 0, 0, NULL, "alpha / sqrt(rank) is"},
    {"--dropout", 0, QN_ARG_FLOAT, AT(o.dropout), 0, 0.999, "P", "of what the factors read (default 0)"},
    {"--init", 0, QN_ARG_CHOICE, AT(init), 0, 0, "uniform|normal|kaiming-normal",
     "how A begins; B is zero (default uniform, as peft)"},
    {"--adapter-type", 0, QN_ARG_CHOICE, AT(adapter_type), 0, 0, "f32|bf16",
     "type of the factors (default f32)"},
    {0},
};

const qn_arg qn_train_step_args[] = {
    {"--steps", 0, QN_ARG_INT64, AT(o.n_steps), 1, INT32_MAX, "N", "updates (default: those of --epochs)"},
    {"--epochs", 0, QN_ARG_INT64, AT(o.n_epochs), 1, INT32_MAX, "N", "times through the data (default 1)"},
    {"--lr", 0, QN_ARG_REAL, AT(lr), 0, 1000, "RATE", "the highest learning rate (default 1e-5)"},
    {"--schedule", 0, QN_ARG_CHOICE, AT(schedule), 0, 0, "constant|linear|cosine",
     "how it falls (default constant)"},
    {"--warmup", 0, QN_ARG_INT64, AT(o.warmup_steps), 0, INT32_MAX, "N", "steps in which it rises first"},
    {"--end-rate", 0, QN_ARG_REAL, AT(o.end_rate), 0, 1, "X",
     "where linear and cosine end, as a share of --lr (default 0)"},
    {"--optimizer", 0, QN_ARG_CHOICE, AT(optimizer), 0, 0, "adamw|sgd", "default adamw"},
    {"--beta1", 0, QN_ARG_REAL, AT(beta1), 0, 1, "X", "of AdamW (default 0.9)"},
    {"--beta2", 0, QN_ARG_REAL, AT(beta2), 0, 1, "X", "of AdamW (default 0.999)"},
    {"--eps", 0, QN_ARG_REAL, AT(eps), 0, 1, "X", "of AdamW (default 1e-8)"},
    {"--weight-decay", 0, QN_ARG_REAL, AT(weight_decay), 0, 1000, "X", "default: AdamW 0.01, SGD 0"},
    {"--momentum", 0, QN_ARG_REAL, AT(o.momentum), 0, 1, "X", "of SGD (default 0)"},
    {"--no-bias-correction", 0, QN_ARG_FLAG, AT(o.no_bias_correction), 0, 0, NULL,
     "AdamW's means as they are, as mlx_lm has it"},
    {"--clip-norm", 0, QN_ARG_REAL, AT(clip_norm), 0, DBL_MAX, "X",
     "the gradient's length is cut to it (default 1; 0: never)"},
    {"--accumulate", 0, QN_ARG_INT64, AT(o.accumulate), 1, INT32_MAX, "N", "batches of a step (default 1)"},
    {"--checkpoint-layers", 0, QN_ARG_FLAG, AT(o.checkpoint_layers), 0, 0, NULL,
     "compute layers again for their gradients: less memory, more time, the same bits"},
    {"--seed", 0, QN_ARG_UINT64, AT(o.seed), 0, 0, "N",
     "of the first numbers, the order of lines and dropout (default 0)"},
    {"--precision", 0, QN_ARG_CHOICE, AT(precision), 0, 0, "high|fast|exact",
     "of products with the model's weights (default high)"},
    {"--threads", 't', QN_ARG_INT32, AT(o.n_threads), 1, 1024, "N",
     "threads (default: physical cores); results do not depend on them"},
    {"--device", 0, QN_ARG_TEXT, AT(o.device), 0, 0, "NAME",
     "where it computes: cpu (default) or mlx, Apple's MLX"},
    {"--memory-limit", 0, QN_ARG_BYTES, AT(o.memory_limit_bytes), 0, 0, "SIZE", "hard limit, such as 2G"},
    {0},
};

const qn_arg qn_train_data_args[] = {
    {"--mask", 0, QN_ARG_CHOICE, AT(mask), 0, 0, "answers|last|all",
     "which tokens count: the assistant's, its last turn's, all (default answers)"},
    {"--max-length", 0, QN_ARG_INT64, AT(o.max_length), 2, INT32_MAX, "N",
     "tokens of a line, the rest is cut off (default 2048)"},
    {"--batch-size", 0, QN_ARG_INT64, AT(o.batch_sequences), 1, INT32_MAX, "N",
     "most lines of a batch (default: as many as --batch-tokens holds)"},
    {"--batch-tokens", 0, QN_ARG_INT64, AT(o.batch_tokens), 1, INT32_MAX, "N",
     "most tokens of a batch (default: --batch-size lines of --max-length)"},
    {"--in-order", 0, QN_ARG_FLAG, AT(o.in_order), 0, 0, NULL, "of the file, in every epoch"},
    {"--strict", 0, QN_ARG_FLAG, AT(o.strict), 0, 0, NULL, "a bad line ends it (default: it is left out)"},
    {0},
};

/* A number whose 0 would mean the default. */
static int take_positive(const char *name, double given, double *out)
{
    if (given == 0) return qn_args_fail("train", "%s: it must be above 0", name);
    if (given > 0) *out = given;
    return 0;
}

/* "A:B", "A:", ":B". */
static int read_layers(qn_train_cli *t)
{
    char text[64], *colon, *end = NULL;
    int64_t *values[] = {&t->o.layer_begin, &t->o.layer_end};
    const size_t n = strlen(t->layers);
    int is_good = n < sizeof text && (colon = strchr(t->layers, ':'));
    if (is_good) {
        memcpy(text, t->layers, n + 1);
        end = text + (colon - t->layers);
        *end++ = 0;
        const char *sides[] = {text, end};
        for (int i = 0; i < 2; i++)
            if (*sides[i]) is_good = is_good && qn_args_read_int(sides[i], values[i]) && *values[i] >= 0;
        /* An end of 0 would mean the last. */
        if (*end) is_good = is_good && t->o.layer_end > t->o.layer_begin;
    }
    if (is_good) return 0;
    return qn_args_fail("train", "--layers: '%s' is no range such as 4:8, 4: or :8", t->layers);
}

int qn_train_options_finish(qn_train_cli *t)
{
    static const char *const save_types[] = {NULL, "f32", "f16", "bf16"};
    qn_train_options *o = &t->o;
    double alpha = 0;
    o->method = (qn_train_method)t->method;
    o->init = (qn_train_init)t->init;
    o->bf16_adapter = t->adapter_type;
    o->layout = (qn_adapter_layout)t->layout;
    o->save_type = save_types[t->save_type];
    o->optimizer = (qn_optimizer_kind)t->optimizer;
    o->schedule = (qn_schedule_kind)t->schedule;
    o->precision = (qn_precision)t->precision;
    o->mask = (qn_mask)t->mask;
    if (take_positive("--lr", t->lr, &o->learning_rate) || take_positive("--beta1", t->beta1, &o->beta1) ||
        take_positive("--beta2", t->beta2, &o->beta2) || take_positive("--eps", t->eps, &o->eps) ||
        take_positive("--alpha", (double)t->alpha, &alpha))
        return QN_EXIT_USAGE;
    o->alpha = (float)alpha;
    /* Here 0 is said with a negative number. */
    o->weight_decay = t->weight_decay == 0 ? -1 : t->weight_decay > 0 ? t->weight_decay : 0;
    o->clip_norm = t->clip_norm == 0 ? -1 : t->clip_norm > 0 ? t->clip_norm : 0;
    if (t->layers && read_layers(t)) return QN_EXIT_USAGE;
    if (!o->model_path || !*o->model_path) return qn_args_fail("train", "MODEL is needed");
    if (!o->data_path || !*o->data_path) return qn_args_fail("train", "DATA is needed: what to learn from");
    if (o->out_path && !*o->out_path) return qn_args_fail("train", "--output: the folder has no name");
    if (!o->out_path && !t->show_batch && !t->dry_run)
        return qn_args_fail("train", "-o DIR is needed: where the adapter goes");
    return 0;
}
