/* Attention over pages, in two levels: inside a group of QN_ATTN_GROUP absolute positions
 *     s[t] = q.k[t]          with scale and log2(e) inside q; one chain of multiply-adds over head_dim
 *     m = max s, p[t] = 2^(s[t] - m), l = sum p     lane t % 16, then the fixed tree
 *     acc[d] = sum p[t] v[t][d]                     one chain in rising t
 * and then the groups' (m, l, acc) are merged in rising order, by whoever computed them. Every chain belongs
 * to one row and one head and depends on the positions that the row sees alone, so the bits do not depend on
 * which other rows and heads share the call.
 *
 * The rows of the micro-kernel are pairs of row and head, key head by key head and there row by row: what a
 * row sees moves up with the row. Many pairs (prefill) have one key head: for each group the pages are
 * widened once when more than one tile of pairs reads them; then each tile of pairs goes through scores,
 * softmax, values and merging while its scores are in L1. Few pairs (decode) bring all key heads they can and
 * all tiles go through the group together, page by page, so that memory is read in the order in which it lies
 * and each byte once: that is what the chip's own prefetchers need to keep it busy.
 *
 * Of a page that not all pairs of a tile see whole (in 16-bit operands: what of it not all see) a copy is
 * used, with zeros in place of values that none of them sees; a pair's own p is 0 where it sees nothing, and
 * 0 adds nothing (a sum may be -0 for +0, which the last step evens out). Where the copy holds a value that
 * is not finite each pair gets a copy of its own.
 *
 * A set that multiplies pairs of 16-bit numbers says so by dots_form and gives the dots_ functions:
 * attention_dots_<set>.h over attention_dots.body.h, where for BF16 pages the tiles of
 * attention_tiles_<set>.h may take their place; the others include attention_dots_none.h and compute in f32.
 */
#ifndef QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_BODY_H
#define QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_BODY_H

#include "device/cpu/kernels/attention/attention_pages.body.h"
#include "device/cpu/kernels/math.body.h"
#include "device/cpu/kernels/matmul/tile.body.h"

/* FORM_F32: f32 operands (F32 and F16 pages, and all pages of sets without the rest). FORM_BF16: q, k, p, v
 * in bf16. FORM_Q8, FORM_Q4: q and p in 15 bits, k and v in 8 or 4, integer sums. */
typedef enum { FORM_F32, FORM_BF16, FORM_Q8, FORM_Q4 } attend_form;

/* Where a set that asks for keys and values in an order of its own (attention_tiles_<set>.h) is in that. */
typedef struct {
    int in_use;                        /* else by `ahead` */
    const char *piece[QN_ATTN_PIECES]; /* side by side; n of them, `bytes` each, asked for up to `at` */
    int64_t n, bytes, at;
    int64_t group, p, in; /* what comes behind them: from `in` on in what is read of the page at p */
    int values;
} attend_requests;

/* How much further on something is asked for: whole pages, then key heads. */
typedef struct {
    int64_t pages, heads;
} read_distance;

typedef struct {
    const qn_attend_args *a;
    attend_form form;
    size_t k_bytes, v_bytes;                              /* of one head in a page */
    int turned;                                           /* pages hold turned blocks */
    int64_t q_dim;                                        /* head_dim; of turned blocks in whole ones */
    int64_t kv_head, n_kv;                                /* key heads [kv_head, kv_head + n_kv) */
    int64_t n_pairs, n_each;                              /* of all key heads, of each */
    int64_t v_pad;                                        /* v_dim in whole vectors */
    read_distance far[2], near[2];                        /* of keys, of values */
    int64_t lo[QN_ATTN_PAIRS_MAX], hi[QN_ATTN_PAIRS_MAX]; /* pair i sees positions [lo, hi) */
    float largest[QN_ATTN_PAIRS_MAX + 16], total[QN_ATTN_PAIRS_MAX + 16];       /* of the groups so far */
    float now_largest[QN_ATTN_TOGETHER + 16], now_total[QN_ATTN_TOGETHER + 16]; /* [slot], of the group */
    const char *k[QN_ATTN_PAGES], *v[QN_ATTN_PAGES]; /* the group's pages at kv_head, or their wide form */
    int k_half, v_half;                              /* f16, else f32 */
    float *q;      /* [head_dim][pairs of the tile] per tile: broadcasts come from one line */
    float *scores; /* [slot][QN_ATTN_SCORES], of the current group */
    float *sums;   /* [slot][v_pad], of the current group */
    float *merged; /* [pair][v_pad], of the groups so far */
    float *edge;   /* one page of values with zeros where none of a tile's pairs sees them */
    float *wide; /* the group's keys [page][head_dim][QN_PAGE_TOKENS], values [page][QN_PAGE_TOKENS][v_pad] */
    uint16_t *p16;  /* [slot][block for integers][QN_ATTN_SCORES]: p in 16 bits */
    float *q_scale; /* of integers: [pair] */
    float *p_scale; /* of integers: [slot][block] */
    float *v_scale; /* of integers: [block][QN_ATTN_GROUP], of one tile */
    attend_requests requests;
} attend_state;

