#include "engine/clients/state_binding.h"

#include <inttypes.h>
#include <quern/model.h>
#include <stdio.h>

#include "model/config/rope_change.h"

_Static_assert((int)QN_STATE_FILE_GROUPS_MAX >= (int)QN_LAYER_GROUPS_MAX, "a file has room for all groups");

qn_status qn_engine_bind(const qn_engine *e, uint64_t fingerprint, qn_engine_binding *out)
{
    *out = (qn_engine_binding){.sizes.n_groups = e->groups.n};
    if (e->card.device)
        qn_buf_printf(&out->set, "%lld layers on %s %s and the others on ", (long long)e->groups.border,
                      e->card.device->ops->name, e->card.device->ops->describe(e->card.device).set);
    qn_buf_printf(&out->set, "%s %s", e->device->ops->name, e->device->ops->describe(e->device).set);
    qn_buf_printf(&out->layout, "pages of %d", QN_PAGE_TOKENS);
    for (int i = 0; i < e->groups.n; i++) {
        const qn_layer_group *g = &e->groups.group[i];
        qn_buf_printf(&out->layout, "; %lld layers, window %lld, %lld heads of %lld and %lld%s",
                      (long long)g->n_layers, (long long)g->window, (long long)g->num_key_value_heads,
                      (long long)g->head_dim, (long long)g->v_head_dim, g->v_in_k ? " in keys" : "");
        out->sizes.page_bytes[i] = qn_pages_unit_bytes(e->pages[i]);
    }
    if (e->slots) {
        qn_buf_printf(&out->layout, "; %lld recurrent layers of %lld", (long long)e->groups.n_recurrent,
                      (long long)e->groups.recurrent_floats);
        out->sizes.slot_bytes = qn_pages_unit_bytes(e->slots);
    }
    if (out->set.status != QN_OK) return out->set.status;
    snprintf(out->positions, sizeof out->positions, "%016" PRIx64, qn_rope_change_hash(&e->config));
    out->is = (qn_state_binding){.fingerprint = fingerprint,
                                 .precision = qn_precision_name(e->info.precision),
                                 .kv_type = qn_dtype_name(e->info.kv_dtype),
                                 .set = out->set.data,
                                 .layout = out->layout.data,
                                 .positions = e->config.rope_changed ? out->positions : NULL};
    return out->layout.status;
}

void qn_engine_binding_free(qn_engine_binding *b)
{
    qn_buf_free(&b->set);
    qn_buf_free(&b->layout);
}

qn_pages *qn_engine_pool(const qn_engine *e, int group)
{
    return group < e->groups.n ? e->pages[group] : e->slots;
}

qn_status qn_engine_check_tree(const qn_engine *e)
{
    if (e->tree) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "the model was opened without a prefix cache");
}

int64_t qn_state_batch(size_t unit_bytes)
{
    return unit_bytes < QN_STATE_BATCH_BYTES ? (int64_t)(QN_STATE_BATCH_BYTES / unit_bytes) : 1;
}
