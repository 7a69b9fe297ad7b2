/* Attention in 16-bit operands: loops of sets that add two products of them to each of 16 lanes in an
 * instruction or two, or four of 8 bits (DOTS_BYTES). Q8_0 and Q4_0: bytes are widened as they are loaded (or
 * stay as they are), those of Q4_0 to two operands. BF16 (DOTS_BF16): as they lie. One loop serves all.
 *
 * BF16: q (with its factor) and p are rounded to bf16; a chain adds pairs of dimensions, or of positions, in
 * rising order.
 * Q8_0: q becomes 15 bits and one scale; a block of 32 dimensions is an exact integer, which is added times
 * the key's scale in rising order. p times the values' scales becomes 15 bits (16: is_wide) and one scale for
 * each block of 32 dimensions and group; the sum over the group is an exact integer.
 * Q4_0: as Q8_0, of 16 times the numbers: so the upper one of a byte needs a mask alone.
 *
 * The including file (attention_dots_<set>.h) defines
 *   DOTS_BF16             whether it multiplies bf16
 *   DOTS_BYTES            whether it multiplies 16 bits as two operands of 8
 *   DOTS_ROWS, _ROWS_V4   rows at a time whose sums have room in registers; of values of Q4_0
 *   vi, va, vb            a vector of 16 sums, of one step's operands in all lanes, of a page's operands
 *   dots_vecs             vectors of sums a row, of so many rows: 1 or 2
 *   dots_zero             sums that are 0
 *   dots_load_sums        sums as
 *   dots_store_sums       left them in memory
 *   dots_to_f32           of integers
 *   dots_load             a vector of operands (two of FORM_Q4) at an address of a page, where the next
 *                         pairs of a step lie so many bytes further on
 *   dots_spread           a step's operands for all lanes
 *   dots_add              sums and the products of two vectors of operands
 *   dots_add_all          of DOTS_BYTES: sums and a vector of a page's operands
 *   dots_with_all         of DOTS_BYTES: sums and 32768 times those of dots_add_all
 *   dots_store_16, _32    numbers, rounded and cut to 16 bits, in the order that dots_spread expects
 *   dots_weighted         p times a scale, 0 where p is 0
 *   dots_max_bits         the larger of each lane as unsigned integers
 *   dots_largest_bits     of all lanes */
#ifndef QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_DOTS_BODY_H
#define QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_DOTS_BODY_H

/* Dimensions of a packed query: pairs for BF16, else blocks. */
static inline int64_t dots_query_dim(const attend_state *s)
{
    int64_t d = s->a->kv.head_dim;
    return of_integers(s->form) ? qn_kv_blocks(d) * QN_KV_BLOCK : (d + 1) / 2 * 2;
}

/* Pairs of dimensions, or of positions, that a step takes, and the largest operand of 15 bits: of two signed
 * bytes 127 * 256 + 127. */
enum { DOTS_PAIRS = DOTS_BYTES ? 2 : 1, DOTS_MOST = DOTS_BYTES ? 32639 : 32767 };

/* Whether p times the values' scales becomes 16 bits, less 32768: the sums of the values themselves, times
 * 32768, are added. Scales of Q8_0 have no sign. 15 bits of bytes are a little fewer. */
static inline int is_wide(attend_form form)
{
    return DOTS_BYTES && form == FORM_Q8;
}

#if !DOTS_BYTES
static inline vi dots_add_all(vi sum, vb b)
{
    return sum;
}

