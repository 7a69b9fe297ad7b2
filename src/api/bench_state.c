/* The part of qn_bench_run about saved state: what is computed of the prompt goes to a file and back, and
 * what follows it must have the same bits. */
#include <errno.h>
#include <quern/cache.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/bench_parts.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"

/* One saved handle and the logits behind its tokens and behind the restored ones. */
typedef struct {
    qn_cache *saved;
    float *logits, *restored; /* [n_vocab] */
    char *path;
    double save_ms[QN_BENCH_RUNS_MAX], restore_ms[QN_BENCH_RUNS_MAX];
    int was_saved;
    double equal; /* the least share of logits with the same bits */
} trip;

static qn_status make_file(const qn_bench *b, trip *t)
{
    const char *place = b->o.folder ? b->o.folder : getenv("TMPDIR");
    qn_buf path = {0};
    qn_buf_printf(&path, "%s/quern-bench-XXXXXX", place && *place ? place : "/tmp");
    t->path = qn_buf_take(&path, NULL);
    if (!t->path) return QN_E_NOMEM;
    int file = mkstemp(t->path);
    if (file < 0) {
        qn_status status = qn_fail(QN_E_IO, "%s: cannot create a file: %s", t->path, strerror(errno));
        qn_free(t->path);
        t->path = NULL;
        return status;
    }
    close(file);
    return QN_OK;
}

static qn_status forward(qn_bench *b, const qn_cache *from, float *logits)
{
    qn_cache *after = NULL;
    QN_TRY(qn_forward_with_cache(b->model, b->ids, 1, from, logits, b->n_vocab, &after));
    qn_cache_free(after);
    return QN_OK;
}

static qn_status there_and_back(qn_bench *b, trip *t, int run)
{
    qn_cache *restored = NULL;
    int64_t start = qn_clock_ns(), n = 0;
    QN_TRY(qn_cache_save(t->saved, t->path));
    t->was_saved = 1;
    int64_t saved = qn_clock_ns();
    QN_TRY(qn_cache_load(b->model, t->path, &restored));
    t->save_ms[run] = (double)(saved - start) * 1e-6;
    t->restore_ms[run] = (double)(qn_clock_ns() - saved) * 1e-6;
    qn_status status = forward(b, restored, t->restored);
    qn_cache_free(restored);
    if (status != QN_OK) return status;
    for (int64_t i = 0; i < b->n_vocab; i++)
        n += memcmp(&t->logits[i], &t->restored[i], sizeof *t->logits) == 0;
    if ((double)n / (double)b->n_vocab < t->equal) t->equal = (double)n / (double)b->n_vocab;
    return QN_OK;
}

static qn_status round_trips(qn_bench *b, trip *t)
{
    struct stat file;
    QN_TRY(qn_forward_with_cache(b->model, b->ids, b->o.n_prompt_tokens, NULL, t->logits, b->n_vocab,
                                 &t->saved));
    QN_TRY(forward(b, t->saved, t->logits));
    const qn_status made = make_file(b, t);
    if (made == QN_E_IO && !b->o.folder) { /* nobody named the place */
        qn_log(QN_LOG_WARNING, "%s; saving and restoring state is not measured", qn_last_error());
        return QN_E_UNSUPPORTED;
    }
    QN_TRY(made);
    for (int i = 0; i < b->o.n_runs; i++) QN_TRY(there_and_back(b, t, i));
    if (stat(t->path, &file) != 0) return qn_fail(QN_E_IO, "%s: the saved state is gone", t->path);
    b->report->state_bytes = (size_t)file.st_size;
    return QN_OK;
}

qn_status qn_bench_state(qn_bench *b)
{
    trip t = {.equal = 1};
    t.logits = qn_alloc_array((size_t)b->n_vocab, sizeof *t.logits);
    t.restored = qn_alloc_array((size_t)b->n_vocab, sizeof *t.restored);
    qn_status status = t.logits && t.restored ? round_trips(b, &t) : QN_E_NOMEM;
    if (status == QN_OK) {
        b->report->state_save_ms = qn_bench_summary(t.save_ms, b->o.n_runs);
        b->report->state_restore_ms = qn_bench_summary(t.restore_ms, b->o.n_runs);
        qn_bench_check_add(b, "state_restored",
                           "value = bound: the share of logits with the same bits behind restored state",
                           t.equal, 1, 0);
        b->report->parts |= 1u << QN_BENCH_STATE;
    }
    if (t.path) unlink(t.path);
    qn_free(t.path);
    qn_cache_free(t.saved);
    qn_free(t.logits);
    qn_free(t.restored);
    return status == QN_E_UNSUPPORTED && !t.was_saved ? QN_OK : status;
}
