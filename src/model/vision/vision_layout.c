#include "model/vision/vision_layout.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/mem.h"

/* A patch of a view, which has as many as `grid` says, where those of a token lie together. */
typedef struct {
    const qn_image_grid *grid;
    int64_t number, row, column;
} place;

static place place_of(const qn_vision_config *v, const qn_image_grid *grid, int64_t number)
{
    const int64_t m = v->processor.merge_size, token = number / (m * m), in = number % (m * m),
                  tokens = grid->columns / m;
    return (place){grid, number, token / tokens * m + in / m, token % tokens * m + in % m};
}

/* The number of the patch in the processor's order. */
static int64_t stored_number(const qn_vision_config *v, const place *p)
{
    return v->processor.order == QN_IMAGE_MERGED ? p->number : p->row * p->grid->columns + p->column;
}

/* ---- learned positions ---------------------------------------------------------------------------------- */

/* The most places of one axis that a view of n patches reads. */
static int64_t axis_count(const qn_vision_config *v, int64_t n)
{
    switch (v->places) {
    case QN_VISION_PLACES_CORNERS:
    case QN_VISION_PLACES_CENTERS:
        return 2;
    case QN_VISION_PLACES_RESIZED: {
        const double reach = fmax(1, (double)v->places_side / (double)n);
        const int64_t most = (int64_t)(2 * reach) + 2;
        return most < v->places_side ? most : v->places_side;
    }
    default:
        return 1;
    }
}

/* The table's corners are the view's. */
static void corners(int64_t side, int64_t n, int64_t at, int64_t *first, float *weights)
{
    const float from = (float)(at * (side - 1)) / (float)(n > 1 ? n - 1 : 1), whole = floorf(from);
    *first = (int64_t)whole;
    weights[1] = from - whole;
    weights[0] = 1 - weights[1];
}

/* Centers of patches over the table; beyond its first and last rows there is nothing. */
static void centers(int64_t side, int64_t n, int64_t at, int64_t *first, float *weights)
{
    const float from = ((float)at + 0.5f) * (float)side / (float)n - 0.5f, whole = floorf(from);
    *first = (int64_t)whole;
    weights[0] = *first < 0 ? 0 : 1 - (from - whole);
    weights[1] = *first + 1 >= side ? 0 : from - whole;
}

/* What torch's antialiased bilinear resizing takes of a table of `side`: a triangle as wide as a patch covers. */
static void resized(int64_t side, int64_t n, int64_t at, int64_t count, int64_t *first, float *weights)
{
    const float scale = (float)side / (float)n, reach = scale > 1 ? scale : 1,
                center = ((float)at + 0.5f) * scale - 0.5f;
    int64_t begin = (int64_t)ceilf(center - reach);
    float sum = 0;
    if (begin < 0) begin = 0;
    if (begin > side - count) begin = side - count;
    for (int64_t i = 0; i < count; i++) {
        const float w = 1 - fabsf((float)(begin + i) - center) / reach;
        weights[i] = w > 0 ? w : 0;
        sum += weights[i];
    }
    for (int64_t i = 0; i < count; i++) weights[i] /= sum;
    *first = begin;
}

/* The share of the view that lies before a patch, as a place of the table. */
static int64_t bucket(int64_t side, int64_t n, int64_t at)
{
    const float step = 1.0f / (float)n, share = fminf((float)at * step, 1.0f - 1e-6f);
    int64_t i = 0;
    /* Boundaries are multiples of 1 / side, in double, as torch.arange makes them, and rounded. */
    while (i + 1 < side && (float)((double)(i + 1) * (1.0 / (double)side)) <= share) i++;
    return i;
}

