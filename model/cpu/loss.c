/* Losses and their gradients, a row of logits at a time. Limit: memory; a row of 50,257 classes
 * stays in the second-level cache over its three passes. */
#include "data/batch.h"
#include "data/simd.h"
#include "model/cpu/cpu.h"
#include "model/cpu/vector_math.h"

#include <math.h>
#include <string.h>

/* Returns log sum exp(x - max), having put exp(x - max) into x if `keep`, and the sum and maximum
 * where told. */
ZF_SIMD
static float exponentiate_row(float *x, int n, bool keep, float *max)
{
    float most = x[0], sum = 0;
#pragma omp simd reduction(max : most)
    for (int j = 0; j < n; j++)
        most = x[j] > most ? x[j] : most;
    *max = most;
    if (keep) {
#pragma omp simd reduction(+ : sum)
        for (int j = 0; j < n; j++) {
            float e = vector_exp(x[j] - most);
            x[j] = e;
            sum += e;
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

static float cross_entropy_row(float *x, int target, int n, float scale, bool gradient)
{
    if (target == TARGET_IGNORE) {
        if (gradient)
            memset(x, 0, sizeof(float) * n);
        return 0;
    }
    float max, of_target = x[target];
    float sum = exponentiate_row(x, n, gradient, &max);
    if (gradient) {
        scale_row(x, n, scale / sum);
        x[target] -= scale;
    }
    return logf(sum) - (of_target - max);
}

void cpu_cross_entropy(struct stream *s, float *losses, float *logits, const int *targets, int n,
                       int n_classes, float scale, bool gradient)
{
    (void)s;
#pragma omp parallel for schedule(static) if ((size_t)n * n_classes > PARALLEL_ELEMENTS)
    for (int i = 0; i < n; i++)
        losses[i] = cross_entropy_row(logits + (size_t)i * n_classes, targets[i], n_classes, scale,
                                      gradient);
}

void cpu_squared_error(struct stream *s, float *losses, float *logits, const float *scores, int n,
                       float scale, bool gradient)
{
    (void)s;
    for (int i = 0; i < n; i++) {
        float difference = logits[i] - scores[i];
        losses[i] = difference * difference;
        if (gradient)
            logits[i] = 2 * scale * difference;
    }
}
