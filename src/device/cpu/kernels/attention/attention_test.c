/* Attention of every set: against a plain double computation, and equal bits whatever the tile of rows, the
 * split of heads, the page ids and the contents of what may not be seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "device/cpu/kernels/kernels.h"

enum { MOST_TOKENS = 800, MOST_PAGES = MOST_TOKENS / QN_PAGE_TOKENS + 2 };

typedef struct {
    int64_t kv_heads, group, head_dim, v_dim; /* group: query heads per kv head */
    int64_t n_tokens, window;
    qn_dtype dtype;
    float softcap;
    int sinks;
    int v_in_k; /* values are the first dimensions of the keys */
} shape;

typedef struct {
    shape s;
    qn_attend_args args;
    float *k, *v, *q; /* [token][heads][dim] */
    float *sinks;
    char *pool;
    size_t pool_bytes;
    int32_t blocks[MOST_PAGES];
    void *scratch;
} problem;

static uint64_t position_of_random;

static float uniform(double lo, double hi)
{
    return (float)(lo + (hi - lo) * qn_random_unit(11, position_of_random++));
}

static float *randoms(int64_t n, double lo, double hi)
{
    float *p = qn_alloc((size_t)n * sizeof *p);
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) p[i] = uniform(lo, hi);
    return p;
}

/* x [32] times the Hadamard matrix. */
static void turn(float *x)
{
    for (int step = 1; step < 32; step *= 2) {
        for (int i = 0; i < 32; i++) {
            if (i & step) continue;
            float sum = x[i] + x[i + step], difference = x[i] - x[i + step];
            x[i] = sum;
            x[i + step] = difference;
        }
    }
}

/* What Q8_0 and Q4_0 keep of a block: multiples, -127 to 127, of the largest / 127, or -8 to 7, of what makes
 * the largest -8, rounded to f16. Q4_0 keeps all 32 numbers of the block turned, whatever n. */
static void keep_block(const qn_kernels *k, qn_dtype dtype, const float *x, int64_t n, float *out)
{
    const int four = dtype == QN_DTYPE_Q4_0;
    float block[32] = {0}, largest = 0, scale;
    uint16_t half;
    memcpy(block, x, (size_t)n * sizeof *x);
    if (four) turn(block);
    for (int i = 0; i < 32; i++) largest = fabsf(block[i]) > fabsf(largest) ? block[i] : largest;
    scale = four ? largest / -8 : fabsf(largest) / 127;
    k->from_f32(QN_DTYPE_F16, &scale, &half, 1);
    k->to_f32(QN_DTYPE_F16, &half, &scale, 1);
    for (int i = 0; i < 32; i++) {
        float steps = rintf(block[i] * (1 / scale));
        block[i] = fminf(four ? 7 : 127, fmaxf(four ? -8 : -127, steps)) * scale;
    }
    if (four) turn(block);
    for (int64_t i = 0; i < n; i++) out[i] = four ? block[i] / 32 : block[i];
}

/* What a page keeps of x, in heads of dim numbers. */
static float *kept(const qn_kernels *k, qn_dtype dtype, const float *x, int64_t n, int64_t dim)
{
    float *out = qn_alloc((size_t)n * sizeof *out);
    uint16_t *halves = qn_alloc((size_t)n * sizeof *halves);
    assert_true(out && halves);
    memcpy(out, x, (size_t)n * sizeof *out);
    if (dtype == QN_DTYPE_Q8_0 || dtype == QN_DTYPE_Q4_0) {
        for (int64_t i = 0; i < n; i += dim)
            for (int64_t j = 0; j < dim; j += 32)
                keep_block(k, dtype, x + i + j, dim - j < 32 ? dim - j : 32, out + i + j);
    } else if (dtype != QN_DTYPE_F32) {
        k->from_f32(dtype, x, halves, n);
        k->to_f32(dtype, halves, out, n);
    }
    qn_free(halves);
    return out;
}

