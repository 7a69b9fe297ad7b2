/* Attention in 16-bit operands: vdpbf16ps for BF16 pages, vpdpwssd for Q8_0 and Q4_0 pages whose bytes are
 * widened as they are loaded, those of Q4_0 to two operands. Both instructions add two products to each of 16
 * lanes, one a cycle, so one loop serves all.
 *
 * BF16: q (with its factor) and p are rounded to bf16; a chain adds pairs of dimensions, or of positions, in
 * rising order.
 * Q8_0: q becomes 15 bits and one scale; a block of 32 dimensions is an exact integer, which is added times
 * the key's scale in rising order. p times the values' scales becomes 15 bits and one scale for each block of
 * 32 dimensions and group; the sum over the group is an exact integer.
 * Q4_0: as Q8_0, of 16 times the numbers: so the upper one of a byte needs a mask alone. */
#ifndef QN_KERNELS_ATTENTION_DOTS_AVX512_H
#define QN_KERNELS_ATTENTION_DOTS_AVX512_H

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

/* Dimensions of a packed query: pairs for BF16, else blocks. */
static inline int64_t dots_query_dim(const attend_state *s)
{
    int64_t d = s->a->kv.head_dim;
    return of_integers(s->form) ? qn_kv_blocks(d) * QN_KV_BLOCK : (d + 1) / 2 * 2;
}

/* What 1 of the operands that pages are widened to stands for, of a block's scale. */
static inline float dots_unit(attend_form form)
{
    return form == FORM_Q4 ? 1.0f / 16 : 1.0f;
}

/* 16 of n_all dimensions, those from d on: 0 behind the last one. */
static inline vf dots_part(const float *q, int64_t d, int64_t n_all)
{
    return n_all - d >= 16 ? v_load(q + d) : n_all > d ? v_load_n(q + d, (int)(n_all - d)) : v_set1(0);
}

static void dots_pack_integers(attend_state *s, const attend_tile *t, int64_t row, const float *q,
                               float factor)
{
    const int64_t dim = s->q_dim, padded = dots_query_dim(s);
    uint32_t *out = (uint32_t *)s->q + t->first * padded / 2 + row, pairs[8];
    vf largest = v_set1(0), odd = v_set1(0);
    for (int64_t d = 0; d < dim; d += 16) {
        vf x = dots_part(q, d, dim);
        largest = v_max(largest, v_abs(x));
        odd = v_fma(x, v_set1(0), odd);
    }
    float most = v_any(v_is_nan(odd)) ? NAN : v_largest(largest), inverse = most > 0 ? 32767.0f / most : 0;
    s->q_scale[t->first + row] = most * factor * (dots_unit(s->form) / 32767);
    for (int64_t d = 0; d < padded; d += 16) {
        __m512i y = _mm512_cvtps_epi32(v_mul(dots_part(q, d, dim), v_set1(inverse)));
        _mm256_storeu_si256((void *)pairs, _mm512_cvtsepi32_epi16(y));
        for (int64_t j = 0; j < 8; j++) out[(d / 2 + j) * t->n] = pairs[j];
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

static inline const uint16_t *dots_scales(const char *page, int64_t padded, attend_form form)
{
    return (const uint16_t *)(page + padded * QN_PAGE_TOKENS / (form == FORM_Q4 ? 2 : 1));
}

/* Bytes of a vector of operands in a page. */
static inline int dots_bytes(attend_form form)
{
    return form == FORM_BF16 ? 64 : form == FORM_Q8 ? 32 : 16;
}

/* One vector of operands; two of FORM_Q4. form is a constant wherever this is expanded. */
static inline __attribute__((always_inline)) void dots_load(const char *p, attend_form form, __m512i *b)
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
static inline __m512i dots_add(__m512i sum, __m512i b, uint32_t a, attend_form form)
{
    __m512i x = _mm512_set1_epi32((int)a);
    sum = of_integers(form) ? _mm512_dpwssd_epi32(sum, x, b)
                            : (__m512i)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)b);
    __asm__("" : "+v"(sum));
    return sum;
}

/* ---- scores ------------------------------------------------------------------------------------------- */

/* rows and form are constants wherever this is expanded. Scales of the page's values are fetched, too: they
 * are read before the values. */
