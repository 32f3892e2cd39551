/* What every CUDA source of this folder includes: the runtime, how a kernel is launched, shared
 * memory is declared and a call is checked. The same sources compile for the host under
 * tests/cuda_emulator/, which supplies another <cuda_runtime.h>; so kernels are launched, shared
 * memory is declared and instructions beyond plain C++ are used through this header and
 * intrinsics.cuh alone. */
#ifndef ZF_MODEL_CUDA_CUDA_CUH
#define ZF_MODEL_CUDA_CUDA_CUH

#include <cuda_runtime.h>

extern "C" {
#include "model/device/ops.h"
}

#include <stddef.h>
#include <stdint.h>

#define WARP 32

/* The widest models that the operators take: rows of a multiple of 8 elements, others, heads. */
#define CUDA_MAX_WIDTH     8192
#define CUDA_MAX_ODD_WIDTH 2048
#define CUDA_MAX_HEAD_DIM  256

/* Launches kernel<<<grid, block, shared bytes, stream>>>(arguments). A kernel that is a template is
 * put in parentheses. */
#ifdef __CUDACC__
#define LAUNCH(kernel, grid, block, shared_bytes, s, ...)                                          \
    do {                                                                                           \
        (kernel)<<<(grid), (block), (shared_bytes), (s)->cuda>>>(__VA_ARGS__);                     \
        check_cuda(cudaGetLastError());                                                            \
    } while (0)
/* In a kernel: SHARED(float, tile, [64][33]) declares  float tile[64][33]  in shared memory, and
 * DYNAMIC_SHARED(p)  char *p, the launch's shared bytes. */
#define SHARED(type, name, dims) __shared__ __align__(16) type name dims
#define DYNAMIC_SHARED(name)     extern __shared__ __align__(128) char name[]
#else
#define LAUNCH(kernel, grid, block, shared_bytes, s, ...)                                          \
    emulator_launch(#kernel, (grid), (block), (shared_bytes), (s)->cuda, (kernel))(__VA_ARGS__)
#define SHARED(type, name, dims)                                                                   \
    using name##_type = type dims;                                                                 \
    static emulator_shared_array name##_array;                                                     \
    name##_type &name = *(name##_type *)emulator_shared(name##_array, sizeof(name##_type))
#define DYNAMIC_SHARED(name) char *name = (char *)emulator_dynamic_shared()
#endif

/* Ends the program with a sentence that names the call and its place. */
#define check_cuda(call) cuda_check((call), #call, __FILE__, __LINE__)
void cuda_check(cudaError_t code, const char *call, const char *file, int line);

struct stream {
    cudaStream_t cuda;
    void *scratch; /* for the operators of this stream, which run one after another */
    size_t scratch_bytes;
};

/* Device memory of at least so many bytes, 256-byte aligned, for the operator that is being put on
 * the stream; the next operator on it may get the same. */
void *cuda_scratch(struct stream *s, size_t bytes);

/* How many multiprocessors the device has. */
int cuda_multiprocessors(void);

static inline int divide_up(size_t a, size_t b)
{
    return (int)((a + b - 1) / b);
}

#endif
