/* AdamW on chosen rows, and what the norms of rows are for: clipping and selection. Limit: memory;
 * AdamW reads 16 bytes and writes 12 for each parameter. */
#include "data/alloc.h"
#include "data/bf16.h"
#include "data/simd.h"
#include "model/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

ZF_SIMD
static void adamw_range(float *restrict master, float *restrict m, float *restrict v,
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

ZF_SIMD
static void round_to_bf16(float *restrict dst, const float *restrict src, int n)
{
    for (int i = 0; i < n; i++)
        dst[i] = bf16_to_f32(bf16_from_f32(src[i]));
}

/* The rule with the bias corrections of a slot's update number `update`, from 1. */
static struct adamw rule_at(const struct adamw *rule, uint32_t update)
{
    struct adamw at = *rule;
    at.correction1 = (float)(1.0 - pow(rule->beta1, update));
    at.correction2 = (float)(1.0 - pow(rule->beta2, update));
    return at;
}

void cpu_adamw_rows(struct stream *s, void *param, float *master, float *m, float *v,
                    const float *gradient, const int *row, uint32_t *updates, int n, int cols,
                    const struct adamw *rule, const float *gradient_scale, bool bf16)
{
    (void)s;
    if (*gradient_scale == 0)
        return;
    struct adamw now = *rule;
    uint32_t update = 0; /* that `now` is for: most slots have had as many as the one before */
#pragma omp parallel for schedule(static)                                                          \
    firstprivate(now, update) if ((size_t)n * cols > PARALLEL_ELEMENTS)
    for (int i = 0; i < n; i++) {
        if (row[i] < 0)
            continue;
        if (++updates[i] != update) {
            update = updates[i];
            now = rule_at(rule, update);
        }
        size_t at = (size_t)row[i] * cols, state = (size_t)i * cols;
        float *value = (float *)param + at, *own = master ? master + state : value;
        adamw_range(own, m + state, v + state, gradient + at, (size_t)cols, &now, *gradient_scale);
        if (master && bf16)
            round_to_bf16(value, own, cols);
        else if (master)
            memcpy(value, own, sizeof(float) * (size_t)cols);
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

void cpu_summarise_norms(struct stream *s, struct norm_summary *out, const float *sums,
                         const unsigned char *place, int n, float limit)
{
    (void)s;
    double all = 0, important = 0, selectable = 0;
    for (int i = 0; i < n; i++) {
        const double sum = sums[i];
        all += sum;
        important += place[i] == CHANNEL_IMPORTANT ? sum : 0;
        selectable += place[i] != CHANNEL_RESIDENT ? sum : 0;
    }
    const double norm = sqrt(all);
    double factor = limit > 0 ? fmin(1, limit / (norm + 1e-6)) : 1;
    if (!isfinite(norm))
        factor = 0;
    *out = (struct norm_summary){(float)norm, (float)factor, important, selectable};
}

struct ranked {
    float sum;
    int index;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->sum != y->sum)
        return x->sum > y->sum ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

void cpu_select_rows(struct stream *s, unsigned char *chosen, const float *sums, int n, int k)
{
    (void)s;
    memset(chosen, k >= n, (size_t)n);
    if (k <= 0 || k >= n)
        return;
    struct ranked *ranked = zf_malloc(sizeof *ranked * (size_t)n);
    for (int i = 0; i < n; i++)
        ranked[i] = (struct ranked){sums[i], i};
    qsort(ranked, (size_t)n, sizeof *ranked, by_rank);
    for (int i = 0; i < k; i++)
        chosen[ranked[i].index] = CHANNEL_IMPORTANT;
    free(ranked);
}

void cpu_from_f32(struct stream *s, void *dst, const float *src, size_t n)
{
    (void)s;
    cpu_copy_bytes(dst, src, sizeof(float) * n);
}

void cpu_to_f32(struct stream *s, float *dst, const void *src, size_t n)
{
    (void)s;
    cpu_copy_bytes(dst, src, sizeof(float) * n);
}
