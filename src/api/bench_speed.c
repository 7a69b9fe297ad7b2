/* The parts of qn_bench_run that are about time: prefill and decode, a prompt that comes again, probes. */
#include <quern/figures.h>
#include <quern/probe.h>

#include "api/bench_parts.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"

enum { WARM_PROMPT = 256, WARM_DECODE = 8 };

/* ---- prefill and decode ------------------------------------------------------------------------------- */

/* Speeds of one run, in tokens a second; decode of all sequences together. */
typedef struct {
    double prefill, decode;
} speeds;

/* Reads what a generation makes until n_events tokens came after all rows had begun, and notes its figures
 * then and there. */
static qn_status read_tokens(qn_generation *g, int64_t n_rows, int64_t n_events, char *begun, speeds *out)
{
    qn_generation_stats stats, before = {0};
    int64_t n_begun = 0, n = 0;
    while (n < n_events) {
        qn_token token;
        QN_TRY(qn_generation_next(g, &token));
        if (token.end == QN_END_CANCELLED) return qn_fail(QN_E_CANCELLED, "interrupted");
        if (token.end != QN_END_NONE) break; /* the context is full */
        if (n_begun == n_rows) {
            n++;
        } else if (!begun[token.row]) {
            begun[token.row] = 1;
            if (++n_begun == n_rows) QN_TRY(qn_generation_get_stats(g, &before));
        }
    }
    QN_TRY(qn_generation_get_stats(g, &stats));
    double decode_ms = stats.decode_ms - before.decode_ms;
    out->prefill = n_begun == n_rows ? before.prefill_tokens_per_sec : stats.prefill_tokens_per_sec;
    out->decode = decode_ms > 0 && n ? (double)n / decode_ms * 1e3 : 0;
    return QN_OK;
}

/* One prompt of n_prompt ids and n_decode tokens behind it. */
static qn_status run_once(qn_bench *b, int64_t n_prompt, int64_t n_decode, speeds *out)
{
    const qn_generate_options o = {.ignore_eos = 1, .no_prefix_cache = 1};
    const qn_ids row = {b->ids, n_prompt};
    qn_generation *g = NULL;
    char begun = 0;
    QN_TRY(qn_generation_open(b->model, &(qn_prompt){.rows = &row, .n_rows = 1}, &o, &g));
    if (b->o.watch) b->o.watch(b->o.user, g);
    qn_status status = read_tokens(g, 1, n_decode - 1, &begun, out);
    if (status == QN_OK) { /* ended, so that the model's metrics speak of it */
        qn_token token;
        qn_generation_cancel(g);
        status = qn_generation_next(g, &token);
    }
    if (b->o.watch) b->o.watch(b->o.user, NULL);
    qn_generation_close(g);
    return status;
}

/* n tokens of each sequence, in turn. */
static qn_status read_all(qn_bench *b, qn_generation **g, int64_t n_rows, int64_t n)
{
    qn_token token;
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = 0; i < n_rows; i++) {
            if (b->o.watch) b->o.watch(b->o.user, g[i]);
            QN_TRY(qn_generation_next(g[i], &token));
            if (token.end == QN_END_CANCELLED) return qn_fail(QN_E_CANCELLED, "interrupted");
            if (token.end != QN_END_NONE)
                return qn_fail(QN_E_ARG,
                               "the context is full after %lld tokens: sequences that run together need room "
                               "for their prompt, the measured tokens and %d more",
                               (long long)token.position, 3 * QN_TOKENS_AHEAD);
        }
    return QN_OK;
}

/* Several prompts, and n_decode tokens behind each, of all together. Sequences whose prompt is done early
 * wait, unread, as soon as they are so far ahead as a generation gets; time is measured from there on where
 * all go together, by the tokens that were drawn. */
