/* Causal self-attention, forward and backward. Queries are taken in blocks whose scores fit in the
 * second-level cache; backward computes the scores again from the row's log-sum-exp, as in
 * FlashAttention (Dao et al., NeurIPS 2022), so nothing of size T^2 is ever stored.
 *
 * One piece is one head of keys of one sequence, with the heads of queries that share it, one after
 * the other. Its q, k and v are first packed into small arrays in the order in which the products
 * read them. Limit: arithmetic; forward 4 T^2/2 head_dim operations for each head of queries,
 * backward 10 T^2/2 head_dim. */
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

struct attention_work {
    const float *qkv;
    float *out; /* forward */
    float *lse;
    const float *dout, *final; /* backward: the gradient of out, and out */
    float *dqkv;
    const struct token_rows *rows;
    struct attention shape;
    int group;   /* heads of q to one of k and v */
    int stride;  /* of two tokens' rows of qkv */
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

static struct scratch scratch_create(const struct attention_work *a)
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

/* What a block of queries sees: keys [first, first + n), the first a multiple of TILE_COLS. */
struct key_range {
    int first, n, n_padded;
};

static struct key_range keys_of(const struct attention_work *a, int first_query, int n_queries)
{
    const int window = a->shape.window, hidden = window > 0 ? first_query + 1 - window : 0;
    struct key_range keys = {.first = hidden > 0 ? hidden / TILE_COLS * TILE_COLS : 0};
    keys.n = first_query + n_queries - keys.first;
    keys.n_padded = divide_up(keys.n, TILE_COLS) * TILE_COLS;
    return keys;
}

/* Of one query's scores p of those keys: [begin, end) are of keys that it sees. */
struct row_range {
    int begin, end;
};

static struct row_range row_of(const struct attention_work *a, struct key_range keys, int query)
{
    const int window = a->shape.window, hidden = query + 1 - window - keys.first;
    return (struct row_range){window > 0 && hidden > 0 ? hidden : 0, query + 1 - keys.first};
}

/* Dropout's factors of token t's probabilities of keys first .. first + n - 1. */
ZF_INLINE void draw_factors(float factor[DROPOUT_RUN], const struct attention_work *a, int head,
                            int t, int first, int n)
{
    const struct dropout *drop = &a->shape.drop;
    dropout_draw(factor, drop, drop->site + ((uint32_t)head << 16), a->rows->token_seq[t],
                 (uint32_t)a->rows->position[t], first, n);
}

/* Multiplies token t's n probabilities by dropout's factors. first_key: of p[0]. */
ZF_INLINE void drop_probabilities(float *restrict p, int n, const struct attention_work *a,
                                  int head, int t, int first_key)
{
    float factor[DROPOUT_RUN];
    for (int first = 0; first < n; first += DROPOUT_RUN) {
        const int run = min_int(n - first, DROPOUT_RUN);
        draw_factors(factor, a, head, t, first_key + first, run);
        for (int j = 0; j < run; j++)
            p[first + j] *= factor[j];
    }
}

/* p[j] = exp(p[j] - offset) for j of the row's range, 0 for others up to n_padded, a multiple of
 * TILE_COLS. Whole vectors are computed, since rows are often shorter than one. */
ZF_INLINE void exponentiate_row(float *restrict p, struct row_range row, int n_padded, float offset)
{
    const int n = row.end;
    for (int j = n; j < n_padded; j++)
        p[j] = 0;
    for (int j = 0; j < n; j += 16)
        for (int l = 0; l < 16; l++)
            p[j + l] = vector_exp(p[j + l] - offset);
    const int end = divide_up(n, 16) * 16;
    for (int j = n; j < end; j++)
        p[j] = 0;
    for (int j = 0; j < row.begin; j++)
        p[j] = 0;
}

/* One row: p = exp(p - max) over the keys that it sees and 0 up to n_padded; returns the sum. */
ZF_INLINE float softmax_row(float *restrict p, struct row_range row, int n_padded, float *max)
{
    float most = p[row.begin], sum = 0;
#pragma omp simd reduction(max : most)
    for (int j = row.begin; j < row.end; j++)
        most = p[j] > most ? p[j] : most;
    exponentiate_row(p, row, n_padded, most);
#pragma omp simd reduction(+ : sum)
    for (int j = 0; j < row.end; j++)
        sum += p[j];
    *max = most;
    return sum;
}

/* The head's k and v of one sequence, packed. */
ZF_INLINE void pack_keys(const struct attention_work *a, const struct scratch *s, int start, int T,
                         int kv_head, int v_multiple)
{
    const struct heads *h = &a->shape.heads;
    const float *k = a->qkv + (size_t)start * a->stride + (h->n_head + kv_head) * h->head_dim;
    pack_rows(s->k, a->width, k, a->stride, T, TILE_COLS, h->head_dim, 1);
    pack_panels(s->k_panels, s->k, divide_up(T, TILE_COLS) * TILE_COLS, a->width);
    pack_rows(s->v, a->width, k + h->n_kv_head * h->head_dim, a->stride, T, v_multiple, h->head_dim,
              1);
}

/* One block of queries of one head. */
ZF_INLINE void forward_block(const struct attention_work *a, const struct scratch *s, int start,
                             int head, int first, int n)
{
    const int D = a->width, n_head = a->shape.heads.n_head, hd = a->shape.heads.head_dim;
    const int n_padded = divide_up(n, TILE_ROWS) * TILE_ROWS;
    const struct key_range keys = keys_of(a, first, n);
    const size_t row = (size_t)start + first;
    float inverse[BLOCK];
    pack_rows(s->q, D, a->qkv + row * a->stride + head * hd, a->stride, n, TILE_ROWS, hd,
              a->shape.scale);
    for (int j = 0; j < keys.n_padded; j += TILE_COLS)
        multiply(s->scores + j, keys.n_padded, s->q, D, 1,
                 s->k_panels + (size_t)(keys.first + j) * D, TILE_COLS, n_padded, TILE_COLS, hd,
                 false);
    for (int i = 0; i < n; i++) {
        float max, *p = s->scores + (size_t)i * keys.n_padded;
        const int t = (int)row + i;
        const struct row_range seen = row_of(a, keys, first + i);
        const float sum = softmax_row(p, seen, keys.n_padded, &max);
        a->lse[(size_t)t * n_head + head] = max + logf(sum);
        inverse[i] = 1 / sum;
        if (a->shape.drop.p > 0)
            drop_probabilities(p, seen.end, a, head, t, keys.first);
    }
    multiply(s->o, D, s->scores, keys.n_padded, 1, s->v + (size_t)keys.first * D, D, n_padded, D,
             keys.n, false);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < hd; j++)
            a->out[((row + i) * n_head + head) * hd + j] = s->o[(size_t)i * D + j] * inverse[i];
}

