/* How long another caller's submit takes while a long prompt is computed: qn_generation_open of a short row
 * of ids, when nobody computes and when a prompt of 4,000 tokens is under way.
 *
 * usage: submit_bench [--model PATH] [--tokens N] [--threads N] [--rounds N]
 *
 * Without a model it takes the made-up one. Microseconds: median, 99th percentile and the longest. What the
 * library adds and what the system does are told apart by the thread's own counters (getrusage): a submit in
 * which the thread went to sleep waited for somebody, a lock's holder for example; one that the system
 * interrupted to run somebody else (more threads than cores, another process) took as long as that one ran.
 * "undisturbed" are those with neither. What a hypervisor takes away shows in no counter. The thread sleeps
 * between two submits, as one does that waits for requests. */
#include <pthread.h>
#include <quern/quern.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/clock.h"

enum { SHORT = 4, OPEN_MAX = 512, SAMPLES_MAX = 64 * OPEN_MAX, TOKENS_MAX = 100000, GAP_NS = 200000 };

typedef struct {
    double us[SAMPLES_MAX], undisturbed_us[SAMPLES_MAX];
    int n, n_undisturbed, n_slept, n_interrupted;
    int64_t n_faults; /* of pages */
} samples;

typedef struct {
    qn_generation *prompt;
    atomic_int is_over;
} computing;

static void *read_all(void *user)
{
    computing *c = user;
    qn_token t = {0};
    while (t.end == QN_END_NONE && qn_generation_next(c->prompt, &t) == QN_OK)
        ;
    atomic_store(&c->is_over, 1);
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void show_times(const char *which, double *us, int n)
{
    if (!n) return;
    qsort(us, (size_t)n, sizeof *us, by_size);
    printf("  %-12s %6d times  median %6.1f us, 99%% %6.1f us, longest %8.1f us\n", which, n, us[n / 2],
           us[n * 99 / 100], us[n - 1]);
}

static void show(const char *when, samples *s)
{
    printf("%s: %d submits, %d slept, %d were interrupted, %.2f page faults each\n", when, s->n, s->n_slept,
           s->n_interrupted, (double)s->n_faults / (s->n ? s->n : 1));
    show_times("all", s->us, s->n);
    show_times("undisturbed", s->undisturbed_us, s->n_undisturbed);
}

static void note(samples *s, double us, const struct rusage *before, const struct rusage *after)
{
    int slept = after->ru_nvcsw > before->ru_nvcsw, interrupted = after->ru_nivcsw > before->ru_nivcsw;
    s->us[s->n++] = us;
    s->n_slept += slept;
    s->n_interrupted += interrupted;
    s->n_faults += after->ru_minflt - before->ru_minflt;
    if (!slept && !interrupted) s->undisturbed_us[s->n_undisturbed++] = us;
}

/* Opens short rows, a moment apart, until `until` or there are OPEN_MAX. */
static void submit(qn_model *model, const int32_t *ids, computing *until, samples *s)
{
    static qn_generation *open[OPEN_MAX];
    const qn_generate_options o = {.max_tokens = 1};
    int n = 0;
    while (n < OPEN_MAX && !(until && atomic_load(&until->is_over))) {
        const qn_prompt prompt = {.rows = &(qn_ids){ids + n, SHORT}, .n_rows = 1};
        struct rusage before, after;
        getrusage(RUSAGE_THREAD, &before);
        int64_t start = qn_clock_ns();
        if (qn_generation_open(model, &prompt, &o, &open[n]) != QN_OK) break;
        int64_t took = qn_clock_ns() - start;
        getrusage(RUSAGE_THREAD, &after);
        note(s, (double)took * 1e-3, &before, &after);
        n++;
        nanosleep(&(struct timespec){.tv_nsec = GAP_NS}, NULL);
    }
    for (int i = 0; i < n; i++) {
        read_all(&(computing){.prompt = open[i]});
        qn_generation_close(open[i]);
    }
}

int main(int argc, char **argv)
{
    static int32_t ids[TOKENS_MAX];
    static samples idle, busy;
    const char *path = NULL;
    int64_t tokens = 4000, threads = 0, rounds = 5;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--model") == 0) path = argv[i + 1];
        if (strcmp(argv[i], "--tokens") == 0) tokens = strtoll(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--threads") == 0) threads = strtoll(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--rounds") == 0) rounds = strtoll(argv[i + 1], NULL, 10);
    }
    if (tokens < OPEN_MAX + SHORT || tokens > TOKENS_MAX || rounds < 1 || rounds > 64) return 2;
    const qn_model_options o = {.backend = path ? NULL : "mock",
                                .n_threads = (int32_t)threads,
                                .parallel_slots = 4,
                                .context_size = tokens + 64};
    qn_model *model = NULL;
    qn_model_info info;
    if (qn_model_open(path ? path : "1", &o, &model) != QN_OK || qn_model_get_info(model, &info) != QN_OK) {
        fprintf(stderr, "submit_bench: %s\n", qn_last_error());
        return 1;
    }
    for (int64_t i = 0; i < tokens; i++) ids[i] = (int32_t)(1 + i * 7919 % (info.vocab_size - 1));
    int failed = 0;
    for (int64_t round = 0; round < rounds && !failed; round++) {
        const qn_ids row = {ids, tokens};
        const qn_generate_options once = {.max_tokens = 1, .ignore_eos = 1};
        computing c = {0};
        pthread_t thread;
        submit(model, ids, NULL, &idle);
        failed =
            qn_model_clear_cache(model) != QN_OK ||
            qn_generation_open(model, &(qn_prompt){.rows = &row, .n_rows = 1}, &once, &c.prompt) != QN_OK ||
            pthread_create(&thread, NULL, read_all, &c) != 0;
        if (failed) break;
        submit(model, ids, &c, &busy);
        pthread_join(thread, NULL);
        qn_generation_close(c.prompt);
    }
    if (failed) fprintf(stderr, "submit_bench: %s\n", qn_last_error());
    show("nobody computes", &idle);
    show("while a long prompt is computed", &busy);
    qn_model_close(&model);
    return failed;
}
