/* Embedding: the sum of a token's and a position's rows, and its gradient.
 *
 * Backward adds rows of dx that share a token, and rows that share a position, without atomics: the
 * tokens stand sorted by that key; the sorted list is cut into pieces, each summed by a warp for
 * each slice of columns. A run of equal keys that lies within a piece goes straight to the
 * gradient. Of a run that crosses pieces, each piece leaves its part in scratch, and a second
 * kernel adds the parts up in order. So a frequent token takes no longer than a rare one, but for
 * one addition a piece. */
#include "model/cuda/pack.cuh"

extern "C" {
#include "model/cuda/cuda_ops.h"
}

#define THREADS 256
#define PIECE   16 /* tokens; at most a warp's */

/* Limit: memory, 2 n C bytes written, and the rows that are read: 2 C bytes for each token and
 * each position that occurs. */
template <int width>
__global__ static void add_rows(bf16 *x, struct token_rows rows, const bf16 *wte, const bf16 *wpe,
                                int C, struct dropout drop)
{
    const unsigned per_row = C / width, i = blockIdx.x * blockDim.x + threadIdx.x;
    const int t = i / per_row, column = i % per_row * width;
    if (t >= rows.n_tokens)
        return;
    float sum[width], place[width] = {};
    load<width>(sum, wte + (size_t)rows.tokens[t] * C + column);
    if (wpe)
        load<width>(place, wpe + (size_t)rows.position[t] * C + column);
    for (int j = 0; j < width; j++)
        sum[j] += place[j];
    apply_dropout<width>(sum, drop, rows, t, column);
    store<width>(x + (size_t)t * C + column, sum);
}

void cuda_embedding_forward(struct stream *s, void *x, const struct token_rows *rows,
                            const void *wte, const void *wpe, int C, struct dropout drop)
{
    const size_t n = (size_t)rows->n_tokens * C;
    if (n == 0)
        return;
    if (rows_are_vectors(C, (uintptr_t)x | (uintptr_t)wte | (uintptr_t)wpe))
        LAUNCH((add_rows<VECTOR>), divide_up(n / VECTOR, THREADS), THREADS, 0, s, (bf16 *)x, *rows,
               (const bf16 *)wte, (const bf16 *)wpe, C, drop);
    else
        LAUNCH((add_rows<1>), divide_up(n, THREADS), THREADS, 0, s, (bf16 *)x, *rows,
               (const bf16 *)wte, (const bf16 *)wpe, C, drop);
}

/* order: the tokens' indices sorted by position, those of one position by sequence. A token's place
 * is the number of tokens before it in that order. Limit: n_seqs comparisons for each token; all
 * threads of a warp read the same offsets, from the first-level cache. */
__global__ static void sort_positions(int *order, struct token_rows rows)
{
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= rows.n_tokens)
        return;
    const int position = rows.position[t];
    int before = 0, start = rows.seq_start[0];
    UNROLL_ROWS
    for (int i = 0; i < rows.n_seqs; i++) {
        const int end = rows.seq_start[i + 1], length = end - start;
        before += length <= position ? length : position + (start + position < t);
        start = end;
    }
    order[before] = t;
}

/* One of the two tables, by which the rows of dx are added. */
struct sorted_rows {
    float *gradient;  /* (keys, C) */
    const int *key;   /* (n) of each token: its id, or its position */
    const int *order; /* (n) the tokens sorted by key */
    float *parts;     /* (pieces, 2, C): of the run that comes in from the piece before; of the one
                         that begins here and goes on */
};

struct embedding_gradient {
    struct sorted_rows table[2];
    const bf16 *dx;
    struct token_rows rows;
    struct dropout drop;
};

/* gradient += sum, or the piece's part = sum where the run of `key` crosses into other pieces. */
template <int width>
__device__ static inline void put_sum(const struct sorted_rows &table, int key, bool comes_in,
                                      bool goes_on, int C, int column, const float (&sum)[width])
{
    if (comes_in || goes_on) {
        const size_t part = (size_t)blockIdx.x * 2 + (comes_in ? 0 : 1);
        store<width>(table.parts + part * C + column, sum);
        return;
    }
    float *to = table.gradient + (size_t)key * C + column, old[width];
    load<width>(old, (const float *)to);
    for (int j = 0; j < width; j++)
        old[j] += sum[j];
    store<width>(to, old);
}

/* A warp sums a piece over 32 * width columns. Limit: memory, 2 n C bytes read for each table (the
 * second time mostly from the second-level cache), and 8 C for each key that occurs. */
