/* Dropout's factors on the device: the same as every other device's, by ops.h's rule. */
#ifndef ZF_MODEL_CUDA_DROPOUT_CUH
#define ZF_MODEL_CUDA_DROPOUT_CUH

#include "model/cuda/cuda.cuh"

extern "C" {
#include "data/rng.h"
}

/* factor[i] of columns 4 * quad + i: 0 or 1 / (1 - p). */
__device__ static inline void dropout_quad(float (&factor)[4], const struct dropout &drop,
                                           uint32_t site, uint32_t sequence, uint32_t position,
                                           uint32_t quad)
{
    struct philox counter = {{quad, position, sequence, site}};
    counter = philox4x32(counter, drop.seed, drop.step);
    const float kept = 1.0f / (1.0f - drop.p);
    for (int i = 0; i < 4; i++)
        factor[i] = philox_uniform(counter.v[i]) >= drop.p ? kept : 0;
}

#endif