/* Pairs [first, first + n) of key head kv (counted from the state's first) in the group that starts at group;
 * pages [from, to) hold what any of them sees. Tiles that go through a group together have slots of their own
 * for what they compute; their pairs lie in slots [slot, slot + n). seen: which pairs see any of the group.
 */
typedef struct {
    int64_t first, n, kv, slot, group, from, to;
    unsigned seen;
} attend_tile;

static attend_form dots_form(qn_dtype dtype);
/* Before and after all that follows: what the chip needs for it. */
static void dots_begin(attend_state *s);
static void dots_end(const attend_state *s);
/* Packs q [n][q_dim] of a tile's pairs, times factor. */
static void dots_pack_queries(attend_state *s, const attend_tile *t, const float *const *q, float factor);
/* scores of the tile in the page at p, while `next` is fetched. */
static void dots_score(attend_state *s, const attend_tile *t, int64_t p, tile_ahead next);
/* From the p in scores what dots_weigh reads. */
static void dots_open_values(attend_state *s, const attend_tile *t);
/* Adds p v of n_pages pages from p on to sums, which begin at 0 with the tile's first page. */
static void dots_weigh(attend_state *s, const attend_tile *t, int64_t p, int64_t n_pages, tile_ahead next);
/* sums in f32. */
static void dots_close_values(attend_state *s, const attend_tile *t);

static inline const char *k_page(const attend_state *s, int64_t position)
{
    const qn_kv_layout *kv = &s->a->kv;
    const char *page = kv->pages + (size_t)s->a->blocks[position / QN_PAGE_TOKENS] * kv->page_stride_bytes;
    return page + (size_t)s->kv_head * s->k_bytes;
}

static inline const char *v_page(const attend_state *s, int64_t position)
{
    const qn_kv_layout *kv = &s->a->kv;
    const char *page = kv->pages + (size_t)s->a->blocks[position / QN_PAGE_TOKENS] * kv->page_stride_bytes;
    return page + (size_t)kv->kv_heads * s->k_bytes + (size_t)s->kv_head * s->v_bytes;
}

static inline int of_integers(attend_form form)
{
    return form == FORM_Q8 || form == FORM_Q4;
}

/* From one slot of p16 to the next. */
static inline int64_t p16_row(const attend_state *s)
{
    return of_integers(s->form) ? s->v_pad / QN_KV_BLOCK * QN_ATTN_SCORES : QN_ATTN_P16;
}

static inline int page_of(int64_t group, int64_t position)
{
    return (int)((position - group) / QN_PAGE_TOKENS);
}

/* The page at p as tile t reads it. */
static inline const char *k_of(const attend_state *s, const attend_tile *t, int64_t p)
{
    return s->k[page_of(t->group, p)] + (size_t)t->kv * s->k_bytes;
}

static inline const char *v_of(const attend_state *s, const attend_tile *t, int64_t p)
{
    return s->v[page_of(t->group, p)] + (size_t)t->kv * s->v_bytes;
}

/* Positions of the page at p, from its first one on, that no pair of the tile looks behind. */
static inline int64_t looked_at(const attend_state *s, const attend_tile *t, int64_t p)
{
    const int64_t n = s->hi[t->first + t->n - 1] - p;
    return n < QN_PAGE_TOKENS ? n : QN_PAGE_TOKENS;
}

/* ---- what tiles read --------------------------------------------------------------------------------- */

/* The first v_dim rows of keys (of turned blocks all) in f32 as values. */
static void turn_k(const attend_state *s, float *out, const float *keys)
{
    const int64_t v_dim = s->turned ? s->v_pad : s->a->kv.v_dim;
    for (int64_t d = 0; d < s->v_pad; d += 16) {
        for (int64_t t = 0; t < QN_PAGE_TOKENS; t += 16) {
            vf x[16];
            for (int i = 0; i < 16; i++)
                x[i] = d + i < v_dim ? v_load(keys + (d + i) * QN_PAGE_TOKENS + t) : v_set1(0);
            turn_16(x);
            for (int i = 0; i < 16; i++) v_store(out + (t + i) * s->v_pad + d, x[i]);
        }
    }
}

