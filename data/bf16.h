/* bf16: the upper half of an fp32, rounded to nearest, ties to even. */
#ifndef ZF_DATA_BF16_H
#define ZF_DATA_BF16_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t bf16_from_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u); /* NaN stays NaN */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float bf16_to_f32(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* sum[i] += factor * addend[i] */
static inline void bf16_add(float *sum, const uint16_t *addend, float factor, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += factor * bf16_to_f32(addend[i]);
}

#endif
