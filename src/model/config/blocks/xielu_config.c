#include "model/config/blocks/xielu_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "format/gguf/gguf.h"
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

/* GGUF has a list of each, one for each layer, among the metadata. */
static qn_status read_list(const qn_gguf *g, int64_t n_layers, int i, float *out)
{
    char key[32];
    snprintf(key, sizeof key, "xielu.%s", numbers[i].name);
    qn_status status = qn_gguf_get_f32s(g, key, n_layers, out);
    if (status == QN_E_NOT_FOUND && !numbers[i].learned) {
        for (int64_t l = 0; l < n_layers; l++) out[l] = numbers[i].otherwise;
        return QN_OK;
    }
    for (int64_t l = 0; status == QN_OK && l < n_layers; l++)
        if (!(fabsf(out[l]) <= 1e6f))
            return qn_fail(QN_E_FORMAT, "%s: %s[%lld] is %.9g, expected a number from -1e6 to 1e6",
                           qn_gguf_path(g), key, (long long)l, (double)out[l]);
    return status;
}

static qn_status read_all(const qn_source *src, int64_t n_layers, float *of[N])
{
    const int in_gguf = qn_source_get_kind(src) == QN_SOURCE_GGUF;
    for (int i = 0; i < N; i++) {
        if (in_gguf) QN_TRY(read_list(qn_source_gguf(src), n_layers, i, of[i]));
        for (int64_t l = 0; l < n_layers && !in_gguf; l++) QN_TRY(read_number(src, l, i, &of[i][l]));
    }
    return QN_OK;
}

qn_status qn_xielu_config_read(const qn_source *src, qn_model_config *c)
{
    const int64_t n = c->num_hidden_layers;
    if (c->hidden_act != QN_HIDDEN_XIELU) return QN_OK;
    float *all = qn_alloc_array((size_t)(N * n), sizeof *all);
    if (!all) return QN_E_NOMEM;
    float *of[N] = {all, all + n, all + 2 * n, all + 3 * n};
    qn_status status = read_all(src, n, of);
    for (int64_t l = 0; l < n && status == QN_OK; l++)
        c->layers[l].xielu = (qn_xielu){of[0][l], of[1][l], of[2][l], of[3][l]};
    qn_free(all);
    return status;
}