/* Finds the pages of positions [begin, end) of a group and widens what the tiles do not read as it is. */
static void open_group(attend_state *s, int64_t group, int64_t begin, int64_t end)
{
    const qn_kv_layout *kv = &s->a->kv;
    const int f32 = kv->dtype == QN_DTYPE_F32, f16 = kv->dtype == QN_DTYPE_F16;
    const int few = s->n_each <= V_TILE_ROWS, plain = s->v_pad == kv->v_dim;
    const int k_direct = s->form != FORM_F32 || f32 || (f16 && few && !kv->v_in_k);
    const int v_direct = !kv->v_in_k && (s->form != FORM_F32 || (plain && (f32 || (f16 && few))));
    const int64_t d = qn_kv_blocks(kv->head_dim) * QN_KV_BLOCK;
    float *wide_v = s->wide + QN_ATTN_GROUP * d;
    s->k_half = k_direct && f16;
    s->v_half = v_direct && f16;
    for (int64_t p = begin / QN_PAGE_TOKENS * QN_PAGE_TOKENS; p < end; p += QN_PAGE_TOKENS) {
        int i = page_of(group, p);
        s->k[i] = k_page(s, p);
        s->v[i] = kv->v_in_k ? NULL : v_page(s, p);
        if (!k_direct) {
            float *out = s->wide + i * QN_PAGE_TOKENS * d;
            widen_k(kv, out, s->k[i]);
            s->k[i] = (const char *)out;
        }
        if (!v_direct) {
            float *out = wide_v + i * QN_PAGE_TOKENS * s->v_pad;
            if (kv->v_in_k)
                turn_k(s, out, (const float *)s->k[i]);
            else
                widen_v(kv, out, s->v[i]);
            s->v[i] = (const char *)out;
        }
    }
}

/* Whether pages are read as they are, so that key heads can go together: the conditions of open_group. */
static int reads_pages(const qn_kv_layout *kv, int64_t n_each)
{
    if (kv->v_in_k) return 0;
    if (dots_form(kv->dtype) != FORM_F32) return 1;
    if (kv->v_dim % 16 != 0) return 0;
    return kv->dtype == QN_DTYPE_F32 || (kv->dtype == QN_DTYPE_F16 && n_each <= V_TILE_ROWS);
}

enum { FAR_BYTES = 32768, NEAR_BYTES = 16384 };

static read_distance distance_of(size_t distance, size_t head_bytes, int64_t n_kv)
{
    const int64_t heads = (int64_t)((distance + head_bytes - 1) / head_bytes);
    return (read_distance){heads / n_kv, heads % n_kv};
}

/* What is read so much after the keys (or values) of the tile's key head in the page at p: tiles go through
 * the keys of pages [from, to) page by page and head by head, then through the values, then the next group
 * begins. NULL: nothing. */
static const char *read_after(const attend_state *s, const attend_tile *t, int values, int64_t p,
                              read_distance distance)
{
    int64_t kv = t->kv + distance.heads;
    p += distance.pages * QN_PAGE_TOKENS;
    if (kv >= s->n_kv) {
        kv -= s->n_kv;
        p += QN_PAGE_TOKENS;
    }
    if (!values) {
        if (p < t->to) return s->k[page_of(t->group, p)] + (size_t)kv * s->k_bytes;
        p += t->from - t->to;
    }
    if (p < t->to) return s->v[page_of(t->group, p)] + (size_t)kv * s->v_bytes;
    p += t->group + QN_ATTN_GROUP - t->to;
    return p < s->hi[s->n_pairs - 1] ? k_page(s, p) + (size_t)kv * s->k_bytes : NULL;
}

/* Of tiles that go through a group one after the other the first one fetches for all. */
static tile_ahead ahead(const attend_state *s, const attend_tile *t, int values, int64_t p)
{
    if (s->requests.in_use || (s->n_pairs > QN_ATTN_TOGETHER && t->first > 0))
        return (tile_ahead){NULL, NULL};
    return (tile_ahead){read_after(s, t, values, p, s->far[values]),
                        read_after(s, t, values, p, s->near[values])};
}

/* ---- tiles of pairs in one group ------------------------------------------------------------------- */

static inline void run_tile(const tile_args *t, int rows, int64_t n_vecs, int half)
{
    if (half)
        tile_any(t, rows, n_vecs, 1);
    else
        tile_any(t, rows, n_vecs, 0);
}

static void score_page(const attend_state *s, const attend_tile *t, int64_t p, tile_ahead next)
{
    const tile_args k = {.c = s->scores + t->slot * QN_ATTN_SCORES + (p - t->group),
                         .c_row = QN_ATTN_SCORES,
                         .a = s->q + t->first * s->q_dim,
                         .a_row = 1,
                         .a_k = t->n,
                         .b = k_of(s, t, p),
                         .b_k = QN_PAGE_TOKENS,
                         .n_k = s->q_dim,
                         .from_zero = 1,
                         .next = next};
    run_tile(&k, (int)t->n, QN_PAGE_TOKENS / 16, s->k_half);
}

