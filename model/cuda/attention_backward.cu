/* Flash attention, backward (Dao, "FlashAttention-2", ICLR 2024, section 3.2): probabilities are
 * computed again from the scores' log-sum-exp. With P = exp(scale Q K^T - lse), f dropout's factors
 * and delta = rowsum(dO * O):
 *   dV = (f P)^T dO;  dP = dO V^T;  dS = P (f dP - delta);  dQ = scale dS K;  dK = scale dS^T Q
 *
 * Two kernels: one owns queries and walks over keys for dQ, one owns keys and walks over queries
 * for dK and dV. Both compute the scores and dP, so that they take 3 + 4 products where one kernel
 * would take 5; but that one would add to dQ in an order that timing decides, or keep a part of dQ
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
    const bf16 *dO, *qkv, *O;
    const float *lse;
    struct query_statistics *statistics; /* (n_head, n) */
    struct token_rows rows;
    int n_head;
    float scale;
    struct dropout drop;
};

/* Sizes for one head size of the kernel that owns queries, or keys: a warp owns 16 M rows; the rows
 * that a block walks over come in tiles, of which products take 16 N at a time. Tiles are Br
 * queries by Bc keys: OWNED is Br of the first kernel and Bc of the second, WALKED the other. */
template <int d, bool OWNS_KEYS> struct backward_sizes {
    static constexpr int M = d <= 64 ? 2 : 1;
    static constexpr int N = OWNS_KEYS && (d == 64 || d == 128) ? 1 : 2;
    static constexpr int OWNED = ATTENTION_WARPS * 16 * M, WALKED = d <= 64 ? 64 : 32;
    static constexpr int Br = OWNS_KEYS ? WALKED : OWNED, Bc = OWNS_KEYS ? OWNED : WALKED;
    static constexpr bool KEPT = !OWNS_KEYS && d <= 32; /* owned rows stay in registers */
    static constexpr int TILES_BYTES = (int)sizeof(bf16) * d * (2 * OWNED + 4 * WALKED);
    static constexpr int STATISTICS_BYTES =
        OWNS_KEYS ? 2 * WALKED * (int)sizeof(struct query_statistics) : 0;
    static constexpr int BYTES = TILES_BYTES + STATISTICS_BYTES;
};

/* The rows that a warp owns: `row` counted in the block, `first` in the sequence. */
struct own_rows {
    int row, first, n;
};

template <int rows>
__device__ static inline struct own_rows backward_own_rows(const struct attention_block &block)
{
    struct own_rows own = {(int)threadIdx.x / WARP * rows, 0, 0};
    own.first = block.first + own.row;
    own.n = block.seqlen - own.first < rows ? block.seqlen - own.first : rows;
    return own;
}

/* Starts the copy of two tiles of rows that are walked over, one after the other in memory. */
template <int d, int WALKED>
__device__ static inline void backward_load(bf16 *tile, const bf16 *a, size_t a_stride,
                                            const bf16 *b, size_t b_stride, int first, int n)
{
    tile_load_part<d, WALKED>(tile, a, a_stride, first, n, 16);
    tile_load_part<d, WALKED>(tile + WALKED * d, b, b_stride, first, n, 16);
}

/* The warp's rows of a gradient, times factor; tile: its part of one. */
template <int d, int M>
__device__ static inline void backward_store(bf16 *dst, size_t stride, bf16 *tile,
                                             const float (&acc)[M][d / 8][4], float factor, int n)
{
    float factors[M][2];
    UNROLL
    for (int i = 0; i < 2 * M; i++)
        factors[i / 2][i % 2] = factor;
    __syncwarp();
    tile_put<d>(tile, acc, factors);
    __syncwarp();
    tile_store<d, 16 * M>(dst, stride, tile, n);
}

/* What a lane holds of its queries, rows g and g + 8 of each 16, in the kernel that owns them. */
template <int M> struct query_state {
    float lse2[M][2], delta[M][2];
    uint32_t position[M][2], sequence;
};

/* dO * O summed over the columns of one query; the four lanes of a row call it together. */
template <int d>
__device__ static inline float backward_delta(const bf16 *dO, const bf16 *O, bool valid)
{
    float delta = 0;
    UNROLL
    for (int j = 0; j < d / 8; j++) {
        const int at = 8 * j + 2 * (threadIdx.x % 4);
        if (!valid)
            continue;
        const struct bf16x2 a = *(const struct bf16x2 *)(dO + at);
        const struct bf16x2 b = *(const struct bf16x2 *)(O + at);
        delta += to_float(a.v[0]) * to_float(b.v[0]) + to_float(a.v[1]) * to_float(b.v[1]);
    }
    delta += shuffle_xor(FULL_MASK, delta, 1);
    return delta + shuffle_xor(FULL_MASK, delta, 2);
}

