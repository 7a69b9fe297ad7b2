/* Attention in 16-bit operands: vdpbf16ps for BF16 pages, vpdpwssd for Q8_0 and Q4_0 pages. Both instructions
 * add two products to each of 16 lanes, one a cycle. */
#ifndef QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_DOTS_AVX512_H
#define QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_DOTS_AVX512_H

#define DOTS_BF16 1
#define DOTS_BYTES 0
enum { DOTS_ROWS = V_TILE_ROWS, DOTS_ROWS_V4 = V_TILE_ROWS };
typedef __m512i vi, va, vb;

static inline int dots_vecs(int rows)
{
    return 2;
}

static inline vi dots_zero(void)
{
    return _mm512_setzero_si512();
}

static inline vi dots_load_sums(const float *p)
{
    return _mm512_loadu_si512(p);
}

static inline void dots_store_sums(float *p, vi sums)
{
    _mm512_storeu_si512(p, sums);
}

static inline vf dots_to_f32(vi sums)
{
    return _mm512_cvtepi32_ps(sums);
}

/* form is a constant wherever this is expanded. */
static inline __attribute__((always_inline)) void dots_load(const char *p, int64_t next, attend_form form,
                                                            vb *b)
{
    if (form == FORM_BF16) {
        b[0] = _mm512_loadu_si512(p);
        return;
    }
    __m512i x = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)p));
    if (form == FORM_Q8) {
        b[0] = x;
        return;
    }
    b[0] = _mm512_srai_epi16(_mm512_slli_epi16(x, 12), 8);
    b[1] = _mm512_and_si512(x, _mm512_set1_epi16(-16));
}

/* The empty instruction keeps the sum where it is: gcc gave each addition a register of its own, moved 16
 * sums back at the end of each turn and kept two of them on the stack. */
static inline vi dots_add(vi sum, vb b, va x, attend_form form)
{
    sum = of_integers(form) ? _mm512_dpwssd_epi32(sum, x, b)
                            : (__m512i)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)b);
    __asm__("" : "+v"(sum));
    return sum;
}

static inline va dots_spread(const void *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
}

static inline void dots_store_16(void *out, vf x)
{
    _mm256_storeu_si256(out, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
}

static inline void dots_store_32(void *out, vf x, vf y, int wide)
{
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7),
                  both = _mm512_packs_epi32(_mm512_cvtps_epi32(x), _mm512_cvtps_epi32(y));
    _mm512_storeu_si512(out, _mm512_permutexvar_epi64(order, both));
}

static inline vf dots_weighted(vf p, vf scale)
{
    return _mm512_maskz_mul_ps(_mm512_test_epi32_mask((__m512i)p, (__m512i)p), p, scale);
}

static inline vf dots_max_bits(vf x, vf y)
{
    return (vf)_mm512_max_epu32((__m512i)x, (__m512i)y);
}

static inline uint32_t dots_largest_bits(vf x)
{
    return _mm512_reduce_max_epu32((__m512i)x);
}

#include "device/cpu/kernels/attention/attention_dots.body.h"

static attend_form dots_form(qn_dtype dtype)
{
    switch (dtype) {
    case QN_DTYPE_BF16:
        return FORM_BF16;
    case QN_DTYPE_Q8_0:
        return FORM_Q8;
    case QN_DTYPE_Q4_0:
        return FORM_Q4;
    default:
        return FORM_F32;
    }
}

/* In attention_tiles_<set>.h: what takes the place of the loops below for BF16 pages (by_tiles). */
static int by_tiles(const attend_state *s);
static void tiles_take(attend_state *s);
static void tiles_give_back(void);
static void tiles_pack_queries(attend_state *s, const attend_tile *t, const float *const *q, float factor);
static void tiles_score(attend_state *s, const attend_tile *t, int64_t p);
static void tiles_weigh(attend_state *s, const attend_tile *t, int64_t p, int64_t n_pages);

static void dots_begin(attend_state *s)
{
    if (by_tiles(s)) tiles_take(s);
}

static void dots_end(const attend_state *s)
{
    if (by_tiles(s)) tiles_give_back();
}

static void dots_pack_queries(attend_state *s, const attend_tile *t, const float *const *q, float factor)
{
    if (by_tiles(s)) {
        tiles_pack_queries(s, t, q, factor);
        return;
    }
    const int64_t dim = s->q_dim, padded = dots_query_dim(s);
    uint32_t *out = (uint32_t *)s->q + t->first * padded / 2;
    const vf f = v_set1(factor);
    if (of_integers(s->form)) {
        for (int64_t j = 0; j < t->n; j++) dots_pack_integers(s, t, j, q[j], factor);
        return;
    }
    for (int64_t d = 0; d < padded; d += 32, out += 16 * t->n) {
        const int64_t n_pairs = padded - d < 32 ? (padded - d) / 2 : 16;
        uint32_t pairs[16];
        vf x[8];
        for (int64_t j = 0; j < t->n; j++)
            x[j] = (vf)_mm512_cvtne2ps_pbh(v_mul(dots_part(q[j], d + 16, dim), f),
                                           v_mul(dots_part(q[j], d, dim), f));
        if (t->n == 8 && n_pairs == 16) {
            interleave(x, 8);
            for (int j = 0; j < 8; j++) v_store((float *)out + 16 * j, x[j]);
            continue;
        }
        for (int64_t j = 0; j < t->n; j++) {
            v_store((float *)pairs, x[j]);
            for (int64_t k = 0; k < n_pairs; k++) out[k * t->n + j] = pairs[k];
        }
    }
}

