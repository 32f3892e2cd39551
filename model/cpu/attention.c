/* Causal self-attention, forward and backward. Queries are taken in blocks whose scores fit in the
 * second-level cache; backward computes the scores again from the row's log-sum-exp, as in
 * FlashAttention (Dao et al., NeurIPS 2022), so nothing of size T^2 is ever stored.
 *
 * One piece is one head of one sequence. Its q, k and v are first packed into small arrays in the
 * order in which the products read them. Limit: arithmetic; forward 4 T^2/2 head_dim operations for
 * each head, backward 10 T^2/2 head_dim. */
#include "data/alloc.h"
#include "data/simd.h"
#include "model/cpu/cpu.h"
#include "model/cpu/dropout.h"
#include "model/cpu/tile.h"
#include "model/cpu/vector_math.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* Queries in a block. */
#define BLOCK 32

/* Rows of qkv are far apart, so the processor does not foresee the next one. */
#define PREFETCH_ROWS 8

struct attention {
    const float *qkv;
    float *out; /* forward */
    float *lse;
    const float *dout, *final; /* backward: the gradient of out, and out */
    float *dqkv;
    const struct token_rows *rows;
    int n_head, head_dim;
    float scale;
    struct dropout drop;
    int width;   /* head_dim, rounded up to TILE_COLS */
    int longest; /* longest sequence, rounded up to TILE_COLS */
};

/* One thread's arrays. T: a.longest, D: a.width; [panels] are of TILE_COLS columns. */
struct scratch {
    float *memory;
    float *scores, *dscores;    /* (BLOCK, T) */
    float *q, *o;               /* (BLOCK, D): a block's scaled queries; its output or gradient */
    float *dq;                  /* (BLOCK, D) */
    float *k, *v;               /* (T, D) */
    float *k_panels, *v_panels; /* (T / TILE_COLS, D, TILE_COLS) */
    float *dk, *dv;             /* (T, D) */
};

static struct scratch scratch_create(const struct attention *a)
{
    const size_t tile = (size_t)BLOCK * a->longest, block = (size_t)BLOCK * a->width;
    const size_t whole = (size_t)a->longest * a->width;
    struct scratch s = {.memory =
                            zf_malloc_aligned(sizeof(float) * (2 * tile + 3 * block + 6 * whole))};
    float *at = s.memory;
    s.scores = at, at += tile;
    s.dscores = at, at += tile;
    s.q = at, at += block;
    s.o = at, at += block;
    s.dq = at, at += block;
    s.k = at, at += whole;
    s.v = at, at += whole;
    s.k_panels = at, at += whole;
    s.v_panels = at, at += whole;
    s.dk = at, at += whole;
    s.dv = at;
    return s;
}

/* dst: (n rounded up to `multiple`, width) = factor * src, rows of head_dim at distance `stride`;
 * zeros around it. */
ZF_INLINE void pack_rows(float *restrict dst, int width, const float *restrict src, size_t stride,
                         int n, int multiple, int head_dim, float factor)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < head_dim; j += 16)
            __builtin_prefetch(src + (i + PREFETCH_ROWS) * stride + j);
        for (int j = 0; j < head_dim; j++)
            dst[(size_t)i * width + j] = factor * src[i * stride + j];
        for (int j = head_dim; j < width; j++)
            dst[(size_t)i * width + j] = 0;
    }
    const size_t end = (size_t)divide_up(n, multiple) * multiple * width;
    for (size_t i = (size_t)n * width; i < end; i++)
        dst[i] = 0;
}

/* dst: (T / TILE_COLS, width, TILE_COLS) = the transpose of packed rows src: (T, width) */
ZF_INLINE void pack_panels(float *restrict dst, const float *restrict src, int T, int width)
{
    for (int first = 0; first < T; first += TILE_COLS)
        for (int d = 0; d < width; d += 8)
            for (int j = 0; j < TILE_COLS; j += 8)
                transpose_8x8(dst + (size_t)first * width + d * TILE_COLS + j, TILE_COLS,
                              src + (size_t)(first + j) * width + d, (size_t)width);
}

