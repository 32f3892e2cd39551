/* Residual connection, dropout and norm fused: layer norm (Ba, Kiros and Hinton, 2016), and RMSNorm
 * (Zhang and Sennrich, 2019), which is the same without mean and shift: CENTRED is false. A block
 * takes a row and keeps it in registers, so that each array is read once.
 *
 * Limit: memory. Forward moves 8 n C bytes (x_in, branch; x_out, y), backward 10 n C (dy, x_out,
 * dx; dx, dbranch). C is at most 8192, or 2048 where it is no multiple of 8. */
#include "model/cuda/column_sums.cuh"

extern "C" {
#include "model/cuda/cuda_ops.h"
}

#include <assert.h>

/* A thread holds `vectors` vectors of `width` columns: one of 8, or 4 of 1. */
#define SINGLES            4
#define MAX_THREADS(width) ((width) == VECTOR ? 1024 : 512)

struct forward {
    bf16 *x_out, *y;
    float *mean, *rstd;
    const bf16 *x_in, *branch, *gamma, *beta; /* mean, beta: where CENTRED */
    float eps;
    int C;
    struct token_rows rows;
    struct dropout drop;
};

/* x = x_in + dropout(branch) as stored in x_out, for the block's row; 0 beyond the row. */
template <int width, int vectors>
__device__ static inline void add_branch(float (&x)[vectors][width], const struct forward &f, int t)
{
    const size_t row = (size_t)t * f.C;
    for (int k = 0; k < vectors; k++) {
        const int column = (threadIdx.x + k * blockDim.x) * width;
        for (int i = 0; i < width; i++)
            x[k][i] = 0;
        if (column >= f.C)
            continue;
        load<width>(x[k], f.x_in + row + column);
        if (f.branch) {
            float b[width];
            load<width>(b, f.branch + row + column);
            apply_dropout<width>(b, f.drop, f.rows, t, column);
            for (int i = 0; i < width; i++)
                x[k][i] += b[i];
        }
        if (f.branch || f.x_out != f.x_in)
            store<width>(f.x_out + row + column, x[k]);
        for (int i = 0; i < width; i++)
            x[k][i] = to_float(to_bf16(x[k][i]));
    }
}

/* The variance is the mean square of the differences: that of the squares would cancel. */
template <bool CENTRED, int width, int vectors>
__global__ static void __launch_bounds__(MAX_THREADS(width)) forward_rows(struct forward f)
{
    SHARED(float, shared, [2][WARP]);
    const int t = blockIdx.x;
    float x[vectors][width], sum = 0, squares = 0;
    add_branch<width, vectors>(x, f, t);
    for (int k = 0; k < vectors; k++)
        for (int i = 0; i < width; i++)
            sum += x[k][i];
    const float mean = CENTRED ? block_sum(sum, shared[0]) / (float)f.C : 0;
    for (int k = 0; k < vectors; k++)
        if ((int)(threadIdx.x + k * blockDim.x) * width < f.C)
            for (int i = 0; i < width; i++)
                squares += (x[k][i] - mean) * (x[k][i] - mean);
    const float rstd = 1.0f / sqrtf(block_sum(squares, shared[1]) / (float)f.C + f.eps);
    for (int k = 0; k < vectors; k++) {
        const int column = (threadIdx.x + k * blockDim.x) * width;
        if (column >= f.C)
            continue;
        float gamma[width];
        load<width>(gamma, f.gamma + column);
        if constexpr (CENTRED) {
            float beta[width];
            load<width>(beta, f.beta + column);
            for (int i = 0; i < width; i++)
                x[k][i] = gamma[i] * ((x[k][i] - mean) * rstd) + beta[i];
        } else {
            for (int i = 0; i < width; i++)
                x[k][i] = gamma[i] * to_float(to_bf16(x[k][i] * rstd));
        }
        store<width>(f.y + (size_t)t * f.C + column, x[k]);
    }
    if (threadIdx.x == 0) {
        if (CENTRED)
            f.mean[t] = mean;
        f.rstd[t] = rstd;
    }
}

static_assert(CUDA_MAX_WIDTH == MAX_THREADS(VECTOR) * VECTOR, "a vector a thread");
static_assert(CUDA_MAX_ODD_WIDTH == MAX_THREADS(1) * SINGLES, "single elements");

/* Threads to a row: whole warps. */
template <int width, int vectors> static int row_threads(int C)
{
    int threads = WARP * divide_up(C, width * vectors * WARP);
    assert(threads <= MAX_THREADS(width));
    return threads;
}

