/* What the attention kernels share: which rows a block works on, tiles in shared memory, and
 * products of tiles on tensor cores.
 *
 * Names are those of the FlashAttention papers: S = Q K^T by tiles of Br queries by Bc keys, P its
 * softmax, O = P V, with m_i and l_i the running maximum and sum of query i; dO, dP, dS, dQ, dK, dV
 * the gradients, delta = rowsum(dO * O) (the papers' D), d the head size. Sequences lie one behind
 * another in the token stream, from rows.seq_start on: the papers' cu_seqlens.
 *
 * A tile is (rows, d) bf16. ldmatrix reads 8 rows at one column, and each row of d / 8 pieces of
 * 16 bytes; so that those fall into different banks, the pieces of a row change places by an
 * exclusive or with the row's number. The pattern repeats every 8 rows.
 *
 * A warp owns M times 16 rows of a product. S, P and acc are its fp32 fragments: S[m][j] holds rows
 * 16 m .. 16 m + 15, columns 8 j .. 8 j + 7, and lane l has of it, with g = l / 4 and t = l % 4,
 * (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). */
#ifndef ZF_MODEL_CUDA_ATTENTION_CUH
#define ZF_MODEL_CUDA_ATTENTION_CUH

#include "model/cuda/cuda.cuh"
#include "model/cuda/cuda_ops.h"
#include "model/cuda/dropout.cuh"
#include "model/cuda/intrinsics.cuh"

#ifdef __CUDACC__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL
#endif

#define ATTENTION_WARPS   4
#define ATTENTION_THREADS (ATTENTION_WARPS * WARP)
#define LOG2_E            1.44269504f

/* Of the tiled kernels: two blocks share a multiprocessor,
 * so that a thread may have 255 registers. */
#define ATTENTION_BOUNDS __launch_bounds__(ATTENTION_THREADS, 2)