static void dots_score(attend_state *s, const attend_tile *t, int64_t p, tile_ahead next)
{
    if (by_tiles(s))
        tiles_score(s, t, p);
    else
        dots_score_any(s, t, p, next);
}

/* Pairs of positions [from, to) of the tile's page at p to out, with zeros in place of what lies outside of
 * [lo, hi); whether what remains is all finite. */
static int dots_copy_pairs(const attend_state *s, const attend_tile *tile, int64_t p, int64_t from,
                           int64_t to, int64_t lo, int64_t hi, char *out)
{
    const char *page = v_of(s, tile, p);
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 odd = 0;
    for (int64_t k = from; k < to; k++) {
        int64_t t = p + 2 * k;
        uint32_t seen = (t >= lo && t < hi ? 0xffffu : 0) | (t + 1 >= lo && t + 1 < hi ? 0xffff0000u : 0);
        for (int64_t i = 0; i < s->v_pad; i += 16) {
            int64_t at = (k * s->v_pad + i) * 4;
            __m512i x = _mm512_and_si512(_mm512_loadu_si512(page + at), _mm512_set1_epi32((int)seen));
            odd |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
            _mm512_storeu_si512(out + at - from * s->v_pad * 4, x);
        }
    }
    return !odd;
}

static void dots_open_values(attend_state *s, const attend_tile *t)
{
    const int64_t from = t->from - t->group, to = t->to - t->group;
    if (of_integers(s->form)) {
        dots_open_integers(s, t);
        return;
    }
    for (int64_t i = 0; i < t->n; i++) {
        const float *p = s->scores + (t->slot + i) * QN_ATTN_SCORES;
        uint16_t *out = s->p16 + (t->slot + i) * p16_row(s);
        for (int64_t j = from; j < to; j += 32)
            _mm512_storeu_si512(out + j, (__m512i)_mm512_cvtne2ps_pbh(v_load(p + j + 16), v_load(p + j)));
    }
}

static void dots_weigh_pieces(attend_state *s, const attend_tile *t, dots_values *w)
{
    if (w->n_pieces) dots_weigh_any(w, 0, s->v_pad / 16, 0, t->n, FORM_BF16);
    w->add |= w->n_pieces > 0;
    w->n_pieces = 0;
}

/* Pairs of positions [from, to) of the page at p, pair of row and head by pair: for each what it sees. */
static void dots_weigh_apart(attend_state *s, const attend_tile *t, int64_t p, int64_t from, int64_t to,
                             dots_values *w)
{
    attend_tile one = *t;
    dots_values x = *w;
    for (one.n = 1; one.first < t->first + t->n; one.first++, one.slot++, x.sums += s->v_pad) {
        dots_copy_pairs(s, t, p, from, to, s->lo[one.first], s->hi[one.first], (char *)s->edge);
        dots_add_piece(&x, s, &one, p, from, to, (const char *)s->edge);
        x.add = w->add;
        dots_weigh_pieces(s, &one, &x);
    }
    w->add = 1;
}

/* A page of BF16 that not all pairs of row and head see whole: of its pairs of positions some of them look at
 * [from, to), all at [begin, end), and the rest is copied. The rows of a tile are at most 7 positions apart,
 * so what is copied of all pages of a group has room in one page. */
static void dots_add_edge(attend_state *s, const attend_tile *t, int64_t p, dots_values *w, int64_t *copied)
{
    const int64_t row = s->v_pad * 4, *lo = s->lo + t->first, *hi = s->hi + t->first, last = t->n - 1;
    const int64_t from = lo[0] > p ? (lo[0] - p) / 2 : 0, to = (looked_at(s, t, p) + 1) / 2;
    int64_t begin = lo[last] > p ? (lo[last] - p + 1) / 2 : 0,
            end = hi[0] < p + QN_PAGE_TOKENS ? (hi[0] - p) / 2 : QN_PAGE_TOKENS / 2;
    if (begin >= end || begin > to) begin = end = to;
    char *low = (char *)s->edge + *copied * row, *high = low + (begin - from) * row;
    if (!dots_copy_pairs(s, t, p, from, begin, lo[0], hi[last], low) ||
        !dots_copy_pairs(s, t, p, end, to, lo[0], hi[last], high)) {
        dots_weigh_pieces(s, t, w);
        dots_weigh_apart(s, t, p, from, to, w);
        *copied = 0;
        return;
    }
    *copied += begin - from + to - end;
    dots_add_piece(w, s, t, p, from, begin, low);
    dots_add_piece(w, s, t, p, begin, end, v_of(s, t, p) + begin * row);
    dots_add_piece(w, s, t, p, end, to, high);
}

static void dots_weigh(attend_state *s, const attend_tile *t, int64_t p, int64_t n_pages, tile_ahead next)
{
    if (by_tiles(s)) {
        tiles_weigh(s, t, p, n_pages);
        return;
    }
    if (of_integers(s->form)) {
        dots_weigh_integers(s, t, p, n_pages, next);
        return;
    }
    const int64_t to = p + n_pages * QN_PAGE_TOKENS;
    int64_t copied = 0;
    dots_values w;
    dots_begin_values(&w, s, t, p, next);
    for (; p < to; p += QN_PAGE_TOKENS) {
        if (sees_whole(s, t, p))
            dots_add_piece(&w, s, t, p, 0, QN_PAGE_TOKENS / 2, v_of(s, t, p));
        else
            dots_add_edge(s, t, p, &w, &copied);
    }
    dots_weigh_pieces(s, t, &w);
}

#endif
