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
 * first kernel and 8 in the second; 7 T^2 head_dim for each head of a sequence of T tokens. Bytes,
 * where all heads have keys of their own: first kernel 12 n C + 20 n n_head, second 12 n C + 16 n
 * n_head, and what is walked over again, from the second-level cache, for each block's rows.
 *
 * Where heads of q share keys, the second kernel's block walks over the queries of one head of the
 * group after the other, so that dK and dV are sums in a fixed order, in registers. There are fewer
 * blocks then, each with more to do: T / 128, or T / 64 where d > 64, for each head of keys. */
#include "model/cuda/attention.cuh"

#include <assert.h>
#include <math.h>

/* What the first kernel leaves of each query for the second. */
struct alignas(16) query_statistics {
    float lse2, delta; /* lse in base 2 */
    uint32_t position, sequence;
};

struct backward_arrays {
    bf16 *dqkv;
    const bf16 *dO, *qkv, *O;
    const float *lse;
    struct query_statistics *statistics; /* (n_head, n) */
    struct token_rows rows;
    struct attention_sizes sizes;
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
__device__ static inline void backward_load(bf16 *tile, const bf16 *a, int a_stride, const bf16 *b,
                                            int b_stride, int first, int n)
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
    uint32_t position[M], sequence; /* of those that the lane draws for */
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
    const size_t C = (size_t)a.sizes.n_head * d;
    state.sequence = a.rows.token_seq[start];
    UNROLL
    for (int i = 0; i < 2 * M; i++) {
        const int row = i * 8 + threadIdx.x % WARP / 4;
        const bool valid = row < own.n;
        const size_t token = valid ? (size_t)start + own.first + row : (size_t)start;
        struct query_statistics q = {0, 0, 0, 0};
        if (valid) {
            q.lse2 = a.lse[token * a.sizes.n_head + head] * LOG2_E;
            q.position = (uint32_t)a.rows.position[token];
            q.sequence = state.sequence;
        }
        const size_t at = token * C + head * d;
        q.delta = backward_delta<d>(a.dO + at, a.O + at, valid);
        if (valid && threadIdx.x % 4 == 0)
            a.statistics[(size_t)head * a.rows.n_tokens + token] = q;
        state.lse2[i / 2][i % 2] = q.lse2;
        state.delta[i / 2][i % 2] = q.delta;
        if (i % 2 == 0 || threadIdx.x % 2) /* odd lanes draw for g + 8 */
            state.position[i / 2] = q.position;
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
    const float kept_factor = 1 / (1 - a.sizes.drop.p), scale_log2 = a.sizes.scale * LOG2_E;
    UNROLL
    for (int i = 0; i < M * J; i++) {
        const int m = i / J, j = i % J;
        uint32_t kept = 0;
        if (DROPOUT)
            kept = kept_by_query(a.sizes.drop, head, state.sequence, state.position[m],
                                 first_key + 8 * j);
        UNROLL
        for (int e = 0; e < 4; e++) {
            const int query = first_query + 16 * m + g + e / 2 * 8;
            const int key = first_key + 8 * j + 2 * t + e % 2;
            float P = fast_exp2(S[m][j][e] * scale_log2 - state.lse2[m][e / 2]);
            if (EDGE && attention_hides(query, key, a.sizes.window))
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
    if (!attention_my_block<Br>(&block, a.rows, a.sizes.n_head))
        return;
    const int C = a.sizes.n_head * d, stride = a.sizes.stride;
    const size_t qkv_at = (size_t)block.start * stride;
    const bf16 *const K = a.qkv + qkv_at + (a.sizes.n_head + block.head / a.sizes.group) * d;
    const bf16 *const V = K + a.sizes.n_kv_head * d;
    const struct own_rows own = backward_own_rows<16 * M>(block);
    const int block_end = block.first + Br; /* keys that the block sees, and the warp */
    const int n_keys = block_end < block.seqlen ? block_end : block.seqlen;
    const int my_keys = own.n > 0 ? own.first + own.n : 0;
    const int first_tile = attention_first_tile<Bc>(block.first, a.sizes.window);

    tile_load_part<d, Br>(sQ, a.qkv + qkv_at + block.head * d, stride, block.first, block.seqlen,
                          16 * M);
    tile_load_part<d, Br>(sdO, a.dO + (size_t)block.start * C + block.head * d, C, block.first,
                          block.seqlen, 16 * M);
    backward_load<d, Bc>(sKV + first_tile / Bc % 2 * (2 * Bc * d), K, stride, V, stride, first_tile,
                         n_keys);
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
    for (int first = first_tile; first < n_keys; first += Bc) {
        const bf16 *const sK = sKV + first / Bc % 2 * (2 * Bc * d);
        if (first + Bc < n_keys)
            backward_load<d, Bc>(sKV + (first / Bc + 1) % 2 * (2 * Bc * d), K, stride, V, stride,
                                 first + Bc, n_keys);
        copy_async_commit();
        for (int i = 0; i < Bc && first + i < my_keys; i += STEP) {
            const bf16 *const K_step = sK + i * d, *const V_step = K_step + Bc * d;
            const int key = first + i;
            if (key + STEP <= own.first && own.first + 16 * M - key <= a.sizes.window)
                query_step<false, DROPOUT, d>(dQ, Q_own, dO_own, K_step, V_step, state, own.first,
                                              key, 0, a, block.head);
            else
                query_step<true, DROPOUT, d>(dQ, Q_own, dO_own, K_step, V_step, state, own.first,
                                             key, (my_keys - key + 15) / 16, a, block.head);
        }
        copy_async_wait<0>();
        __syncthreads();
    }
    if (own.n > 0)
        backward_store<d>(a.dqkv + qkv_at + (size_t)own.first * stride + block.head * d, stride,
                          sQ + own.row * d, dQ, a.sizes.scale, own.n);
}

/* S and dP transposed, of 16 M keys by 8 J queries: S becomes f P, dP
 * becomes dS. queries: their statistics, in shared memory. */
template <bool EDGE, bool DROPOUT, int M, int J>
__device__ static inline void softmax_gradient_by_key(float (&S)[M][J][4], float (&dP)[M][J][4],
                                                      const struct query_statistics *queries,
                                                      int first_key, int first_query,
                                                      const struct backward_arrays &a, int head)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const float kept_factor = 1 / (1 - a.sizes.drop.p), scale_log2 = a.sizes.scale * LOG2_E;
    UNROLL
    for (int i = 0; i < J * M; i++) {
        const int m = i % M, j = i / M;
        const struct query_statistics *const q = queries + 8 * j + 2 * t;
        uint32_t kept = 0;
        if (DROPOUT)
            kept =
                kept_by_key(a.sizes.drop, head, q->sequence, q[g % 2].position, first_key + 16 * m);
        UNROLL
        for (int e = 0; e < 4; e++) {
            const int key = first_key + 16 * m + g + e / 2 * 8;
            const int query = first_query + 8 * j + 2 * t + e % 2;
            float P = fast_exp2(S[m][j][e] * scale_log2 - q[e % 2].lse2), factor = 1;
            if (EDGE && attention_hides(query, key, a.sizes.window))
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
         const bf16 *Q, const bf16 *dO, const struct query_statistics *queries, int first_key,
         int first_query, int n_used, const struct backward_arrays &a, int head)
{
    constexpr int N = backward_sizes<d, true>::N;
    float S[M][2 * N][4], dP[M][2 * N][4];
    gemm_nt<EDGE, d, M, N>(S, K, Q, n_used);
    gemm_nt<EDGE, d, M, N>(dP, V, dO, n_used);
    softmax_gradient_by_key<EDGE, DROPOUT>(S, dP, queries, first_key, first_query, a, head);
    gemm_nn<EDGE, d, M, N>(dV, S, dO, n_used);
    gemm_nn<EDGE, d, M, N>(dK, dP, Q, n_used);
}

/* Where a token's k is, of one of its heads. */
template <int d>
__device__ static inline size_t key_at(const struct backward_arrays &a, int token, int kv_head)
{
    return (size_t)token * a.sizes.stride + (a.sizes.n_head + kv_head) * d;
}

/* The way of a block of keys: from which query to which, in all heads before end_head. */
struct key_walk {
    int start; /* the sequence's first token */
    int first, end, end_head;
};

/* Starts the copy of the queries from `first` on, with their dO and statistics, to one of two
 * stages. start: the sequence's first token; n: queries that there are. */
template <int d>
__device__ static inline void key_load(char *shared, const struct backward_arrays &a, int start,
                                       int head, int first, int n, int stage)
{
    using sizes = backward_sizes<d, true>;
    const int i = (int)threadIdx.x, C = a.sizes.n_head * d, stride = a.sizes.stride;
    bf16 *const tile = (bf16 *)shared + (2 * sizes::Bc + stage * 2 * sizes::Br) * d;
    backward_load<d, sizes::Br>(tile, a.qkv + (size_t)start * stride + head * d, stride,
                                a.dO + (size_t)start * C + head * d, C, first, n);
    static_assert(sizes::Br <= ATTENTION_THREADS, "a thread copies one query's");
    if (i < sizes::Br)
        copy_async_16(
            (struct query_statistics *)(shared + sizes::TILES_BYTES) + stage * sizes::Br + i,
            a.statistics + (size_t)head * a.rows.n_tokens + start + (first + i < n ? first + i : 0),
            first + i < n);
    copy_async_commit();
}

/* Walks over the queries of one head of the group after the other. What it knows of its block lies
 * in shared memory, and is read again for each tile: registers are few. */
template <int d, bool DROPOUT>
__global__ ATTENTION_BOUNDS static void attention_backward_kv_kernel(struct backward_arrays a)
{
    using sizes = backward_sizes<d, true>;
    constexpr int M = sizes::M, Br = sizes::Br, Bc = sizes::Bc, STEP = 16 * sizes::N;
    DYNAMIC_SHARED(shared);
    SHARED(struct key_walk, walk, [1]);
    bf16 *const sK = (bf16 *)shared, *const sV = sK + Bc * d, *const tiles = sV + Bc * d;
    struct attention_block block; /* its head is one of k and v */
    if (!attention_my_block<Bc>(&block, a.rows, a.sizes.n_kv_head))
        return;
    const int stride = a.sizes.stride, first_head = block.head * a.sizes.group;
    const bf16 *const K = a.qkv + key_at<d>(a, block.start, block.head);
    const struct own_rows own = backward_own_rows<16 * M>(block);
    const int block_end = block.first + Bc - 1 + a.sizes.window;
    const int end = block_end < block.seqlen ? block_end : block.seqlen;
    if (threadIdx.x == 0)
        walk[0] = {block.start, block.first, end, first_head + a.sizes.group};

    tile_load_part<d, Bc>(sK, K, stride, block.first, block.seqlen, 16 * M);
    tile_load_part<d, Bc>(sV, K + a.sizes.n_kv_head * d, stride, block.first, block.seqlen, 16 * M);
    key_load<d>(shared, a, block.start, first_head, block.first, end, 0);
    float dK[M][d / 8][4], dV[M][d / 8][4];
    clear(dK);
    clear(dV);
    struct left_operand<d, M, sizes::KEPT> K_own, V_own;
    copy_async_wait<0>();
    __syncthreads();
    left_operand_load(K_own, sK + own.row * d);
    left_operand_load(V_own, sV + own.row * d);
    for (int head = first_head, first = block.first, stage = 0; head < walk[0].end_head;
         stage ^= 1) {
        const bf16 *const sQ = tiles + stage * 2 * Br * d;
        const struct query_statistics *const queries =
            (const struct query_statistics *)(shared + sizes::TILES_BYTES) + stage * Br;
        int next = first + Br, next_head = head;
        if (next >= walk[0].end) {
            next = walk[0].first;
            next_head++;
        }
        if (next_head < walk[0].end_head)
            key_load<d>(shared, a, walk[0].start, next_head, next, walk[0].end, stage ^ 1);
        if (own.n > 0)
            for (int i = 0; i < Br && first + i < walk[0].end; i += STEP) {
                const bf16 *const Q_step = sQ + i * d, *const dO_step = Q_step + Br * d;
                const int query = first + i, left = walk[0].end - query;
                if (query + STEP <= own.first)
                    continue;
                if (query >= own.first + 16 * M - 1 && left > STEP - 16 &&
                    query + STEP - own.first <= a.sizes.window)
                    key_step<false, DROPOUT, d>(dK, dV, K_own, V_own, Q_step, dO_step, queries + i,
                                                own.first, query, 0, a, head);
                else
                    key_step<true, DROPOUT, d>(dK, dV, K_own, V_own, Q_step, dO_step, queries + i,
                                               own.first, query, (left + 15) / 16, a, head);
            }
        first = next;
        head = next_head;
        copy_async_wait<0>();
        __syncthreads();
    }
    if (own.n <= 0)
        return;
    const int kv_head = walk[0].end_head / a.sizes.group - 1;
    bf16 *const dK_to = a.dqkv + key_at<d>(a, walk[0].start + own.first, kv_head);
    backward_store<d>(dK_to, stride, sK + own.row * d, dK, a.sizes.scale, own.n);
    backward_store<d>(dK_to + a.sizes.n_kv_head * d, stride, sV + own.row * d, dV, 1, own.n);
}

template <int d, bool DROPOUT>
static void backward_launch(struct stream *s, const struct backward_arrays *a)
{
    using q_sizes = backward_sizes<d, false>;
    using kv_sizes = backward_sizes<d, true>;
    const int q_blocks = attention_blocks(&a->rows, q_sizes::Br) * a->sizes.n_head;
    const int kv_blocks = attention_blocks(&a->rows, kv_sizes::Bc) * a->sizes.n_kv_head;
    ATTENTION_SHARED((attention_backward_q_kernel<d, DROPOUT>), q_sizes::BYTES);
    ATTENTION_SHARED((attention_backward_kv_kernel<d, DROPOUT>), kv_sizes::BYTES);
    LAUNCH((attention_backward_q_kernel<d, DROPOUT>), q_blocks, ATTENTION_THREADS, q_sizes::BYTES,
           s, *a);
    LAUNCH((attention_backward_kv_kernel<d, DROPOUT>), kv_blocks, ATTENTION_THREADS,
           kv_sizes::BYTES, s, *a);
}

void cuda_attention_backward(struct stream *s, void *dqkv, const void *dout, const void *qkv,
                             const void *out, const float *lse, const struct token_rows *rows,
                             const struct attention *attention)
{
    if (rows->n_tokens == 0)
        return;
    const bool aligned = attention_aligned(dqkv) && attention_aligned(dout) &&
                         attention_aligned(qkv) && attention_aligned(out);
    if (!aligned || !attention_has_tiles(attention->heads.head_dim)) {
        attention_backward_generic(s, (bf16 *)dqkv, (const bf16 *)dout, (const bf16 *)qkv,
                                   (const bf16 *)out, lse, rows, attention);
        return;
    }
    struct backward_arrays a = {
        (bf16 *)dqkv, (const bf16 *)dout,           (const bf16 *)qkv, (const bf16 *)out, lse, NULL,
        *rows,        attention_sizes_of(attention)};
    a.statistics = (struct query_statistics *)cuda_scratch(s, sizeof(struct query_statistics) *
                                                                  a.sizes.n_head * rows->n_tokens);
    ATTENTION_LAUNCH(backward_launch, a.sizes.head_dim, s, &a);
}
