/* Rotary position embedding (Su et al., "RoFormer", 2021) of q and k, in place, behind their
 * RMSNorm where they have one. It stands between the product that makes q, k and v and attention,
 * and not within that: attention reads a tile of keys again for each block of queries, and would
 * turn it each time.
 *
 * A warp takes a token, and so many lanes a head as it has vectors in its half: each holds some
 * columns and those half a head further on, which turn together, and its cosines and sines serve
 * all heads.
 *
 * Limit: memory. With E = (n_head + n_kv_head) head_dim a rotation moves 4 n E bytes; with norms
 * 6 n E, since backward needs what was before. */
#include "model/cuda/column_sums.cuh"

extern "C" {
#include "model/cuda/cuda_ops.h"
#include "model/device/angle.h"
}

#include <assert.h>

#define WARPS      4
#define THREADS    (WARPS * WARP)
#define MAX_CHUNKS 1024 /* fill every machine, and cost little to add up */

/* A lane holds `vectors` vectors of `width` columns of each half: one of 8, or 4 of 1. */
#define SINGLES 4
static_assert(CUDA_MAX_HEAD_DIM <= 2 * WARP * SINGLES, "single elements");

struct rotary_job {
    bf16 *qkv; /* or its gradient */
    bf16 *pre; /* (n, rotated, head_dim) with norms */
    const int *position;
    float
        *partial; /* backward, with norms: (chunks, 2, head_dim) sums of dq_weight and dk_weight */
    struct rotary shape;
    int n;
    int rotated; /* heads of q and k */
    int lanes;   /* of a head, a power of two */
    int chunk_rows;
    float inverse_dim; /* 1 / head_dim */
    float sign;        /* of the angle */
};

/* The weight of q's norm, or of k's. */
__device__ static inline const bf16 *weight_of(const struct rotary_job &r, bool is_q)
{
    return (const bf16 *)(is_q ? r.shape.q_weight : r.shape.k_weight);
}

/* A head of a token's q or k. */
__device__ static inline bf16 *head_at(const struct rotary_job &r, int t, int head)
{
    const int heads = 2 * r.rotated - r.shape.heads.n_head; /* of q, k and v */
    return r.qkv + ((size_t)t * heads + head) * r.shape.heads.head_dim;
}

/* The same before its norm. */
__device__ static inline bf16 *pre_at(const struct rotary_job &r, int t, int head)
{
    return r.pre + ((size_t)t * r.rotated + head) * r.shape.heads.head_dim;
}

/* Where a lane is within a head. */
template <int width, int vectors> struct rotary_lane {
    int team; /* which head of those that the warp holds at a time */
    int column[vectors];
    float cosine[vectors][width], sine[vectors][width]; /* of its token */
};

template <int width, int vectors>
__device__ static inline struct rotary_lane<width, vectors> lane_of(const struct rotary_job &r) {
    struct rotary_lane<width, vectors> lane;
    const int at = threadIdx.x % WARP;
    lane.team = at / r.lanes;
    for (int k = 0; k < vectors; k++)
        lane.column[k] = (at % r.lanes + k * r.lanes) * width;
    return lane;
}

/* Angles are fp32; cosine and sine are rounded to bf16, as in Transformers. */
template <int width, int vectors>
__device__ static inline void turn_of(struct rotary_lane<width, vectors> &lane,
                                      const struct rotary_job &r, int t)
{
    const float position = (float)r.position[t];
    for (int k = 0; k < vectors; k++) {
        if (lane.column[k] >= r.shape.heads.head_dim / 2)
            continue;
        for (int i = 0; i < width; i++) {
            float sine, cosine;
            sine_cosine(position * r.shape.frequency[lane.column[k] + i], &sine, &cosine);
            lane.cosine[k][i] = to_float(to_bf16(cosine * r.shape.scale));
            lane.sine[k][i] = r.sign * to_float(to_bf16(sine * r.shape.scale));
        }
    }
}

/* A lane's part of a head: of its first half and of its second. */
template <int width, int vectors> struct head_part {
    float x[2][vectors][width];
};

