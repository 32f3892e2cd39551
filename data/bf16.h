/* bf16, the upper half of an fp32, and the two ways in which this program rounds to it: activations
 * and gradients to nearest, ties to even; parameters to nearest, ties away from zero. A parameter
 * rounded so and the remainder, the lower half of its fp32 master, are together the master again,
 * to the bit: a remainder of half a unit then always says that the upper half was rounded up. */
#ifndef ZF_DATA_BF16_H
#define ZF_DATA_BF16_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float f32_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint16_t bf16_from_f32(float x)
{
    const uint32_t bits = f32_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u); /* NaN stays NaN */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float bf16_to_f32(uint16_t half)
{
    return f32_of_bits((uint32_t)half << 16);
}

/* The parameter of a master. Of a NaN it is one NaN, whichever it was. */
static inline uint16_t bf16_parameter(float master)
{
    const uint32_t bits = f32_bits(master);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fc0;
    return (uint16_t)((bits + 0x8000u) >> 16);
}

/* What the master's bits have beyond its parameter's: -0x8000 to 0x7fff. */
static inline int16_t bf16_remainder(float master)
{
    return (int16_t)(uint16_t)f32_bits(master);
}

/* The master; of a NaN's parameter it is a NaN with any remainder. */
static inline float bf16_master(uint16_t parameter, int16_t remainder)
{
    return f32_of_bits(((uint32_t)parameter << 16) + (uint32_t)(int32_t)remainder);
}

#endif
