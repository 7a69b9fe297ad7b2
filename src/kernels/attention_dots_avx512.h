/* Attention in 16-bit operands: vdpbf16ps for BF16 pages, vpdpwssd for Q8_0 pages whose bytes are widened as
 * they are loaded. Both add two products to each of 16 lanes, one instruction a cycle, so one loop serves
 * both.
 *
 * BF16: q (with its factor) and p are rounded to bf16; a chain adds pairs of dimensions, or of positions, in
 * rising order.
 * Q8_0: q becomes 15 bits and one scale; a block of 32 dimensions is an exact integer, which is added times
 * the key's scale in rising order. p times the values' scales becomes 15 bits and one scale for each block of
 * 32 dimensions and group; the sum over the group is an exact integer. */
#ifndef QN_KERNELS_ATTENTION_DOTS_AVX512_H
#define QN_KERNELS_ATTENTION_DOTS_AVX512_H

static attend_form dots_form(qn_dtype dtype)
{
    return dtype == QN_DTYPE_BF16 ? FORM_BF16 : dtype == QN_DTYPE_Q8_0 ? FORM_Q8 : FORM_F32;
}

/* Dimensions of a packed query: pairs for BF16, blocks for Q8_0. */
static inline int64_t dots_query_dim(const attend_state *s)
{
    int64_t d = s->a->kv.head_dim;
    return s->form == FORM_Q8 ? qn_kv_blocks(d) * QN_KV_BLOCK : (d + 1) / 2 * 2;
}

static inline uint32_t *dots_query(const attend_state *s, int64_t i)
{
    return (uint32_t *)s->q + i / V_TILE_ROWS * V_TILE_ROWS * dots_query_dim(s) / 2 + i % V_TILE_ROWS;
}

static void dots_pack_query(attend_state *s, int64_t i, const float *q, float factor)
{
    const int64_t dim = s->a->kv.head_dim, padded = dots_query_dim(s);
    uint32_t *out = dots_query(s, i), pairs[8];
    float inverse = 0;
    if (s->form == FORM_Q8) {
        vf largest = v_set1(0), odd = v_set1(0);
        for (int64_t d = 0; d < dim; d += 16) {
            vf x = v_load_n(q + d, dim - d < 16 ? (int)(dim - d) : 16);
            largest = v_max(largest, v_abs(x));
            odd = v_fma(x, v_set1(0), odd);
        }
        float most = v_any(v_is_nan(odd)) ? NAN : v_largest(largest);
        inverse = most > 0 ? 32767.0f / most : 0;
        s->q_scale[i] = most * factor * (1.0f / 32767);
    }
    for (int64_t d = 0; d < padded; d += 16) {
        int n = dim - d < 16 ? (int)(dim - d) : 16;
        vf x = n > 0 ? v_load_n(q + d, n) : v_set1(0);
        if (s->form == FORM_Q8) {
            __m512i y = _mm512_cvtps_epi32(v_mul(x, v_set1(inverse)));
            _mm256_storeu_si256((void *)pairs, _mm512_cvtsepi32_epi16(y));
        } else {
            v_store_bf16((uint16_t *)pairs, v_mul(x, v_set1(factor)));
        }
        for (int64_t j = 0; j < 8 && d + 2 * j < padded; j++) out[(d / 2 + j) * V_TILE_ROWS] = pairs[j];
    }
}

static inline const uint16_t *dots_scales(const char *page, int64_t padded)
{
    return (const uint16_t *)(page + padded * QN_PAGE_TOKENS);
}

static void dots_open_group(attend_state *s, int64_t group, int64_t begin, int64_t end)
{
    for (int64_t p = begin / QN_PAGE_TOKENS * QN_PAGE_TOKENS; p < end; p += QN_PAGE_TOKENS) {
        const uint16_t *scales = dots_scales(s->v[page_of(group, p)], s->v_pad);
        for (int64_t b = 0; b < s->v_pad / QN_KV_BLOCK; b++)
            for (int t = 0; t < QN_PAGE_TOKENS; t += 16)
                v_store(s->v_scale + b * QN_ATTN_GROUP + (p - group) + t,
                        v_load_f16(scales + b * QN_PAGE_TOKENS + t));
    }
}

static inline __m512i dots_load(const char *p, int q8)
{
    return q8 ? _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)p)) : _mm512_loadu_si512(p);
}