static inline __attribute__((always_inline)) void dots_score_page(const attend_state *s, const attend_tile *t,
                                                                  int64_t p, tile_ahead next, int rows,
                                                                  attend_form form)
{
    const char *page = k_of(s, t, p);
    const int with_scales = of_integers(form), halves = form == FORM_Q4 ? 2 : 1;
    const int64_t padded = dots_query_dim(s),
                  bytes = 2 * dots_bytes(form) * halves;             /* of a row of the page */
    const int64_t step = with_scales ? QN_KV_BLOCK / 2 : padded / 2; /* pairs of dimensions */
    const uint16_t *scales = dots_scales(page, padded, form);
    const uint32_t *a = (const uint32_t *)s->q + t->first * padded / 2;
    float *c = s->scores + t->slot * QN_ATTN_SCORES + (p - t->group);
    __m512i sum[8][2];
    vf total[8][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        sum[r][0] = sum[r][1] = _mm512_setzero_si512();
        total[r][0] = total[r][1] = v_set1(0);
    }
    next = ahead_or(next, page);
    for (int64_t from = 0; with_scales && from < s->v_pad / QN_KV_BLOCK; from++)
        fetch_line((const char *)dots_scales(v_of(s, t, p), s->v_pad, form), from * QN_PAGE_TOKENS * 2);
    for (int64_t from = 0; from < padded / 2; from += step) {
        for (int64_t k = 0; k < step / halves; k++) {
            const int64_t at = (from / halves + k) * bytes;
            const uint32_t *pairs = a + (from + k) * rows;
            __m512i x[2], y[2];
            dots_load(page + at, form, x);
            dots_load(page + at + bytes / 2, form, y);
            fetch(next, at);
            if (!with_scales) fetch(next, at + 64);
#pragma GCC unroll 2
            for (int h = 0; h < halves; h++, pairs += step / 2 * rows) {
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++) {
                    sum[r][0] = dots_add(sum[r][0], x[h], pairs[r], form);
                    sum[r][1] = dots_add(sum[r][1], y[h], pairs[r], form);
                }
            }
        }
        if (!with_scales) break;
        const uint16_t *scale = scales + from / step * QN_PAGE_TOKENS;
        fetch(next, bytes / halves * padded / 2 + from / step * QN_PAGE_TOKENS * 2);
        vf x = v_load_f16(scale), y = v_load_f16(scale + 16);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            total[r][0] = v_fma(_mm512_cvtepi32_ps(sum[r][0]), x, total[r][0]);
            total[r][1] = v_fma(_mm512_cvtepi32_ps(sum[r][1]), y, total[r][1]);
            sum[r][0] = sum[r][1] = _mm512_setzero_si512();
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        vf scale = with_scales ? v_set1(s->q_scale[t->first + r]) : v_set1(1);
        v_store(c + r * QN_ATTN_SCORES, with_scales ? v_mul(total[r][0], scale) : (__m512)sum[r][0]);
        v_store(c + r * QN_ATTN_SCORES + 16, with_scales ? v_mul(total[r][1], scale) : (__m512)sum[r][1]);
    }
}

static inline __attribute__((always_inline)) void dots_score_form(const attend_state *s, const attend_tile *t,
                                                                  int64_t p, tile_ahead next, int rows)
{
    if (s->form == FORM_BF16)
        dots_score_page(s, t, p, next, rows, FORM_BF16);
    else if (s->form == FORM_Q8)
        dots_score_page(s, t, p, next, rows, FORM_Q8);
    else
        dots_score_page(s, t, p, next, rows, FORM_Q4);
}

static void dots_score(attend_state *s, const attend_tile *t, int64_t p, tile_ahead next)
{
    if (by_tiles(s)) {
        tiles_score(s, t, p);
        return;
    }
    switch (t->n) {
    case 1:
        dots_score_form(s, t, p, next, 1);
        break;
    case 2:
        dots_score_form(s, t, p, next, 2);
        break;
    case 3:
        dots_score_form(s, t, p, next, 3);
        break;
    case 4:
        dots_score_form(s, t, p, next, 4);
        break;
    case 5:
        dots_score_form(s, t, p, next, 5);
        break;
    case 6:
        dots_score_form(s, t, p, next, 6);
        break;
    case 7:
        dots_score_form(s, t, p, next, 7);
        break;
    default:
        dots_score_form(s, t, p, next, 8);
    }
}

/* ---- values ------------------------------------------------------------------------------------------- */

/* n_k pairs of positions of a page, from v and p on. */
typedef struct {
    const char *v;
    const uint16_t *p; /* of the tile's first pair of row and head */
    int64_t n_k;
} dots_piece;

/* A page may be cut in three; the ends of what rows see lie in two pages at most on each side. */
enum { DOTS_PIECES = QN_ATTN_PAGES + 4 };

/* Columns [column, column + 16 vecs) of some pieces, which become sums, or are added to them. */
typedef struct {
    dots_piece pieces[DOTS_PIECES];
    int64_t n_pieces, row_bytes; /* of a pair of positions */
    int64_t p_row;
    float *sums; /* or integers */
    int64_t sums_row;
    tile_ahead next; /* after the last piece */
    int add;
} dots_values;

