/* The residual connection of one row, with its dropout: what norms begin with, and end backward
 * with. Included by files that put it inside a ZF_SIMD function. */
#ifndef ZF_MODEL_CPU_RESIDUAL_H
#define ZF_MODEL_CPU_RESIDUAL_H

#include "model/cpu/cpu.h"
#include "model/cpu/dropout.h"

#include <string.h>

/* y = a + dropout(b) for one row; b NULL: a copy. y may be a. */
static inline __attribute__((always_inline)) void add_branch(float *y, const float *a,
                                                             const float *restrict b, int C,
                                                             const struct dropout *drop,
                                                             const struct token_rows *rows, int t)
{
    if (!b) {
        if (y != a)
            memcpy(y, a, sizeof(float) * C);
        return;
    }
    if (drop->p == 0) {
#pragma omp simd
        for (int j = 0; j < C; j++)
            y[j] = a[j] + b[j];
        return;
    }
    float factor[DROPOUT_RUN];
    for (int first = 0; first < C; first += DROPOUT_RUN) {
        int n = min_int(C - first, DROPOUT_RUN);
        dropout_draw(factor, drop, drop->site, rows->token_seq[t], (uint32_t)rows->position[t],
                     first, n);
#pragma omp simd
        for (int j = 0; j < n; j++)
            y[first + j] = a[first + j] + b[first + j] * factor[j];
    }
}

/* db = dx undropped, for one row. */
static inline __attribute__((always_inline)) void drop_row(float *restrict db,
                                                           const float *restrict dx, int C,
                                                           const struct dropout *drop,
                                                           const struct token_rows *rows, int t)
{
    if (drop->p == 0) {
        memcpy(db, dx, sizeof(float) * C);
        return;
    }
    float factor[DROPOUT_RUN];
    for (int first = 0; first < C; first += DROPOUT_RUN) {
        int n = min_int(C - first, DROPOUT_RUN);
        dropout_draw(factor, drop, drop->site, rows->token_seq[t], (uint32_t)rows->position[t],
                     first, n);
        for (int j = 0; j < n; j++)
            db[first + j] = dx[first + j] * factor[j];
    }
}

#endif
