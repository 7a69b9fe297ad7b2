/* quern score: how probable texts are under a model, as their perplexity. */
#include <quern/quern.h>

#include "cli/command.h"
#include "cli/commands/prompt_list.h"
#include "cli/options/options.h"
#include "cli/term/interrupt.h"
#include "cli/term/out.h"

typedef struct {
    qn_load_options load;
    qn_prompt_list_options from;
    qn_score_options score;
    int lines, json;
} score_options;

#define AT(field) offsetof(score_options, field)
static const qn_arg score_args[] = {
    {"--lines", 0, QN_ARG_FLAG, AT(lines), 0, 0, NULL, "each line of the file is a text of its own"},
    {"--stride", 0, QN_ARG_INT64, AT(score.stride), 1, INT32_MAX, "N",
     "score a text that is longer than the window in windows, each so many tokens behind the one before"},
    {"--window", 0, QN_ARG_INT64, AT(score.window), 2, INT32_MAX, "N",
     "tokens that are looked at together (default: the context)"},
    {"--tokens", 0, QN_ARG_FLAG, AT(score.tokens), 0, 0, NULL,
     "with --json: the log-probability of each token"},
    {"--use", 0, QN_ARG_TEXT, AT(score.adapter), 0, 0, "NAME",
     "an adapter by its name; none: the model alone"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print a JSON object for each text, one a line"},
    {0},
};

typedef struct {
    const score_options *o;
    int n_failed;
} printer;

static qn_status print_json(const printer *p, const qn_score_result *r)
{
    qn_buf b = {0};
    qn_prompt_list_open_json(&b, r->i_prompt, r->status, r->message);
    qn_json_put_int(&b, "n_tokens", r->n_tokens);
    if (r->status == QN_OK) {
        qn_json_put_int(&b, "n_scored", r->n_scored);
        qn_json_put_real(&b, "logprob", r->logprob);
        qn_json_put_real(&b, "perplexity", r->perplexity);
        if (p->o->score.tokens) {
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

/* "PERPLEXITY<tab>TOKENS"; an empty line for a text that failed. */
static qn_status print_text(const qn_score_result *r)
{
    qn_buf b = {0};
    if (r->status != QN_OK)
        qn_out_note("text %zu: %s", r->i_prompt, r->message);
    else
        qn_buf_printf(&b, "%.6g\t%lld", r->perplexity, (long long)r->n_scored);
    return qn_out_line(&b);
}

static qn_status print(void *user, const qn_score_result *r)
{
    printer *p = user;
    p->n_failed += r->status != QN_OK;
    return p->o->json ? print_json(p, r) : print_text(r);
}

static const qn_arg_group score_groups[] = {{NULL, score_args, 0},
                                            {"Texts", qn_prompt_list_args, AT(from)},
                                            {"Loading", qn_load_args, AT(load)},
                                            {0}};
const qn_arg_spec qn_score_spec = {
    "quern score MODEL [-f TEXT] [options]",
    "Prints the perplexity of a text (a whole file, or each line of it) and how many tokens were predicted.",
    score_groups,
    1,
    1,
    NULL};

int qn_cmd_score(int argc, char **argv)
{
    score_options o = {.lines = 0};
    const char *path;
    int n, code;
    if (qn_args_parse(&qn_score_spec, &o, argc, argv, &path, &n, &code)) return code;
    if ((code = qn_prompt_list_check("score", &o.from))) return code;
    if (o.score.tokens && !o.json) return qn_args_fail("score", "--tokens are printed with --json only");

    qn_model *model = NULL;
    qn_cancel *cancel = NULL;
    qn_prompt_list list = {0};
    printer p = {&o, 0};
    qn_status status = qn_prompt_list_read(&o.from, !o.lines, &list);
    if (status == QN_OK) status = qn_load_open_for(path, &o.load, list.n, &model);
    if (status == QN_OK) status = qn_prompt_list_finish(&list, 0, NULL);
    if (status == QN_OK) status = qn_cancel_new(&cancel);
    if (status == QN_OK) {
        o.score.cancel = cancel;
        qn_interrupt_start();
        qn_interrupt_watch_call(cancel);
        status = qn_score(model, list.prompts, list.n, &o.score, print, &p);
        qn_interrupt_watch_call(NULL);
    }
    code = status != QN_OK ? qn_out_fail() : p.n_failed ? QN_EXIT_ERROR : QN_EXIT_OK;
    if (status == QN_E_CANCELLED) code = QN_EXIT_INTERRUPTED;
    qn_cancel_free(cancel);
    qn_model_close(&model);
    qn_load_end(&o.load);
    qn_prompt_list_free(&list);
    return code;
}
