/* Attention over pages, in two levels: inside a group of QN_ATTN_GROUP absolute positions
 *     s[t] = scale q.k[t]     a lane is a token, one chain of multiply-adds over head_dim
 *     m = max s, p[t] = exp(s[t] - m), l = sum p     lane t % 16, then the fixed tree
 *     acc[d] = sum p[t] v[t][d]     a lane is a dimension, one chain in rising t
 * and then the groups' (m, l, acc) are merged in rising order. Every chain belongs to one row and one head
 * and holds exactly the positions that the row sees, so the bits do not depend on which other rows and heads
 * share the call.
 *
 * The rows of the micro-kernel are pairs of row and head, row by row: what a row sees moves up with the row,
 * so pairs that see a given position stand side by side. */
#ifndef QN_KERNELS_ATTENTION_BODY_H
#define QN_KERNELS_ATTENTION_BODY_H

#include "kernels/math.body.h"
#include "kernels/tile.body.h"

typedef struct {
    const qn_attend_args *a;
    int64_t kv_head;
    int64_t n_pairs, v_pad;                                     /* v_pad: v_dim in whole vectors */
    int64_t lo[QN_ATTN_PAIRS_MAX], hi[QN_ATTN_PAIRS_MAX];       /* pair i sees positions [lo, hi) */
    float largest[QN_ATTN_PAIRS_MAX], total[QN_ATTN_PAIRS_MAX]; /* of the groups so far */
    float group_largest[QN_ATTN_PAIRS_MAX], group_total[QN_ATTN_PAIRS_MAX];
    float *q;      /* [head_dim][V_TILE_ROWS] per tile: broadcasts come from one line */
    float *scores; /* [pair][QN_ATTN_SCORES], of the current group */
    float *sums;   /* [pair][v_pad], of the current group */
    float *merged; /* [pair][v_pad], of the groups so far */
    float *page;   /* one page of one head as f32 */
} attend_state;

static inline size_t kv_element(const qn_kv_layout *kv)
{
    return kv->dtype == QN_DTYPE_F32 ? 4 : 2;
}

static inline const char *k_page(const attend_state *s, int64_t position)
{
    const qn_kv_layout *kv = &s->a->kv;
    const char *page = kv->pages + (size_t)s->a->blocks[position / QN_PAGE_TOKENS] * kv->page_stride_bytes;
    return page + (size_t)(s->kv_head * kv->head_dim * QN_PAGE_TOKENS) * kv_element(kv);
}

static inline const char *v_page(const attend_state *s, int64_t position)
{
    const qn_kv_layout *kv = &s->a->kv;
    const char *page = kv->pages + (size_t)s->a->blocks[position / QN_PAGE_TOKENS] * kv->page_stride_bytes;
    return page +
           (size_t)((kv->kv_heads * kv->head_dim + s->kv_head * kv->v_dim) * QN_PAGE_TOKENS) * kv_element(kv);
}

static inline void attend_tile(const tile_args *t, int rows, int64_t n_vecs, int half)
{
    if (half)
        tile_any(t, rows, n_vecs, 1);
    else
        tile_any(t, rows, n_vecs, 0);
}

/* Rows of n elements to f32 rows padded with zeros to whole vectors. */
static void widen(float *out, int64_t out_stride, const void *x, int half, int64_t n_rows, int64_t n)
{
    for (int64_t r = 0; r < n_rows; r++) {
        const float *full = half ? NULL : (const float *)x + r * n;
        const uint16_t *halves = half ? (const uint16_t *)x + r * n : NULL;
        int64_t i = 0;
        for (; i + 16 <= n; i += 16)
            v_store(out + r * out_stride + i, half ? v_load_f16(halves + i) : v_load(full + i));
        if (i == n) continue;
        if (half) {
            uint16_t last[16] = {0};
            memcpy(last, halves + i, (size_t)(n - i) * sizeof *last);
            v_store(out + r * out_stride + i, v_load_f16(last));
        } else {
            v_store(out + r * out_stride + i, v_load_n(full + i, (int)(n - i)));
        }
    }
}

static inline int64_t pairs_of_tile(const attend_state *s, int64_t first)
{
    return s->n_pairs - first < V_TILE_ROWS ? s->n_pairs - first : V_TILE_ROWS;
}

