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
static void round_parameters(float *restrict dst, const float *restrict src, int n)
{
    for (int i = 0; i < n; i++)
        dst[i] = bf16_to_f32(bf16_parameter(src[i]));
}

/* The rule as it is for an update number, from 1, of a matrix that decays or not. */
static struct adamw rule_at(const struct adamw *rule, uint32_t update, int decays)
{
    struct adamw at = *rule;
    at.weight_decay = decays ? rule->weight_decay : 0;
    at.correction1 = (float)(1.0 - pow(rule->beta1, update));
    at.correction2 = (float)(1.0 - pow(rule->beta2, update));
    return at;
}

static void update_channel(const struct matrix_rows *m, const struct channel_update *u,
                           enum row_source source, const struct adamw *rule, float scale, bool bf16)
{
    const size_t cols = (size_t)m->cols, at = (size_t)u->row * cols;
    const size_t waiting = (size_t)u->slot * cols;
    const size_t state = m->visiting ? u->visit : waiting;
    const bool gathered = source == ROWS_WINDOW && m->window;
    const float *gradient = gathered ? m->window + at : m->waiting + waiting;
    float *value = (float *)m->values + at, *own = m->master ? m->master + state : value;
    adamw_range(own, m->m + state, m->v + state, gradient, cols, rule, scale);
    if (m->streams)
        return;
    if (m->master && bf16)
        round_parameters(value, own, m->cols);
    else if (m->master)
        memcpy(value, own, sizeof(float) * cols);
}

/* Threads take so many channels at a time: their widths differ. */
#define CHANNELS_AT_ONCE 8

void cpu_adamw_rows(struct stream *s, const struct matrix_batch *batch,
                    struct channel_update *updates, int n, enum row_source source,
                    const struct adamw *rule, const float *gradient_scale, bool bf16)
{
    (void)s;
    if (*gradient_scale == 0)
        return;
    struct adamw now = *rule;
    uint32_t update = 0; /* that `now` is for: most channels have had as many as the one before */
    int decays = 0;
#pragma omp parallel for schedule(dynamic, CHANNELS_AT_ONCE)                                       \
    firstprivate(now, update, decays) if ((size_t)n * batch->widest > PARALLEL_ELEMENTS)
    for (int i = 0; i < n; i++) {
        const struct matrix_rows *m = &batch->matrices[updates[i].matrix];
        if (++updates[i].updates != update || m->decays != decays) {
            update = updates[i].updates;
            decays = m->decays;
            now = rule_at(rule, update, decays);
        }
        update_channel(m, &updates[i], source, &now, *gradient_scale, bf16);
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
        important += channel_is_important(place[i]) ? sum : 0;
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
