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
 * for each head of a sequence of T tokens. Bytes: q, k, v and out once, 8 n C, and keys and values
 * again, from the second-level cache, for each 128 queries after them. */
#include "model/cuda/attention.cuh"

#include <assert.h>
#include <math.h>

struct forward_arrays {
    bf16 *out;
    float *lse;
    const bf16 *qkv;
    struct token_rows rows;
    int n_head;
    float scale;
    struct dropout drop;
};

/* Sizes for one head size. */
template <int HD> struct forward_sizes {
    static constexpr int M = 2;                /* a warp has 16 M queries */
    static constexpr int N = HD <= 64 ? 4 : 2; /* a tile has 16 N keys */
    static constexpr bool KEPT = HD <= 32;     /* queries stay in registers */
    static constexpr int QUERIES = ATTENTION_WARPS * 16 * M, KEYS = 16 * N;
    static constexpr int BYTES = (int)sizeof(bf16) * HD * (QUERIES + 4 * KEYS);
};

/* What a warp holds of its queries: lane l of rows g and g + 8 of each 16, g = l / 4. */
template <int HD> struct forward_state {
    static constexpr int M = forward_sizes<HD>::M;
    float acc[M][HD / 8][4]; /* sum of exp(score - max) * value */
    float max[M][2];         /* of scores, unscaled */
    float sum[M][2];         /* of exp(score - max), this lane's part */
    uint32_t position[M][2], sequence;
};

/* Scores to exp(score - max), the state's max being brought up to date. */
template <int HD, int M, int J>
__device__ static inline void forward_softmax(struct forward_state<HD> &state, float (&s)[M][J][4],
                                              float scale_log2)
{
    UNROLL
    for (int i = 0; i < 2 * M; i++) {
        const int m = i / 2, half = i % 2;
        float most = state.max[m][half];
        UNROLL
        for (int j = 0; j < J; j++)
            most = fmaxf(most, fmaxf(s[m][j][2 * half], s[m][j][2 * half + 1]));
        most = fmaxf(most, shuffle_xor(FULL_MASK, most, 1));
        most = fmaxf(most, shuffle_xor(FULL_MASK, most, 2));
        const float offset = most * scale_log2;
        const float shrink = fast_exp2(state.max[m][half] * scale_log2 - offset);
        float sum = state.sum[m][half] * shrink;
        UNROLL
        for (int e = 0; e < 2 * J; e++) {
            float &score = s[m][e / 2][2 * half + e % 2];
            score = fast_exp2(score * scale_log2 - offset);
            sum += score;
        }
        state.max[m][half] = most;
        state.sum[m][half] = sum;
        UNROLL
        for (int j = 0; j < HD / 8; j++) {
            state.acc[m][j][2 * half] *= shrink;
            state.acc[m][j][2 * half + 1] *= shrink;
        }
    }
}

/* Scores of keys after their query to minus infinity. first_query, first_key: of s. */
template <int M, int J>
__device__ static inline void forward_mask(float (&s)[M][J][4], int first_query, int first_key)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    UNROLL
    for (int i = 0; i < M * J * 4; i++) {
        const int m = i / (J * 4), j = i / 4 % J, e = i % 4;
        const int query = first_query + 16 * m + g + e / 2 * 8, key = first_key + 8 * j + 2 * t;
        if (key + e % 2 > query)
            s[m][j][e] = -INFINITY;
    }
}

/* Probabilities that are dropped to zero; the others are scaled up at the end. */
template <bool EDGE, int HD, int M, int J>
__device__ static inline void
forward_drop(float (&s)[M][J][4], const struct forward_state<HD> &state, const struct dropout &drop,
             int head, int first_key, int n_used)
{
    UNROLL
    for (int i = 0; i < M * J; i++) {
        const int m = i / J, j = i % J;
        if (EDGE && j >= 2 * n_used)
            continue;
        const uint32_t kept =
            kept_by_query(drop, head, state.sequence, state.position[m], first_key + 8 * j);
        UNROLL
        for (int e = 0; e < 4; e++)
            if (!(kept >> e & 1))
                s[m][j][e] = 0;
    }
}

