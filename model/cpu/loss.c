/* Losses and their gradients, a row of logits at a time. Limit: memory; a row of 50,257 classes
 * stays in the second-level cache over its three passes. */
#include "data/batch.h"
#include "data/simd.h"
#include "model/cpu/cpu.h"
#include "model/cpu/vector_math.h"

#include <math.h>
#include <string.h>

/* Returns the sum of exp(x - max); e, unless it is NULL, gets the terms. e may be x. */
ZF_SIMD
static float exponentiate_row(float *e, const float *x, int n, float *max)
{
    float most = x[0], sum = 0;
#pragma omp simd reduction(max : most)
    for (int j = 0; j < n; j++)
        most = x[j] > most ? x[j] : most;
    *max = most;
    if (e) {
#pragma omp simd reduction(+ : sum)
        for (int j = 0; j < n; j++) {
            float term = vector_exp(x[j] - most);
            e[j] = term;
            sum += term;
        }
    } else {
#pragma omp simd reduction(+ : sum)
        for (int j = 0; j < n; j++)
            sum += vector_exp(x[j] - most);
    }
    return sum;
}

ZF_SIMD
static void scale_row(float *x, int n, float factor)
{
    for (int j = 0; j < n; j++)
        x[j] *= factor;
}

static float cross_entropy_row(float *dx, const float *x, int target, int n, int stride,
                               float scale)
{
    if (dx)
        memset(dx + n, 0, sizeof(float) * (stride - n));
    if (target == TARGET_IGNORE) {
        if (dx)
            memset(dx, 0, sizeof(float) * n);
        return 0;
    }
    float max, of_target = x[target];
    float sum = exponentiate_row(dx, x, n, &max);
    if (dx) {
        scale_row(dx, n, scale / sum);
        dx[target] -= scale;
    }
    return logf(sum) - (of_target - max);
}

void cpu_cross_entropy(struct stream *s, float *losses, void *dlogits, float *logits,
                       const int *targets, int n, int n_classes, int stride, float scale)
{
    (void)s;
    float *gradient = dlogits;
#pragma omp parallel for schedule(static) if ((size_t)n * n_classes > PARALLEL_ELEMENTS)
    for (int i = 0; i < n; i++) {
        size_t at = (size_t)i * stride;
        losses[i] = cross_entropy_row(gradient ? gradient + at : NULL, logits + at, targets[i],
                                      n_classes, stride, scale);
    }
}

void cpu_squared_error(struct stream *s, float *losses, void *dlogits, float *logits,
                       const float *scores, int n, float scale)
{
    (void)s;
    float *gradient = dlogits;
    for (int i = 0; i < n; i++) {
        float difference = logits[i] - scores[i];
        losses[i] = difference * difference;
        if (gradient)
            gradient[i] = 2 * scale * difference;
    }
}

void cpu_add_sum(struct stream *s, double *sum, const float *x, int n)
{
    (void)s;
    double total = 0;
    for (int i = 0; i < n; i++)
        total += (double)x[i];
    *sum += total;
}