/* Lets a kernel have more shared memory than any may. */
#define ATTENTION_SHARED(kernel, bytes)                                                            \
    check_cuda(cudaFuncSetAttribute((kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, (bytes)))

/* Whether there are tiled kernels for this head size. */
static inline bool attention_has_tiles(int head_dim)
{
    return head_dim == 32 || head_dim == 64 || head_dim == 80 || head_dim == 96 || head_dim == 128;
}

#define ATTENTION_CASE(d, launch, s, arrays)                                                       \
    case d:                                                                                        \
        (arrays)->sizes.drop.p > 0 ? launch<d, true>(s, arrays) : launch<d, false>(s, arrays);     \
        break;
/* launch<head_dim, whether there is dropout>(s, arrays), for a head size that has tiled kernels. */
#define ATTENTION_LAUNCH(launch, head_dim, s, arrays)                                              \
    switch (head_dim) {                                                                            \
        ATTENTION_CASE(32, launch, s, arrays)                                                      \
        ATTENTION_CASE(64, launch, s, arrays)                                                      \
        ATTENTION_CASE(80, launch, s, arrays)                                                      \
        ATTENTION_CASE(96, launch, s, arrays)                                                      \
        ATTENTION_CASE(128, launch, s, arrays)                                                     \
    }

/* Whether rows of head sizes that are multiples of 8 can be copied in pieces of 16 bytes. */
static inline bool attention_aligned(const void *array)
{
    return (uintptr_t)array % 16 == 0;
}

/* Of a token that sees all before it. */
#define ATTENTION_NO_WINDOW (1 << 30)

/* How kernels take struct attention. */
struct attention_sizes {
    int n_head, n_kv_head, head_dim;
    int group;  /* heads of q to one of k and v */
    int window; /* a query sees a key if their distance is in [0, window) */
    float scale;
    struct dropout drop;
    int stride; /* distance of two tokens' rows of q, k and v, in elements */
};

static inline struct attention_sizes attention_sizes_of(const struct attention *a)
{
    const struct heads *h = &a->heads;
    return {h->n_head,
            h->n_kv_head,
            h->head_dim,
            h->n_head / h->n_kv_head,
            a->window > 0 ? a->window : ATTENTION_NO_WINDOW,
            a->scale,
            a->drop,
            heads_row(h)};
}

/* Whether a query does not see a key. */
__device__ static inline bool attention_hides(int query, int key, int window)
{
    return (unsigned)(query - key) >= (unsigned)window;
}

/* The first key that a query sees, rounded down to a tile's first. */
template <int Bc> __device__ static inline int attention_first_tile(int query, int window)
{
    return query < window ? 0 : (query + 1 - window) / Bc * Bc;
}

/* What a thread block owns: rows first .. first + ROWS - 1 of one head of one sequence. ROWS is Br
 * where they are queries, Bc where they are keys. */
struct attention_block {
    int start, seqlen; /* the sequence's first token, and how many it has */
    int first;         /* counted from start */
    int head;
};

/* How many blocks of so many rows there may be, for each head. */
static inline int attention_blocks(const struct token_rows *rows, int block_rows)
{
    return rows->n_tokens / block_rows + rows->n_seqs;
}

/* Block number `index`. Sequence i has those from seq_start[i] / ROWS + i on, which leaves room for
 * all of its rows and is known without adding up the lengths before it; a block that lies beyond
 * its sequence's end is empty: false. The whole warp calls it. */
template <int ROWS>
__device__ static inline bool attention_find_block(struct attention_block *block,
                                                   const struct token_rows &rows, int index)
{
    int before = 0;
    for (int i = threadIdx.x % WARP; i < rows.n_seqs; i += WARP)
        before += rows.seq_start[i] / ROWS + i <= index;
    for (int i = WARP / 2; i > 0; i /= 2)
        before += shuffle_xor(FULL_MASK, before, i);
    const int sequence = before - 1;
    block->start = rows.seq_start[sequence];
    block->seqlen = rows.seq_start[sequence + 1] - block->start;
    block->first = (index - block->start / ROWS - sequence) * ROWS;
    return block->first < block->seqlen;
}

/* Thread blocks are numbered head first, then from the last rows to the first: causality makes a
 * sequence's last rows the longest work, which is better begun early. */
template <int ROWS>
__device__ static inline bool attention_my_block(struct attention_block *block,
                                                 const struct token_rows &rows, int n_head)
{
    block->head = (int)(blockIdx.x % n_head);
    const int from_end = (int)(blockIdx.x / n_head);
    return attention_find_block<ROWS>(block, rows,
                                      rows.n_tokens / ROWS + rows.n_seqs - 1 - from_end);
}

/* Where piece `piece` (8 columns) of row `row` lies in a tile, in elements. */
template <int d> __device__ static inline int tile_at(int row, int piece)
{
    constexpr int pieces = d / 8, lowest_bit = pieces & -pieces;
    constexpr int spread = lowest_bit < 8 ? lowest_bit : 8;
    return (row * pieces + (piece ^ (row / (8 / spread) % spread))) * 8;
}

/* Starts the copy of rows of src, at distance `stride`, to a tile of ROWS rows. Row i is copied if
 * i < n_valid, zeros if i < n_rows, left alone otherwise. The whole block calls it. */
template <int d, int ROWS>
__device__ static inline void tile_load(bf16 *tile, const bf16 *src, int stride, int n_rows,
                                        int n_valid)
{
    constexpr int pieces = d / 8;
    UNROLL
    for (int i = 0; i < (ROWS * pieces + ATTENTION_THREADS - 1) / ATTENTION_THREADS; i++) {
        const int at = i * ATTENTION_THREADS + (int)threadIdx.x;
        const int row = at / pieces, piece = at % pieces;
        if (row < n_rows)
            copy_async_16(tile + tile_at<d>(row, piece), src + row * stride + piece * 8,
                          row < n_valid);
    }
}

/* Rows first .. first + ROWS - 1, if there are so many before n, of src to a tile; zeros up to a
 * multiple of `multiple` rows. */
template <int d, int ROWS>
__device__ static inline void tile_load_part(bf16 *tile, const bf16 *src, int stride, int first,
                                             int n, int multiple)
{
    const int left = n - first, valid = left < ROWS ? left : ROWS;
    tile_load<d, ROWS>(tile, src + (size_t)first * stride, stride,
                       (valid + multiple - 1) / multiple * multiple, valid);
}

/* Rows 0 .. n - 1 of a warp's own part of a tile to dst, at distance `stride`. */
template <int d, int ROWS>
__device__ static inline void tile_store(bf16 *dst, size_t stride, const bf16 *tile, int n)
{
    constexpr int pieces = d / 8;
    for (int i = threadIdx.x % WARP; i < ROWS * pieces; i += WARP) {
        const int row = i / pieces, piece = i % pieces;
        if (row < n)
            *(struct bf16x8 *)(dst + row * stride + piece * 8) =
                *(const struct bf16x8 *)(tile + tile_at<d>(row, piece));
    }
}

/* acc[m], rows multiplied by factor[m][row is g or g + 8], to a warp's own part of a tile. */
template <int d, int M>
__device__ static inline void tile_put(bf16 *tile, const float (&acc)[M][d / 8][4],
                                       const float (&factor)[M][2])
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    UNROLL
    for (int i = 0; i < M * d / 8; i++) {
        const int m = i / (d / 8), j = i % (d / 8);
        bf16 *top = tile + tile_at<d>(m * 16 + g, j) + 2 * t;
        bf16 *bottom = tile + tile_at<d>(m * 16 + g + 8, j) + 2 * t;
        *(uint32_t *)top = pack_bf16(acc[m][j][0] * factor[m][0], acc[m][j][1] * factor[m][0]);
        *(uint32_t *)bottom = pack_bf16(acc[m][j][2] * factor[m][1], acc[m][j][3] * factor[m][1]);
    }
}