/* 2^x for x <= 0, at most 1.5 ulp; 0 below -150; NaN stays. */
static inline vf power(vf x)
{
    vf t = v_max(v_set1(-160.0f), x);
    vf n = v_round(t), r = v_sub(t, n);
    vf p = v_set1(0.0013269406f);
    p = v_fma(p, r, v_set1(0.00967129413f));
    p = v_fma(p, r, v_set1(0.0555071123f));
    p = v_fma(p, r, v_set1(0.240222469f));
    p = v_fma(p, r, v_set1(0.693147004f));
    p = v_fma(p, r, v_set1(1.0f));
    return v_scale(p, n);
}

/* Lanes of the vector at i that lie below `to`. */
static inline int lanes_below(int64_t i, int64_t to)
{
    return to < i ? 0 : to - i < 16 ? (int)(to - i) : 16;
}

/* Scores in [from, to), whole vectors, become -inf where a pair does not see them: outside of [lo, hi). */
static inline void hide(float *x, int64_t lo, int64_t hi, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i += 16) {
        if (lo <= i && i + 16 <= hi) i = hi / 16 * 16; /* between the ends all is seen */
        if (i >= to) break;
        v_store(x + i,
                v_select(v_lanes(lanes_below(i, lo), lanes_below(i, hi)), v_load(x + i), v_set1(-INFINITY)));
    }
}

/* And where `hidden` says -1 of the position. */
static inline void hide_some(float *x, const float *hidden, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i += 16)
        v_store(x + i, v_select(v_lt(v_load(hidden + i), v_set1(0)), v_set1(-INFINITY), v_load(x + i)));
}

static inline float largest_of(const float *x, int64_t from, int64_t to)
{
    vf m = v_set1(-INFINITY);
    for (int64_t i = from; i < to; i += 16) m = v_max(m, v_load(x + i));
    return v_largest(m);
}

/* Scores to probabilities, in place; their sum. */
static inline float powers_of(float *x, float largest, int64_t from, int64_t to)
{
    vf m = v_set1(largest), sum = v_set1(0);
    for (int64_t i = from; i < to; i += 16) {
        vf p = power(v_sub(v_load(x + i), m));
        v_store(x + i, p);
        sum = v_add(sum, p);
    }
    return v_sum(sum);
}

static inline void zero(float *x, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i += 16) v_store(x + i, v_set1(0));
}

/* Copies the tile's page of values at p to s->edge with zeros outside of [lo, hi); whether what remains is
 * all finite. */
static int copy_edge(attend_state *s, const attend_tile *tile, int64_t p, int64_t lo, int64_t hi)
{
    const char *page = v_of(s, tile, p);
    vf odd = v_set1(0);
    for (int64_t t = 0; t < QN_PAGE_TOKENS; t++) {
        float *out = s->edge + t * s->v_pad;
        if (p + t < lo || p + t >= hi) {
            for (int64_t i = 0; i < s->v_pad; i += 16) v_store(out + i, v_set1(0));
            continue;
        }
        for (int64_t i = 0; i < s->v_pad; i += 16) {
            int64_t at = t * s->v_pad + i;
            vf x = s->v_half ? v_load_f16((const uint16_t *)page + at) : v_load((const float *)page + at);
            odd = v_fma(x, v_set1(0), odd);
            v_store(out + i, x);
        }
    }
    return !v_any(v_is_nan(odd));
}

/* Whether all pairs of the tile see the whole page at p. */
static inline int sees_whole(const attend_state *s, const attend_tile *t, int64_t p)
{
    return p >= s->lo[t->first + t->n - 1] && p + QN_PAGE_TOKENS <= s->hi[t->first];
}

/* Adds p v of the page at p to sums, which begin at 0 with the tile's first page. */
static void weigh_page(attend_state *s, const attend_tile *t, int64_t p, tile_ahead next)
{
    const int64_t *lo = s->lo + t->first, *hi = s->hi + t->first, last = t->n - 1;
    tile_args k = {.c = s->sums + t->slot * s->v_pad,
                   .c_row = s->v_pad,
                   .a = s->scores + t->slot * QN_ATTN_SCORES + (p - t->group),
                   .a_row = QN_ATTN_SCORES,
                   .a_k = 1,
                   .b = v_of(s, t, p),
                   .b_k = s->v_pad,
                   .n_k = QN_PAGE_TOKENS,
                   .from_zero = p == t->from,
                   .next = next};
    if (sees_whole(s, t, p)) {
        run_tile(&k, (int)t->n, s->v_pad / 16, s->v_half);
        return;
    }
    k.b = s->edge;
    if (copy_edge(s, t, p, lo[0], hi[last])) {
        run_tile(&k, (int)t->n, s->v_pad / 16, 0);
        return;
    }
    for (int64_t r = 0; r <= last; r++, k.c += k.c_row, k.a += k.a_row) {
        copy_edge(s, t, p, lo[r], hi[r]);
        run_tile(&k, 1, s->v_pad / 16, 0);
    }
}

