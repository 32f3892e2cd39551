/* AdamW on rows, and the norms of rows. */
#include "model/cuda/cuda_ops.h"
#include "model/cuda/pack.cuh"

#include <assert.h>

/* The rule, but for bias corrections, as the kernel takes it. */
struct adamw_constants {
    float lr, beta1, beta2, eps, l2, shrink;
};

static adamw_constants adamw_constants_of(const struct adamw *rule)
{
    return {rule->lr,
            rule->beta1,
            rule->beta2,
            rule->eps,
            rule->l2 ? rule->weight_decay : 0,
            rule->l2 ? 1 : 1 - rule->lr * rule->weight_decay};
}

/* One update of W elements, in the order of the CPU device's. */
template <int W>
__device__ static inline void adamw_pack(pack<float, W> &master, pack<float, W> &m,
                                         pack<float, W> &v, const pack<float, W> &gradient,
                                         const adamw_constants &rule, float gradient_scale,
                                         float step, float unbias)
{
    for (int e = 0; e < W; e++) {
        const float g = gradient_scale * gradient.v[e] + rule.l2 * master.v[e];
        m.v[e] = rule.beta1 * m.v[e] + (1 - rule.beta1) * g;
        v.v[e] = rule.beta2 * v.v[e] + (1 - rule.beta2) * g * g;
        master.v[e] =
            rule.shrink * master.v[e] - step * m.v[e] / (sqrtf(v.v[e]) * unbias + rule.eps);
    }
}

#define ADAMW_BLOCK 256 /* at most; a block is as wide as a row, and has one of them */

/* Limit: memory. For each element 16 bytes read (master, m, v, gradient) and 14 written (master, m,
 * v, param). Powers in double are two threads' work, once for a row. */
template <int W>
__global__ static void __launch_bounds__(ADAMW_BLOCK)
    adamw_kernel(bf16 *__restrict__ param, float *__restrict__ master, float *__restrict__ m,
                 float *__restrict__ v, const float *__restrict__ gradient,
                 const int *__restrict__ row, uint32_t *__restrict__ updates, int cols,
                 adamw_constants rule, const float *__restrict__ gradient_scale)
{
    SHARED(float, correction, [2]);
    const int slot = blockIdx.x;
    const float scale = *gradient_scale;
    if (scale == 0 || row[slot] < 0)
        return;
    const size_t state = (size_t)slot * cols, at = (size_t)row[slot] * cols;
    if (threadIdx.x < 2) {
        const double beta = threadIdx.x == 0 ? rule.beta1 : rule.beta2;
        correction[threadIdx.x] = (float)(1.0 - pow(beta, (double)(updates[slot] + 1)));
    }
    __syncthreads(); /* behind it the two have read the count */
    if (threadIdx.x == 0)
        updates[slot]++;
    const float step = rule.lr / correction[0], unbias = 1 / sqrtf(correction[1]);
    for (int j = threadIdx.x * W; j < cols; j += blockDim.x * W) {
        pack<float, W> own = load_pack<W>(master + state + j), m1 = load_pack<W>(m + state + j);
        pack<float, W> v1 = load_pack<W>(v + state + j);
        adamw_pack<W>(own, m1, v1, load_pack<W>(gradient + at + j), rule, scale, step, unbias);
        store_pack(master + state + j, own);
        store_pack(m + state + j, m1);
        store_pack(v + state + j, v1);
        pack<bf16, W> seen;
        for (int e = 0; e < W; e++)
            seen.v[e] = to_bf16(own.v[e]);
        store_pack(param + at + j, seen);
    }
}

/* Whole warps, enough for a row in packs of W. */
template <int W> static int adamw_block(int cols)
{
    const int threads = divide_up(cols, WARP * W) * WARP;
    return threads < ADAMW_BLOCK ? threads : ADAMW_BLOCK;
}

/* Parameters are bf16 here: they always have a master, and always get it rounded. */
void cuda_adamw_rows(struct stream *s, void *param, float *master, float *m, float *v,
                     const float *gradient, const int *row, uint32_t *updates, int n, int cols,
                     const struct adamw *rule, const float *gradient_scale, bool bf16_params)
{
    (void)bf16_params;
    if (n == 0 || cols == 0)
        return;
    assert(master);
    const bool wide = cols % 4 == 0 && is_multiple(param, 8) && is_multiple(master, 16) &&
                      is_multiple(m, 16) && is_multiple(v, 16) && is_multiple(gradient, 16);
    if (wide)
        LAUNCH((adamw_kernel<4>), n, adamw_block<4>(cols), 0, s, (bf16 *)param, master, m, v,
               gradient, row, updates, cols, adamw_constants_of(rule), gradient_scale);
    else
        LAUNCH((adamw_kernel<1>), n, adamw_block<1>(cols), 0, s, (bf16 *)param, master, m, v,
               gradient, row, updates, cols, adamw_constants_of(rule), gradient_scale);
}

#define NORM_BLOCK    256
#define NORM_LONG_ROW 4096 /* columns from which a row has a block, not a warp */

template <int W>
__device__ static inline float sum_of_squares(const float *x, int cols, int thread, int threads)
{
    float sum = 0;
    for (int j = thread * W; j < cols; j += threads * W) {
        const pack<float, W> y = load_pack<W>(x + j);
        for (int e = 0; e < W; e++)
            sum += y.v[e] * y.v[e];
    }
    return sum;
}

/* Limit: memory. Reads 4 bytes for each element. A row is summed by one warp, or by one block if it
 * is long, in an order that its length alone decides. */
template <int W>
__global__ static void __launch_bounds__(NORM_BLOCK)
    row_norms_kernel(float *__restrict__ sums, const float *__restrict__ g, int rows, int cols)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = NORM_BLOCK / WARP;
    for (int row = blockIdx.x * warps + warp; row < rows; row += gridDim.x * warps) {
        float sum = warp_sum(sum_of_squares<W>(g + (size_t)row * cols, cols, lane, WARP));
        if (lane == 0)
            sums[row] = sum;
    }
}

template <int W>
__global__ static void __launch_bounds__(NORM_BLOCK)
    long_row_norms_kernel(float *__restrict__ sums, const float *__restrict__ g, int rows, int cols)
{
    SHARED(float, part, [NORM_BLOCK / WARP]);
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        float sum =
            warp_sum(sum_of_squares<W>(g + (size_t)row * cols, cols, threadIdx.x, NORM_BLOCK));
        if (threadIdx.x % WARP == 0)
            part[threadIdx.x / WARP] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int i = 1; i < NORM_BLOCK / WARP; i++)
                sum += part[i];
            sums[row] = sum;
        }
        __syncthreads();
    }
}

template <int W>
static void row_norms(struct stream *s, float *sums, const float *g, int rows, int cols)
{
    const int most = 8 * cuda_multiprocessors();
    const bool is_long = cols >= NORM_LONG_ROW;
    const int wanted = is_long ? rows : divide_up(rows, NORM_BLOCK / WARP);
    const int blocks = wanted < most ? wanted : most;
    if (is_long)
        LAUNCH((long_row_norms_kernel<W>), blocks, NORM_BLOCK, 0, s, sums, g, rows, cols);
    else
        LAUNCH((row_norms_kernel<W>), blocks, NORM_BLOCK, 0, s, sums, g, rows, cols);
}

void cuda_row_norms_squared(struct stream *s, float *sums, const float *g, int rows, int cols)
{
    if (rows == 0)
        return;
    if (cols % 4 == 0 && is_multiple(g, 16))
        row_norms<4>(s, sums, g, rows, cols);
    else
        row_norms<1>(s, sums, g, rows, cols);
}
