/* Attention for any head size up to 256 and any alignment: what small models of tests need, without
 * tensor cores. A warp owns one row. Rows of the other side come 32 at a time: each lane takes one
 * of them for the scores, then one column for the sums.
 *
 * Limit: latency; each lane reads rows of its own. 4 head_dim FLOPs in forward for each pair of
 * query and key that it sees, 14 in backward. */
#include "model/cuda/attention.cuh"

#include <assert.h>
#include <math.h>

#define LANE_COLUMNS (CUDA_MAX_HEAD_DIM / WARP)

struct generic_arrays {
    bf16 *out; /* forward */
    float *lse;
    bf16 *dqkv; /* backward */
    const bf16 *dO, *O;
    float *delta; /* (n, n_head) */
    const bf16 *qkv;
    struct token_rows rows;
    struct attention_sizes sizes;
};

/* The warp's row: of the sequence, and of the stream. */
struct generic_row {
    struct attention_block block;
    int row, token;
};

/* False where the warp has none. All of a block's warps are of one sequence and head of n_head. */
__device__ static inline bool generic_find_row(struct generic_row *mine,
                                               const struct generic_arrays &a, int n_head)
{
    if (!attention_my_block<ATTENTION_WARPS>(&mine->block, a.rows, n_head))
        return false;
    mine->row = mine->block.first + (int)threadIdx.x / WARP;
    mine->token = mine->block.start + mine->row;
    return mine->row < mine->block.seqlen;
}

/* A head of a token's row: of its q. */
__device__ static inline size_t generic_q(const struct generic_arrays &a, int token, int head)
{
    return (size_t)token * a.sizes.stride + head * a.sizes.head_dim;
}

/* Of its k, head being one of those. */
__device__ static inline size_t generic_k(const struct generic_arrays &a, int token, int kv_head)
{
    return generic_q(a, token, a.sizes.n_head + kv_head);
}

/* Of its v. */
__device__ static inline size_t generic_v(const struct generic_arrays &a, int token, int kv_head)
{
    return generic_q(a, token, a.sizes.n_head + a.sizes.n_kv_head + kv_head);
}

/* The first key that a query sees. */
__device__ static inline int generic_first_key(const struct generic_arrays &a, int query)
{
    return attention_first_tile<1>(query, a.sizes.window);
}

__device__ static inline float generic_dot(const bf16 *x, const bf16 *y, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += to_float(x[i]) * to_float(y[i]);
    return sum;
}

/* acc[i] += sum over j < n of weight[j] * x[j][lane + 32 i], rows of x at distance `stride`. */
__device__ static inline void generic_add_rows(float (&acc)[LANE_COLUMNS], const float *weight,
                                               const bf16 *x, int stride, int n, int head_dim)
{
    const int lane = threadIdx.x % WARP;
    for (int j = 0; j < n; j++) {
        UNROLL
        for (int i = 0; i < LANE_COLUMNS; i++)
            if (lane + WARP * i < head_dim)
                acc[i] += weight[j] * to_float(x[(size_t)j * stride + lane + WARP * i]);
    }
}

__device__ static inline void generic_store(bf16 *dst, const float (&acc)[LANE_COLUMNS],
                                            float factor, int head_dim)
{
    const int lane = threadIdx.x % WARP;
    UNROLL
    for (int i = 0; i < LANE_COLUMNS; i++)
        if (lane + WARP * i < head_dim)
            dst[lane + WARP * i] = to_bf16(acc[i] * factor);
}

/* Dropout's factor of one probability. */
__device__ static inline float generic_factor(const struct generic_arrays &a, int query_token,
                                              int key, int head)
{
    if (a.sizes.drop.p == 0)
        return 1;
    const uint32_t kept = draw_kept(a.sizes.drop, head, a.rows.token_seq[query_token],
                                    (uint32_t)a.rows.position[query_token], key / 4);
    return kept >> key % 4 & 1 ? 1 / (1 - a.sizes.drop.p) : 0;
}

