/* Attention over BF16 pages with the tiles of AMX: a page's keys are tiles as they lie (16 pairs of
 * dimensions x 16 tokens), and so are its values (16 pairs of tokens x 16 dimensions). A chain adds 32
 * dimensions or the 32 positions of a page at a time, those of even and odd index apart and then both, in
 * rising order; it has no other split, so its bits are those of any tile that the row is in. The rest is
 * attention_dots_avx512.h's. */
#ifndef QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_TILES_AVX512_AMX_H
#define QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_TILES_AVX512_AMX_H

#include "device/cpu/kernels/matmul/tiles_avx512_amx.h"

/* Tiles: 0 and 1 sums of as many rows as most tiles of pairs have, 2 their q or p, 3 and 6 keys or values, 4
 * and 5 as 2 and 3 for what head_dim has behind its last 32. */
enum { TILES_DIMS = 32 };

static inline int tiles_rows(const attend_state *s)
{
    return s->n_each < QN_ATTN_TILE_MAX ? (int)s->n_each : QN_ATTN_TILE_MAX;
}

static int by_tiles(const attend_state *s)
{
    return 1; /* the set has nothing else computed here */
}

/* ---- requests ------------------------------------------------------------------------------------------
 * Keys and values are asked for while those before them are used, QN_ATTN_PIECES pieces of up to 4 KiB at a
 * time, side by side: some lines of the first, of the second, ... Of memory that is read in order a core of a
 * Xeon 6 seems to have little more than one page of 4 KiB in flight. Pieces go through a group as tiles do:
 * keys page by page, then values, then the next group's. */

enum { PIECE_BYTES = 4096, LINES = 32 /* that are used between two calls, or half of them */ };

/* Positions of `group` that are looked at, whole pages. */
static void requests_pages(const attend_state *s, int64_t group, int64_t *from, int64_t *to)
{
    const int64_t low = s->lo[0] / QN_PAGE_TOKENS * QN_PAGE_TOKENS, past = s->hi[s->n_pairs - 1];
    *from = group > low ? group : low;
    *to = group + QN_ATTN_GROUP < past ? group + QN_ATTN_GROUP : past;
}

/* The next pieces, of keys or of values alone. None behind the last group. */
static void requests_next(attend_state *s)
{
    attend_requests *r = &s->requests;
    int64_t from, to;
    requests_pages(s, r->group, &from, &to);
    r->n = r->at = 0;
    if (r->p >= to) {
        r->values = !r->values;
        if (!r->values) requests_pages(s, r->group += QN_ATTN_GROUP, &from, &to);
        r->p = from;
    }
    const int64_t all = s->n_kv * (int64_t)(r->values ? s->v_bytes : s->k_bytes),
                  n = (all + PIECE_BYTES - 1) / PIECE_BYTES;
    r->bytes = ((all + n - 1) / n + 63) / 64 * 64;
    while (r->n < QN_ATTN_PIECES && r->p < to) {
        r->piece[r->n++] = (r->values ? v_page(s, r->p) : k_page(s, r->p)) + r->in;
        r->in += r->bytes;
        if (r->in < all) continue;
        r->in = 0;
        r->p += QN_PAGE_TOKENS;
    }
}

/* Of the group that begins, all but the first pieces, which were asked for before. */
static void requests_begin(attend_state *s, int64_t group)
{
    int64_t from, to;
    requests_pages(s, group, &from, &to);
    s->requests = (attend_requests){.in_use = 1, .group = group, .p = from};
    requests_next(s);
    requests_next(s);
}

/* As many lines as are used meanwhile: n is LINES or half of them. */
static inline void request_lines(attend_state *s, int n)
{
    attend_requests *r = &s->requests;
    if (r->n == QN_ATTN_PIECES) {
#pragma GCC unroll 8
        for (int i = 0; i < QN_ATTN_PIECES; i++) {
            const char *p = r->piece[i] + r->at;
#pragma GCC unroll 4
            for (int j = 0; j < LINES / QN_ATTN_PIECES; j++)
                if (j < n / QN_ATTN_PIECES) fetch_line(p, 64 * j);
        }
        r->at += n / QN_ATTN_PIECES * 64;
    } else if (r->n) {
        const int64_t each = (n + r->n - 1) / r->n;
        for (int64_t i = 0; i < r->n; i++)
            for (int64_t j = 0; j < each; j++) fetch_line(r->piece[i] + r->at, 64 * j);
        r->at += each * 64;
    }
    if (r->n && r->at >= r->bytes) requests_next(s);
}