ZF_SIMD
static void forward_group(const struct attention_work *a, const struct scratch *s, int sequence,
                          int kv_head)
{
    const int start = a->rows->seq_start[sequence], T = a->rows->seq_start[sequence + 1] - start;
    pack_keys(a, s, start, T, kv_head, 1);
    for (int head = kv_head * a->group; head < (kv_head + 1) * a->group; head++)
        for (int first = 0; first < T; first += BLOCK)
            forward_block(a, s, start, head, first, min_int(BLOCK, T - first));
}

/* Does it for all pieces, on all threads. */
static void for_groups(const struct attention_work *a,
                       void (*group)(const struct attention_work *, const struct scratch *, int,
                                     int))
{
    const int n_kv_head = a->shape.heads.n_kv_head, pieces = a->rows->n_seqs * n_kv_head;
#pragma omp parallel if ((size_t)a->rows->n_tokens * a->stride > (size_t)3 * PARALLEL_ELEMENTS)
    {
        struct scratch s = scratch_create(a);
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < pieces; i++)
            group(a, &s, i / n_kv_head, i % n_kv_head);
        free(s.memory);
    }
}

static struct attention_work attention_setup(const void *qkv, const struct token_rows *rows,
                                             const struct attention *attention)
{
    const struct heads *h = &attention->heads;
    struct attention_work a = {
        .qkv = qkv,
        .rows = rows,
        .shape = *attention,
        .group = h->n_head / h->n_kv_head,
        .stride = heads_row(h),
        .width = divide_up(h->head_dim, TILE_COLS) * TILE_COLS,
    };
    for (int i = 0; i < rows->n_seqs; i++) {
        const int length = rows->seq_start[i + 1] - rows->seq_start[i];
        a.longest = length > a.longest ? length : a.longest;
    }
    a.longest = divide_up(a.longest, TILE_COLS) * TILE_COLS;
    return a;
}

void cpu_attention_forward(struct stream *stream, void *out, float *lse, const void *qkv,
                           const struct token_rows *rows, const struct attention *attention)
{
    (void)stream;
    struct attention_work a = attention_setup(qkv, rows, attention);
    a.out = out;
    a.lse = lse;
    for_groups(&a, forward_group);
}

/* For one row: p = exp(p - lse) over the keys that it sees and 0 elsewhere; then with the gradient
 * dp of its dropped probabilities, which ds holds, ds = p (f dp - delta), and p becomes the dropped
 * probabilities f p. first_key: of p[0]. */