static inline vi dots_with_all(vi sum, vi all)
{
    return sum;
}
#endif

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
    uint32_t *out = (uint32_t *)s->q + t->first * padded / 2 + row * DOTS_PAIRS, pairs[8];
    vf largest = v_set1(0), odd = v_set1(0);
    for (int64_t d = 0; d < dim; d += 16) {
        vf x = dots_part(q, d, dim);
        largest = v_max(largest, v_abs(x));
        odd = v_fma(x, v_set1(0), odd);
    }
    float most = v_any(v_is_nan(odd)) ? NAN : v_largest(largest), inverse = most > 0 ? DOTS_MOST / most : 0;
    s->q_scale[t->first + row] = most * factor * (dots_unit(s->form) / DOTS_MOST);
    for (int64_t d = 0; d < padded; d += 16) {
        dots_store_16(pairs, v_mul(dots_part(q, d, dim), v_set1(inverse)));
        for (int64_t j = 0; j < 8; j += DOTS_PAIRS)
            memcpy(out + (d / 2 + j) * t->n, pairs + j, DOTS_PAIRS * sizeof *pairs);
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

/* run(rows), rows as a constant. */
#define DOTS_OF_ROWS(rows, run)                        \
    switch (rows < V_TILE_ROWS ? rows : V_TILE_ROWS) { \
    case 1:                                            \
        run(1);                                        \
        break;                                         \
    case 2:                                            \
        run(2);                                        \
        break;                                         \
    case 3:                                            \
        run(3);                                        \
        break;                                         \
    case 4:                                            \
        run(4);                                        \
        break;                                         \
    case 5:                                            \
        run(5);                                        \
        break;                                         \
    case 6:                                            \
        run(6);                                        \
        break;                                         \
    case 7:                                            \
        run(7);                                        \
        break;                                         \
    default:                                           \
        run(V_TILE_ROWS);                              \
    }

/* run(first, some) for rows, most of them at a time. All are constants. */
_Static_assert(6 * DOTS_ROWS_V4 >= V_TILE_ROWS && 6 * DOTS_ROWS >= V_TILE_ROWS, "six parts");
#define DOTS_PART(i, most, rows, run) \
    if (rows > (i) * (most)) run((i) * (most), rows - (i) * (most) < (most) ? rows - (i) * (most) : (most));
#define DOTS_BY(most, rows, run)  \
    DOTS_PART(0, most, rows, run) \
    DOTS_PART(1, most, rows, run) \
    DOTS_PART(2, most, rows, run) \
    DOTS_PART(3, most, rows, run) \
    DOTS_PART(4, most, rows, run) \
    DOTS_PART(5, most, rows, run)

/* ---- scores ------------------------------------------------------------------------------------------- */

/* Rows [first, first + rows) of a tile of n. rows, n and form are constants wherever this is expanded. Scales
 * of the page's values are fetched, too: they are read before the values. */
static inline __attribute__((always_inline)) void dots_score_rows(const attend_state *s, const attend_tile *t,
                                                                  int64_t p, tile_ahead next, int first,
                                                                  int rows, int n, attend_form form)
{
    const char *page = k_of(s, t, p);
    const int with_scales = of_integers(form), halves = form == FORM_Q4 ? 2 : 1, vecs = dots_vecs(rows);
    const int64_t padded = dots_query_dim(s),
                  bytes = 2 * dots_bytes(form) * halves;             /* of a row of the page */
    const int64_t step = with_scales ? QN_KV_BLOCK / 2 : padded / 2; /* pairs of dimensions */
    const uint16_t *scales = dots_scales(page, padded, form);
    const uint32_t *a = (const uint32_t *)s->q + t->first * padded / 2 + first * DOTS_PAIRS;
    float *c = s->scores + (t->slot + first) * QN_ATTN_SCORES + (p - t->group);
    next = ahead_or(next, page);
    for (int64_t from = 0; with_scales && from < s->v_pad / QN_KV_BLOCK; from++)
        fetch_line((const char *)dots_scales(v_of(s, t, p), s->v_pad, form), from * QN_PAGE_TOKENS * 2);
    for (int64_t column = 0; column < QN_PAGE_TOKENS; column += 16 * vecs) {
        vi sum[8][2];
        vf total[8][2];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            sum[r][0] = sum[r][1] = dots_zero();
            total[r][0] = total[r][1] = v_set1(0);
        }
        for (int64_t from = 0; from < padded / 2; from += step) {
            for (int64_t k = 0; k < step / halves; k += DOTS_PAIRS) {
                const int64_t at = (from / halves + k) * bytes;
                const uint32_t *pairs = a + (from + k) * n;
                vb x[2][2];
#pragma GCC unroll 2
                for (int v = 0; v < vecs; v++)
                    dots_load(page + at + (column / 16 + v) * (bytes / 2), bytes, form, x[v]);
                for (int64_t ahead = at; column == 0 && ahead < at + DOTS_PAIRS * bytes; ahead += 64)
                    fetch(next, ahead);
#pragma GCC unroll 2
                for (int h = 0; h < halves; h++, pairs += step / 2 * n) {
#pragma GCC unroll 8
                    for (int r = 0; r < rows; r++) {
                        const va a_pair = dots_spread(pairs + r * DOTS_PAIRS);
#pragma GCC unroll 2
                        for (int v = 0; v < vecs; v++) sum[r][v] = dots_add(sum[r][v], x[v][h], a_pair, form);
                    }
                }
            }
            if (!with_scales) break;
            const uint16_t *scale = scales + from / step * QN_PAGE_TOKENS;
            fetch(next, bytes / halves * padded / 2 + from / step * QN_PAGE_TOKENS * 2);
#pragma GCC unroll 2
            for (int v = 0; v < vecs; v++) {
                const vf x = v_load_f16(scale + column + 16 * v);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++) {
                    total[r][v] = v_fma(dots_to_f32(sum[r][v]), x, total[r][v]);
                    sum[r][v] = dots_zero();
                }
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vf scale = with_scales ? v_set1(s->q_scale[t->first + first + r]) : v_set1(1);
#pragma GCC unroll 2
            for (int v = 0; v < vecs; v++) {
                float *to = c + r * QN_ATTN_SCORES + column + 16 * v;
                if (with_scales)
                    v_store(to, v_mul(total[r][v], scale));
                else
                    dots_store_sums(to, sum[r][v]);
            }
        }
    }
}

