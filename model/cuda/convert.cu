/* bf16 to fp32. Limit: memory, 6 bytes an element. */
#include "model/cuda/intrinsics.cuh"

extern "C" {
#include "model/cuda/cuda_ops.h"
}

#define THREADS 256

__global__ static void to_f32_kernel(float *dst, const bf16 *src, size_t n)
{
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        dst[i] = to_float(src[i]);
}

void cuda_to_f32(struct stream *s, float *dst, const void *src, size_t n)
{
    int blocks = divide_up(n, THREADS), most = 8 * cuda_multiprocessors();
    if (n > 0)
        LAUNCH(to_f32_kernel, blocks < most ? blocks : most, THREADS, 0, s, dst, (const bf16 *)src,
               n);
}
