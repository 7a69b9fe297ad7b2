/* quern constrain: what a schema enforces, and how fast its masks are. */
#include <string.h>

#include "cli/command.h"
#include "cli/constrain/constrain_bench.h"
#include "cli/constrain/constrain_check.h"
#include "cli/options/args.h"
#include "cli/term/out.h"
#include "seed/seed.h"
#include "text/tokenizer/tokenizer_source.h"

typedef struct {
    int json, names;
} constrain_options;

#define AT(field) offsetof(constrain_options, field)
static const qn_arg constrain_args[] = {
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print one JSON object"},
    {"--names", 0, QN_ARG_FLAG, AT(names), 0, 0, NULL,
     "bench: say on standard error which schemas do not pass, and why"},
    {0},
};

static const qn_arg_group constrain_groups[] = {{NULL, constrain_args, 0, NULL}, {0}};
const qn_arg_spec qn_constrain_spec = {
    "quern constrain check SCHEMA [INSTANCE] | bench FILE MODEL",
    "check says what a JSON schema enforces and what is refused. With an instance it says whether the "
    "instance is "
    "allowed, and why not. bench tries each schema of FILE (JSON lines, also gzip) against its instances, on "
    "one "
    "thread, with the tokens of MODEL, which may be a directory with only a tokenizer.",
    constrain_groups,
    2,
    3,
    "check|bench"};

static qn_status open_tokenizer(const char *path, qn_tokenizer **out)
{
    qn_source *source = NULL;
    QN_TRY(qn_source_open(path, &(qn_source_options){.text_only = 1}, &source));
    qn_status status = qn_tokenizer_open(source, NULL, out);
    qn_source_close(source);
    return status;
}

int qn_cmd_constrain(int argc, char **argv)
{
    constrain_options o = {0};
    const char *words[QN_POSITIONAL_MAX];
    int n, code, is_good = 1;
    if (qn_args_parse(&qn_constrain_spec, &o, argc, argv, words, &n, &code)) return code;
    int is_check = !strcmp(words[0], "check");
    if (!is_check && n != 3) return qn_args_fail("constrain", "bench needs FILE and MODEL");
    if (is_check && o.names) return qn_args_fail("constrain", "--names cannot be used with check");
    qn_tokenizer *tokenizer = NULL;
    /* Which texts are allowed does not depend on the vocabulary: the seed's is at hand. */
    qn_status status = open_tokenizer(is_check ? QN_SEED_PATH : words[2], &tokenizer);
    if (status == QN_OK && is_check)
        status = qn_constrain_check(words[1], n == 3 ? words[2] : NULL, tokenizer, o.json, &is_good);
    else if (status == QN_OK)
        status = qn_constrain_bench(words[1], tokenizer, &(qn_constrain_bench_options){o.json, o.names});
    qn_tokenizer_free(tokenizer);
    if (status != QN_OK) return qn_out_fail();
    return is_good ? QN_EXIT_OK : QN_EXIT_ERROR;
}
