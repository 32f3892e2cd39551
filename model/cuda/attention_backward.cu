/* Flash attention, backward (Dao, "FlashAttention-2", ICLR 2024, section 3.2): probabilities are
 * computed again from the scores' log-sum-exp. With p = exp(scale q k^T - lse), f dropout's factors
 * and delta = row sums of dout * out:
 *   dv = (f p)^T dout;  dp = dout v^T;  ds = p (f dp - delta);  dq = scale ds k;  dk = scale ds^T q
 *
 * Two kernels: one owns queries and walks over keys for dq, one owns keys and walks over queries
 * for dk and dv. Both compute the scores and dp, so that they take 3 + 4 products where one kernel
 * would take 5; but that one would add to dq in an order that timing decides, or keep a part of dq
 * for each tile of keys, T / 128 times its size. The kernel that owns keys takes the scores
 * transposed, so that what it multiplies from the left is always its own rows, in registers.
 *
 * Limit: tensor cores, 14 head_dim FLOPs for each pair of query and key that it sees: 6 in the
 * first kernel and 8 in the second; 7 T^2 head_dim for each head of a sequence of T tokens. Bytes:
 * first kernel 12 n C + 20 n n_head, second 12 n C + 16 n n_head, and what is walked over again,
 * from the second-level cache, for each block's rows. */
#include "model/cuda/attention.cuh"

#include <assert.h>
#include <math.h>

/* What the first kernel leaves of each query for the second. */
struct alignas(16) query_statistics {
    float lse2, delta; /* lse in base 2 */
    uint32_t position;
    uint32_t unused; /* what copy_async_16 takes */
};

struct backward_arrays {
    bf16 *dqkv;
    const bf16 *dout, *qkv, *out;
    const float *lse;
    struct query_statistics *statistics; /* (n_head, n) */
    struct token_rows rows;
    int n_head;
    float scale;
    struct dropout drop;
};

/* Sizes for one head size of the kernel that owns queries, or keys: a warp owns 16 M rows; the rows
 * that a block walks over come in tiles of WALKED, of which products take 16 N at a time. */
template <int HD, bool OWNS_KEYS> struct backward_sizes {
    static constexpr int M = HD <= 64 ? 2 : 1;
    static constexpr int N = OWNS_KEYS && (HD == 64 || HD == 128) ? 1 : 2;
    static constexpr int OWNED = ATTENTION_WARPS * 16 * M, WALKED = HD <= 64 ? 64 : 32;
    static constexpr bool KEPT = !OWNS_KEYS && HD <= 32; /* owned rows stay in registers */
    static constexpr int TILES_BYTES = (int)sizeof(bf16) * HD * (2 * OWNED + 4 * WALKED);
    static constexpr int STATISTICS_BYTES =
        OWNS_KEYS ? 2 * WALKED * (int)sizeof(struct query_statistics) : 0;
    static constexpr int BYTES = TILES_BYTES + STATISTICS_BYTES;
};

/* The rows that a warp owns: `row` counted in the block, `first` in the sequence. */
struct own_rows {
    int row, first, n;
};

template <int rows>
__device__ static inline struct own_rows backward_own_rows(const struct attention_share &share)
{
    struct own_rows own = {(int)threadIdx.x / WARP * rows, 0, 0};
    own.first = share.first + own.row;
    own.n = share.length - own.first < rows ? share.length - own.first : rows;
    return own;
}

/* Starts the copy of two tiles of rows that are walked over, one after the other in memory. */
template <int HD, int WALKED>
__device__ static inline void backward_load(bf16 *tile, const bf16 *a, size_t a_stride,
                                            const bf16 *b, size_t b_stride, int first, int n)
{
    tile_load_part<HD, WALKED>(tile, a, a_stride, first, n, 16);
    tile_load_part<HD, WALKED>(tile + WALKED * HD, b, b_stride, first, n, 16);
}

/* The warp's rows of a gradient, times factor; tile: its part of one. */
template <int HD, int M>
__device__ static inline void backward_store(bf16 *dst, size_t stride, bf16 *tile,
                                             const float (&acc)[M][HD / 8][4], float factor, int n)
{
    float factors[M][2];
    UNROLL
    for (int i = 0; i < 2 * M; i++)
        factors[i / 2][i % 2] = factor;
    __syncwarp();
    tile_put<HD>(tile, acc, factors);
    __syncwarp();
    tile_store<HD, 16 * M>(dst, stride, tile, n);
}