/* out = out * keep + x * add */
static inline void blend(float *out, const float *x, float keep, float add, int64_t n)
{
    vf k = v_set1(keep), f = v_set1(add);
    for (int64_t i = 0; i < n; i += 16) v_store(out + i, v_fma(v_load(out + i), k, v_mul(v_load(x + i), f)));
}

/* Adds the result of one group for n pairs (16 at most) to largest, total and merged. seen: which of them see
 * the group. */
static void merge_group(attend_state *s, int64_t first, int64_t n, unsigned seen, const float *now_largest,
                        const float *now_total, const float *sums, int64_t sums_row)
{
    float keep[16], add[16], largest[16], total[16];
    vf old = v_load(s->largest + first), now = v_load(now_largest);
    vf m = v_select(v_lt(now, old), old, now), k = power(v_sub(old, m)), f = power(v_sub(now, m));
    v_store(largest, m);
    v_store(total, v_fma(v_load(s->total + first), k, v_mul(v_load(now_total), f)));
    v_store(keep, k);
    v_store(add, f);
    for (int64_t i = 0; i < n; i++) {
        if (!(seen >> i & 1)) continue;
        float *out = s->merged + (first + i) * s->v_pad;
        const float *x = sums + i * sums_row;
        if (s->largest[first + i] == -INFINITY && add[i] == 1) /* the first group */
            memcpy(out, x, (size_t)s->v_pad * sizeof *out);
        else
            blend(out, x, keep[i], add[i], s->v_pad);
        s->largest[first + i] = largest[i];
        s->total[first + i] = total[i];
    }
}

/* The tile's pages in its group, of which positions [begin, end) are looked at. */
static void open_tile(const attend_state *s, attend_tile *t, int64_t begin, int64_t end)
{
    int64_t low = s->lo[t->first], high = s->hi[t->first + t->n - 1];
    if (low < begin) low = begin;
    if (high > end) high = end;
    t->from = low / QN_PAGE_TOKENS * QN_PAGE_TOKENS;
    t->to = low < high ? (high + QN_PAGE_TOKENS - 1) / QN_PAGE_TOKENS * QN_PAGE_TOKENS : t->from;
}

/* Scores to probabilities in place: 0 where a pair sees nothing. All pairs of a tile have the same vectors,
 * so that no loop ends where nobody foresaw it, and one pair's work does not wait for another's. */
static void tile_softmax(attend_state *s, attend_tile *t, int64_t begin, int64_t end)
{
    const int64_t g = t->group, last = t->first + t->n - 1, from = t->from - g, to = t->to - g,
                  low = s->lo[t->first] > begin ? s->lo[t->first] : begin,
                  high = s->hi[last] < end ? s->hi[last] : end, first = (low - g) / 16 * 16,
                  past = (high - g + 15) / 16 * 16;
    float *x = s->scores + t->slot * QN_ATTN_SCORES, *largest = s->now_largest + t->slot;
    const vf cap = v_set1(s->a->softcap * 1.44269504f);
    t->seen = 0;
    for (int64_t i = 0; i < t->n; i++, x += QN_ATTN_SCORES) {
        int64_t lo = s->lo[t->first + i], hi = s->hi[t->first + i];
        if (lo < begin) lo = begin;
        if (hi > end) hi = end;
        for (int64_t j = first; j < past && s->a->softcap != 0; j += 16)
            v_store(x + j, v_mul(cap, v_tanh(v_load(x + j))));
        if (lo >= hi) lo = hi = g;
        if (lo < hi) t->seen |= 1u << i;
        hide(x, lo - g, hi - g, first, past);
        if (s->a->hidden) hide_some(x, s->a->hidden + g, first, past);
        largest[i] = largest_of(x, first, past);
    }
    x -= t->n * QN_ATTN_SCORES;
    for (int64_t i = 0; i < t->n; i++, x += QN_ATTN_SCORES) {
        zero(x, from, first);
        zero(x, past, to);
        if (t->seen >> i & 1)
            s->now_total[t->slot + i] = powers_of(x, largest[i], first, past);
        else
            zero(x, first, past);
    }
    if (s->form != FORM_F32) dots_open_values(s, t);
}

/* All pages at once where the tile is alone: its sums then stay in registers. */
static void weigh_tile(attend_state *s, const attend_tile *t, int64_t *p, int alone)
{
    int64_t n_pages = 1;
    if (s->form == FORM_F32) {
        weigh_page(s, t, *p, ahead(s, t, 1, *p));
    } else {
        if (alone) n_pages = (t->to - *p) / QN_PAGE_TOKENS;
        dots_weigh(s, t, *p, n_pages, ahead(s, t, 1, *p + (n_pages - 1) * QN_PAGE_TOKENS));
    }
    *p += n_pages * QN_PAGE_TOKENS;
}

