/* Attention of new tokens over the keys and values of those before them. One piece is one row and
 * one head. Limit: reading the cache, 2 head_dim floats for each token before and head of keys. */
#include "data/alloc.h"
#include "data/simd.h"
#include "model/cpu/cpu.h"
#include "model/cpu/vector_math.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16 /* partial sums of a product of two vectors */

struct cached_work {
    const float *qkv, *cache;
    float *out;
    struct attention shape;
    int past;
};

ZF_INLINE float dot(const float *a, const float *b, int n)
{
    float lanes[LANES] = {0}, sum = 0;
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lanes[j] += a[i + j] * b[i + j];
    for (; i < n; i++)
        sum += a[i] * b[i];
    for (int j = 0; j < LANES; j++)
        sum += lanes[j];
    return sum;
}

/* Scores of keys [first, last] as probabilities. */
ZF_INLINE void softmax_scores(float *scores, int n)
{
    float most = scores[0], sum = 0;
    for (int i = 1; i < n; i++)
        most = scores[i] > most ? scores[i] : most;
    for (int i = 0; i < n; i++)
        sum += scores[i] = expf(scores[i] - most);
    for (int i = 0; i < n; i++)
        scores[i] /= sum;
}

/* Row i's head h. scores: room for its keys */
ZF_SIMD
static void attend(const struct cached_work *w, int i, int h, float *scores)
{
    const struct heads *heads = &w->shape.heads;
    const int D = heads->head_dim, kv = h / (heads->n_head / heads->n_kv_head);
    const size_t stride = 2 * (size_t)heads->n_kv_head * (size_t)D;
    const int last = w->past + i, window = w->shape.window;
    const int first = window > 0 && last >= window ? last + 1 - window : 0, n = last + 1 - first;
    const float *q = w->qkv + (size_t)i * (size_t)heads_row(heads) + (size_t)h * (size_t)D;
    const float *k = w->cache + (size_t)first * stride + (size_t)kv * (size_t)D;
    const float *v = k + (size_t)heads->n_kv_head * (size_t)D;
    float *out = w->out + ((size_t)i * (size_t)heads->n_head + (size_t)h) * (size_t)D;
    for (int t = 0; t < n; t++)
        scores[t] = w->shape.scale * dot(q, k + (size_t)t * stride, D);
    softmax_scores(scores, n);
    for (int d = 0; d < D; d++)
        out[d] = 0;
    for (int t = 0; t < n; t++)
        for (int d = 0; d < D; d++)
            out[d] += scores[t] * v[(size_t)t * stride + d];
}

void cpu_attention_cached(struct stream *s, void *out, void *cache, int past, const void *qkv,
                          const struct token_rows *rows, const struct attention *attention)
{
    const struct heads *heads = &attention->heads;
    const int n = rows->n_tokens, queries = heads->n_head * heads->head_dim;
    const size_t kept = 2 * (size_t)heads->n_kv_head * (size_t)heads->head_dim;
    const struct cached_work work = {qkv, cache, out, *attention, past};
    (void)s;
    for (int i = 0; i < n; i++)
        memcpy((float *)cache + (size_t)(past + i) * kept,
               (const float *)qkv + (size_t)i * (size_t)heads_row(heads) + queries,
               kept * sizeof(float));
#pragma omp parallel
    {
        float *scores = zf_malloc(sizeof(float) * (size_t)(past + n));
#pragma omp for schedule(dynamic)
        for (int piece = 0; piece < n * heads->n_head; piece++)
            attend(&work, piece / heads->n_head, piece % heads->n_head, scores);
        free(scores);
    }
}
