/* Attention in levels, as on the CPU (src/device/cpu/kernels/attention/attention.body.h). A row's positions are cut
 * into groups of 256, by position in what its sequence keeps. Groups give (m, l, acc), which are merged in rising
 * order. Two kinds of kernels compute a group, for a row and a head. Which one depends on the pages alone.
 *
 * Pages of f16 go through tensor cores: attention_page.cuh has the sums of a page; pages are merged in rising order.
 * attention_few.cuh is for few rows, attention_many.cuh for many. All other keys and values (attention_tile.cuh):
 *
 *     s[t] = q.k[t]          with scale and log2(e) inside q; one chain of multiply-adds over head_dim
 *     m = max s, p[t] = 2^(s[t] - m), l = sum p     lane t % 32, then the tree of a warp
 *     acc[d] = sum p[t] v[t][d]                     for each page a chain in rising t; pages in rising order
 *
 * All of that depends on the row's own data alone, so
 * its bits depend neither on the other rows of a step nor on how the work is cut into blocks. What a row does not
 * see takes no part: a page may hold NaN there. */
#ifndef QN_DEVICE_CUDA_ATTENTION_ATTENTION_CUH
#define QN_DEVICE_CUDA_ATTENTION_ATTENTION_CUH

#include "device/cuda/attention/pages.cuh"
#include "device/cuda/attention/sequences.cuh"

enum { QN_GROUP = 256, QN_GROUP_PAGES = QN_GROUP / QN_PAGE_TOKENS };

/* Where keys (or values) lie: bytes from token to token, from head to head, from page to page. */
typedef struct {
    const char *base;
    int64_t token, head, page;
    int dim;
} qn_kv_rows;

/* A step's attention, of rows [first, past). */
typedef struct {
    const float *q;
    int64_t q_row;
    float *out;                                    /* [row][n_heads][v_dim] */
    const int32_t *row_begin, *positions, *blocks; /* blocks NULL: keys and values are the rows' own */
    int64_t n_sequences, table_row;
    qn_kv_rows k, v;
    int is_loose; /* rows of f32 that are not aligned to 16 bytes */
    int n_heads, kv_heads, shared;
    int64_t window, first, past;
    uint32_t chunk;    /* UINT32_MAX: all is one. A remainder of 64 bits spills registers */
    int reach;         /* rows from its own on that a row sees: 1, or as many as a sequence has */
    float factor, cap; /* of queries; of tanh, 0: none. In units of log2 */
    const float *sinks;
    int64_t tile_rows, n_tiles;
    int heads, n_chunks; /* query heads of a key head go together in chunks of `heads` */
    int n_splits;        /* blocks that share the groups of a tile; 0: one block merges them itself */
    float *parts;     /* of splits: acc [row - first][head][group][v_pad], then (m, l) [row][head][group] */
    int64_t n_groups; /* groups that a table has room for */
} qn_cuda_attention;

/* Attention over all rows. Fills what cuts it into blocks; scratch: qn_cuda_attend_scratch bytes, or NULL. */
qn_status qn_cuda_attend(qn_cuda_context *c, qn_cuda_attention *a, qn_dtype dtype, void *scratch);
size_t qn_cuda_attend_scratch(const qn_cuda_attention *a);

/* The same over chosen blocks, the last input of s. */
qn_status qn_cuda_attend_chosen(qn_cuda_context *c, const qn_cuda_step *s, const qn_cuda_attention *a,
                                qn_dtype dtype);

/* Parts of what all attention takes from a step; sinks: which input they are. */
qn_cuda_attention qn_cuda_attention_of(const qn_cuda_step *s, int sinks);

qn_status qn_cuda_write_pages(qn_cuda_context *c, const qn_cuda_step *s);
qn_status qn_cuda_attend_ragged(qn_cuda_context *c, const qn_cuda_step *s);

/* ---- on the card --------------------------------------------------------------------------------------- */

/* v_dim in whole blocks of 32. */
static __host__ __device__ __forceinline__ int qn_padded(int dim)
{
    return (dim + 31) / 32 * 32;
}

/* The positions [lo, hi) that a row sees, and its sequence's block table. */
typedef struct {
    int64_t lo, hi;
} qn_seen;

static __device__ __forceinline__ qn_seen qn_sight(const qn_cuda_attention &a, int64_t sequence,
                                                   int64_t begin, int64_t end, int64_t row)
{
    const int32_t mark = a.blocks ? a.blocks[sequence * a.table_row] : 0;
    int64_t position = row - begin, window = a.window;
    if (a.blocks) position = a.positions[row] - (int64_t)qn_pages_before(mark) * QN_PAGE_TOKENS;
    const int own = (int)position - (int)((uint32_t)a.positions[row] % a.chunk);
    const int reach = mark & QN_BLOCKS_WHOLE ? INT32_MAX : a.reach;
    if (mark & QN_BLOCKS_BACK && window && window <= row - begin) window = row - begin + 1;
    qn_seen s = {own > 0 ? own : 0, position + (reach < end - row ? reach : end - row)};
    if (window && position - s.lo >= window) s.lo = position - window + 1;
    return s;
}

