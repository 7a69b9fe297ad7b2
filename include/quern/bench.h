/* Measures a model on this machine: speed, memory, costs and gains of prefixes, saved state and probes, and
 * whether its answers are plausible. `quern bench` is a thin main over it.
 *
 * A run computes on a model like any other caller, so figures are meaningful only if nothing else computes
 * meanwhile. A run leaves the model as before, except for its own prefixes. No other caller can use these,
 * and they are evicted first when memory is needed. A figure that this model or backend cannot give is
 * absent: its part is not in qn_bench_report.parts, or its check is not in the list. Any thread. */
#ifndef QUERN_BENCH_H
#define QUERN_BENCH_H

#include <quern/generate.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is measured: X(NAME, "name"). */
#define QN_BENCH_LIST(X)                                                                     \
    X(SPEED, "speed")               /* prefill and decode, and memory after them */          \
    X(PROMPT_CACHE, "prompt_cache") /* a repeated prompt */                                  \
    X(STATE, "state")               /* what is computed of the prompt, to a file and back */ \
    X(PROBES, "probes")             /* decode with and without probes */                     \
    X(QUALITY, "quality")           /* answers to fixed prompts, perplexity of a built-in text */

typedef enum {
#define QN_BENCH_ENUM(name, text) QN_BENCH_##name,
    QN_BENCH_LIST(QN_BENCH_ENUM)
#undef QN_BENCH_ENUM
        QN_BENCH_COUNT
} qn_bench_part;

enum { QN_BENCH_RUNS_MAX = 101, QN_BENCH_PROMPTS = 4, QN_BENCH_IDS = 16, QN_BENCH_CHECKS_MAX = 8 };

/* Called with each generation when it is opened, and with NULL when it has ended, so that another thread can
 * cancel it. A cancelled generation ends the run (QN_E_CANCELLED). */
typedef void qn_bench_watch_fn(void *user, qn_generation *generation);

typedef struct {
    const char *prompt;      /* a text as it is, UTF-8, NUL-terminated. NULL: n_prompt_tokens random ids */
    int64_t n_prompt_tokens; /* 0: 512, or what the context leaves. Not with a prompt (QN_E_ARG) */
    int64_t n_decode_tokens; /* generated behind it. 0: 64, or what the context leaves; at least 2 */
    int64_t n_sequences;     /* prompts that run together in SPEED. 0: 1 */
    int32_t n_runs;          /* of which the median counts; at most QN_BENCH_RUNS_MAX. 0: 5 */
    uint32_t parts;          /* a sum of 1 << QN_BENCH_SPEED and the like. 0: all */
    const char *folder;      /* for the file of STATE, which is removed. NULL: $TMPDIR, or /tmp; without STATE
                              * where that cannot be written */
    double max_perplexity; /* of the built-in text, for its check. 0: vocab_size, which is that of a guess */
    qn_bench_watch_fn *watch; /* may be NULL */
    void *user;
} qn_bench_options;

typedef struct {
    double median, low, high;
} qn_bench_spread;

/* What greedy decoding answers to a fixed prompt: QN_BENCH_IDS tokens, or fewer where the model ends. */
typedef struct {
    const char *prompt; /* static storage */
    int32_t ids[QN_BENCH_IDS];
    int32_t n_ids;
} qn_bench_answer;

/* A check and its rule. Strings have static storage. */
typedef struct {
    const char *name; /* "greedy_again" */
    const char *rule; /* "value = bound: the share of equal ids in a second run" */
    double value, bound;
    int passed;
} qn_bench_check;

typedef struct {
    uint32_t parts; /* those that are there, a sum of 1 << QN_BENCH_SPEED and the like */
    int64_t n_prompt_tokens, n_decode_tokens, n_sequences;
    int32_t n_runs;
    /* SPEED. Prompts are computed again each time. Decode counts the tokens of all sequences while all of
     * them run together; its figures are 0 if the context ends before. */
    qn_bench_spread prefill_tokens_per_sec, decode_tokens_per_sec;
    size_t peak_memory_bytes, active_memory_bytes; /* by then, of everything the model holds */
    /* PROMPT_CACHE. The same prompt again: the share of its tokens that were cached, and the time to the
     * first token in the first run and again. */
    double hit_rate;
    qn_bench_spread cold_first_token_ms, warm_first_token_ms;
    /* STATE: of the prompt's tokens (cache.h): the file's size, and how long writing and reading back take.
     */
    size_t state_bytes;
    qn_bench_spread state_save_ms, state_restore_ms;
    /* PROBES: events of one short run with probes for tokens, steps and the cache, and what they add to the
     * time of decoding, 0.01 for 1% (the median of many pairs of runs: noise may make it negative). */
    int64_t n_probe_events;
    double probe_overhead;
    /* QUALITY; checks of the other parts stand here too. */
    qn_bench_answer answers[QN_BENCH_PROMPTS];
    int32_t n_answers;
    double perplexity;
    int64_t n_scored; /* tokens of the built-in text that were predicted; 0: it could not be scored */
    qn_bench_check checks[QN_BENCH_CHECKS_MAX];
    int32_t n_checks;
} qn_bench_report;

/* Measures the model. options may be NULL. QN_E_ARG: an option out of range, by name, or a prompt that does
 * not fit the context; QN_E_CANCELLED: a generation was cancelled; else what computing gave. */
QN_API qn_status qn_bench_run(qn_model *model, const qn_bench_options *options, qn_bench_report *report);
/* "prompt_cache". Static storage. */
QN_API const char *qn_bench_part_name(qn_bench_part part);

#ifdef __cplusplus
}
#endif
#endif
