#include "tests/kernels/kernel_attention.h"

#include <math.h>
#include <string.h>

#include "tests/kernels/kernel_compare.h"

/* Pages of one layer for some tokens, a NaN wherever nothing was written; the queries of a tile of rows. */
typedef struct {
    qn_attend_args a;
    int64_t group, n_rows, n_tokens, n_pages;
    const float *k, *v;
    size_t bytes;
} cache;

static cache random_cache(qn_test_dice *d, int64_t i)
{
    static const int64_t dims[] = {16, 64, 128, 80, 10, 34, 7, 256};
    static const qn_dtype kv_types[] = {QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_BF16, QN_DTYPE_Q8_0,
                                        QN_DTYPE_Q4_0};
    cache c = {.group = 1 + qn_test_roll(d, 5), .n_rows = 1 + qn_test_roll(d, QN_ATTN_ROWS)};
    qn_kv_layout *kv = &c.a.kv;
    kv->dtype = kv_types[i % 5];
    kv->kv_heads = 1 + qn_test_roll(d, 3);
    kv->head_dim = dims[qn_test_roll(d, 8)];
    kv->v_dim = qn_test_roll(d, 3) ? kv->head_dim : dims[qn_test_roll(d, 8)];
    kv->page_stride_bytes = qn_kv_page_bytes(kv->dtype, kv->kv_heads, kv->head_dim, kv->v_dim);
    c.n_tokens = c.n_rows + qn_test_roll(d, qn_test_roll(d, 2) ? 60 : 600);
    c.n_pages = (c.n_tokens + QN_PAGE_TOKENS - 1) / QN_PAGE_TOKENS;
    c.bytes = kv->page_stride_bytes * (size_t)c.n_pages;
    c.a.n_heads = kv->kv_heads * c.group;
    c.a.q_stride = c.a.n_heads * kv->head_dim;
    c.a.out_stride = c.a.n_heads * kv->v_dim;
    c.a.position = c.n_tokens - c.n_rows;
    c.a.window = qn_test_roll(d, 2) ? 1 + qn_test_roll(d, 300) : 0;
    c.a.chunk = qn_test_roll(d, 4) ? 0 : 1 + qn_test_roll(d, 300);
    c.a.chunk_at = c.a.chunk ? qn_test_roll(d, c.a.chunk) : 0;
    c.a.scale = (float)(1 / sqrt((double)kv->head_dim));
    c.a.softcap = qn_test_roll(d, 2) ? 30.0f : 0;
    c.k = qn_test_sealed(qn_test_random_floats(d, c.n_tokens * kv->kv_heads * kv->head_dim, -2, 2));
    c.v = qn_test_sealed(qn_test_random_floats(d, c.n_tokens * kv->kv_heads * kv->v_dim, -1, 1));
    c.a.q = qn_test_sealed(qn_test_random_floats(d, c.n_rows * c.a.q_stride, -2, 2));
    if (qn_test_roll(d, 2)) c.a.sinks = qn_test_sealed(qn_test_random_floats(d, c.a.n_heads, -1, 4));
    int32_t *blocks = qn_test_guarded((size_t)c.n_pages * sizeof *blocks, sizeof *blocks);
    for (int64_t p = 0; p < c.n_pages; p++) blocks[p] = (int32_t)(c.n_pages - 1 - p);
    c.a.blocks = qn_test_sealed(blocks);
    return c;
}

/* d: several tokens at once; NULL: one by one. */
static char *written_pages(const qn_kernels *k, const cache *c, qn_test_dice *d)
{
    qn_kv_layout kv = c->a.kv;
    const int64_t k_row = kv.kv_heads * kv.head_dim, v_row = kv.kv_heads * kv.v_dim;
    kv.pages = qn_test_guarded(c->bytes, 64);
    memset(kv.pages, 0xff, c->bytes);
    qn_test_at("%s kv_write, head_dim %d, v_dim %d, type %d", k->name, (int)kv.head_dim, (int)kv.v_dim,
               (int)kv.dtype);
    for (int64_t t = 0, n; t < c->n_tokens; t += n) {
        const int64_t slot = t % QN_PAGE_TOKENS, most = QN_PAGE_TOKENS - slot;
        n = !d ? 1 : qn_test_roll(d, 2) ? most : 1 + qn_test_roll(d, most);
        if (n > c->n_tokens - t) n = c->n_tokens - t;
        k->kv_write(&kv, 0, kv.kv_heads, c->a.blocks[t / QN_PAGE_TOKENS], slot, n, c->k + t * k_row, k_row,
                    c->v + t * v_row, v_row);
    }
    return qn_test_sealed(kv.pages);
}

/* The pages' bytes are those that scalar writes token by token. */
void qn_test_kv_write(qn_test_dice *d, int64_t i)
{
    const qn_kernels *scalar = qn_kernels_by_name("scalar");
    cache c = random_cache(d, i);
    const char *expected = written_pages(scalar, &c, NULL);
    for (const char *const *set = qn_kernels_names(); *set; set++)
        qn_test_same_bytes(written_pages(qn_kernels_by_name(*set), &c, d), expected, c.bytes);
}