template <bool CENTRED> static void forward(struct stream *s, const struct forward &f)
{
    const int n = f.rows.n_tokens;
    const uintptr_t pointers = (uintptr_t)f.x_out | (uintptr_t)f.y | (uintptr_t)f.x_in |
                               (uintptr_t)f.branch | (uintptr_t)f.gamma | (uintptr_t)f.beta;
    if (n == 0)
        return;
    if (rows_are_vectors(f.C, pointers))
        LAUNCH((forward_rows<CENTRED, VECTOR, 1>), n, (row_threads<VECTOR, 1>(f.C)), 0, s, f);
    else
        LAUNCH((forward_rows<CENTRED, 1, SINGLES>), n, (row_threads<1, SINGLES>(f.C)), 0, s, f);
}

void cuda_residual_layernorm_forward(struct stream *s, void *x_out, void *y, float *mean,
                                     float *rstd, const void *x_in, const void *branch,
                                     const struct token_rows *rows, const void *gamma,
                                     const void *beta, float eps, int C, struct dropout drop)
{
    forward<true>(s,
                  {(bf16 *)x_out, (bf16 *)y, mean, rstd, (const bf16 *)x_in, (const bf16 *)branch,
                   (const bf16 *)gamma, (const bf16 *)beta, eps, C, *rows, drop});
}

void cuda_residual_rmsnorm_forward(struct stream *s, void *x_out, void *y, float *rstd,
                                   const void *x_in, const void *branch,
                                   const struct token_rows *rows, const void *weight, float eps,
                                   int C, struct dropout drop)
{
    forward<false>(s, {(bf16 *)x_out, (bf16 *)y, NULL, rstd, (const bf16 *)x_in,
                       (const bf16 *)branch, (const bf16 *)weight, NULL, eps, C, *rows, drop});
}

/* Backward's blocks take a chunk of rows each, for the sums over rows. */
#define MAX_CHUNKS 512 /* fill every machine, and cost little to add up */
#define CHUNK_ROWS 2   /* at least */

struct backward {
    bf16 *dx, *dbranch;
    float *partial; /* (chunks, 2, C): sums of dy * xhat, and of dy; or (chunks, C): the first */
    const bf16 *dy, *x, *gamma;
    const float *mean, *rstd; /* mean: where CENTRED */
    int C, chunk_rows;
    struct token_rows rows;
    struct dropout drop;
};

/* What a thread keeps of a row between the sums and dx, as it was loaded. */
template <int width, int vectors> struct backward_row {
    pack<bf16, width> dy[vectors], x[vectors], dx[vectors];
};

template <int width, int vectors>
__device__ static inline void load_row(struct backward_row<width, vectors> &r,
                                       const struct backward &b, int t)
{
    for (int k = 0; k < vectors; k++) {
        const int column = (threadIdx.x + k * blockDim.x) * width;
        if (column >= b.C)
            continue;
        const size_t at = (size_t)t * b.C + column;
        r.dy[k] = load_pack<width>(b.dy + at);
        r.x[k] = load_pack<width>(b.x + at);
        r.dx[k] = load_pack<width>(b.dx + at);
    }
}

/* With xhat = (x - mean) rstd and g = gamma dy: adds dy xhat and dy to the columns' sums, g and
 * g xhat to the row's. */
template <bool CENTRED, int width, int vectors>
__device__ static inline void sum_row(float (&dgamma)[vectors][width],
                                      float (&dbeta)[vectors][width], float *sum_g, float *sum_gx,
                                      const struct backward_row<width, vectors> &r,
                                      const struct backward &b, float mean, float rstd)
{
    for (int k = 0; k < vectors; k++) {
        const int column = (threadIdx.x + k * blockDim.x) * width;
        if (column >= b.C)
            continue;
        float x[width], dy[width], gamma[width];
        unpack<width>(x, r.x[k]);
        unpack<width>(dy, r.dy[k]);
        load<width>(gamma, b.gamma + column);
        for (int i = 0; i < width; i++) {
            const float xhat = (x[i] - mean) * rstd, g = gamma[i] * dy[i];
            dgamma[k][i] += dy[i] * xhat;
            if (CENTRED) {
                dbeta[k][i] += dy[i];
                *sum_g += g;
            }
            *sum_gx += g * xhat;
        }
    }
}

/* dx += rstd (g - mean(g) - xhat mean(g xhat)), and from it dbranch. */
template <int width, int vectors>
__device__ static inline void finish_row(const struct backward_row<width, vectors> &r,
                                         const struct backward &b, int t, float mean, float rstd,
                                         float mean_g, float mean_gx)
{
    for (int k = 0; k < vectors; k++) {
        const int column = (threadIdx.x + k * blockDim.x) * width;
        if (column >= b.C)
            continue;
        const size_t at = (size_t)t * b.C + column;
        float x[width], dy[width], gamma[width], dx[width], dropped[width];
        unpack<width>(x, r.x[k]);
        unpack<width>(dy, r.dy[k]);
        unpack<width>(dx, r.dx[k]);
        load<width>(gamma, b.gamma + column);
        for (int i = 0; i < width; i++) {
            const float xhat = (x[i] - mean) * rstd;
            dx[i] += rstd * (gamma[i] * dy[i] - mean_g - xhat * mean_gx);
            dropped[i] = dx[i];
        }
        store<width>(b.dx + at, dx);
        if (!b.dbranch)
            continue;
        apply_dropout<width>(dropped, b.drop, b.rows, t, column);
        store<width>(b.dbranch + at, dropped);
    }
}

