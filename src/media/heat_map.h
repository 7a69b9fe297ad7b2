/* Heat maps of attention: panels [n, n] of probabilities in a grid, each with its title and its positions
 * along both axes, under a headline and a scale of colours.
 *
 * A row of a panel is a query, a column a key; what lies right of the diagonal or behind a window is not seen
 * and grey. Colours go by the square root of the probability, so that small ones differ. A panel of many
 * positions shows the largest of the block that falls on a pixel. Any thread. */
#ifndef QN_MEDIA_HEAT_MAP_H
#define QN_MEDIA_HEAT_MAP_H

#include "media/picture.h"

typedef struct {
    const char *headline;
    int64_t rows, columns; /* of panels */
    int64_t n;             /* positions */
    /* [rows, columns], each [n, n], and their titles; a panel that is NULL stays empty. */
    const float *const *panels;
    const char *const *titles;
    const int64_t *windows; /* [rows, columns]: row p of a panel sees (p - window, p]; 0: all before. NULL:
                               all panels do */
    int64_t max_pixels;     /* 0: 67,108,864. Panels become smaller before it is passed */
} qn_heat_map;

/* *out is owned by the caller (qn_picture_free). QN_E_FULL: even with the smallest panels it has more pixels;
 * QN_E_ARG: no panels or positions; QN_E_NOMEM. */
qn_status qn_heat_map_draw(const qn_heat_map *map, qn_picture *out);

#endif