static void axis(const qn_vision_config *v, int64_t n, int64_t at, int64_t count, int64_t *first,
                 float *weights)
{
    *first = at;
    weights[0] = 1;
    switch (v->places) {
    case QN_VISION_PLACES_CORNERS:
        corners(v->places_side, n, at, first, weights);
        break;
    case QN_VISION_PLACES_CENTERS:
        centers(v->places_side, n, at, first, weights);
        break;
    case QN_VISION_PLACES_RESIZED:
        resized(v->places_side, n, at, count, first, weights);
        break;
    case QN_VISION_PLACES_SHARES:
        *first = bucket(v->places_side, n, at);
        break;
    default:
        break;
    }
}

/* The number of a row of the table, of two axes. */
static int32_t table_row(const qn_vision_config *v, int64_t row, int64_t column)
{
    const int64_t last = v->places_side - 1, first = v->class_row == QN_VISION_CLASS_FIRST;
    /* One of two beyond the table, whose weight is 0 there. */
    row = row > last ? last : row < 0 ? 0 : row;
    column = column > last ? last : column < 0 ? 0 : column;
    return (int32_t)(first + row * v->places_side + column);
}

static void put_taps(const qn_vision_config *v, qn_vision_layout *l, int64_t r, const place *p, float *w)
{
    int64_t height = p->grid->rows, width = p->grid->columns, row = p->row, column = p->column;
    if (v->places == QN_VISION_PLACES_CENTERS) { /* the place of this number in a view of width x height */
        const int64_t number = row * width + column;
        row = number / height;
        column = number % height;
        height = p->grid->columns;
        width = p->grid->rows;
    }
    const int64_t down = axis_count(v, height), across = axis_count(v, width);
    int64_t first_row, first_column, t = 0;
    float *rows = w, *columns = w + down;
    axis(v, height, row, down, &first_row, rows);
    axis(v, width, column, across, &first_column, columns);
    for (int64_t i = 0; i < down; i++)
        for (int64_t k = 0; k < across; k++, t++) {
            l->taps[t * l->n_rows + r] = table_row(v, first_row + i, first_column + k);
            l->weights[t * l->n_rows + r] = rows[i] * columns[k];
        }
}

static void put_axes(const qn_vision_config *v, qn_vision_layout *l, int64_t r, const place *p)
{
    const int in_turn = v->places == QN_VISION_PLACES_AXES_IN_TURN;
    l->taps[r] = (int32_t)(in_turn ? 2 * p->column : p->column);
    l->taps[l->n_rows + r] = (int32_t)(in_turn ? 2 * p->row + 1 : v->places_side + p->row);
    l->weights[r] = l->weights[l->n_rows + r] = 1;
}

static int has_axes(const qn_vision_config *v)
{
    return v->places == QN_VISION_PLACES_AXES || v->places == QN_VISION_PLACES_AXES_IN_TURN;
}

static int64_t count_taps(const qn_vision_config *v, int64_t n_views, const qn_image_grid *views)
{
    int64_t most = 0;
    if (v->places == QN_VISION_PLACES_NONE) return 0;
    if (has_axes(v)) return 2;
    for (int64_t i = 0; i < n_views; i++) {
        const int64_t n = axis_count(v, views[i].rows) * axis_count(v, views[i].columns);
        if (n > most) most = n;
    }
    return most;
}

/* ---- rows ------------------------------------------------------------------------------------------------ */

/* first: patches of the views before. */
static void put_row(const qn_vision_config *v, qn_vision_layout *l, int64_t r, int64_t first, const place *p,
                    float *w)
{
    const int shift = v->rope == QN_VISION_ROPE_NEIGHBOURS; /* 0 is the class row's, which does not turn */
    if (l->source) l->source[r] = (int32_t)(first + stored_number(v, p));
    if (l->kept) l->kept[first + p->number] = (int32_t)r;
    if (l->rows) {
        l->rows[r] = (int32_t)(p->row + shift);
        l->columns[r] = (int32_t)(p->column + shift);
    }
    if (has_axes(v))
        put_axes(v, l, r, p);
    else if (l->n_taps)
        put_taps(v, l, r, p, w);
}