static inline __attribute__((always_inline)) void dots_score_page(const attend_state *s, const attend_tile *t,
                                                                  int64_t p, tile_ahead next, int rows,
                                                                  attend_form form)
{
#define DOTS_SCORE_SOME(first, some) dots_score_rows(s, t, p, next, first, some, rows, form)
    DOTS_BY(DOTS_ROWS, rows, DOTS_SCORE_SOME)
}

static inline __attribute__((always_inline)) void dots_score_form(const attend_state *s, const attend_tile *t,
                                                                  int64_t p, tile_ahead next, int rows)
{
    if (DOTS_BF16 && s->form == FORM_BF16)
        dots_score_page(s, t, p, next, rows, FORM_BF16);
    else if (s->form == FORM_Q8)
        dots_score_page(s, t, p, next, rows, FORM_Q8);
    else
        dots_score_page(s, t, p, next, rows, FORM_Q4);
}

static void dots_score_any(const attend_state *s, const attend_tile *t, int64_t p, tile_ahead next)
{
#define DOTS_SCORE(rows) dots_score_form(s, t, p, next, rows)
    DOTS_OF_ROWS(t->n, DOTS_SCORE)
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
    int64_t n_pieces, row_bytes; /* of a pair of positions */
    int64_t p_row;
    float *sums; /* or integers */
    int64_t sums_row;
    tile_ahead next; /* after the last piece */
    int add;
    dots_piece pieces[DOTS_PIECES];
} dots_values;

/* Of the tile's pages from p on; no piece yet. Member by member: an initializer would set all pieces to 0,
 * for every page. */
static inline void dots_begin_values(dots_values *w, const attend_state *s, const attend_tile *t, int64_t p,
                                     tile_ahead next)
{
    w->n_pieces = 0;
    w->row_bytes = s->v_pad / 16 * dots_bytes(s->form);
    w->p_row = p16_row(s);
    w->sums = s->sums + t->slot * s->v_pad;
    w->sums_row = s->v_pad;
    w->next = ahead_or(next, v_of(s, t, p));
    w->add = p != t->from;
}

static inline __attribute__((always_inline)) void dots_weigh_run(const dots_values *w, int64_t column,
                                                                 int64_t p_offset, int first, int rows,
                                                                 int vecs, attend_form form)
{
    const int64_t bytes = dots_bytes(form), at = column / 16 * bytes, row_bytes = w->row_bytes,
                  p_row = w->p_row, sums_row = w->sums_row;
    vi sum[8][4], all[4];
    vb b[4];
    float *c = w->sums + first * sums_row + column;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            sum[r][v] = w->add ? dots_load_sums(c + r * sums_row + 16 * v) : dots_zero();
    }
