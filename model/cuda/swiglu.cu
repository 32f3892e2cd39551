/* SwiGLU's activation (Shazeer, "GLU variants improve transformer", 2020), on the output of one
 * product that has gate and up side by side.
 *
 * Limit: memory. Forward moves 6 n I bytes (gate, up; y), backward 10 n I (gate, up, dy; dgate,
 * dup), or 12 n I where it makes y again. */
#include "model/cuda/pack.cuh"

extern "C" {
#include "model/cuda/cuda_ops.h"
}

#define THREADS 128
#define LOG2_E  1.44269504f

struct swiglu_job {
    bf16 *dgate_up, *y; /* dgate_up: backward; y: NULL there where it is not needed */
    const bf16 *dy, *gate_up;
    int n, I;
};

__device__ static inline float logistic(float z)
{
    return 1.0f / (1.0f + fast_exp2(-LOG2_E * z));
}

/* A thread stays in its columns and goes down the rows. It has read what it reads of a row before
 * it writes: outputs may lie where inputs do. */
template <int width, bool BACKWARD>
__global__ static void __launch_bounds__(THREADS) swiglu_kernel(struct swiglu_job job)
{
    const int column = (int)(blockIdx.x * THREADS + threadIdx.x) * width;
    if (column >= job.I)
        return;
    for (int row = (int)blockIdx.y; row < job.n; row += (int)gridDim.y) {
        const size_t at = (size_t)row * job.I + column, gate_at = at + (size_t)row * job.I;
        float gate[width], up[width], y[width];
        load<width>(gate, job.gate_up + gate_at);
        load<width>(up, job.gate_up + gate_at + job.I);
        if constexpr (BACKWARD) {
            float dy[width];
            load<width>(dy, job.dy + at);
            for (int i = 0; i < width; i++) {
                const float s = logistic(gate[i]), silu = gate[i] * s;
                y[i] = silu * up[i];
                up[i] *= dy[i] * s * (1.0f + gate[i] * (1.0f - s));
                gate[i] = dy[i] * silu;
            }
            store<width>(job.dgate_up + gate_at, up);
            store<width>(job.dgate_up + gate_at + job.I, gate);
        } else {
            for (int i = 0; i < width; i++)
                y[i] = gate[i] * logistic(gate[i]) * up[i];
        }
        if (!BACKWARD || job.y)
            store<width>(job.y + at, y);
    }
}

template <bool BACKWARD> static void launch(struct stream *s, const struct swiglu_job &job)
{
    if (job.n == 0)
        return;
    const bool vectors = rows_are_vectors(job.I, (uintptr_t)job.dgate_up | (uintptr_t)job.y |
                                                     (uintptr_t)job.dy | (uintptr_t)job.gate_up);
    const int columns = divide_up((size_t)job.I, THREADS * (vectors ? VECTOR : 1));
    const int enough = divide_up((size_t)cuda_multiprocessors() * 16, columns);
    const dim3 grid((unsigned)columns, (unsigned)(job.n < enough ? job.n : enough));
    if (vectors)
        LAUNCH((swiglu_kernel<VECTOR, BACKWARD>), grid, THREADS, 0, s, job);
    else
        LAUNCH((swiglu_kernel<1, BACKWARD>), grid, THREADS, 0, s, job);
}

void cuda_swiglu_forward(struct stream *s, void *y, const void *gate_up, int n, int I)
{
    launch<false>(s, {NULL, (bf16 *)y, NULL, (const bf16 *)gate_up, n, I});
}

void cuda_swiglu_backward(struct stream *s, void *dgate_up, void *y, const void *dy,
                          const void *gate_up, int n, int I)
{
    launch<true>(s, {(bf16 *)dgate_up, (bf16 *)y, (const bf16 *)dy, (const bf16 *)gate_up, n, I});
}