static void put_class(const qn_vision_config *v, qn_vision_layout *l, int64_t r)
{
    l->is_class[r] = 1;
    if (!l->n_taps) return;
    l->taps[r] = v->class_row == QN_VISION_CLASS_FIRST ? 0 : (int32_t)(v->places_side * v->places_side);
    l->weights[r] = 1;
}

static void end_sequence(qn_vision_sequences *s, int64_t row)
{
    const int64_t begin = s->row_begin[s->n];
    for (int64_t r = begin; r < row; r++) s->positions[r] = (int32_t)(r - begin);
    if (row > begin) s->row_begin[++s->n] = (int32_t)row;
}

/* The same of a view whose windows are of patches. */
static int64_t put_patch_windows(const qn_vision_config *v, qn_vision_layout *l, const qn_image_grid *grid,
                                 int64_t first, int64_t r, float *w)
{
    const int64_t m = v->processor.merge_size, side = v->window_size;
    for (int64_t top = 0; top < grid->rows; top += side)
        for (int64_t left = 0; left < grid->columns; left += side) {
            for (int64_t y = top; y < top + side && y < grid->rows; y++)
                for (int64_t x = left; x < left + side && x < grid->columns; x++, r++) {
                    const int64_t token = y / m * (grid->columns / m) + x / m;
                    const place p = {grid, token * m * m + y % m * m + x % m, y, x};
                    put_row(v, l, r, first, &p, w);
                }
            end_sequence(&l->windows, r);
        }
    end_sequence(&l->views, r);
    return r;
}

/* The rows of a view that begins at patch `first`; window by window where there are windows. */
static int64_t put_view(const qn_vision_config *v, qn_vision_layout *l, const qn_image_grid *grid,
                        int64_t first, int64_t r, float *w)
{
    const int64_t m = v->processor.merge_size, down = grid->rows / m, across = grid->columns / m,
                  side = v->window_size  ? v->window_size
                         : down > across ? down
                                         : across;
    if (v->patch_windows) return put_patch_windows(v, l, grid, first, r, w);
    if (v->class_row == QN_VISION_CLASS_FIRST) put_class(v, l, r++);
    for (int64_t top = 0; top < down; top += side)
        for (int64_t left = 0; left < across; left += side) {
            for (int64_t y = top; y < top + side && y < down; y++)
                for (int64_t x = left; x < left + side && x < across; x++)
                    for (int64_t i = 0; i < m * m; i++, r++) {
                        const place p = place_of(v, grid, (y * across + x) * m * m + i);
                        put_row(v, l, r, first, &p, w);
                    }
            if (v->window_size) end_sequence(&l->windows, r);
        }
    if (v->class_row == QN_VISION_CLASS_LAST) put_class(v, l, r++);
    end_sequence(&l->views, r);
    return r;
}

/* ---- making ---------------------------------------------------------------------------------------------- */

static qn_status check_views(const qn_vision_config *v, int64_t n_views, const qn_image_grid *views)
{
    const int64_t m = v->processor.merge_size, side = v->places_side;
    for (int64_t i = 0; i < n_views; i++) {
        const int64_t rows = views[i].rows, columns = views[i].columns;
        if (rows < 1 || columns < 1 || rows % m || columns % m)
            return qn_fail(QN_E_ARG, "a view has %lld x %lld patches, expected multiples of %lld",
                           (long long)rows, (long long)columns, (long long)m);
        if (v->places == QN_VISION_PLACES_PLAIN && (rows != side || columns != side))
            return qn_fail(QN_E_ARG,
                           "a view has %lld x %lld patches, but the tower has positions for %lld x %lld",
                           (long long)rows, (long long)columns, (long long)side, (long long)side);
        if (has_axes(v) && (rows > side || columns > side))
            return qn_fail(QN_E_ARG, "a view has %lld x %lld patches, but the tower has positions for %lld",
                           (long long)rows, (long long)columns, (long long)side);
    }
    return QN_OK;
}

