/* Rotary position embedding of q and k, in place, behind their RMSNorm where they have one. Limit:
 * memory; reads and writes q and k, and with norms writes, or reads, what they were before. */
#include "data/simd.h"
#include "model/cpu/cpu.h"
#include "model/device/angle.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define MAX_PAIRS 512 /* of a head's elements that turn together */

struct rotary_work {
    float *qkv; /* or its gradient */
    float *pre; /* (n, rotated, head_dim); NULL: no norms */
    const struct token_rows *rows;
    struct rotary shape;
    int stride;  /* of two tokens' rows of qkv */
    int rotated; /* heads of q and k */
    float sign;  /* of the angle */
};

static struct rotary_work rotary_setup(void *qkv, const void *pre, const struct token_rows *rows,
                                       const struct rotary *r, float sign)
{
    assert(r->heads.head_dim % 2 == 0 && r->heads.head_dim <= 2 * MAX_PAIRS);
    return (struct rotary_work){.qkv = qkv,
                                .pre = r->q_weight ? (float *)pre : NULL,
                                .rows = rows,
                                .shape = *r,
                                .stride = heads_row(&r->heads),
                                .rotated = r->heads.n_head + r->heads.n_kv_head,
                                .sign = sign};
}

/* One token's rotation of each pair. */
struct turn {
    float cosine[MAX_PAIRS], sine[MAX_PAIRS];
};

static inline __attribute__((always_inline)) void turn_of(struct turn *turn,
                                                          const struct rotary_work *w, int t)
{
    const int half = w->shape.heads.head_dim / 2;
    const float position = (float)w->rows->position[t], scale = w->shape.scale;
    const float signed_scale = w->sign * scale;
    for (int i = 0; i < half; i++) {
        float sine, cosine;
        sine_cosine(position * w->shape.frequency[i], &sine, &cosine);
        turn->cosine[i] = cosine * scale;
        turn->sine[i] = sine * signed_scale;
    }
}

/* u: a head, (2 half). */
static inline __attribute__((always_inline)) void turn_head(float *u, const struct turn *turn,
                                                            int half)
{
    float *restrict low = u, *restrict high = u + half;
#pragma omp simd
    for (int i = 0; i < half; i++) {
        const float a = low[i], b = high[i];
        low[i] = a * turn->cosine[i] - b * turn->sine[i];
        high[i] = b * turn->cosine[i] + a * turn->sine[i];
    }
}

static inline __attribute__((always_inline)) float rstd_of(const float *x, int n, float eps)
{
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int i = 0; i < n; i++)
        squares += x[i] * x[i];
    return 1.0f / sqrtf(squares / (float)n + eps);
}

static inline const float *weight_of(const struct rotary_work *w, int head)
{
    return head < w->shape.heads.n_head ? w->shape.q_weight : w->shape.k_weight;
}

ZF_SIMD
static void forward_rows(const struct rotary_work *w, int begin, int end)
{
    const int D = w->shape.heads.head_dim;
    struct turn turn;
    for (int t = begin; t < end; t++) {
        turn_of(&turn, w, t);
        for (int head = 0; head < w->rotated; head++) {
            float *restrict u = w->qkv + (size_t)t * w->stride + head * D;
            if (w->pre) {
                const float rstd = rstd_of(u, D, w->shape.eps), *restrict weight =
                                                                    weight_of(w, head);
                float *restrict pre = w->pre + ((size_t)t * w->rotated + head) * D;
                for (int i = 0; i < D; i++) {
                    pre[i] = u[i];
                    u[i] = weight[i] * (u[i] * rstd);
                }
            }
            turn_head(u, &turn, D / 2);
        }
    }
}

static void for_rows(const struct rotary_work *w)
{
    const int n = w->rows->n_tokens, step = piece_rows(w->stride), n_pieces = divide_up(n, step);
#pragma omp parallel for schedule(static) if ((size_t)n * w->stride > PARALLEL_ELEMENTS)
    for (int i = 0; i < n_pieces; i++)
        forward_rows(w, i * step, min_int(n, (i + 1) * step));
}

void cpu_rotary_forward(struct stream *s, void *qkv, void *pre, const struct token_rows *rows,
                        const struct rotary *rotary)
{
    (void)s;
    const struct rotary_work w = rotary_setup(qkv, pre, rows, rotary, 1);
    for_rows(&w);
}

/* The norm's part of one head: g is the gradient of its output, and becomes that of x, its input.
 * With xhat = x rstd:  rstd (weight g - xhat mean(weight g xhat)),  dweight += g xhat */
static inline __attribute__((always_inline)) void
norm_gradient(float *restrict g, float *restrict dweight, const float *restrict x,
              const float *restrict weight, int D, float eps)
{
    float squares = 0, product = 0;
#pragma omp simd reduction(+ : squares, product)
    for (int i = 0; i < D; i++) {
        squares += x[i] * x[i];
        product += weight[i] * g[i] * x[i];
    }
    const float rstd = 1.0f / sqrtf(squares / (float)D + eps), mean = rstd * product / (float)D;
#pragma omp simd
    for (int i = 0; i < D; i++) {
        const float xhat = x[i] * rstd;
        dweight[i] += g[i] * xhat;
        g[i] = rstd * (weight[i] * g[i] - xhat * mean);
    }
}

/* dweights: (2, D) the sums over the rows, of q's and of k's. */
ZF_SIMD
static void backward_rows(const struct rotary_work *w, float *dweights, int begin, int end)
{
    const int D = w->shape.heads.head_dim;
    struct turn turn;
    memset(dweights, 0, sizeof(float) * 2 * D);
    for (int t = begin; t < end; t++) {
        turn_of(&turn, w, t);
        for (int head = 0; head < w->rotated; head++) {
            float *g = w->qkv + (size_t)t * w->stride + head * D;
            float *dweight = head < w->shape.heads.n_head ? dweights : dweights + D;
            turn_head(g, &turn, D / 2);
            norm_gradient(g, dweight, w->pre + ((size_t)t * w->rotated + head) * D,
                          weight_of(w, head), D, w->shape.eps);
        }
    }
}

void cpu_rotary_backward(struct stream *s, void *dqkv, float *dq_weight, float *dk_weight,
                         const void *pre, const struct token_rows *rows,
                         const struct rotary *rotary, bool accumulate)
{
    const struct rotary_work w = rotary_setup(dqkv, pre, rows, rotary, -1);
    if (!w.pre) { /* the gradient of a rotation is the one back */
        for_rows(&w);
        return;
    }
    const int D = rotary->heads.head_dim, n = rows->n_tokens, step = sum_chunk_rows(n);
    const int n_chunks = divide_up(n, step);
    float *sums = cpu_scratch(s, (size_t)2 * D * n_chunks);
#pragma omp parallel for schedule(static) if ((size_t)n * w.stride > PARALLEL_ELEMENTS)
    for (int i = 0; i < n_chunks; i++)
        backward_rows(&w, sums + (size_t)2 * D * i, i * step, min_int(n, (i + 1) * step));
    add_chunks(dq_weight, sums, (size_t)2 * D, n_chunks, D, accumulate);
    add_chunks(dk_weight, sums + D, (size_t)2 * D, n_chunks, D, accumulate);
}
