/* qn_bench_run: options, the prompt, and what the parts share. */
#include <quern/bench.h>
#include <quern/tokenizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/bench_parts.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/status.h"

enum { PROMPT_TOKENS = 512, DECODE_TOKENS = 64, RUNS = 5, SEQUENCES_MAX = 4096 };

const char *qn_bench_part_name(qn_bench_part part)
{
    static const char *const names[] = {
#define PART_NAME(name, text) text,
        QN_BENCH_LIST(PART_NAME)
#undef PART_NAME
    };
    return (unsigned)part < QN_BENCH_COUNT ? names[part] : "unknown part";
}

/* ---- what the parts share ----------------------------------------------------------------------------- */

const char *qn_bench_salt(qn_bench *b, char salt[QN_BENCH_SALT])
{
    snprintf(salt, QN_BENCH_SALT, "bench %llx %llx", (unsigned long long)qn_clock_ns(),
             (unsigned long long)b->n_salts++);
    return salt;
}

qn_status qn_bench_encode(qn_bench *b, const char *text, int32_t **ids, int64_t *n_ids)
{
    return qn_model_encode(b->model, text, strlen(text), &(qn_encode_options){.bos = 1}, ids, n_ids);
}

static void watch(const qn_bench *b, qn_generation *g)
{
    if (b->o.watch) b->o.watch(b->o.user, g);
}

qn_status qn_bench_generate(qn_bench *b, const qn_ids *rows, int64_t n_rows, const qn_generate_options *o,
                            qn_bench_row *answers, qn_generation_stats *stats)
{
    qn_generation *g = NULL;
    qn_token token;
    for (int64_t i = 0; answers && i < n_rows; i++) answers[i].n_ids = 0;
    QN_TRY(qn_generation_open(b->model, &(qn_prompt){.rows = rows, .n_rows = n_rows}, o, &g));
    watch(b, g);
    qn_status status = QN_OK;
    for (int64_t n_ended = 0; status == QN_OK && n_ended < n_rows;) {
        status = qn_generation_next(g, &token);
        if (status != QN_OK) break;
        if (token.end == QN_END_CANCELLED) status = qn_fail(QN_E_CANCELLED, "interrupted");
        if (token.end != QN_END_NONE)
            n_ended++;
        else if (answers)
            answers[token.row].ids[answers[token.row].n_ids++] = token.id;
    }
    if (status == QN_OK && stats) status = qn_generation_get_stats(g, stats);
    watch(b, NULL);
    qn_generation_close(g);
    return status;
}

void qn_bench_check_add(qn_bench *b, const char *name, const char *rule, double value, double bound, int most)
{
    qn_bench_report *r = b->report;
    r->checks[r->n_checks++] = (qn_bench_check){.name = name,
                                                .rule = rule,
                                                .value = value,
                                                .bound = bound,
                                                .passed = most ? value <= bound : value == bound};
}