/* c = a b, or c += a b, of packed operands: m is a multiple of TILE_ROWS, n of TILE_COLS. */
ZF_INLINE void multiply(float *c, size_t ldc, const float *a, size_t a_row, size_t a_col,
                        const float *b, size_t ldb, int m, int n, int k, bool accumulate)
{
    for (int j = 0; j < n; j += TILE_COLS)
        for (int i = 0; i < m; i += TILE_ROWS)
            tile_multiply(c + i * ldc + j, ldc, a + i * a_row, a_row, a_col, b + j, ldb, k,
                          accumulate);
}

/* Multiplies token t's probabilities by dropout's factors. */
ZF_INLINE void drop_probabilities(float *restrict p, int n, const struct attention *a, int head,
                                  int t)
{
    float factor[DROPOUT_RUN];
    const uint32_t site = a->drop.site + ((uint32_t)head << 16);
    for (int first = 0; first < n; first += DROPOUT_RUN) {
        const int run = min_int(n - first, DROPOUT_RUN);
        dropout_draw(factor, &a->drop, site, a->rows->token_seq[t], (uint32_t)a->rows->position[t],
                     first, run);
        for (int j = 0; j < run; j++)
            p[first + j] *= factor[j];
    }
}

/* p[j] = exp(p[j] - offset) for j < n, 0 up to n_padded, a multiple of TILE_COLS. Whole vectors are
 * computed, since rows are often shorter than one. */
ZF_INLINE void exponentiate_row(float *restrict p, int n, int n_padded, float offset)
{
    for (int j = n; j < n_padded; j++)
        p[j] = 0;
    for (int j = 0; j < n; j += 16)
        for (int l = 0; l < 16; l++)
            p[j + l] = vector_exp(p[j + l] - offset);
    const int end = divide_up(n, 16) * 16;
    for (int j = n; j < end; j++)
        p[j] = 0;
}

/* One row: p = exp(p - max) over its n keys and 0 up to n_padded; returns the sum. */
ZF_INLINE float softmax_row(float *restrict p, int n, int n_padded, float *max)
{
    float most = p[0], sum = 0;
#pragma omp simd reduction(max : most)
    for (int j = 0; j < n; j++)
        most = p[j] > most ? p[j] : most;
    exponentiate_row(p, n, n_padded, most);
#pragma omp simd reduction(+ : sum)
    for (int j = 0; j < n; j++)
        sum += p[j];
    *max = most;
    return sum;
}

ZF_SIMD
static void forward_head(const struct attention *a, const struct scratch *s, int sequence, int head)
{
    const int D = a->width, hd = a->head_dim, C = a->n_head * hd;
    const int start = a->rows->seq_start[sequence], T = a->rows->seq_start[sequence + 1] - start;
    const float *q = a->qkv + (size_t)start * 3 * C + head * hd, *k = q + C, *v = k + C;
    pack_rows(s->k, D, k, 3 * (size_t)C, T, TILE_COLS, hd, 1);
    pack_panels(s->k_panels, s->k, divide_up(T, TILE_COLS) * TILE_COLS, D);
    pack_rows(s->v, D, v, 3 * (size_t)C, T, 1, hd, 1);
    for (int first = 0; first < T; first += BLOCK) {
        const int n = min_int(BLOCK, T - first), keys = first + n;
        const int n_padded = divide_up(n, TILE_ROWS) * TILE_ROWS;
        const int keys_padded = divide_up(keys, TILE_COLS) * TILE_COLS;
        float inverse[BLOCK];
        pack_rows(s->q, D, q + (size_t)first * 3 * C, 3 * (size_t)C, n, TILE_ROWS, hd, a->scale);
        for (int j = 0; j < keys_padded; j += TILE_COLS)
            multiply(s->scores + j, keys_padded, s->q, D, 1, s->k_panels + (size_t)j * D, TILE_COLS,
                     n_padded, TILE_COLS, hd, false);
        for (int i = 0; i < n; i++) {
            float max, *p = s->scores + (size_t)i * keys_padded;
            const int t = start + first + i;
            const float sum = softmax_row(p, first + i + 1, keys_padded, &max);
            a->lse[(size_t)t * a->n_head + head] = max + logf(sum);
            inverse[i] = 1 / sum;
            if (a->drop.p > 0)
                drop_probabilities(p, first + i + 1, a, head, t);
        }
        multiply(s->o, D, s->scores, keys_padded, 1, s->v, D, n_padded, D, keys, false);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < hd; j++)
                a->out[(size_t)(start + first + i) * C + head * hd + j] =
                    s->o[(size_t)i * D + j] * inverse[i];
    }
}

