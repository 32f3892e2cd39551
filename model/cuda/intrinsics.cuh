/* Instructions that plain C++ has no word for: bf16, warps, tensor cores, asynchronous copies. Each
 * has a second, plain implementation for the host, over what tests/cuda_emulator/ supplies.
 * Numbers and fragments as in the PTX ISA. */
#ifndef ZF_MODEL_CUDA_INTRINSICS_CUH
#define ZF_MODEL_CUDA_INTRINSICS_CUH

#include "model/cuda/cuda.cuh"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#else
extern "C" {
#include "data/bf16.h"
}
#include <math.h>
#include <string.h>
#endif

#define FULL_MASK 0xffffffffu

typedef uint16_t bf16; /* the bits */

/* Vectors that one instruction loads or stores. */
struct alignas(4) bf16x2 {
    bf16 v[2];
};
struct alignas(16) bf16x8 {
    bf16 v[8];
};

__device__ static inline float to_float(bf16 x)
{
#ifdef __CUDACC__
    return __uint_as_float((unsigned)x << 16);
#else
    return bf16_to_f32(x);
#endif
}

/* Activations and gradients, rounded to nearest, ties to even. */
__device__ static inline bf16 to_bf16(float x)
{
#ifdef __CUDACC__
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
    return bf16_from_f32(x);
#endif
}

/* A master's parameter, rounded as data/bf16.h rounds parameters: ties away from zero. */
__device__ static inline bf16 to_bf16_parameter(float master)
{
#ifdef __CUDACC__
    const unsigned bits = __float_as_uint(master);
    return (bf16)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : (bits + 0x8000u) >> 16);
#else
    return bf16_parameter(master);
#endif
}

/* Two of them, the first in the low half: what tensor cores take. */
__device__ static inline uint32_t pack_bf16(float low, float high)
{
#ifdef __CUDACC__
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
#else
    return (uint32_t)bf16_from_f32(low) | (uint32_t)bf16_from_f32(high) << 16;
#endif
}

/* 2^x, to about 2 units in the last place; 0 for minus infinity. */
__device__ static inline float fast_exp2(float x)
{
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* 1 / sqrt(x), to 2 units in the last place, without the call that exact square roots and divisions
 * make for small numbers. */
__device__ static inline float inverse_sqrt(float x)
{
#ifdef __CUDACC__
    return rsqrtf(x);
#else
    return 1.0f / sqrtf(x);
#endif
}

/* Warps. `mask` names the lanes that take part; all of them must get there. */

template <typename T> __device__ static inline T shuffle_xor(unsigned mask, T value, int lane_mask)
{
#ifdef __CUDACC__
    return __shfl_xor_sync(mask, value, lane_mask);
#else
    return emulator_shuffle(mask, value, emulator_lane() ^ lane_mask);
#endif
}

template <typename T> __device__ static inline T shuffle(unsigned mask, T value, int lane)
{
#ifdef __CUDACC__
    return __shfl_sync(mask, value, lane);
#else
    return emulator_shuffle(mask, value, lane);
#endif
}

__device__ static inline unsigned ballot(unsigned mask, bool value)
{
#ifdef __CUDACC__
    return __ballot_sync(mask, value);
#else
    return emulator_ballot(mask, value);
#endif
}

/* How many bits of x are 1. */
__device__ static inline int count_bits(unsigned x)
{
#ifdef __CUDACC__
    return __popc(x);
#else
    return __builtin_popcount(x);
#endif
}

/* Sums and maxima over a whole warp, the same bits in every lane. */
__device__ static inline float warp_sum(float x)
{
    for (int i = WARP / 2; i > 0; i /= 2)
        x += shuffle_xor(FULL_MASK, x, i);
    return x;
}

__device__ static inline float warp_max(float x)
{
    for (int i = WARP / 2; i > 0; i /= 2)
        x = fmaxf(x, shuffle_xor(FULL_MASK, x, i));
    return x;
}

/* Tensor cores. */

/* Four 8x8 matrices of bf16 from shared memory: lane 8 i + j gives the address of row j of matrix
 * i, 16-byte aligned; r[i] gets the lane's two elements of matrix i: row lane / 4, columns 2 (lane
 * % 4) and the next. With _trans each matrix is transposed on the way. */
__device__ static inline void ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
#ifdef __CUDACC__
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
#else
    emulator_ldmatrix_x4(r, row, false);
#endif
}

__device__ static inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
#ifdef __CUDACC__
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
#else
    emulator_ldmatrix_x4(r, row, true);
#endif
}

/* d += a b, a: (16, 16) bf16 by rows, b: (16, 8) bf16 by columns, d: (16, 8) fp32; in the fragments
 * of mma.m16n8k16: lane l holds, with g = l / 4 and t = l % 4,
 *   a[0..3]: rows g, g + 8, g, g + 8, columns 2t, 2t + 1 of the left half, the left, the right, the
 *            right (the right half begins at column 8)
 *   b[0..1]: column g, rows 2t, 2t + 1, and those plus 8
 *   d[0..3]: row g, columns 2t, 2t + 1; row g + 8, the same columns */
__device__ static inline void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4],
                                          const uint32_t (&b)[2])
{
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    emulator_mma_16x8x16(d, a, b);
#endif
}

/* Asynchronous copies of 16 bytes from global to shared memory; zeros where not `valid` (the
 * address is then not read). A thread waits until all but its newest `pending` groups are there;
 * other threads see them after a barrier. */
__device__ static inline void copy_async_16(void *shared, const void *global, bool valid)
{
#ifdef __CUDACC__
    unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
                 : "memory");
#else
    emulator_copy_async_16(shared, global, valid);
#endif
}

__device__ static inline void copy_async_commit(void)
{
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    emulator_copy_async_commit();
#endif
}

template <int pending> __device__ static inline void copy_async_wait(void)
{
#ifdef __CUDACC__
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#else
    emulator_copy_async_wait(pending);
#endif
}

#endif
