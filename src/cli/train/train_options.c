#include "cli/train/train_options.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"

#define AT(field) offsetof(qn_train_cli, field)

const qn_arg qn_train_run_args[] = {
    {"--output", 'o', QN_ARG_TEXT, AT(o.out_path), 0, 0, "DIR",
     "folder for the adapter, state, log and report; created if missing"},
    {"--config", 0, QN_ARG_TEXT, AT(config), 0, 0, "FILE",
     "YAML or JSON file with options, named without hyphens; options on the command line have precedence"},
    {"--model", 0, QN_ARG_TEXT, AT(o.model_path), 0, 0, "PATH", "MODEL, as an option for --config files"},
    {"--data", 0, QN_ARG_TEXT, AT(o.data_path), 0, 0, "PATH", "DATA, as an option for --config files"},
    {"--resume", 0, QN_ARG_FLAG, AT(o.resume), 0, 0, NULL,
     "continue the training in --output, as if it had never stopped"},
    {"--overwrite", 0, QN_ARG_FLAG, AT(o.overwrite), 0, 0, NULL,
     "start over even if there is a training in --output"},
    {"--start", 0, QN_ARG_TEXT, AT(o.start_path), 0, 0, "DIR", "adapter to start from"},
    {"--layout", 0, QN_ARG_CHOICE, AT(layout), 0, 0, "peft|mlx", "file layout of the adapter (default peft)"},
    {"--save-type", 0, QN_ARG_CHOICE, AT(save_type), 0, 0, "keep|f32|f16|bf16",
     "with --method full: type of the model's weights (default: each tensor keeps its type)"},
    {"--validate-every", 0, QN_ARG_INT64, AT(o.validate_every), 1, INT32_MAX, "N",
     "validate every N steps (default: at the end of each epoch)"},
    {"--validate-batches", 0, QN_ARG_INT64, AT(o.validate_batches), 1, INT32_MAX, "N",
     "number of batches in a validation (default: all)"},
    {"--save-every", 0, QN_ARG_INT64, AT(o.save_every), 1, INT32_MAX, "N",
     "save every N steps (default 100)"},
    {"--show-batch", 0, QN_ARG_FLAG, AT(show_batch), 0, 0, NULL,
     "print the tokens of the first step and which of them count, without training"},
    {"--dry-run", 0, QN_ARG_FLAG, AT(dry_run), 0, 0, NULL,
     "check everything and print what would be trained, without training"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print one JSON object at the end"},
    {0},
};

/* Exclusions alone: the command line is parsed before the file that may give what it needs. */
const qn_arg_rule qn_train_run_rules[] = {{"--resume", .excludes = "--overwrite"}, {0}};

const qn_arg qn_train_what_args[] = {
    {"--method", 0, QN_ARG_CHOICE, AT(method), 0, 0, "lora|dora|full",
     "what to train: LoRA factors, DoRA factors and magnitudes, or the weights themselves (default lora)"},
    {"--targets", 0, QN_ARG_TEXT, AT(o.targets), 0, 0, "LIST",
     "modules separated by commas: names like q_proj,v_proj, or patterns of whole paths (default: all "
     "linear layers but those of experts)"},
    {"--layers", 0, QN_ARG_TEXT, AT(layers), 0, 0, "A:B",
     "train layers A to B - 1; A or B may be left out (default: all)"},
    {"--rank", 0, QN_ARG_INT32, AT(o.rank), 1, 65536, "N", "rank of the factors (default 8)"},
    {"--alpha", 0, QN_ARG_FLOAT, AT(alpha), 0, 1e9, "X",
     "the adapter is scaled by alpha / rank (default 16)"},
    {"--rslora", 0, QN_ARG_FLAG, AT(o.rslora), 0, 0, NULL, "scale by alpha / sqrt(rank) instead"},
    {"--dropout", 0, QN_ARG_FLOAT, AT(o.dropout), 0, 0.999, "P",
     "dropout of the adapter's input (default 0)"},
    {"--init", 0, QN_ARG_CHOICE, AT(init), 0, 0, "uniform|normal|kaiming-normal",
     "initial values of factor A; B starts at zero (default uniform, as in peft)"},
    {"--adapter-type", 0, QN_ARG_CHOICE, AT(adapter_type), 0, 0, "f32|bf16",
     "type of the factors (default f32)"},
    {0},
};

const qn_arg qn_train_step_args[] = {
    {"--steps", 0, QN_ARG_INT64, AT(o.n_steps), 1, INT32_MAX, "N",
     "number of updates (default: as many as --epochs needs)"},
    {"--epochs", 0, QN_ARG_INT64, AT(o.n_epochs), 1, INT32_MAX, "N", "passes over the data (default 1)"},
    {"--lr", 0, QN_ARG_REAL, AT(lr), 0, 1000, "RATE",
     "maximum learning rate (default: 1e-4 for LoRA and DoRA, 1e-5 for all weights)"},
    {"--schedule", 0, QN_ARG_CHOICE, AT(schedule), 0, 0, "constant|linear|cosine",
     "how the learning rate falls (default constant)"},
    {"--warmup", 0, QN_ARG_INT64, AT(o.warmup_steps), 0, INT32_MAX, "N",
     "steps in which the learning rate first rises"},
    {"--end-rate", 0, QN_ARG_REAL, AT(o.end_rate), 0, 1, "X",
     "final learning rate of linear and cosine, as a fraction of --lr (default 0)"},
    {"--optimizer", 0, QN_ARG_CHOICE, AT(optimizer), 0, 0, "adamw|sgd", "optimizer (default adamw)"},
    {"--beta1", 0, QN_ARG_REAL, AT(beta1), 0, 1, "X", "beta1 of AdamW (default 0.9)"},
    {"--beta2", 0, QN_ARG_REAL, AT(beta2), 0, 1, "X", "beta2 of AdamW (default 0.999)"},
    {"--eps", 0, QN_ARG_REAL, AT(eps), 0, 1, "X", "epsilon of AdamW (default 1e-8)"},
    {"--weight-decay", 0, QN_ARG_REAL, AT(weight_decay), 0, 1000, "X",
     "weight decay (default: AdamW 0.01, SGD 0)"},
    {"--momentum", 0, QN_ARG_REAL, AT(o.momentum), 0, 1, "X", "momentum of SGD (default 0)"},
    {"--no-bias-correction", 0, QN_ARG_FLAG, AT(o.no_bias_correction), 0, 0, NULL,
     "AdamW without bias correction, as in mlx_lm"},
    {"--clip-norm", 0, QN_ARG_REAL, AT(clip_norm), 0, DBL_MAX, "X",
     "maximum norm of the gradient; a longer one is scaled down (default 1; 0: never)"},
    {"--accumulate", 0, QN_ARG_INT64, AT(o.accumulate), 1, INT32_MAX, "N", "batches per step (default 1)"},
    {"--checkpoint-layers", 0, QN_ARG_FLAG, AT(o.checkpoint_layers), 0, 0, NULL,
     "compute layers again for their gradients: less memory, more time, the same results bit for bit"},
    {"--seed", 0, QN_ARG_UINT64, AT(o.seed), 0, 0, "N",
     "random seed for initial values, line order and dropout (default 0)"},
    {"--precision", 0, QN_ARG_CHOICE, AT(precision), 0, 0, "high|fast|exact",
     "precision of products with the model's weights (default high)"},
    {"--threads", 't', QN_ARG_INT32, AT(o.n_threads), 1, 1024, "N",
     "number of threads (default: the number of physical cores); results do not depend on it"},
    {"--device", 0, QN_ARG_TEXT, AT(o.device), 0, 0, "NAME",
     "device that computes: auto (default: an NVIDIA card if its library is installed, else the CPU), cpu, "
     "cuda "
     "(NVIDIA) or mlx (Apple's MLX). With --resume the default is the device that computed the state"},
    {"--memory-limit", 0, QN_ARG_BYTES, AT(o.memory_limit_bytes), 0, 0, "SIZE",
     "hard memory limit, such as 2G"},
    {"--device-memory-limit", 0, QN_ARG_BYTES, AT(o.device_memory_limit_bytes), 0, 0, "SIZE",
     "hard limit of a card's memory, such as 20G"},
    {0},
};

const qn_arg qn_train_data_args[] = {
    {"--mask", 0, QN_ARG_CHOICE, AT(mask), 0, 0, "answers|last|all",
     "tokens that count in the loss: all the assistant's, those of its last turn, or all (default answers)"},
    {"--max-length", 0, QN_ARG_INT64, AT(o.max_length), 2, INT32_MAX, "N",
     "maximum tokens per line; longer lines are cut off (default 2048)"},
    {"--batch-size", 0, QN_ARG_INT64, AT(o.batch_sequences), 1, INT32_MAX, "N",
     "maximum lines per batch (default: as many as --batch-tokens allows)"},
    {"--batch-tokens", 0, QN_ARG_INT64, AT(o.batch_tokens), 1, INT32_MAX, "N",
     "maximum tokens per batch (default: --batch-size times --max-length)"},
    {"--schema", 0, QN_ARG_TEXT, AT(schema), 0, 0, "FILE",
     "warn where an answer of the data does not satisfy the JSON schema in FILE"},
    {"--in-order", 0, QN_ARG_FLAG, AT(o.in_order), 0, 0, NULL,
     "read lines in the file's order in every epoch (default: shuffled)"},
    {"--strict", 0, QN_ARG_FLAG, AT(o.strict), 0, 0, NULL,
     "stop at the first bad line (default: skip bad lines)"},
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
    return qn_args_fail("train", "--layers: '%s' is not a range such as 4:8, 4: or :8", t->layers);
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
    t->lr_is_default = o->learning_rate == 0;
    if (t->lr_is_default) o->learning_rate = o->method == QN_TRAIN_FULL ? 1e-5 : 1e-4;
    /* Here 0 is said with a negative number. */
    o->weight_decay = t->weight_decay == 0 ? -1 : t->weight_decay > 0 ? t->weight_decay : 0;
    o->clip_norm = t->clip_norm == 0 ? -1 : t->clip_norm > 0 ? t->clip_norm : 0;
    if (t->layers && read_layers(t)) return QN_EXIT_USAGE;
    if (qn_rope_finish(&t->rope) != QN_OK) return qn_args_fail("train", "%s", qn_last_error());
    o->rope = t->rope.o;
    if (!o->model_path || !*o->model_path) return qn_args_fail("train", "MODEL is missing");
    if (!o->data_path || !*o->data_path) return qn_args_fail("train", "DATA is missing");
    if (o->out_path && !*o->out_path) return qn_args_fail("train", "--output: the name is empty");
    if (!o->out_path && !t->show_batch && !t->dry_run)
        return qn_args_fail("train", "-o DIR is missing: the folder for the adapter");
    return 0;
}