/* What a lane holds of its queries, rows g and g + 8 of each 16, in the kernel that owns them. */
template <int M> struct query_state {
    float lse2[M][2], delta[M][2];
    uint32_t position[M][2], sequence;
};

/* dout * out summed over the columns of one query; the four lanes of a row call it together. */
template <int HD>
__device__ static inline float backward_delta(const bf16 *dout, const bf16 *out, bool valid)
{
    float delta = 0;
    UNROLL
    for (int j = 0; j < HD / 8; j++) {
        const int at = 8 * j + 2 * (threadIdx.x % 4);
        if (!valid)
            continue;
        const struct bf16x2 a = *(const struct bf16x2 *)(dout + at);
        const struct bf16x2 b = *(const struct bf16x2 *)(out + at);
        delta += to_float(a.v[0]) * to_float(b.v[0]) + to_float(a.v[1]) * to_float(b.v[1]);
    }
    delta += shuffle_xor(FULL_MASK, delta, 1);
    return delta + shuffle_xor(FULL_MASK, delta, 2);
}

/* The state of the warp's queries, which is left in memory for the other kernel as well. Rows past
 * the sequence's end get zeros: theirs are the probabilities of zero scores, times zeros. */
template <int HD, int M>
__device__ static inline void backward_begin(struct query_state<M> &state,
                                             const struct backward_arrays &a, int start, int head,
                                             const struct own_rows &own)
{
    const size_t C = (size_t)a.n_head * HD;
    state.sequence = a.rows.token_seq[start];
    UNROLL
    for (int i = 0; i < 2 * M; i++) {
        const int row = i * 8 + threadIdx.x % WARP / 4;
        const bool valid = row < own.n;
        const size_t token = valid ? (size_t)start + own.first + row : (size_t)start;
        struct query_statistics q = {0, 0, 0, 0};
        if (valid) {
            q.lse2 = a.lse[token * a.n_head + head] * LOG2_E;
            q.position = (uint32_t)a.rows.position[token];
        }
        const size_t at = token * C + head * HD;
        q.delta = backward_delta<HD>(a.dout + at, a.out + at, valid);
        if (valid && threadIdx.x % 4 == 0)
            a.statistics[(size_t)head * a.rows.n_tokens + token] = q;
        state.lse2[i / 2][i % 2] = q.lse2;
        state.delta[i / 2][i % 2] = q.delta;
        state.position[i / 2][i % 2] = q.position;
    }
}

/* Scores and dp of 16 M queries by 8 J keys: dp becomes ds. */
template <bool EDGE, bool DROPOUT, int M, int J>
__device__ static inline void
softmax_gradient_by_query(const float (&s)[M][J][4], float (&dp)[M][J][4],
                          const struct query_state<M> &state, int first_query, int first_key,
                          const struct backward_arrays &a, int head)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const float kept_factor = 1 / (1 - a.drop.p), scale_log2 = a.scale * LOG2_E;
    UNROLL
    for (int i = 0; i < M * J; i++) {
        const int m = i / J, j = i % J;
        uint32_t kept = 0;
        if (DROPOUT)
            kept =
                kept_by_query(a.drop, head, state.sequence, state.position[m], first_key + 8 * j);
        UNROLL
        for (int e = 0; e < 4; e++) {
            const int query = first_query + 16 * m + g + e / 2 * 8;
            const int key = first_key + 8 * j + 2 * t + e % 2;
            float p = fast_exp2(s[m][j][e] * scale_log2 - state.lse2[m][e / 2]);
            if (EDGE && key > query)
                p = 0;
            if (DROPOUT)
                dp[m][j][e] *= kept >> e & 1 ? kept_factor : 0;
            dp[m][j][e] = p * (dp[m][j][e] - state.delta[m][e / 2]);
        }
    }
}

/* Adds to dq what 16 N keys give, n_used groups of 16 of them. EDGE: some queries do not see all.
 */
template <bool EDGE, bool DROPOUT, int HD, int M, bool KEPT>
__device__ static inline void
query_step(float (&dq)[M][HD / 8][4], const struct left_operand<HD, M, KEPT> &q,
           const struct left_operand<HD, M, KEPT> &dout, const bf16 *k, const bf16 *v,
           const struct query_state<M> &state, int first_query, int first_key, int n_used,
           const struct backward_arrays &a, int head)
{
    constexpr int N = backward_sizes<HD, false>::N;
    float s[M][2 * N][4], dp[M][2 * N][4];
    multiply_rows<EDGE, HD, M, N>(s, q, k, n_used);
    multiply_rows<EDGE, HD, M, N>(dp, dout, v, n_used);
    softmax_gradient_by_query<EDGE, DROPOUT>(s, dp, state, first_query, first_key, a, head);
    multiply_columns<EDGE, HD, M, N>(dq, dp, k, n_used);
}

