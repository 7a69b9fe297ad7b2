/* quern classify: the most likely answer, or the next token, for each prompt of a list. */
#include <quern/quern.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/command.h"
#include "cli/commands/list_run.h"
#include "cli/term/out.h"

/* The answers: of the command line, and of each line if any line has its own. */
typedef struct {
    qn_buf text; /* --choices, NULs for commas */
    qn_choice *items;
    qn_choices all;
    size_t n_prompts;
    qn_choices *own; /* [n_prompts], or NULL */
    int32_t **ids;   /* [n_prompts] that own ones refer to */
} answers;

typedef struct {
    qn_list_options list;
    qn_generate_options sampling;
    const char *choices;
    qn_arg_list choice;
    int32_t logprobs; /* negative: not asked for */
    int json;
    answers answers; /* made of choices, choice and the list */
} classify_options;

#define AT(field) offsetof(classify_options, field)
static const qn_arg classify_args[] = {
    {"--choices", 0, QN_ARG_TEXT, AT(choices), 0, 0, "A,B,C", "possible answers, separated by commas"},
    {"--choice", 0, QN_ARG_LIST, AT(choice), 0, 0, "TEXT",
     "one possible answer, which may contain commas; may be repeated"},
    {"--raw", 0, QN_ARG_FLAG, AT(list.raw), 0, 0, NULL, "use prompts as they are, without a chat template"},
    {"--system", 0, QN_ARG_TEXT, AT(list.system), 0, 0, "TEXT", "system message to put before each prompt"},
    {"--temp", 0, QN_ARG_FLOAT, AT(sampling.temperature), 0, 1000, "T",
     "temperature for the next token; 0 (default) takes the most likely one"},
    {"--seed", 0, QN_ARG_UINT64, AT(sampling.seed), 0, 0, "N",
     "random seed for sampling; 0 (default): a new seed for each run"},
    {"--logprobs", 0, QN_ARG_INT32, AT(logprobs), 0, QN_TOP_LOGPROBS_MAX, "N",
     "with --json: print log-probabilities of the next token and of the N most likely tokens"},
    {"--use", 0, QN_ARG_TEXT, AT(sampling.adapter), 0, 0, "NAME",
     "name of the adapter to use; `none`: the model without an adapter"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL,
     "print one JSON object per prompt, each on its own line"},
    {0},
};

static const qn_arg_rule classify_rules[] = {{"--logprobs", .needs = "--json"}, {0}};

static qn_status split_choices(const classify_options *o, answers *a)
{
    size_t n = o->choice.n + 1;
    for (const char *p = o->choices; p && *p; p++) n += *p == ',';
    if (!o->choices && !o->choice.n) return QN_OK;
    a->items = qn_calloc(n, sizeof *a->items);
    if (!a->items) return QN_E_NOMEM;
    if (o->choices) {
        qn_buf_puts(&a->text, o->choices);
        if (a->text.status != QN_OK) return a->text.status;
        for (char *p = a->text.data; p;) {
            char *end = strchr(p, ',');
            if (end) *end = 0;
            a->items[a->all.n++].text = p;
            p = end ? end + 1 : NULL;
        }
    }
    for (size_t i = 0; i < o->choice.n; i++) a->items[a->all.n++].text = o->choice.items[i];
    a->all.choice = a->items;
    return QN_OK;
}

static qn_status read_own(const qn_prompt_list *list, answers *a)
{
    size_t n_own = 0;
    for (size_t i = 0; i < list->n; i++) n_own += list->lines[i].choices != NULL;
    if (!n_own) return QN_OK;
    a->own = qn_calloc(list->n, sizeof *a->own);
    a->ids = qn_calloc(list->n, sizeof *a->ids);
    if (!a->own || !a->ids) return QN_E_NOMEM;
    a->n_prompts = list->n;
    for (size_t i = 0; i < list->n; i++) {
        qn_choice *made = NULL;
        QN_TRY(qn_prompt_list_choices(list, i, &made, &a->own[i].n, &a->ids[i]));
        a->own[i].choice = made;
        if (!list->lines[i].choices) a->own[i] = a->all;
        if (!a->own[i].choice)
            return qn_fail(QN_E_ARG, "%s: line %lld has no choices, and no choices were given for all lines",
                           list->name, (long long)list->lines[i].line);
    }
    return QN_OK;
}

static void free_answers(answers *a)
{
    for (size_t i = 0; i < a->n_prompts; i++) {
        if (a->own[i].choice != a->items) qn_free((void *)(uintptr_t)a->own[i].choice);
        qn_free(a->ids[i]);
    }
    qn_free(a->own);
    qn_free(a->ids);
    qn_free(a->items);
    qn_buf_free(&a->text);
}

static const qn_choice *get_choice(const answers *a, const qn_classify_result *r, size_t i)
{
    return a->own ? &a->own[r->i_prompt].choice[i] : &a->all.choice[i];
}

static void put_choice(qn_buf *b, const answers *a, const qn_classify_result *r, size_t i)
{
    const qn_choice *c = get_choice(a, r, i);
    qn_json_open(b, '{');
    if (c->text) {
        qn_json_key(b, "choice");
        qn_json_text(b, c->text, c->text_bytes ? c->text_bytes : strlen(c->text));
    } else {
        qn_json_key(b, "ids");
        qn_json_ids(b, c->ids, c->n_ids);
    }
    qn_json_put_real(b, "logprob", r->choices[i].logprob);
    qn_json_put_real(b, "probability", r->choices[i].probability);
    qn_json_put_int(b, "n_tokens", r->choices[i].n_tokens);
    qn_json_close(b, '}');
}

