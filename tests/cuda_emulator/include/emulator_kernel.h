/* The kernel language for the host: what <cuda_runtime.h>, cuda.cuh and intrinsics.cuh give to
 * kernels where there is no nvcc. Included by cuda_runtime.h. */
#ifndef ZF_CUDA_EMULATOR_EMULATOR_KERNEL_H
#define ZF_CUDA_EMULATOR_EMULATOR_KERNEL_H

#include "emulator_members.h"

#include <math.h>
#include <tuple>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned width = 1, unsigned height = 1, unsigned depth = 1)
        : x(width), y(height), z(depth)
    {
    }
};

/* Of the thread that runs. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/* All threads of a block meet at the same line of the source. */
void emulator_barrier(const char *file, int line);
static inline void __syncthreads(const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    emulator_barrier(file, line);
}

template <typename T> static inline T atomicAdd(T *sum, T addend)
{
    static_assert(std::is_integral<T>::value, "float atomics would make results depend on timing");
    T old = *sum;
    *sum = old + addend;
    return old;
}

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

/* Warp collectives: each lane of the mask comes with an operand on its own stack; when all are
 * there, one call of `complete` finds them all, and all go on. */
#define EMULATOR_WARP 32
struct emulator_collective {
    const char *name;
    void (*complete)(unsigned mask, void *const (&operands)[EMULATOR_WARP]);
};
void emulator_meet(const emulator_collective &collective, unsigned mask, void *operand);
int emulator_lane();
void emulator_check_source(const char *what, unsigned mask, int lane, int source);

template <typename T> struct emulator_shuffled {
    T value;
    int source;
};

template <typename T>
void emulator_complete_shuffle(unsigned mask, void *const (&operands)[EMULATOR_WARP])
{
    T all[EMULATOR_WARP] = {};
    for (int i = 0; i < EMULATOR_WARP; i++)
        if (mask >> i & 1)
            all[i] = ((emulator_shuffled<T> *)operands[i])->value;
    for (int i = 0; i < EMULATOR_WARP; i++) {
        if (!(mask >> i & 1))
            continue;
        emulator_shuffled<T> *mine = (emulator_shuffled<T> *)operands[i];
        if (!(mask >> mine->source & 1))
            emulator_check_source("shuffle", mask, i, mine->source);
        mine->value = all[mine->source];
    }
}

/* The value of another lane of the mask. */
template <typename T> static inline T emulator_shuffle(unsigned mask, T value, int source)
{
    static const emulator_collective collective = {"a shuffle", emulator_complete_shuffle<T>};
    emulator_shuffled<T> operand = {value, source & (EMULATOR_WARP - 1)};
    emulator_meet(collective, mask, &operand);
    return operand.value;
}

unsigned emulator_ballot(unsigned mask, bool value);
void emulator_sync_warp(unsigned mask);
static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    emulator_sync_warp(mask);
}

/* Tensor cores and asynchronous copies, as intrinsics.cuh describes them. */
void emulator_ldmatrix_x4(uint32_t (&r)[4], const void *row, bool transposed);
void emulator_mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void emulator_copy_async_16(void *shared, const void *global, bool valid);
void emulator_copy_async_commit();
void emulator_copy_async_wait(int pending);

/* Shared memory. Each SHARED of the source has one such record, which says where the array lies in
 * the block that runs. */
struct emulator_shared_array {
    unsigned long block;
    void *memory;
};
extern unsigned long emulator_block;
void *emulator_allocate_shared(emulator_shared_array &array, size_t bytes);
static inline void *emulator_shared(emulator_shared_array &array, size_t bytes)
{
    return array.block == emulator_block ? array.memory : emulator_allocate_shared(array, bytes);
}
void *emulator_dynamic_shared();

/* Launches. emulator_launch(name, grid, block, shared bytes, stream, kernel)(arguments) converts
 * the arguments to the kernel's parameters, as a call does, and checks the pointers among them. */
struct emulator_bound {
    virtual void run_thread() = 0;
    virtual ~emulator_bound()
    {
    }
};

struct emulator_launch_shape {
    const char *name;
    const void *kernel;
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
};

void emulator_check_pointer(const char *kernel, int argument, const void *pointer);
void emulator_enqueue_kernel(const emulator_launch_shape &shape, emulator_bound *bound);

template <typename... P> struct emulator_bound_to final : emulator_bound {
    void (*kernel)(P...);
    std::tuple<P...> arguments;
    emulator_bound_to(void (*to)(P...), const P &...values) : kernel(to), arguments(values...)
    {
    }
    void run_thread() override
    {
        std::apply(kernel, arguments);
    }
};

template <typename... P> struct emulator_launcher {
    emulator_launch_shape shape;
    void (*kernel)(P...);

    void operator()(P... arguments) const
    {
        static_assert((sizeof(P) + ... + 0) <= 4096, "a kernel takes 4096 bytes of arguments");
        int i = 0;
        const auto check = [&](const void *p) { emulator_check_pointer(shape.name, i, p); };
        ((++i, emulator_each_pointer(arguments, check)), ...);
        emulator_enqueue_kernel(shape, new emulator_bound_to<P...>(kernel, arguments...));
    }
};

template <typename... P>
static inline emulator_launcher<P...> emulator_launch(const char *name, dim3 grid, dim3 block,
                                                      size_t shared_bytes, cudaStream_t stream,
                                                      void (*kernel)(P...))
{
    return {{name, (const void *)kernel, grid, block, shared_bytes, stream}, kernel};
}

#endif
