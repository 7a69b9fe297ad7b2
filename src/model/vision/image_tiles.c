/* Pictures that are cut into tiles. */
#include <math.h>
#include <stdlib.h>

#include "model/vision/image_sizes.h"

static double max(double a, double b)
{
    return a > b ? a : b;
}

/* Tiles over a canvas that they fill; whole: another view of the picture behind them. */
static qn_status set_tiles(const qn_image_processor *p, int64_t rows, int64_t columns, qn_image_size whole,
                           qn_image_plan *plan)
{
    if (rows > QN_IMAGE_TILES_MAX || columns > QN_IMAGE_TILES_MAX || rows * columns > QN_IMAGE_TILES_MAX)
        return qn_fail(QN_E_ARG, "the image would be cut into %lld x %lld tiles; at most %d are supported",
                       (long long)columns, (long long)rows, (int)QN_IMAGE_TILES_MAX);
    plan->tile_rows = rows;
    plan->tile_columns = columns;
    plan->tile = (qn_image_grid){.height = p->height, .width = p->width};
    plan->whole = (qn_image_grid){.height = whole.height, .width = whole.width};
    return QN_OK;
}

/* ---- Idefics 3 ---------------------------------------------------------------------------------------- */

static double even(double v)
{
    return fmod(v, 2) != 0 ? v + 1 : v;
}

/* The longer side becomes p->longest_edge, the other an even number, and neither exceeds 4,096. */
static qn_image_size to_longest_edge(const qn_image_processor *p, qn_image_size size)
{
    enum { SIDE_MAX = 4096 };
    double h = (double)size.height, w = (double)size.width, ratio = w / h;
    if (w >= h) {
        w = (double)p->longest_edge;
        h = even(floor(w / ratio));
    } else {
        h = (double)p->longest_edge;
        w = even(floor(h * ratio));
    }
    h = max(h, 1);
    w = max(w, 1);
    ratio = w / h;
    if (w >= h && w > SIDE_MAX) {
        w = SIDE_MAX;
        h = floor(w / ratio);
    } else if (h > w && h > SIDE_MAX) {
        h = SIDE_MAX;
        w = floor(h * ratio);
    }
    return (qn_image_size){(int64_t)max(h, 1), (int64_t)max(w, 1)};
}

qn_status qn_image_tiles_grid(const qn_image_processor *p, qn_image_size size, qn_image_plan *plan)
{
    const double side = (double)p->width;
    if (p->longest_edge) plan->first = size = to_longest_edge(p, size);
    if (!p->do_split) return qn_image_whole_of(side, side, plan);
    double h = (double)size.height, w = (double)size.width;
    const double ratio = w / h;
    if (w >= h) {
        w = ceil(w / side) * side;
        h = ceil(floor(w / ratio) / side) * side;
    } else {
        h = ceil(h / side) * side;
        w = ceil(floor(h * ratio) / side) * side;
    }
    QN_TRY(qn_image_whole_of(h, w, plan));
    if (h <= side && w <= side) return QN_OK;
    plan->is_whole_of_canvas = 1;
    return set_tiles(p, (int64_t)(h / side), (int64_t)(w / side), (qn_image_size){p->height, p->width}, plan);
}

/* ---- the closest aspect ratio ------------------------------------------------------------------------- */

typedef struct {
    int64_t rows, columns;
} grid;

/* Of grids with min_tiles to max_tiles tiles the one whose aspect ratio is closest to the picture's; of those
 * that are as close the largest that is less than twice the picture. Grids are tried by their tiles, then by
 * their columns. */
static grid closest_grid(const qn_image_processor *p, qn_image_size size)
{
    const double ratio = (double)size.width / (double)size.height,
                 area = (double)size.width * (double)size.height;
    double closest = INFINITY;
    grid best = {1, 1};
    for (int64_t n = p->min_tiles; n <= p->max_tiles; n++)
        for (int64_t columns = 1; columns <= n; columns++) {
            if (n % columns) continue;
            const grid g = {n / columns, columns};
            const double distance = fabs(ratio - (double)g.columns / (double)g.rows);
            if (distance < closest ||
                (distance == closest && area > 0.5 * (double)(p->height * p->width * n)))
                best = g;
            closest = fmin(closest, distance);
        }
    return best;
}

/* whole: the size of the view behind the tiles. */
static qn_status cut_by_aspect(const qn_image_processor *p, qn_image_size size, qn_image_size whole,
                               qn_image_plan *plan)
{
    const grid g = closest_grid(p, size);
    QN_TRY(qn_image_whole_of((double)(g.rows * p->height), (double)(g.columns * p->width), plan));
    if (!p->has_thumbnail || g.rows * g.columns == 1) whole = (qn_image_size){0, 0};
    return set_tiles(p, g.rows, g.columns, whole, plan);
}

