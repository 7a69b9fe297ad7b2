#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/cuda/cuda.h"

extern const qn_device_ops qn_device_cuda;

/* Prompts in steps of so many rows keep all multiprocessors of a large card busy. */
enum { PREFILL_ROWS = 2048 };

qn_status qn_cuda_said(const qn_cuda *d, qn_status status)
{
    return status == QN_OK ? QN_OK : qn_fail(status, "%s", d->shim->error());
}

/* What was measured and tuned is compute capability 9.0. */
static const char *note_of(const qn_cuda_card *card)
{
    static char note[128]; /* every call writes the same */
    if (card->major != 9)
        snprintf(note, sizeof note,
                 "sm_%d%d runs the simple kernels alone, and quern has not been tried on such a card",
                 card->major, card->minor);
    return note;
}

static qn_status cuda_get_info(qn_device_info *out)
{
    static qn_cuda_card card; /* the strings last; every call writes the same */
    static char set[16];
    const qn_cuda_shim *shim;
    int i;
    QN_TRY(qn_cuda_load(&shim));
    QN_TRY(qn_cuda_choose_card(shim, &i, &card));
    qn_cuda_context *context = NULL;
    size_t free_bytes = 0, total_bytes = card.total_bytes;
    qn_status status = shim->open(i, &context);
    if (status == QN_OK) status = shim->memory(context, &free_bytes, &total_bytes);
    if (status != QN_OK) status = qn_fail(QN_E_UNSUPPORTED, "%s", shim->error());
    shim->close(context);
    QN_TRY(status);
    snprintf(set, sizeof set, "sm_%d%d", card.major, card.minor);
    *out = (qn_device_info){.name = "cuda",
                            .description = card.name,
                            .note = note_of(&card),
                            .set = set,
                            .sets = set,
                            .n_threads = 1,
                            .memory_bytes = total_bytes,
                            .available_bytes = free_bytes};
    return QN_OK;
}

static void cuda_close(qn_device *base)
{
    qn_cuda *d = (qn_cuda *)base;
    if (d->shim) {
        qn_cuda_give_host(d, d->stage_bytes, QN_LEDGER_SCRATCH, d->stage);
        d->shim->close(d->context);
    }
    qn_pool_free(d->pool);
    qn_free(d);
}

static qn_status open_parts(qn_cuda *d, const qn_device_options *options)
{
    int i;
    qn_cuda_card card;
    QN_TRY(qn_cuda_load(&d->shim));
    QN_TRY(qn_cuda_choose_card(d->shim, &i, &card));
    snprintf(d->set, sizeof d->set, "sm_%d%d", card.major, card.minor);
    snprintf(d->name, sizeof d->name, "%.100s", card.name);
    QN_TRY(qn_pool_new(options->n_threads, &d->pool));
    return qn_cuda_said(d, d->shim->open(i, &d->context));
}

static qn_status cuda_open(const qn_device_options *options, qn_device **out)
{
    qn_cuda *d = qn_calloc(1, sizeof *d);
    if (!d) return QN_E_NOMEM;
    d->base.ops = &qn_device_cuda;
    d->base.ledger = options->ledger;
    const qn_status status = open_parts(d, options);
    if (status != QN_OK) {
        cuda_close(&d->base);
        return status;
    }
    *out = &d->base;
    return QN_OK;
}

static qn_device_description cuda_describe(qn_device *base)
{
    const qn_cuda *d = (const qn_cuda *)base;
    return (qn_device_description){.set = d->set,
                                   .chip = d->name,
                                   .n_threads = qn_pool_threads(d->pool),
                                   .fast_kv = QN_DTYPE_F16,
                                   .prefill_rows = PREFILL_ROWS,
                                   .note = ""};
}

static void cuda_for_each(qn_device *base, int64_t n, void (*fn)(void *user, int64_t i), void *user)
{
    qn_pool_each(((qn_cuda *)base)->pool, n, fn, user);
}

/* The card computes the next step while the host reads the last one's logits. */
static int cuda_async_is_useful(qn_device *base)
{
    const char *wish = getenv("QUERN_CUDA_AHEAD");
    return !wish || strcmp(wish, "0") != 0;
}

static const qn_async_ops cuda_async = {.is_useful = cuda_async_is_useful,
                                        .start = qn_cuda_start_program,
                                        .finish = qn_cuda_finish_program,
                                        .discard = qn_cuda_discard_program};

const qn_device_ops qn_device_cuda = {
    .name = "cuda",
    .n_groups_more = 2, /* a norm, a product and a sum: step/notes.cu */
    .get_info = cuda_get_info,
    .is_candidate = qn_cuda_is_installed,
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .alloc = qn_cuda_alloc,
    .free = qn_cuda_free,
    .bring = qn_cuda_bring,
    .free_mirror = qn_cuda_free_mirror,
    .weight_bytes = qn_cuda_weight_bytes,
    .import_weights = qn_cuda_import_weights,
    .for_each = cuda_for_each,
    .supports = qn_cuda_supports,
    .compile = qn_cuda_compile,
    .run = qn_cuda_run_program,
    .async = &cuda_async,
    .set_probe = qn_cuda_set_probe,
    .exec_free = qn_cuda_exec_free,
    .state_new = qn_cuda_state_new,
    .state_free = qn_cuda_state_free,
    .state_unit_bytes = qn_cuda_state_unit_bytes,
    .state_drop = qn_cuda_state_drop,
    .state_copy = qn_cuda_state_copy,
    .state_read = qn_cuda_state_read,
    .state_write = qn_cuda_state_write,
    .free_bytes = qn_cuda_free_bytes,
};
