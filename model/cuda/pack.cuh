/* Several neighbouring elements that one instruction loads or stores. */
#ifndef ZF_MODEL_CUDA_PACK_CUH
#define ZF_MODEL_CUDA_PACK_CUH

#include "model/cuda/intrinsics.cuh"

/* W elements; two instructions where they are 32 bytes. */
template <typename T, int W> struct alignas(sizeof(T) * W < 16 ? sizeof(T) * W : 16) pack {
    T v[W];
};

template <int W, typename T> __device__ static inline pack<T, W> load_pack(const T *from)
{
    return *(const pack<T, W> *)from;
}

template <int W, typename T> __device__ static inline void store_pack(T *to, const pack<T, W> &x)
{
    *(pack<T, W> *)to = x;
}

__device__ static inline void convert(float &to, float x)
{
    to = x;
}

__device__ static inline void convert(bf16 &to, float x)
{
    to = to_bf16(x);
}

__device__ static inline void convert(bf16 &to, bf16 x)
{
    to = x;
}

/* May packs of so many bytes be used at this address, or at these multiples of a length? */
static inline bool is_multiple(const void *address, size_t bytes)
{
    return (uintptr_t)address % bytes == 0;
}

#endif