ZF_INLINE void softmax_gradient_row(float *restrict p, float *restrict ds, struct row_range row,
                                    int n_padded, float lse, float delta,
                                    const struct attention_work *a, int head, int t, int first_key)
{
    exponentiate_row(p, row, n_padded, lse);
    if (a->shape.drop.p == 0) {
        for (int j = 0; j < n_padded; j++)
            ds[j] = p[j] * (ds[j] - delta);
        return;
    }
    float factor[DROPOUT_RUN];
    for (int first = 0; first < n_padded; first += DROPOUT_RUN) {
        const int run = min_int(n_padded - first, DROPOUT_RUN);
        draw_factors(factor, a, head, t, first_key + first, run);
        for (int j = 0; j < run; j++) {
            ds[first + j] = p[first + j] * (factor[j] * ds[first + j] - delta);
            p[first + j] *= factor[j];
        }
    }
}

/* One block of queries: adds to the group's dk and dv, and writes the block's dq. */
ZF_INLINE void backward_block(const struct attention_work *a, const struct scratch *s, int start,
                              int head, int first, int n)
{
    const int D = a->width, n_head = a->shape.heads.n_head, hd = a->shape.heads.head_dim;
    const int n_padded = divide_up(n, TILE_ROWS) * TILE_ROWS, C = n_head * hd;
    const struct key_range keys = keys_of(a, first, n);
    const size_t row = (size_t)start + first, keys_at = (size_t)keys.first * D;
    const float *dout = a->dout + row * C + head * hd, *out = a->final + row * C + head * hd;
    pack_rows(s->q, D, a->qkv + row * a->stride + head * hd, a->stride, n, TILE_ROWS, hd,
              a->shape.scale);
    pack_rows(s->o, D, dout, (size_t)C, n, TILE_ROWS, hd, 1);
    for (int j = 0; j < keys.n_padded; j += TILE_COLS) {
        multiply(s->scores + j, keys.n_padded, s->q, D, 1, s->k_panels + keys_at + (size_t)j * D,
                 TILE_COLS, n_padded, TILE_COLS, hd, false);
        multiply(s->dscores + j, keys.n_padded, s->o, D, 1, s->v_panels + keys_at + (size_t)j * D,
                 TILE_COLS, n_padded, TILE_COLS, hd, false);
    }
    for (int i = 0; i < n; i++) {
        float delta = 0;
#pragma omp simd reduction(+ : delta)
        for (int j = 0; j < hd; j++)
            delta += dout[(size_t)i * C + j] * out[(size_t)i * C + j];
        const int t = (int)row + i;
        softmax_gradient_row(s->scores + (size_t)i * keys.n_padded,
                             s->dscores + (size_t)i * keys.n_padded, row_of(a, keys, first + i),
                             keys.n_padded, a->lse[(size_t)t * n_head + head], delta, a, head, t,
                             keys.first);
    }
    multiply(s->dv + keys_at, D, s->scores, 1, keys.n_padded, s->o, D, keys.n_padded, D, n, true);
    multiply(s->dk + keys_at, D, s->dscores, 1, keys.n_padded, s->q, D, keys.n_padded, D, n, true);
    multiply(s->dq, D, s->dscores, keys.n_padded, 1, s->k + keys_at, D, n_padded, D, keys.n, false);
    float *dq = a->dqkv + row * a->stride + head * hd;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < hd; j++)
            dq[(size_t)i * a->stride + j] = s->dq[(size_t)i * D + j] * a->shape.scale;
}

ZF_SIMD
static void backward_group(const struct attention_work *a, const struct scratch *s, int sequence,
                           int kv_head)
{
    const struct heads *h = &a->shape.heads;
    const int D = a->width, hd = h->head_dim;
    const int start = a->rows->seq_start[sequence], T = a->rows->seq_start[sequence + 1] - start;
    const int T_padded = divide_up(T, TILE_COLS) * TILE_COLS;
    pack_keys(a, s, start, T, kv_head, TILE_COLS);
    pack_panels(s->v_panels, s->v, T_padded, D);
    memset(s->dk, 0, sizeof(float) * T_padded * D);
    memset(s->dv, 0, sizeof(float) * T_padded * D);
    for (int head = kv_head * a->group; head < (kv_head + 1) * a->group; head++)
        for (int first = 0; first < T; first += BLOCK)
            backward_block(a, s, start, head, first, min_int(BLOCK, T - first));
    float *dk = a->dqkv + (size_t)start * a->stride + (h->n_head + kv_head) * hd;
    float *dv = dk + h->n_kv_head * hd;
    for (int i = 0; i < T; i++)
        for (int j = 0; j < hd; j++) {
            dk[(size_t)i * a->stride + j] = s->dk[(size_t)i * D + j];
            dv[(size_t)i * a->stride + j] = s->dv[(size_t)i * D + j];
        }
}

void cpu_attention_backward(struct stream *stream, void *dqkv, const void *dout, const void *qkv,
                            const void *out, const float *lse, const struct token_rows *rows,
                            const struct attention *attention)
{
    (void)stream;
    struct attention_work a = attention_setup(qkv, rows, attention);
    a.dqkv = dqkv;
    a.dout = dout;
    a.final = out;
    a.lse = (float *)lse;
    for_groups(&a, backward_group);
}