static void problem_open(problem *p, const shape *s)
{
    memset(p, 0, sizeof *p);
    p->s = *s;
    qn_kv_layout *kv = &p->args.kv;
    kv->dtype = s->dtype;
    kv->kv_heads = s->kv_heads;
    kv->head_dim = s->head_dim;
    kv->v_dim = s->v_dim;
    /* Exactly as large as a page must be, so that the address sanitizer sees a read behind the last one. */
    kv->v_in_k = s->v_in_k;
    kv->page_stride_bytes = qn_kv_page_bytes(s->dtype, s->kv_heads, s->head_dim, s->v_in_k ? 0 : s->v_dim);
    int64_t n_pages = (s->n_tokens + QN_PAGE_TOKENS - 1) / QN_PAGE_TOKENS, n_heads = s->kv_heads * s->group;
    p->pool_bytes = kv->page_stride_bytes * (size_t)n_pages;
    p->pool = qn_alloc(p->pool_bytes);
    p->scratch = qn_alloc(qn_attend_scratch_bytes(s->dtype, s->head_dim, s->v_dim));
    assert_true(p->pool && p->scratch);
    kv->pages = p->pool;
    for (int64_t i = 0; i < MOST_PAGES; i++) p->blocks[i] = i < n_pages ? (int32_t)i : -1;
    for (int64_t i = n_pages - 1; i > 0; i--) {
        int64_t j = (int64_t)(qn_random_bits(12, position_of_random++) % (uint64_t)(i + 1));
        int32_t t = p->blocks[i];
        p->blocks[i] = p->blocks[j];
        p->blocks[j] = t;
    }
    p->k = randoms(s->n_tokens * s->kv_heads * s->head_dim, -2, 2);
    p->v = randoms(s->n_tokens * s->kv_heads * s->v_dim, -1, 1);
    p->q = randoms(s->n_tokens * n_heads * s->head_dim, -2, 2);
    p->sinks = s->sinks ? randoms(n_heads, -1, 4) : NULL;
    p->args.n_heads = n_heads;
    p->args.q_stride = n_heads * s->head_dim;
    p->args.out_stride = n_heads * s->v_dim;
    p->args.blocks = p->blocks;
    p->args.window = s->window;
    p->args.scale = (float)(1 / sqrt((double)s->head_dim));
    p->args.softcap = s->softcap;
    p->args.sinks = p->sinks;
}

static void problem_close(problem *p)
{
    qn_free(p->k);
    qn_free(p->v);
    qn_free(p->q);
    qn_free(p->sinks);
    qn_free(p->pool);
    qn_free(p->scratch);
}

/* All bytes 0xff are NaN in both types. */
static void poison(problem *p)
{
    memset(p->pool, 0xff, p->pool_bytes);
}

/* The values that are parts of keys. */
static void take_values(const problem *p, const float *keys, float *values)
{
    for (int64_t i = 0; i < p->s.n_tokens * p->s.kv_heads; i++)
        memcpy(values + i * p->s.v_dim, keys + i * p->s.head_dim, (size_t)p->s.v_dim * sizeof *values);
}

static void write_token(const problem *p, const qn_kernels *k, int64_t t)
{
    const int64_t k_row = p->s.kv_heads * p->s.head_dim, v_row = p->s.kv_heads * p->s.v_dim;
    const int64_t some = p->s.kv_heads / 2, page = p->blocks[t / QN_PAGE_TOKENS], slot = t % QN_PAGE_TOKENS;
    k->kv_write(&p->args.kv, 0, some, page, slot, 1, p->k + t * k_row, k_row, p->v + t * v_row, v_row);
    k->kv_write(&p->args.kv, some, p->s.kv_heads - some, page, slot, 1,
                p->k + t * k_row + some * p->s.head_dim, k_row, p->v + t * v_row + some * p->s.v_dim, v_row);
}

/* Rows [first, first + n) into out (row 0 of the sequence), in runs of at most n_heads heads: some of one kv
 * head or all of several. */
