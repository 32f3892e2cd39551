/* The innermost part of matrix products: a tile of c that is summed up in registers. */
#ifndef ZF_MODEL_CPU_TILE_H
#define ZF_MODEL_CPU_TILE_H

#include "model/cpu/vector_math.h"

#include <stdbool.h>
#include <stddef.h>

/* With AVX-512 sixteen accumulators hide the latency of two multiply-adds a cycle, and leave room
 * for two vectors of b and a broadcast of a. */
#define TILE_ROWS 8
#define TILE_COLS 32

typedef float vec16 __attribute__((vector_size(64), aligned(4), may_alias));

/* c = a b, or c += a b, for one tile.  c: (TILE_ROWS, TILE_COLS), rows at distance ldc;  a's
 * element (i, l) is a[i * a_row + l * a_col];  b: (k, TILE_COLS), rows at distance ldb. */
ZF_INLINE void tile_multiply(float *c, size_t ldc, const float *restrict a, size_t a_row,
                             size_t a_col, const float *restrict b, size_t ldb, int k,
                             bool accumulate)
{
    vec16 sum[TILE_ROWS][2];
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++) {
        sum[i][0] = accumulate ? *(const vec16 *)(c + i * ldc) : (vec16){0};
        sum[i][1] = accumulate ? *(const vec16 *)(c + i * ldc + 16) : (vec16){0};
    }
    for (int l = 0; l < k; l++) {
        const vec16 b0 = *(const vec16 *)b, b1 = *(const vec16 *)(b + 16);
#pragma GCC unroll 8
        for (int i = 0; i < TILE_ROWS; i++) {
            sum[i][0] += a[i * a_row] * b0;
            sum[i][1] += a[i * a_row] * b1;
        }
        a += a_col;
        b += ldb;
    }
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++) {
        *(vec16 *)(c + i * ldc) = sum[i][0];
        *(vec16 *)(c + i * ldc + 16) = sum[i][1];
    }
}

typedef float vec8 __attribute__((vector_size(32), aligned(4), may_alias));

/* dst[j * ldd + i] = src[i * lds + j] for i, j < 8 */
ZF_INLINE void transpose_8x8(float *restrict dst, size_t ldd, const float *restrict src, size_t lds)
{
    vec8 pair[8], quad[8]; /* columns' elements of two rows side by side; of four rows */
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        const vec8 a = *(const vec8 *)(src + i * lds), b = *(const vec8 *)(src + (i + 1) * lds);
        pair[i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
        pair[i + 1] = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        quad[i] = __builtin_shufflevector(pair[i], pair[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        quad[i + 1] = __builtin_shufflevector(pair[i], pair[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        quad[i + 2] = __builtin_shufflevector(pair[i + 1], pair[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
        quad[i + 3] = __builtin_shufflevector(pair[i + 1], pair[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        *(vec8 *)(dst + i * ldd) =
            __builtin_shufflevector(quad[i], quad[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        *(vec8 *)(dst + (i + 4) * ldd) =
            __builtin_shufflevector(quad[i], quad[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

#endif
