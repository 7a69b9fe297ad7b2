/* Unpacking and f32, f16, bf16 products in portable C. Multiply-adds round twice here: the plainest chip
 * would need a call of the C library for each fused one. */
#include "device/cpu/kernels/vec_scalar.h"

#include "device/cpu/kernels/matmul/pack.h"
#include "device/cpu/kernels/sets.h"

enum { FLOAT_ROWS = 2, FLOAT_FEW = 1, FLOAT_PANELS = 1, FLOAT_REST = 0, FLOAT_DOTS = 0 };

static inline v_f4 even_4(v_f4 pair)
{
    return (v_f4)((v_u4)pair << 16);
}

static inline v_f4 odd_4(v_f4 pair)
{
    return (v_f4)((v_u4)pair & 0xffff0000);
}

static inline vf pair_even(vf p)
{
    return (vf){even_4(p.a), even_4(p.b), even_4(p.c), even_4(p.d)};
}

static inline vf pair_odd(vf p)
{
    return (vf){odd_4(p.a), odd_4(p.b), odd_4(p.c), odd_4(p.d)};
}

static inline vf dot_pair(vf w, vf x, vf acc)
{
    return v_fma(pair_odd(x), pair_odd(w), v_fma(pair_even(x), pair_even(w), acc));
}

/* A chunk is a panel of up to 256 columns: row by row, and transposed. */
static void unpack_blocks(qn_dtype dtype, int64_t n_in, const uint8_t *chunk, float *out)
{
    float row[QN_BLOCK * QN_CHUNK];
    for (int64_t k = 0; k < n_in; k += QN_BLOCK * QN_CHUNK) {
        int64_t n = n_in - k < QN_BLOCK * QN_CHUNK ? n_in - k : QN_BLOCK * QN_CHUNK;
        for (int lane = 0; lane < QN_PANEL; lane++) {
            qn_unpack_row(dtype, n, chunk, lane, row);
            for (int64_t i = 0; i < n; i++) out[(k + i) * QN_PANEL + lane] = row[i];
        }
        chunk += qn_pack_panel_bytes(dtype, n);
    }
}

#include "device/cpu/kernels/matmul/float.body.h"

void qn_matmul_float_scalar(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    float_matmul(a, begin, end, scratch);
}

void qn_unpack_panel_scalar(qn_dtype dtype, int64_t n_in, const void *panels, int64_t panel, float *out)
{
    unpack_panel(dtype, n_in, panels, panel, out);
}
