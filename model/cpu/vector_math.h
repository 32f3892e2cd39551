/* exp, erf and the activations as branchless code that vectorises where it is inlined into a loop;
 * the C library's functions do not. Within 2 units in the last place of the true value, activations
 * within 2e-7 of it, absolutely or relatively. */
#ifndef ZF_MODEL_CPU_VECTOR_MATH_H
#define ZF_MODEL_CPU_VECTOR_MATH_H

#include "model/device/ops.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define ZF_INLINE static inline __attribute__((always_inline))

/* exp(x) for x in [-87.3, 88.3], and the value at the nearer end outside.
 * exp(x) = 2^n exp(r), |r| <= ln 2 / 2;
 * the polynomial is a minimax fit to (exp(r) - 1 - r) / r^2. */
ZF_INLINE float vector_exp(float x)
{
    x = x > -87.3f ? x : -87.3f;
    x = x < 88.3f ? x : 88.3f;
    const float to_integer = 0x1.8p23f; /* adding it rounds to an integer, in the low bits */
    const float shifted = x * 0x1.715476p0f + to_integer;
    const float n = shifted - to_integer;
    const float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    float p = 0.00138146077f;
    p = p * r + 0.0083687104f;
    p = p * r + 0.0416683875f;
    p = p * r + 0.166665207f;
    p = p * r + 0.499999935f;
    p = p * r * r + r;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + (127u << 23);
    float power;
    memcpy(&power, &bits, sizeof power);
    return power + power * p;
}

/* Below 1 a minimax polynomial for erf(x) / x in x^2, above it one for -log(1 - erf(x)). */
ZF_INLINE float vector_erf(float x)
{
    const float a = fabsf(x), z = x * x, b = a < 4.0f ? a : 4.0f;
    float low = 7.85414926e-05f;
    low = low * z - 0.000801028784f;
    low = low * z + 0.00518833956f;
    low = low * z - 0.0268538191f;
    low = low * z + 0.112835854f;
    low = low * z - 0.376126259f;
    low = low * z + 1.12837917f;
    float high = 2.1445721e-05f;
    high = high * b - 0.00043853164f;
    high = high * b + 0.0041908636f;
    high = high * b - 0.0251718283f;
    high = high * b + 0.108361581f;
    high = high * b + 0.633272389f;
    high = high * b + 1.12955205f;
    high = high * b - 0.000182462539f;
    const float tail = 1.0f - vector_exp(-high);
    return a < 1.0f ? x * low : copysignf(tail, x);
}

/* 1 / (1 + exp(-x)) */
ZF_INLINE float logistic(float x)
{
    return 1.0f / (1.0f + vector_exp(-x));
}

#define SQRT_HALF       0.707106781f
#define INV_SQRT_2PI    0.398942280f
#define GELU_TANH_SLOPE 1.59576912f   /* 2 sqrt(2 / pi) */
#define GELU_TANH_CUBIC 0.0713548163f /* that times 0.044715 */

/* 0.5 (1 + tanh(u)) is the logistic function of 2u, which does not cancel for negative u. */
ZF_INLINE float gelu_tanh(float x)
{
    const float u2 = x * (GELU_TANH_SLOPE + GELU_TANH_CUBIC * x * x);
    return x / (1.0f + vector_exp(-u2));
}

ZF_INLINE float gelu_tanh_slope(float x)
{
    const float u2 = x * (GELU_TANH_SLOPE + GELU_TANH_CUBIC * x * x);
    const float s = 1.0f / (1.0f + vector_exp(-u2));
    return s + x * s * (1.0f - s) * (GELU_TANH_SLOPE + 3.0f * GELU_TANH_CUBIC * x * x);
}

ZF_INLINE float gelu_erf(float x)
{
    return 0.5f * x * (1.0f + vector_erf(x * SQRT_HALF));
}

ZF_INLINE float gelu_erf_slope(float x)
{
    return 0.5f * (1.0f + vector_erf(x * SQRT_HALF)) + x * INV_SQRT_2PI * vector_exp(-0.5f * x * x);
}

#endif