qn_status qn_image_tiles_aspect(const qn_image_processor *p, qn_image_size size, qn_image_plan *plan)
{
    return cut_by_aspect(p, size, (qn_image_size){p->height, p->width}, plan);
}

qn_status qn_image_tiles_large(const qn_image_processor *p, qn_image_size size, qn_image_plan *plan)
{
    const double patch = (double)p->patch_size, unit = patch * (double)p->merge_size,
                 h = max(patch, rint((double)size.height / unit) * unit),
                 w = max(patch, rint((double)size.width / unit) * unit);
    QN_TRY(qn_image_rounded(p, size, plan));
    if (!p->do_split || !(h * w > (double)p->max_tokens * unit * unit * p->tolerance)) return QN_OK;
    return cut_by_aspect(p, size, plan->canvas, plan);
}

/* ---- Llama 4 ------------------------------------------------------------------------------------------ */

/* How much the picture grows on this grid of tiles, in float32 as the reference has it. */
static float growth(const qn_image_processor *p, qn_image_size size, grid g)
{
    const float by_width = (float)(g.columns * p->width) / (float)size.width,
                by_height = (float)(g.rows * p->height) / (float)size.height;
    return by_height > by_width ? by_width : by_height;
}

/* Is growing by a better than by b? Growing as little as possible counts most, or as much as possible where
 * the canvas is to be filled; then shrinking as little as possible. */
static int is_better(const qn_image_processor *p, float a, float b)
{
    if (a >= 1 && b >= 1) return p->fills_canvas ? a > b : a < b;
    return a > b;
}

static grid best_canvas(const qn_image_processor *p, qn_image_size size)
{
    grid best = {0};
    float best_growth = 0;
    for (int64_t n = p->max_tiles; n >= 1; n--)
        for (int64_t rows = 1; rows <= n; rows++) {
            if (n % rows) continue;
            const grid g = {rows, n / rows};
            const float by = growth(p, size, g);
            const int is_smaller = n < best.rows * best.columns;
            if (!best.rows || is_better(p, by, best_growth) || (by == best_growth && is_smaller)) {
                best = g;
                best_growth = by;
            }
        }
    return best;
}

/* One side of the room that the picture may fill. The reference holds it as a tensor of integers unless the
 * picture itself bounds it, and divides tensors in float32. */
typedef struct {
    int64_t pixels;
    int is_tensor;
} room;

static room room_of(const qn_image_processor *p, int64_t pixels, int64_t canvas)
{
    if (p->fills_canvas) return (room){canvas, 1};
    const int64_t wanted = pixels > p->height ? pixels : p->height;
    return canvas < wanted ? (room){canvas, 1} : (room){wanted, 0};
}

static double divide(room r, int64_t by)
{
    return r.is_tensor ? (double)((float)r.pixels / (float)by) : (double)r.pixels / (double)by;
}

static double times(int64_t pixels, double scale, int is_tensor)
{
    return is_tensor ? (double)((float)pixels * (float)scale) : (double)pixels * scale;
}

qn_status qn_image_tiles_canvas(const qn_image_processor *p, qn_image_size size, qn_image_plan *plan)
{
    const grid g = best_canvas(p, size);
    const int64_t canvas_h = g.rows * p->height, canvas_w = g.columns * p->width;
    const room h = room_of(p, size.height, canvas_h), w = room_of(p, size.width, canvas_w);
    const double by_width = divide(w, size.width), by_height = divide(h, size.height);
    const int in_float = h.is_tensor || w.is_tensor,
              is_by_width = in_float ? (float)by_width < (float)by_height : by_width < by_height;
    const qn_image_size whole =
        g.rows * g.columns > 1 ? (qn_image_size){p->height, p->width} : (qn_image_size){0, 0};
    double height = (double)h.pixels, width = (double)w.pixels;
    if (is_by_width)
        height = fmin(floor(times(size.height, by_width, w.is_tensor)), height);
    else
        width = fmin(floor(times(size.width, by_height, h.is_tensor)), width);
    QN_TRY(qn_image_whole_of((double)canvas_h, (double)canvas_w, plan));
    plan->content = (qn_image_size){(int64_t)max(height, 1), (int64_t)max(width, 1)};
    return set_tiles(p, g.rows, g.columns, whole, plan);
}