#pragma GCC unroll 4
    for (int v = 0; v < vecs; v++) all[v] = dots_zero();
    for (int64_t i = 0; i < w->n_pieces; i++) {
        const dots_piece *piece = &w->pieces[i];
        const char *page = piece->v + at;
        const tile_ahead after = i + 1 < w->n_pieces ? (tile_ahead){piece[1].v, piece[1].v} : w->next,
                         next = {after.far + at, after.near + at};
        const uint16_t *p = piece->p + first * p_row + p_offset;
        const int64_t n_k = piece->n_k;
        if (of_integers(form)) fetch(next, QN_PAGE_TOKENS / 2 * row_bytes - at + column * 2);
        for (int64_t k = 0; k < n_k; k += DOTS_PAIRS) {
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v += form == FORM_Q4 ? 2 : 1) {
                dots_load(page + k * row_bytes + v * bytes, row_bytes, form, b + v);
                if (form != FORM_BF16 && (column / 16 + v) % 2 != 0) continue; /* of the line asked for */
                for (int i = 0; i < DOTS_PAIRS; i++) fetch(next, (k + i) * row_bytes + v * bytes);
            }
            if (is_wide(form)) {
#pragma GCC unroll 4
                for (int v = 0; v < vecs; v++) all[v] = dots_add_all(all[v], b[v]);
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const va pair = dots_spread(p + r * p_row + 2 * k);
#pragma GCC unroll 4
                for (int v = 0; v < vecs; v++) sum[r][v] = dots_add(sum[r][v], b[v], pair, form);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            dots_store_sums(c + r * sums_row + 16 * v,
                            is_wide(form) ? dots_with_all(sum[r][v], all[v]) : sum[r][v]);
    }
}

/* n_vecs vectors of 16 columns; of integers one block. */
static inline __attribute__((always_inline)) void dots_weigh_rows(const dots_values *w, int64_t column,
                                                                  int64_t n_vecs, int64_t p_offset, int rows,
                                                                  attend_form form)
{
    int64_t v = 0;
    if (form == FORM_BF16 && rows <= 4) {
        for (; v + 4 <= n_vecs; v += 4) dots_weigh_run(w, column + 16 * v, p_offset, 0, rows, 4, FORM_BF16);
    }
    if (form == FORM_Q4) {
        for (; v + 2 <= n_vecs; v += 2) {
#define DOTS_WEIGH_TWO(first, some) dots_weigh_run(w, column + 16 * v, p_offset, first, some, 2, FORM_Q4)
            DOTS_BY(DOTS_ROWS_V4, rows, DOTS_WEIGH_TWO)
        }
        return;
    }
    if (dots_vecs(rows) == 2) {
        for (; v + 2 <= n_vecs; v += 2) dots_weigh_run(w, column + 16 * v, p_offset, 0, rows, 2, form);
    }
    for (; v < n_vecs; v++) {
#define DOTS_WEIGH_ONE(first, some) dots_weigh_run(w, column + 16 * v, p_offset, first, some, 1, form)
        DOTS_BY(DOTS_ROWS, rows, DOTS_WEIGH_ONE)
    }
}

static inline __attribute__((always_inline)) void dots_weigh_form(const dots_values *w, int64_t column,
                                                                  int64_t n_vecs, int64_t p_offset, int rows,
                                                                  attend_form form)
{
    if (DOTS_BF16 && form == FORM_BF16)
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
#define DOTS_WEIGH(rows) dots_weigh_form(w, column, n_vecs, p_offset, rows, form)
    DOTS_OF_ROWS(rows, DOTS_WEIGH)
}

/* p times the scales of a block of values, as 15 bits and a scale. 0 where p is 0, whatever the scale:
 * nothing was written there perhaps. Without their signs (scales of Q4_0 have both) the largest bits are
 * those of the largest number, NaN being above all. */
static void dots_pack_probabilities(const float *p, const float *v_scale, int64_t from, int64_t to,
                                    uint16_t *out, float *scale, attend_form form)
{
    const float most_operand = is_wide(form) ? 65407 : DOTS_MOST; /* 255 * 256 + 127 */
    float products[QN_ATTN_GROUP];
    vf largest = v_set1(0);
    for (int64_t j = from; j < to; j += 16) {
        vf x = dots_weighted(v_load(p + j), v_load(v_scale + j));
        v_store(products + j, x);
        largest = dots_max_bits(largest, v_abs(x));
    }
    uint32_t bits = dots_largest_bits(largest);
    float most = NAN;
    if (bits < 0x7f800000) memcpy(&most, &bits, sizeof most);
    vf inverse = v_set1(most > 0 ? most_operand / most : 0);
    *scale = most * (dots_unit(form) / most_operand);
    for (int64_t j = from; j < to; j += 32)
        dots_store_32(out + j, v_mul(v_load(products + j), inverse),
                      v_mul(v_load(products + j + 16), inverse), is_wide(form));
}