/* Scores of pages that hold positions [begin, end) of the group that starts at group. */
static void score_pages(attend_state *s, int64_t group, int64_t begin, int64_t end)
{
    const qn_kv_layout *kv = &s->a->kv;
    int half = kv->dtype == QN_DTYPE_F16;
    int widened = half && s->n_pairs > V_TILE_ROWS;
    for (int64_t p = begin / QN_PAGE_TOKENS * QN_PAGE_TOKENS; p < end; p += QN_PAGE_TOKENS) {
        tile_args t = {.c_row = QN_ATTN_SCORES,
                       .a_row = 1,
                       .a_k = V_TILE_ROWS,
                       .b = k_page(s, p),
                       .b_k = QN_PAGE_TOKENS,
                       .n_k = kv->head_dim,
                       .from_zero = 1};
        t.next = p + QN_PAGE_TOKENS < end ? k_page(s, p + QN_PAGE_TOKENS) : v_page(s, begin);
        if (widened) {
            widen(s->page, QN_PAGE_TOKENS, t.b, 1, kv->head_dim, QN_PAGE_TOKENS);
            t.b = s->page;
        }
        for (int64_t i = 0; i < s->n_pairs; i += V_TILE_ROWS) {
            t.c = s->scores + i * QN_ATTN_SCORES + (p - group);
            t.a = s->q + i * kv->head_dim;
            attend_tile(&t, (int)pairs_of_tile(s, i), QN_PAGE_TOKENS / 16, half && !widened);
        }
    }
}

static inline vf visible(int64_t lo, int64_t hi, int64_t i, vf x, float otherwise)
{
    if (lo <= i && i + 16 <= hi) return x;
    return v_select(v_lanes((int)(lo > i ? lo - i : 0), (int)(hi < i + 16 ? hi - i : 16)), x,
                    v_set1(otherwise));
}

/* Scores to probabilities, in place, for one pair that sees [lo, hi) of the group. */
static void group_softmax(const attend_state *s, float *x, int64_t lo, int64_t hi, float *largest,
                          float *total)
{
    vf scale = v_set1(s->a->scale), cap = v_set1(s->a->softcap), m = v_set1(-INFINITY), sum = v_set1(0);
    int64_t first = lo / 16 * 16;
    for (int64_t i = first; i < hi; i += 16) {
        vf y = v_mul(v_load(x + i), scale);
        if (s->a->softcap != 0) y = v_mul(cap, v_tanh(v_div(y, cap)));
        v_store(x + i, y);
        m = v_max(m, visible(lo, hi, i, y, -INFINITY));
    }
    *largest = v_largest(m);
    m = v_set1(*largest);
    for (int64_t i = first; i < hi; i += 16) {
        vf p = visible(lo, hi, i, v_exp(v_sub(v_load(x + i), m)), 0);
        v_store(x + i, p);
        sum = v_add(sum, p);
    }
    *total = v_sum(sum);
}

/* sums += p v for the pairs [first, first + n) of one tile and the positions of one page (b, from position p
 * on). The page is cut where the set of pairs that see a position changes, so that no pair ever touches a
 * value it may not see. */
static void weigh_page(attend_state *s, const tile_args *page, int half, int64_t group, int64_t p,
                       int64_t first, int64_t n)
{
    const int64_t *lo = s->lo, *hi = s->hi, past = first + n;
    const size_t element = half ? 2 : 4;
    int64_t t = p, end = p + QN_PAGE_TOKENS, a = first;
    for (;;) {
        while (a < past && hi[a] <= t) a++;
        if (a == past) return;
        if (lo[a] > t) t = lo[a];
        if (t >= end) return;
        int64_t b = a, until = hi[a] < end ? hi[a] : end;
        while (b < past && lo[b] <= t) b++;
        if (b < past && lo[b] < until) until = lo[b];
        tile_args k = *page;
        k.c = s->sums + a * s->v_pad;
        k.a = s->scores + a * QN_ATTN_SCORES + (t - group);
        k.b = (const char *)page->b + (size_t)((t - p) * page->b_k) * element;
        if (page->next) k.next = page->next + (size_t)((t - p) * page->b_k) * element;
        k.n_k = until - t;
        attend_tile(&k, (int)(b - a), s->v_pad / 16, half);
        t = until;
    }
}