/* Tiles of one group together, positions [begin, end): now_largest, now_total and sums of their slots. */
static void attend_tiles(attend_state *s, attend_tile *tiles, int64_t n_tiles, int64_t begin, int64_t end)
{
    const int64_t from = begin / QN_PAGE_TOKENS * QN_PAGE_TOKENS;
    for (int64_t i = 0; i < n_tiles; i++) open_tile(s, &tiles[i], begin, end);
    for (int64_t p = from; p < end; p += QN_PAGE_TOKENS) {
        for (int64_t i = 0; i < n_tiles; i++) {
            const attend_tile *t = &tiles[i];
            if (p < t->from || p >= t->to) continue;
            if (s->form == FORM_F32)
                score_page(s, t, p, ahead(s, t, 0, p));
            else
                dots_score(s, t, p, ahead(s, t, 0, p));
        }
    }
    for (int64_t i = 0; i < n_tiles; i++)
        if (tiles[i].from < tiles[i].to) tile_softmax(s, &tiles[i], begin, end);
    for (int64_t p = from, next; p < end; p = next) {
        next = p + QN_PAGE_TOKENS;
        for (int64_t i = 0; i < n_tiles; i++) {
            if (p < tiles[i].from || p >= tiles[i].to) continue;
            next = p;
            weigh_tile(s, &tiles[i], &next, n_tiles == 1);
        }
    }
    for (int64_t i = 0; i < n_tiles && s->form != FORM_F32; i++)
        if (tiles[i].from < tiles[i].to) dots_close_values(s, &tiles[i]);
}

/* ---- a tile of rows ----------------------------------------------------------------------------------- */

static attend_state state_of(const qn_attend_args *a, int64_t kv_head, void *scratch)
{
    const qn_kv_layout *kv = &a->kv;
    const int64_t d = qn_kv_blocks(kv->head_dim) * QN_KV_BLOCK, tile = QN_ATTN_TILE_MAX,
                  slots = QN_ATTN_TOGETHER;
    attend_state s = {.a = a,
                      .form = kv->v_in_k ? FORM_F32 : dots_form(kv->dtype),
                      .k_bytes = qn_kv_k_bytes(kv->dtype, kv->head_dim),
                      .v_bytes = qn_kv_v_bytes(kv->dtype, kv->v_dim),
                      .turned = kv->dtype == QN_DTYPE_Q4_0,
                      .q_dim = kv->dtype == QN_DTYPE_Q4_0 ? d : kv->head_dim,
                      .kv_head = kv_head,
                      .n_kv = 1,
                      .v_pad = qn_kv_v_pad(kv->dtype, kv->v_dim)};
    s.scores = scratch;
    s.sums = s.scores + slots * QN_ATTN_SCORES;
    s.q = s.sums + slots * s.v_pad;
    s.merged = s.q + (QN_ATTN_PAIRS_MAX + tile) * d;
    s.edge = s.merged + (QN_ATTN_PAIRS_MAX + tile) * s.v_pad;
    s.v_scale = s.edge + QN_PAGE_TOKENS * s.v_pad;
    s.p16 = (uint16_t *)(s.v_scale + s.v_pad / 16 * QN_ATTN_GROUP);
    s.q_scale = (float *)(s.p16 + slots * p16_row(&s));
    s.p_scale = s.q_scale + QN_ATTN_PAIRS_MAX + tile;
    s.wide = s.p_scale + slots * s.v_pad / 16 + tile;
    return s;
}

/* Tile number i of the pairs: those of one key head in whole tiles and a rest, then the next key head's. */
static attend_tile tile_number(const attend_state *s, int64_t i)
{
    const int64_t tiles = (s->n_each + V_TILE_ROWS - 1) / V_TILE_ROWS, row = i % tiles * V_TILE_ROWS;
    attend_tile t = {.kv = i / tiles, .n = s->n_each - row};
    if (t.n > V_TILE_ROWS) t.n = V_TILE_ROWS;
    t.first = t.kv * s->n_each + row;
    return t;
}

static inline int64_t n_tiles_of(const attend_state *s)
{
    return (s->n_each + V_TILE_ROWS - 1) / V_TILE_ROWS * s->n_kv;
}

/* n vectors, a power of two, side by side: lane i of number j becomes lane i * n + j of all. */
static inline void interleave(vf *x, int64_t n)
{
    vf y[QN_ATTN_TILE_MAX];
    for (int64_t round = 1; round < n; round *= 2) {
        for (int64_t i = 0; i < n / 2; i++) v_zip(x[i], x[i + n / 2], &y[2 * i], &y[2 * i + 1]);
        for (int64_t i = 0; i < n; i++) x[i] = y[i];
    }
}

