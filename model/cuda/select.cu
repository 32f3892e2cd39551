/* What the norms of all channels say: the global norm and the clipping factor, and which channels
 * are the greatest. */
#include "model/cuda/cuda_ops.h"
#include "model/cuda/intrinsics.cuh"

/* Sums in double: each thread's, then a warp's, then a block's, in an order that is always the
 * same. */
struct norm_sums {
    double all, important, selectable;
};

#define SUM_BLOCK 256
#define SUM_LEAST 4096 /* elements for a block, so that few are summed by one */
#define SUM_MOST  SUM_BLOCK

__device__ static inline norm_sums add(norm_sums a, const norm_sums &b)
{
    a.all += b.all;
    a.important += b.important;
    a.selectable += b.selectable;
    return a;
}

/* The sum over the block, in thread 0. */
__device__ static inline norm_sums block_sum(norm_sums x)
{
    SHARED(norm_sums, part, [SUM_BLOCK / WARP]);
    for (int i = WARP / 2; i > 0; i /= 2)
        x = add(x, {shuffle_xor(FULL_MASK, x.all, i), shuffle_xor(FULL_MASK, x.important, i),
                    shuffle_xor(FULL_MASK, x.selectable, i)});
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = x;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < SUM_BLOCK / WARP; i++)
            x = add(x, part[i]);
    return x;
}

/* Limit: memory, 5 bytes read for each channel; launching it, where there are few. */
__global__ static void __launch_bounds__(SUM_BLOCK)
    sum_norms_kernel(norm_sums *__restrict__ partial, const float *__restrict__ sums,
                     const unsigned char *__restrict__ place, int n)
{
    norm_sums x = {0, 0, 0};
    for (int i = blockIdx.x * SUM_BLOCK + threadIdx.x; i < n; i += gridDim.x * SUM_BLOCK) {
        const double sum = sums[i];
        const bool important = place[i] == CHANNEL_IMPORTANT || place[i] == CHANNEL_ENTERING;
        x = add(x, {sum, important ? sum : 0, place[i] != CHANNEL_RESIDENT ? sum : 0});
    }
    x = block_sum(x);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = x;
}

__global__ static void __launch_bounds__(SUM_BLOCK)
    summarise_kernel(norm_summary *__restrict__ out, const norm_sums *__restrict__ partial, int n,
                     float limit)
{
    norm_sums x = {0, 0, 0};
    if ((int)threadIdx.x < n)
        x = partial[threadIdx.x];
    x = block_sum(x);
    if (threadIdx.x != 0)
        return;
    const double norm = sqrt(x.all);
    double factor = limit > 0 ? fmin(1.0, limit / (norm + 1e-6)) : 1;
    if (!isfinite(norm))
        factor = 0;
    *out = {(float)norm, (float)factor, x.important, x.selectable};
}

void cuda_summarise_norms(struct stream *s, struct norm_summary *out, const float *sums,
                          const unsigned char *place, int n, float limit)
{
    const int wanted = divide_up(n, SUM_LEAST), blocks = wanted < SUM_MOST ? wanted : SUM_MOST;
    norm_sums *partial = (norm_sums *)cuda_scratch(s, SUM_MOST * sizeof(norm_sums));
    if (blocks > 0)
        LAUNCH(sum_norms_kernel, blocks, SUM_BLOCK, 0, s, partial, sums, place, n);
    LAUNCH(summarise_kernel, 1, SUM_BLOCK, 0, s, out, partial, blocks, limit);
}

/* Selection by radix: floats that are not negative are in the order of their bits, so four rounds,
 * each of 8 bits from the top, find the bits of the k-th greatest, and how many that are equal to
 * it belong to the k. */

#define SELECT_BLOCK 1024
#define DIGITS       256
#define COPIES       8 /* of each counter: neighbours often have the same digit */
#define RUN          4 /* elements of a thread in the last pass */

__device__ static inline unsigned bits_of(float x)
{
    union {
        float value;
        unsigned bits;
    } both;
    both.value = x;
    return both.bits;
}