static inline __m512i dots_add(__m512i sum, __m512i b, uint32_t a, int q8)
{
    __m512i x = _mm512_set1_epi32((int)a);
    return q8 ? _mm512_dpwssd_epi32(sum, x, b)
              : (__m512i)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)b);
}

/* ---- scores ------------------------------------------------------------------------------------------- */

/* One page: rows and q8 are constants wherever this is expanded. Tiles of few rows fetch `next` meanwhile. */
static inline __attribute__((always_inline)) void
dots_score_page(const attend_state *s, const attend_tile *t, int64_t p, const char *next, int rows, int q8)
{
    const char *b = s->k[page_of(t->group, p)];
    const int64_t padded = dots_query_dim(s), step = q8 ? QN_KV_BLOCK / 2 : padded / 2, bytes = q8 ? 64 : 128;
    const uint16_t *scales = dots_scales(b, padded);
    const uint32_t *a = (const uint32_t *)s->q + t->first * padded / 2;
    float *c = s->scores + (p - t->group);
    __m512i sum[8][2];
    vf total[8][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        sum[r][0] = sum[r][1] = _mm512_setzero_si512();
        total[r][0] = total[r][1] = v_set1(0);
    }
    for (int64_t from = 0; from < padded / 2; from += step) {
        for (int64_t k = from; k < from + step; k++) {
            __m512i x = dots_load(b + k * bytes, q8), y = dots_load(b + k * bytes + bytes / 2, q8);
            if (rows <= 4) fetch(next, k * bytes);
            if (rows <= 4 && !q8) fetch(next, k * bytes + 64);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                sum[r][0] = dots_add(sum[r][0], x, a[k * V_TILE_ROWS + r], q8);
                sum[r][1] = dots_add(sum[r][1], y, a[k * V_TILE_ROWS + r], q8);
            }
        }
        if (!q8) break;
        const uint16_t *scale = scales + from / step * QN_PAGE_TOKENS;
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
        vf scale = q8 ? v_set1(s->q_scale[t->first + r]) : v_set1(1);
        v_store(c + r * QN_ATTN_SCORES, q8 ? v_mul(total[r][0], scale) : (__m512)sum[r][0]);
        v_store(c + r * QN_ATTN_SCORES + 16, q8 ? v_mul(total[r][1], scale) : (__m512)sum[r][1]);
    }
}

static inline __attribute__((always_inline)) void dots_score_rows(attend_state *s, const attend_tile *t,
                                                                  int rows)
{
    for (int64_t p = t->from; p < t->to; p += QN_PAGE_TOKENS) {
        const char *next =
            p + QN_PAGE_TOKENS < t->to ? s->k[page_of(t->group, p) + 1] : s->v[page_of(t->group, t->from)];
        if (s->form == FORM_Q8)
            dots_score_page(s, t, p, next, rows, 1);
        else
            dots_score_page(s, t, p, next, rows, 0);
    }
}

static void dots_score(attend_state *s, const attend_tile *t)
{
    switch (t->n) {
    case 1:
        dots_score_rows(s, t, 1);
        break;
    case 2:
        dots_score_rows(s, t, 2);
        break;
    case 3:
        dots_score_rows(s, t, 3);
        break;
    case 4:
        dots_score_rows(s, t, 4);
        break;
    case 5:
        dots_score_rows(s, t, 5);
        break;
    case 6:
        dots_score_rows(s, t, 6);
        break;
    case 7:
        dots_score_rows(s, t, 7);
        break;
    default:
        dots_score_rows(s, t, 8);
    }
}

/* ---- values ------------------------------------------------------------------------------------------- */

/* Columns [column, column + 16 vecs) of pages [from, to), which become sums, or are added to them (BF16 only,
 * where a chain is interrupted for a page's copy). */
typedef struct {
    const char *const *pages;
    int64_t n_pages, row_bytes; /* of a pair of positions */
    const uint16_t *p;          /* of the first page, [pair of the tile][QN_ATTN_SCORES] */
    float *sums;
    int64_t sums_row;
    const float *p_scale; /* Q8_0 */
    const char *next;     /* after the last page, or NULL */
    int add;
} dots_values;

