/* AdamW on rows; gradients' rows, taken to where they wait for it, and their norms. */
#include "model/cuda/batch.cuh"
#include "model/cuda/cuda_ops.h"

/* The rule, but for bias corrections, as the kernel takes it. */
struct adamw_constants {
    float lr, beta1, beta2, eps, l2, decay;
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

/* One update of W elements, in the order of the CPU device's. step_size = lr / (1 - beta1^t), and
 * rsqrt_correction2 = 1 / sqrt(1 - beta2^t). */
template <int W>
__device__ static inline void adamw_pack(pack<float, W> &master, pack<float, W> &m,
                                         pack<float, W> &v, const pack<float, W> &gradient,
                                         const adamw_constants &rule, float gradient_scale,
                                         float step_size, float rsqrt_correction2)
{
    for (int e = 0; e < W; e++) {
        const float g = gradient_scale * gradient.v[e] + rule.l2 * master.v[e];
        m.v[e] = rule.beta1 * m.v[e] + (1 - rule.beta1) * g;
        v.v[e] = rule.beta2 * v.v[e] + (1 - rule.beta2) * g * g;
        master.v[e] = rule.decay * master.v[e] -
                      step_size * m.v[e] / (sqrtf(v.v[e]) * rsqrt_correction2 + rule.eps);
    }
}

#define ADAMW_BLOCK 256 /* at most; a block is as wide as a row, and has one of them */

/* One update of a row, by all threads of the block. */
template <int W>
__device__ static inline void
adamw_row(bf16 *__restrict__ param, float *__restrict__ master, float *__restrict__ m,
          float *__restrict__ v, const float *__restrict__ gradient, int cols,
          const adamw_constants &rule, float scale, float step_size, float rsqrt_correction2)
{
    for (int j = threadIdx.x * W; j < cols; j += blockDim.x * W) {
        pack<float, W> p = load_pack<W>(master + j), m_pack = load_pack<W>(m + j);
        pack<float, W> v_pack = load_pack<W>(v + j);
        adamw_pack<W>(p, m_pack, v_pack, load_pack<W>(gradient + j), rule, scale, step_size,
                      rsqrt_correction2);
        store_pack(master + j, p);
        store_pack(m + j, m_pack);
        store_pack(v + j, v_pack);
        if (!param)
            continue;
        pack<bf16, W> rounded;
        for (int e = 0; e < W; e++)
            rounded.v[e] = to_bf16_parameter(p.v[e]);
        store_pack(param + j, rounded);
    }
}

/* Limit: memory. For each element 16 bytes read (master, m, v, gradient) and 14 written (master, m,
 * v, param). Powers in double are two threads' work, once for a row. */
__global__ static void __launch_bounds__(ADAMW_BLOCK)
    adamw_kernel(const matrix_rows *__restrict__ matrices, channel_update *__restrict__ updates,
                 row_source source, adamw_constants rule, const float *__restrict__ gradient_scale)
{
    SHARED(float, bias_correction, [2]);
    const float scale = *gradient_scale;
    if (scale == 0)
        return;
    const channel_update u = updates[blockIdx.x];
    const matrix_rows &matrix = matrices[u.matrix];
    if (threadIdx.x < 2) {
        const double beta = threadIdx.x == 0 ? rule.beta1 : rule.beta2;
        bias_correction[threadIdx.x] = (float)(1.0 - pow(beta, (double)(u.updates + 1)));
    }
    __syncthreads(); /* behind it all have read the count */
    if (threadIdx.x == 0)
        updates[blockIdx.x].updates = u.updates + 1;
    if (!matrix.decays) {
        rule.l2 = 0;
        rule.decay = 1;
    }
    const float step_size = rule.lr / bias_correction[0];
    const float rsqrt_correction2 = 1 / sqrtf(bias_correction[1]);
    const int cols = matrix.cols;
    const size_t at = (size_t)u.row * cols, waiting = (size_t)u.slot * cols;
    const size_t state = matrix.visiting ? u.visit : waiting;
    const bool gathered = source == ROWS_WINDOW && matrix.window;
    const float *gradient = gathered ? matrix.window + at : matrix.waiting + waiting;
    bf16 *param = matrix.streams ? NULL : (bf16 *)matrix.values + at;
    float *master = matrix.master + state, *m = matrix.m + state, *v = matrix.v + state;
    const bool wide = fits_pack<4>(param, 8, cols) && fits_pack<4>(master, 16, cols) &&
                      fits_pack<4>(m, 16, cols) && fits_pack<4>(v, 16, cols) &&
                      fits_pack<4>(gradient, 16, cols);
    if (wide)
        adamw_row<4>(param, master, m, v, gradient, cols, rule, scale, step_size,
                     rsqrt_correction2);
    else
        adamw_row<1>(param, master, m, v, gradient, cols, rule, scale, step_size,
                     rsqrt_correction2);
}

/* Parameters are bf16 here: they always have a master, and always get it rounded. Blocks are whole
 * warps, enough for the widest row in packs of 4. */
void cuda_adamw_rows(struct stream *s, const struct matrix_batch *batch,
                     struct channel_update *updates, int n, enum row_source source,
                     const struct adamw *rule, const float *gradient_scale, bool bf16_params)
{
    (void)bf16_params;
    const int wanted = divide_up(batch->widest, WARP * 4) * WARP;
    const int block = wanted < ADAMW_BLOCK ? wanted : ADAMW_BLOCK;
    if (n > 0)
        LAUNCH(adamw_kernel, n, block, 0, s, batch->matrices, updates, source,
               adamw_constants_of(rule), gradient_scale);
}

#define TAKE_BLOCK (NORM_ROWS * WARP)

/* A thread's part of a row: copied, and its sum of squares. */
template <int W, typename To>
__device__ static inline float take_part(To *__restrict__ to, const float *__restrict__ from,
                                         int cols, int thread, int threads)
{
    const bool fits = fits_pack<W>(to, W * sizeof *to, cols);
    float sum = 0;
    for (int j = thread * W; j < cols; j += threads * W) {
        const pack<float, W> x = load_pack<W>(from + j);
        pack<To, W> y;
        for (int e = 0; e < W; e++) {
            sum += x.v[e] * x.v[e];
            convert(y.v[e], x.v[e]);
        }
        if (fits)
            store_pack(to + j, y);
        else
            for (int e = 0; e < W; e++)
                to[j + e] = y.v[e];
    }
    return sum;
}

/* The sum's order is that of the width that the gradient's row allows, wherever it goes. */
template <typename To>
__device__ static inline float take_part_to(To *to, const float *from, int cols, int thread,
                                            int threads)
{
    if (fits_pack<4>(from, 16, cols))
        return take_part<4>(to, from, cols, thread, threads);
    return take_part<1>(to, from, cols, thread, threads);
}

template <typename To>
__device__ static inline float take_row(const matrix_rows &m, int row, int thread, int threads)
{
    const size_t at = (size_t)row * m.cols;
    const unsigned char place = m.place[row];
    const float *from = m.gradient + at;
    if (place == CHANNEL_IMPORTANT || place == CHANNEL_RESIDENT || place == CHANNEL_ENTERING)
        return take_part_to(m.waiting + (size_t)m.slot[row] * m.cols, from, m.cols, thread,
                            threads);
    return take_part_to((To *)m.deferred + at, from, m.cols, thread, threads);
}

/* Limit: memory. Reads 4 bytes for each element and writes 2, or 4 where they wait in fp32. A row
 * is one warp's, or one block's if it is long: its length alone decides its sum's order. */
template <typename To>
__global__ static void __launch_bounds__(TAKE_BLOCK) take_rows_kernel(matrix_batch batch)
{
    SHARED(float, part, [NORM_ROWS]);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (int piece = blockIdx.x; piece < batch.n_norm_pieces; piece += gridDim.x) {
        const int number = batch.first_norm_piece + piece;
        const matrix_rows &m = *matrix_of<&matrix_rows::first_norm_piece>(batch, number);
        const bool is_long = m.cols >= NORM_LONG_ROW;
        const int at = number - m.first_norm_piece, row = is_long ? at : at * NORM_ROWS + warp;
        if (row < m.n_rows) {
            const float sum = warp_sum(is_long ? take_row<To>(m, row, threadIdx.x, TAKE_BLOCK)
                                               : take_row<To>(m, row, lane, WARP));
            if (lane == 0 && is_long)
                part[warp] = sum;
            else if (lane == 0)
                m.norms[row] = sum;
        }
        if (!is_long)
            continue;
        __syncthreads();
        if (threadIdx.x == 0) {
            float sum = part[0];
            for (int i = 1; i < NORM_ROWS; i++)
                sum += part[i];
            m.norms[row] = sum;
        }
        __syncthreads();
    }
}

void cuda_take_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype)
{
    const int most = 8 * cuda_multiprocessors(), wanted = batch->n_norm_pieces;
    const int blocks = wanted < most ? wanted : most;
    if (wanted == 0)
        return;
    if (dtype == DTYPE_F32)
        LAUNCH((take_rows_kernel<float>), blocks, TAKE_BLOCK, 0, s, *batch);
    else
        LAUNCH((take_rows_kernel<bf16>), blocks, TAKE_BLOCK, 0, s, *batch);
}
