/* Dropout's factors, 0 or 1 / (1 - p), drawn for a run of columns at a time in vectors. Included by
 * files that put it inside a ZF_SIMD function. */
#ifndef ZF_MODEL_CPU_DROPOUT_H
#define ZF_MODEL_CPU_DROPOUT_H

#include "model/device/ops.h"

#include <math.h>
#include <string.h>

/* Columns drawn at a time. */
#define DROPOUT_RUN 256

/* Eight Philox counters side by side give 32 columns. */
#define DROPOUT_STEP 32
typedef uint64_t vec_u64 __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t vec_u32 __attribute__((vector_size(64), aligned(4), may_alias));

/* factors[j] for columns first + j, j < n <= DROPOUT_RUN; first is a multiple of 4. Up to a
 * multiple of DROPOUT_STEP are written. The generator is philox4x32 of data/rng.h, its words held
 * in 64-bit lanes; a word's uniform number is at least p where the word is at least p 2^32, rounded
 * up to a multiple of 2^8. */
static inline __attribute__((always_inline)) void dropout_draw(float factors[DROPOUT_RUN],
                                                               const struct dropout *drop,
                                                               uint32_t site, uint32_t sequence,
                                                               uint32_t position, int first, int n)
{
    const float kept = 1.0f / (1.0f - drop->p);
    uint32_t kept_bits;
    memcpy(&kept_bits, &kept, sizeof kept);
    const vec_u32 least = (vec_u32){0} + ((uint32_t)ceilf(drop->p * 0x1p24f) << 8);
    const vec_u64 word = (vec_u64){0} + 0xFFFFFFFFu, lane = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int j = 0; j < n; j += DROPOUT_STEP) {
        uint32_t key0 = drop->seed, key1 = drop->step;
        vec_u64 v0 = lane + (uint64_t)((uint32_t)(first + j) / 4), v1 = (vec_u64){0} + position;
        vec_u64 v2 = (vec_u64){0} + sequence, v3 = (vec_u64){0} + site;
#pragma GCC unroll 10
        for (int round = 0; round < 10; round++) {
            const vec_u64 a = v0 * 0xD2511F53u, b = v2 * 0xCD9E8D57u;
            v0 = (b >> 32) ^ v1 ^ key0;
            v1 = b & word;
            v2 = (a >> 32) ^ v3 ^ key1;
            v3 = a & word;
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }
        const vec_u64 low = v0 | v1 << 32, high = v2 | v3 << 32;
        const vec_u32 words0 =
            (vec_u32)__builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11);
        const vec_u32 words1 =
            (vec_u32)__builtin_shufflevector(low, high, 4, 12, 5, 13, 6, 14, 7, 15);
        *(vec_u32 *)(factors + j) = (vec_u32)(words0 >= least) & kept_bits;
        *(vec_u32 *)(factors + j + 16) = (vec_u32)(words1 >= least) & kept_bits;
    }
}

#endif
