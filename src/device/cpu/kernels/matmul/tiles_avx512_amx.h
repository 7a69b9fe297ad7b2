/* What the files of avx512_amx share: the shapes of the eight tiles. */
#ifndef QN_DEVICE_CPU_KERNELS_MATMUL_TILES_AVX512_AMX_H
#define QN_DEVICE_CPU_KERNELS_MATMUL_TILES_AVX512_AMX_H

#include <immintrin.h>
#include <stdint.h>

#include "device/cpu/kernels/kernels.h"

enum { TILE_ROWS = 16, TILE_BYTES = 1024, TILE_SUMS = TILE_ROWS * QN_PANEL };

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} tile_shapes;

/* Tiles are zero then. The compiler counts eight bytes of the shapes as read and would leave out stores of
 * the others. */
static inline void take_tiles(const tile_shapes *shapes)
{
    __asm__ volatile("" : : "r"(shapes) : "memory");
    _tile_loadconfig(shapes);
}

#endif
