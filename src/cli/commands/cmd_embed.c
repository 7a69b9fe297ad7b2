/* quern embed: a vector for each text of a list. */
#include <quern/quern.h>

#include "cli/command.h"
#include "cli/commands/prompt_list.h"
#include "cli/options/options.h"
#include "cli/term/interrupt.h"
#include "cli/term/out.h"

typedef struct {
    qn_load_options load;
    qn_prompt_list_options from;
    qn_embed_options embed;
    int pooling;
} embed_options;

#define AT(field) offsetof(embed_options, field)
static const qn_arg embed_args[] = {
    {"--pooling", 0, QN_ARG_CHOICE, AT(pooling), 0, 0, "mean|last|cls",
     "which hidden states make the vector: all, the last token's, the first's (default mean)"},
    {"--normalise", 0, QN_ARG_FLAG, AT(embed.normalise), 0, 0, NULL, "scale each vector to a length of 1"},
    {"--use", 0, QN_ARG_TEXT, AT(embed.adapter), 0, 0, "NAME",
     "an adapter by its name; none: the model alone"},
    {0},
};

static qn_status print(void *user, const qn_embed_result *r)
{
    int *n_failed = user;
    qn_buf b = {0};
    *n_failed += r->status != QN_OK;
    qn_prompt_list_open_json(&b, r->i_prompt, r->status, r->message);
    qn_json_put_int(&b, "n_tokens", r->n_tokens);
    if (r->status == QN_OK) {
        qn_json_key(&b, "embedding");
        qn_json_open(&b, '[');
        for (int64_t i = 0; i < r->n_values; i++) qn_json_real(&b, (double)r->vector[i]);
        qn_json_close(&b, ']');
    }
    qn_json_close(&b, '}');
    return qn_out_line(&b);
}

static const qn_arg_group embed_groups[] = {{NULL, embed_args, 0},
                                            {"Texts", qn_prompt_list_args, AT(from)},
                                            {"Loading", qn_load_args, AT(load)},
                                            {0}};
const qn_arg_spec qn_embed_spec = {"quern embed MODEL [-f TEXTS] [options]",
                                   "Prints a vector for each text, one a line of the input, as JSON: the "
                                   "model's hidden states after the final norm, "
                                   "pooled.",
                                   embed_groups,
                                   1,
                                   1,
                                   NULL};

int qn_cmd_embed(int argc, char **argv)
{
    embed_options o = {.pooling = 0};
    const char *path;
    int n, code, n_failed = 0;
    if (qn_args_parse(&qn_embed_spec, &o, argc, argv, &path, &n, &code)) return code;
    if ((code = qn_prompt_list_check("embed", &o.from))) return code;
    o.embed.pooling = (qn_pooling)o.pooling;

    qn_model *model = NULL;
    qn_cancel *cancel = NULL;
    qn_prompt_list list = {0};
    qn_status status = qn_prompt_list_read(&o.from, 0, &list);
    if (status == QN_OK) status = qn_load_open_for(path, &o.load, list.n, &model);
    if (status == QN_OK) status = qn_prompt_list_finish(&list, 0, NULL);
    if (status == QN_OK) status = qn_cancel_new(&cancel);
    if (status == QN_OK) {
        o.embed.cancel = cancel;
        qn_interrupt_start();
        qn_interrupt_watch_call(cancel);
        status = qn_embed(model, list.prompts, list.n, &o.embed, print, &n_failed);
        qn_interrupt_watch_call(NULL);
    }
    code = status != QN_OK ? qn_out_fail() : n_failed ? QN_EXIT_ERROR : QN_EXIT_OK;
    if (status == QN_E_CANCELLED) code = QN_EXIT_INTERRUPTED;
    qn_cancel_free(cancel);
    qn_model_close(&model);
    qn_load_end(&o.load);
    qn_prompt_list_free(&list);
    return code;
}
