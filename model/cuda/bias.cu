/* The gradient of a bias: column sums. Limit: memory, 2 n C bytes read. */
#include "model/cuda/column_sums.cuh"

extern "C" {
#include "model/cuda/cuda_ops.h"
}

#define WARPS      8
#define CHUNK_ROWS 64  /* at least so many rows to a chunk */
#define MAX_CHUNKS 256 /* so that adding them up stays cheap beside reading dy */

/* partial[chunk][j] = sum of the chunk's rows of dy. A block takes a chunk and 32 * width columns,
 * its warps every eighth row each. */
template <int width>
__global__ static void __launch_bounds__(WARP *WARPS)
    sum_chunks(float *partial, const bf16 *dy, int n, int C, int chunk_rows)
{
    SHARED(float, shared, [WARPS][WARP * width]);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int first = blockIdx.x * WARP * width, column = first + lane * width;
    const int begin = blockIdx.y * chunk_rows,
              end = begin + chunk_rows < n ? begin + chunk_rows : n;
    float sum[width] = {};
    if (column < C) {
        UNROLL_ROWS
        for (int i = begin + warp; i < end; i += WARPS) {
            float x[width];
            load<width>(x, dy + (size_t)i * C + column);
            for (int j = 0; j < width; j++)
                sum[j] += x[j];
        }
    }
    store<width>(&shared[warp][lane * width], sum);
    __syncthreads();
    const int mine = threadIdx.x;
    if (mine >= WARP * width || first + mine >= C)
        return;
    float total = 0;
    for (int i = 0; i < WARPS; i++)
        total += shared[i][mine];
    partial[(size_t)blockIdx.y * C + first + mine] = total;
}

void cuda_bias_backward(struct stream *s, float *db, const void *dy, int n, int C, bool accumulate)
{
    if (n == 0 && accumulate)
        return;
    const int chunk_rows = CHUNK_ROWS * divide_up(n > 0 ? n : 1, CHUNK_ROWS * MAX_CHUNKS);
    const int chunks = divide_up(n, chunk_rows);
    float *partial = (float *)cuda_scratch(s, sizeof(float) * (size_t)chunks * C);
    const bf16 *from = (const bf16 *)dy;
    if (n > 0 && rows_are_vectors(C, (uintptr_t)dy))
        LAUNCH((sum_chunks<VECTOR>), dim3(divide_up(C, WARP * VECTOR), chunks), WARP * WARPS, 0, s,
               partial, from, n, C, chunk_rows);
    else if (n > 0)
        LAUNCH((sum_chunks<1>), dim3(divide_up(C, WARP), chunks), WARP * WARPS, 0, s, partial, from,
               n, C, chunk_rows);
    LAUNCH(add_partials, divide_up(C, SUM_LANES), SUM_LANES * SUM_GROUPS, 0, s,
           (column_sums{{db, NULL}}), partial, chunks, (size_t)C, C, accumulate);
}
