/* Sums over rows that have the same bits whatever the machine: rows are cut into chunks in a way
 * that their number alone decides; each chunk's sums go to scratch, and this adds the chunks up in
 * order. */
#ifndef ZF_MODEL_CUDA_COLUMN_SUMS_CUH
#define ZF_MODEL_CUDA_COLUMN_SUMS_CUH

#include "model/cuda/pack.cuh"

#define SUM_LANES  32 /* columns of a block */
#define SUM_GROUPS 16 /* threads to a column */

/* out[j] = sum over i < n of partial[i][j], added to what is there if `accumulate`, for j < C;
 * row i of `partial` begins at partial + i * stride. The y-th row of blocks takes out[y] and
 * partial + y * C.
 * Limit: memory, 4 bytes for each partial sum; they were just written, so mostly the second-level
 * cache. */
struct column_sums {
    float *out[2];
};

__global__ static void add_partials(struct column_sums sums, const float *partial, int n,
                                    size_t stride, int C, bool accumulate)
{
    SHARED(float, shared, [SUM_GROUPS][SUM_LANES]);
    const int lane = threadIdx.x % SUM_LANES, group = threadIdx.x / SUM_LANES;
    const int column = blockIdx.x * SUM_LANES + lane;
    float sum = 0;
    if (column < C) {
        const float *from = partial + (size_t)blockIdx.y * C + column;
        UNROLL_ROWS
        for (int i = group; i < n; i += SUM_GROUPS)
            sum += from[i * stride];
    }
    shared[group][lane] = sum;
    __syncthreads();
    if (group > 0 || column >= C)
        return;
    for (int i = 1; i < SUM_GROUPS; i++)
        sum += shared[i][lane];
    float *out = blockIdx.y == 0 ? sums.out[0] : sums.out[1];
    out[column] = accumulate ? out[column] + sum : sum;
}

#endif
