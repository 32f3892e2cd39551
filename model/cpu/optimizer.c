/* AdamW, and the norms of rows. Limit: memory; AdamW reads 16 bytes and writes 12 for each
 * parameter. */
#include "data/simd.h"
#include "model/cpu/cpu.h"

#include <math.h>
#include <string.h>

ZF_SIMD
void cpu_adamw_range(float *restrict master, float *restrict m, float *restrict v,
                     const float *restrict gradient, size_t n, const struct adamw *rule,
                     float gradient_scale)
{
    const float beta1 = rule->beta1, beta2 = rule->beta2, eps = rule->eps;
    const float l2 = rule->l2 ? rule->weight_decay : 0;
    const float shrink = rule->l2 ? 1 : 1 - rule->lr * rule->weight_decay;
    const float step = rule->lr / rule->correction1;
    const float unbias = 1 / sqrtf(rule->correction2);
    for (size_t i = 0; i < n; i++) {
        float g = gradient_scale * gradient[i] + l2 * master[i];
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        master[i] = shrink * master[i] - step * m[i] / (sqrtf(v[i]) * unbias + eps);
    }
}

void cpu_adamw(struct stream *s, void *param, float *master, float *m, float *v,
               const float *gradient, size_t n, const struct adamw *rule,
               const float *gradient_scale)
{
    (void)s;
    const size_t piece = 65536, n_pieces = (n + piece - 1) / piece;
#pragma omp parallel for schedule(static) if (n > PARALLEL_ELEMENTS)
    for (size_t i = 0; i < n_pieces; i++) {
        size_t at = i * piece, length = n - at < piece ? n - at : piece;
        cpu_adamw_range(master + at, m + at, v + at, gradient + at, length, rule, *gradient_scale);
        if (param != master)
            memcpy((float *)param + at, master + at, sizeof(float) * length);
    }
}

ZF_SIMD
static void sum_squares(float *restrict sums, const float *restrict g, int rows, int cols)
{
    for (int i = 0; i < rows; i++) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int j = 0; j < cols; j++)
            sum += g[(size_t)i * cols + j] * g[(size_t)i * cols + j];
        sums[i] = sum;
    }
}

void cpu_row_norms_squared(struct stream *s, float *sums, const float *g, int rows, int cols)
{
    (void)s;
    const int step = task_rows(cols), n_tasks = divide_up(rows, step);
#pragma omp parallel for schedule(static) if ((size_t)rows * cols > PARALLEL_ELEMENTS)
    for (int i = 0; i < n_tasks; i++) {
        int first = i * step;
        sum_squares(sums + first, g + (size_t)first * cols, min_int(step, rows - first), cols);
    }
}

void cpu_from_f32(struct stream *s, void *dst, const float *src, size_t n)
{
    (void)s;
    cpu_copy_bytes(dst, src, sizeof(float) * n);
}