/* The fragment a of rows 0 .. 15, columns 16 k .. 16 k + 15. */
template <int d>
__device__ static inline void tile_fragment_a(uint32_t (&a)[4], const bf16 *tile, int k)
{
    const int lane = threadIdx.x % WARP;
    ldmatrix_x4(a, tile + tile_at<d>(lane % 16, 2 * k + lane / 16));
}

/* The left operand of a product over d: a warp's 16 M rows. Where they would take too many
 * registers, they stay in shared memory and are read at each use. */
template <int d, int M, bool KEPT> struct left_operand {
    const bf16 *tile;
    uint32_t a[KEPT ? M * d / 16 : 1][4];
};

template <int d, int M, bool KEPT>
__device__ static inline void left_operand_load(struct left_operand<d, M, KEPT> &left,
                                                const bf16 *tile)
{
    left.tile = tile;
    if constexpr (KEPT) {
        UNROLL
        for (int i = 0; i < M * d / 16; i++)
            tile_fragment_a<d>(left.a[i], tile + i / (d / 16) * 16 * d, i % (d / 16));
    }
}

/* Rows 16 m .. 16 m + 15 of it, columns 16 k .. 16 k + 15. */
template <int d, int M, bool KEPT>
__device__ static inline void
left_operand_at(uint32_t (&a)[4], const struct left_operand<d, M, KEPT> &left, int m, int k)
{
    if constexpr (KEPT) {
        UNROLL
        for (int i = 0; i < 4; i++)
            a[i] = left.a[m * (d / 16) + k][i];
    } else {
        tile_fragment_a<d>(a, left.tile + m * 16 * d, k);
    }
}

/* All of a warp's fragments to zero. */
template <int M, int J> __device__ static inline void clear(float (&acc)[M][J][4])
{
    UNROLL
    for (int i = 0; i < M * J; i++)
        acc[i / J][i % J][0] = acc[i / J][i % J][1] = acc[i / J][i % J][2] = acc[i / J][i % J][3] =
            0;
}

/* acc[m][j] and acc[m][j + 1] += a[m] b, where b is 16 columns as ldmatrix gives them. */
template <int M, int J>
__device__ static inline void mma_16(float (&acc)[M][J][4], int j, const uint32_t (&a)[M][4],
                                     const uint32_t (&b)[4])
{
    const uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
    UNROLL
    for (int m = 0; m < M; m++) {
        mma_16x8x16(acc[m][j], a[m], left);
        mma_16x8x16(acc[m][j + 1], a[m], right);
    }
}

/* S = left tile^T: the tile's 16 N rows are the product's columns. With EDGE only the first n_used
 * groups of 16 columns are computed; the others are 0. */
template <bool EDGE, int d, int M, int N, bool KEPT>
__device__ static inline void gemm_nt(float (&S)[M][2 * N][4],
                                      const struct left_operand<d, M, KEPT> &left, const bf16 *tile,
                                      int n_used)
{
    const int lane = threadIdx.x % WARP;
    const int row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
    clear(S);
    UNROLL
    for (int k = 0; k < d / 16; k++) {
        uint32_t a[M][4];
        UNROLL
        for (int m = 0; m < M; m++)
            left_operand_at(a[m], left, m, k);
        UNROLL
        for (int n = 0; n < N; n++)
            if (!EDGE || n < n_used) {
                uint32_t b[4];
                ldmatrix_x4(b, tile + n * 16 * d + tile_at<d>(row, 2 * k + half));
                mma_16(S, 2 * n, a, b);
            }
    }
}

