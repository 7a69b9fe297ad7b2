#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/host.h"
#include "device/mlx/mlx.h"

extern const qn_device_ops qn_device_mlx;

enum { PREFILL_ROWS = 2048 }; /* as mlx_lm */

static qn_status mlx_get_info(qn_device_info *out)
{
    const qn_mlx_shim *shim;
    qn_device_info cpu;
    QN_TRY(qn_mlx_load(&shim));
    QN_TRY(qn_device_get_info(0, &cpu)); /* its memory is the host's */
    const qn_mlx_about about = shim->about();
    *out =
        (qn_device_info){.name = "mlx",
                         .note = "",
                         .description = about.library,
                         .set = about.set,
                         .sets = about.set,
                         .n_threads = 1,
                         .memory_bytes = about.recommended_bytes ? about.recommended_bytes : cpu.memory_bytes,
                         .available_bytes = cpu.available_bytes};
    return QN_OK;
}

/* MLX's back end for the CPU is slower than the host itself. */
static int mlx_is_candidate(void)
{
    const qn_mlx_shim *shim;
    return qn_mlx_load(&shim) == QN_OK && shim->about().on_gpu;
}

static void mlx_close(qn_device *base)
{
    qn_mlx *d = (qn_mlx *)base;
    qn_pool_free(d->pool);
    qn_mlx_owner_free(d->owner);
    qn_free(d);
}

static qn_status open_parts(qn_mlx *d, const qn_device_options *options)
{
    QN_TRY(qn_mlx_load(&d->shim));
    const qn_mlx_about about = d->shim->about();
    qn_mlx_limit_by_default(d->base.ledger, &about);
    QN_TRY(qn_pool_new(options->n_threads, &d->pool));
    QN_TRY(qn_mlx_owner_new(d->shim, &d->owner));
    qn_mlx_set_cache_limit(&d->base, qn_ledger_get(d->base.ledger).cache_limit);
    return QN_OK;
}

static qn_status mlx_open(const qn_device_options *options, qn_device **out)
{
    qn_mlx *d = qn_calloc(1, sizeof *d);
    if (!d) return QN_E_NOMEM;
    d->base.ops = &qn_device_mlx;
    d->base.ledger = options->ledger;
    const qn_status status = open_parts(d, options);
    if (status != QN_OK) {
        mlx_close(&d->base);
        return status;
    }
    *out = &d->base;
    return QN_OK;
}

static qn_device_description mlx_describe(qn_device *base)
{
    qn_mlx *d = (qn_mlx *)base;
    const qn_mlx_about about = d->shim->about();
    qn_dtype type;
    qn_mlx_weights_note(d, d->note, sizeof d->note);
    return (qn_device_description){.set = about.set,
                                   .n_threads = qn_pool_threads(d->pool),
                                   .fast_kv = QN_DTYPE_F16,
                                   .own_kv = qn_mlx_is_narrow(d, &type) && type != QN_DTYPE_F16,
                                   .prefill_rows = about.on_gpu ? PREFILL_ROWS : 0,
                                   .note = d->note};
}

static void mlx_for_each(qn_device *base, int64_t n, void (*fn)(void *user, int64_t i), void *user)
{
    qn_pool_each(((qn_mlx *)base)->pool, n, fn, user);
}

/* On the CPU MLX has ten operations waiting at most and holds up whoever begins more: nothing is won there,
 * and a token is known a step later. */
static int mlx_async_is_useful(qn_device *base)
{
    const char *wish = getenv("QUERN_MLX_AHEAD");
    return wish && *wish ? strcmp(wish, "0") != 0 : ((qn_mlx *)base)->shim->about().on_gpu;
}

/* On the CPU MLX multiplies numbers of 16 bits one by one. */
int qn_mlx_is_narrow(const qn_mlx *d, qn_dtype *type)
{
    const char *wish = getenv("QUERN_MLX_HALF");
    *type = QN_DTYPE_F32;
    if (wish && strcmp(wish, "f16") == 0) *type = QN_DTYPE_F16;
    if (wish && strcmp(wish, "bf16") == 0) *type = QN_DTYPE_BF16;
    return wish && *wish ? strcmp(wish, "0") != 0 : d->shim->about().on_gpu;
}

static const qn_async_ops mlx_async = {.is_useful = mlx_async_is_useful,
                                       .start = qn_mlx_start_program,
                                       .finish = qn_mlx_finish_program,
                                       .discard = qn_mlx_discard_program};

const qn_device_ops qn_device_mlx = {
    .name = "mlx",
    .get_info = mlx_get_info,
    .is_candidate = mlx_is_candidate,
    .open = mlx_open,
    .close = mlx_close,
    .describe = mlx_describe,
    .alloc = qn_host_alloc,
    .free = qn_mlx_free,
    .bring = qn_mlx_bring,
    .free_mirror = qn_mlx_free_mirror,
    .weight_bytes = qn_mlx_weight_bytes,
    .import_weights = qn_mlx_import_weights,
    .for_each = mlx_for_each,
    .supports = qn_mlx_supports,
    .compile = qn_mlx_compile,
    .run = qn_mlx_run_program,
    .async = &mlx_async,
    .set_probe = qn_mlx_set_probe,
    .exec_free = qn_mlx_exec_free,
    .state_new = qn_mlx_state_new,
    .state_free = qn_mlx_state_free,
    .state_unit_bytes = qn_mlx_state_unit_bytes,
    .state_drop = qn_mlx_state_drop,
    .state_copy = qn_mlx_state_copy,
    .state_read = qn_mlx_state_read,
    .state_write = qn_mlx_state_write,
    .cache_bytes = qn_mlx_cache_bytes,
    .set_cache_limit = qn_mlx_set_cache_limit,
    .clear_cache = qn_mlx_clear_cache,
    .wire = qn_mlx_wire,
};