static void pack_queries(attend_state *s, const attend_tile *t, const float *const *q, float factor)
{
    float *out = s->q + t->first * s->q_dim;
    int64_t d = 0;
    for (; t->n == 8 && d + 16 <= s->q_dim; d += 16) {
        vf x[8];
        for (int j = 0; j < 8; j++) x[j] = v_mul(v_load(q[j] + d), v_set1(factor));
        interleave(x, 8);
        for (int j = 0; j < 8; j++) v_store(out + d * 8 + 16 * j, x[j]);
    }
    for (; d < s->q_dim; d++)
        for (int64_t j = 0; j < t->n; j++) out[d * t->n + j] = q[j][d] * factor;
}

/* Of each of the n_kv key heads the pairs [first, first + n_each) of the tile of rows; head: the first query
 * head, n_heads: those of one key head. */
static void open_pairs(attend_state *s, int64_t first, int64_t head, int64_t n_heads)
{
    const qn_attend_args *a = s->a;
    float factor = a->softcap != 0 ? a->scale / a->softcap : a->scale * 1.44269504f;
    s->n_pairs = s->n_kv * s->n_each;
    for (int values = 0; values < 2; values++) {
        const size_t bytes = values ? s->v_bytes : s->k_bytes;
        s->far[values] = distance_of(FAR_BYTES, bytes, s->n_kv);
        s->near[values] = distance_of(NEAR_BYTES, bytes, s->n_kv);
    }
    for (int64_t i = 0; i < n_tiles_of(s); i++) {
        attend_tile t = tile_number(s, i);
        const float *q[QN_ATTN_TILE_MAX];
        for (int64_t j = 0; j < t.n; j++) {
            int64_t pair = t.first + j, of_all = first + pair - t.kv * s->n_each, row = of_all / n_heads,
                    h = head + t.kv * n_heads + of_all % n_heads, position = a->position + row;
            s->lo[pair] = qn_attend_first(a->window, a->chunk, a->chunk_at, position);
            s->hi[pair] = a->seen > 0 ? a->seen : a->seen < 0 ? -a->seen : position + 1;
            if (a->seen > 0 && a->window > 0 && position + a->window < a->seen)
                s->hi[pair] = position + a->window;
            q[j] = a->q + row * a->q_stride + h * a->kv.head_dim;
            if (s->turned) { /* nothing is wide yet */
                float *turned = s->wide + j * s->q_dim;
                turn_blocks(turned, q[j], a->kv.head_dim, turned_asked);
                q[j] = turned;
            }
        }
        if (s->form == FORM_F32)
            pack_queries(s, &t, q, factor);
        else
            dots_pack_queries(s, &t, q, factor);
    }
    for (int64_t i = 0; i < s->n_pairs + 16; i++) {
        s->largest[i] = -INFINITY;
        s->total[i] = 0;
    }
}

/* The positions that the pairs see, in groups [*begin, *end). */
static void groups_of(const attend_state *s, int64_t *begin, int64_t *end)
{
    *begin = s->lo[0] / QN_ATTN_GROUP;
    *end = (s->hi[s->n_pairs - 1] + QN_ATTN_GROUP - 1) / QN_ATTN_GROUP;
}

/* Groups [begin, end): merged into the state, or each into parts (of group begin, then the next). */
static void attend_groups(attend_state *s, int64_t begin, int64_t end, float *parts)
{
    const int64_t lowest = s->lo[0], past = s->hi[s->n_pairs - 1], n_tiles = n_tiles_of(s);
    const int64_t row = qn_attend_part_row(s->a->kv.dtype, s->a->kv.v_dim);
    const int64_t most = s->n_pairs <= QN_ATTN_TOGETHER ? n_tiles : 1;
    for (int64_t g = begin; g < end; g++) {
        int64_t group = g * QN_ATTN_GROUP, low = group > lowest ? group : lowest,
                high = group + QN_ATTN_GROUP < past ? group + QN_ATTN_GROUP : past;
        open_group(s, group, low, high);
        for (int64_t i = 0; i < n_tiles; i += most) {
            attend_tile tiles[QN_ATTN_TOGETHER];
            for (int64_t j = 0; j < most; j++) {
                tiles[j] = tile_number(s, i + j);
                tiles[j].slot = tiles[j].first - tiles[0].first;
                tiles[j].group = group;
            }
            attend_tiles(s, tiles, most, low, high);
            for (int64_t j = 0; j < most; j++) {
                const attend_tile *t = &tiles[j];
                const float *largest = s->now_largest + t->slot, *total = s->now_total + t->slot,
                            *sums = s->sums + t->slot * s->v_pad;
                if (!parts) {
                    merge_group(s, t->first, t->n, t->seen, largest, total, sums, s->v_pad);
                    continue;
                }
                for (int64_t k = 0; k < t->n; k++) {
                    float *part = parts + ((g - begin) * s->n_pairs + t->first + k) * row;
                    memcpy(part, sums + k * s->v_pad, (size_t)s->v_pad * sizeof *part);
                    part[s->v_pad] = largest[k];
                    part[s->v_pad + 1] = t->seen >> k & 1 ? total[k] : -1.0f;
                }
            }
        }
    }
}

