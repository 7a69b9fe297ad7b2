/* How text is generated: the options of run, chat and batch about sampling. */
#include <quern/quern.h>
#include <string.h>

#include "cli/command.h"
#include "cli/options/options.h"

#define SAMPLING(field) offsetof(qn_sampling_options, field)
const qn_arg qn_sampling_args[] = {
    {"--max-tokens", 'n', QN_ARG_INT64, SAMPLING(o.max_tokens), 0, INT32_MAX, "N",
     "maximum new tokens (0: no limit)"},
    {"--temp", 0, QN_ARG_FLOAT, SAMPLING(temperature), 0, 1000, "T",
     "temperature; 0 takes the most likely token (default: run: 0; chat: the model's, else 0.7)"},
    {"--top-p", 0, QN_ARG_FLOAT, SAMPLING(top_p), 0, 1, "P",
     "nucleus sampling: keep the most likely tokens whose probabilities sum to P"},
    {"--top-k", 0, QN_ARG_INT32, SAMPLING(top_k), 0, INT32_MAX, "K", "keep only the K most likely tokens"},
    {"--min-p", 0, QN_ARG_FLOAT, SAMPLING(min_p), 0, 1, "P",
     "keep only tokens at least P times as probable as the most likely one"},
    {"--repeat-penalty", 0, QN_ARG_FLOAT, SAMPLING(repeat_penalty), 0, 100, "R",
     "above 1: make tokens that have already occurred less likely"},
    {"--presence-penalty", 0, QN_ARG_FLOAT, SAMPLING(o.presence_penalty), -2, 2, "P",
     "subtract P from the logit of each token that the answer already has"},
    {"--frequency-penalty", 0, QN_ARG_FLOAT, SAMPLING(o.frequency_penalty), -2, 2, "P",
     "subtract P from a token's logit for each time it is in the answer"},
    {"--logit-bias", 0, QN_ARG_LIST, SAMPLING(bias), 0, 0, "ID=V",
     "add V (-100 to 100) to the logit of token ID; may be repeated"},
    {"--seed", 0, QN_ARG_UINT64, SAMPLING(o.seed), 0, 0, "N",
     "random seed for sampling; 0 (default): a new seed for each run"},
    {"--repeat-last-n", 0, QN_ARG_INT32, SAMPLING(repeat_last_n), -1, INT32_MAX, "N",
     "apply the three penalties to the last N tokens only; 0: turn them off; -1 (default): to all tokens"},
    {"--typical", 0, QN_ARG_FLOAT, SAMPLING(typical_p), 0, 1, "P",
     "locally typical sampling: keep tokens whose surprise is near the entropy, with probabilities that sum "
     "to P"},
    {"--top-nsigma", 0, QN_ARG_FLOAT, SAMPLING(o.top_n_sigma), -1, 1000, "N",
     "keep only logits within N standard deviations of the largest; 0 or -1: off"},
    {"--xtc-probability", 0, QN_ARG_FLOAT, SAMPLING(o.xtc_probability), 0, 1, "P",
     "XTC: probability that a draw excludes the most likely tokens"},
    {"--xtc-threshold", 0, QN_ARG_FLOAT, SAMPLING(o.xtc_threshold), 0, 1, "P",
     "exclude tokens of at least this probability, except the least likely of them (default 0.1)"},
    {"--dynatemp-range", 0, QN_ARG_FLOAT, SAMPLING(o.dynatemp_range), 0, 1000, "R",
     "dynamic temperature: from T - R to T + R, by the entropy"},
    {"--dynatemp-exp", 0, QN_ARG_FLOAT, SAMPLING(o.dynatemp_exponent), 0, 100, "E",
     "exponent of the entropy for the dynamic temperature (default 1)"},
    {"--mirostat", 0, QN_ARG_INT32, SAMPLING(o.mirostat), 0, 2, "V",
     "mirostat of version 1 or 2: keep the surprise of tokens near a target; 0: off"},
    {"--mirostat-ent", 0, QN_ARG_FLOAT, SAMPLING(o.mirostat_tau), 0, 100, "TAU",
     "mirostat's target in bits (default 5)"},
    {"--mirostat-lr", 0, QN_ARG_FLOAT, SAMPLING(o.mirostat_eta), 0, 1, "ETA",
     "mirostat's learning rate (default 0.1)"},
    {"--dry-multiplier", 0, QN_ARG_FLOAT, SAMPLING(o.dry_multiplier), 0, 100, "M",
     "DRY: make tokens that continue a repetition less likely; 0: off"},
    {"--dry-base", 0, QN_ARG_FLOAT, SAMPLING(o.dry_base), 1, 100, "B",
     "DRY's loss grows by this factor with each repeated token (default 1.75)"},
    {"--dry-allowed-length", 0, QN_ARG_INT32, SAMPLING(o.dry_allowed_length), 0, INT32_MAX, "N",
     "DRY ignores repetitions of fewer tokens (default 2)"},
    {"--dry-penalty-last-n", 0, QN_ARG_INT32, SAMPLING(dry_last_n), -1, INT32_MAX, "N",
     "DRY looks at the last N tokens; 0: off; -1 (default): at a whole context"},
    {"--dry-sequence-breaker", 0, QN_ARG_LIST, SAMPLING(breakers), 0, 0, "TEXT",
     "DRY's repetitions end at this text; may be repeated; `none`: no breakers (default: a line end, : \" "
     "*)"},
    {"--bad-word", 0, QN_ARG_LIST, SAMPLING(bad_words), 0, 0, "TEXT",
     "never generate this text, with or without a space before it; may be repeated"},
    {"--bad-ids", 0, QN_ARG_LIST, SAMPLING(bad_ids), 0, 0, "ID,ID",
     "never generate these tokens one after the other; may be repeated"},
    {"--allowed-ids", 0, QN_ARG_LIST, SAMPLING(allowed_ids), 0, 0, "ID,ID",
     "generate only these tokens; may be repeated"},
    {"--sampler-order", 0, QN_ARG_TEXT, SAMPLING(order), 0, 0, "LIST",
     "order of the sampling steps (default "
     "repeat_penalty, dry, top_n_sigma, typical_p, top_p, min_p, top_k, xtc, temperature, mirostat)"},
    {"--samplers", 0, QN_ARG_TEXT, SAMPLING(samplers), 0, 0, "LIST",
     "the same as --sampler-order, with ; or , between the steps; llama.cpp's names work too"},
    {"--json-schema", 0, QN_ARG_TEXT, SAMPLING(form.json_schema), 0, 0, "FILE",
     "answer with JSON that satisfies the schema in FILE"},
    {"--regex", 0, QN_ARG_TEXT, SAMPLING(form.regex), 0, 0, "R",
     "answer with a text that matches the regular expression R as a whole"},
    {"--grammar", 0, QN_ARG_TEXT, SAMPLING(form.grammar), 0, 0, "FILE",
     "answer with a text of the grammar in FILE: GBNF (`::=`) or Lark (`:`)"},
    {"--choices", 0, QN_ARG_TEXT, SAMPLING(form.choices), 0, 0, "A,B",
     "answer with one of these texts; a JSON array if they have commas"},
    {"--stop", 0, QN_ARG_LIST, SAMPLING(stop), 0, 0, "TEXT",
     "end the answer before this text; may be repeated"},
    {"--stop-id", 0, QN_ARG_LIST, SAMPLING(stop_ids), 0, 0, "ID",
     "end the answer at this token; may be repeated"},
    {"--use", 0, QN_ARG_TEXT, SAMPLING(o.adapter), 0, 0, "NAME",
     "name of the adapter to use; `none`: the model without an adapter"},
    {"--min-tokens", 0, QN_ARG_INT64, SAMPLING(o.min_tokens), 0, INT32_MAX, "N",
     "minimum tokens of the answer: its end tokens do not come before"},
    {"--reasoning-budget", 0, QN_ARG_INT64, SAMPLING(reasoning_budget), -1, INT32_MAX, "N",
     "maximum tokens of a chat's reasoning; then its end is forced (0: no reasoning; -1, the default: no "
     "limit)"},
    {"--reasoning-message", 0, QN_ARG_TEXT, SAMPLING(o.reasoning_message), 0, 0, "TEXT",
     "text in front of the end of reasoning that --reasoning-budget forces"},
    {"--ignore-eos", 0, QN_ARG_FLAG, SAMPLING(o.ignore_eos), 0, 0, NULL,
     "continue after the model's end tokens"},
    {"--deadline-ms", 0, QN_ARG_INT64, SAMPLING(o.deadline_ms), 1, INT32_MAX, "MS",
     "end the answer after this many milliseconds"},
    {"--speculate", 0, QN_ARG_CHOICE, SAMPLING(speculate), 0, 0, "lookup|off",
     "guess tokens that repeat earlier text, if that is faster (default lookup); the answer stays the same"},
    {"--rotate", 0, QN_ARG_FLAG, SAMPLING(o.rotate), 0, 0, NULL,
     "when the context is full, forget its beginning and continue"},
    {0},
};

