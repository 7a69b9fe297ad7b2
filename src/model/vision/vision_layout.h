/* How the rows of a picture lie in its vision tower: which patch each row is, where it is in the picture, what it learns
 * of its place, and which rows see each other. Made for one picture out of the sizes of its views; the tower's graph is
 * made for it, and its inputs are copied from it. A view is a tile of the picture, its small copy, or the whole.
 *
 * Patches come in the processor's order: one view behind the other; in a view row by row, or the merge_size x merge_size
 * patches of a token together and tokens row by row. One thread at a time. */
#ifndef QN_MODEL_VISION_VISION_LAYOUT_H
#define QN_MODEL_VISION_VISION_LAYOUT_H

#include "model/config/config.h"
#include "model/vision/image_processor.h"

/* Rows that see each other lie together: those of a view, or of a window. */
typedef struct {
    int64_t n;          /* sequences */
    int32_t *row_begin; /* [n + 1] */
    int32_t *positions; /* [n_rows], from 0 on in each */
} qn_vision_sequences;

typedef struct {
    int64_t n_patches, n_rows, n_taps;
    int32_t *
        source; /* [n_rows] the patch of each row, 0 of a class row; NULL: rows are patches, in their order */
    int32_t *kept;           /* [n_patches] rows, those of a token's patches together; NULL: as they are */
    float *is_class;         /* [n_rows] 1 or 0; NULL: there are no class rows */
    int32_t *rows, *columns; /* [n_rows] what a row turns by; NULL: it does not turn */
    int32_t *taps;           /* [n_taps][n_rows] rows of the table of positions */
    float *weights;          /* [n_taps][n_rows] and what they are multiplied by */
    qn_vision_sequences views, windows; /* windows.n 0: there are none */
} qn_vision_layout;

/* QN_E_ARG: a view has another size than this tower takes. */
qn_status qn_vision_layout_make(const qn_vision_config *v, int64_t n_views, const qn_image_grid *views,
                                qn_vision_layout *out);
void qn_vision_layout_free(qn_vision_layout *l);
/* Tokens that views of these sizes become. */
int64_t qn_vision_tokens(const qn_vision_config *v, int64_t n_views, const qn_image_grid *views);

#endif