static struct attention attention_setup(const void *qkv, const struct token_rows *rows, int n_head,
                                        int head_dim, float scale, struct dropout drop)
{
    struct attention a = {
        .qkv = qkv,
        .rows = rows,
        .n_head = n_head,
        .head_dim = head_dim,
        .scale = scale,
        .drop = drop,
        .width = divide_up(head_dim, TILE_COLS) * TILE_COLS,
    };
    for (int i = 0; i < rows->n_seqs; i++) {
        const int length = rows->seq_start[i + 1] - rows->seq_start[i];
        a.longest = length > a.longest ? length : a.longest;
    }
    a.longest = divide_up(a.longest, TILE_COLS) * TILE_COLS;
    return a;
}

void cpu_attention_forward(struct stream *stream, void *out, float *lse, const void *qkv,
                           const struct token_rows *rows, int n_head, int head_dim, float scale,
                           struct dropout drop)
{
    (void)stream;
    struct attention a = attention_setup(qkv, rows, n_head, head_dim, scale, drop);
    a.out = out;
    a.lse = lse;
    const size_t work = (size_t)rows->n_tokens * n_head * head_dim;
#pragma omp parallel if (work > PARALLEL_ELEMENTS)
    {
        struct scratch s = scratch_create(&a);
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < rows->n_seqs * n_head; i++)
            forward_head(&a, &s, i / n_head, i % n_head);
        free(s.memory);
    }
}

/* For one row: p = exp(p - lse) over its n keys and 0 beyond; then with the gradient dp of its
 * dropped probabilities, which ds holds, ds = p (f dp - delta), and p becomes the dropped
 * probabilities f p. */
ZF_INLINE void softmax_gradient_row(float *restrict p, float *restrict ds, int n, int n_padded,
                                    float lse, float delta, const struct attention *a, int head,
                                    int t)
{
    exponentiate_row(p, n, n_padded, lse);
    if (a->drop.p == 0) {
        for (int j = 0; j < n_padded; j++)
            ds[j] = p[j] * (ds[j] - delta);
        return;
    }
    float factor[DROPOUT_RUN];
    const uint32_t site = a->drop.site + ((uint32_t)head << 16);
    for (int first = 0; first < n_padded; first += DROPOUT_RUN) {
        const int run = min_int(n_padded - first, DROPOUT_RUN);
        dropout_draw(factor, &a->drop, site, a->rows->token_seq[t], (uint32_t)a->rows->position[t],
                     first, run);
        for (int j = 0; j < run; j++) {
            ds[first + j] = p[first + j] * (factor[j] * ds[first + j] - delta);
            p[first + j] *= factor[j];
        }
    }
}

