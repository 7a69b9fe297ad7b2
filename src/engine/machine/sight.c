/* What an engine sees of one picture: its vision tower, run once. */
#include <string.h>

#include "base/mem.h"
#include "engine/machine/engine_parts.h"
#include "model/vision/vision.h"

/* Made for one picture and freed with it: sizes differ from picture to picture, and the keys and values of
 * many patches are not to be kept. */
typedef struct {
    qn_state *state;
    qn_pages *pages;
    int32_t *page_ids; /* [n_pages] */
    int64_t n_pages, n_held;
    qn_program *program;
} sight;

static qn_status take_pages(sight *t, qn_engine *e, int64_t n_patches)
{
    const qn_vision_config *v = &e->config.vision;
    const int64_t dim = v->embed_dim / v->num_heads;
    t->n_pages = (n_patches + QN_PAGE_TOKENS - 1) / QN_PAGE_TOKENS;
    qn_state_spec spec = {.kind = QN_STATE_PAGES,
                          .n_layers = 1,
                          .n_units = t->n_pages,
                          .kv_heads = v->num_heads,
                          .head_dim = dim,
                          .v_dim = dim,
                          .dtype = QN_DTYPE_F32};
    QN_TRY(e->device->ops->state_new(e->device, &spec, &t->state));
    QN_TRY(qn_pages_new(t->state, &t->pages));
    t->page_ids = qn_alloc_array((size_t)t->n_pages, sizeof *t->page_ids);
    if (!t->page_ids) return QN_E_NOMEM;
    QN_TRY(qn_pages_reserve(t->pages, t->n_pages, t->page_ids));
    t->n_held = t->n_pages;
    return QN_OK;
}

static qn_array *input(qn_scope *s, int64_t n)
{
    return qn_input(s, QN_DTYPE_I32, qn_shape_make(1, &n));
}

static qn_status make_program(sight *t, qn_engine *e, int64_t n_patches)
{
    qn_scope *s = qn_scope_new(e->device);
    if (!s) return QN_E_NOMEM;
    const int64_t patches[] = {n_patches, qn_image_patch_floats(&e->config.vision.processor)},
                  table[] = {1, 1 + t->n_pages};
    qn_vision v = {.config = &e->config, .parameters = e->parameters, .state = t->state};
    v.patches = qn_input(s, QN_DTYPE_F32, qn_shape_make(2, patches));
    v.rows = input(s, n_patches);
    v.columns = input(s, n_patches);
    v.positions = input(s, n_patches);
    v.row_begin = input(s, 2);
    v.blocks = qn_input(s, QN_DTYPE_I32, qn_shape_make(2, table));
    qn_program_options o = {.name = "vision", .max = {{0, 1, 0}}, .precision = e->info.precision};
    qn_array *features = qn_vision_forward(s, &v);
    qn_status status = qn_program_new(s, &o, 1, &features, &t->program);
    qn_scope_free(s);
    return status;
}

static void fill_inputs(const sight *t, const qn_engine *e, const qn_image_grid *grid, const uint8_t *rgb)
{
    const qn_image_processor *p = &e->config.vision.processor;
    const int64_t n_patches = grid->rows * grid->columns;
    int32_t *positions = qn_program_input(t->program, 3), *row_begin = qn_program_input(t->program, 4),
            *blocks = qn_program_input(t->program, 5);
    qn_image_patches(p, rgb, grid, qn_program_input(t->program, 0));
    qn_vision_places(p, grid, qn_program_input(t->program, 1), qn_program_input(t->program, 2));
    for (int64_t i = 0; i < n_patches; i++) positions[i] = (int32_t)i;
    row_begin[0] = 0;
    row_begin[1] = (int32_t)n_patches;
    blocks[0] = 0;
    memcpy(blocks + 1, t->page_ids, (size_t)t->n_pages * sizeof *blocks);
}

static void end(sight *t)
{
    qn_program_free(t->program);
    for (int64_t i = 0; i < t->n_held; i++) qn_pages_release(t->pages, t->page_ids[i]);
    qn_pages_free(t->pages);
    if (t->state) t->state->device->ops->state_free(t->state);
    qn_free(t->page_ids);
}

qn_status qn_engine_see(qn_engine *e, const qn_image_grid *grid, const uint8_t *rgb, float *out)
{
    const int64_t n_patches = grid->rows * grid->columns;
    sight t = {0};
    qn_status status = take_pages(&t, e, n_patches);
    if (status == QN_OK) status = make_program(&t, e, n_patches);
    if (status == QN_OK) {
        qn_program_set_probe(t.program, e->probe, NULL, e->probe_user);
        fill_inputs(&t, e, grid, rgb);
        status = qn_program_run(t.program, &(qn_sizes){{0, 1, 0}});
    }
    const void *from = NULL;
    if (status == QN_OK) status = qn_program_read(t.program, 0, &from);
    if (status == QN_OK)
        memcpy(out, from, (size_t)(qn_image_grid_tokens(grid) * e->config.hidden_size) * sizeof *out);
    end(&t);
    return status;
}