/* One tile of keys, followed by its values. first_query: the warp's. EDGE: not all of the tile's
 * keys are seen by all of the warp's queries; the first n_used groups of 16 are by some. */
template <bool EDGE, int HD, bool DROPOUT, typename QUERIES>
__device__ static inline void forward_step(struct forward_state<HD> &state, const QUERIES &q,
                                           const bf16 *tile, int first_query, int first_key,
                                           int n_used, const struct forward_arrays &a, int head)
{
    using sizes = forward_sizes<HD>;
    float s[sizes::M][2 * sizes::N][4];
    multiply_rows<EDGE, HD, sizes::M, sizes::N>(s, q, tile, n_used);
    if (EDGE)
        forward_mask(s, first_query, first_key);
    forward_softmax(state, s, a.scale * LOG2_E);
    if (DROPOUT)
        forward_drop<EDGE>(s, state, a.drop, head, first_key, n_used);
    multiply_columns<EDGE, HD, sizes::M, sizes::N>(state.acc, s, tile + sizes::KEYS * HD, n_used);
}

/* The state before the first key. n: how many of the warp's queries there are; token: the first. */
template <int HD>
__device__ static inline void forward_begin(struct forward_state<HD> &state,
                                            const struct token_rows &rows, int token, int n,
                                            bool dropout)
{
    constexpr int M = forward_sizes<HD>::M;
    clear(state.acc);
    state.sequence = 0;
    UNROLL
    for (int i = 0; i < 2 * M; i++) {
        const int row = i * 8 + threadIdx.x % WARP / 4;
        state.max[i / 2][i % 2] = -INFINITY;
        state.sum[i / 2][i % 2] = 0;
        state.position[i / 2][i % 2] =
            dropout && row < n ? (uint32_t)rows.position[token + row] : 0;
    }
    if (dropout && n > 0)
        state.sequence = rows.token_seq[token];
}

/* out and lse of the warp's first n queries. tile: the warp's part of the queries' tile. */
template <int HD>
__device__ static inline void forward_end(struct forward_state<HD> &state,
                                          const struct forward_arrays &a, bf16 *tile, int token,
                                          int n, int head)
{
    constexpr int M = forward_sizes<HD>::M;
    const float kept = a.drop.p > 0 ? 1 / (1 - a.drop.p) : 1;
    float factor[M][2];
    UNROLL
    for (int i = 0; i < 2 * M; i++) {
        const int row = i * 8 + threadIdx.x % WARP / 4;
        float sum = state.sum[i / 2][i % 2];
        sum += shuffle_xor(FULL_MASK, sum, 1);
        sum += shuffle_xor(FULL_MASK, sum, 2);
        factor[i / 2][i % 2] = kept / sum;
        if (threadIdx.x % 4 == 0 && row < n)
            a.lse[(size_t)(token + row) * a.n_head + head] =
                state.max[i / 2][i % 2] * a.scale + logf(sum);
    }
    __syncwarp();
    tile_put<HD>(tile, state.acc, factor);
    __syncwarp();
    const size_t C = (size_t)a.n_head * HD;
    tile_store<HD, 16 * M>(a.out + token * C + head * HD, C, tile, n);
}

/* Starts the copy of the tile of keys and values from key `first` on; n: how many are seen. */
template <int HD>
__device__ static inline void forward_load(bf16 *tiles, const bf16 *k, size_t C, int first, int n)
{
    constexpr int KEYS = forward_sizes<HD>::KEYS;
    bf16 *const tile = tiles + first / KEYS % 2 * (2 * KEYS * HD);
    tile_load_part<HD, KEYS>(tile, k, 3 * C, first, n, 16);
    tile_load_part<HD, KEYS>(tile + KEYS * HD, k + C, 3 * C, first, n, 16);
    copy_async_commit();
}