/* The state of the warp's queries, which is left in memory for the other kernel as well. Rows past
 * the sequence's end get zeros: theirs are the probabilities of zero scores, times zeros. */
template <int d, int M>
__device__ static inline void backward_begin(struct query_state<M> &state,
                                             const struct backward_arrays &a, int start, int head,
                                             const struct own_rows &own)
{
    const size_t C = (size_t)a.n_head * d;
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
        const size_t at = token * C + head * d;
        q.delta = backward_delta<d>(a.dO + at, a.O + at, valid);
        if (valid && threadIdx.x % 4 == 0)
            a.statistics[(size_t)head * a.rows.n_tokens + token] = q;
        state.lse2[i / 2][i % 2] = q.lse2;
        state.delta[i / 2][i % 2] = q.delta;
        state.position[i / 2][i % 2] = q.position;
    }
}

/* S and dP of 16 M queries by 8 J keys: dP becomes dS. */
template <bool EDGE, bool DROPOUT, int M, int J>
__device__ static inline void
softmax_gradient_by_query(const float (&S)[M][J][4], float (&dP)[M][J][4],
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
            float P = fast_exp2(S[m][j][e] * scale_log2 - state.lse2[m][e / 2]);
            if (EDGE && key > query)
                P = 0;
            if (DROPOUT)
                dP[m][j][e] *= kept >> e & 1 ? kept_factor : 0;
            dP[m][j][e] = P * (dP[m][j][e] - state.delta[m][e / 2]);
        }
    }
}

/* Adds to dQ what 16 N keys give, n_used groups of 16 of them.
 * EDGE: some queries do not see all. */
template <bool EDGE, bool DROPOUT, int d, int M, bool KEPT>
__device__ static inline void
query_step(float (&dQ)[M][d / 8][4], const struct left_operand<d, M, KEPT> &Q,
           const struct left_operand<d, M, KEPT> &dO, const bf16 *K, const bf16 *V,
           const struct query_state<M> &state, int first_query, int first_key, int n_used,
           const struct backward_arrays &a, int head)
{
    constexpr int N = backward_sizes<d, false>::N;
    float S[M][2 * N][4], dP[M][2 * N][4];
    gemm_nt<EDGE, d, M, N>(S, Q, K, n_used);
    gemm_nt<EDGE, d, M, N>(dP, dO, V, n_used);
    softmax_gradient_by_query<EDGE, DROPOUT>(S, dP, state, first_query, first_key, a, head);
    gemm_nn<EDGE, d, M, N>(dQ, dP, K, n_used);
}

template <int d, bool DROPOUT>
__global__ ATTENTION_BOUNDS static void attention_backward_q_kernel(struct backward_arrays a)
{
    using sizes = backward_sizes<d, false>;
    constexpr int M = sizes::M, Br = sizes::Br, Bc = sizes::Bc, STEP = 16 * sizes::N;
    DYNAMIC_SHARED(shared);
    bf16 *const sQ = (bf16 *)shared, *const sdO = sQ + Br * d;
    bf16 *const sKV = sdO + Br * d;
    struct attention_block block;
    if (!attention_my_block<Br>(&block, a.rows, a.n_head))
        return;
    const size_t C = (size_t)a.n_head * d, at = block.start * C + block.head * d;
    const size_t qkv_at = at + block.start * 2 * C;
    const bf16 *const Q = a.qkv + qkv_at, *const dO = a.dO + at;
    const struct own_rows own = backward_own_rows<16 * M>(block);
    const int block_end = block.first + Br; /* keys that the block sees, and the warp */
    const int n_keys = block_end < block.seqlen ? block_end : block.seqlen;
    const int my_keys = own.n > 0 ? own.first + own.n : 0;

    tile_load_part<d, Br>(sQ, Q, 3 * C, block.first, block.seqlen, 16 * M);
    tile_load_part<d, Br>(sdO, dO, C, block.first, block.seqlen, 16 * M);
    backward_load<d, Bc>(sKV, Q + C, 3 * C, Q + 2 * C, 3 * C, 0, n_keys);
    copy_async_commit();
    struct query_state<M> state;
    backward_begin<d>(state, a, block.start, block.head, own);
    float dQ[M][d / 8][4];
    clear(dQ);
    struct left_operand<d, M, sizes::KEPT> Q_own, dO_own;
    copy_async_wait<0>();
    __syncthreads();
    left_operand_load(Q_own, sQ + own.row * d);
    left_operand_load(dO_own, sdO + own.row * d);
    for (int first = 0; first < n_keys; first += Bc) {
        const bf16 *const sK = sKV + first / Bc % 2 * (2 * Bc * d);
        if (first + Bc < n_keys)
            backward_load<d, Bc>(sKV + (first / Bc + 1) % 2 * (2 * Bc * d), Q + C, 3 * C, Q + 2 * C,
                                 3 * C, first + Bc, n_keys);
        copy_async_commit();
        for (int i = 0; i < Bc && first + i < my_keys; i += STEP) {
            const bf16 *const K_step = sK + i * d, *const V_step = K_step + Bc * d;
            if (first + i + STEP <= own.first)
                query_step<false, DROPOUT, d>(dQ, Q_own, dO_own, K_step, V_step, state, own.first,
                                              first + i, 0, a, block.head);
            else
                query_step<true, DROPOUT, d>(dQ, Q_own, dO_own, K_step, V_step, state, own.first,
                                             first + i, (my_keys - first - i + 15) / 16, a,
                                             block.head);
        }
        copy_async_wait<0>();
        __syncthreads();
    }
    if (own.n > 0)
        backward_store<d>(a.dqkv + qkv_at + own.first * 3 * C, 3 * C, sQ + own.row * d, dQ, a.scale,
                          own.n);
}

