#include "train/step/base.h"

#include <stdio.h>

#include "api/borrow.h"
#include "format/source/packed.h"
#include "model/config/families.h"

/* What the files say beside config and weights. */
static qn_status open_files(const char *path, const char *file, qn_train_base *b)
{
    QN_TRY(qn_source_open(path, &(qn_source_options){.file = file}, &b->source));
    return qn_packed_fingerprint(b->source, &b->fingerprint);
}

static qn_status find_names(qn_train_base *b)
{
    QN_TRY(qn_layer_groups_make(&b->config, &b->groups));
    b->prefix = qn_decoder_prefixes[0];
    if (qn_source_get_kind(b->source) == QN_SOURCE_SAFETENSORS)
        qn_family_find_weight(b->config.family, b->source, QN_WEIGHT_EMBED, 0, &b->prefix);
    return QN_OK;
}

/* Before anything is loaded into a card's memory. What a step needs beside the weights is not known yet. */
static qn_status check_fit(const qn_train_base *b)
{
    qn_device *d = b->device;
    size_t size_bytes;
    int bits;
    if (!qn_device_has_memory(d)) return QN_OK;
    QN_TRY(qn_parameters_measure(d, b->weights, &b->config, &size_bytes, &bits));
    const size_t free_bytes = d->ops->free_bytes(d);
    if (size_bytes <= free_bytes) return QN_OK;
    return qn_fail(QN_E_NOMEM,
                   "device %s: the weights need %.2f MiB of the card's memory, and %.2f MiB are free",
                   d->ops->name, (double)size_bytes / 1048576, (double)free_bytes / 1048576);
}

static qn_status open_all(const char *path, const char *device, const qn_device_options *options,
                          const qn_rope_options *rope, qn_buf *changes, qn_train_base *b)
{
    QN_TRY(qn_device_open(device, options, &b->device));
    QN_TRY(open_files(path, NULL, b));
    qn_buf_reset(changes);
    QN_TRY(qn_config_read_changed(b->source, rope, changes, &b->config));
    QN_TRY(qn_weights_open(b->source, &b->config, &b->weights));
    QN_TRY(check_fit(b));
    QN_TRY(qn_parameters_load(b->device, b->weights, &b->config, NULL, &b->parameters));
    return find_names(b);
}

static qn_status borrow_all(const qn_native_view *v, int n_threads, size_t memory_limit_bytes,
                            qn_train_base *b)
{
    const qn_device_options o = {.n_threads = n_threads ? n_threads : v->n_threads,
                                 .memory_limit_bytes = memory_limit_bytes};
    b->config = *v->config;
    QN_TRY(qn_device_open(v->device, &o, &b->device));
    QN_TRY(open_files(v->path, v->file, b));
    QN_TRY(qn_weights_open(b->source, &b->config, &b->weights));
    QN_TRY(qn_parameters_share(v->parameters, b->device, &b->parameters));
    return find_names(b);
}

qn_status qn_train_base_borrow(qn_model *model, int n_threads, size_t memory_limit_bytes, qn_train_base *out)
{
    qn_native_view view;
    QN_TRY(qn_model_borrow(model, &view));
    qn_train_base b = {.lender = model};
    const qn_status status = borrow_all(&view, n_threads, memory_limit_bytes, &b);
    if (status == QN_OK)
        *out = b;
    else
        qn_train_base_close(&b);
    return status;
}

qn_status qn_train_base_open(const char *path, const char *device, int n_threads, size_t memory_limit_bytes,
                             qn_train_base *out)
{
    qn_buf notes = {0};
    const qn_device_options options = {.n_threads = n_threads, .memory_limit_bytes = memory_limit_bytes};
    const qn_status status = qn_train_base_open_with(path, device, &options, NULL, &notes, out);
    qn_buf_free(&notes);
    return status;
}

qn_status qn_train_base_open_with(const char *path, const char *device, const qn_device_options *options,
                                  const qn_rope_options *rope, qn_buf *notes, qn_train_base *out)
{
    qn_train_base b = {0};
    qn_buf changes = {0};
    char why[QN_ERROR_TEXT_MAX] = "";
    qn_status status = open_all(path, device, options, rope, &changes, &b);
    if (qn_device_gives_way(b.device, status)) {
        qn_device_give_way_text(why, sizeof why);
        qn_train_base_close(&b);
        status = open_all(path, "cpu", options, rope, &changes, &b);
    } else if (b.device) {
        snprintf(why, sizeof why, "%s", b.device->note);
    }
    if (*why) qn_buf_printf(notes, "%s\n", why);
    if (changes.length) qn_buf_puts(notes, changes.data);
    qn_buf_free(&changes);
    if (status == QN_OK)
        *out = b;
    else
        qn_train_base_close(&b);
    return status;
}

void qn_train_base_close(qn_train_base *b)
{
    qn_layer_groups_free(&b->groups);
    qn_parameters_free(b->parameters);
    qn_weights_close(b->weights);
    if (!b->lender) qn_config_free(&b->config);
    qn_source_close(b->source);
    qn_device_close(b->device);
    if (b->lender) qn_model_return(b->lender);
    *b = (qn_train_base){0};
}
