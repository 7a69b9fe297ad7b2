/* quern batch: answers to a list of prompts, in its order, one JSON object a line. */
#include <quern/quern.h>

#include "base/mem.h"
#include "cli/command.h"
#include "cli/commands/list_run.h"
#include "cli/term/interrupt.h"
#include "cli/term/out.h"

typedef struct {
    qn_list_options list;
    qn_sampling_options sampling;
    int logprobs, stats, json;
} batch_options;

#define AT(field) offsetof(batch_options, field)
static const qn_arg batch_args[] = {
    {"--raw", 0, QN_ARG_FLAG, AT(list.raw), 0, 0, NULL,
     "continue the texts as they are, without a chat template"},
    {"--system", 0, QN_ARG_TEXT, AT(list.system), 0, 0, "TEXT", "system message to put before each prompt"},
    {"--logprobs", 0, QN_ARG_FLAG, AT(logprobs), 0, 0, NULL, "print each token's log-probability"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print JSON, which batch always does"},
    {"--stats", 0, QN_ARG_FLAG, AT(stats), 0, 0, NULL, "print speeds on standard error"},
    {0},
};

static qn_status print(qn_list_run *run, const qn_batch_result *r)
{
    qn_buf b = {0};
    qn_list_run_open_json(run, &b, r->i_prompt, r->status, r->message);
    qn_json_key(&b, "text");
    qn_json_text(&b, r->text, r->text_bytes);
    qn_json_key(&b, "ids");
    qn_json_ids(&b, r->ids, r->n_ids);
    if (r->logprobs) {
        qn_json_key(&b, "logprobs");
        qn_json_open(&b, '[');
        for (int64_t i = 0; i < r->n_ids; i++) qn_json_real(&b, (double)r->logprobs[i]);
        qn_json_close(&b, ']');
    }
    qn_json_put_text(&b, "end", qn_end_name(r->end));
    qn_json_put_int(&b, "n_prompt_tokens", r->n_prompt_tokens);
    qn_json_close(&b, '}');
    return qn_out_line(&b);
}

/* What a line says of the form of its answer: choices are one, too. */
static qn_status open_forms(qn_list_run *run, qn_constraint **forms)
{
    for (size_t i = 0; i < run->list.n; i++) {
        const qn_prompt_line *p = &run->list.lines[i];
        const char *name = p->form ? p->form_name : "choices";
        if (!p->form && !p->choices) continue;
        qn_status status =
            p->form && p->choices
                ? qn_fail(QN_E_FORMAT, "an answer has one form: %s or choices", p->form_name)
                : qn_form_open_json(run->model, name, p->form ? p->form : p->choices, &forms[i]);
        if (status != QN_OK)
            return qn_fail_prefix(status, "%s: line %lld", run->list.name, (long long)p->line);
        run->list.prompts[i].constraint = forms[i];
    }
    return QN_OK;
}

static qn_status generate(qn_list_run *run)
{
    const batch_options *o = run->user;
    qn_batch *batch = NULL;
    qn_batch_result r;
    qn_generation_stats stats;
    qn_end end = QN_END_NONE;
    int is_there = 1;
    QN_TRY(qn_batch_open(run->model, run->list.prompts, run->list.n, &o->sampling.o, &batch));
    qn_interrupt_watch_batch(batch);
    qn_status status = qn_batch_next(batch, &r, &is_there);
    while (status == QN_OK && is_there) {
        end = r.end;
        status = print(run, &r);
        if (status == QN_OK) status = qn_batch_next(batch, &r, &is_there);
    }
    if (status == QN_OK && end == QN_END_CANCELLED) status = qn_fail(QN_E_CANCELLED, "cancelled");
    if (o->stats && qn_batch_get_stats(batch, &stats) == QN_OK) qn_note_stats(&stats, end);
    qn_interrupt_watch_batch(NULL);
    qn_batch_close(batch);
    return status;
}

static qn_status answer(qn_list_run *run)
{
    batch_options *o = run->user;
    qn_constraint **forms = qn_calloc(run->list.n, sizeof *forms);
    if (!forms) return QN_E_NOMEM;
    qn_status status = qn_form_open(run->model, &o->sampling.form, &o->sampling.o.constraint);
    if (status == QN_OK) status = open_forms(run, forms);
    if (status == QN_OK) status = generate(run);
    for (size_t i = 0; i < run->list.n; i++) qn_constraint_close(forms[i]);
    qn_constraint_close(o->sampling.o.constraint);
    qn_free(forms);
    return status;
}

static const qn_arg_group batch_groups[] = {
    {NULL, batch_args, 0, NULL},
    {"Prompts", qn_prompt_list_args, AT(list.from), qn_prompt_list_rules},
    {"Sampling", qn_sampling_args, AT(sampling), qn_sampling_rules},
    {"Loading", qn_load_args, AT(list.load), NULL},
    {"Rotary positions", qn_rope_args, AT(list.load.rope), qn_rope_rules},
    {0}};
const qn_arg_spec qn_batch_spec = {"quern batch MODEL [-f PROMPTS] [options]",
                                   "Answers a list of prompts, many at a time. The answers are printed in "
                                   "the list's order as JSON, one\nper line. If a prompt fails, its line "
                                   "reports the error, and the other prompts are still answered. With "
                                   "--jsonl a line may name the form\nof its answer: \"json_schema\", "
                                   "\"regex\", \"grammar\" or \"choices\".",
                                   batch_groups,
                                   1,
                                   1,
                                   NULL};

int qn_cmd_batch(int argc, char **argv)
{
    batch_options o = {.sampling = QN_SAMPLING_UNSET};
    const char *path;
    int n, code;
    if (qn_args_parse(&qn_batch_spec, &o, argc, argv, &path, &n, &code)) return code;
    if (qn_sampling_finish("batch", &o.sampling)) return QN_EXIT_USAGE;
    o.sampling.o.logprobs = o.logprobs;
    o.list.takes_forms = 1;
    return qn_list_run_command("batch", path, &o.list, NULL, answer, &o);
}