/* S and dP transposed, of 16 M keys by 8 J queries: S becomes f P, dP
 * becomes dS. queries: their statistics, in shared memory. */
template <bool EDGE, bool DROPOUT, int M, int J>
__device__ static inline void
softmax_gradient_by_key(float (&S)[M][J][4], float (&dP)[M][J][4],
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
            float P = fast_exp2(S[m][j][e] * scale_log2 - q[e % 2].lse2), factor = 1;
            if (EDGE && key > query)
                P = 0;
            if (DROPOUT)
                factor = kept >> e & 1 ? kept_factor : 0;
            S[m][j][e] = P * factor;
            dP[m][j][e] = P * (dP[m][j][e] * factor - q[e % 2].delta);
        }
    }
}

/* Adds to dK and dV what 16 N queries give, n_used groups of 16 of them. EDGE: not all of them see
 * all of the keys. */
template <bool EDGE, bool DROPOUT, int d, int M, bool KEPT>
__device__ static inline void
key_step(float (&dK)[M][d / 8][4], float (&dV)[M][d / 8][4],
         const struct left_operand<d, M, KEPT> &K, const struct left_operand<d, M, KEPT> &V,
         const bf16 *Q, const bf16 *dO, const struct query_statistics *queries, uint32_t sequence,
         int first_key, int first_query, int n_used, const struct backward_arrays &a, int head)
{
    constexpr int N = backward_sizes<d, true>::N;
    float S[M][2 * N][4], dP[M][2 * N][4];
    gemm_nt<EDGE, d, M, N>(S, K, Q, n_used);
    gemm_nt<EDGE, d, M, N>(dP, V, dO, n_used);
    softmax_gradient_by_key<EDGE, DROPOUT>(S, dP, queries, sequence, first_key, first_query, a,
                                           head);
    gemm_nn<EDGE, d, M, N>(dV, S, dO, n_used);
    gemm_nn<EDGE, d, M, N>(dK, dP, Q, n_used);
}

/* Starts the copy of the queries from `first` on, with their dO and statistics. Q, dO,
 * statistics: the sequence's. */
template <int d>
__device__ static inline void key_load(char *shared, const bf16 *Q, const bf16 *dO,
                                       const struct query_statistics *statistics, size_t C,
                                       int first, int n)
{
    using sizes = backward_sizes<d, true>;
    const int stage = first / sizes::Br % 2, i = (int)threadIdx.x;
    bf16 *const tile = (bf16 *)shared + (2 * sizes::Bc + stage * 2 * sizes::Br) * d;
    backward_load<d, sizes::Br>(tile, Q, 3 * C, dO, C, first, n);
    static_assert(sizes::Br <= ATTENTION_THREADS, "a thread copies one query's");
    if (i < sizes::Br)
        copy_async_16((struct query_statistics *)(shared + sizes::TILES_BYTES) + stage * sizes::Br +
                          i,
                      statistics + (first + i < n ? first + i : 0), first + i < n);
    copy_async_commit();
}