static inline __attribute__((always_inline)) void dots_weigh_run(const dots_values *w, int64_t column,
                                                                 int rows, int vecs, int q8)
{
    const int64_t bytes = q8 ? 32 : 64;
    __m512i sum[8][4], b[4];
    float *c = w->sums + column;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) {
            sum[r][v] = _mm512_setzero_si512();
            if (!q8 && w->add) sum[r][v] = (__m512i)v_load(c + r * w->sums_row + 16 * v);
        }
    }
    for (int64_t i = 0; i < w->n_pages; i++) {
        const char *page = w->pages[i] + column / 16 * bytes;
        const char *next = i + 1 < w->n_pages ? w->pages[i + 1] : w->next ? w->next : page;
        const uint16_t *p = w->p + i * QN_PAGE_TOKENS;
        for (int64_t k = 0; k < QN_PAGE_TOKENS / 2; k++) {
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++) {
                b[v] = dots_load(page + k * w->row_bytes + v * bytes, q8);
                if (rows <= 4 && (!q8 || v % 2 == 0))
                    fetch(next, column / 16 * bytes + k * w->row_bytes + v * bytes);
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                uint32_t a;
                memcpy(&a, p + r * QN_ATTN_SCORES + 2 * k, sizeof a);
#pragma GCC unroll 4
                for (int v = 0; v < vecs; v++) sum[r][v] = dots_add(sum[r][v], b[v], a, q8);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        vf scale = q8 ? v_set1(w->p_scale[r]) : v_set1(1);
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            v_store(c + r * w->sums_row + 16 * v,
                    q8 ? v_mul(_mm512_cvtepi32_ps(sum[r][v]), scale) : (__m512)sum[r][v]);
    }
}

/* n_vecs vectors of 16 columns; for Q8_0 one block. */
static inline __attribute__((always_inline)) void dots_weigh_rows(const dots_values *w, int64_t column,
                                                                  int64_t n_vecs, int rows, int q8)
{
    int64_t v = 0;
    if (!q8 && rows <= 4) {
        for (; v + 4 <= n_vecs; v += 4) dots_weigh_run(w, column + 16 * v, rows, 4, 0);
    }
    for (; v + 2 <= n_vecs; v += 2) dots_weigh_run(w, column + 16 * v, rows, 2, q8);
    if (!q8 && v < n_vecs) dots_weigh_run(w, column + 16 * v, rows, 1, 0);
}

static inline void dots_weigh_form(const dots_values *w, int64_t column, int64_t n_vecs, int rows, int q8)
{
    if (q8)
        dots_weigh_rows(w, column, n_vecs, rows, 1);
    else
        dots_weigh_rows(w, column, n_vecs, rows, 0);
}

static void dots_weigh_any(const dots_values *w, int64_t column, int64_t n_vecs, int64_t rows, int q8)
{
    switch (rows) {
    case 1:
        dots_weigh_form(w, column, n_vecs, 1, q8);
        break;
    case 2:
        dots_weigh_form(w, column, n_vecs, 2, q8);
        break;
    case 3:
        dots_weigh_form(w, column, n_vecs, 3, q8);
        break;
    case 4:
        dots_weigh_form(w, column, n_vecs, 4, q8);
        break;
    case 5:
        dots_weigh_form(w, column, n_vecs, 5, q8);
        break;
    case 6:
        dots_weigh_form(w, column, n_vecs, 6, q8);
        break;
    case 7:
        dots_weigh_form(w, column, n_vecs, 7, q8);
        break;
    default:
        dots_weigh_form(w, column, n_vecs, 8, q8);
    }
}

/* copy_edge for pages of pairs of bf16. */
static int dots_copy_edge(attend_state *s, int64_t group, int64_t p, int64_t lo, int64_t hi)
{
    const char *page = s->v[page_of(group, p)];
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 odd = 0;
    for (int64_t t = 0; t < QN_PAGE_TOKENS; t += 2) {
        uint32_t seen =
            (p + t >= lo && p + t < hi ? 0xffffu : 0) | (p + t + 1 >= lo && p + t + 1 < hi ? 0xffff0000u : 0);
        for (int64_t i = 0; i < s->v_pad; i += 16) {
            int64_t at = (t / 2 * s->v_pad + i) * 4;
            __m512i x = _mm512_and_si512(_mm512_loadu_si512(page + at), _mm512_set1_epi32((int)seen));
            odd |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
            _mm512_storeu_si512((char *)s->edge + at, x);
        }
    }
    return !odd;
}