template <int width, int vectors>
__device__ static inline void load_part(struct head_part<width, vectors> &part, const bf16 *head,
                                        const struct rotary_lane<width, vectors> &lane, int half,
                                        bool valid)
{
    for (int k = 0; k < 2 * vectors; k++) {
        float(&x)[width] = part.x[k / vectors][k % vectors];
        const int column = lane.column[k % vectors];
        for (int i = 0; i < width; i++)
            x[i] = 0;
        if (valid && column < half)
            load<width>(x, head + k / vectors * half + column);
    }
}

template <int width, int vectors>
__device__ static inline void store_part(bf16 *head, const struct head_part<width, vectors> &part,
                                         const struct rotary_lane<width, vectors> &lane, int half,
                                         bool valid)
{
    for (int k = 0; k < 2 * vectors; k++)
        if (valid && lane.column[k % vectors] < half)
            store<width>(head + k / vectors * half + lane.column[k % vectors],
                         part.x[k / vectors][k % vectors]);
}

template <int width, int vectors>
__device__ static inline void turn(struct head_part<width, vectors> &part,
                                   const struct rotary_lane<width, vectors> &lane, int half)
{
    for (int k = 0; k < vectors; k++) {
        if (lane.column[k] >= half)
            continue;
        for (int i = 0; i < width; i++) {
            const float a = part.x[0][k][i], b = part.x[1][k][i];
            part.x[0][k][i] = a * lane.cosine[k][i] - b * lane.sine[k][i];
            part.x[1][k][i] = b * lane.cosine[k][i] + a * lane.sine[k][i];
        }
    }
}

/* The sum over the lanes of a head. */
__device__ static inline float team_sum(float x, int lanes)
{
    for (int i = lanes / 2; i > 0; i /= 2)
        x += shuffle_xor(FULL_MASK, x, i);
    return x;
}

template <int width, int vectors>
__device__ static inline float rstd_of(const struct head_part<width, vectors> &part,
                                       const struct rotary_job &r)
{
    float squares = 0;
    for (int k = 0; k < 2 * vectors; k++)
        for (int i = 0; i < width; i++) {
            const float x = part.x[k / vectors][k % vectors][i];
            squares += x * x;
        }
    return inverse_sqrt(team_sum(squares, r.lanes) * r.inverse_dim + r.shape.eps);
}

/* As the RMSNorm of layernorm.cu, in its two roundings, and that of its output. */
template <int width, int vectors>
__device__ static inline void normalise(struct head_part<width, vectors> &part, const bf16 *weight,
                                        const struct rotary_lane<width, vectors> &lane,
                                        const struct rotary_job &r)
{
    const float rstd = rstd_of(part, r);
    struct head_part<width, vectors> w;
    load_part(w, weight, lane, r.shape.heads.head_dim / 2, true);
    for (int k = 0; k < 2 * vectors; k++)
        for (int i = 0; i < width; i++) {
            float &x = part.x[k / vectors][k % vectors][i];
            const float xhat = to_float(to_bf16(x * rstd));
            x = to_float(to_bf16(w.x[k / vectors][k % vectors][i] * xhat));
        }
}

template <bool NORMS, int width, int vectors>
__global__ static void __launch_bounds__(THREADS) rotate_rows(struct rotary_job r)
{
    const int t = (int)(blockIdx.x * WARPS + threadIdx.x / WARP), half = r.shape.heads.head_dim / 2;
    if (t >= r.n)
        return;
    struct rotary_lane<width, vectors> lane = lane_of<width, vectors>(r);
    turn_of(lane, r, t);
    for (int first = 0; first < r.rotated; first += WARP / r.lanes) {
        const int head = first + lane.team;
        const bool valid = head < r.rotated;
        bf16 *const u = head_at(r, t, head);
        struct head_part<width, vectors> part;
        load_part(part, u, lane, half, valid);
        if (NORMS) {
            store_part(pre_at(r, t, head), part, lane, half, valid);
            normalise(part, weight_of(r, head < r.shape.heads.n_head), lane, r);
        }
        turn(part, lane, half);
        store_part(u, part, lane, half, valid);
    }
}

