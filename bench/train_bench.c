/* What a step of training costs. usage: train_bench MODEL [--precision exact|high|fast] [--steps N]
 *        [--sequences N] [--tokens N] [--rank N] [--threads N] [--full] [--checkpoint] [--compare]
 *
 * Random ids, the same in each step; factors on all linear layers (or every weight, --full). Prints the
 * milliseconds of a step (median and best), tokens a second, the loss, bytes held at most by the ledger and
 * of the process. --compare: trains in `exact` beside it on the same batches and prints the largest relative
 * difference of a step's loss. QUERN_TRACE=FILE writes a line for each kernel: `quern trace sum FILE`. */
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "train/step/trainer.h"

enum { STEPS_MAX = 10000, BATCHES = 4, SEED = 1 };

typedef struct {
    const char *model;
    qn_precision precision;
    int64_t steps, sequences, tokens, rank, threads;
    int full, compare, checkpoint;
} options;

static const char *const precisions[] = {
    [QN_PRECISION_EXACT] = "exact", [QN_PRECISION_HIGH] = "high", [QN_PRECISION_FAST] = "fast"};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Each token but the last of a sequence predicts the next. */
static qn_status make_batch(const options *o, int64_t vocab_size, int32_t *ids, qn_train_batch *b)
{
    const int64_t n = o->sequences * o->tokens;
    int32_t *row_begin = qn_alloc_array((size_t)o->sequences + 1, sizeof *row_begin),
            *rows = qn_alloc_array((size_t)n, sizeof *rows),
            *targets = qn_alloc_array((size_t)n, sizeof *targets);
    *b = (qn_train_batch){.n_rows = n,
                          .n_sequences = o->sequences,
                          .ids = ids,
                          .row_begin = row_begin,
                          .rows = rows,
                          .targets = targets};
    if (!row_begin || !rows || !targets) return QN_E_NOMEM;
    for (int64_t i = 0; i <= o->sequences; i++) row_begin[i] = (int32_t)(i * o->tokens);
    for (int64_t i = 0; i < BATCHES * n; i++)
        ids[i] = (int32_t)(qn_random_unit(SEED, (uint64_t)i) * (double)vocab_size);
    for (int64_t i = 0; i < n; i++)
        if ((i + 1) % o->tokens) rows[b->n_targets++] = (int32_t)i;
    return QN_OK;
}

static void free_batch(qn_train_batch *b)
{
    qn_free((void *)b->row_begin);
    qn_free((void *)b->rows);
    qn_free((void *)b->targets);
}

/* The next ids and what follows them. */
static void turn(const options *o, int64_t step, const int32_t *ids, qn_train_batch *b)
{
    b->ids = ids + step % BATCHES * b->n_rows;
    for (int64_t i = 0; i < b->n_targets; i++) ((int32_t *)b->targets)[i] = b->ids[b->rows[i] + 1];
}

static qn_status new_trainer(const options *o, const qn_train_base *base, qn_precision precision,
                             qn_trainer **out)
{
    qn_trainer_options t = {.trainable = {.method = o->full ? QN_TRAIN_FULL : QN_TRAIN_LORA,
                                          .rank = (int32_t)o->rank,
                                          .alpha = (float)(2 * o->rank),
                                          .seed = SEED},
                            .optimizer = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
                            .checkpoint_layers = o->checkpoint,
                            .max_rows = o->sequences * o->tokens,
                            .max_sequences = o->sequences,
                            .precision = precision};
    return qn_trainer_new(base, &t, out);
}

static qn_status step(qn_trainer *t, const qn_train_batch *b, qn_trainer_report *r)
{
    QN_TRY(qn_trainer_add(t, b, NULL));
    return qn_trainer_update(t, 1e-4, r);
}

