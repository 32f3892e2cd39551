/* Sine and cosine of angles to 2^20 radians, as the same few branchless lines on every device: the
 * C library's do not vectorise, and CUDA's reduce large angles through local memory. */
#ifndef ZF_MODEL_DEVICE_ANGLE_H
#define ZF_MODEL_DEVICE_ANGLE_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define ZF_ANGLE __host__ __device__ static inline
#else
#define ZF_ANGLE static inline __attribute__((always_inline))
#endif

/* Within 1.3e-7 of the true values. The angle is reduced to |r| <= pi / 4 and a quadrant; there
 * polynomials of the Cephes library's sinf and cosf. */
ZF_ANGLE void sine_cosine(float angle, float *sine, float *cosine)
{
    const float to_integer = 0x1.8p23f; /* adding it rounds to an integer, in the low bits */
    const float shifted = angle * 0x1.45f306p-1f + to_integer; /* 2 / pi */
    const float quarter_turns = shifted - to_integer;
#ifdef __CUDA_ARCH__ /* exact but for the second product's rounding, and without fp64 */
    const float r =
        fmaf(quarter_turns, 0x1.777a5cp-25f, fmaf(quarter_turns, -0x1.921fb6p0f, angle));
#else
    const float r = (float)((double)angle - quarter_turns * 0x1.921fb54442d18p0);
#endif
    uint32_t quadrant;
    memcpy(&quadrant, &shifted, sizeof quadrant);
    const float z = r * r;
    const float s = r + r * z * (-1.6666654611e-1f + z * (8.3321608736e-3f - z * 1.9515295891e-4f));
    const float c =
        1 - 0.5f * z +
        z * z * (4.166664568298827e-2f - z * (1.388731625493765e-3f - z * 2.443315711809948e-5f));
    const float u = quadrant & 1 ? c : s, v = quadrant & 1 ? s : c;
    *sine = quadrant & 2 ? -u : u;
    *cosine = (quadrant + 1) & 2 ? -v : v;
}

#endif
