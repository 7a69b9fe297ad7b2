#include "media/heat_map.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "media/text5x7.h"

enum {
    SIDE = 224, /* of a panel, about, where there is room */
    SIDE_MIN = 32,
    CELL_MAX = 24, /* of one position */
    LINE = QN_TEXT_HEIGHT + 5,
    MARGIN = 8,
    TICK = 3,
    HEAD = 4 * LINE + MARGIN, /* headline, axes, scale and its numbers */
    SCALE_WIDTH = 200,
    SIDE_OF_PICTURE_MAX = 65535,
    MAX_PIXELS = 64 << 20
};

/* How panels are laid out. */
typedef struct {
    int64_t cell;  /* pixels of a position, or 1 */
    int64_t block; /* positions of a pixel, or 1 */
    int64_t side;  /* of a panel */
    int64_t left;  /* room for the numbers on its left */
    int64_t panel_width, panel_height, width, height;
} layout;

static layout lay_out(const qn_heat_map *m, int64_t side)
{
    char last[24];
    layout l = {.cell = side / m->n, .block = (m->n + side - 1) / side};
    if (l.cell < 1) l.cell = 1;
    if (l.cell > CELL_MAX) l.cell = CELL_MAX;
    l.side = (m->n + l.block - 1) / l.block * l.cell;
    snprintf(last, sizeof last, "%lld", (long long)m->n - 1);
    l.left = qn_text_width(last) + TICK + 2;
    l.panel_width = l.left + l.side + MARGIN + QN_TEXT_ADVANCE;
    l.panel_height = LINE + l.side + TICK + LINE + MARGIN;
    l.width = 2 * MARGIN + m->columns * l.panel_width;
    l.height = HEAD + MARGIN + m->rows * l.panel_height;
    if (l.width < 2 * MARGIN + 2 * SCALE_WIDTH) l.width = 2 * MARGIN + 2 * SCALE_WIDTH;
    return l;
}

static void put(qn_picture *p, int64_t x, int64_t y, const uint8_t rgb[3])
{
    memcpy(p->rgb + (y * p->width + x) * 3, rgb, 3);
}

static void fill(qn_picture *p, int64_t x, int64_t y, int64_t width, int64_t height, const uint8_t rgb[3])
{
    for (int64_t i = 0; i < height; i++)
        for (int64_t j = 0; j < width; j++) put(p, x + j, y + i, rgb);
}

/* From dark blue over green to yellow, brighter all the way (the map that is called viridis). */
static void colour_of(double probability, uint8_t rgb[3])
{
    static const uint8_t stops[][3] = {{68, 1, 84},    {72, 40, 120},  {62, 74, 137},  {49, 104, 142},
                                       {38, 130, 142}, {31, 158, 137}, {53, 183, 121}, {110, 206, 88},
                                       {181, 222, 43}, {253, 231, 37}};
    const int last = (int)(sizeof stops / sizeof *stops) - 1;
    double at = probability > 0 ? sqrt(probability) * last : 0; /* NaN: 0 */
    if (at > last) at = last;
    int i = (int)at < last ? (int)at : last - 1;
    for (int c = 0; c < 3; c++)
        rgb[c] = (uint8_t)lround(stops[i][c] + (at - i) * ((double)stops[i + 1][c] - stops[i][c]));
}

/* The largest of the positions that pixel (x, y) of a panel stands for. Returns 0 when none of them is seen.
 */
static int largest(const qn_heat_map *m, int64_t index, int64_t block, int64_t x, int64_t y, double *out)
{
    const float *panel = m->panels[index];
    const int64_t window = m->windows && m->windows[index] ? m->windows[index] : m->n;
    int is_seen = 0;
    *out = 0;
    for (int64_t r = y * block; r < (y + 1) * block && r < m->n; r++)
        for (int64_t c = x * block; c < (x + 1) * block && c <= r; c++) {
            if (c <= r - window) continue;
            is_seen = 1;
            if ((double)panel[r * m->n + c] > *out) *out = (double)panel[r * m->n + c];
        }
    return is_seen;
}

/* Numbers that lie so many pixels apart at least: 1, 2, 5, 10, 20, ... positions. */
static int64_t tick_step(const layout *l, int64_t pixels)
{
    static const int64_t factors[] = {2, 5, 10};
    int64_t power = 1, step = 1;
    for (int i = 0; step / l->block * l->cell < pixels; i++) {
        step = power * factors[i % 3];
        if (i % 3 == 2) power *= 10;
    }
    return step;
}