/* Of the tiles of a key head, which read the same, the first one asks. */
static int requests_by(const attend_state *s, const attend_tile *t)
{
    return t->first == t->kv * s->n_each;
}

/* ---- queries ------------------------------------------------------------------------------------------ */

static void tiles_take(attend_state *s)
{
    const int rest = (int)((s->a->kv.head_dim + 1) / 2 % 16), pairs[8] = {16, 16, 16, 16, rest, rest, 16, 16};
    tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        const int codes = i == 3 || i == 5 || i == 6;
        shapes.rows[i] = (uint8_t)(codes ? pairs[i] : tiles_rows(s));
        shapes.bytes[i] = (uint16_t)(codes ? 64 : 4 * pairs[i]);
        if (!pairs[i]) shapes.rows[i] = 0, shapes.bytes[i] = 0;
    }
    take_tiles(&shapes);
    s->requests.in_use = 1;
}

static void tiles_give_back(void)
{
    _tile_release();
}

/* Bytes of a query: [dimension], in whole tiles, with zeros behind the last one. */
static inline int64_t tiles_query_bytes(const attend_state *s)
{
    return qn_kv_blocks(s->a->kv.head_dim) * QN_KV_BLOCK * 2;
}

static void tiles_pack_queries(attend_state *s, const attend_tile *t, const float *const *q, float factor)
{
    const int64_t dim = s->q_dim, bytes = tiles_query_bytes(s);
    const vf f = v_set1(factor);
    for (int64_t j = 0; j < t->n; j++) {
        char *out = (char *)s->q + (t->first + j) * bytes;
        for (int64_t d = 0; d < dim; d += TILES_DIMS)
            _mm512_storeu_si512(out + 2 * d,
                                (__m512i)_mm512_cvtne2ps_pbh(v_mul(dots_part(q[j], d + 16, dim), f),
                                                             v_mul(dots_part(q[j], d, dim), f)));
    }
}

/* ---- scores ------------------------------------------------------------------------------------------- */

static void tiles_score(attend_state *s, const attend_tile *t, int64_t p)
{
    enum { ROW = QN_PAGE_TOKENS * 4, STEP = TILE_ROWS * ROW }; /* of a pair of dimensions, of 16 */
    const char *page = k_of(s, t, p);
    const int64_t bytes = tiles_query_bytes(s), pairs = (s->a->kv.head_dim + 1) / 2,
                  steps = pairs / TILE_ROWS;
    const char *q = (const char *)s->q + t->first * bytes;
    float *out = s->scores + t->slot * QN_ATTN_SCORES + (p - t->group),
          few[QN_ATTN_TILE_MAX * QN_PAGE_TOKENS];
    const int few_rows = t->n < tiles_rows(s), row = few_rows ? QN_PAGE_TOKENS : QN_ATTN_SCORES;
    float *to = few_rows ? few : out;
    const int asks = requests_by(s, t);
    if (asks && t->first == 0 && p == t->from) requests_begin(s, t->group);
    __asm__ volatile("" : : : "memory");
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t i = 0; i < steps; i++, q += 2 * TILES_DIMS, page += STEP) {
        if (asks) request_lines(s, LINES);
        _tile_loadd(2, q, bytes);
        _tile_loadd(3, page, ROW);
        _tile_dpbf16ps(0, 2, 3);
        _tile_loadd(6, page + 64, ROW);
        _tile_dpbf16ps(1, 2, 6);
    }
    if (pairs % TILE_ROWS) {
        _tile_loadd(4, q, bytes);
        _tile_loadd(5, page, ROW);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(5, page + 64, ROW);
        _tile_dpbf16ps(1, 4, 5);
    }
    _tile_stored(0, to, row * 4);
    _tile_stored(1, to + 16, row * 4);
    for (int64_t r = 0; r < t->n && few_rows; r++)
        memcpy(out + r * QN_ATTN_SCORES, few + r * QN_PAGE_TOKENS, QN_PAGE_TOKENS * sizeof *out);
}

/* ---- values ------------------------------------------------------------------------------------------- */

