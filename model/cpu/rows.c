/* The ZenFlow engine's operators over channels: rows of a matrix, some of which are important. */
#include "data/bf16.h"
#include "data/simd.h"
#include "model/cpu/cpu.h"

#include <math.h>

static bool in_set(const struct channel_set *set, int row)
{
    int group = (int)(((long)row + set->shift) % set->n_groups);
    bool deferred = set->place[row] == CHANNEL_DEFERRED ||
                    (set->with_leaving && set->place[row] == CHANNEL_LEAVING);
    return deferred && (set->groups >> group & 1);
}

ZF_SIMD
static void round_to_bf16(float *restrict dst, const float *restrict src, int n)
{
    for (int i = 0; i < n; i++)
        dst[i] = bf16_to_f32(bf16_from_f32(src[i]));
}

void cpu_adamw_rows(struct stream *s, void *param, float *master, float *m, float *v,
                    const float *gradient, const int *row, const float *corrections, int n,
                    int cols, const struct adamw *rule, const float *gradient_scale, bool bf16)
{
    (void)s;
#pragma omp parallel for schedule(static) if ((size_t)n * cols > PARALLEL_ELEMENTS)
    for (int i = 0; i < n; i++) {
        if (row[i] < 0)
            continue;
        size_t at = (size_t)row[i] * cols, state = (size_t)i * cols;
        float *value = (float *)param + at, *own = master ? master + state : value;
        struct adamw now = *rule;
        now.correction1 = corrections[2 * i];
        now.correction2 = corrections[2 * i + 1];
        cpu_adamw_range(own, m + state, v + state, gradient + at, (size_t)cols, &now,
                        *gradient_scale);
        if (bf16)
            round_to_bf16(value, own, cols);
    }
}

ZF_SIMD
static void add_scaled(float *restrict sum, const float *restrict x, float scale, int n, bool fresh)
{
    for (int i = 0; i < n; i++)
        sum[i] = (fresh ? 0 : sum[i]) + scale * x[i];
}

void cpu_accumulate_rows(struct stream *s, float *window, const float *gradient,
                         const struct channel_set *set, uint64_t fresh, int cols,
                         const float *scale)
{
    (void)s;
#pragma omp parallel for schedule(static) if ((size_t)set->n_rows * cols > PARALLEL_ELEMENTS)
    for (int i = 0; i < set->n_rows; i++) {
        size_t at = (size_t)i * cols;
        int group = (int)(((long)i + set->shift) % set->n_groups);
        if (in_set(set, i))
            add_scaled(window + at, gradient + at, *scale, cols, fresh >> group & 1);
    }
}

ZF_SIMD
static void send_row(void *restrict dst, enum dtype dtype, const float *restrict src, float scale,
                     float divisor, int n)
{
    float *f32 = dst;
    uint16_t *bf16 = dst;
    if (dtype == DTYPE_F32)
        for (int i = 0; i < n; i++)
            f32[i] = scale * src[i] / divisor;
    else
        for (int i = 0; i < n; i++)
            bf16[i] = bf16_from_f32(scale * src[i] / divisor);
}

void cpu_send_rows(struct stream *s, void *dst, enum dtype dtype, const float *src,
                   const struct channel_set *set, int cols, const float *scale, float divisor)
{
    (void)s;
#pragma omp parallel for schedule(static) if ((size_t)set->n_rows * cols > PARALLEL_ELEMENTS)
    for (int i = 0; i < set->n_rows; i++) {
        size_t at = (size_t)i * cols;
        if (in_set(set, i))
            send_row((char *)dst + at * dtype_size(dtype), dtype, src + at, *scale, divisor, cols);
    }
}

ZF_SIMD
static void receive_row(float *restrict dst, const void *restrict src, enum dtype dtype, int n)
{
    const float *f32 = src;
    const uint16_t *bf16 = src;
    for (int i = 0; i < n; i++)
        dst[i] = dtype == DTYPE_F32 ? f32[i] : bf16_to_f32(bf16[i]);
}

void cpu_receive_rows(struct stream *s, void *param, const void *src, enum dtype dtype,
                      const struct channel_set *set, int cols)
{
    (void)s;
#pragma omp parallel for schedule(static) if ((size_t)set->n_rows * cols > PARALLEL_ELEMENTS)
    for (int i = 0; i < set->n_rows; i++) {
        size_t at = (size_t)i * cols;
        if (in_set(set, i))
            receive_row((float *)param + at, (const char *)src + at * dtype_size(dtype), dtype,
                        cols);
    }
}
