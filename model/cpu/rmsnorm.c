/* Residual connection, dropout and RMSNorm in one pass over each row while it is in cache.
 * RMSNorm: Zhang and Sennrich, 2019. Limit: memory. Forward reads two arrays and writes two;
 * backward reads three and writes two. */
#include "data/simd.h"
#include "model/cpu/cpu.h"
#include "model/cpu/residual.h"

#include <math.h>
#include <string.h>

struct rmsnorm {
    float *x_out, *y, *rstd;
    const float *x_in, *branch, *weight;
    float eps;
    int C;
    const struct token_rows *rows;
    struct dropout drop;
};

ZF_SIMD
static void forward_rows(const struct rmsnorm *l, int begin, int end)
{
    const int C = l->C;
    for (int t = begin; t < end; t++) {
        const size_t at = (size_t)t * C;
        float *x = l->x_out + at;
        add_branch(x, l->x_in + at, l->branch ? l->branch + at : NULL, C, &l->drop, l->rows, t);
        float squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int j = 0; j < C; j++)
            squares += x[j] * x[j];
        const float rstd = 1.0f / sqrtf(squares / (float)C + l->eps);
        float *restrict y = l->y + at;
        const float *restrict weight = l->weight;
        for (int j = 0; j < C; j++)
            y[j] = weight[j] * (x[j] * rstd);
        l->rstd[t] = rstd;
    }
}

void cpu_residual_rmsnorm_forward(struct stream *s, void *x_out, void *y, float *rstd,
                                  const void *x_in, const void *branch,
                                  const struct token_rows *rows, const void *weight, float eps,
                                  int C, struct dropout drop)
{
    (void)s;
    const struct rmsnorm l = {x_out, y, rstd, x_in, branch, weight, eps, C, rows, drop};
    const int n = rows->n_tokens, step = piece_rows(C), n_pieces = divide_up(n, step);
#pragma omp parallel for schedule(static) if ((size_t)n * C > PARALLEL_ELEMENTS)
    for (int i = 0; i < n_pieces; i++)
        forward_rows(&l, i * step, min_int(n, (i + 1) * step));
}

struct rmsnorm_gradient {
    float *dx, *dbranch;
    const float *dy, *x, *rstd, *weight;
    int C;
    const struct token_rows *rows;
    struct dropout drop;
};

/* With xhat = x rstd and g = weight dy:  dx += rstd (g - xhat mean(g xhat)),  dweight = dy xhat
 * summed over the rows. */
ZF_SIMD
static void backward_rows(const struct rmsnorm_gradient *l, float *restrict dweight, int begin,
                          int end)
{
    const int C = l->C;
    const float *restrict weight = l->weight;
    memset(dweight, 0, sizeof(float) * C);
    for (int t = begin; t < end; t++) {
        const size_t at = (size_t)t * C;
        const float *restrict dy = l->dy + at, *restrict x = l->x + at;
        float *restrict dx = l->dx + at;
        const float rstd = l->rstd[t];
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int j = 0; j < C; j++) {
            const float dy_xhat = dy[j] * (x[j] * rstd);
            dweight[j] += dy_xhat;
            sum += weight[j] * dy_xhat;
        }
        const float mean = sum / (float)C;
        for (int j = 0; j < C; j++)
            dx[j] += rstd * (weight[j] * dy[j] - x[j] * rstd * mean);
        if (l->dbranch)
            drop_row(l->dbranch + at, dx, C, &l->drop, l->rows, t);
    }
}

void cpu_residual_rmsnorm_backward(struct stream *s, void *dx, void *dbranch, float *dweight,
                                   const void *dy, const void *x_out, const float *rstd,
                                   const struct token_rows *rows, const void *weight, int C,
                                   struct dropout drop, bool accumulate)
{
    const struct rmsnorm_gradient l = {dx, dbranch, dy, x_out, rstd, weight, C, rows, drop};
    const int n = rows->n_tokens, step = sum_chunk_rows(n), n_chunks = divide_up(n, step);
    float *sums = cpu_scratch(s, (size_t)C * n_chunks);
#pragma omp parallel for schedule(static) if ((size_t)n * C > PARALLEL_ELEMENTS)
    for (int i = 0; i < n_chunks; i++)
        backward_rows(&l, sums + (size_t)C * i, i * step, min_int(n, (i + 1) * step));
    add_chunks(dweight, sums, (size_t)C, n_chunks, C, accumulate);
}