template <bool CENTRED, int width, int vectors>
__global__ static void __launch_bounds__(MAX_THREADS(width)) backward_rows(struct backward b)
{
    SHARED(float, shared, [2][WARP]); /* the barrier of one use parts the uses of the other */
    const int begin = blockIdx.x * b.chunk_rows;
    const int end = begin + b.chunk_rows < b.rows.n_tokens ? begin + b.chunk_rows : b.rows.n_tokens;
    float dgamma[vectors][width] = {}, dbeta[vectors][width] = {};
    for (int t = begin; t < end; t++) {
        struct backward_row<width, vectors> r;
        load_row<width, vectors>(r, b, t);
        const float mean = CENTRED ? b.mean[t] : 0, rstd = b.rstd[t];
        float sum_g = 0, sum_gx = 0;
        sum_row<CENTRED, width, vectors>(dgamma, dbeta, &sum_g, &sum_gx, r, b, mean, rstd);
        const float mean_g = CENTRED ? block_sum(sum_g, shared[0]) / (float)b.C : 0;
        const float mean_gx = block_sum(sum_gx, shared[CENTRED ? 1 : t % 2]) / (float)b.C;
        finish_row<width, vectors>(r, b, t, mean, rstd, mean_g, mean_gx);
    }
    float *partial = b.partial + (size_t)blockIdx.x * (CENTRED ? 2 : 1) * b.C;
    for (int k = 0; k < vectors; k++) {
        const int column = (threadIdx.x + k * blockDim.x) * width;
        if (column >= b.C)
            continue;
        store<width>(partial + column, dgamma[k]);
        if (CENTRED)
            store<width>(partial + b.C + column, dbeta[k]);
    }
}

/* sums: dgamma, and where CENTRED dbeta. */
template <bool CENTRED>
static void backward(struct stream *s, struct backward b, struct column_sums sums, bool accumulate)
{
    const int n = b.rows.n_tokens, C = b.C, n_sums = CENTRED ? 2 : 1;
    b.chunk_rows = CHUNK_ROWS * divide_up(n, CHUNK_ROWS * MAX_CHUNKS);
    const int chunks = n > 0 ? divide_up(n, b.chunk_rows) : 0;
    if (n == 0 && accumulate)
        return;
    b.partial = (float *)cuda_scratch(s, sizeof(float) * n_sums * (size_t)C * chunks);
    const uintptr_t pointers = (uintptr_t)b.dx | (uintptr_t)b.dbranch | (uintptr_t)b.dy |
                               (uintptr_t)b.x | (uintptr_t)b.gamma;
    if (chunks > 0 && rows_are_vectors(C, pointers))
        LAUNCH((backward_rows<CENTRED, VECTOR, 1>), chunks, (row_threads<VECTOR, 1>(C)), 0, s, b);
    else if (chunks > 0)
        LAUNCH((backward_rows<CENTRED, 1, SINGLES>), chunks, (row_threads<1, SINGLES>(C)), 0, s, b);
    LAUNCH(add_partials, dim3(divide_up(C, SUM_LANES), n_sums), SUM_LANES * SUM_GROUPS, 0, s, sums,
           b.partial, chunks, (size_t)n_sums * C, C, accumulate);
}

void cuda_residual_layernorm_backward(struct stream *s, void *dx, void *dbranch, float *dgamma,
                                      float *dbeta, const void *dy, const void *x_out,
                                      const float *mean, const float *rstd,
                                      const struct token_rows *rows, const void *gamma, int C,
                                      struct dropout drop, bool accumulate)
{
    backward<true>(s,
                   {(bf16 *)dx, (bf16 *)dbranch, NULL, (const bf16 *)dy, (const bf16 *)x_out,
                    (const bf16 *)gamma, mean, rstd, C, 0, *rows, drop},
                   {{dgamma, dbeta}}, accumulate);
}

void cuda_residual_rmsnorm_backward(struct stream *s, void *dx, void *dbranch, float *dweight,
                                    const void *dy, const void *x_out, const float *rstd,
                                    const struct token_rows *rows, const void *weight, int C,
                                    struct dropout drop, bool accumulate)
{
    backward<false>(s,
                    {(bf16 *)dx, (bf16 *)dbranch, NULL, (const bf16 *)dy, (const bf16 *)x_out,
                     (const bf16 *)weight, NULL, rstd, C, 0, *rows, drop},
                    {{dweight, NULL}}, accumulate);
}