/* g, the gradient of the norm's output, becomes that of its input x; adds to the columns' sums of g
 * xhat.  With xhat = x rstd:  rstd (weight g - xhat mean(weight g xhat)) */
template <int width, int vectors>
__device__ static inline void
norm_gradient(struct head_part<width, vectors> &g, struct head_part<width, vectors> (&sums)[2],
              const struct head_part<width, vectors> &x, bool is_q,
              const struct rotary_lane<width, vectors> &lane, const struct rotary_job &r)
{
    struct head_part<width, vectors> weight;
    load_part(weight, weight_of(r, is_q), lane, r.shape.heads.head_dim / 2, true);
    float product = 0;
    for (int k = 0; k < 2 * vectors; k++)
        for (int i = 0; i < width; i++) {
            const int h = k / vectors, v = k % vectors;
            product += weight.x[h][v][i] * g.x[h][v][i] * x.x[h][v][i];
        }
    const float rstd = rstd_of(x, r);
    const float mean = rstd * team_sum(product, r.lanes) * r.inverse_dim;
    for (int k = 0; k < 2 * vectors; k++)
        for (int i = 0; i < width; i++) {
            const int h = k / vectors, v = k % vectors;
            const float xhat = x.x[h][v][i] * rstd, g_xhat = g.x[h][v][i] * xhat;
            sums[0].x[h][v][i] += is_q ? g_xhat : 0;
            sums[1].x[h][v][i] += is_q ? 0 : g_xhat;
            g.x[h][v][i] = rstd * (weight.x[h][v][i] * g.x[h][v][i] - xhat * mean);
        }
}

/* The block's sums of q's (0) or k's (1) weight: those of a warp's teams, then of its warps. */
template <int width, int vectors>
__device__ static inline void add_up(float *partial, struct head_part<width, vectors> &sums,
                                     float (&shared)[WARPS][CUDA_MAX_HEAD_DIM],
                                     const struct rotary_lane<width, vectors> &lane,
                                     const struct rotary_job &r)
{
    for (int k = 0; k < 2 * vectors; k++)
        for (int i = 0; i < width; i++) {
            float &x = sums.x[k / vectors][k % vectors][i];
            for (int other = r.lanes; other < WARP; other *= 2)
                x += shuffle_xor(FULL_MASK, x, other);
            const int column = lane.column[k % vectors];
            if (lane.team == 0 && column < r.shape.heads.head_dim / 2)
                shared[threadIdx.x / WARP]
                      [k / vectors * (r.shape.heads.head_dim / 2) + column + i] = x;
        }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < r.shape.heads.head_dim; i += THREADS) {
        float sum = shared[0][i];
        for (int warp = 1; warp < WARPS; warp++)
            sum += shared[warp][i];
        partial[i] = sum;
    }
    __syncthreads();
}

/* A block takes a chunk of rows. */
template <int width, int vectors>
__global__ static void __launch_bounds__(THREADS) rotate_norm_backward(struct rotary_job r)
{
    SHARED(float, shared, [WARPS][CUDA_MAX_HEAD_DIM]);
    const int begin = blockIdx.x * r.chunk_rows, half = r.shape.heads.head_dim / 2;
    const int end = begin + r.chunk_rows < r.n ? begin + r.chunk_rows : r.n;
    struct rotary_lane<width, vectors> lane = lane_of<width, vectors>(r);
    struct head_part<width, vectors> sums[2] = {
    };
    for (int t = begin + (int)threadIdx.x / WARP; t < end; t += WARPS) {
        turn_of(lane, r, t);
        for (int first = 0; first < r.rotated; first += WARP / r.lanes) {
            const int head = first + lane.team;
            const bool valid = head < r.rotated;
            bf16 *const u = head_at(r, t, head);
            struct head_part<width, vectors> g, x;
            load_part(g, u, lane, half, valid);
            load_part(x, pre_at(r, t, head), lane, half, valid);
            turn(g, lane, half);
            norm_gradient(g, sums, x, head < r.shape.heads.n_head, lane, r);
            store_part(u, g, lane, half, valid);
        }
    }
    float *const partial = r.partial + (size_t)blockIdx.x * 2 * r.shape.heads.head_dim;
    add_up(partial, sums[0], shared, lane, r);
    add_up(partial + r.shape.heads.head_dim, sums[1], shared, lane, r);
}