/* The text of ids, or "" where the model has no tokenizer. Owned: qn_buffer_free. */
static char *get_text(const qn_model *model, const int32_t *ids, int64_t n)
{
    char *text = NULL;
    return qn_model_decode(model, ids, n, NULL, &text, NULL) == QN_OK ? text : NULL;
}

static qn_status print_json(qn_list_run *run, const qn_classify_result *r)
{
    const classify_options *o = run->user;
    qn_buf b = {0};
    qn_list_run_open_json(run, &b, r->i_prompt, r->status, r->message);
    qn_json_put_int(&b, "n_prompt_tokens", r->n_tokens);
    if (r->status == QN_OK) {
        char *text = get_text(run->model, &r->id, 1);
        qn_json_put_int(&b, "id", r->id);
        if (text) qn_json_put_text(&b, "text", text);
        qn_buffer_free(text);
        if (o->logprobs >= 0) {
            qn_json_put_real(&b, "logprob", (double)r->logprob);
            qn_json_key(&b, "top");
            qn_json_open(&b, '[');
            for (int32_t i = 0; i < r->n_top; i++) {
                qn_json_open(&b, '{');
                qn_json_put_int(&b, "id", r->top[i].id);
                qn_json_put_real(&b, "logprob", (double)r->top[i].logprob);
                qn_json_close(&b, '}');
            }
            qn_json_close(&b, ']');
        }
        if (r->n_choices) {
            qn_json_put_int(&b, "best", (int64_t)r->best_choice);
            qn_json_key(&b, "choices");
            qn_json_open(&b, '[');
            for (size_t i = 0; i < r->n_choices; i++) put_choice(&b, &o->answers, r, i);
            qn_json_close(&b, ']');
        }
    }
    qn_json_close(&b, '}');
    return qn_out_line(&b);
}

/* "ANSWER<tab>PROBABILITY", with words for those who look at a terminal, or the next token; an empty line for a prompt that failed. */
static qn_status print_text(qn_list_run *run, const qn_classify_result *r)
{
    const classify_options *o = run->user;
    qn_buf b = {0};
    if (qn_list_run_check(run, "prompt", r->i_prompt, r->status, r->message)) {
        const qn_choice *c = r->n_choices ? get_choice(&o->answers, r, r->best_choice) : NULL;
        char *made = c && c->text ? NULL : get_text(run->model, c ? c->ids : &r->id, c ? c->n_ids : 1);
        const char *text = c && c->text ? c->text : made ? made : "";
        qn_out_put_shown(&b, text, c && c->text_bytes ? c->text_bytes : strlen(text), 0);
        if (c)
            qn_buf_printf(&b, isatty(STDOUT_FILENO) ? "  (probability %.4f)" : "\t%.4f",
                          r->choices[r->best_choice].probability);
        qn_buffer_free(made);
    }
    return qn_out_line(&b);
}

static qn_status print(void *user, const qn_classify_result *r)
{
    qn_list_run *run = user;
    const classify_options *o = run->user;
    return o->json ? print_json(run, r) : print_text(run, r);
}

static const qn_arg_group classify_groups[] = {
    {NULL, classify_args, 0, classify_rules},
    {"Prompts", qn_prompt_list_args, AT(list.from), qn_prompt_list_rules},
    {"Loading", qn_load_args, AT(list.load), NULL},
    {"Rotary positions", qn_rope_args, AT(list.load.rope), qn_rope_rules},
    {0}};
const qn_arg_spec qn_classify_spec = {"quern classify MODEL [-f PROMPTS] [--choices A,B,C] [options]",
                                      "Prints, for each prompt, the choice that the model finds most "
                                      "probable. Without choices it prints\nthe next token. Nothing is "
                                      "generated: each prompt is computed once.",
                                      classify_groups,
                                      1,
                                      1,
                                      NULL};

static qn_status prepare(qn_list_run *run)
{
    classify_options *o = run->user;
    QN_TRY(split_choices(o, &o->answers));
    return read_own(&run->list, &o->answers);
}

static qn_status classify(qn_list_run *run)
{
    const classify_options *o = run->user;
    const qn_classify_options options = {.sampling = &o->sampling,
                                         .choices = o->answers.all,
                                         .prompt_choices = o->answers.own,
                                         .cancel = run->cancel};
    return qn_classify(run->model, run->list.prompts, run->list.n, &options, print, run);
}

int qn_cmd_classify(int argc, char **argv)
{
    classify_options o = {.logprobs = -1};
    const char *path;
    int n, code;
    if (qn_args_parse(&qn_classify_spec, &o, argc, argv, &path, &n, &code)) return code;
    o.sampling.logprobs = o.logprobs >= 0;
    o.sampling.n_top_logprobs = o.logprobs > 0 ? o.logprobs : 0;
    code = qn_list_run_command("classify", path, &o.list, prepare, classify, &o);
    free_answers(&o.answers);
    return code;
}
