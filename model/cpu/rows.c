/* The ZenFlow engine's operators over channels: rows of a matrix, some of which are important. */
#include "data/bf16.h"
#include "data/simd.h"
#include "model/cpu/cpu.h"

#include <string.h>

static bool in_set(const struct channel_set *set, int row)
{
    int group = (int)(((long)row + set->shift) % set->n_groups);
    bool deferred = set->place[row] == CHANNEL_DEFERRED ||
                    (set->with_leaving && set->place[row] == CHANNEL_LEAVING);
    return deferred && (set->groups >> group & 1);
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
    if (*scale == 0)
        return;
#pragma omp parallel for schedule(static) if ((size_t)set->n_rows * cols > PARALLEL_ELEMENTS)
    for (int i = 0; i < set->n_rows; i++) {
        size_t at = (size_t)i * cols;
        int group = (int)(((long)i + set->shift) % set->n_groups);
        if (in_set(set, i))
            add_scaled(window + at, gradient + at, *scale, cols, fresh >> group & 1);
    }
}

ZF_SIMD
static void send_row(void *restrict dst, enum dtype dtype, const float *restrict src, float divisor,
                     int n)
{
    float *f32 = dst;
    uint16_t *bf16 = dst;
    if (dtype == DTYPE_F32)
        for (int i = 0; i < n; i++)
            f32[i] = src[i] / divisor;
    else
        for (int i = 0; i < n; i++)
            bf16[i] = bf16_from_f32(src[i] / divisor);
}

void cpu_send_rows(struct stream *s, void *dst, enum dtype dtype, const float *src,
                   const struct channel_set *set, int cols, float divisor)
{
    (void)s;
#pragma omp parallel for schedule(static) if ((size_t)set->n_rows * cols > PARALLEL_ELEMENTS)
    for (int i = 0; i < set->n_rows; i++) {
        size_t at = (size_t)i * cols;
        if (in_set(set, i))
            send_row((char *)dst + at * dtype_size(dtype), dtype, src + at, divisor, cols);
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

void cpu_copy_rows(struct stream *s, void *dst, const int *dst_row, const void *src,
                   const int *src_row, int n, size_t row_bytes)
{
    (void)s;
#pragma omp parallel for schedule(static) if ((size_t)n * row_bytes > 4 * PARALLEL_ELEMENTS)
    for (int i = 0; i < n; i++) {
        size_t to = (size_t)(dst_row ? dst_row[i] : i), from = (size_t)(src_row ? src_row[i] : i);
        memcpy((char *)dst + to * row_bytes, (const char *)src + from * row_bytes, row_bytes);
    }
}