static void weigh_pages(attend_state *s, int64_t group, int64_t begin, int64_t end)
{
    const qn_kv_layout *kv = &s->a->kv;
    int half = kv->dtype == QN_DTYPE_F16;
    int widened = s->v_pad != kv->v_dim || (half && s->n_pairs > V_TILE_ROWS);
    memset(s->sums, 0, (size_t)(s->n_pairs * s->v_pad) * sizeof *s->sums);
    for (int64_t p = begin / QN_PAGE_TOKENS * QN_PAGE_TOKENS; p < end; p += QN_PAGE_TOKENS) {
        tile_args t = {
            .c_row = s->v_pad, .a_row = QN_ATTN_SCORES, .a_k = 1, .b = v_page(s, p), .b_k = s->v_pad};
        if (p + QN_PAGE_TOKENS < end)
            t.next = v_page(s, p + QN_PAGE_TOKENS);
        else if (end < s->hi[s->n_pairs - 1])
            t.next = k_page(s, end);
        if (widened) {
            widen(s->page, s->v_pad, t.b, half, QN_PAGE_TOKENS, kv->v_dim);
            t.b = s->page;
        }
        for (int64_t i = 0; i < s->n_pairs; i += V_TILE_ROWS) {
            weigh_page(s, &t, half && !widened, group, p, i, pairs_of_tile(s, i));
        }
    }
}

/* exp of one number, by the set's own exp. */
static inline float exp_one(float x)
{
    return v_first(v_exp(v_set1(x)));
}

/* out = out * keep + x * add */
static inline void blend(float *out, const float *x, float keep, float add, int64_t n)
{
    vf k = v_set1(keep), f = v_set1(add);
    for (int64_t i = 0; i < n; i += 16) v_store(out + i, v_fma(v_load(out + i), k, v_mul(v_load(x + i), f)));
}

static void merge_group(attend_state *s, int64_t i)
{
    float *out = s->merged + i * s->v_pad;
    const float *x = s->sums + i * s->v_pad;
    float old = s->largest[i], now = s->group_largest[i];
    if (s->total[i] < 0) { /* the first group that the pair sees */
        memcpy(out, x, (size_t)s->v_pad * sizeof *out);
        s->largest[i] = now;
        s->total[i] = s->group_total[i];
        return;
    }
    float m = old > now ? old : now;
    float keep = exp_one(old - m), add = exp_one(now - m);
    blend(out, x, keep, add, s->v_pad);
    s->largest[i] = m;
    s->total[i] = s->total[i] * keep + s->group_total[i] * add;
}