__global__ __launch_bounds__(ATTENTION_THREADS) static void attention_forward_generic_kernel(
    struct generic_arrays a)
{
    SHARED(float, weights, [ATTENTION_WARPS][WARP]);
    struct generic_row mine;
    if (!generic_find_row(&mine, a, a.sizes.n_head))
        return;
    const int lane = threadIdx.x % WARP, head = mine.block.head, start = mine.block.start;
    float *const weight = weights[threadIdx.x / WARP];
    const int kv_head = head / a.sizes.group;
    const bf16 *const Q = a.qkv + generic_q(a, mine.token, head);
    float O[LANE_COLUMNS] = {0}, m_i = -INFINITY, l_i = 0;
    for (int first = generic_first_key(a, mine.row); first <= mine.row; first += WARP) {
        const int n = mine.row + 1 - first < WARP ? mine.row + 1 - first : WARP;
        float S = -INFINITY, factor = 0;
        if (lane < n) {
            const bf16 *const K = a.qkv + generic_k(a, start + first + lane, kv_head);
            S = a.sizes.scale * generic_dot(Q, K, a.sizes.head_dim);
            factor = generic_factor(a, mine.token, first + lane, head);
        }
        const float m_new = fmaxf(m_i, warp_max(S)), alpha = expf(m_i - m_new);
        const float P = expf(S - m_new);
        l_i = l_i * alpha + warp_sum(P);
        m_i = m_new;
        __syncwarp();
        weight[lane] = P * factor;
        __syncwarp();
        for (int i = 0; i < LANE_COLUMNS; i++)
            O[i] *= alpha;
        generic_add_rows(O, weight, a.qkv + generic_v(a, start + first, kv_head), a.sizes.stride, n,
                         a.sizes.head_dim);
    }
    const size_t at = (size_t)mine.token * a.sizes.n_head + head;
    generic_store(a.out + at * a.sizes.head_dim, O, 1 / l_i, a.sizes.head_dim);
    if (lane == 0)
        a.lse[at] = m_i + logf(l_i);
}

/* P, times dropout's factor, and dS of one query and one key, by their tokens. */
__device__ static inline void generic_gradient(float *dropped_P, float *dS,
                                               const struct generic_arrays &a, int query, int key,
                                               int start, int head)
{
    const bf16 *const Q = a.qkv + generic_q(a, query, head);
    const bf16 *const K = a.qkv + generic_k(a, key, head / a.sizes.group);
    const bf16 *const V = a.qkv + generic_v(a, key, head / a.sizes.group);
    const size_t at = (size_t)query * a.sizes.n_head + head;
    const float P = expf(a.sizes.scale * generic_dot(Q, K, a.sizes.head_dim) - a.lse[at]);
    const float dP = generic_dot(a.dO + at * a.sizes.head_dim, V, a.sizes.head_dim);
    const float factor = generic_factor(a, query, key - start, head);
    *dropped_P = P * factor;
    *dS = P * (factor * dP - a.delta[at]);
}

__global__ __launch_bounds__(ATTENTION_THREADS) static void attention_backward_q_generic_kernel(
    struct generic_arrays a)
{
    SHARED(float, weights, [ATTENTION_WARPS][WARP]);
    struct generic_row mine;
    if (!generic_find_row(&mine, a, a.sizes.n_head))
        return;
    const int lane = threadIdx.x % WARP, head = mine.block.head, start = mine.block.start;
    float *const weight = weights[threadIdx.x / WARP];
    const size_t at = (size_t)mine.token * a.sizes.n_head + head;
    float dQ[LANE_COLUMNS] = {0}, delta = 0;
    for (int i = lane; i < a.sizes.head_dim; i += WARP)
        delta +=
            to_float(a.dO[at * a.sizes.head_dim + i]) * to_float(a.O[at * a.sizes.head_dim + i]);
    delta = warp_sum(delta);
    if (lane == 0)
        a.delta[at] = delta;
    __syncwarp();
    for (int first = generic_first_key(a, mine.row); first <= mine.row; first += WARP) {
        const int n = mine.row + 1 - first < WARP ? mine.row + 1 - first : WARP;
        float P, dS = 0;
        if (lane < n)
            generic_gradient(&P, &dS, a, mine.token, start + first + lane, start, head);
        __syncwarp();
        weight[lane] = dS;
        __syncwarp();
        generic_add_rows(dQ, weight, a.qkv + generic_k(a, start + first, head / a.sizes.group),
                         a.sizes.stride, n, a.sizes.head_dim);
    }
    generic_store(a.dqkv + generic_q(a, mine.token, head), dQ, a.sizes.scale, a.sizes.head_dim);
}