static qn_status run_together(qn_bench *b, int64_t n_prompt, int64_t n_decode, int64_t n_rows, speeds *out)
{
    const qn_generate_options o = {.ignore_eos = 1, .no_prefix_cache = 1};
    qn_figures before, after;
    qn_generation **g = qn_calloc((size_t)n_rows, sizeof *g);
    qn_status status = g ? QN_OK : QN_E_NOMEM;
    int64_t start = qn_clock_ns();
    for (int64_t i = 0; status == QN_OK && i < n_rows; i++) {
        const qn_ids row = {b->ids + i * b->o.n_prompt_tokens, n_prompt};
        status = qn_generation_open(b->model, &(qn_prompt){.rows = &row, .n_rows = 1}, &o, &g[i]);
    }
    if (status == QN_OK) status = read_all(b, g, n_rows, 1);
    out->prefill = (double)(n_rows * n_prompt) / ((double)(qn_clock_ns() - start) * 1e-9);
    if (status == QN_OK) status = read_all(b, g, n_rows, QN_TOKENS_AHEAD);
    if (status == QN_OK) status = qn_model_get_figures(b->model, &before);
    start = qn_clock_ns();
    if (status == QN_OK) status = read_all(b, g, n_rows, n_decode);
    int64_t took_ns = qn_clock_ns() - start;
    if (status == QN_OK) status = qn_model_get_figures(b->model, &after);
    if (status == QN_OK)
        out->decode =
            (double)(after.n_generated_tokens - before.n_generated_tokens) / ((double)took_ns * 1e-9);
    if (b->o.watch) b->o.watch(b->o.user, NULL);
    for (int64_t i = 0; g && i < n_rows; i++) qn_generation_close(g[i]);
    qn_free(g);
    return status;
}

qn_status qn_bench_speed(qn_bench *b)
{
    const qn_bench_options *o = &b->o;
    double prefill[QN_BENCH_RUNS_MAX], decode[QN_BENCH_RUNS_MAX];
    speeds once;
    qn_metrics metrics;
    /* Warms caches and pages; does not count. */
    QN_TRY(
        run_once(b, o->n_prompt_tokens < WARM_PROMPT ? o->n_prompt_tokens : WARM_PROMPT, WARM_DECODE, &once));
    for (int i = 0; i < o->n_runs; i++) {
        if (o->n_sequences > 1)
            QN_TRY(run_together(b, o->n_prompt_tokens, o->n_decode_tokens, o->n_sequences, &once));
        else
            QN_TRY(run_once(b, o->n_prompt_tokens, o->n_decode_tokens, &once));
        prefill[i] = once.prefill;
        decode[i] = once.decode;
    }
    QN_TRY(qn_model_get_metrics(b->model, &metrics));
    b->report->prefill_tokens_per_sec = qn_bench_summary(prefill, o->n_runs);
    b->report->decode_tokens_per_sec = qn_bench_summary(decode, o->n_runs);
    b->report->peak_memory_bytes = metrics.peak_memory_bytes;
    b->report->active_memory_bytes = metrics.active_memory_bytes;
    b->report->parts |= 1u << QN_BENCH_SPEED;
    return QN_OK;
}

/* ---- a prompt that comes again ------------------------------------------------------------------------ */

qn_status qn_bench_prompt_cache(qn_bench *b)
{
    const qn_ids row = {b->ids, b->o.n_prompt_tokens};
    double cold[QN_BENCH_RUNS_MAX], warm[QN_BENCH_RUNS_MAX], hit_rate = 0;
    for (int i = 0; i < b->o.n_runs; i++) {
        char salt[QN_BENCH_SALT];
        const qn_generate_options o = {
            .max_tokens = 1, .ignore_eos = 1, .cache_salt = qn_bench_salt(b, salt)};
        qn_generation_stats stats;
        QN_TRY(qn_bench_generate(b, &row, 1, &o, NULL, &stats));
        cold[i] = stats.first_token_ms;
        QN_TRY(qn_bench_generate(b, &row, 1, &o, NULL, &stats));
        warm[i] = stats.first_token_ms;
        hit_rate += (double)stats.n_cached_tokens / (double)(b->o.n_prompt_tokens * b->o.n_runs);
    }
    b->report->hit_rate = hit_rate;
    b->report->cold_first_token_ms = qn_bench_summary(cold, b->o.n_runs);
    b->report->warm_first_token_ms = qn_bench_summary(warm, b->o.n_runs);
    b->report->parts |= 1u << QN_BENCH_PROMPT_CACHE;
    return QN_OK;
}