static void attend_pairs(attend_state *s, int64_t first, int64_t head, int64_t n_heads)
{
    const qn_attend_args *a = s->a;
    for (int64_t i = 0; i < s->n_pairs; i++) {
        int64_t row = (first + i) / n_heads, h = head + (first + i) % n_heads, position = a->position + row;
        const float *q = a->q + row * a->q_stride + h * a->kv.head_dim;
        float *packed = s->q + i / V_TILE_ROWS * V_TILE_ROWS * a->kv.head_dim + i % V_TILE_ROWS;
        for (int64_t d = 0; d < a->kv.head_dim; d++) packed[d * V_TILE_ROWS] = q[d];
        s->lo[i] = a->window > 0 && position >= a->window ? position - a->window + 1 : 0;
        s->hi[i] = position + 1;
        s->total[i] = -1.0f;
    }
    int64_t lowest = s->lo[0], past = s->hi[s->n_pairs - 1];
    for (int64_t g = lowest / QN_ATTN_GROUP * QN_ATTN_GROUP; g < past; g += QN_ATTN_GROUP) {
        int64_t begin = g > lowest ? g : lowest, end = g + QN_ATTN_GROUP < past ? g + QN_ATTN_GROUP : past;
        score_pages(s, g, begin, end);
        for (int64_t i = 0; i < s->n_pairs; i++) {
            int64_t lo = s->lo[i] > g ? s->lo[i] : g, hi = s->hi[i] < end ? s->hi[i] : end;
            if (lo >= hi) continue;
            group_softmax(s, s->scores + i * QN_ATTN_SCORES, lo - g, hi - g, &s->group_largest[i],
                          &s->group_total[i]);
        }
        weigh_pages(s, g, begin, end);
        for (int64_t i = 0; i < s->n_pairs; i++) {
            if (s->lo[i] < end && s->hi[i] > g) merge_group(s, i);
        }
    }
    for (int64_t i = 0; i < s->n_pairs; i++) {
        int64_t row = (first + i) / n_heads, h = head + (first + i) % n_heads;
        float *x = s->merged + i * s->v_pad, total = s->total[i];
        float *out = a->out + row * a->out_stride + h * a->kv.v_dim;
        if (a->sinks) {
            float m = s->largest[i] > a->sinks[h] ? s->largest[i] : a->sinks[h];
            float keep = exp_one(s->largest[i] - m);
            blend(x, x, keep, 0, s->v_pad);
            total = total * keep + exp_one(a->sinks[h] - m);
        }
        for (int64_t d = 0; d < a->kv.v_dim; d += 16) {
            vf y = v_div(v_load(x + d), v_set1(total));
            if (d + 16 <= a->kv.v_dim)
                v_store(out + d, y);
            else
                v_store_n(out + d, y, (int)(a->kv.v_dim - d));
        }
    }
}

static void attend(const qn_attend_args *a, int64_t n_rows, int64_t head, int64_t n_heads, void *scratch)
{
    attend_state s = {
        .a = a, .kv_head = head / (a->n_heads / a->kv.kv_heads), .v_pad = (a->kv.v_dim + 15) / 16 * 16};
    s.scores = scratch;
    s.sums = s.scores + QN_ATTN_PAIRS_MAX * QN_ATTN_SCORES;
    s.merged = s.sums + QN_ATTN_PAIRS_MAX * s.v_pad;
    s.page = s.merged + QN_ATTN_PAIRS_MAX * s.v_pad;
    s.q = s.page + QN_PAGE_TOKENS * (a->kv.head_dim > s.v_pad ? a->kv.head_dim : s.v_pad);
    int64_t n_pairs = n_rows * n_heads;
    for (int64_t i = 0; i < n_pairs; i += s.n_pairs) {
        s.n_pairs = n_pairs - i < V_ATTN_PAIRS ? n_pairs - i : V_ATTN_PAIRS;
        attend_pairs(&s, i, head, n_heads);
    }
}

static void kv_write(const qn_kv_layout *kv, int64_t page, int64_t slot, const float *k, const float *v)
{
    char *base = kv->pages + (size_t)page * kv->page_stride_bytes;
    const int half = kv->dtype == QN_DTYPE_F16;
    int64_t n_k = kv->kv_heads * kv->head_dim;
    for (int64_t i = 0; i < n_k; i += 16) {
        int n = n_k - i < 16 ? (int)(n_k - i) : 16;
        uint16_t halves[16];
        if (half) v_store_f16(halves, v_load_n(k + i, n));
        for (int j = 0; j < n; j++) {
            if (half)
                ((uint16_t *)base)[(i + j) * QN_PAGE_TOKENS + slot] = halves[j];
            else
                ((float *)base)[(i + j) * QN_PAGE_TOKENS + slot] = k[i + j];
        }
    }
    base += (size_t)(n_k * QN_PAGE_TOKENS) * kv_element(kv);
    for (int64_t h = 0; h < kv->kv_heads; h++) {
        int64_t at = (h * QN_PAGE_TOKENS + slot) * kv->v_dim;
        for (int64_t i = 0; i < kv->v_dim; i += 16) {
            int n = kv->v_dim - i < 16 ? (int)(kv->v_dim - i) : 16;
            vf x = v_load_n(v + h * kv->v_dim + i, n);
            uint16_t halves[16];
            if (half) {
                v_store_f16(halves, x);
                memcpy((uint16_t *)base + at + i, halves, (size_t)n * sizeof *halves);
            } else {
                v_store_n((float *)base + at + i, x, n);
            }
        }
    }
}

#endif
