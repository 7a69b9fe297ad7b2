#include "train/run/run_start.h"

#include "base/mem.h"
#include "model/adapter/adapter_file.h"
#include "model/adapter/modules.h"

static int has_target(const qn_adapter_file *f, const qn_module *m)
{
    for (int64_t i = 0; i < f->n_targets; i++)
        if (f->targets[i].role == m->roles[0] && f->targets[i].layer == (m->layer < 0 ? 0 : m->layer))
            return 1;
    return 0;
}

/* The modules that the adapter changes, by their whole paths. */
static qn_status list_targets(const qn_train_base *base, const qn_adapter_file *f, const char **out)
{
    qn_module *modules = NULL;
    int64_t n = 0;
    qn_buf names = {0};
    QN_TRY(qn_modules_list(&base->config, base->parameters, base->prefix, &modules, &n));
    for (int64_t i = 0; i < n; i++)
        if (has_target(f, &modules[i]))
            qn_buf_printf(&names, "%s%s", names.length ? "," : "", modules[i].name);
    qn_free(modules);
    char *list = qn_buf_take(&names, NULL);
    qn_buf_free(&names);
    if (!list) return QN_E_NOMEM;
    *out = list;
    return QN_OK;
}

static qn_status fill(qn_train_options *o, const qn_train_base *base, const qn_adapter_file *f)
{
    const qn_adapter_config *c = &f->config;
    const int32_t rank = f->targets[0].rank;
    if (o->method == QN_TRAIN_LORA && c->dora) o->method = QN_TRAIN_DORA;
    if (!o->rank) o->rank = rank;
    if (o->alpha == 0) {
        o->rslora = c->rslora;
        o->alpha = (float)(c->layout == QN_ADAPTER_PEFT ? c->alpha : c->scale * rank);
    }
    if (o->targets || o->layer_begin || o->layer_end) return QN_OK;
    return list_targets(base, f, &o->targets);
}

qn_status qn_run_start_fill(qn_run_options *r, const qn_train_base *base)
{
    qn_adapter_file f;
    qn_buf notes = {0}; /* whoever reads the numbers tells them */
    if (!r->o.start_path) return QN_OK;
    qn_status status = qn_adapter_file_open(r->o.start_path, &base->config, &notes, &f);
    qn_buf_free(&notes);
    QN_TRY(status);
    status = qn_adapter_file_needs_factors(
        &f, "a training cannot go on with an adapter that changes whole tensors");
    if (status == QN_OK) status = fill(&r->o, base, &f);
    qn_adapter_file_close(&f);
    return status;
}
