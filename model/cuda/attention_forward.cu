/* Flash attention, forward (Dao, "FlashAttention-2", ICLR 2024): a block owns some queries of one
 * head of one sequence and walks over the keys that they see, with a running maximum and sum for
 * each query, so that no score leaves the multiprocessor.
 *
 * Keys and values come in double-buffered tiles. A warp owns 32 queries, so that each fragment of
 * keys or values that it reads from shared memory serves two products. It leaves out what its
 * queries do not see, in groups of 16 keys; only tiles on the diagonal or at a sequence's end look
 * for masked scores at all.
 *
 * Limit: tensor cores, 4 head_dim FLOPs for each pair of query and key that it sees: 2 T^2 head_dim
 * for each head of a sequence of T tokens. Bytes: q, k, v and out once, 8 n C where all
 * heads have keys of their own, and keys and values again, from the second-level cache, for each
 * 128 queries after them and each head of a group. */
#include "model/cuda/attention.cuh"

#include <assert.h>
#include <math.h>

struct forward_arrays {
    bf16 *out;
    float *lse;
    const bf16 *qkv;
    struct token_rows rows;
    struct attention_sizes sizes;
};

/* Sizes for one head size. */
template <int d> struct forward_sizes {
    static constexpr int M = 2;               /* a warp has 16 M queries */
    static constexpr int N = d <= 64 ? 4 : 2; /* a tile has 16 N keys */
    static constexpr bool KEPT = d <= 32;     /* queries stay in registers */
    static constexpr int Br = ATTENTION_WARPS * 16 * M, Bc = 16 * N;
    static constexpr int BYTES = (int)sizeof(bf16) * d * (Br + 4 * Bc);
};

/* What a warp holds of its queries: lane l of rows g and g + 8 of each 16, g = l / 4. */
template <int d> struct forward_state {
    static constexpr int M = forward_sizes<d>::M;
    float O[M][d / 8][4]; /* sum of exp(S - m_i) V */
    float m_i[M][2];      /* greatest S, unscaled */
    float l_i[M][2];      /* sum of exp(S - m_i), this lane's part */
    uint32_t position[M]; /* of those that the lane draws for */
};

/* S to P = exp(S - m_i), m_i being brought up to date; O and l_i are rescaled by alpha. */
template <int d, int M, int J>
__device__ static inline void forward_softmax(struct forward_state<d> &state, float (&S)[M][J][4],
                                              float scale_log2)
{
    UNROLL
    for (int i = 0; i < 2 * M; i++) {
        const int m = i / 2, half = i % 2;
        float m_new = state.m_i[m][half];
        UNROLL
        for (int j = 0; j < J; j++)
            m_new = fmaxf(m_new, fmaxf(S[m][j][2 * half], S[m][j][2 * half + 1]));
        m_new = fmaxf(m_new, shuffle_xor(FULL_MASK, m_new, 1));
        m_new = fmaxf(m_new, shuffle_xor(FULL_MASK, m_new, 2));
        const float offset = m_new * scale_log2;
        /* Where nothing is seen yet the fused difference is LEAST's rounding, which is vast. */
        const float alpha = fast_exp2(fminf(state.m_i[m][half] * scale_log2 - offset, 0));
        float l_new = state.l_i[m][half] * alpha;
        UNROLL
        for (int e = 0; e < 2 * J; e++) {
            float &P = S[m][e / 2][2 * half + e % 2];
            P = fast_exp2(P * scale_log2 - offset);
            l_new += P;
        }
        state.m_i[m][half] = m_new;
        state.l_i[m][half] = l_new;
        UNROLL
        for (int j = 0; j < d / 8; j++) {
            state.O[m][j][2 * half] *= alpha;
            state.O[m][j][2 * half + 1] *= alpha;
        }
    }
}

/* Scores of keys that their query does not see to minus infinity. first_query, first_key: of S. */
template <int M, int J>
__device__ static inline void forward_mask(float (&S)[M][J][4], int first_query, int first_key,
                                           int window)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    UNROLL
    for (int i = 0; i < M * J * 4; i++) {
        const int m = i / (J * 4), j = i / 4 % J, e = i % 4;
        const int query = first_query + 16 * m + g + e / 2 * 8, key = first_key + 8 * j + 2 * t;
        if (attention_hides(query, key + e % 2, window))
            S[m][j][e] = -INFINITY;
    }
}