static void *attention_scratch(const cache *c)
{
    return qn_test_guarded(qn_attend_scratch_bytes(c->a.kv.dtype, c->a.kv.head_dim, c->a.kv.v_dim), 64);
}

/* Rows in tiles of at most n_rows, heads in runs of at most n_heads. */
static float *attended(const qn_kernels *k, const cache *c, int64_t n_rows, int64_t n_heads)
{
    float *out = qn_test_floats(c->n_rows * c->a.out_stride);
    void *scratch = attention_scratch(c);
    qn_test_at("%s attend, %d heads of %d, head_dim %d, v_dim %d, type %d, %d tokens, window %d, chunk %d, "
               "tiles of %d x %d",
               k->name, (int)c->a.n_heads, (int)c->group, (int)c->a.kv.head_dim, (int)c->a.kv.v_dim,
               (int)c->a.kv.dtype, (int)c->n_tokens, (int)c->a.window, (int)c->a.chunk, (int)n_rows,
               (int)n_heads);
    for (int64_t r = 0; r < c->n_rows; r += n_rows) {
        qn_attend_args a = c->a;
        a.q += r * a.q_stride;
        a.out = out + r * a.out_stride;
        a.position += r;
        for (int64_t h = 0, run; h < a.n_heads; h += run) {
            int64_t left = c->group - h % c->group;
            run = left < n_heads ? left : n_heads;
            k->attend(&a, c->n_rows - r < n_rows ? c->n_rows - r : n_rows, h, run, scratch);
        }
    }
    return out;
}

/* Where a set multiplies 16-bit numbers it rounds queries and probabilities. */
static double attend_bound(const qn_kernels *k, qn_dtype dtype)
{
    if (!qn_attend_rounds(k, dtype)) return 6e-6;
    return dtype == QN_DTYPE_BF16 ? 1e-2 : dtype == QN_DTYPE_Q8_0 ? 1e-4 : 2e-4;
}

/* Near scalar (attention_test.c compares each set with double); the same bits whatever the split. */
void qn_test_attend(qn_test_dice *d, int64_t i)
{
    const qn_kernels *scalar = qn_kernels_by_name("scalar");
    cache c = random_cache(d, i);
    c.a.kv.pages = written_pages(scalar, &c, NULL);
    int64_t n = c.n_rows * c.a.out_stride;
    const float *expected = attended(scalar, &c, c.n_rows, c.group);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        const float *whole = attended(k, &c, c.n_rows, c.group);
        for (int64_t j = 0; j < n; j++)
            qn_test_near_float(whole[j], expected[j], attend_bound(k, c.a.kv.dtype), j);
        qn_test_same_floats(attended(k, &c, 1 + qn_test_roll(d, c.n_rows), 1 + qn_test_roll(d, c.group)),
                            whole, n);
    }
}

/* Parts of one to three groups each, merged: the bits of the whole. */
void qn_test_attend_part(qn_test_dice *d, int64_t i)
{
    const qn_kernels *scalar = qn_kernels_by_name("scalar");
    cache c = random_cache(d, i);
    c.a.kv.pages = written_pages(scalar, &c, NULL);
    int64_t n = c.n_rows * c.a.out_stride, n_rows = c.n_rows, n_pairs = n_rows * c.group;
    while (n_pairs > QN_ATTN_PART_PAIRS) n_pairs = --n_rows * c.group;
    int64_t lowest = qn_attend_first(c.a.window, c.a.chunk, c.a.chunk_at, c.a.position),
            begin = lowest / QN_ATTN_GROUP, end = (c.a.position + n_rows - 1) / QN_ATTN_GROUP + 1;
    size_t bytes = qn_attend_part_bytes(c.a.kv.dtype, c.a.kv.v_dim, n_pairs);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        const float *whole = attended(k, &c, n_rows, c.group);
        qn_attend_args a = c.a;
        a.out = qn_test_floats(n);
        memcpy(a.out, whole, (size_t)n * sizeof *a.out);
        for (int64_t r = 0; r < n_rows * a.out_stride; r++) a.out[r] = NAN;
        char *parts = qn_test_guarded(bytes * (size_t)(end - begin), 64);
        void *scratch = attention_scratch(&c);
        for (int64_t h = 0; h < a.n_heads; h += c.group) {
            for (int64_t g = begin, to; g < end; g = to) {
                to = g + 1 + qn_test_roll(d, 3);
                if (to > end) to = end;
                k->attend_part(&a, n_rows, h, c.group, g, to, (float *)(parts + (size_t)(g - begin) * bytes),
                               scratch);
            }
            k->attend_merge(&a, n_rows, h, c.group, (const float *)parts, scratch);
        }
        qn_test_same_floats(a.out, whole, n);
    }
}