template <int HD, bool DROPOUT>
__global__ ATTENTION_BOUNDS static void attention_forward_kernel(struct forward_arrays a)
{
    using sizes = forward_sizes<HD>;
    constexpr int QUERIES = sizes::QUERIES, KEYS = sizes::KEYS, WARP_ROWS = 16 * sizes::M;
    DYNAMIC_SHARED(shared);
    bf16 *const q_tile = (bf16 *)shared, *const tiles = q_tile + QUERIES * HD;
    struct attention_share share;
    if (!attention_my_share<QUERIES>(&share, a.rows, a.n_head))
        return;
    const size_t C = (size_t)a.n_head * HD;
    const bf16 *const q = a.qkv + share.start * 3 * C + share.head * HD;
    /* How many keys the block sees; the warp's queries, and how many keys they see. */
    const int block_end = share.first + QUERIES;
    const int n_keys = block_end < share.length ? block_end : share.length;
    const int row = (int)threadIdx.x / WARP * WARP_ROWS, query = share.first + row;
    const int n_mine = n_keys - query < WARP_ROWS ? n_keys - query : WARP_ROWS;
    const int my_keys = n_mine > 0 ? query + n_mine : 0;

    tile_load_part<HD, QUERIES>(q_tile, q, 3 * C, share.first, share.length, WARP_ROWS);
    forward_load<HD>(tiles, q + C, C, 0, n_keys);
    struct forward_state<HD> state;
    forward_begin(state, a.rows, share.start + query, n_mine, DROPOUT);
    struct left_operand<HD, sizes::M, sizes::KEPT> queries;
    copy_async_wait<0>();
    __syncthreads();
    left_operand_load(queries, q_tile + row * HD);
    for (int first = 0; first < n_keys; first += KEYS) {
        if (first + KEYS < n_keys)
            forward_load<HD>(tiles, q + C, C, first + KEYS, n_keys);
        const bf16 *const tile = tiles + first / KEYS % 2 * (2 * KEYS * HD);
        if (first + KEYS <= query && n_mine > 0)
            forward_step<false, HD, DROPOUT>(state, queries, tile, query, first, 0, a, share.head);
        else if (first < my_keys)
            forward_step<true, HD, DROPOUT>(state, queries, tile, query, first,
                                            (my_keys - first + 15) / 16, a, share.head);
        copy_async_wait<0>();
        __syncthreads();
    }
    if (n_mine > 0)
        forward_end(state, a, q_tile + row * HD, share.start + query, n_mine, share.head);
}

template <int HD, bool DROPOUT>
static void forward_launch(struct stream *s, const struct forward_arrays *a)
{
    using sizes = forward_sizes<HD>;
    const int blocks = attention_shares(&a->rows, sizes::QUERIES) * a->n_head;
    ATTENTION_SHARED((attention_forward_kernel<HD, DROPOUT>), sizes::BYTES);
    LAUNCH((attention_forward_kernel<HD, DROPOUT>), blocks, ATTENTION_THREADS, sizes::BYTES, s, *a);
}

void cuda_attention_forward(struct stream *s, void *out, float *lse, const void *qkv,
                            const struct token_rows *rows, int n_head, int head_dim, float scale,
                            struct dropout drop)
{
    assert(scale > 0);
    if (rows->n_tokens == 0)
        return;
    const struct forward_arrays a = {(bf16 *)out, lse, (const bf16 *)qkv, *rows, n_head,
                                     scale,       drop};
    if (!attention_aligned(out) || !attention_aligned(qkv) || !attention_has_tiles(head_dim)) {
        attention_forward_generic(s, a.out, lse, a.qkv, rows, n_head, head_dim, scale, drop);
        return;
    }
    ATTENTION_LAUNCH(forward_launch, head_dim, s, &a);
}