__global__ __launch_bounds__(ATTENTION_THREADS) static void attention_backward_kv_generic_kernel(
    struct generic_arrays a)
{
    SHARED(float, weights, [ATTENTION_WARPS][2][WARP]);
    struct generic_row mine;
    if (!generic_find_row(&mine, a, a.sizes.n_kv_head))
        return;
    const int lane = threadIdx.x % WARP, kv_head = mine.block.head, start = mine.block.start;
    const int C = a.sizes.n_head * a.sizes.head_dim, group = a.sizes.group;
    const int seen = mine.row + a.sizes.window;
    const int end = seen < mine.block.seqlen ? seen : mine.block.seqlen;
    float(&weight)[2][WARP] = weights[threadIdx.x / WARP];
    float dK[LANE_COLUMNS] = {0}, dV[LANE_COLUMNS] = {0};
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int first = mine.row; first < end; first += WARP) {
            const int n = end - first < WARP ? end - first : WARP, query = start + first;
            float P = 0, dS = 0;
            if (lane < n)
                generic_gradient(&P, &dS, a, query + lane, mine.token, start, head);
            __syncwarp();
            weight[0][lane] = dS;
            weight[1][lane] = P;
            __syncwarp();
            generic_add_rows(dK, weight[0], a.qkv + generic_q(a, query, head), a.sizes.stride, n,
                             a.sizes.head_dim);
            generic_add_rows(dV, weight[1], a.dO + (size_t)query * C + head * a.sizes.head_dim, C,
                             n, a.sizes.head_dim);
        }
    generic_store(a.dqkv + generic_k(a, mine.token, kv_head), dK, a.sizes.scale, a.sizes.head_dim);
    generic_store(a.dqkv + generic_v(a, mine.token, kv_head), dV, 1, a.sizes.head_dim);
}

void attention_forward_generic(struct stream *s, bf16 *out, float *lse, const bf16 *qkv,
                               const struct token_rows *rows, const struct attention *attention)
{
    assert(attention->heads.head_dim <= CUDA_MAX_HEAD_DIM);
    const struct generic_arrays a = {
        out, lse, NULL, NULL, NULL, NULL, qkv, *rows, attention_sizes_of(attention)};
    const int blocks = attention_blocks(rows, ATTENTION_WARPS) * a.sizes.n_head;
    LAUNCH(attention_forward_generic_kernel, blocks, ATTENTION_THREADS, 0, s, a);
}

void attention_backward_generic(struct stream *s, bf16 *dqkv, const bf16 *dout, const bf16 *qkv,
                                const bf16 *out, const float *lse, const struct token_rows *rows,
                                const struct attention *attention)
{
    assert(attention->heads.head_dim <= CUDA_MAX_HEAD_DIM);
    float *delta =
        (float *)cuda_scratch(s, sizeof(float) * attention->heads.n_head * rows->n_tokens);
    const struct generic_arrays a = {
        NULL, (float *)lse, dqkv, dout, out, delta, qkv, *rows, attention_sizes_of(attention)};
    const int blocks = attention_blocks(rows, ATTENTION_WARPS);
    LAUNCH(attention_backward_q_generic_kernel, blocks * a.sizes.n_head, ATTENTION_THREADS, 0, s,
           a);
    LAUNCH(attention_backward_kv_generic_kernel, blocks * a.sizes.n_kv_head, ATTENTION_THREADS, 0,
           s, a);
}