static qn_status run(const options *o)
{
    qn_train_base base = {0};
    qn_trainer *t = NULL, *exact = NULL;
    qn_train_batch b = {0};
    double *ms = qn_alloc_array((size_t)o->steps, sizeof *ms), worst = 0;
    int32_t *ids = qn_alloc_array((size_t)(BATCHES * o->sequences * o->tokens), sizeof *ids);
    qn_trainer_report r = {0}, e;
    qn_status status = ms && ids ? qn_train_base_open(o->model, NULL, (int)o->threads, 0, &base) : QN_E_NOMEM;
    if (status == QN_OK) status = make_batch(o, base.config.vocab_size, ids, &b);
    const size_t weights = status == QN_OK ? qn_ledger_total(base.device->ledger) : 0;
    if (status == QN_OK) status = new_trainer(o, &base, o->precision, &t);
    const size_t held = status == QN_OK ? qn_ledger_total(base.device->ledger) : 0;
    if (status == QN_OK && o->compare) status = new_trainer(o, &base, QN_PRECISION_EXACT, &exact);
    for (int64_t i = 0; i < o->steps && status == QN_OK; i++) {
        turn(o, i, ids, &b);
        int64_t start = qn_clock_ns();
        status = step(t, &b, &r);
        ms[i] = (double)(qn_clock_ns() - start) * 1e-6;
        if (status != QN_OK || !exact) continue;
        if ((status = step(exact, &b, &e)) == QN_OK && fabs(r.loss - e.loss) / e.loss > worst)
            worst = fabs(r.loss - e.loss) / e.loss;
    }
    if (status == QN_OK) {
        struct rusage usage;
        getrusage(RUSAGE_SELF, &usage);
        qsort(ms, (size_t)o->steps, sizeof *ms, by_value);
        const double median = ms[o->steps / 2];
        printf("%s, %lld x %lld tokens: step %.0f ms (best %.0f), %.0f tok/s (best %.0f), loss %.5f\n",
               precisions[o->precision], (long long)o->sequences, (long long)o->tokens, median, ms[0],
               (double)b.n_rows / median * 1e3, (double)b.n_rows / ms[0] * 1e3, r.loss);
        printf("weights %.1f MB, training %.1f MB, process at most %.1f MB\n", (double)weights * 1e-6,
               (double)(held - weights) * 1e-6, (double)usage.ru_maxrss * 1024e-6);
        if (exact)
            printf("losses of %lld steps differ from exact's by at most %.3f%%\n", (long long)o->steps,
                   100 * worst);
    }
    qn_trainer_free(t);
    qn_trainer_free(exact);
    free_batch(&b);
    qn_train_base_close(&base);
    qn_free(ids);
    qn_free(ms);
    return status;
}

static int read_options(int argc, char **argv, options *o)
{
    *o = (options){.precision = QN_PRECISION_HIGH, .steps = 5, .sequences = 4, .tokens = 256, .rank = 8};
    for (int i = 1; i < argc; i++) {
        int64_t *number = strcmp(argv[i], "--steps") == 0       ? &o->steps
                          : strcmp(argv[i], "--sequences") == 0 ? &o->sequences
                          : strcmp(argv[i], "--tokens") == 0    ? &o->tokens
                          : strcmp(argv[i], "--rank") == 0      ? &o->rank
                          : strcmp(argv[i], "--threads") == 0   ? &o->threads
                                                                : NULL;
        if (number && i + 1 < argc) {
            *number = strtoll(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--full") == 0) {
            o->full = 1;
        } else if (strcmp(argv[i], "--checkpoint") == 0) {
            o->checkpoint = 1;
        } else if (strcmp(argv[i], "--compare") == 0) {
            o->compare = 1;
        } else if (strcmp(argv[i], "--precision") == 0 && i + 1 < argc) {
            int found = 0;
            for (size_t p = 0; p < sizeof precisions / sizeof *precisions; p++)
                if (strcmp(argv[i + 1], precisions[p]) == 0) {
                    o->precision = (qn_precision)p;
                    found = 1;
                }
            if (!found) return 0;
            i++;
        } else if (!o->model && argv[i][0] != '-') {
            o->model = argv[i];
        } else {
            return 0;
        }
    }
    return o->model && o->steps >= 1 && o->steps <= STEPS_MAX && o->sequences >= 1 &&
           o->sequences <= 1 << 16 && o->tokens >= 2 && o->tokens <= 1 << 16 && o->rank >= 1 &&
           o->rank <= QN_LORA_RANK_MAX && o->threads >= 0 && o->threads <= 1024;
}

int main(int argc, char **argv)
{
    options o;
    if (!read_options(argc, argv, &o)) {
        fprintf(stderr, "usage: train_bench MODEL [--precision exact|high|fast] [--steps N] [--sequences N] "
                        "[--tokens N] [--rank N] [--threads N] [--full] [--checkpoint] [--compare]\n");
        return 2;
    }
    if (run(&o) == QN_OK) return 0;
    fprintf(stderr, "train_bench: %s\n", qn_last_error());
    return 1;
}
