#include "model/vision/image_sizes.h"

#include <math.h>

/* Of a canvas: 8,192 squared, as of a file. */
static const double pixels_max = (double)(1 << 26);

static double unit_of(const qn_image_processor *p)
{
    return (double)(p->patch_size * p->merge_size);
}

static double area(qn_image_size size)
{
    return (double)size.height * (double)size.width;
}

qn_status qn_image_whole_of(double height, double width, qn_image_plan *plan)
{
    if (!(height >= 1 && width >= 1))
        return qn_fail(QN_E_ARG, "the image would be resized to %.0f x %.0f pixels", width, height);
    if (height > QN_IMAGE_SIDE_MAX || width > QN_IMAGE_SIDE_MAX)
        return qn_fail(QN_E_ARG,
                       "the image would be resized to %.0f x %.0f pixels; a side may have at most %d", width,
                       height, (int)QN_IMAGE_SIDE_MAX);
    if (height * width > pixels_max)
        return qn_fail(QN_E_ARG,
                       "the image would be resized to %.0f x %.0f pixels; at most %.0f are supported", width,
                       height, pixels_max);
    plan->content = plan->canvas = (qn_image_size){(int64_t)height, (int64_t)width};
    return QN_OK;
}

/* rint rounds halves to even, as Python does. Shared with large pictures of LFM2-VL, whose sides have at least
 * `least` units. */
static qn_status round_sides(double unit, double least, double min_area, double max_area, qn_image_size size,
                             qn_image_plan *plan)
{
    const double h = (double)size.height, w = (double)size.width;
    double rows = fmax(least, rint(h / unit)), columns = fmax(least, rint(w / unit));
    if (rows * unit * columns * unit > max_area) {
        const double shrink = sqrt(area(size) / max_area);
        rows = fmax(1, floor(h / shrink / unit));
        columns = fmax(1, floor(w / shrink / unit));
    } else if (rows * unit * columns * unit < min_area) {
        const double grow = sqrt(min_area / area(size));
        rows = ceil(h * grow / unit);
        columns = ceil(w * grow / unit);
    }
    return qn_image_whole_of(rows * unit, columns * unit, plan);
}

qn_status qn_image_rounded(const qn_image_processor *p, qn_image_size size, qn_image_plan *plan)
{
    if (p->rule == QN_IMAGE_LARGE) {
        const double of_token = unit_of(p) * unit_of(p);
        return round_sides(unit_of(p), 1, (double)p->min_tokens * of_token, (double)p->max_tokens * of_token,
                           size, plan);
    }
    const int64_t longer = size.height > size.width ? size.height : size.width,
                  shorter = size.height + size.width - longer;
    if (longer > QN_IMAGE_ASPECT_MAX * shorter)
        return qn_fail(QN_E_ARG, "the image is %lld x %lld pixels: one side is more than %d times the other",
                       (long long)size.width, (long long)size.height, (int)QN_IMAGE_ASPECT_MAX);
    return round_sides(unit_of(p), 0, (double)p->min_pixels, (double)p->max_pixels, size, plan);
}

/* ---- padded ------------------------------------------------------------------------------------------- */