/* Pairs of row and head that a block takes: the rows of t, and heads [head, head + n_heads) of key head kv. at: the
 * block's number without its split. The last tiles see most and begin first. 0: there is no such tile. */
static __device__ __forceinline__ int qn_find_pairs(const qn_cuda_attention &a, int64_t at, qn_row_tile *t,
                                                    int *kv, int *head, int *n_heads)
{
    const int i = (int)at, chunk = i % a.n_chunks, rest = i / a.n_chunks;
    *kv = rest % a.kv_heads;
    if (!qn_find_tile(a.row_begin, a.n_sequences, a.first, a.past, a.tile_rows,
                      a.n_tiles - 1 - rest / a.kv_heads, t))
        return 0;
    const int left = a.shared - chunk * a.heads;
    *n_heads = left < a.heads ? left : a.heads;
    *head = *kv * a.shared + chunk * a.heads;
    return 1;
}

/* A page; tokens [from, to) of it are looked at by some pair, none if to is 0. */
typedef struct {
    const char *k, *v;
    int from, to;
} qn_page;

/* The page at position `at` for rows that see [lo, hi). */
static __device__ __forceinline__ qn_page qn_page_at(const qn_cuda_attention &a, const qn_row_tile &t, int kv,
                                                     int64_t at, int64_t lo, int64_t hi)
{
    qn_page p = {};
    if (at + QN_PAGE_TOKENS <= lo || at >= hi) return p;
    p.from = lo > at ? (int)(lo - at) : 0;
    p.to = hi < at + QN_PAGE_TOKENS ? (int)(hi - at) : QN_PAGE_TOKENS;
    if (a.blocks) {
        const int64_t unit = a.blocks[t.sequence * a.table_row + 1 + at / QN_PAGE_TOKENS];
        p.k = a.k.base + unit * a.k.page + kv * a.k.head;
        p.v = a.v.base + unit * a.v.page + kv * a.v.head;
    } else {
        p.k = a.k.base + (t.begin + at) * a.k.token + kv * a.k.head;
        p.v = a.v.base + (t.begin + at) * a.v.token + kv * a.v.head;
    }
    return p;
}

/* 2^x for x <= 0, at most 1.5 ulp; 0 below -125; NaN stays. */
static __device__ __forceinline__ float qn_power_of_2(float x)
{
    const float whole = 12582912.0f; /* 1.5 * 2^23: what is added to it is rounded to an integer */
    const float t = x < -125.0f ? -125.0f : x, n = t + whole, r = t - (n - whole);
    float p = 0.0013269406f;
    p = fmaf(p, r, 0.00967129413f);
    p = fmaf(p, r, 0.0555071123f);
    p = fmaf(p, r, 0.240222469f);
    p = fmaf(p, r, 0.693147004f);
    p = fmaf(p, r, 1.0f);
    const float y = qn_cuda_bits_float(qn_cuda_float_bits(p) + (qn_cuda_float_bits(n) << 23));
    return x < -125.0f ? 0 : x == x ? y : x;
}

/* The groups so far of a row and a head. */
typedef struct {
    float largest, total;
} qn_softmax;

/* Adds a group: what was gathered so far is multiplied by *keep, what the group gathered by *add. The total of a
 * group of which nothing is seen is negative. */
static __device__ __forceinline__ void qn_add_group(qn_softmax *s, float largest, float total, float *keep,
                                                    float *add)
{
    *keep = 1;
    *add = 0;
    if (total < 0) return;
    const float m = largest < s->largest ? s->largest : largest;
    *keep = qn_power_of_2(s->largest - m);
    *add = qn_power_of_2(largest - m);
    s->total = fmaf(s->total, *keep, total * *add);
    s->largest = m;
}

/* A group's total as qn_add_group takes it. */
static __device__ __forceinline__ float qn_group_total(const qn_softmax &s)
{
    return s.total == 0 && s.largest == -INFINITY ? -1.0f : s.total;
}

/* Element `lane` of 32 neighbours of a row's result; all lanes take part. sink: NULL, or the head's. */
static __device__ __forceinline__ float qn_close_softmax(qn_softmax s, float x, const float *sink,
                                                         int is_turned)
{
    if (sink) {
        const float extra = *sink * 1.44269504f, m = s.largest > extra ? s.largest : extra,
                    keep = qn_power_of_2(s.largest - m);
        x *= keep;
        s.total = s.total * keep + qn_power_of_2(extra - m);
    }
    if (is_turned) x = qn_turn_block(x, 0.125f);
    return x / s.total + 0.0f; /* no -0 */
}

#endif
