/* The vision tower's pass over one picture, as a graph: patches in, a vector for each of its tokens out.
 * Shapes are those of the picture; a program for another size is another graph. */
#ifndef QN_MODEL_VISION_VISION_H
#define QN_MODEL_VISION_VISION_H

#include "array/program.h"
#include "model/vision/vision_layout.h"
#include "model/weights/parameters.h"

/* The picture's vectors [tokens, qn_vision_width], tokens in the order of patches. Makes the program's inputs. Labels:
 * "vision.I" (after layer I), "vision.features". */
qn_array *qn_vision_forward(qn_scope *s, const qn_model_config *config, const qn_parameters *parameters,
                            const qn_vision_layout *layout);
/* Fills the inputs of a program of that graph. patches [n_patches][qn_vision_patch_floats]: see vision_layout.h for
 * their order; of each patch the values in the order that the processor has. */
void qn_vision_fill(qn_program *p, const qn_vision_config *v, const qn_vision_layout *layout,
                    const float *patches);
/* Floats of one patch. */
int64_t qn_vision_patch_floats(const qn_vision_config *v);

#endif