static void weigh_bf16(attend_state *s, const attend_tile *t, const char *next)
{
    const int64_t *lo = s->lo + t->first, *hi = s->hi + t->first, last = t->n - 1;
    for (int64_t i = 0; i < t->n; i++) {
        const float *p = s->scores + i * QN_ATTN_SCORES;
        uint16_t *out = s->p16 + i * QN_ATTN_SCORES;
        for (int64_t j = t->from - t->group; j < t->to - t->group; j += 32)
            _mm512_storeu_si512(out + j, (__m512i)_mm512_cvtne2ps_pbh(v_load(p + j + 16), v_load(p + j)));
    }
    dots_values w = {.row_bytes = s->v_pad * 4, .sums = s->sums, .sums_row = s->v_pad};
    const char *edge = (const char *)s->edge;
    for (int64_t p = t->from; p < t->to; p += w.n_pages * QN_PAGE_TOKENS) {
        int64_t whole = 0;
        while (p + whole * QN_PAGE_TOKENS >= lo[last] && p + (whole + 1) * QN_PAGE_TOKENS <= hi[0] &&
               p + whole * QN_PAGE_TOKENS < t->to)
            whole++;
        w.add = p != t->from;
        w.p = s->p16 + (p - t->group);
        w.n_pages = whole ? whole : 1;
        int64_t after = p + w.n_pages * QN_PAGE_TOKENS;
        w.next = after < t->to ? s->v[page_of(t->group, after)] : next;
        w.pages = whole ? &s->v[page_of(t->group, p)] : &edge;
        if (whole || dots_copy_edge(s, t->group, p, lo[0], hi[last])) {
            dots_weigh_any(&w, 0, s->v_pad / 16, t->n, 0);
            continue;
        }
        dots_values one = w;
        for (int64_t r = 0; r <= last; r++, one.sums += s->v_pad, one.p += QN_ATTN_SCORES) {
            dots_copy_edge(s, t->group, p, lo[r], hi[r]);
            dots_weigh_any(&one, 0, s->v_pad / 16, 1, 0);
        }
    }
}

/* p times a value's scale; 0 where p is 0, whatever the scale: nothing was written there perhaps. */
static inline vf dots_product(vf p, vf scale)
{
    return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(p, v_set1(0), _CMP_NEQ_UQ), p, scale);
}

/* p times the scales of a block of values, as 15 bits and a scale. */
static void dots_pack_probabilities(const float *p, const float *v_scale, int64_t from, int64_t to,
                                    uint16_t *out, float *scale)
{
    vf largest = v_set1(0), odd = v_set1(0);
    for (int64_t j = from; j < to; j += 16) {
        vf x = dots_product(v_load(p + j), v_load(v_scale + j));
        largest = v_max(largest, x);
        odd = v_fma(x, v_set1(0), odd);
    }
    float most = v_any(v_is_nan(odd)) ? NAN : v_largest(largest);
    vf inverse = v_set1(most > 0 ? 32767.0f / most : 0);
    *scale = most * (1.0f / 32767);
    for (int64_t j = from; j < to; j += 32) {
        __m512i x = _mm512_cvtps_epi32(v_mul(dots_product(v_load(p + j), v_load(v_scale + j)), inverse));
        __m512i y =
            _mm512_cvtps_epi32(v_mul(dots_product(v_load(p + j + 16), v_load(v_scale + j + 16)), inverse));
        __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtsepi32_epi16(x)),
                                          _mm512_cvtsepi32_epi16(y), 1);
        _mm512_storeu_si512(out + j, both);
    }
}

static void weigh_q8(attend_state *s, const attend_tile *t, const char *next)
{
    dots_values w = {.pages = &s->v[page_of(t->group, t->from)],
                     .n_pages = (t->to - t->from) / QN_PAGE_TOKENS,
                     .row_bytes = s->v_pad * 2,
                     .sums = s->sums,
                     .sums_row = s->v_pad,
                     .p_scale = s->p_scale,
                     .next = next};
    for (int64_t b = 0; b < s->v_pad / QN_KV_BLOCK; b++) {
        for (int64_t i = 0; i < t->n; i++)
            dots_pack_probabilities(s->scores + i * QN_ATTN_SCORES, s->v_scale + b * QN_ATTN_GROUP,
                                    t->from - t->group, t->to - t->group, s->p16 + i * QN_ATTN_SCORES,
                                    &s->p_scale[i]);
        w.p = s->p16 + (t->from - t->group);
        dots_weigh_any(&w, b * QN_KV_BLOCK, QN_KV_BLOCK / 16, t->n, 1);
    }
}

static void dots_weigh(attend_state *s, const attend_tile *t, const char *next)
{
    if (s->form == FORM_Q8)
        weigh_q8(s, t, next);
    else
        weigh_bf16(s, t, next);
}

#endif