/* What dots_weigh reads of p in scores. */
static void dots_open_integers(attend_state *s, const attend_tile *t)
{
    const int64_t from = t->from - t->group, to = t->to - t->group, blocks = s->v_pad / QN_KV_BLOCK;
    for (int64_t p = t->from; p < t->to; p += QN_PAGE_TOKENS) {
        const uint16_t *scales = dots_scales(v_of(s, t, p), s->v_pad, s->form);
        for (int64_t b = 0; b < blocks; b++)
            for (int i = 0; i < QN_PAGE_TOKENS; i += 16)
                v_store(s->v_scale + b * QN_ATTN_GROUP + (p - t->group) + i,
                        v_load_f16(scales + b * QN_PAGE_TOKENS + i));
    }
    for (int64_t i = 0; i < t->n; i++) {
        const float *p = s->scores + (t->slot + i) * QN_ATTN_SCORES;
        uint16_t *out = s->p16 + (t->slot + i) * p16_row(s);
        for (int64_t b = 0; b < blocks; b++)
            dots_pack_probabilities(p, s->v_scale + b * QN_ATTN_GROUP, from, to, out + b * QN_ATTN_SCORES,
                                    &s->p_scale[(t->slot + i) * blocks + b], s->form);
    }
}

/* Pairs of positions [from, to) of the page at p, which lie at v. */
static inline void dots_add_piece(dots_values *w, const attend_state *s, const attend_tile *t, int64_t p,
                                  int64_t from, int64_t to, const char *v)
{
    const uint16_t *probabilities = s->p16 + t->slot * p16_row(s) + (p - t->group) + 2 * from;
    if (from < to) w->pieces[w->n_pieces++] = (dots_piece){v, probabilities, to - from};
}

/* Of a page of n_pages pages from p on: what is not seen is an integer, whatever it is, times 0. */
static void dots_weigh_integers(const attend_state *s, const attend_tile *t, int64_t p, int64_t n_pages,
                                tile_ahead next)
{
    const int64_t n_vecs = s->v_pad / 16, to = p + n_pages * QN_PAGE_TOKENS, step = 2 * DOTS_PAIRS;
    dots_values w;
    dots_begin_values(&w, s, t, p, next);
    for (; p < to; p += QN_PAGE_TOKENS)
        dots_add_piece(&w, s, t, p, 0, (looked_at(s, t, p) + step - 1) / step * DOTS_PAIRS, v_of(s, t, p));
    for (int64_t b = 0; b < n_vecs / 2; b++)
        dots_weigh_any(&w, b * QN_KV_BLOCK, QN_KV_BLOCK / 16, b * QN_ATTN_SCORES, t->n, s->form);
}

static void dots_close_values(attend_state *s, const attend_tile *t)
{
    const int64_t blocks = s->v_pad / QN_KV_BLOCK;
    if (!of_integers(s->form)) return;
    for (int64_t i = t->slot; i < t->slot + t->n; i++) {
        for (int64_t d = 0; d < s->v_pad; d += 16) {
            float *x = s->sums + i * s->v_pad + d;
            vf scale = v_set1(s->p_scale[i * blocks + d / QN_KV_BLOCK]);
            v_store(x, v_mul(dots_to_f32(dots_load_sums(x)), scale));
        }
    }
}

/* ---- sets that have integers alone -------------------------------------------------------------------- */

#if !DOTS_BF16
static attend_form dots_form(qn_dtype dtype)
{
    return dtype == QN_DTYPE_Q8_0 ? FORM_Q8 : dtype == QN_DTYPE_Q4_0 ? FORM_Q4 : FORM_F32;
}

static void dots_begin(attend_state *s)
{
}

static void dots_end(const attend_state *s)
{
}

static void dots_pack_queries(attend_state *s, const attend_tile *t, const float *const *q, float factor)
{
    for (int64_t j = 0; j < t->n; j++) dots_pack_integers(s, t, j, q[j], factor);
}

static void dots_score(attend_state *s, const attend_tile *t, int64_t p, tile_ahead next)
{
    dots_score_any(s, t, p, next);
}

static void dots_open_values(attend_state *s, const attend_tile *t)
{
    dots_open_integers(s, t);
}

static void dots_weigh(attend_state *s, const attend_tile *t, int64_t p, int64_t n_pages, tile_ahead next)
{
    dots_weigh_integers(s, t, p, n_pages, next);
}
#endif

#endif