double qn_bench_equal(const int32_t *x, int64_t n_x, const int32_t *y, int64_t n_y)
{
    const int64_t least = n_x < n_y ? n_x : n_y, most = n_x < n_y ? n_y : n_x;
    int64_t n = 0;
    for (int64_t i = 0; i < least; i++) n += x[i] == y[i];
    return most ? (double)n / (double)most : 1;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

qn_bench_spread qn_bench_summary(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    double median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
    return (qn_bench_spread){median, values[0], values[n - 1]};
}

/* ---- options and prompt ------------------------------------------------------------------------------- */

static qn_status check_options(const qn_bench_options *o)
{
    const struct {
        const char *name;
        int64_t value, least, most;
    } fields[] = {
        {"n_prompt_tokens", o->n_prompt_tokens, 0, INT32_MAX},
        {"n_decode_tokens", o->n_decode_tokens, 0, INT32_MAX},
        {"n_sequences", o->n_sequences, 0, SEQUENCES_MAX},
        {"n_runs", o->n_runs, 0, QN_BENCH_RUNS_MAX},
        {"parts", o->parts, 0, (1 << QN_BENCH_COUNT) - 1},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (fields[i].value < fields[i].least || fields[i].value > fields[i].most)
            return qn_fail(QN_E_ARG, "%s: %lld is not in the range %lld to %lld", fields[i].name,
                           (long long)fields[i].value, (long long)fields[i].least, (long long)fields[i].most);
    }
    if (o->n_decode_tokens == 1)
        return qn_fail(QN_E_ARG, "n_decode_tokens is 1, but decode is measured from the second token on");
    if (o->prompt && o->n_prompt_tokens)
        return qn_fail(QN_E_ARG, "n_prompt_tokens is %lld, but the prompt has its own tokens",
                       (long long)o->n_prompt_tokens);
    if (!(o->max_perplexity >= 0))
        return qn_fail(QN_E_ARG, "max_perplexity: %g is not a perplexity", o->max_perplexity);
    return QN_OK;
}

/* The ids of all sequences: of the text, or at random, different for each. */
static qn_status make_prompt(qn_bench *b)
{
    qn_bench_options *o = &b->o;
    int32_t *text = NULL;
    if (o->prompt) {
        QN_TRY(qn_bench_encode(b, o->prompt, &text, &o->n_prompt_tokens));
        if (o->n_prompt_tokens < 1) {
            qn_buffer_free(text);
            return qn_fail(QN_E_ARG, "the prompt has no tokens");
        }
    }
    b->ids = qn_alloc_array((size_t)(o->n_prompt_tokens * o->n_sequences), sizeof *b->ids);
    for (int64_t i = 0; b->ids && i < o->n_prompt_tokens * o->n_sequences; i++)
        b->ids[i] = text ? text[i % o->n_prompt_tokens]
                         : (int32_t)(qn_random_bits(1, (uint64_t)i) % (uint64_t)b->n_vocab);
    qn_buffer_free(text);
    return b->ids ? QN_OK : QN_E_NOMEM;
}

/* Zeros become what they stand for; without a prompt both lengths give way to a short context. */
static void fill_in(qn_bench_options *o, int64_t context)
{
    if (!o->n_sequences) o->n_sequences = 1;
    if (!o->n_runs) o->n_runs = RUNS;
    if (!o->parts) o->parts = (1 << QN_BENCH_COUNT) - 1;
    if (!o->n_decode_tokens) o->n_decode_tokens = context / 4 < DECODE_TOKENS ? context / 4 : DECODE_TOKENS;
    if (o->n_decode_tokens < 2) o->n_decode_tokens = 2;
    if (o->prompt || o->n_prompt_tokens) return;
    o->n_prompt_tokens = PROMPT_TOKENS;
    if (o->n_prompt_tokens > context - o->n_decode_tokens) o->n_prompt_tokens = context - o->n_decode_tokens;
    if (o->n_prompt_tokens < 1) o->n_prompt_tokens = 1;
}

static qn_status measure(qn_bench *b)
{
    static const struct {
        qn_bench_part part;
        qn_status (*run)(qn_bench *b);
    } parts[] = {{QN_BENCH_SPEED, qn_bench_speed},
                 {QN_BENCH_PROMPT_CACHE, qn_bench_prompt_cache},
                 {QN_BENCH_STATE, qn_bench_state},
                 {QN_BENCH_PROBES, qn_bench_probes},
                 {QN_BENCH_QUALITY, qn_bench_quality}};
    const int is_wish = b->o.n_decode_tokens > 0;
    fill_in(&b->o, b->context);
    QN_TRY(make_prompt(b));
    const int64_t room = b->context - b->o.n_prompt_tokens;
    if (room < 1)
        return qn_fail(QN_E_ARG, "the prompt has %lld tokens, the context holds %lld",
                       (long long)b->o.n_prompt_tokens, (long long)b->context);
    if (!is_wish && b->o.n_decode_tokens > room && room > 1) b->o.n_decode_tokens = room;
    if (b->o.n_decode_tokens > room)
        return qn_fail(
            QN_E_ARG, "%lld tokens decoded after a prompt of %lld do not fit into the context of %lld",
            (long long)b->o.n_decode_tokens, (long long)b->o.n_prompt_tokens, (long long)b->context);
    b->report->n_prompt_tokens = b->o.n_prompt_tokens;
    b->report->n_decode_tokens = b->o.n_decode_tokens;
    b->report->n_sequences = b->o.n_sequences;
    b->report->n_runs = b->o.n_runs;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (b->o.parts >> parts[i].part & 1) QN_TRY(parts[i].run(b));
    return QN_OK;
}

qn_status qn_bench_run(qn_model *model, const qn_bench_options *options, qn_bench_report *report)
{
    const qn_bench_options defaults = {0};
    qn_model_info info;
    qn_bench_report found = {0};
    if (!model || !report) return qn_fail(QN_E_ARG, "qn_bench_run: the model or the report is NULL");
    qn_bench b = {.model = model, .o = options ? *options : defaults, .report = &found};
    QN_TRY(check_options(&b.o));
    QN_TRY(qn_model_get_info(model, &info));
    b.n_vocab = info.vocab_size;
    b.context = info.context_size;
    qn_status status = measure(&b);
    qn_free(b.ids);
    if (status == QN_OK) *report = found;
    return status;
}