static int take_sequences(qn_vision_sequences *s, int64_t n_rows, int64_t most)
{
    s->row_begin = qn_calloc((size_t)most + 1, sizeof *s->row_begin);
    s->positions = qn_calloc((size_t)n_rows, sizeof *s->positions);
    return s->row_begin && s->positions;
}

static int take(const qn_vision_config *v, qn_vision_layout *l, int64_t n_views)
{
    const size_t n = (size_t)l->n_rows;
    const int has_class = v->class_row != QN_VISION_CLASS_NONE, leaves = has_class || v->window_size,
              moves = leaves || (v->processor.order != QN_IMAGE_MERGED && v->processor.merge_size > 1);
    int all = take_sequences(&l->views, l->n_rows, n_views);
    if (v->window_size) all &= take_sequences(&l->windows, l->n_rows, l->n_rows);
    if (moves) all &= (l->source = qn_calloc(n, sizeof *l->source)) != NULL;
    if (leaves) all &= (l->kept = qn_calloc((size_t)l->n_patches, sizeof *l->kept)) != NULL;
    if (has_class) all &= (l->is_class = qn_calloc(n, sizeof *l->is_class)) != NULL;
    if (v->rope != QN_VISION_ROPE_NONE) all &= (l->rows = qn_calloc(n, sizeof *l->rows)) != NULL;
    if (v->rope != QN_VISION_ROPE_NONE) all &= (l->columns = qn_calloc(n, sizeof *l->columns)) != NULL;
    if (l->n_taps) all &= (l->taps = qn_calloc((size_t)l->n_taps * n, sizeof *l->taps)) != NULL;
    if (l->n_taps) all &= (l->weights = qn_calloc((size_t)l->n_taps * n, sizeof *l->weights)) != NULL;
    return all;
}

qn_status qn_vision_layout_make(const qn_vision_config *v, int64_t n_views, const qn_image_grid *views,
                                qn_vision_layout *out)
{
    qn_vision_layout l = {.n_patches = 0};
    const int64_t most = 2 * (v->places_side + 2);
    int64_t patch = 0, row = 0;
    QN_TRY(check_views(v, n_views, views));
    for (int64_t i = 0; i < n_views; i++) {
        int64_t area;
        if (!qn_mul_i64(views[i].rows, views[i].columns, &area) ||
            !qn_add_i64(l.n_patches, area, &l.n_patches) || l.n_patches > INT32_MAX / 2)
            return qn_fail(QN_E_ARG, "the image has too many patches");
    }
    l.n_rows = l.n_patches + (v->class_row != QN_VISION_CLASS_NONE ? n_views : 0);
    l.n_taps = count_taps(v, n_views, views);
    float *weights = qn_alloc_array((size_t)most, sizeof *weights);
    if (!weights || !take(v, &l, n_views)) {
        qn_free(weights);
        qn_vision_layout_free(&l);
        return QN_E_NOMEM;
    }
    for (int64_t i = 0; i < n_views; i++) {
        row = put_view(v, &l, &views[i], patch, row, weights);
        patch += views[i].rows * views[i].columns;
    }
    qn_free(weights);
    *out = l;
    return QN_OK;
}

void qn_vision_layout_free(qn_vision_layout *l)
{
    void *const all[] = {l->source,           l->kept,
                         l->is_class,         l->rows,
                         l->columns,          l->taps,
                         l->weights,          l->views.row_begin,
                         l->views.positions,  l->windows.row_begin,
                         l->windows.positions};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) qn_free(all[i]);
    *l = (qn_vision_layout){.n_patches = 0};
}

int64_t qn_vision_tokens(const qn_vision_config *v, int64_t n_views, const qn_image_grid *views)
{
    const int64_t m = v->processor.merge_size;
    int64_t n = 0;
    for (int64_t i = 0; i < n_views; i++) n += views[i].rows / m * (views[i].columns / m);
    return n;
}
