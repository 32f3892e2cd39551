/* What follows a matrix product where cuBLASLt does not do it,
 * and products that it does not take. */
#include "model/cuda/matmul.cuh"
#include "model/cuda/pack.cuh"

#include <math.h>

#define FINISH_THREADS 128
#define TILE           16

/* The two forms of GELU, and their slopes. Hendrycks and Gimpel, "Gaussian error linear units",
 * 2016. */
#define SQRT_2_OVER_PI 0.7978845608f
#define SQRT_HALF      0.7071067812f
#define INV_SQRT_2_PI  0.3989422804f
#define CUBE           0.044715f

__device__ static inline float activate(float x, enum activation act)
{
    switch (act) {
    case ACT_NONE:
        break;
    case ACT_GELU_TANH:
        return 0.5f * x * (1 + tanhf(SQRT_2_OVER_PI * (x + CUBE * x * x * x)));
    case ACT_GELU_ERF:
        return 0.5f * x * (1 + erff(SQRT_HALF * x));
    case ACT_RELU:
        return x > 0 ? x : 0;
    }
    return x;
}

__device__ static inline float slope(float x, enum activation act)
{
    switch (act) {
    case ACT_NONE:
        break;
    case ACT_GELU_TANH: {
        const float t = tanhf(SQRT_2_OVER_PI * (x + CUBE * x * x * x));
        const float inner = SQRT_2_OVER_PI * (1 + 3 * CUBE * x * x);
        return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * inner;
    }
    case ACT_GELU_ERF:
        return 0.5f * (1 + erff(SQRT_HALF * x)) + x * INV_SQRT_2_PI * expf(-0.5f * x * x);
    case ACT_RELU:
        return x > 0 ? 1 : 0;
    }
    return 1;
}

/* As ops.h orders it. All (m, n) but bias. */
template <typename T> struct finish_job {
    T *c;
    const T *product;
    const bf16 *bias;
    bf16 *pre;
    const bf16 *gradient_of;
    int m, n;
    enum activation act;
    int accumulate; /* a bool would leave padding, which the emulator may take for a pointer */
};

/* Limit: memory; reads the product, writes c, and reads or writes pre, gradient_of and old c where
 * they are given, each once. A thread stays in its columns and goes down the rows. */
template <int width, typename T>
__global__ static void __launch_bounds__(FINISH_THREADS) finish_kernel(struct finish_job<T> f)
{
    const int column = (int)(blockIdx.x * FINISH_THREADS + threadIdx.x) * width;
    if (column >= f.n)
        return;
    float bias[width] = {0};
    if (f.bias)
        load<width>(bias, f.bias + column);
    for (int row = (int)blockIdx.y; row < f.m; row += (int)gridDim.y) {
        const size_t at = (size_t)row * f.n + column;
        float x[width], other[width];
        load<width>(x, f.product + at);
        for (int i = 0; i < width; i++)
            x[i] += bias[i];
        if (f.pre)
            store<width>(f.pre + at, x);
        if (f.gradient_of) {
            load<width>(other, f.gradient_of + at);
            for (int i = 0; i < width; i++)
                x[i] *= slope(other[i], f.act);
        } else {
            for (int i = 0; i < width; i++)
                x[i] = activate(x[i], f.act);
        }
        if (f.accumulate) {
            load<width>(other, f.c + at);
            for (int i = 0; i < width; i++)
                x[i] += other[i];
        }
        store<width>(f.c + at, x);
    }
}

template <typename T>
static void finish(struct stream *s, void *c, const void *product, const struct matmul *p)
{
    struct finish_job<T> f;
    f.c = (T *)c;
    f.product = (const T *)product;
    f.bias = (const bf16 *)p->bias;
    f.pre = p->pre == product && !p->bias ? NULL : (bf16 *)p->pre;
    f.gradient_of = (const bf16 *)p->gradient_of;
    f.m = p->m;
    f.n = p->n;
    f.act = p->act;
    f.accumulate = p->accumulate;
    const bool vectors =
        rows_are_vectors(p->n, (uintptr_t)c | (uintptr_t)product | (uintptr_t)p->bias |
                                   (uintptr_t)p->pre | (uintptr_t)p->gradient_of);
    const int columns = divide_up((size_t)p->n, FINISH_THREADS * (vectors ? VECTOR : 1));
    const int enough = divide_up((size_t)cuda_multiprocessors() * 16, columns);
    const dim3 grid((unsigned)columns, (unsigned)(p->m < enough ? p->m : enough));
    if (vectors)
        LAUNCH((finish_kernel<VECTOR, T>), grid, FINISH_THREADS, 0, s, f);
    else
        LAUNCH((finish_kernel<1, T>), grid, FINISH_THREADS, 0, s, f);
}

void matmul_finish(struct stream *s, void *c, const void *product, const struct matmul *p)
{
    if (p->c_is_f32)
        finish<float>(s, c, product, p);
    else
        finish<bf16>(s, c, product, p);
}

struct small_product {
    const bf16 *a, *b;
    int m, n, k;
    bool trans_a, trans_b, accumulate;
};

/* One element of c for each thread, through tiles in shared memory. Limit: shared memory, 2 loads
 * for each multiply-add; products that come here have a side of a few elements. */
template <typename T>
__global__ static void __launch_bounds__(TILE *TILE) small_kernel(T *c, struct small_product p)
{
    SHARED(float, a, [TILE][TILE + 1]);
    SHARED(float, b, [TILE][TILE + 1]);
    const int x = (int)threadIdx.x, y = (int)threadIdx.y;
    const int row = (int)blockIdx.x * TILE + y, column = (int)blockIdx.y * TILE + x;
    float sum = 0;
    for (int first = 0; first < p.k; first += TILE) {
        const int ka = first + x, kb = first + y;
        const size_t at_a = p.trans_a ? (size_t)ka * p.m + row : (size_t)row * p.k + ka;
        const size_t at_b = p.trans_b ? (size_t)column * p.k + kb : (size_t)kb * p.n + column;
        a[y][x] = row < p.m && ka < p.k ? to_float(p.a[at_a]) : 0;
        b[y][x] = column < p.n && kb < p.k ? to_float(p.b[at_b]) : 0;
        __syncthreads();
        for (int i = 0; i < TILE; i++)
            sum += a[y][i] * b[i][x];
        __syncthreads();
    }
    if (row >= p.m || column >= p.n)
        return;
    const size_t at = (size_t)row * p.n + column;
    convert(c[at], p.accumulate ? sum + to_float(c[at]) : sum);
}

void matmul_small(struct stream *s, void *c, const void *a, const void *b, const struct matmul *p)
{
    struct small_product q;
    q.a = (const bf16 *)a;
    q.b = (const bf16 *)b;
    q.m = p->m;
    q.n = p->n;
    q.k = p->k;
    q.trans_a = p->trans_a;
    q.trans_b = p->trans_b;
    q.accumulate = p->accumulate;
    const dim3 grid((unsigned)divide_up((size_t)p->m, TILE),
                    (unsigned)divide_up((size_t)p->n, TILE));
    const dim3 block(TILE, TILE);
    if (p->c_is_f32)
        LAUNCH((small_kernel<float>), grid, block, 0, s, (float *)c, q);
    else
        LAUNCH((small_kernel<bf16>), grid, block, 0, s, (bf16 *)c, q);
}
