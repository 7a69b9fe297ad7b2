/* What an engine sees of one picture: its vision tower, run once. The program is made for the picture and freed with
 * it: sizes differ from picture to picture. */
#include <string.h>

#include "engine/machine/engine_parts.h"
#include "model/vision/vision.h"

static qn_status make_program(qn_engine *e, const qn_vision_layout *layout, qn_program **out)
{
    qn_scope *s = qn_scope_new(e->device);
    if (!s) return QN_E_NOMEM;
    qn_program_options o = {.name = "vision", .max = {{0, 1, 0}}, .precision = e->info.precision};
    qn_array *features = qn_vision_forward(s, &e->config, e->parameters, layout);
    qn_status status = qn_program_new(s, &o, 1, &features, out);
    qn_scope_free(s);
    return status;
}

static qn_status run(qn_engine *e, qn_program *p, const qn_vision_layout *layout, const float *patches,
                     int64_t n_floats, float *out)
{
    const void *from = NULL;
    qn_program_set_probe(p, e->probe, NULL, e->probe_user);
    qn_vision_fill(p, &e->config.vision, layout, patches);
    QN_TRY(qn_program_run(p, &(qn_sizes){{0, 1, 0}}));
    QN_TRY(qn_program_read(p, 0, &from));
    memcpy(out, from, (size_t)n_floats * sizeof *out);
    return QN_OK;
}

/* What the text needs that other devices do not compute. */
static qn_status check_device(const qn_engine *e)
{
    const qn_vision_config *v = &e->config.vision;
    const int is_split = e->card.device != NULL;
    if (v->n_deepstack && is_split)
        return qn_fail(QN_E_UNSUPPORTED,
                       "images of this model need a single device: they are added to several layers");
    return QN_OK;
}

qn_status qn_engine_see(qn_engine *e, int64_t n_views, const qn_image_grid *views, const float *patches,
                        float *out)
{
    const qn_vision_config *v = &e->config.vision;
    const int64_t n_floats = qn_vision_tokens(v, n_views, views) * qn_vision_width(v, e->config.hidden_size);
    qn_vision_layout layout;
    qn_program *p = NULL;
    QN_TRY(check_device(e));
    QN_TRY(qn_vision_layout_make(v, n_views, views, &layout));
    qn_status status = make_program(e, &layout, &p);
    if (status == QN_OK) status = run(e, p, &layout, patches, n_floats, out);
    qn_program_free(p);
    qn_vision_layout_free(&layout);
    return status;
}