static void attend_rows(const problem *p, const qn_kernels *k, int64_t first, int64_t n, int64_t n_heads,
                        float *out)
{
    qn_attend_args a = p->args;
    int32_t blocks[MOST_PAGES];
    memcpy(blocks, p->blocks, sizeof blocks);
    int64_t lowest = a.window && first >= a.window ? first - a.window + 1 : 0;
    for (int64_t i = 0; i < lowest / QN_PAGE_TOKENS; i++) blocks[i] = -1;
    for (int64_t i = (first + n - 1) / QN_PAGE_TOKENS + 1; i < MOST_PAGES; i++) blocks[i] = -1;
    a.blocks = blocks;
    a.position = first;
    a.q = p->q + first * a.q_stride;
    a.out = out + first * a.out_stride;
    for (int64_t h = 0; h < a.n_heads;) {
        int64_t left = p->s.group - h % p->s.group, run = left < n_heads ? left : n_heads;
        if (h % p->s.group == 0 && run == p->s.group) run = n_heads / run * run;
        if (run > a.n_heads - h) run = a.n_heads - h;
        k->attend(&a, n, h, run, p->scratch);
        h += run;
    }
}

/* Where a set multiplies 16-bit numbers q and p are rounded: to 8 bits in bf16, to 15 against Q8_0 and Q4_0,
 * whose larger steps make some scores larger. */
static double tolerance(const qn_kernels *k, qn_dtype dtype)
{
    if (!qn_attend_rounds(k, dtype)) return 3e-6;
    return dtype == QN_DTYPE_BF16 ? 1e-2 : dtype == QN_DTYPE_Q8_0 ? 1e-4 : 2e-4;
}

static void check_row(const problem *p, const qn_kernels *k, const float *keys, const float *values,
                      int64_t row, const float *out)
{
    const shape *s = &p->s;
    static double scores[MOST_TOKENS];
    for (int64_t h = 0; h < p->args.n_heads; h++) {
        int64_t kv_head = h / s->group, lo = s->window && row >= s->window ? row - s->window + 1 : 0;
        double m = p->sinks ? p->sinks[h] : -INFINITY, total = 0;
        for (int64_t t = lo; t <= row; t++) {
            double x = 0;
            for (int64_t d = 0; d < s->head_dim; d++) {
                x += (double)p->q[row * p->args.q_stride + h * s->head_dim + d] *
                     keys[(t * s->kv_heads + kv_head) * s->head_dim + d];
            }
            x *= p->args.scale;
            if (s->softcap != 0) x = s->softcap * tanh(x / s->softcap);
            scores[t] = x;
            m = x > m ? x : m;
        }
        if (p->sinks) total = exp(p->sinks[h] - m);
        for (int64_t t = lo; t <= row; t++) total += scores[t] = exp(scores[t] - m);
        for (int64_t d = 0; d < s->v_dim; d++) {
            double y = 0;
            for (int64_t t = lo; t <= row; t++) {
                y += scores[t] / total * values[(t * s->kv_heads + kv_head) * s->v_dim + d];
            }
            double x = out[row * p->args.out_stride + h * s->v_dim + d];
            if (!(fabs(x - y) < tolerance(k, s->dtype))) {
                fail_msg(
                    "%s: head_dim %d, v_dim %d, window %d, row %d, head %d, element %d: %.9g instead of %.9g",
                    k->name, (int)s->head_dim, (int)s->v_dim, (int)s->window, (int)row, (int)h, (int)d, x, y);
            }
        }
    }
}

