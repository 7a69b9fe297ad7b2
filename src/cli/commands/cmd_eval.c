/* quern eval: the loss of a model, with an adapter or without, over a data set. */
#include <math.h>
#include <quern/quern.h>
#include <string.h>

#include "cli/command.h"
#include "cli/options/model_name.h"
#include "cli/options/options.h"
#include "cli/term/fold.h"
#include "cli/term/interrupt.h"
#include "cli/term/out.h"

typedef struct {
    qn_evaluate_options o;
    qn_rope_cli rope;
    const char *adapter;
    int mask, precision, split, lines, json;
} eval_options;

#define AT(field) offsetof(eval_options, field)
static const qn_arg eval_args[] = {
    {"--adapter", 0, QN_ARG_TEXT, AT(adapter), 0, 0, "DIR[:SCALE]", "adapter to load (PEFT or mlx_lm)"},
    {"--adapter-scale", 0, QN_ARG_FLOAT, AT(o.adapter_scale), 0.001, 1000, "X",
     "number that multiplies the adapter's own scale (default 1)"},
    {"--split", 0, QN_ARG_CHOICE, AT(split), 0, 0, "last|train|valid|test",
     "which file of a data folder to use (default: the last of train, valid and test that the folder has)"},
    {"--lines", 0, QN_ARG_FLAG, AT(lines), 0, 0, NULL, "also print the loss of each line"},
    {"--max-lines", 0, QN_ARG_INT64, AT(o.max_lines), 1, INT32_MAX, "N",
     "use only the first N lines (default: all)"},
    {"--mask", 0, QN_ARG_CHOICE, AT(mask), 0, 0, "answers|last|all",
     "tokens that count in the loss: all the assistant's, those of its last turn, or all (default answers)"},
    {"--max-length", 0, QN_ARG_INT64, AT(o.max_length), 2, INT32_MAX, "N",
     "maximum tokens per line; longer lines are cut off (default 2048)"},
    {"--batch-tokens", 0, QN_ARG_INT64, AT(o.batch_tokens), 1, INT32_MAX, "N",
     "maximum tokens computed together (default: --max-length)"},
    {"--strict", 0, QN_ARG_FLAG, AT(o.strict), 0, 0, NULL,
     "stop at the first bad line (default: skip bad lines)"},
    {"--precision", 0, QN_ARG_CHOICE, AT(precision), 0, 0, "high|fast|exact",
     "arithmetic precision (default high)"},
    {"--threads", 't', QN_ARG_INT32, AT(o.n_threads), 1, 1024, "N",
     "number of threads (default: the number of physical cores)"},
    {"--device", 0, QN_ARG_TEXT, AT(o.device), 0, 0, "NAME",
     "device that computes: auto (default: an NVIDIA card if its library is installed, else the CPU), cpu, "
     "cuda "
     "(NVIDIA) or mlx (Apple's MLX)"},
    {"--memory-limit", 0, QN_ARG_BYTES, AT(o.memory_limit_bytes), 0, 0, "SIZE",
     "hard memory limit, such as 2G"},
    {"--device-memory-limit", 0, QN_ARG_BYTES, AT(o.device_memory_limit_bytes), 0, 0, "SIZE",
     "hard limit of a card's memory, such as 20G"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print JSON objects, one per line"},
    {0},
};

static const qn_arg_group eval_groups[] = {
    {NULL, eval_args, 0, NULL}, {"Rotary positions", qn_rope_args, AT(rope), qn_rope_rules}, {0}};
const qn_arg_spec qn_eval_spec = {
    "quern eval MODEL DATA [options]",
    "Prints the loss and perplexity of a model over a data set. The loss is the mean over the tokens that\n"
    "count. DATA has the same form as for `quern train`: a jsonl file, or a folder with train.jsonl,\n"
    "valid.jsonl, test.jsonl.",
    eval_groups,
    2,
    2,
    NULL};

static qn_status print_line(void *user, const qn_evaluate_line *line)
{
    const eval_options *o = user;
    qn_buf b = {0};
    if (qn_interrupt_taken()) return qn_fail(QN_E_CANCELLED, "cancelled");
    if (!o->lines) {
        if (line->bad) qn_out_note("line %lld: left out: %s", (long long)line->line, line->bad);
        return QN_OK;
    }
    if (o->json) {
        qn_json_open(&b, '{');
        qn_json_put_int(&b, "line", line->line);
        if (line->bad) {
            qn_json_put_text(&b, "error", line->bad);
        } else {
            qn_json_put_int(&b, "n_tokens", line->n_tokens);
            qn_json_put_int(&b, "n_counted", line->n_counted);
            qn_json_put_exact(&b, "loss", line->loss);
            qn_json_put_exact(&b, "perplexity", exp(line->loss));
        }
        qn_json_close(&b, '}');
    } else if (line->bad) {
        qn_out_note("line %lld: left out: %s", (long long)line->line, line->bad);
        return QN_OK;
    } else {
        qn_buf_printf(&b, "%lld\t%.6g\t%.6g\t%lld", (long long)line->line, line->loss, exp(line->loss),
                      (long long)line->n_counted);
    }
    return qn_out_line(&b);
}

static qn_status print_whole(const qn_evaluate_result *e, const eval_options *o)
{
    qn_buf b = {0};
    if (o->json) {
        qn_json_open(&b, '{');
        qn_json_put_exact(&b, "loss", e->loss);
        qn_json_put_exact(&b, "perplexity", e->perplexity);
        qn_json_put_int(&b, "n_lines", e->n_lines);
        qn_json_put_int(&b, "n_bad_lines", e->n_bad_lines);
        qn_json_put_int(&b, "n_cut_lines", e->n_cut_lines);
        qn_json_put_int(&b, "n_tokens", e->n_tokens);
        qn_json_put_int(&b, "n_counted", e->n_counted);
        qn_json_put_real(&b, "time_ms", e->seconds * 1e3);
        qn_json_put_int(&b, "peak_memory_bytes", (int64_t)e->peak_memory_bytes);
        if (e->device_peak_memory_bytes)
            qn_json_put_int(&b, "device_peak_memory_bytes", (int64_t)e->device_peak_memory_bytes);
        qn_json_close(&b, '}');
        return qn_out_line(&b);
    }
    qn_buf_printf(&b, "loss %.6g, perplexity %.6g over %lld of %lld tokens in %lld line%s", e->loss,
                  e->perplexity, (long long)e->n_counted, (long long)e->n_tokens,
                  (long long)(e->n_lines - e->n_bad_lines), qn_out_plural(e->n_lines - e->n_bad_lines));
    if (e->n_bad_lines)
        qn_buf_printf(&b, "; %lld bad line%s left out", (long long)e->n_bad_lines,
                      qn_out_plural(e->n_bad_lines));
    if (e->n_cut_lines)
        qn_buf_printf(&b, "; %lld line%s cut", (long long)e->n_cut_lines, qn_out_plural(e->n_cut_lines));
    return qn_fold_out_line(&b, 2);
}

int qn_cmd_eval(int argc, char **argv)
{
    static const char *const splits[] = {NULL, "train", "valid", "test"};
    eval_options o = {.json = 0};
    qn_evaluate_result result;
    const char *positional[QN_POSITIONAL_MAX];
    int n, code;
    if (qn_args_parse(&qn_eval_spec, &o, argc, argv, positional, &n, &code)) return code;
    if (qn_rope_finish(&o.rope) != QN_OK) return qn_args_fail("eval", "%s", qn_last_error());
    o.o.rope = o.rope.o;
    o.o.model_path = positional[0];
    o.o.data_path = positional[1];
    qn_buf adapter = {0};
    float scale = 1;
    if (o.adapter) {
        qn_buf_append(&adapter, o.adapter, qn_load_read_scale(o.adapter, &scale));
        if (adapter.status != QN_OK) return qn_out_fail();
        o.o.adapter_path = adapter.data;
        if (!o.o.adapter_scale) o.o.adapter_scale = scale;
    }
    o.o.split = splits[o.split];
    o.o.mask = (qn_mask)o.mask;
    o.o.precision = (qn_precision)o.precision;
    o.o.notify = print_line;
    o.o.user = &o;
    qn_interrupt_start();
    qn_buf found = {0};
    qn_status status = qn_model_name_take(&o.o.model_path, &found);
    if (status == QN_OK) status = qn_evaluate_data(&o.o, &result);
    qn_buf_free(&found);
    if (status == QN_OK) status = print_whole(&result, &o);
    code = status == QN_OK ? QN_EXIT_OK : qn_out_fail();
    qn_buf_free(&adapter);
    return status == QN_E_CANCELLED ? QN_EXIT_INTERRUPTED : code;
}