template <int HD, bool DROPOUT>
__global__ ATTENTION_BOUNDS static void attention_backward_q_kernel(struct backward_arrays a)
{
    using sizes = backward_sizes<HD, false>;
    constexpr int M = sizes::M, OWNED = sizes::OWNED, WALKED = sizes::WALKED, STEP = 16 * sizes::N;
    DYNAMIC_SHARED(shared);
    bf16 *const q_tile = (bf16 *)shared, *const dout_tile = q_tile + OWNED * HD;
    bf16 *const tiles = dout_tile + OWNED * HD;
    struct attention_share share;
    if (!attention_my_share<OWNED>(&share, a.rows, a.n_head))
        return;
    const size_t C = (size_t)a.n_head * HD, at = share.start * C + share.head * HD;
    const size_t qkv_at = at + share.start * 2 * C;
    const bf16 *const q = a.qkv + qkv_at, *const dout = a.dout + at;
    const struct own_rows own = backward_own_rows<16 * M>(share);
    const int block_end = share.first + OWNED; /* keys that the block sees, and the warp */
    const int n_keys = block_end < share.length ? block_end : share.length;
    const int my_keys = own.n > 0 ? own.first + own.n : 0;

    tile_load_part<HD, OWNED>(q_tile, q, 3 * C, share.first, share.length, 16 * M);
    tile_load_part<HD, OWNED>(dout_tile, dout, C, share.first, share.length, 16 * M);
    backward_load<HD, WALKED>(tiles, q + C, 3 * C, q + 2 * C, 3 * C, 0, n_keys);
    copy_async_commit();
    struct query_state<M> state;
    backward_begin<HD>(state, a, share.start, share.head, own);
    float dq[M][HD / 8][4];
    clear(dq);
    struct left_operand<HD, M, sizes::KEPT> q_own, dout_own;
    copy_async_wait<0>();
    __syncthreads();
    left_operand_load(q_own, q_tile + own.row * HD);
    left_operand_load(dout_own, dout_tile + own.row * HD);
    for (int first = 0; first < n_keys; first += WALKED) {
        const bf16 *const k = tiles + first / WALKED % 2 * (2 * WALKED * HD);
        if (first + WALKED < n_keys)
            backward_load<HD, WALKED>(tiles + (first / WALKED + 1) % 2 * (2 * WALKED * HD), q + C,
                                      3 * C, q + 2 * C, 3 * C, first + WALKED, n_keys);
        copy_async_commit();
        for (int i = 0; i < WALKED && first + i < my_keys; i += STEP) {
            const bf16 *const k_step = k + i * HD, *const v_step = k_step + WALKED * HD;
            if (first + i + STEP <= own.first)
                query_step<false, DROPOUT, HD>(dq, q_own, dout_own, k_step, v_step, state,
                                               own.first, first + i, 0, a, share.head);
            else
                query_step<true, DROPOUT, HD>(dq, q_own, dout_own, k_step, v_step, state, own.first,
                                              first + i, (my_keys - first - i + 15) / 16, a,
                                              share.head);
        }
        copy_async_wait<0>();
        __syncthreads();
    }
    if (own.n > 0)
        backward_store<HD>(a.dqkv + qkv_at + own.first * 3 * C, 3 * C, q_tile + own.row * HD, dq,
                           a.scale, own.n);
}

/* Transposed scores and dp, of 16 M keys by 8 J queries: s becomes the dropped probabilities, dp
 * becomes ds. queries: their statistics, in shared memory. */