const qn_arg_rule qn_sampling_rules[] = {
    {"--samplers", "--sampler-order", NULL, "both set the order of the steps"},
    {"--json-schema", "--regex --grammar --choices", NULL, "an answer has one form"},
    {"--regex", "--grammar --choices", NULL, "an answer has one form"},
    {"--grammar", "--choices", NULL, "an answer has one form"},
    {0},
};

/* Splits "top_p,min_p" or "top_p;min_p" into steps. Mirostat draws last if it is asked for and not listed. */
static int read_order(const char *command, const char *option, const char *list, qn_sampling_options *s)
{
    int has_mirostat = 0;
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ",;");
        qn_sampler_step step;
        if (!qn_sampler_step_from_name(p, n, &step) || s->o.n_sampler_order == QN_SAMPLER_COUNT)
            return qn_args_fail(command, "%s: '%.*s' is not one of the %d steps, or is one step too many",
                                option, (int)n, p, QN_SAMPLER_COUNT);
        s->steps[s->o.n_sampler_order++] = step;
        has_mirostat |= step == QN_SAMPLER_MIROSTAT;
        p += n + (p[n] != 0);
    }
    if (s->o.mirostat && !has_mirostat && s->o.n_sampler_order < QN_SAMPLER_COUNT)
        s->steps[s->o.n_sampler_order++] = QN_SAMPLER_MIROSTAT;
    s->o.sampler_order = s->steps;
    return 0;
}