static int64_t up(int64_t value, int64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* The largest height of the picture whose canvas has at most max_tokens units, found by halving. */
static qn_image_size fit_in_budget(const qn_image_processor *p, int64_t unit, qn_image_size size)
{
    qn_image_size best = {unit, unit};
    for (int64_t low = 1, high = size.height; low <= high;) {
        const int64_t height = (low + high) / 2;
        double width = floor((double)(size.width * height) / (double)size.height);
        const qn_image_size canvas = {up(height, unit), up(width < 1 ? 1 : (int64_t)width, unit)};
        if (canvas.height / unit * (canvas.width / unit) <= p->max_tokens) {
            best = canvas;
            low = height + 1;
        } else {
            high = height - 1;
        }
    }
    return best;
}

/* The pixels of all times are in both bounds, so only the root below sees how many times there are. */
static qn_image_size padded_canvas(const qn_image_processor *p, int64_t unit, qn_image_size size)
{
    qn_image_size canvas = {up(size.height, unit), up(size.width, unit)};
    const int64_t times = p->temporal_patch_size;
    if (canvas.height / unit * (canvas.width / unit) < p->min_tokens) {
        const double least = (double)(p->min_tokens * times * unit * unit),
                     scale = sqrt(least / (double)(times * size.height * size.width));
        canvas.height = up((int64_t)fmax(1, ceil((double)size.height * scale)), unit);
        canvas.width = up((int64_t)fmax(1, ceil((double)size.width * scale)), unit);
    }
    if (canvas.height / unit * (canvas.width / unit) > p->max_tokens) return fit_in_budget(p, unit, size);
    return canvas;
}

qn_status qn_image_padded(const qn_image_processor *p, qn_image_size size, qn_image_plan *plan)
{
    const int64_t unit = p->patch_size * p->merge_size;
    const qn_image_size canvas = padded_canvas(p, unit, size);
    const double h = (double)size.height, w = (double)size.width, canvas_h = (double)canvas.height,
                 canvas_w = (double)canvas.width;
    double scale = fmin(canvas_h / h, canvas_w / w);
    if (area(size) >= (double)p->min_tokens * unit_of(p) * unit_of(p)) scale = fmin(1, scale);
    QN_TRY(qn_image_whole_of(canvas_h, canvas_w, plan));
    plan->content.height = (int64_t)fmax(1, fmin(canvas_h, floor(h * scale)));
    plan->content.width = (int64_t)fmax(1, fmin(canvas_w, floor(w * scale)));
    return QN_OK;
}

/* ---- closest ------------------------------------------------------------------------------------------ */

typedef struct {
    int64_t rows, columns;
} grid;

/* Where Python's set puts a pair of numbers: of grids that are as close the reference takes the first that a
 * set of them gives. The hash is that of tuples, after xxHash. */
static uint64_t pair_hash(grid g)
{
    const uint64_t prime1 = 11400714785074694791u, prime2 = 14029467366897019727u,
                   prime5 = 2870177450012600261u, lanes[] = {(uint64_t)g.rows, (uint64_t)g.columns};
    uint64_t hash = prime5;
    for (int i = 0; i < 2; i++) {
        hash += lanes[i] * prime2;
        hash = hash << 31 | hash >> 33;
        hash *= prime1;
    }
    return hash + (2 ^ (prime5 ^ 3527539));
}

/* Adds to a set of at most four pairs, which has eight places; rows of an empty one are -1. */
static void set_add(grid places[8], grid g)
{
    uint64_t perturb = pair_hash(g), i = perturb & 7;
    while (places[i].rows >= 0) {
        if (places[i].rows == g.rows && places[i].columns == g.columns) return;
        perturb >>= 5;
        i = (i * 5 + 1 + perturb) & 7;
    }
    places[i] = g;
}

qn_status qn_image_closest(const qn_image_processor *p, qn_image_size size, qn_image_plan *plan)
{
    const double unit = unit_of(p), ratio = (double)size.height / (double)size.width,
                 most = (double)p->max_tokens;
    double rows = (double)size.height / unit, columns = (double)size.width / unit;
    const double columns_by_rows = columns / rows;
    if (rows * columns > most) {
        rows = sqrt(most / columns_by_rows);
        columns = rows * columns_by_rows;
    }
    grid places[8], best = {0};
    for (int i = 0; i < 8; i++) places[i] = (grid){-1, -1};
    const double heights[] = {floor(rows), ceil(rows)}, widths[] = {floor(columns), ceil(columns)};
    for (int i = 0; i < 4; i++) set_add(places, (grid){(int64_t)heights[i / 2], (int64_t)widths[i % 2]});
    double closest = INFINITY;
    for (int i = 0; i < 8; i++) {
        const grid g = places[i];
        if (g.rows < 1 || g.columns < 1 || g.rows * g.columns > p->max_tokens) continue;
        const double distance = fabs((double)g.rows / (double)g.columns - ratio);
        if (distance < closest) best = g;
        closest = fmin(closest, distance);
    }
    if (!best.rows) best = (grid){(int64_t)fmax(1, rint(rows)), (int64_t)fmax(1, rint(columns))};
    return qn_image_whole_of((double)best.rows * unit, (double)best.columns * unit, plan);
}

/* ---- the others --------------------------------------------------------------------------------------- */

qn_status qn_image_budget(const qn_image_processor *p, qn_image_size size, qn_image_plan *plan)
{
    const double unit = unit_of(p), most = (double)p->max_tokens,
                 scale = sqrt(most * (unit * unit) / area(size));
    double rows = floor(scale * (double)size.height / unit),
           columns = floor(scale * (double)size.width / unit);
    if (rows < 1 && columns < 1)
        return qn_fail(QN_E_ARG, "the image would be resized to less than a patch of %.0f pixels", unit);
    if (rows < 1) {
        rows = 1;
        columns = fmin(floor((double)size.width / (double)size.height), most);
    } else if (columns < 1) {
        columns = 1;
        rows = fmin(floor((double)size.height / (double)size.width), most);
    }
    return qn_image_whole_of(rows * unit, columns * unit, plan);
}

qn_status qn_image_longest(const qn_image_processor *p, qn_image_size size, qn_image_plan *plan)
{
    const int64_t unit = p->patch_size * p->merge_size;
    const double ratio = fmax((double)size.height / (double)p->height, (double)size.width / (double)p->width);
    if (ratio > 1) {
        size.height = (int64_t)floor((double)size.height / ratio);
        size.width = (int64_t)floor((double)size.width / ratio);
    }
    return qn_image_whole_of((double)up(size.height, unit), (double)up(size.width, unit), plan);
}

qn_status qn_image_fixed(const qn_image_processor *p, qn_image_size size, qn_image_plan *plan)
{
    return qn_image_whole_of((double)p->height, (double)p->width, plan);
}
