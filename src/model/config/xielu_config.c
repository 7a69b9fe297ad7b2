#include "model/config/xielu_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/config/families.h"

static const char place[] = "mlp.act_fn.";
/* As the reference's class has them; what is learned has no default. */
static const struct {
    const char *name;
    int learned;
    float otherwise;
} numbers[] = {{"alpha_p", 1, 0}, {"alpha_n", 1, 0}, {"beta", 0, 0.5f}, {"eps", 0, -1e-6f}};
enum { N = sizeof numbers / sizeof *numbers };

int qn_xielu_config_has(const char *tensor)
{
    const char *at = strstr(tensor, place);
    for (int i = 0; at && i < N; i++)
        if (strcmp(at + sizeof place - 1, numbers[i].name) == 0) return 1;
    return 0;
}

static qn_status read_number(const qn_source *src, int64_t layer, int i, float *out)
{
    char name[QN_TENSOR_NAME_MAX] = "", shape[64];
    const qn_tensor_view *v = NULL;
    for (const char *const *prefix = qn_decoder_prefixes; *prefix && !v; prefix++) {
        snprintf(name, sizeof name, "%slayers.%lld.%s%s", *prefix, (long long)layer, place, numbers[i].name);
        v = qn_source_find(src, name);
    }
    *out = numbers[i].otherwise;
    if (!v && !numbers[i].learned) return QN_OK;
    if (!v)
        return qn_fail(QN_E_FORMAT, "%s: tensor model.layers.%lld.%s%s is missing, expected with shape [1]",
                       qn_source_path(src), (long long)layer, place, numbers[i].name);
    if (v->n_elements != 1)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s, expected one number", v->file, v->name,
                       qn_view_shape_text(v, shape, sizeof shape));
    QN_TRY(qn_view_floats(v, 0, 1, out));
    if (fabsf(*out) <= 1e6f) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: tensor %s is %.9g, expected a number from -1e6 to 1e6", v->file, v->name,
                   (double)*out);
}

static float softplus(float x)
{
    return x > 20 ? x : (float)log1p(exp((double)x));
}

qn_status qn_xielu_config_read(const qn_source *src, qn_model_config *c)
{
    if (c->hidden_act != QN_HIDDEN_XIELU) return QN_OK;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        float x[N];
        for (int k = 0; k < N; k++) QN_TRY(read_number(src, i, k, &x[k]));
        c->layers[i].xielu = (qn_xielu){softplus(x[0]), x[2] + softplus(x[1]), x[2], x[3]};
    }
    return QN_OK;
}
