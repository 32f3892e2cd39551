/* Residual connection, dropout and layer norm in one pass over each row while it is in cache.
 * Layer norm: Ba, Kiros and Hinton, 2016. Limit: memory. Forward reads two arrays and writes two;
 * backward reads three and writes two. */
#include "data/simd.h"
#include "model/cpu/cpu.h"
#include "model/cpu/residual.h"

#include <math.h>
#include <string.h>

struct layernorm {
    float *x_out, *y, *mean, *rstd;
    const float *x_in, *branch, *gamma, *beta;
    float eps;
    int C;
    const struct token_rows *rows;
    struct dropout drop;
};

ZF_SIMD
static void forward_rows(const struct layernorm *l, int begin, int end)
{
    const int C = l->C;
    for (int t = begin; t < end; t++) {
        const size_t at = (size_t)t * C;
        float *x = l->x_out + at;
        add_branch(x, l->x_in + at, l->branch ? l->branch + at : NULL, C, &l->drop, l->rows, t);
        float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (int j = 0; j < C; j++)
            sum += x[j];
        const float mean = sum / (float)C;
#pragma omp simd reduction(+ : squares)
        for (int j = 0; j < C; j++)
            squares += (x[j] - mean) * (x[j] - mean);
        const float rstd = 1.0f / sqrtf(squares / (float)C + l->eps);
        float *restrict y = l->y + at;
        const float *restrict gamma = l->gamma, *restrict beta = l->beta;
        for (int j = 0; j < C; j++)
            y[j] = gamma[j] * ((x[j] - mean) * rstd) + beta[j];
        l->mean[t] = mean;
        l->rstd[t] = rstd;
    }
}

void cpu_residual_layernorm_forward(struct stream *s, void *x_out, void *y, float *mean,
                                    float *rstd, const void *x_in, const void *branch,
                                    const struct token_rows *rows, const void *gamma,
                                    const void *beta, float eps, int C, struct dropout drop)
{
    (void)s;
    const struct layernorm l = {x_out, y,    mean, rstd, x_in, branch,
                                gamma, beta, eps,  C,    rows, drop};
    const int n = rows->n_tokens, step = piece_rows(C), n_pieces = divide_up(n, step);
#pragma omp parallel for schedule(static) if ((size_t)n * C > PARALLEL_ELEMENTS)
    for (int i = 0; i < n_pieces; i++)
        forward_rows(&l, i * step, min_int(n, (i + 1) * step));
}

struct layernorm_gradient {
    float *dx, *dbranch;
    const float *dy, *x, *mean, *rstd, *gamma;
    int C;
    const struct token_rows *rows;
    struct dropout drop;
};

/* With xhat = (x - mean) rstd and g = gamma dy:
 *   dx += rstd (g - mean(g) - xhat mean(g xhat)),  dgamma += dy xhat,  dbeta += dy */
ZF_SIMD
static void backward_rows(const struct layernorm_gradient *l, float *restrict dgamma,
                          float *restrict dbeta, int begin, int end)
{
    const int C = l->C;
    const float *restrict gamma = l->gamma;
    memset(dgamma, 0, sizeof(float) * C);
    memset(dbeta, 0, sizeof(float) * C);
    for (int t = begin; t < end; t++) {
        const size_t at = (size_t)t * C;
        const float *restrict dy = l->dy + at, *restrict x = l->x + at;
        float *restrict dx = l->dx + at;
        const float mean = l->mean[t], rstd = l->rstd[t];
        float sum_g = 0, sum_gx = 0;
#pragma omp simd reduction(+ : sum_g, sum_gx)
        for (int j = 0; j < C; j++) {
            float xhat = (x[j] - mean) * rstd, g = gamma[j] * dy[j];
            dgamma[j] += dy[j] * xhat;
            dbeta[j] += dy[j];
            sum_g += g;
            sum_gx += g * xhat;
        }
        const float mean_g = sum_g / (float)C, mean_gx = sum_gx / (float)C;
        for (int j = 0; j < C; j++) {
            float xhat = (x[j] - mean) * rstd;
            dx[j] += rstd * (gamma[j] * dy[j] - mean_g - xhat * mean_gx);
        }
        if (l->dbranch)
            drop_row(l->dbranch + at, dx, C, &l->drop, l->rows, t);
    }
}

void cpu_residual_layernorm_backward(struct stream *s, void *dx, void *dbranch, float *dgamma,
                                     float *dbeta, const void *dy, const void *x_out,
                                     const float *mean, const float *rstd,
                                     const struct token_rows *rows, const void *gamma, int C,
                                     struct dropout drop, bool accumulate)
{
    const struct layernorm_gradient l = {dx, dbranch, dy, x_out, mean, rstd, gamma, C, rows, drop};
    const int n = rows->n_tokens, step = sum_chunk_rows(n), n_chunks = divide_up(n, step);
    float *sums = cpu_scratch(s, (size_t)2 * C * n_chunks);
#pragma omp parallel for schedule(static) if ((size_t)n * C > PARALLEL_ELEMENTS)
    for (int i = 0; i < n_chunks; i++) {
        float *chunk = sums + (size_t)2 * C * i;
        backward_rows(&l, chunk, chunk + C, i * step, min_int(n, (i + 1) * step));
    }
    if (!accumulate) {
        memset(dgamma, 0, sizeof(float) * C);
        memset(dbeta, 0, sizeof(float) * C);
    }
    for (int i = 0; i < n_chunks; i++) {
        const float *chunk = sums + (size_t)2 * C * i;
        for (int j = 0; j < C; j++) {
            dgamma[j] += chunk[j];
            dbeta[j] += chunk[C + j];
        }
    }
}
