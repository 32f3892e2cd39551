/* Parameters from fp32 to bf16 and back. Limit: memory, 6 bytes an element. */
#include "model/cuda/pack.cuh"

extern "C" {
#include "model/cuda/cuda_ops.h"
}

#define THREADS 256

__device__ static inline void convert_parameter(bf16 &to, float x)
{
    to = to_bf16_parameter(x);
}

__device__ static inline void convert_parameter(float &to, bf16 x)
{
    to = to_float(x);
}

template <typename To, typename From>
__global__ static void convert_kernel(To *dst, const From *src, size_t n, bool vectors)
{
    const size_t first = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    if (vectors && first + VECTOR <= n) {
        const pack<From, VECTOR> x = load_pack<VECTOR>(src + first);
        pack<To, VECTOR> y;
        for (int i = 0; i < VECTOR; i++)
            convert_parameter(y.v[i], x.v[i]);
        store_pack(dst + first, y);
        return;
    }
    for (size_t i = first; i < n && i < first + VECTOR; i++)
        convert_parameter(dst[i], src[i]);
}

template <typename To, typename From>
static void convert_all(struct stream *s, To *dst, const From *src, size_t n)
{
    const bool vectors = ((uintptr_t)dst | (uintptr_t)src) % 16 == 0;
    if (n > 0)
        LAUNCH((convert_kernel<To, From>), divide_up(n, THREADS * VECTOR), THREADS, 0, s, dst, src,
               n, vectors);
}

void cuda_from_f32(struct stream *s, void *dst, const float *src, size_t n)
{
    convert_all(s, (bf16 *)dst, src, n);
}

void cuda_to_f32(struct stream *s, float *dst, const void *src, size_t n)
{
    convert_all(s, dst, (const bf16 *)src, n);
}