/* Appends the ids of "1,2,3" to the pool, and how many to *n_read. */
static int read_ids(const char *command, const char *option, const char *text, qn_sampling_options *s,
                    int64_t *n_read)
{
    char number[16];
    int64_t id;
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, ",");
        if (n < sizeof number) {
            memcpy(number, p, n);
            number[n] = 0;
        }
        if (n >= sizeof number || !qn_args_read_int(number, &id) || id < 0 || id > INT32_MAX)
            return qn_args_fail(command, "%s: '%s' is not a list of token ids", option, text);
        if (s->n_pool == QN_SAMPLING_IDS_MAX)
            return qn_args_fail(command, "%s: more than %d ids are given", option, (int)QN_SAMPLING_IDS_MAX);
        s->pool[s->n_pool++] = (int32_t)id;
        ++*n_read;
        p += n;
        if (!*p) return 0;
    }
}

static int read_words(const char *command, qn_sampling_options *s)
{
    qn_generate_options *o = &s->o;
    const int no_breakers = s->breakers.n == 1 && strcmp(s->breakers.items[0], "none") == 0;
    for (size_t i = 0; i < s->bad_words.n; i++)
        if (!s->bad_words.items[i][0]) return qn_args_fail(command, "--bad-word: the text is empty");
    for (size_t i = 0; i < s->breakers.n; i++)
        if (!s->breakers.items[i][0])
            return qn_args_fail(command, "--dry-sequence-breaker: the text is empty");
    o->bad_words = s->bad_words.items;
    o->n_bad_words = s->bad_words.n;
    if (s->breakers.n) o->dry_sequence_breakers = s->breakers.items;
    o->n_dry_sequence_breakers = no_breakers ? 0 : s->breakers.n;
    for (size_t i = 0; i < s->bad_ids.n; i++) {
        s->bad[i] = (qn_ids){s->pool + s->n_pool, 0};
        if (read_ids(command, "--bad-ids", s->bad_ids.items[i], s, &s->bad[i].n_ids)) return QN_EXIT_USAGE;
    }
    o->bad_ids = s->bad;
    o->n_bad_ids = s->bad_ids.n;
    int64_t n_allowed = 0;
    if (s->allowed_ids.n) o->allowed_ids = s->pool + s->n_pool;
    for (size_t i = 0; i < s->allowed_ids.n; i++)
        if (read_ids(command, "--allowed-ids", s->allowed_ids.items[i], s, &n_allowed)) return QN_EXIT_USAGE;
    o->n_allowed_ids = (size_t)n_allowed;
    return 0;
}

