#include "model/config/blocks/hyper_config.h"

enum { TURNS_MAX = 1000, RANK_MAX = 1 << 20 };

static qn_status read_sinkhorn(const qn_fields *f, qn_hyper_config *c)
{
    double eps = 0;
    QN_TRY(qn_fields_required_int(f, "hc_mult", 1, QN_HYPER_STREAMS_MAX, &c->hc_count));
    QN_TRY(qn_fields_required_int(f, "hc_sinkhorn_iters", 1, TURNS_MAX, &c->hc_sinkhorn_iters));
    QN_TRY(qn_fields_number(f, "hc_eps", 0, 1, &eps, NULL));
    c->hc_eps = (float)eps;
    return QN_OK;
}

qn_status qn_hyper_config_read(const qn_family *family, const qn_fields *f, qn_model_config *c)
{
    c->hyper.kind = family->hyper;
    switch (family->hyper) {
    case QN_HYPER_NONE:
        break;
    case QN_HYPER_SINKHORN:
        return read_sinkhorn(f, &c->hyper);
    case QN_HYPER_LOW_RANK:
        QN_TRY(qn_fields_required_int(f, "hc_count", 2, QN_HYPER_STREAMS_MAX, &c->hyper.hc_count));
        return qn_fields_required_int(f, "hc_lowrank", 1, RANK_MAX, &c->hyper.hc_lowrank);
    }
    return QN_OK;
}