template <bool EDGE, bool DROPOUT, int M, int J>
__device__ static inline void
softmax_gradient_by_key(float (&s)[M][J][4], float (&dp)[M][J][4],
                        const struct query_statistics *queries, uint32_t sequence, int first_key,
                        int first_query, const struct backward_arrays &a, int head)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const float kept_factor = 1 / (1 - a.drop.p), scale_log2 = a.scale * LOG2_E;
    UNROLL
    for (int i = 0; i < J * M; i++) {
        const int m = i % M, j = i / M;
        const struct query_statistics q[2] = {queries[8 * j + 2 * t], queries[8 * j + 2 * t + 1]};
        uint32_t kept = 0;
        if (DROPOUT) {
            const uint32_t position[2] = {q[0].position, q[1].position};
            kept = kept_by_key(a.drop, head, sequence, position, first_key + 16 * m);
        }
        UNROLL
        for (int e = 0; e < 4; e++) {
            const int key = first_key + 16 * m + g + e / 2 * 8;
            const int query = first_query + 8 * j + 2 * t + e % 2;
            float p = fast_exp2(s[m][j][e] * scale_log2 - q[e % 2].lse2), factor = 1;
            if (EDGE && key > query)
                p = 0;
            if (DROPOUT)
                factor = kept >> e & 1 ? kept_factor : 0;
            s[m][j][e] = p * factor;
            dp[m][j][e] = p * (dp[m][j][e] * factor - q[e % 2].delta);
        }
    }
}

/* Adds to dk and dv what 16 N queries give, n_used groups of 16 of them. EDGE: not all of them see
 * all of the keys. */
template <bool EDGE, bool DROPOUT, int HD, int M, bool KEPT>
__device__ static inline void
key_step(float (&dk)[M][HD / 8][4], float (&dv)[M][HD / 8][4],
         const struct left_operand<HD, M, KEPT> &k, const struct left_operand<HD, M, KEPT> &v,
         const bf16 *q, const bf16 *dout, const struct query_statistics *queries, uint32_t sequence,
         int first_key, int first_query, int n_used, const struct backward_arrays &a, int head)
{
    constexpr int N = backward_sizes<HD, true>::N;
    float s[M][2 * N][4], dp[M][2 * N][4];
    multiply_rows<EDGE, HD, M, N>(s, k, q, n_used);
    multiply_rows<EDGE, HD, M, N>(dp, v, dout, n_used);
    softmax_gradient_by_key<EDGE, DROPOUT>(s, dp, queries, sequence, first_key, first_query, a,
                                           head);
    multiply_columns<EDGE, HD, M, N>(dv, s, dout, n_used);
    multiply_columns<EDGE, HD, M, N>(dk, dp, q, n_used);
}

/* Starts the copy of the queries from `first` on, with their dout and statistics. q, dout,
 * statistics: the sequence's. */
template <int HD>
__device__ static inline void key_load(char *shared, const bf16 *q, const bf16 *dout,
                                       const struct query_statistics *statistics, size_t C,
                                       int first, int n)
{
    using sizes = backward_sizes<HD, true>;
    const int stage = first / sizes::WALKED % 2, i = (int)threadIdx.x;
    bf16 *const tile = (bf16 *)shared + (2 * sizes::OWNED + stage * 2 * sizes::WALKED) * HD;
    backward_load<HD, sizes::WALKED>(tile, q, 3 * C, dout, C, first, n);
    static_assert(sizes::WALKED <= ATTENTION_THREADS, "a thread copies one query's");
    if (i < sizes::WALKED)
        copy_async_16((struct query_statistics *)(shared + sizes::TILES_BYTES) +
                          stage * sizes::WALKED + i,
                      statistics + (first + i < n ? first + i : 0), first + i < n);
    copy_async_commit();
}

