/* quern embed: a vector for each text of a list. */
#include <quern/quern.h>

#include "cli/command.h"
#include "cli/commands/list_run.h"
#include "cli/term/out.h"

typedef struct {
    qn_list_options list;
    qn_embed_options embed;
    int pooling, json;
} embed_options;

#define AT(field) offsetof(embed_options, field)
static const qn_arg embed_args[] = {
    {"--pooling", 0, QN_ARG_CHOICE, AT(pooling), 0, 0, "own|mean|last|cls|max|weightedmean|mean-sqrt",
     "hidden states that make the vector: as the model's files say, the mean of all, the last token's, the "
     "first token's, the largest of each number, the mean that counts later tokens more, or the sum divided "
     "by "
     "the root of their number (default own, and mean if the files say nothing)"},
    {"--prompt-name", 0, QN_ARG_TEXT, AT(embed.prompt_name), 0, 0, "NAME",
     "the model's prompt of that name goes before each text; an empty name: none (default the model's own)"},
    {"--dimensions", 0, QN_ARG_INT64, AT(embed.dimensions), 1, 1 << 24, "N",
     "print only the first N numbers of each vector, normalised again if the vector was"},
    {"--truncate", 0, QN_ARG_FLAG, AT(embed.truncate), 0, 0, NULL,
     "cut texts that are longer than the model takes, and say how many tokens were cut"},
    {"--normalise", 0, QN_ARG_FLAG, AT(embed.normalise), 0, 0, NULL, "scale each vector to a length of 1"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print JSON, which embed always does"},
    {"--use", 0, QN_ARG_TEXT, AT(embed.adapter), 0, 0, "NAME",
     "name of the adapter to use; `none`: the model without an adapter"},
    {0},
};

static qn_status print(void *user, const qn_embed_result *r)
{
    qn_buf b = {0};
    qn_list_run_open_json(user, &b, r->i_prompt, r->status, r->message);
    qn_json_put_int(&b, "n_tokens", r->n_tokens);
    if (r->n_cut) qn_json_put_int(&b, "n_cut", r->n_cut);
    if (r->status == QN_OK) {
        qn_json_key(&b, "embedding");
        qn_json_open(&b, '[');
        for (int64_t i = 0; i < r->n_values; i++) qn_json_real(&b, (double)r->vector[i]);
        qn_json_close(&b, ']');
    }
    qn_json_close(&b, '}');
    return qn_out_line(&b);
}

static const qn_arg_group embed_groups[] = {
    {NULL, embed_args, 0, NULL},
    {"Texts", qn_prompt_list_args, AT(list.from), qn_prompt_list_rules},
    {"Loading", qn_load_args, AT(list.load), NULL},
    {"Rotary positions", qn_rope_args, AT(list.load.rope), qn_rope_rules},
    {0}};
const qn_arg_spec qn_embed_spec = {"quern embed MODEL [-f TEXTS] [options]",
                                   "Prints a vector for each text as JSON. Each line of the input is one "
                                   "text. The vector is pooled from\nthe model's hidden states after the "
                                   "final norm.",
                                   embed_groups,
                                   1,
                                   1,
                                   NULL};

static qn_status embed(qn_list_run *run)
{
    embed_options *o = run->user;
    o->embed.cancel = run->cancel;
    return qn_embed(run->model, run->list.prompts, run->list.n, &o->embed, print, run);
}

int qn_cmd_embed(int argc, char **argv)
{
    embed_options o = {.list = {.raw = 1}};
    const char *path;
    int n, code;
    if (qn_args_parse(&qn_embed_spec, &o, argc, argv, &path, &n, &code)) return code;
    o.embed.pooling = (qn_pooling)o.pooling;
    return qn_list_run_command("embed", path, &o.list, NULL, embed, &o);
}