static void draw_axes(const qn_heat_map *m, const layout *l, qn_picture *p, int64_t x, int64_t y)
{
    static const uint8_t black[3] = {0, 0, 0};
    char number[24];
    snprintf(number, sizeof number, "%lld", (long long)m->n);
    int64_t across = tick_step(l, qn_text_width(number) + QN_TEXT_ADVANCE), down = tick_step(l, LINE);
    for (int64_t i = 0; i < m->n; i += across) {
        int64_t at = i / l->block * l->cell + l->cell / 2;
        snprintf(number, sizeof number, "%lld", (long long)i);
        fill(p, x + at, y + l->side, 1, TICK, black);
        qn_text_draw(p, x + at - qn_text_width(number) / 2, y + l->side + TICK + 1, number);
    }
    for (int64_t i = 0; i < m->n; i += down) {
        int64_t at = i / l->block * l->cell + l->cell / 2;
        snprintf(number, sizeof number, "%lld", (long long)i);
        fill(p, x - TICK, y + at, TICK, 1, black);
        qn_text_draw(p, x - TICK - 1 - qn_text_width(number), y + at - QN_TEXT_HEIGHT / 2, number);
    }
}

static void draw_panel(const qn_heat_map *m, const layout *l, qn_picture *p, int64_t index)
{
    static const uint8_t unseen[3] = {232, 232, 232};
    int64_t x = MARGIN + index % m->columns * l->panel_width + l->left,
            y = HEAD + index / m->columns * l->panel_height + LINE;
    if (!m->panels[index]) return;
    qn_text_draw(p, x, y - LINE + 2, m->titles[index]);
    for (int64_t i = 0; i < l->side / l->cell; i++)
        for (int64_t j = 0; j < l->side / l->cell; j++) {
            uint8_t rgb[3];
            double most;
            int is_seen = largest(m, index, l->block, j, i, &most);
            if (is_seen) colour_of(most, rgb);
            fill(p, x + j * l->cell, y + i * l->cell, l->cell, l->cell, is_seen ? rgb : unseen);
        }
    draw_axes(m, l, p, x, y);
}

static void draw_head(const qn_heat_map *m, qn_picture *p)
{
    static const char *const marks[] = {"0", "0.25", "0.5", "0.75", "1"};
    qn_text_draw(p, MARGIN, MARGIN, m->headline);
    qn_text_draw(p, MARGIN, MARGIN + LINE, "down: position of the query, across: position of the key");
    for (int64_t x = 0; x < SCALE_WIDTH; x++) {
        uint8_t rgb[3];
        double root = (double)x / (SCALE_WIDTH - 1);
        colour_of(root * root, rgb);
        fill(p, MARGIN + x, MARGIN + 2 * LINE, 1, QN_TEXT_HEIGHT, rgb);
    }
    qn_text_draw(p, MARGIN + SCALE_WIDTH + MARGIN, MARGIN + 2 * LINE, "probability");
    for (int i = 0; i <= 4; i++) {
        int64_t at = (int64_t)(sqrt(i / 4.0) * (SCALE_WIDTH - 1));
        int64_t shift = i == 0 ? 0 : i == 4 ? QN_TEXT_ADVANCE : qn_text_width(marks[i]) / 2;
        qn_text_draw(p, MARGIN + at - shift, MARGIN + 3 * LINE - 3, marks[i]);
    }
}

static int fits(const qn_heat_map *m, const layout *l)
{
    int64_t most = m->max_pixels ? m->max_pixels : MAX_PIXELS;
    return l->width <= SIDE_OF_PICTURE_MAX && l->height <= SIDE_OF_PICTURE_MAX &&
           l->width <= most / l->height;
}

qn_status qn_heat_map_draw(const qn_heat_map *m, qn_picture *out)
{
    if (m->rows < 1 || m->columns < 1 || m->n < 1 || m->rows > SIDE_OF_PICTURE_MAX ||
        m->columns > SIDE_OF_PICTURE_MAX || m->n > INT32_MAX)
        return qn_fail(QN_E_ARG, "a heat map of %lld x %lld panels and %lld positions", (long long)m->rows,
                       (long long)m->columns, (long long)m->n);
    int64_t side = SIDE;
    layout l = lay_out(m, side);
    while (!fits(m, &l) && side > SIDE_MIN) l = lay_out(m, side -= SIDE_MIN);
    if (!fits(m, &l))
        return qn_fail(QN_E_FULL, "a heat map of %lld x %lld panels would have %lld x %lld pixels",
                       (long long)m->rows, (long long)m->columns, (long long)l.width, (long long)l.height);
    qn_picture p = {.width = l.width, .height = l.height};
    p.rgb = qn_alloc_array((size_t)(l.width * l.height), 3);
    if (!p.rgb) return QN_E_NOMEM;
    memset(p.rgb, 255, (size_t)(l.width * l.height) * 3);
    draw_head(m, &p);
    for (int64_t i = 0; i < m->rows * m->columns; i++) draw_panel(m, &l, &p, i);
    *out = p;
    return QN_OK;
}
