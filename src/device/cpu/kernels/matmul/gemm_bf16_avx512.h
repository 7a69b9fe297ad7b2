/* gemm_bf16 by vdpbf16ps: tiles of up to 6 rows x 4 vectors, so that 10 loads feed 24 additions. A b of whole
 * blocks of columns is read as it lies, so many rows that they stay in the second-level cache, and a tile of
 * out is touched once where k is not larger: in blocks of 64 pairs, out came and went 16 times, and a product
 * of 2048 took 1.25 of its peak's time in place of 1.08. Blocks of b that lie far apart are copied to the
 * stack, where they stay in the first-level cache for all rows. Every output is one chain over rising pairs
 * that goes through out between blocks of k, so its bits depend on no split. */
#ifndef QN_DEVICE_CPU_KERNELS_MATMUL_GEMM_BF16_AVX512_H
#define QN_DEVICE_CPU_KERNELS_MATMUL_GEMM_BF16_AVX512_H

enum { PAIRS_K = 64, PAIRS_K_RUN = 1024, PAIRS_ROWS = 6, PAIRS_VECS = 4, PAIRS_COLUMNS = 16 * PAIRS_VECS };

typedef struct {
    float *c;
    int64_t c_row;
    const uint16_t *a;
    int64_t a_row;
    const uint32_t *b; /* [n_k][b_k] */
    int64_t b_k, n_k;  /* in pairs */
    int from_zero;
} pairs_tile;

/* rows and vecs are constants wherever this is expanded; last: lanes of the last vector. */
static inline __attribute__((always_inline)) void pairs_run(const pairs_tile *t, int rows, int vecs,
                                                            __mmask16 last)
{
    __m512 sums[PAIRS_ROWS][PAIRS_VECS];
    const uint16_t *a = t->a;
    const uint32_t *b = t->b;
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            sums[r][v] = t->from_zero ? _mm512_setzero_ps()
                                      : _mm512_maskz_loadu_ps(v + 1 == vecs ? last : (__mmask16)0xffff,
                                                              t->c + r * t->c_row + 16 * v);
    }
    for (int64_t k = 0; k < t->n_k; k++, b += t->b_k) {
        __m512i y[PAIRS_VECS];
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) y[v] = _mm512_loadu_si512(b + 16 * v);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, a + r * t->a_row + 2 * k, sizeof pair);
            __m512i x = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++)
                sums[r][v] = _mm512_dpbf16_ps(sums[r][v], (__m512bh)x, (__m512bh)y[v]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            _mm512_mask_storeu_ps(t->c + r * t->c_row + 16 * v, v + 1 == vecs ? last : (__mmask16)0xffff,
                                  sums[r][v]);
    }
}

static inline __attribute__((always_inline)) void pairs_rows(const pairs_tile *t, int rows, int vecs,
                                                             __mmask16 last)
{
    switch (vecs) {
    case 1:
        pairs_run(t, rows, 1, last);
        break;
    case 2:
        pairs_run(t, rows, 2, last);
        break;
    case 3:
        pairs_run(t, rows, 3, last);
        break;
    default:
        pairs_run(t, rows, 4, last);
    }
}

static void gemm_bf16(float *out, int64_t out_stride, const uint16_t *a, int64_t a_row, const uint32_t *b,
                      int64_t b_row, int64_t n, int64_t k, int64_t begin, int64_t end, int accumulate)
{
    _Alignas(64) uint32_t packed[PAIRS_K * PAIRS_COLUMNS];
    const int64_t n_pairs = (k + 1) / 2;
    for (int64_t i = begin; i < end && !accumulate && !n_pairs; i++)
        memset(out + i * out_stride, 0, (size_t)n * sizeof *out);
    for (int64_t j = 0; j < n; j += PAIRS_COLUMNS) {
        const int64_t columns = n - j < PAIRS_COLUMNS ? n - j : PAIRS_COLUMNS;
        const int vecs = (int)((columns + 15) / 16);
        const __mmask16 last = columns % 16 ? v_first_n((int)(columns % 16)) : (__mmask16)0xffff;
        const int64_t most = b_row == PAIRS_COLUMNS && columns % 16 == 0 ? PAIRS_K_RUN : PAIRS_K;
        for (int64_t k0 = 0; k0 < n_pairs; k0 += most) {
            pairs_tile t = {.c_row = out_stride, .a_row = a_row, .b = packed, .b_k = PAIRS_COLUMNS};
            t.n_k = n_pairs - k0 < most ? n_pairs - k0 : most;
            t.from_zero = k0 == 0 && !accumulate;
            if (columns % 16 == 0 && (b_row == PAIRS_COLUMNS || end - begin <= 2 * PAIRS_ROWS)) {
                t.b = b + k0 * b_row + j;
                t.b_k = b_row;
            }
            for (int64_t p = 0; p < t.n_k && t.b == packed; p++)
                memcpy(packed + p * PAIRS_COLUMNS, b + (k0 + p) * b_row + j, (size_t)columns * sizeof *b);
            for (int64_t i = begin; i < end; i += PAIRS_ROWS) {
                t.c = out + i * out_stride + j;
                t.a = a + i * a_row + 2 * k0;
                switch (end - i) {
                case 1:
                    pairs_rows(&t, 1, vecs, last);
                    break;
                case 2:
                    pairs_rows(&t, 2, vecs, last);
                    break;
                case 3:
                    pairs_rows(&t, 3, vecs, last);
                    break;
                case 4:
                    pairs_rows(&t, 4, vecs, last);
                    break;
                case 5:
                    pairs_rows(&t, 5, vecs, last);
                    break;
                default:
                    pairs_rows(&t, 6, vecs, last);
                }
            }
        }
    }
}

/* A column of the panel is 8 pairs; 16 columns are transposed as words. */
static void panel_pairs(const float *panel, int64_t n, uint32_t *out, int64_t out_row)
{
    for (int64_t j = 0; j < n; j += 16) {
        const int columns = n - j < 16 ? (int)(n - j) : 16;
        _Alignas(64) float words[16 * 16] = {0}, turned[16 * 16];
        for (int c = 0; c < columns; c++)
            v_store_bf16((uint16_t *)(words + 16 * c), v_load(panel + (j + c) * QN_PANEL));
        transpose(turned, 16, words, 16);
        for (int i = 0; i < QN_PANEL / 2; i++)
            memcpy(out + i * out_row + j, turned + 16 * i, (size_t)columns * sizeof *out);
    }
}

#endif
