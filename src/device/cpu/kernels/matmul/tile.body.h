/* The micro-kernel of gemm and attention: a tile of rows x 16-lane vectors of c += a b, its sums in
 * registers.
 *
 * Every output is one chain of multiply-adds in rising k that starts from c (or 0), so its bits depend
 * neither on the tile's size nor on how k was split over calls. */
#ifndef QN_DEVICE_CPU_KERNELS_MATMUL_TILE_BODY_H
#define QN_DEVICE_CPU_KERNELS_MATMUL_TILE_BODY_H

/* What is read later, in the order and as long as what is read now: some way ahead, and the rest of that way
 * nearer. NULL: nothing. */
typedef struct {
    const char *far, *near;
} tile_ahead;

typedef struct {
    float *c; /* c[row * c_row + column] */
    int64_t c_row;
    const float *a; /* a[row * a_row + k * a_k] */
    int64_t a_row, a_k;
    const void *b; /* b[k * b_k + column], f32 or f16 */
    int64_t b_k;
    int64_t n_k;
    int from_zero;   /* c is written without being read */
    tile_ahead next; /* tiles of few rows fetch this into the cache meanwhile */
} tile_args;

/* Into the second level: a request for the first one would hold one of the few places where loads wait. */
static inline void fetch_line(const char *p, int64_t offset)
{
    __builtin_prefetch(p + offset, 0, 2);
}

/* Twice: where memory is slower than the loop, a request that finds no place is dropped. */
static inline void fetch(tile_ahead next, int64_t offset)
{
    fetch_line(next.far, offset);
    fetch_line(next.near, offset);
}

/* With something harmless in place of nothing. */
static inline tile_ahead ahead_or(tile_ahead next, const void *p)
{
    return (tile_ahead){next.far ? next.far : p, next.near ? next.near : p};
}

/* rows, vecs and half are constants wherever this is expanded. */
static inline __attribute__((always_inline)) void tile_run(const tile_args *t, int64_t column, int rows,
                                                           int vecs, int half)
{
    vf sums[8][8], b[8];
    const float *a = t->a;
    const int64_t a_row = t->a_row, a_k = t->a_k, b_k = t->b_k, n_k = t->n_k;
    const tile_ahead next = ahead_or(t->next, t->b);
    const float *full = half ? NULL : (const float *)t->b + column;
    const uint16_t *halves = half ? (const uint16_t *)t->b + column : NULL;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++) {
            sums[r][v] = t->from_zero ? v_set1(0) : v_load(t->c + r * t->c_row + column + 16 * v);
        }
    }
    for (int64_t k = 0; k < n_k; k++) {
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++) {
            if (rows <= 4 && !(half && v % 2))
                fetch(next, (column * n_k + (k * vecs + v) * 16) * (half ? 2 : 4));
            b[v] = half ? v_load_f16(halves + k * b_k + 16 * v) : v_load(full + k * b_k + 16 * v);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vf x = v_set1(a[r * a_row + k * a_k]);
#pragma GCC unroll 8
            for (int v = 0; v < vecs; v++) sums[r][v] = v_fma(x, b[v], sums[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++) v_store(t->c + r * t->c_row + column + 16 * v, sums[r][v]);
    }
}

static inline __attribute__((always_inline)) void tile_rows(const tile_args *t, int rows, int64_t n_vecs,
                                                            int half)
{
    int64_t v = 0;
    if (v_tile_vecs(rows) >= 8) {
        for (; v + 8 <= n_vecs; v += 8) tile_run(t, v * 16, rows, 8, half);
    }
    if (v_tile_vecs(rows) >= 4) {
        for (; v + 4 <= n_vecs; v += 4) tile_run(t, v * 16, rows, 4, half);
    }
    if (v_tile_vecs(rows) >= 2) {
        for (; v + 2 <= n_vecs; v += 2) tile_run(t, v * 16, rows, 2, half);
    }
    for (; v < n_vecs; v++) tile_run(t, v * 16, rows, 1, half);
}

/* Columns [0, 16 * n_vecs) of rows 1..V_TILE_ROWS. */
static inline __attribute__((always_inline)) void tile_any(const tile_args *t, int rows, int64_t n_vecs,
                                                           int half)
{
    switch (rows < V_TILE_ROWS ? rows : V_TILE_ROWS) {
    case 1:
        tile_rows(t, 1, n_vecs, half);
        break;
    case 2:
        tile_rows(t, 2, n_vecs, half);
        break;
    case 3:
        tile_rows(t, 3, n_vecs, half);
        break;
    case 4:
        tile_rows(t, 4, n_vecs, half);
        break;
    case 5:
        tile_rows(t, 5, n_vecs, half);
        break;
    case 6:
        tile_rows(t, 6, n_vecs, half);
        break;
    case 7:
        tile_rows(t, 7, n_vecs, half);
        break;
    default:
        tile_rows(t, V_TILE_ROWS, n_vecs, half);
    }
}

#endif
