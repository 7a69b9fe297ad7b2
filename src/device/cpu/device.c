#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "device/host.h"

extern const qn_device_ops qn_device_cpu;

static void cpu_close(qn_device *base)
{
    qn_cpu *d = (qn_cpu *)base;
    qn_pool_free(d->pool);
    qn_free(d);
}

/* Kernels whose form of the rows would take more than this part of a memory limit, in each program, give way
 * to lean ones: an engine has two programs, so that context and cache lose a fiftieth at most. */
enum { LEAN_PART = 100 };

static qn_status cpu_open(const qn_device_options *options, qn_device **out)
{
    qn_cpu *d = qn_calloc(1, sizeof *d);
    if (!d) return QN_E_NOMEM;
    d->base.ops = &qn_device_cpu;
    d->base.ledger = options->ledger;
    qn_status status = qn_kernels_get(&d->kernels);
    if (status == QN_OK) status = qn_pool_new(options->n_threads, &d->pool);
    if (status == QN_OK && d->kernels->lean) {
        const size_t limit = qn_ledger_get_limit(d->base.ledger),
                     rows_bytes = (size_t)qn_pool_threads(d->pool) * d->kernels->rows_bytes;
        if (limit && rows_bytes > limit / LEAN_PART) d->kernels = d->kernels->lean;
    }
    if (status != QN_OK) {
        cpu_close(&d->base);
        return status;
    }
    *out = &d->base;
    return QN_OK;
}

static qn_device_description cpu_describe(qn_device *base)
{
    qn_cpu *d = (qn_cpu *)base;
    return (qn_device_description){.set = d->kernels->name,
                                   .n_threads = qn_pool_threads(d->pool),
                                   .layout = qn_pack_layout_version(),
                                   .fast_kv = qn_kv_fast(d->kernels),
                                   .note = ""};
}

static void cpu_for_each(qn_device *base, int64_t n, void (*fn)(void *user, int64_t i), void *user)
{
    qn_pool_each(((qn_cpu *)base)->pool, n, fn, user);
}

const qn_device_ops qn_device_cpu = {
    .name = "cpu",
    .buffers_are_shared = 1,
    .get_info = qn_cpu_get_info,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .alloc = qn_host_alloc,
    .free = qn_cpu_free,
    .weight_bytes = qn_cpu_weight_bytes,
    .import_weights = qn_cpu_import_weights,
    .for_each = cpu_for_each,
    .supports = qn_cpu_supports,
    .compile = qn_cpu_compile,
    .run = qn_cpu_run_program,
    .set_probe = qn_cpu_set_probe,
    .exec_free = qn_cpu_exec_free,
    .state_new = qn_cpu_state_new,
    .state_free = qn_cpu_state_free,
    .state_unit_bytes = qn_cpu_state_unit_bytes,
    .state_drop = qn_cpu_state_drop,
    .state_copy = qn_cpu_state_copy,
    .state_read = qn_cpu_state_read,
    .state_write = qn_cpu_state_write,
    .get_logits_kernels = qn_cpu_get_logits_kernels,
};