static inline __attribute__((always_inline)) void
dots_weigh_run(const dots_values *w, int64_t column, int64_t p_offset, int rows, int vecs, attend_form form)
{
    const int64_t bytes = dots_bytes(form), at = column / 16 * bytes, row_bytes = w->row_bytes,
                  p_row = w->p_row, sums_row = w->sums_row;
    __m512i sum[8][4], b[4];
    float *c = w->sums + column;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            sum[r][v] = w->add ? (__m512i)v_load(c + r * sums_row + 16 * v) : _mm512_setzero_si512();
    }
    for (int64_t i = 0; i < w->n_pieces; i++) {
        const dots_piece *piece = &w->pieces[i];
        const char *page = piece->v + at;
        const tile_ahead after = i + 1 < w->n_pieces ? (tile_ahead){piece[1].v, piece[1].v} : w->next,
                         next = {after.far + at, after.near + at};
        const uint16_t *p = piece->p + p_offset;
        const int64_t n_k = piece->n_k;
        if (of_integers(form)) fetch(next, QN_PAGE_TOKENS / 2 * row_bytes - at + column * 2);
        for (int64_t k = 0; k < n_k; k++) {
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v += form == FORM_Q4 ? 2 : 1) {
                dots_load(page + k * row_bytes + v * bytes, form, b + v);
                if (form == FORM_BF16 || v % 2 == 0) fetch(next, k * row_bytes + v * bytes);
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                uint32_t a;
                memcpy(&a, p + r * p_row + 2 * k, sizeof a);
#pragma GCC unroll 4
                for (int v = 0; v < vecs; v++) sum[r][v] = dots_add(sum[r][v], b[v], a, form);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) v_store(c + r * sums_row + 16 * v, (__m512)sum[r][v]);
    }
}

/* n_vecs vectors of 16 columns; of integers one block. */
static inline __attribute__((always_inline)) void dots_weigh_rows(const dots_values *w, int64_t column,
                                                                  int64_t n_vecs, int64_t p_offset, int rows,
                                                                  attend_form form)
{
    int64_t v = 0;
    if (form == FORM_BF16 && rows <= 4) {
        for (; v + 4 <= n_vecs; v += 4) dots_weigh_run(w, column + 16 * v, p_offset, rows, 4, FORM_BF16);
    }
    for (; v + 2 <= n_vecs; v += 2) dots_weigh_run(w, column + 16 * v, p_offset, rows, 2, form);
    if (form == FORM_BF16 && v < n_vecs) dots_weigh_run(w, column + 16 * v, p_offset, rows, 1, FORM_BF16);
}

static inline __attribute__((always_inline)) void dots_weigh_form(const dots_values *w, int64_t column,
                                                                  int64_t n_vecs, int64_t p_offset, int rows,
                                                                  attend_form form)
{
    if (form == FORM_BF16)
        dots_weigh_rows(w, column, n_vecs, p_offset, rows, FORM_BF16);
    else if (form == FORM_Q8)
        dots_weigh_rows(w, column, n_vecs, p_offset, rows, FORM_Q8);
    else
        dots_weigh_rows(w, column, n_vecs, p_offset, rows, FORM_Q4);
}