/* Pages of values in rising order, and where their probabilities begin: [row][32], p_bytes apart. */
typedef struct {
    const char *v[QN_ATTN_PAGES], *p[QN_ATTN_PAGES];
    int64_t n, rows, v_bytes, p_bytes; /* v_bytes: of a pair of positions */
    float *sums;                       /* [row][sums_row] */
    int64_t sums_row;
    int asks, add, tile_rows;
} tiles_values;

static void tiles_weigh_pages(attend_state *s, tiles_values *w)
{
    float few[QN_ATTN_TILE_MAX * 32];
    const int few_rows = w->rows < w->tile_rows;
    __asm__ volatile("" : : : "memory");
    for (int64_t column = 0; column < w->sums_row && w->n; column += 32) {
        const int both = column + 16 < w->sums_row;
        float *out = w->sums + column, *to = few_rows ? few : out;
        const int64_t row = few_rows ? 32 : w->sums_row, n = both ? 32 : 16;
        for (int64_t r = 0; r < w->rows && few_rows && w->add; r++)
            memcpy(few + r * 32, out + r * w->sums_row, (size_t)n * sizeof *out);
        __asm__ volatile("" : : : "memory");
        if (w->add) {
            _tile_loadd(0, to, row * 4);
            if (both) _tile_loadd(1, to + 16, row * 4);
        } else {
            _tile_zero(0);
            if (both) _tile_zero(1);
        }
        for (int64_t i = 0; i < w->n; i++) {
            if (w->asks) request_lines(s, both ? LINES : LINES / 2);
            _tile_loadd(2, w->p[i], w->p_bytes);
            _tile_loadd(3, w->v[i] + column * 4, w->v_bytes);
            _tile_dpbf16ps(0, 2, 3);
            if (!both) continue;
            _tile_loadd(6, w->v[i] + column * 4 + 64, w->v_bytes);
            _tile_dpbf16ps(1, 2, 6);
        }
        _tile_stored(0, to, row * 4);
        if (both) _tile_stored(1, to + 16, row * 4);
        for (int64_t r = 0; r < w->rows && few_rows; r++)
            memcpy(out + r * w->sums_row, few + r * 32, (size_t)n * sizeof *out);
    }
    w->add |= w->n > 0;
    w->n = 0;
}

static void tiles_add_page(tiles_values *w, const attend_state *s, int64_t slot, int64_t at, const char *v)
{
    w->v[w->n] = v;
    w->p[w->n++] = (const char *)(s->p16 + slot * p16_row(s) + at);
}

/* A page that not all rows see whole: a copy of it with zeros where none looks, or for each row one of its
 * own where the copy is not finite. */
static void tiles_add_edge(attend_state *s, const attend_tile *t, int64_t p, tiles_values *w)
{
    const int64_t last = t->first + t->n - 1, pairs = QN_PAGE_TOKENS / 2;
    char *copy = (char *)s->edge;
    tiles_weigh_pages(s, w);
    if (dots_copy_pairs(s, t, p, 0, pairs, s->lo[t->first], s->hi[last], copy)) {
        tiles_add_page(w, s, t->slot, p - t->group, copy);
        tiles_weigh_pages(s, w);
        return;
    }
    for (int64_t i = 0; i < t->n; i++) {
        tiles_values one = *w;
        one.rows = 1;
        one.sums += i * w->sums_row;
        dots_copy_pairs(s, t, p, 0, pairs, s->lo[t->first + i], s->hi[t->first + i], copy);
        tiles_add_page(&one, s, t->slot + i, p - t->group, copy);
        tiles_weigh_pages(s, &one);
    }
    w->add = 1;
}

static void tiles_weigh(attend_state *s, const attend_tile *t, int64_t p, int64_t n_pages)
{
    const int64_t to = p + n_pages * QN_PAGE_TOKENS;
    tiles_values w = {.rows = t->n,
                      .tile_rows = tiles_rows(s),
                      .v_bytes = s->v_pad * 4,
                      .p_bytes = p16_row(s) * 2,
                      .sums = s->sums + t->slot * s->v_pad,
                      .sums_row = s->v_pad,
                      .asks = requests_by(s, t),
                      .add = p != t->from};
    for (; p < to; p += QN_PAGE_TOKENS) {
        if (sees_whole(s, t, p))
            tiles_add_page(&w, s, t->slot, p - t->group, v_of(s, t, p));
        else
            tiles_add_edge(s, t, p, &w);
    }
    tiles_weigh_pages(s, &w);
}

#endif