void qn_sampling_set_windows(qn_sampling_options *s)
{
    s->o.repeat_last_n = s->repeat_last_n;
    s->o.dry_penalty_last_n = s->dry_last_n;
    if (s->repeat_last_n == 0) s->o.repeat_penalty = s->o.presence_penalty = s->o.frequency_penalty = 0;
    if (s->dry_last_n == 0) s->o.dry_multiplier = 0;
}

/* "ID=V" of --logit-bias. */
static int read_bias(const char *command, const char *text, qn_logit_bias *out)
{
    const char *equals = strchr(text, '=');
    char number[16];
    int64_t id;
    double bias;
    size_t n = equals ? (size_t)(equals - text) : sizeof number;
    if (n < sizeof number) {
        memcpy(number, text, n);
        number[n] = 0;
        if (qn_args_read_int(number, &id) && id >= 0 && id <= INT32_MAX &&
            qn_args_read_real(equals + 1, &bias) && bias >= -100 && bias <= 100) {
            *out = (qn_logit_bias){(int32_t)id, (float)bias};
            return 0;
        }
    }
    return qn_args_fail(command,
                        "--logit-bias: '%s' does not have the form ID=V with a token id and a number from "
                        "-100 to 100",
                        text);
}

int qn_sampling_finish(const char *command, qn_sampling_options *s)
{
    s->o.temperature = s->temperature > 0 ? s->temperature : 0;
    s->o.top_p = s->top_p > 0 ? s->top_p : 0;
    s->o.top_k = s->top_k > 0 ? s->top_k : 0;
    s->o.min_p = s->min_p > 0 ? s->min_p : 0;
    s->o.typical_p = s->typical_p > 0 ? s->typical_p : 0;
    s->o.repeat_penalty = s->repeat_penalty > 0 ? s->repeat_penalty : 0;
    if (s->reasoning_budget >= 0) s->o.max_reasoning_tokens = s->reasoning_budget ? s->reasoning_budget : -1;
    s->o.n_draft = s->speculate == 0 ? QN_DRAFT_TOKENS_MAX : 0;
    qn_sampling_set_windows(s);
    if (read_words(command, s)) return QN_EXIT_USAGE;
    if (s->order && read_order(command, "--sampler-order", s->order, s)) return QN_EXIT_USAGE;
    if (s->samplers && read_order(command, "--samplers", s->samplers, s)) return QN_EXIT_USAGE;
    for (size_t i = 0; i < s->stop.n; i++)
        if (!s->stop.items[i][0]) return qn_args_fail(command, "--stop: the text is empty");
    s->o.stop_strings = s->stop.items;
    s->o.n_stop_strings = s->stop.n;
    for (size_t i = 0; i < s->stop_ids.n; i++) {
        int64_t id;
        if (!qn_args_read_int(s->stop_ids.items[i], &id) || id < 0 || id > INT32_MAX)
            return qn_args_fail(command, "--stop-id: '%s' is not a token id", s->stop_ids.items[i]);
        s->ids[i] = (int32_t)id;
    }
    for (size_t i = 0; i < s->bias.n; i++)
        if (read_bias(command, s->bias.items[i], &s->biases[i])) return QN_EXIT_USAGE;
    s->o.logit_bias = s->biases;
    s->o.n_logit_bias = s->bias.n;
    s->o.stop_ids = s->ids;
    s->o.n_stop_ids = s->stop_ids.n;
    return 0;
}