static struct rotary_job job_of(void *qkv, const void *pre, const struct token_rows *rows,
                                const struct rotary *rotary, float sign)
{
    const struct heads *h = &rotary->heads;
    assert(h->head_dim % 2 == 0 && h->head_dim <= CUDA_MAX_HEAD_DIM);
    struct rotary_job r = {};
    r.qkv = (bf16 *)qkv;
    r.pre = (bf16 *)pre;
    r.position = rows->position;
    r.shape = *rotary;
    r.n = rows->n_tokens;
    r.rotated = h->n_head + h->n_kv_head;
    r.inverse_dim = 1.0f / (float)h->head_dim;
    r.sign = sign;
    return r;
}

/* Whether halves of heads are whole vectors; sets the lanes of a head. */
static bool takes_vectors(struct rotary_job *r)
{
    const int half = r->shape.heads.head_dim / 2;
    const bool vectors =
        rows_are_vectors(half, (uintptr_t)r->qkv | (uintptr_t)r->pre |
                                   (uintptr_t)r->shape.q_weight | (uintptr_t)r->shape.k_weight);
    const int pieces = half / (vectors ? VECTOR : 1);
    for (r->lanes = 1; r->lanes < pieces && r->lanes < WARP;)
        r->lanes *= 2;
    return vectors;
}

template <bool NORMS> static void rotate(struct stream *s, struct rotary_job r)
{
    const int blocks = divide_up((size_t)r.n, WARPS);
    if (r.n == 0)
        return;
    if (takes_vectors(&r))
        LAUNCH((rotate_rows<NORMS, VECTOR, 1>), blocks, THREADS, 0, s, r);
    else
        LAUNCH((rotate_rows<NORMS, 1, SINGLES>), blocks, THREADS, 0, s, r);
}

void cuda_rotary_forward(struct stream *s, void *qkv, void *pre, const struct token_rows *rows,
                         const struct rotary *rotary)
{
    if (rotary->q_weight)
        rotate<true>(s, job_of(qkv, pre, rows, rotary, 1));
    else
        rotate<false>(s, job_of(qkv, NULL, rows, rotary, 1));
}

void cuda_rotary_backward(struct stream *s, void *dqkv, float *dq_weight, float *dk_weight,
                          const void *pre, const struct token_rows *rows,
                          const struct rotary *rotary, bool accumulate)
{
    struct rotary_job r = job_of(dqkv, rotary->q_weight ? pre : NULL, rows, rotary, -1);
    if (!rotary->q_weight) { /* the gradient of a rotation is the one back */
        rotate<false>(s, r);
        return;
    }
    if (r.n == 0 && accumulate)
        return;
    const int D = r.shape.heads.head_dim;
    r.chunk_rows = WARPS * divide_up((size_t)r.n, WARPS * MAX_CHUNKS);
    const int chunks = r.n > 0 ? divide_up((size_t)r.n, (size_t)r.chunk_rows) : 0;
    r.partial = (float *)cuda_scratch(s, sizeof(float) * 2 * (size_t)D * chunks);
    const bool vectors = takes_vectors(&r);
    if (chunks > 0 && vectors)
        LAUNCH((rotate_norm_backward<VECTOR, 1>), chunks, THREADS, 0, s, r);
    else if (chunks > 0)
        LAUNCH((rotate_norm_backward<1, SINGLES>), chunks, THREADS, 0, s, r);
    LAUNCH(add_partials, dim3(divide_up((size_t)D, SUM_LANES), 2), SUM_LANES * SUM_GROUPS, 0, s,
           (column_sums{{dq_weight, dk_weight}}), r.partial, chunks, (size_t)2 * D, D, accumulate);
}