template <int d, bool DROPOUT>
__global__ ATTENTION_BOUNDS static void attention_backward_kv_kernel(struct backward_arrays a)
{
    using sizes = backward_sizes<d, true>;
    constexpr int M = sizes::M, Bc = sizes::Bc, Br = sizes::Br, STEP = 16 * sizes::N;
    DYNAMIC_SHARED(shared);
    bf16 *const sK = (bf16 *)shared, *const sV = sK + Bc * d;
    const bf16 *const tiles = sV + Bc * d;
    struct attention_block block;
    if (!attention_my_block<Bc>(&block, a.rows, a.n_head))
        return;
    const size_t C = (size_t)a.n_head * d, at = block.start * C + block.head * d;
    const size_t qkv_at = at + block.start * 2 * C;
    const bf16 *const Q = a.qkv + qkv_at, *const dO = a.dO + at;
    const struct query_statistics *const statistics =
        a.statistics + (size_t)block.head * a.rows.n_tokens + block.start;
    const struct own_rows own = backward_own_rows<16 * M>(block);
    const uint32_t sequence = a.rows.token_seq[block.start];

    tile_load_part<d, Bc>(sK, Q + C, 3 * C, block.first, block.seqlen, 16 * M);
    tile_load_part<d, Bc>(sV, Q + 2 * C, 3 * C, block.first, block.seqlen, 16 * M);
    key_load<d>(shared, Q, dO, statistics, C, block.first, block.seqlen);
    float dK[M][d / 8][4], dV[M][d / 8][4];
    clear(dK);
    clear(dV);
    struct left_operand<d, M, sizes::KEPT> K_own, V_own;
    copy_async_wait<0>();
    __syncthreads();
    left_operand_load(K_own, sK + own.row * d);
    left_operand_load(V_own, sV + own.row * d);
    for (int first = block.first; first < block.seqlen; first += Br) {
        const int stage = first / Br % 2;
        const bf16 *const sQ = tiles + stage * 2 * Br * d;
        const struct query_statistics *const queries =
            (const struct query_statistics *)(shared + sizes::TILES_BYTES) + stage * Br;
        if (first + Br < block.seqlen)
            key_load<d>(shared, Q, dO, statistics, C, first + Br, block.seqlen);
        if (own.n > 0)
            for (int i = 0; i < Br && first + i < block.seqlen; i += STEP) {
                const bf16 *const Q_step = sQ + i * d, *const dO_step = Q_step + Br * d;
                const int query = first + i, left = block.seqlen - query;
                if (query + STEP <= own.first)
                    continue;
                if (query >= own.first + 16 * M - 1 && left > STEP - 16)
                    key_step<false, DROPOUT, d>(dK, dV, K_own, V_own, Q_step, dO_step, queries + i,
                                                sequence, own.first, query, 0, a, block.head);
                else
                    key_step<true, DROPOUT, d>(dK, dV, K_own, V_own, Q_step, dO_step, queries + i,
                                               sequence, own.first, query, (left + 15) / 16, a,
                                               block.head);
            }
        copy_async_wait<0>();
        __syncthreads();
    }
    if (own.n <= 0)
        return;
    bf16 *const dK_to = a.dqkv + qkv_at + own.first * 3 * C + C;
    backward_store<d>(dK_to, 3 * C, sK + own.row * d, dK, a.scale, own.n);
    backward_store<d>(dK_to + C, 3 * C, sV + own.row * d, dV, 1, own.n);
}

template <int d, bool DROPOUT>
static void backward_launch(struct stream *s, const struct backward_arrays *a)
{
    using q_sizes = backward_sizes<d, false>;
    using kv_sizes = backward_sizes<d, true>;
    const int q_blocks = attention_blocks(&a->rows, q_sizes::Br) * a->n_head;
    const int kv_blocks = attention_blocks(&a->rows, kv_sizes::Bc) * a->n_head;
    ATTENTION_SHARED((attention_backward_q_kernel<d, DROPOUT>), q_sizes::BYTES);
    ATTENTION_SHARED((attention_backward_kv_kernel<d, DROPOUT>), kv_sizes::BYTES);
    LAUNCH((attention_backward_q_kernel<d, DROPOUT>), q_blocks, ATTENTION_THREADS, q_sizes::BYTES,
           s, *a);
    LAUNCH((attention_backward_kv_kernel<d, DROPOUT>), kv_blocks, ATTENTION_THREADS,
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