/* The sum of x over the threads before this one. All threads of the block call it. */
__device__ static inline int sum_before(int x, int (&warp_sums)[WARP], int *total)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int sum = x;
    for (int i = 1; i < WARP; i *= 2) {
        const int other = shuffle(FULL_MASK, sum, lane - i);
        sum += lane >= i ? other : 0;
    }
    __syncthreads(); /* the last call's readers are done */
    if (lane == WARP - 1)
        warp_sums[warp] = sum;
    __syncthreads();
    int before = sum - x;
    *total = 0;
    for (int i = 0; i < SELECT_BLOCK / WARP; i++) {
        before += i < warp ? warp_sums[i] : 0;
        *total += warp_sums[i];
    }
    return before;
}

/* The elements whose bits in `mask` are those of `value`; `left` of these are among the k. */
struct candidates {
    unsigned mask, value;
    int left;
};

/* One round: the candidates' digit at `shift`. */
__device__ static inline void narrow(candidates &now, int shift, const float *sums, int n,
                                     int (&counters)[DIGITS * COPIES], int (&warp_sums)[WARP])
{
    const int thread = threadIdx.x;
    int total, count = 0;
    for (int i = thread; i < DIGITS * COPIES; i += SELECT_BLOCK)
        counters[i] = 0;
    __syncthreads();
    for (int i = thread; i < n; i += SELECT_BLOCK) {
        const unsigned bits = bits_of(sums[i]);
        if ((bits & now.mask) == now.value)
            atomicAdd(&counters[(bits >> shift) % DIGITS * COPIES + thread % COPIES], 1);
    }
    __syncthreads();
    const int digit = DIGITS - 1 - thread; /* from the greatest */
    if (digit >= 0)
        for (int i = 0; i < COPIES; i++)
            count += counters[digit * COPIES + i];
    const int greater = sum_before(count, warp_sums, &total);
    SHARED(candidates, next, [1]);
    if (greater < now.left && now.left <= greater + count)
        next[0] = {now.mask | (DIGITS - 1u) << shift, now.value | (unsigned)digit << shift,
                   now.left - greater};
    __syncthreads();
    now = next[0];
}

/* One block. Limit: what one multiprocessor can read; 4 n bytes for each round and for the last
 * pass, from the second-level cache. */
__global__ static void __launch_bounds__(SELECT_BLOCK)
    select_kernel(unsigned char *__restrict__ chosen, const float *__restrict__ sums, int n, int k)
{
    SHARED(int, counters, [DIGITS * COPIES]);
    SHARED(int, warp_sums, [WARP]);
    candidates now = {0, 0, k};
    for (int shift = 24; shift >= 0; shift -= 8)
        narrow(now, shift, sums, n, counters, warp_sums);
    int equals = 0; /* of those before this tile */
    for (int tile = 0; tile < n; tile += SELECT_BLOCK * RUN) {
        const int first = tile + (int)threadIdx.x * RUN;
        unsigned bits[RUN];
        int own = 0, total;
        for (int i = 0; i < RUN; i++) {
            bits[i] = first + i < n ? bits_of(sums[first + i]) : 0;
            own += first + i < n && bits[i] == now.value;
        }
        int rank = equals + sum_before(own, warp_sums, &total);
        equals += total;
        for (int i = 0; i < RUN && first + i < n; i++) {
            const bool equal = bits[i] == now.value;
            chosen[first + i] = bits[i] > now.value || (equal && rank < now.left);
            rank += equal;
        }
    }
}

void cuda_select_rows(struct stream *s, unsigned char *chosen, const float *sums, int n, int k)
{
    if (n == 0)
        return;
    if (k <= 0 || k >= n)
        check_cuda(cudaMemsetAsync(chosen, k >= n, (size_t)n, s->cuda));
    else
        LAUNCH(select_kernel, 1, SELECT_BLOCK, 0, s, chosen, sums, n, k);
}