static const shape shapes[] = {
    {1, 1, 16, 16, 70, 0, QN_DTYPE_F32, 0, 0, 0},     {2, 2, 24, 24, 300, 0, QN_DTYPE_F16, 0, 0, 0},
    {3, 3, 64, 64, 290, 0, QN_DTYPE_F16, 0, 0, 0},    {1, 4, 256, 256, 70, 40, QN_DTYPE_F16, 0, 0, 0},
    {1, 4, 32, 32, 600, 512, QN_DTYPE_F32, 30, 0, 0}, {2, 3, 32, 32, 540, 7, QN_DTYPE_F16, 0, 1, 0},
    {1, 9, 64, 48, 290, 100, QN_DTYPE_F16, 50, 1, 0}, {1, 5, 10, 7, 280, 33, QN_DTYPE_F32, 0, 1, 0},
    {1, 2, 34, 33, 520, 300, QN_DTYPE_F16, 20, 0, 0}, {1, 1, 128, 128, 800, 0, QN_DTYPE_F16, 0, 0, 0},
    {1, 16, 16, 80, 280, 1, QN_DTYPE_F16, 0, 0, 0},   {1, 8, 80, 16, 530, 256, QN_DTYPE_F32, 0, 1, 0},
    {1, 3, 512, 512, 40, 0, QN_DTYPE_F16, 0, 0, 0},   {1, 1, 192, 128, 260, 0, QN_DTYPE_F32, 0, 0, 0},
    {2, 2, 24, 24, 300, 0, QN_DTYPE_BF16, 0, 0, 0},   {3, 3, 64, 64, 290, 100, QN_DTYPE_BF16, 0, 1, 0},
    {1, 5, 9, 7, 540, 33, QN_DTYPE_BF16, 20, 1, 0},   {1, 1, 128, 128, 800, 0, QN_DTYPE_BF16, 0, 0, 0},
    {1, 9, 64, 48, 290, 1, QN_DTYPE_BF16, 0, 0, 0},   {1, 2, 256, 256, 300, 270, QN_DTYPE_BF16, 0, 0, 0},
    {2, 2, 24, 24, 300, 0, QN_DTYPE_Q8_0, 0, 0, 0},   {3, 3, 64, 64, 290, 100, QN_DTYPE_Q8_0, 0, 1, 0},
    {1, 5, 9, 7, 540, 33, QN_DTYPE_Q8_0, 20, 1, 0},   {1, 1, 128, 128, 800, 0, QN_DTYPE_Q8_0, 0, 0, 0},
    {1, 9, 80, 48, 290, 1, QN_DTYPE_Q8_0, 0, 0, 0},   {1, 2, 256, 256, 300, 270, QN_DTYPE_Q8_0, 0, 0, 0},
    {7, 2, 16, 16, 290, 0, QN_DTYPE_F16, 0, 1, 0},    {8, 2, 16, 7, 290, 90, QN_DTYPE_F16, 0, 0, 0},
    {5, 3, 32, 48, 300, 0, QN_DTYPE_F32, 0, 0, 0},    {14, 1, 16, 16, 290, 0, QN_DTYPE_BF16, 0, 1, 0},
    {5, 4, 24, 16, 540, 100, QN_DTYPE_BF16, 9, 0, 0}, {9, 1, 64, 32, 290, 0, QN_DTYPE_Q8_0, 0, 1, 0},
    {4, 5, 16, 64, 300, 70, QN_DTYPE_Q8_0, 0, 0, 0},  {1, 4, 32, 24, 300, 0, QN_DTYPE_F32, 0, 0, 1},
    {1, 16, 40, 32, 290, 0, QN_DTYPE_F16, 0, 0, 1},   {1, 3, 40, 33, 540, 100, QN_DTYPE_BF16, 0, 0, 1},
    {1, 9, 80, 70, 290, 0, QN_DTYPE_Q8_0, 0, 1, 1},   {2, 2, 24, 7, 300, 33, QN_DTYPE_F16, 9, 0, 1},
    {2, 2, 24, 24, 300, 0, QN_DTYPE_Q4_0, 0, 0, 0},   {3, 3, 64, 64, 290, 100, QN_DTYPE_Q4_0, 0, 1, 0},
    {1, 5, 9, 7, 540, 33, QN_DTYPE_Q4_0, 20, 1, 0},   {1, 1, 128, 128, 800, 0, QN_DTYPE_Q4_0, 0, 0, 0},
    {1, 9, 80, 48, 290, 1, QN_DTYPE_Q4_0, 0, 0, 0},   {1, 2, 256, 256, 300, 270, QN_DTYPE_Q4_0, 0, 0, 0},
    {9, 1, 64, 32, 290, 0, QN_DTYPE_Q4_0, 0, 1, 0},   {4, 5, 16, 96, 300, 70, QN_DTYPE_Q4_0, 0, 0, 0},
    {1, 9, 80, 70, 290, 0, QN_DTYPE_Q4_0, 0, 1, 1},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* Rows around the start, the edge of the first group and the end: range i in [begin, end), 0 when there is
 * none. */
static int row_range(const shape *s, int i, int64_t *begin, int64_t *end)
{
    const int64_t begins[] = {0, 236, s->n_tokens - 29}, ends[] = {45, 275, s->n_tokens};
    if (i == 3) return 0;
    *begin = i && begins[i] < ends[i - 1] ? ends[i - 1] : begins[i];
    *end = ends[i] < s->n_tokens ? ends[i] : s->n_tokens;
    return 1;
}

static int wanted(const shape *s, int64_t row)
{
    int64_t begin, end;
    for (int i = 0; row_range(s, i, &begin, &end); i++) {
        if (row >= begin && row < end) return 1;
    }
    return 0;
}

static void test_against_double(void **unused)
{
    for (const char *const *name = qn_kernels_names(); *name; name++) {
        const qn_kernels *k = qn_kernels_by_name(*name);
        position_of_random = 0;
        for (int i = 0; i < N_SHAPES; i++) {
            problem p;
            problem_open(&p, &shapes[i]);
            poison(&p);
            float *out = qn_alloc((size_t)(p.s.n_tokens * p.args.out_stride) * sizeof *out);
            assert_non_null(out);
            float *keys = kept(k, p.s.dtype, p.k, p.s.n_tokens * p.s.kv_heads * p.s.head_dim, p.s.head_dim);
            float *values = kept(k, p.s.dtype, p.v, p.s.n_tokens * p.s.kv_heads * p.s.v_dim, p.s.v_dim);
            if (p.s.v_in_k) take_values(&p, keys, values);
            /* As a sequence grows: what lies behind a row is not there yet. */
            for (int64_t row = 0; row < p.s.n_tokens; row++) {
                write_token(&p, k, row);
                if (!wanted(&p.s, row)) continue;
                attend_rows(&p, k, row, 1, 16, out);
                check_row(&p, k, keys, values, row, out);
            }
            qn_free(keys);
            qn_free(values);
            qn_free(out);
            problem_close(&p);
        }
    }
}

static void attend_ranges(const problem *p, const qn_kernels *k, int64_t tile, int64_t n_heads, float *out)
{
    int64_t begin, end;
    for (int i = 0; row_range(&p->s, i, &begin, &end); i++) {
        for (int64_t row = begin; row < end; row += tile) {
            attend_rows(p, k, row, end - row < tile ? end - row : tile, n_heads, out);
        }
    }
}

/* Heads of each kv head together, groups computed one by one from the last to the first, then merged. */
static void attend_parts(const problem *p, const qn_kernels *k, int64_t first, int64_t n, float *out)
{
    qn_attend_args a = p->args;
    a.position = first;
    a.q = p->q + first * a.q_stride;
    a.out = out + first * a.out_stride;
    int64_t lowest = a.window && first >= a.window ? first - a.window + 1 : 0, begin = lowest / QN_ATTN_GROUP,
            end = (first + n - 1) / QN_ATTN_GROUP + 1;
    size_t bytes = qn_attend_part_bytes(p->s.dtype, p->s.v_dim, n * p->s.group);
    char *parts = qn_alloc(bytes * (size_t)(end - begin));
    assert_non_null(parts);
    for (int64_t h = 0; h < a.n_heads; h += p->s.group) {
        for (int64_t g = end; g-- > begin;)
            k->attend_part(&a, n, h, p->s.group, g, g + 1, (float *)(parts + (size_t)(g - begin) * bytes),
                           p->scratch);
        k->attend_merge(&a, n, h, p->s.group, (const float *)parts, p->scratch);
    }
    qn_free(parts);
}

/* The reference: one row and one head at a time, just after the row's token was written into poisoned pages.
 * Then all at once, in tiles of every size and with heads together, while the pages hold the tokens behind
 * the row too and NaN in one of them. */
static void test_bits(void **unused)
{
    for (const char *const *name = qn_kernels_names(); *name; name++) {
        const qn_kernels *k = qn_kernels_by_name(*name);
        position_of_random = 0;
        for (int i = 0; i < N_SHAPES; i++) {
            problem p;
            problem_open(&p, &shapes[i]);
            size_t n = (size_t)(p.s.n_tokens * p.args.out_stride);
            float *first = qn_calloc(n, sizeof *first), *out = qn_alloc(n * sizeof *out);
            assert_true(first && out);
            poison(&p);
            for (int64_t row = 0; row < p.s.n_tokens; row++) {
                write_token(&p, k, row);
                if (wanted(&p.s, row)) attend_rows(&p, k, row, 1, 1, first);
            }
            for (int64_t tile = 1; tile <= QN_ATTN_ROWS; tile += tile < 9 ? 1 : 5) {
                int64_t n_heads = tile % 3 == 0 ? 2 : tile % 3 == 1 ? 64 : 3;
                memset(out, 0, n * sizeof *out);
                attend_ranges(&p, k, tile, n_heads, out);
                assert_memory_equal(out, first, n * sizeof *out);
            }
            memset(out, 0, n * sizeof *out);
            int64_t begin, end;
            for (int r = 0; row_range(&p.s, r, &begin, &end); r++)
                for (int64_t row = begin; row < end; row += 3)
                    attend_parts(&p, k, row, end - row < 3 ? end - row : 3, out);
            assert_memory_equal(out, first, n * sizeof *out);
            /* A token that is not a number spoils the rows that see it and no other; other page ids change
             * nothing. */
            int64_t bad = p.s.n_tokens - 5;
            for (int64_t d = 0; d < p.s.kv_heads * p.s.v_dim; d++)
                p.v[bad * p.s.kv_heads * p.s.v_dim + d] = NAN;
            for (int64_t d = 0; d < p.s.kv_heads * p.s.head_dim; d++)
                p.k[bad * p.s.kv_heads * p.s.head_dim + d] = NAN;
            int32_t t = p.blocks[0];
            p.blocks[0] = p.blocks[1];
            p.blocks[1] = t;
            poison(&p);
            for (int64_t row = 0; row < p.s.n_tokens; row++) write_token(&p, k, row);
            attend_ranges(&p, k, QN_ATTN_ROWS, 16, out);
            for (int64_t row = 0; row < p.s.n_tokens; row++) {
                if (!wanted(&p.s, row)) continue;
                int sees = row >= bad && (p.s.window == 0 || bad > row - p.s.window);
                const float *x = out + row * p.args.out_stride;
                if (sees)
                    assert_true(isnan(x[0]) && isnan(x[p.args.out_stride - 1]));
                else
                    assert_memory_equal(x, first + row * p.args.out_stride,
                                        (size_t)p.args.out_stride * sizeof *x);
            }
            qn_free(first);
            qn_free(out);
            problem_close(&p);
        }
    }
}

/* The pages' bytes are the same on every set, and a write touches its own slot alone. */
static void test_kv_write(void **unused)
{
    for (int i = 0; i < N_SHAPES; i++) {
        position_of_random = 77;
        problem p;
        problem_open(&p, &shapes[i]);
        char *first = qn_alloc(p.pool_bytes);
        assert_non_null(first);
        p.k[3] = INFINITY;
        p.v[5] = 1e6f;
        p.v[6] = 1e-7f;
        for (const char *const *name = qn_kernels_names(); *name; name++) {
            const qn_kernels *k = qn_kernels_by_name(*name);
            poison(&p);
            for (int64_t t = 0; t < p.s.n_tokens; t += 2) write_token(&p, k, t);
            for (int64_t t = 1; t < p.s.n_tokens; t += 2) write_token(&p, k, t);
            if (name == qn_kernels_names()) memcpy(first, p.pool, p.pool_bytes);
            assert_memory_equal(first, p.pool, p.pool_bytes);
            poison(&p);
            for (int64_t t = p.s.n_tokens; t-- > 0;) write_token(&p, k, t);
            assert_memory_equal(first, p.pool, p.pool_bytes);
        }
        qn_free(first);
        problem_close(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_double),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_kv_write),
    };
    return cmocka_run_group_tests_name("kernels/attention", tests, NULL, NULL);
}
