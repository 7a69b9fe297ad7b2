/* quern score: how probable texts are under a model, as their perplexity. */
#include <quern/quern.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/commands/list_run.h"
#include "cli/term/out.h"

typedef struct {
    qn_list_options list;
    qn_score_options score;
    int lines, json;
} score_options;

#define AT(field) offsetof(score_options, field)
static const qn_arg score_args[] = {
    {"--lines", 0, QN_ARG_FLAG, AT(lines), 0, 0, NULL, "treat each line of the file as a separate text"},
    {"--stride", 0, QN_ARG_INT64, AT(score.stride), 1, INT32_MAX, "N",
     "for a text longer than the window: score it in windows, each N tokens after the one before"},
    {"--window", 0, QN_ARG_INT64, AT(score.window), 2, INT32_MAX, "N",
     "number of tokens in a window (default: the context size)"},
    {"--tokens", 0, QN_ARG_FLAG, AT(score.tokens), 0, 0, NULL,
     "with --json: print the log-probability of each token"},
    {"--use", 0, QN_ARG_TEXT, AT(score.adapter), 0, 0, "NAME",
     "name of the adapter to use; `none`: the model without an adapter"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print one JSON object per text, each on its own line"},
    {0},
};

static const qn_arg_rule score_rules[] = {{"--tokens", .needs = "--json"}, {0}};

static qn_status print_json(qn_list_run *run, const qn_score_result *r)
{
    const score_options *o = run->user;
    qn_buf b = {0};
    qn_list_run_open_json(run, &b, r->i_prompt, r->status, r->message);
    qn_json_put_int(&b, "n_tokens", r->n_tokens);
    if (r->status == QN_OK) {
        qn_json_put_int(&b, "n_scored", r->n_scored);
        qn_json_put_real(&b, "logprob", r->logprob);
        qn_json_put_real(&b, "perplexity", r->perplexity);
        if (o->score.tokens) {
            qn_json_key(&b, "ids");
            qn_json_ids(&b, r->ids, r->n_tokens);
            qn_json_key(&b, "logprobs");
            qn_json_open(&b, '[');
            for (int64_t i = 0; i < r->n_tokens; i++) qn_json_real(&b, r->logprobs[i]);
            qn_json_close(&b, ']');
        }
    }
    qn_json_close(&b, '}');
    return qn_out_line(&b);
}

/* "PERPLEXITY<tab>TOKENS", with words for those who look at a terminal; an empty line for a text that failed. */
static qn_status print_text(qn_list_run *run, const qn_score_result *r)
{
    qn_buf b = {0};
    if (qn_list_run_check(run, "text", r->i_prompt, r->status, r->message))
        qn_buf_printf(&b, isatty(STDOUT_FILENO) ? "perplexity %.6g over %lld tokens" : "%.6g\t%lld",
                      r->perplexity, (long long)r->n_scored);
    return qn_out_line(&b);
}

static qn_status print(void *user, const qn_score_result *r)
{
    qn_list_run *run = user;
    const score_options *o = run->user;
    return o->json ? print_json(run, r) : print_text(run, r);
}

static const qn_arg_group score_groups[] = {
    {NULL, score_args, 0, score_rules},
    {"Texts", qn_prompt_list_args, AT(list.from), qn_prompt_list_rules},
    {"Loading", qn_load_args, AT(list.load), NULL},
    {"Rotary positions", qn_rope_args, AT(list.load.rope), qn_rope_rules},
    {0}};
const qn_arg_spec qn_score_spec = {
    "quern score MODEL [-f TEXT] [options]",
    "Prints the perplexity of a text and the number of predicted tokens. A text is a whole file or, with\n"
    "--lines, one line.",
    score_groups,
    1,
    1,
    NULL};

static qn_status score(qn_list_run *run)
{
    score_options *o = run->user;
    o->score.cancel = run->cancel;
    return qn_score(run->model, run->list.prompts, run->list.n, &o->score, print, run);
}

int qn_cmd_score(int argc, char **argv)
{
    score_options o = {.list = {.raw = 1}};
    const char *path;
    int n, code;
    if (qn_args_parse(&qn_score_spec, &o, argc, argv, &path, &n, &code)) return code;
    o.list.whole = !o.lines;
    return qn_list_run_command("score", path, &o.list, NULL, score, &o);
}