/* acc += P tile, P rounded to bf16: its columns are the tile's 16 N rows. With EDGE only the first
 * n_used groups of 16. */
template <bool EDGE, int d, int M, int N>
__device__ static inline void gemm_nn(float (&acc)[M][d / 8][4], const float (&P)[M][2 * N][4],
                                      const bf16 *tile, int n_used)
{
    const int lane = threadIdx.x % WARP;
    UNROLL
    for (int n = 0; n < N; n++)
        if (!EDGE || n < n_used) {
            uint32_t a[M][4];
            UNROLL
            for (int i = 0; i < 2 * M; i++) {
                const float(&half)[4] = P[i / 2][2 * n + i % 2];
                a[i / 2][i % 2 * 2] = pack_bf16(half[0], half[1]);
                a[i / 2][i % 2 * 2 + 1] = pack_bf16(half[2], half[3]);
            }
            UNROLL
            for (int j = 0; j < d / 16; j++) {
                uint32_t b[4];
                ldmatrix_x4_trans(b, tile + n * 16 * d + tile_at<d>(lane % 16, 2 * j + lane / 16));
                mma_16(acc, 2 * j, a, b);
            }
        }
}

/* Dropout of probabilities. One draw serves four keys of one query, so the lanes that hold those
 * draw for one another. */

/* Bit i: whether key 4 * quad + i is kept for this query. */
__device__ static inline uint32_t draw_kept(const struct dropout &drop, int head, uint32_t sequence,
                                            uint32_t position, int quad)
{
    float factor[4];
    dropout_quad(factor, drop, drop.site + ((uint32_t)head << 16), sequence, position,
                 (uint32_t)quad);
    uint32_t kept = 0;
    for (int i = 0; i < 4; i++)
        kept |= (uint32_t)(factor[i] > 0) << i;
    return kept;
}

/* The row, of a warp's m-th 16 queries, that this lane draws for in kept_by_query. */
__device__ static inline int query_drawn_for(int m)
{
    return 16 * m + threadIdx.x % WARP / 4 + 8 * (threadIdx.x % 2);
}

/* For a fragment of 16 queries by 8 keys: bit i says whether the lane's element i is kept. first
 * is the fragment's first key. Even and odd lanes hold the halves of the same quads: the even lane
 * draws for query g, the odd one for g + 8; position: of that one. */
__device__ static inline uint32_t kept_by_query(const struct dropout &drop, int head,
                                                uint32_t sequence, uint32_t position, int first)
{
    const int odd = threadIdx.x % 2, pair = threadIdx.x % 4 / 2;
    const uint32_t mine = draw_kept(drop, head, sequence, position, first / 4 + pair) << (4 * odd);
    const uint32_t all = mine | shuffle_xor(FULL_MASK, mine, 1);
    return (all >> (2 * odd) & 3) | (all >> (4 + 2 * odd) & 3) << 2;
}

/* For a fragment of 16 keys by 8 queries. Lanes g = 4i .. 4i + 3 hold four keys of the same two
 * queries, and the four keys 8 further on: each of the four lanes draws for one of the four quads;
 * position: of its query, 2t + g % 2. */
__device__ static inline uint32_t kept_by_key(const struct dropout &drop, int head,
                                              uint32_t sequence, uint32_t position, int first)
{
    const int g = threadIdx.x % WARP / 4, turn = g % 4;
    const int quad = first / 4 + g / 4 + turn / 2 * 2;
    uint32_t all = draw_kept(drop, head, sequence, position, quad) << (4 * turn);
    all |= shuffle_xor(FULL_MASK, all, 4);
    all |= shuffle_xor(FULL_MASK, all, 8);
    uint32_t kept = 0;
    for (int i = 0; i < 4; i++)
        kept |= (all >> (4 * i + turn) & 1) << i;
    return kept;
}

/* The operators for head sizes that have no tiles, up to 256, and unaligned arrays. */
void attention_forward_generic(struct stream *s, bf16 *out, float *lse, const bf16 *qkv,
                               const struct token_rows *rows, const struct attention *attention);
void attention_backward_generic(struct stream *s, bf16 *dqkv, const bf16 *dout, const bf16 *qkv,
                                const bf16 *out, const float *lse, const struct token_rows *rows,
                                const struct attention *attention);

#endif
