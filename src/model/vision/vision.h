/* The vision tower's pass over one picture, as a graph: patches in, a vector for each of its tokens out.
 * Shapes are those of the picture; a program for another size is another graph. */
#ifndef QN_MODEL_VISION_VISION_H
#define QN_MODEL_VISION_VISION_H

#include "array/array.h"
#include "model/vision/image_processor.h"
#include "model/weights/parameters.h"

typedef struct {
    const qn_model_config *config;
    const qn_parameters *parameters;
    qn_array *patches;            /* [N, qn_image_patch_floats] in qn_image_patches' order */
    qn_array *rows, *columns;     /* [N] i32, place of each patch in the picture: qn_vision_places */
    qn_array *positions;          /* [N] i32: 0, 1, .. */
    qn_array *row_begin, *blocks; /* [2], [1, 1 + pages] i32, see qn_params_attend; one sequence of N rows */
    qn_state *state;              /* pages of one layer, which all layers use in turn */
} qn_vision;

/* The picture's vectors [N / merge_size^2, hidden_size]. Labels: "vision.I" (after layer I),
 * "vision.features". */
qn_array *qn_vision_forward(qn_scope *s, const qn_vision *v);
/* Fills rows and columns [N] for the patches of a picture. */
void qn_vision_places(const qn_image_processor *p, const qn_image_grid *grid, int32_t *rows,
                      int32_t *columns);

#endif