template <int width>
__global__ static void __launch_bounds__(WARP) sum_pieces(struct embedding_gradient g, int C)
{
    SHARED(int, token, [PIECE]);
    SHARED(int, key, [PIECE + 2]); /* with those beside the piece; -1: none */
    const struct sorted_rows table = blockIdx.z == 0 ? g.table[0] : g.table[1];
    const int n = g.rows.n_tokens, lane = threadIdx.x, begin = blockIdx.x * PIECE;
    const int length = begin + PIECE < n ? PIECE : n - begin;
    if (lane < length + 2) {
        const int at = begin + lane - 1, t = at >= 0 && at < n ? table.order[at] : -1;
        key[lane] = t >= 0 ? table.key[t] : -1;
        if (lane >= 1 && lane <= length)
            token[lane - 1] = t;
    }
    __syncthreads();
    const int column = (blockIdx.y * WARP + lane) * width;
    if (column >= C)
        return;
    float sum[width] = {};
    for (int first = 0; first < length; first += 4) {
        pack<bf16, width> raw[4]; /* loaded together, to wait once */
        for (int i = 0; i < 4; i++)
            raw[i] = load_pack<width>(
                g.dx + (size_t)token[first + i < length ? first + i : first] * C + column);
        for (int i = first; i < length && i < first + 4; i++) {
            float x[width];
            unpack<width>(x, raw[i - first]);
            apply_dropout<width>(x, g.drop, g.rows, token[i], column);
            for (int j = 0; j < width; j++)
                sum[j] += x[j];
            const bool ends = key[i + 2] != key[i + 1];
            if (!ends && i + 1 < length)
                continue;
            put_sum<width>(table, key[i + 1], key[i + 1] == key[0], !ends, C, column, sum);
            for (int j = 0; j < width; j++)
                sum[j] = 0;
        }
    }
}

/* For a run that begins in this block's piece and goes on: gradient += all its parts. The warp
 * looks at 32 pieces at a time for the run's end. Limit: memory, 4 C bytes a part, most of them in
 * the second-level cache. */
template <int width>
__global__ static void __launch_bounds__(WARP) add_parts(struct embedding_gradient g, int C)
{
    const struct sorted_rows table = blockIdx.z == 0 ? g.table[0] : g.table[1];
    const int n = g.rows.n_tokens, lane = threadIdx.x, end = (blockIdx.x + 1) * PIECE;
    const int column = (blockIdx.y * WARP + lane) * width;
    if (end >= n)
        return;
    const int key = table.key[table.order[end - 1]];
    const bool comes_in = end > PIECE && table.key[table.order[end - PIECE - 1]] == key;
    if (comes_in || table.key[table.order[end]] != key)
        return;
    float sum[width] = {};
    if (column < C)
        load<width>(sum, table.parts + ((size_t)blockIdx.x * 2 + 1) * C + column);
    for (int first = end; first < n; first += WARP * PIECE) {
        const int mine = first + lane * PIECE; /* whether the run has tokens in this piece */
        const unsigned has = ballot(FULL_MASK, mine < n && table.key[table.order[mine]] == key);
        UNROLL_ROWS
        for (int i = 0; i < WARP; i++) {
            if (!(has >> i & 1) || column >= C)
                continue;
            float part[width];
            const size_t piece = (size_t)(first / PIECE + i);
            load<width>(part, (const float *)table.parts + piece * 2 * C + column);
            for (int j = 0; j < width; j++)
                sum[j] += part[j];
        }
        if (has != FULL_MASK)
            break;
    }
    float *to = table.gradient + (size_t)key * C + column, old[width];
    if (column >= C)
        return;
    load<width>(old, (const float *)to);
    for (int j = 0; j < width; j++)
        old[j] += sum[j];
    store<width>(to, old);
}

template <int width>
static void launch_backward(struct stream *s, struct embedding_gradient g, int C)
{
    const int n = g.rows.n_tokens;
    const int tables = g.table[1].gradient ? 2 : 1;
    const dim3 grid(divide_up(n, PIECE), divide_up(C, WARP * width), tables);
    LAUNCH((sum_pieces<width>), grid, WARP, 0, s, g, C);
    LAUNCH((add_parts<width>), grid, WARP, 0, s, g, C);
}

void cuda_embedding_backward(struct stream *s, float *dwte, float *dwpe, const void *dx,
                             const struct token_rows *rows, const int *order, int C,
                             struct dropout drop)
{
    const int n = rows->n_tokens;
    if (n == 0)
        return;
    const size_t parts = (size_t)divide_up(n, PIECE) * 2 * C;
    const size_t after_parts = 2 * sizeof(float) * parts;
    char *scratch = (char *)cuda_scratch(s, after_parts + sizeof(int) * (size_t)n);
    int *by_position = (int *)(scratch + after_parts);
    const struct embedding_gradient g = {
        {{dwte, rows->tokens, order, (float *)scratch},
         {dwpe, rows->position, by_position, (float *)scratch + parts}},
        (const bf16 *)dx,
        *rows,
        drop};
    if (dwpe)
        LAUNCH(sort_positions, divide_up(n, THREADS), THREADS, 0, s, by_position, *rows);
    if (rows_are_vectors(C, (uintptr_t)dwte | (uintptr_t)dwpe | (uintptr_t)dx))
        launch_backward<VECTOR>(s, g, C);
    else
        launch_backward<1>(s, g, C);
}