/* ---- probes ------------------------------------------------------------------------------------------- */

/* Tokens of a run, pairs of runs for each of n_runs, and how long they go on where that is more: the shorter
 * they are and the more, the less it matters that a machine is faster at times. */
enum { PROBED_TOKENS = 16, PAIRS = 8, PROBING_MS = 3000 };

/* One kind of runs, with probes or without. */
typedef struct {
    int32_t ids[PROBED_TOKENS];
    qn_bench_row answer;
    double ms; /* of a token behind the first; 0 where the context leaves none */
    int64_t n_events;
} probed_run;

static void count(void *user, const qn_probe_event *event)
{
    ++*(int64_t *)user;
}

static qn_status decode(qn_bench *b, const char *salt, probed_run *r)
{
    const qn_ids row = {b->ids, b->o.n_prompt_tokens};
    const int64_t n = b->o.n_decode_tokens < PROBED_TOKENS ? b->o.n_decode_tokens : PROBED_TOKENS;
    const qn_generate_options o = {.max_tokens = n, .ignore_eos = 1, .cache_salt = salt};
    qn_generation_stats stats;
    r->answer.ids = r->ids;
    QN_TRY(qn_bench_generate(b, &row, 1, &o, &r->answer, &stats));
    r->ms = r->answer.n_ids > 1 ? stats.decode_ms / (double)(r->answer.n_ids - 1) : 0;
    return QN_OK;
}

static qn_status decode_probed(qn_bench *b, const char *salt, probed_run *r)
{
    const uint32_t mask = 1u << QN_PROBE_TOKEN | 1u << QN_PROBE_STEP | 1u << QN_PROBE_CACHE;
    int64_t probe;
    r->n_events = 0;
    QN_TRY(qn_probe_add(b->model, mask, count, &r->n_events, &probe));
    qn_status status = decode(b, salt, r), removed = qn_probe_remove(b->model, probe);
    return status != QN_OK ? status : removed;
}

/* Pairs of runs, now these first and now those. */
static qn_status compare_probes(qn_bench *b, double *ratios, int *n_pairs, double *equal)
{
    char salt[QN_BENCH_SALT];
    probed_run plain = {.ms = 0}, probed = {.ms = 0};
    qn_bench_salt(b, salt);
    QN_TRY(decode(b, salt, &plain)); /* leaves the prompt */
    const int64_t start = qn_clock_ns();
    for (int n = 0; n < QN_BENCH_RUNS_MAX && n < PAIRS * b->o.n_runs; n++) {
        if (n >= b->o.n_runs && qn_clock_ns() - start > PROBING_MS * (int64_t)1000000) break;
        if (n % 2) QN_TRY(decode_probed(b, salt, &probed));
        QN_TRY(decode(b, salt, &plain));
        if (n % 2 == 0) QN_TRY(decode_probed(b, salt, &probed));
        double same = qn_bench_equal(plain.ids, plain.answer.n_ids, probed.ids, probed.answer.n_ids);
        if (same < *equal) *equal = same;
        ratios[n] = plain.ms > 0 && probed.ms > 0 ? probed.ms / plain.ms : 1;
        *n_pairs = n + 1;
    }
    b->report->n_probe_events = probed.n_events;
    return QN_OK;
}

qn_status qn_bench_probes(qn_bench *b)
{
    double ratios[QN_BENCH_RUNS_MAX], equal = 1;
    int n_pairs = 0;
    qn_status status = compare_probes(b, ratios, &n_pairs, &equal);
    if (status == QN_E_UNSUPPORTED) return QN_OK;
    QN_TRY(status);
    b->report->probe_overhead = qn_bench_summary(ratios, n_pairs).median - 1;
    qn_bench_check_add(b, "greedy_probed", "value = bound: the share of equal ids with probes", equal, 1, 0);
    b->report->parts |= 1u << QN_BENCH_PROBES;
    return QN_OK;
}