/* One block of queries: adds to the head's dk and dv, and writes the block's dq. */
ZF_INLINE void backward_block(const struct attention *a, const struct scratch *s, int start,
                              int head, int first, int n)
{
    const int D = a->width, hd = a->head_dim, C = a->n_head * hd, keys = first + n;
    const int n_padded = divide_up(n, TILE_ROWS) * TILE_ROWS;
    const int keys_padded = divide_up(keys, TILE_COLS) * TILE_COLS;
    const size_t row = (size_t)start + first;
    const float *q = a->qkv + row * 3 * C + head * hd;
    const float *dout = a->dout + row * C + head * hd, *out = a->final + row * C + head * hd;
    pack_rows(s->q, D, q, 3 * (size_t)C, n, TILE_ROWS, hd, a->scale);
    pack_rows(s->o, D, dout, (size_t)C, n, TILE_ROWS, hd, 1);
    for (int j = 0; j < keys_padded; j += TILE_COLS) {
        multiply(s->scores + j, keys_padded, s->q, D, 1, s->k_panels + (size_t)j * D, TILE_COLS,
                 n_padded, TILE_COLS, hd, false);
        multiply(s->dscores + j, keys_padded, s->o, D, 1, s->v_panels + (size_t)j * D, TILE_COLS,
                 n_padded, TILE_COLS, hd, false);
    }
    for (int i = 0; i < n; i++) {
        float delta = 0;
#pragma omp simd reduction(+ : delta)
        for (int j = 0; j < hd; j++)
            delta += dout[(size_t)i * C + j] * out[(size_t)i * C + j];
        const int t = (int)row + i;
        softmax_gradient_row(s->scores + (size_t)i * keys_padded,
                             s->dscores + (size_t)i * keys_padded, first + i + 1, keys_padded,
                             a->lse[(size_t)t * a->n_head + head], delta, a, head, t);
    }
    multiply(s->dv, D, s->scores, 1, keys_padded, s->o, D, keys_padded, D, n, true);
    multiply(s->dk, D, s->dscores, 1, keys_padded, s->q, D, keys_padded, D, n, true);
    multiply(s->dq, D, s->dscores, keys_padded, 1, s->k, D, n_padded, D, keys, false);
    float *dq = a->dqkv + row * 3 * C + head * hd;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < hd; j++)
            dq[(size_t)i * 3 * C + j] = s->dq[(size_t)i * D + j] * a->scale;
}

ZF_SIMD
static void backward_head(const struct attention *a, const struct scratch *s, int sequence,
                          int head)
{
    const int D = a->width, hd = a->head_dim, C = a->n_head * hd;
    const int start = a->rows->seq_start[sequence], T = a->rows->seq_start[sequence + 1] - start;
    const int T_padded = divide_up(T, TILE_COLS) * TILE_COLS;
    const float *k = a->qkv + (size_t)start * 3 * C + C + head * hd, *v = k + C;
    pack_rows(s->k, D, k, 3 * (size_t)C, T, TILE_COLS, hd, 1);
    pack_rows(s->v, D, v, 3 * (size_t)C, T, TILE_COLS, hd, 1);
    pack_panels(s->k_panels, s->k, T_padded, D);
    pack_panels(s->v_panels, s->v, T_padded, D);
    memset(s->dk, 0, sizeof(float) * T_padded * D);
    memset(s->dv, 0, sizeof(float) * T_padded * D);
    for (int first = 0; first < T; first += BLOCK)
        backward_block(a, s, start, head, first, min_int(BLOCK, T - first));
    float *dk = a->dqkv + (size_t)start * 3 * C + C + head * hd, *dv = dk + C;
    for (int i = 0; i < T; i++)
        for (int j = 0; j < hd; j++) {
            dk[(size_t)i * 3 * C + j] = s->dk[(size_t)i * D + j];
            dv[(size_t)i * 3 * C + j] = s->dv[(size_t)i * D + j];
        }
}

void cpu_attention_backward(struct stream *stream, void *dqkv, const void *dout, const void *qkv,
                            const void *out, const float *lse, const struct token_rows *rows,
                            int n_head, int head_dim, float scale, struct dropout drop)
{
    (void)stream;
    struct attention a = attention_setup(qkv, rows, n_head, head_dim, scale, drop);
    a.dqkv = dqkv;
    a.dout = dout;
    a.final = out;
    a.lse = (float *)lse;
    const size_t work = (size_t)rows->n_tokens * n_head * head_dim;
#pragma omp parallel if (work > PARALLEL_ELEMENTS)
    {
        struct scratch s = scratch_create(&a);
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < rows->n_seqs * n_head; i++)
            backward_head(&a, &s, i / n_head, i % n_head);
        free(s.memory);
    }
}