/* Probabilities that are dropped to zero; the others are scaled up at the end. */
template <bool EDGE, int d, int M, int J>
__device__ static inline void
forward_drop(float (&P)[M][J][4], const struct forward_state<d> &state,
             const struct forward_arrays &a, const struct attention_block &block, int first_key,
             int n_used)
{
    const uint32_t sequence = a.rows.token_seq[block.start]; /* read again: registers are few */
    UNROLL
    for (int i = 0; i < M * J; i++) {
        const int m = i / J, j = i % J;
        if (EDGE && j >= 2 * n_used)
            continue;
        const uint32_t kept =
            kept_by_query(a.sizes.drop, block.head, sequence, state.position[m], first_key + 8 * j);
        UNROLL
        for (int e = 0; e < 4; e++)
            if (!(kept >> e & 1))
                P[m][j][e] = 0;
    }
}

/* One tile of keys, followed by its values. first_query: the warp's. EDGE: not all of the tile's
 * keys are seen by all of the warp's queries; the first n_used groups of 16 are by some. */
template <bool EDGE, int d, bool DROPOUT, typename OPERAND>
__device__ static inline void forward_step(struct forward_state<d> &state, const OPERAND &Q,
                                           const bf16 *tile, int first_query, int first_key,
                                           int n_used, const struct forward_arrays &a,
                                           const struct attention_block &block)
{
    using sizes = forward_sizes<d>;
    float S[sizes::M][2 * sizes::N][4];
    gemm_nt<EDGE, d, sizes::M, sizes::N>(S, Q, tile, n_used);
    if (EDGE)
        forward_mask(S, first_query, first_key, a.sizes.window);
    forward_softmax(state, S, a.sizes.scale * LOG2_E);
    if (DROPOUT)
        forward_drop<EDGE>(S, state, a, block, first_key, n_used);
    gemm_nn<EDGE, d, sizes::M, sizes::N>(state.O, S, tile + sizes::Bc * d, n_used);
}

/* Below every score, and finite: of a tile that a query does not see any key of nothing remains. */
#define LEAST -1e30f

/* The state before the first key. n: how many of the warp's queries there are; token: the first. */
template <int d>
__device__ static inline void forward_begin(struct forward_state<d> &state,
                                            const struct token_rows &rows, int token, int n,
                                            bool dropout)
{
    constexpr int M = forward_sizes<d>::M;
    clear(state.O);
    UNROLL
    for (int i = 0; i < 2 * M; i++) {
        state.m_i[i / 2][i % 2] = LEAST;
        state.l_i[i / 2][i % 2] = 0;
    }
    UNROLL
    for (int m = 0; m < M; m++) {
        const int row = query_drawn_for(m);
        state.position[m] = dropout && row < n ? (uint32_t)rows.position[token + row] : 0;
    }
}

/* out and lse of the warp's first n queries. tile: the warp's part of the queries' tile. */
template <int d>
__device__ static inline void forward_end(struct forward_state<d> &state,
                                          const struct forward_arrays &a, bf16 *tile, int token,
                                          int n, int head)
{
    constexpr int M = forward_sizes<d>::M;
    const float kept = a.sizes.drop.p > 0 ? 1 / (1 - a.sizes.drop.p) : 1;
    float factor[M][2];
    UNROLL
    for (int i = 0; i < 2 * M; i++) {
        const int row = i * 8 + threadIdx.x % WARP / 4;
        float l_i = state.l_i[i / 2][i % 2];
        l_i += shuffle_xor(FULL_MASK, l_i, 1);
        l_i += shuffle_xor(FULL_MASK, l_i, 2);
        factor[i / 2][i % 2] = kept / l_i;
        if (threadIdx.x % 4 == 0 && row < n)
            a.lse[(size_t)(token + row) * a.sizes.n_head + head] =
                state.m_i[i / 2][i % 2] * a.sizes.scale + logf(l_i);
    }
    __syncwarp();
    tile_put<d>(tile, state.O, factor);
    __syncwarp();
    const size_t C = (size_t)a.sizes.n_head * d;
    tile_store<d, 16 * M>(a.out + token * C + head * d, C, tile, n);
}

