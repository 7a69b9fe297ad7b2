#include "train/step/base.h"

#include "format/source/packed.h"
#include "model/config/families.h"

static qn_status open_all(const char *path, const char *device, int n_threads, size_t memory_limit_bytes,
                          qn_train_base *b)
{
    QN_TRY(qn_device_open(
        device, &(qn_device_options){.n_threads = n_threads, .memory_limit_bytes = memory_limit_bytes},
        &b->device));
    QN_TRY(qn_source_open(path, NULL, &b->source));
    QN_TRY(qn_packed_fingerprint(b->source, &b->fingerprint));
    QN_TRY(qn_config_read(b->source, &b->config));
    QN_TRY(qn_weights_open(b->source, &b->config, &b->weights));
    QN_TRY(qn_parameters_load(b->device, b->weights, &b->config, NULL, &b->parameters));
    QN_TRY(qn_layer_groups_make(&b->config, &b->groups));
    b->prefix = qn_decoder_prefixes[0];
    if (qn_source_get_kind(b->source) == QN_SOURCE_SAFETENSORS)
        qn_family_find_weight(b->config.family, b->source, QN_WEIGHT_EMBED, 0, &b->prefix);
    return QN_OK;
}

qn_status qn_train_base_open(const char *path, const char *device, int n_threads, size_t memory_limit_bytes,
                             qn_train_base *out)
{
    qn_train_base b = {0};
    qn_status status = open_all(path, device, n_threads, memory_limit_bytes, &b);
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
    qn_config_free(&b->config);
    qn_source_close(b->source);
    qn_device_close(b->device);
    *b = (qn_train_base){0};
}
