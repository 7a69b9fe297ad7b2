/* What it gains to draw for several sequences at once. usage: draw_bench MODEL [SEQUENCES [STEPS]]
 *
 * SEQUENCES (32) decode together, each with a sampler of its own (temperature, top_p, min_p, top_k, penalty).
 * From step to step the logits are handed out by one thread, row after row, and by all of the device's
 * threads. Milliseconds of a step, medians of STEPS (48) of each kind; how long drawing took where one thread
 * did it; and the median of the ratios of neighbours. */
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/handles.h"
#include "backend/native/native_parts.h"
#include "base/clock.h"
#include "engine/machine/engine_parts.h"
#include "engine/sample/sampler.h"

enum { SEQUENCES_MAX = 64, STEPS_MAX = 512, WARM = 4 };

typedef struct {
    qn_sampler *sampler;
    int32_t id;
    qn_status status;
} drawer;

typedef struct {
    int64_t position, draw_ns; /* draw_ns: of rows handed out one after the other */
    int is_parallel;
    drawer drawers[SEQUENCES_MAX];
} bench;

static void check(qn_status status)
{
    if (status == QN_OK) return;
    fprintf(stderr, "draw_bench: %s\n", qn_last_error());
    exit(1);
}

static qn_status draw(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    bench *b = user;
    drawer *d = &b->drawers[feed];
    int64_t start = qn_clock_ns();
    d->status = qn_sampler_draw(d->sampler, logits, b->position, &d->id);
    if (!b->is_parallel) b->draw_ns += qn_clock_ns() - start;
    return QN_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

/* One step of all. Returns its milliseconds. */
static double step(bench *b, qn_engine *e, int n, qn_sequence **s, int is_parallel)
{
    qn_feed feeds[SEQUENCES_MAX];
    int32_t ids[SEQUENCES_MAX];
    for (int i = 0; i < n; i++) {
        ids[i] = b->drawers[i].id;
        s[i]->any_thread = is_parallel;
        feeds[i] = (qn_feed){s[i], &ids[i], 1, QN_LOGITS_LAST};
    }
    b->is_parallel = is_parallel;
    b->draw_ns = 0;
    int64_t start = qn_clock_ns();
    check(qn_engine_step(e, n, feeds, draw, NULL, b));
    double ms = (double)(qn_clock_ns() - start) * 1e-6;
    for (int i = 0; i < n; i++) {
        check(b->drawers[i].status);
        check(qn_sampler_accept_drawn(b->drawers[i].sampler, b->drawers[i].id));
    }
    b->position++;
    return ms;
}

int main(int argc, char **argv)
{
    static bench b;
    static double ms[2][STEPS_MAX], draw_ms[STEPS_MAX], ratio[STEPS_MAX];
    qn_sequence *s[SEQUENCES_MAX];
    qn_model *model = NULL;
    qn_model_info info;
    int n = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 32;
    int n_steps = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 48;
    if (argc < 2 || n < 1 || n > SEQUENCES_MAX || n_steps < 1 || n_steps > STEPS_MAX) {
        fprintf(stderr, "usage: draw_bench MODEL [SEQUENCES [STEPS]]\n");
        return 2;
    }
    const qn_model_options o = {
        .precision = QN_PRECISION_FAST, .parallel_slots = n, .context_size = 2048, .no_prefix_cache = 1};
    const qn_generate_options chain = {
        .temperature = 0.8f, .top_p = 0.95f, .min_p = 0.05f, .top_k = 40, .repeat_penalty = 1.1f, .seed = 1};
    check(qn_model_open(argv[1], &o, &model));
    check(qn_model_get_info(model, &info));
    qn_engine *e = ((native_model *)model->object)->engine;
    for (int i = 0; i < n; i++) {
        b.drawers[i].id = (int32_t)((int64_t)i * 7919 % info.vocab_size);
        check(qn_sampler_new(qn_engine_logits_kernels(e), &chain, info.vocab_size, NULL,
                             &b.drawers[i].sampler));
        check(qn_sequence_new(e, &s[i]));
    }
    for (int i = 0; i < WARM; i++) step(&b, e, n, s, i % 2);
    for (int i = 0; i < n_steps; i++) {
        int first = i % 2; /* so that neither kind is always the later one */
        ms[first][i] = step(&b, e, n, s, first);
        if (!first) draw_ms[i] = (double)b.draw_ns * 1e-6;
        ms[!first][i] = step(&b, e, n, s, !first);
        if (first) draw_ms[i] = (double)b.draw_ns * 1e-6;
        ratio[i] = ms[1][i] / ms[0][i];
    }
    printf("%s, vocabulary of %d, %d threads, %d sequences\n", argv[1], (int)info.vocab_size,
           (int)info.n_threads, n);
    printf("one thread draws:   %8.3f ms a step, %.3f of it to draw\n", median(ms[0], n_steps),
           median(draw_ms, n_steps));
    printf("all threads draw:   %8.3f ms a step, %.4f of the other\n", median(ms[1], n_steps),
           median(ratio, n_steps));
    for (int i = 0; i < n; i++) {
        qn_sequence_free(s[i]);
        qn_sampler_free(b.drawers[i].sampler);
    }
    qn_model_close(&model);
    return 0;
}