/* Starts the copy of the tile of keys and values from key `first` on; n: how many are seen. */
template <int d>
__device__ static inline void forward_load(bf16 *sKV, const bf16 *K, const struct forward_arrays &a,
                                           int first, int n)
{
    constexpr int Bc = forward_sizes<d>::Bc;
    const int stride = a.sizes.stride;
    bf16 *const sK = sKV + first / Bc % 2 * (2 * Bc * d);
    tile_load_part<d, Bc>(sK, K, stride, first, n, 16);
    tile_load_part<d, Bc>(sK + Bc * d, K + a.sizes.n_kv_head * d, stride, first, n, 16);
    copy_async_commit();
}

template <int d, bool DROPOUT>
__global__ ATTENTION_BOUNDS static void attention_forward_kernel(struct forward_arrays a)
{
    using sizes = forward_sizes<d>;
    constexpr int Br = sizes::Br, Bc = sizes::Bc, WARP_ROWS = 16 * sizes::M;
    DYNAMIC_SHARED(shared);
    bf16 *const sQ = (bf16 *)shared, *const sKV = sQ + Br * d;
    struct attention_block block;
    if (!attention_my_block<Br>(&block, a.rows, a.sizes.n_head))
        return;
    const int stride = a.sizes.stride;
    const bf16 *const rows = a.qkv + (size_t)block.start * stride;
    const bf16 *const K = rows + (a.sizes.n_head + block.head / a.sizes.group) * d;
    /* How many keys the block sees; the warp's queries, and how many keys they see. */
    const int block_end = block.first + Br;
    const int n_keys = block_end < block.seqlen ? block_end : block.seqlen;
    const int row = (int)threadIdx.x / WARP * WARP_ROWS, query = block.first + row;
    const int n_mine = n_keys - query < WARP_ROWS ? n_keys - query : WARP_ROWS;
    const int my_keys = n_mine > 0 ? query + n_mine : 0;
    const int first_tile = attention_first_tile<Bc>(block.first, a.sizes.window);

    tile_load_part<d, Br>(sQ, rows + block.head * d, stride, block.first, block.seqlen, WARP_ROWS);
    forward_load<d>(sKV, K, a, first_tile, n_keys);
    struct forward_state<d> state;
    forward_begin(state, a.rows, block.start + query, n_mine, DROPOUT);
    struct left_operand<d, sizes::M, sizes::KEPT> Q_rows;
    copy_async_wait<0>();
    __syncthreads();
    left_operand_load(Q_rows, sQ + row * d);
    for (int first = first_tile; first < n_keys; first += Bc) {
        if (first + Bc < n_keys)
            forward_load<d>(sKV, K, a, first + Bc, n_keys);
        const bf16 *const sK = sKV + first / Bc % 2 * (2 * Bc * d);
        if (first + Bc <= query && query + WARP_ROWS - first <= a.sizes.window && my_keys > 0)
            forward_step<false, d, DROPOUT>(state, Q_rows, sK, query, first, 0, a, block);
        else if (first < my_keys)
            forward_step<true, d, DROPOUT>(state, Q_rows, sK, query, first,
                                           (my_keys - first + 15) / 16, a, block);
        copy_async_wait<0>();
        __syncthreads();
    }
    if (my_keys > 0)
        forward_end(state, a, sQ + row * d, block.start + query, my_keys - query, block.head);
}

template <int d, bool DROPOUT>
static void forward_launch(struct stream *s, const struct forward_arrays *a)
{
    using sizes = forward_sizes<d>;
    const int blocks = attention_blocks(&a->rows, sizes::Br) * a->sizes.n_head;
    ATTENTION_SHARED((attention_forward_kernel<d, DROPOUT>), sizes::BYTES);
    LAUNCH((attention_forward_kernel<d, DROPOUT>), blocks, ATTENTION_THREADS, sizes::BYTES, s, *a);
}

void cuda_attention_forward(struct stream *s, void *out, float *lse, const void *qkv,
                            const struct token_rows *rows, const struct attention *attention)
{
    assert(attention->scale > 0);
    if (rows->n_tokens == 0)
        return;
    const struct forward_arrays a = {(bf16 *)out, lse, (const bf16 *)qkv, *rows,
                                     attention_sizes_of(attention)};
    if (!attention_aligned(out) || !attention_aligned(qkv) ||
        !attention_has_tiles(a.sizes.head_dim)) {
        attention_forward_generic(s, a.out, lse, a.qkv, rows, attention);
        return;
    }
    ATTENTION_LAUNCH(forward_launch, a.sizes.head_dim, s, &a);
}