static void close_pairs(attend_state *s, int64_t first, int64_t head, int64_t n_heads)
{
    const qn_attend_args *a = s->a;
    for (int64_t i = 0; i < s->n_pairs; i++) {
        int64_t kv = i / s->n_each, of_all = first + i % s->n_each, row = of_all / n_heads,
                h = head + kv * n_heads + of_all % n_heads;
        float *x = s->merged + i * s->v_pad, total = s->total[i];
        float *out = a->out + row * a->out_stride + h * a->kv.v_dim;
        if (a->sinks) {
            float sink = a->sinks[h] * 1.44269504f, m = s->largest[i] > sink ? s->largest[i] : sink;
            float keep = v_first(power(v_set1(s->largest[i] - m)));
            blend(x, x, keep, 0, s->v_pad);
            total = total * keep + v_first(power(v_set1(sink - m)));
        }
        for (int64_t d = 0; s->turned && d < s->v_pad; d += QN_KV_BLOCK) turn_block(x + d, turned_asked);
        for (int64_t d = 0; d < a->kv.v_dim; d += 16) {
            vf y = v_add(v_div(v_load(x + d), v_set1(total)), v_set1(0)); /* no -0 */
            if (d + 16 <= a->kv.v_dim)
                v_store(out + d, y);
            else
                v_store_n(out + d, y, (int)(a->kv.v_dim - d));
        }
    }
}

static void attend(const qn_attend_args *a, int64_t n_rows, int64_t head, int64_t n_heads, void *scratch)
{
    const int64_t shared = a->n_heads / a->kv.kv_heads, first_kv = head / shared,
                  n_kv = n_heads > shared ? n_heads / shared : 1, each = n_heads / n_kv,
                  n_pairs = n_rows * each;
    int64_t together = 1, begin, end;
    if (n_pairs <= QN_ATTN_TOGETHER && reads_pages(&a->kv, n_pairs)) together = QN_ATTN_TOGETHER / n_pairs;
    for (int64_t kv = 0; kv < n_kv; kv += together) {
        attend_state s = state_of(a, first_kv + kv, scratch);
        s.n_kv = n_kv - kv < together ? n_kv - kv : together;
        for (int64_t i = 0; i < n_pairs; i += s.n_each) {
            s.n_each = n_pairs - i < QN_ATTN_PAIRS_MAX ? n_pairs - i : QN_ATTN_PAIRS_MAX;
            open_pairs(&s, i, head + kv * each, each);
            groups_of(&s, &begin, &end);
            dots_begin(&s);
            attend_groups(&s, begin, end, NULL);
            dots_end(&s);
            close_pairs(&s, i, head + kv * each, each);
        }
    }
}

static void attend_part(const qn_attend_args *a, int64_t n_rows, int64_t head, int64_t n_heads, int64_t begin,
                        int64_t end, float *parts, void *scratch)
{
    attend_state s = state_of(a, head / (a->n_heads / a->kv.kv_heads), scratch);
    s.n_each = n_rows * n_heads;
    open_pairs(&s, 0, head, n_heads);
    dots_begin(&s);
    attend_groups(&s, begin, end, parts);
    dots_end(&s);
}

static void attend_merge(const qn_attend_args *a, int64_t n_rows, int64_t head, int64_t n_heads,
                         const float *parts, void *scratch)
{
    attend_state s = state_of(a, head / (a->n_heads / a->kv.kv_heads), scratch);
    const int64_t row = qn_attend_part_row(a->kv.dtype, a->kv.v_dim);
    int64_t begin, end;
    s.n_each = n_rows * n_heads;
    open_pairs(&s, 0, head, n_heads);
    groups_of(&s, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        for (int64_t first = 0; first < s.n_pairs; first += 8) {
            int64_t n = s.n_pairs - first < 8 ? s.n_pairs - first : 8;
            const float *part = parts + ((i - begin) * s.n_pairs + first) * row;
            unsigned seen = 0;
            for (int64_t k = 0; k < n; k++) {
                s.now_largest[k] = part[k * row + s.v_pad];
                s.now_total[k] = part[k * row + s.v_pad + 1];
                seen |= (unsigned)!(s.now_total[k] < 0) << k;
            }
            merge_group(&s, first, n, seen, s.now_largest, s.now_total, part, row);
        }
    }
    close_pairs(&s, 0, head, n_heads);
}

#endif
