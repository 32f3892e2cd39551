/* Losses with their gradients, and their sum. */
#include "model/cuda/pack.cuh"

extern "C" {
#include "data/batch.h"
#include "model/cuda/cuda_ops.h"
}

#include <float.h>

#define THREADS     256
#define ROW_THREADS 1024
#define LOG2_E      1.44269504f

/* exp(x) */
__device__ static inline float fast_exp(float x)
{
    return fast_exp2(LOG2_E * x);
}

/* Where a row's vectors begin and end. A row of logits begins at any element, so they are those of
 * the whole array: first up to 7 single elements, then vectors, then up to 7 single ones. */
struct row_cut {
    int begin, end;
};

__device__ static inline struct row_cut cut_row(int row, int n, int stride, bool vectors)
{
    if (!vectors)
        return {n, n};
    const int begin = (int)((VECTOR - (size_t)row * stride % VECTOR) % VECTOR);
    if (begin >= n)
        return {n, n};
    return {begin, begin + (n - begin) / VECTOR * VECTOR};
}

/* The i-th element outside the vectors. */
__device__ static inline int single_at(const struct row_cut &cut, int i)
{
    return i < cut.begin ? i : cut.end + i - cut.begin;
}

/* sum exp(x[j] - max) over what a thread, a warp, a block has seen. */
struct exp_sum {
    float max, sum;
};

template <int width>
__device__ static inline void add_exp(struct exp_sum &e, const float (&x)[width])
{
    float max = e.max;
    for (int i = 0; i < width; i++)
        max = fmaxf(max, x[i]);
    float sum = e.sum * fast_exp(e.max - max);
    for (int i = 0; i < width; i++)
        sum += fast_exp(x[i] - max);
    e = {max, sum};
}

__device__ static inline struct exp_sum sum_over_block(struct exp_sum e,
                                                       struct exp_sum (&shared)[WARP])
{
    const float max = warp_max(e.max);
    const float sum = warp_sum(e.sum * fast_exp(e.max - max));
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = {max, sum};
    __syncthreads();
    const int n_warps = blockDim.x / WARP;
    e = shared[0];
    for (int i = 1; i < n_warps; i++)
        e.max = fmaxf(e.max, shared[i].max);
    e.sum = 0;
    for (int i = 0; i < n_warps; i++)
        e.sum += shared[i].sum * fast_exp(shared[i].max - e.max);
    return e;
}

/* dlogits = factor * exp(x - max), and less `scale` at the target; 0 where the factor is. */
template <int width>
__device__ static inline void store_slope(bf16 *to, const float (&x)[width], int column, int target,
                                          float max, float factor, float scale)
{
    float d[width];
    for (int i = 0; i < width; i++)
        d[i] = factor == 0 ? 0 : factor * fast_exp(x[i] - max) - (column + i == target ? scale : 0);
    store<width>(to, d);
}

/* A block takes a row. Limit: memory, 4 bytes read and 2 written for each logit. It reads the row
 * twice; the second time backwards, so that it begins with what the second-level cache got last. */
__global__ static void __launch_bounds__(ROW_THREADS)
    cross_entropy_rows(float *losses, bf16 *dlogits, const float *logits, const int *targets, int n,
                       int stride, float scale, bool vectors)
{
    SHARED(struct exp_sum, shared, [WARP]);
    const int target = targets[blockIdx.x], thread = threadIdx.x, n_threads = blockDim.x;
    const float *x = logits + (size_t)blockIdx.x * stride;
    bf16 *d = dlogits + (dlogits ? (size_t)blockIdx.x * stride : 0);
    const struct row_cut cut = cut_row(blockIdx.x, n, stride, vectors);
    const int n_singles = n - (cut.end - cut.begin), n_vectors = (cut.end - cut.begin) / VECTOR;
    const bool ignored = target == TARGET_IGNORE;
    struct exp_sum e = {-FLT_MAX, 0};
    float single[1], several[VECTOR];
    if (!ignored) {
        for (int i = thread; i < n_singles; i += n_threads) {
            load<1>(single, x + single_at(cut, i));
            add_exp<1>(e, single);
        }
        for (int i = thread; i < n_vectors; i += n_threads) {
            load<VECTOR>(several, x + cut.begin + i * VECTOR);
            add_exp<VECTOR>(e, several);
        }
        e = sum_over_block(e, shared);
    }
    if (thread == 0)
        losses[blockIdx.x] = ignored ? 0 : logf(e.sum) - (x[target] - e.max);
    if (!dlogits)
        return;
    const float factor = ignored ? 0 : scale / e.sum;
    const int last = (n_vectors + n_threads - 1) / n_threads * n_threads - n_threads + thread;
    for (int i = last; i >= 0; i -= n_threads) {
        if (i >= n_vectors)
            continue;
        const int column = cut.begin + i * VECTOR;
        load<VECTOR>(several, x + column);
        store_slope<VECTOR>(d + column, several, column, target, e.max, factor, scale);
    }
    for (int i = thread; i < n_singles; i += n_threads) {
        const int column = single_at(cut, i);
        load<1>(single, x + column);
        store_slope<1>(d + column, single, column, target, e.max, factor, scale);
    }
    for (int column = n + thread; column < stride; column += n_threads)
        d[column] = 0;
}

void cuda_cross_entropy(struct stream *s, float *losses, void *dlogits, float *logits,
                        const int *targets, int n, int n_classes, int stride, float scale)
{
    if (n == 0)
        return;
    const int threads = WARP * divide_up(n_classes, VECTOR * WARP);
    const bool vectors = ((uintptr_t)dlogits | (uintptr_t)logits) % 16 == 0;
    LAUNCH(cross_entropy_rows, n, threads < ROW_THREADS ? threads : ROW_THREADS, 0, s, losses,
           (bf16 *)dlogits, logits, targets, n_classes, stride, scale, vectors);
}

/* Limit: the launch; a batch has few scores. */
__global__ static void squared_errors(float *losses, bf16 *dlogits, const float *logits,
                                      const float *scores, int n, float scale)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    const float difference = logits[i] - scores[i];
    losses[i] = difference * difference;
    if (dlogits)
        dlogits[i] = to_bf16(2 * scale * difference);
}

void cuda_squared_error(struct stream *s, float *losses, void *dlogits, float *logits,
                        const float *scores, int n, float scale)
{
    if (n > 0)
        LAUNCH(squared_errors, divide_up(n, THREADS), THREADS, 0, s, losses, (bf16 *)dlogits,
               logits, scores, n, scale);
}

/* One block, so that n alone decides the order. Limit: latency; one loss for each token or
 * sequence of a batch is little. */
__global__ static void __launch_bounds__(ROW_THREADS) sum_all(double *sum, const float *x, int n)
{
    SHARED(double, shared, [ROW_THREADS]);
    double mine = 0;
    UNROLL_ROWS
    for (int i = threadIdx.x; i < n; i += ROW_THREADS)
        mine += (double)x[i];
    shared[threadIdx.x] = mine;
    for (int half = ROW_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            shared[threadIdx.x] += shared[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        *sum += shared[0];
}

void cuda_add_sum(struct stream *s, double *sum, const float *x, int n)
{
    if (n > 0)
        LAUNCH(sum_all, 1, ROW_THREADS, 0, s, sum, x, n);
}