/* p_offset: from a piece's p on, of this block of integers. */
static void dots_weigh_any(const dots_values *w, int64_t column, int64_t n_vecs, int64_t p_offset,
                           int64_t rows, attend_form form)
{
    switch (rows) {
    case 1:
        dots_weigh_form(w, column, n_vecs, p_offset, 1, form);
        break;
    case 2:
        dots_weigh_form(w, column, n_vecs, p_offset, 2, form);
        break;
    case 3:
        dots_weigh_form(w, column, n_vecs, p_offset, 3, form);
        break;
    case 4:
        dots_weigh_form(w, column, n_vecs, p_offset, 4, form);
        break;
    case 5:
        dots_weigh_form(w, column, n_vecs, p_offset, 5, form);
        break;
    case 6:
        dots_weigh_form(w, column, n_vecs, p_offset, 6, form);
        break;
    case 7:
        dots_weigh_form(w, column, n_vecs, p_offset, 7, form);
        break;
    default:
        dots_weigh_form(w, column, n_vecs, p_offset, 8, form);
    }
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

/* p times the scales of a block of values, as 15 bits and a scale. 0 where p is 0, whatever the scale:
 * nothing was written there perhaps. Without their signs (scales of Q4_0 have both) the largest bits are
 * those of the largest number, NaN being above all. */
static void dots_pack_probabilities(const float *p, const float *v_scale, int64_t from, int64_t to,
                                    uint16_t *out, float *scale, float unit)
{
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    float products[QN_ATTN_GROUP];
    __m512i largest = _mm512_setzero_si512();
    for (int64_t j = from; j < to; j += 16) {
        vf x = v_load(p + j);
        x = _mm512_maskz_mul_ps(_mm512_test_epi32_mask((__m512i)x, (__m512i)x), x, v_load(v_scale + j));
        v_store(products + j, x);
        largest = _mm512_max_epu32(largest, (__m512i)v_abs(x));
    }
    uint32_t bits = _mm512_reduce_max_epu32(largest);
    float most = NAN;
    if (bits < 0x7f800000) memcpy(&most, &bits, sizeof most);
    vf inverse = v_set1(most > 0 ? 32767.0f / most : 0);
    *scale = most * (unit / 32767);
    for (int64_t j = from; j < to; j += 32) {
        __m512i x = _mm512_cvtps_epi32(v_mul(v_load(products + j), inverse));
        __m512i y = _mm512_cvtps_epi32(v_mul(v_load(products + j + 16), inverse));
        _mm512_storeu_si512(out + j, _mm512_permutexvar_epi64(order, _mm512_packs_epi32(x, y)));
    }
}

static void dots_open_values(attend_state *s, const attend_tile *t)
{
    const int64_t from = t->from - t->group, to = t->to - t->group, blocks = s->v_pad / QN_KV_BLOCK;
    for (int64_t p = t->from; of_integers(s->form) && p < t->to; p += QN_PAGE_TOKENS) {
        const uint16_t *scales = dots_scales(v_of(s, t, p), s->v_pad, s->form);
        for (int64_t b = 0; b < blocks; b++)
            for (int i = 0; i < QN_PAGE_TOKENS; i += 16)
                v_store(s->v_scale + b * QN_ATTN_GROUP + (p - t->group) + i,
                        v_load_f16(scales + b * QN_PAGE_TOKENS + i));
    }
    for (int64_t i = 0; i < t->n; i++) {
        const float *p = s->scores + (t->slot + i) * QN_ATTN_SCORES;
        uint16_t *out = s->p16 + (t->slot + i) * p16_row(s);
        if (of_integers(s->form)) {
            for (int64_t b = 0; b < blocks; b++)
                dots_pack_probabilities(p, s->v_scale + b * QN_ATTN_GROUP, from, to, out + b * QN_ATTN_SCORES,
                                        &s->p_scale[(t->slot + i) * blocks + b], dots_unit(s->form));
            continue;
        }
        for (int64_t j = from; j < to; j += 32)
            _mm512_storeu_si512(out + j, (__m512i)_mm512_cvtne2ps_pbh(v_load(p + j + 16), v_load(p + j)));
    }
}

/* Pairs of positions [from, to) of the page at p, which lie at v. */
static inline void dots_add_piece(dots_values *w, const attend_state *s, const attend_tile *t, int64_t p,
                                  int64_t from, int64_t to, const char *v)
{
    const uint16_t *probabilities = s->p16 + t->slot * p16_row(s) + (p - t->group) + 2 * from;
    if (from < to) w->pieces[w->n_pieces++] = (dots_piece){v, probabilities, to - from};
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
    const int64_t n_vecs = s->v_pad / 16, to = p + n_pages * QN_PAGE_TOKENS;
    const int integers = of_integers(s->form);
    int64_t copied = 0;
    dots_values w = {.row_bytes = integers ? n_vecs * dots_bytes(s->form) : s->v_pad * 4,
                     .p_row = p16_row(s),
                     .sums = s->sums + t->slot * s->v_pad,
                     .sums_row = s->v_pad,
                     .next = ahead_or(next, v_of(s, t, p)),
                     .add = p != t->from};
    for (; p < to; p += QN_PAGE_TOKENS) {
        if (integers) /* what is not seen is an integer, whatever it is, times 0 */
            dots_add_piece(&w, s, t, p, 0, (looked_at(s, t, p) + 1) / 2, v_of(s, t, p));
        else if (sees_whole(s, t, p))
            dots_add_piece(&w, s, t, p, 0, QN_PAGE_TOKENS / 2, v_of(s, t, p));
        else
            dots_add_edge(s, t, p, &w, &copied);
    }
    for (int64_t b = 0; integers && b < n_vecs / 2; b++)
        dots_weigh_any(&w, b * QN_KV_BLOCK, QN_KV_BLOCK / 16, b * QN_ATTN_SCORES, t->n, s->form);
    if (!integers) dots_weigh_pieces(s, t, &w);
}

static void dots_close_values(attend_state *s, const attend_tile *t)
{
    const int64_t blocks = s->v_pad / QN_KV_BLOCK;
    if (!of_integers(s->form)) return;
    for (int64_t i = t->slot; i < t->slot + t->n; i++) {
        for (int64_t d = 0; d < s->v_pad; d += 16) {
            float *x = s->sums + i * s->v_pad + d;
            vf scale = v_set1(s->p_scale[i * blocks + d / QN_KV_BLOCK]);
            v_store(x, v_mul(_mm512_cvtepi32_ps((__m512i)v_load(x)), scale));
        }
    }
}

#endif