template <int HD, bool DROPOUT>
__global__ ATTENTION_BOUNDS static void attention_backward_kv_kernel(struct backward_arrays a)
{
    using sizes = backward_sizes<HD, true>;
    constexpr int M = sizes::M, OWNED = sizes::OWNED, WALKED = sizes::WALKED, STEP = 16 * sizes::N;
    DYNAMIC_SHARED(shared);
    bf16 *const k_tile = (bf16 *)shared, *const v_tile = k_tile + OWNED * HD;
    const bf16 *const tiles = v_tile + OWNED * HD;
    struct attention_share share;
    if (!attention_my_share<OWNED>(&share, a.rows, a.n_head))
        return;
    const size_t C = (size_t)a.n_head * HD, at = share.start * C + share.head * HD;
    const size_t qkv_at = at + share.start * 2 * C;
    const bf16 *const q = a.qkv + qkv_at, *const dout = a.dout + at;
    const struct query_statistics *const statistics =
        a.statistics + (size_t)share.head * a.rows.n_tokens + share.start;
    const struct own_rows own = backward_own_rows<16 * M>(share);
    const uint32_t sequence = a.rows.token_seq[share.start];

    tile_load_part<HD, OWNED>(k_tile, q + C, 3 * C, share.first, share.length, 16 * M);
    tile_load_part<HD, OWNED>(v_tile, q + 2 * C, 3 * C, share.first, share.length, 16 * M);
    key_load<HD>(shared, q, dout, statistics, C, share.first, share.length);
    float dk[M][HD / 8][4], dv[M][HD / 8][4];
    clear(dk);
    clear(dv);
    struct left_operand<HD, M, sizes::KEPT> k_own, v_own;
    copy_async_wait<0>();
    __syncthreads();
    left_operand_load(k_own, k_tile + own.row * HD);
    left_operand_load(v_own, v_tile + own.row * HD);
    for (int first = share.first; first < share.length; first += WALKED) {
        const int stage = first / WALKED % 2;
        const bf16 *const q_tile = tiles + stage * 2 * WALKED * HD;
        const struct query_statistics *const queries =
            (const struct query_statistics *)(shared + sizes::TILES_BYTES) + stage * WALKED;
        if (first + WALKED < share.length)
            key_load<HD>(shared, q, dout, statistics, C, first + WALKED, share.length);
        for (int i = 0; i < WALKED && first + i < share.length && own.n > 0; i += STEP) {
            const bf16 *const q_step = q_tile + i * HD, *const dout_step = q_step + WALKED * HD;
            const int query = first + i, left = share.length - query;
            if (query + STEP <= own.first)
                continue;
            if (query >= own.first + 16 * M - 1 && left > STEP - 16)
                key_step<false, DROPOUT, HD>(dk, dv, k_own, v_own, q_step, dout_step, queries + i,
                                             sequence, own.first, query, 0, a, share.head);
            else
                key_step<true, DROPOUT, HD>(dk, dv, k_own, v_own, q_step, dout_step, queries + i,
                                            sequence, own.first, query, (left + 15) / 16, a,
                                            share.head);
        }
        copy_async_wait<0>();
        __syncthreads();
    }
    if (own.n <= 0)
        return;
    bf16 *const dk_to = a.dqkv + qkv_at + own.first * 3 * C + C;
    backward_store<HD>(dk_to, 3 * C, k_tile + own.row * HD, dk, a.scale, own.n);
    backward_store<HD>(dk_to + C, 3 * C, v_tile + own.row * HD, dv, 1, own.n);
}

template <int HD, bool DROPOUT>
static void backward_launch(struct stream *s, const struct backward_arrays *a)
{
    using q_sizes = backward_sizes<HD, false>;
    using kv_sizes = backward_sizes<HD, true>;
    const int q_blocks = attention_shares(&a->rows, q_sizes::OWNED) * a->n_head;
    const int kv_blocks = attention_shares(&a->rows, kv_sizes::OWNED) * a->n_head;
    ATTENTION_SHARED((attention_backward_q_kernel<HD, DROPOUT>), q_sizes::BYTES);
    ATTENTION_SHARED((attention_backward_kv_kernel<HD, DROPOUT>), kv_sizes::BYTES);
    LAUNCH((attention_backward_q_kernel<HD, DROPOUT>), q_blocks, ATTENTION_THREADS, q_sizes::BYTES,
           s, *a);
    LAUNCH((attention_backward_kv_kernel<HD, DROPOUT>), kv_blocks, ATTENTION_THREADS,
           kv_sizes::BYTES, s, *a);
}

void cuda_attention_backward(struct stream *s, void *dqkv, const void *dout, const void *qkv,
                             const void *out, const float *lse, const struct token_rows *rows,
                             int n_head, int head_dim, float scale, struct dropout drop)
{
    if (rows->n_tokens == 0)
        return;
    const bool aligned = attention_aligned(dqkv) && attention_aligned(dout) &&
                         attention_aligned(qkv) && attention_aligned(out);
    if (!aligned || !attention_has_tiles(head_dim)) {
        attention_backward_generic(s, (bf16 *)dqkv, (const bf16 *)dout, (const bf16 *)qkv,
                                   (const bf16 *)out, lse, rows, n_head, head_dim, scale, drop);
        return;
    }
    struct backward_arrays a = {(bf16 *)dqkv,
                                (const bf16 *)dout,
                                (const bf16 *)qkv,
                                (const bf16 *)out,
                                lse,
                                NULL,
                                *rows,
                                n_head,
                                scale,
                                drop};
    a.statistics = (struct query_statistics *)cuda_scratch(s, sizeof(struct query_statistics) *
                                                                  n_head * rows->n_tokens);
    ATTENTION_LAUNCH(backward_launch, head_dim, s, &a);
}
