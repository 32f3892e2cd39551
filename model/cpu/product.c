/* A matrix product blocked for registers and caches (Goto and van de Geijn, "Anatomy of
 * high-performance matrix multiplication", ACM TOMS 2008), with the epilogue on tiles that are
 * still in cache. Blocks depend on the shape alone and each element of c is summed in one order, so
 * the result is the same on any number of threads. Limit: arithmetic.
 *
 *   columns [first, end) of b are packed, all of them at once unless they are very many
 *     a task: `rows` rows and BLOCK_COLS columns of c; its part of b fits in the second-level cache
 *       blocks of `depth` along k: the task packs its rows of a, which stay in the second-level
 * cache panels of TILE_COLS columns, whose part of b stays in the first-level cache tiles of
 * TILE_ROWS rows, in registers */
#include "data/simd.h"
#include "model/cpu/cpu.h"
#include "model/cpu/tile.h"

#include <omp.h>
#include <string.h>

#define MAX_DEPTH      256       /* 32 KB of b for a panel */
#define MAX_ROWS       128       /* 128 KB of a for a task */
#define BLOCK_COLS     512       /* 512 KB of b for a task and a block of depth */
#define FINISH_COLS    128       /* columns that are finished at a time */
#define MAX_PACKED_B   (4 << 20) /* floats */
#define TASKS_A_THREAD 4
#define PARALLEL_WORK  (64.0 * 64 * 64) /* multiply-adds from which on waking threads pays */

struct plan {
    const struct matmul *product;
    const float *a, *b;
    float *c, *packed_b;
    int columns, rows, depth, n_threads;
    bool accumulate, finish;
};

static int round_up(int a, int multiple)
{
    return divide_up(a, multiple) * multiple;
}

static struct plan plan_product(float *c, const float *a, const float *b,
                                const struct matmul *product, bool accumulate)
{
    struct plan p = {.product = product, .a = a, .b = b, .c = c, .accumulate = accumulate};
    const int k = product->k > 0 ? product->k : 1;
    p.finish = product->bias || product->pre || product->act != ACT_NONE;
    p.depth = divide_up(k, divide_up(k, MAX_DEPTH));
    p.n_threads = (double)product->m * product->n * k > PARALLEL_WORK ? omp_get_max_threads() : 1;
    const int fitting = MAX_PACKED_B / k / BLOCK_COLS * BLOCK_COLS;
    p.columns = min_int(round_up(product->n, TILE_COLS), fitting > 0 ? fitting : BLOCK_COLS);
    const int blocks = divide_up(p.columns, BLOCK_COLS), tasks = TASKS_A_THREAD * p.n_threads;
    p.rows =
        min_int(MAX_ROWS, round_up(divide_up(product->m, divide_up(tasks, blocks)), TILE_ROWS));
    return p;
}

/* dst: (depth, TILE_COLS) = rows [l, l + depth), columns [j, j + TILE_COLS) of op(b), zeros beyond
 * its last column. */
ZF_SIMD
static void pack_b(const struct plan *p, float *restrict dst, int l, int depth, int j)
{
    const int n = p->product->n, k = p->product->k, cols = min_int(TILE_COLS, n - j);
    if (cols < TILE_COLS)
        memset(dst, 0, sizeof(float) * TILE_COLS * depth);
    if (!p->product->trans_b) {
        const float *restrict src = p->b + (size_t)l * n + j;
        for (int i = 0; i < depth; i++)
            if (cols == TILE_COLS)
                memcpy(dst + (size_t)i * TILE_COLS, src + (size_t)i * n, sizeof(float) * TILE_COLS);
            else
                memcpy(dst + (size_t)i * TILE_COLS, src + (size_t)i * n, sizeof(float) * cols);
        return;
    }
    const float *restrict src = p->b + (size_t)j * k + l;
    const int cols8 = cols / 8 * 8, depth8 = depth / 8 * 8;
    for (int c = 0; c < cols8; c += 8)
        for (int i = 0; i < depth8; i += 8)
            transpose_8x8(dst + (size_t)i * TILE_COLS + c, TILE_COLS, src + (size_t)c * k + i,
                          (size_t)k);
    for (int c = 0; c < cols; c++)
        for (int i = c < cols8 ? depth8 : 0; i < depth; i++)
            dst[(size_t)i * TILE_COLS + c] = src[(size_t)c * k + i];
}

/* dst: (rows / TILE_ROWS, depth, TILE_ROWS) = rows [row, row + rows), columns [l, l + depth) of
 * op(a), zeros up to the tile's last row. */
ZF_INLINE void pack_a(const struct plan *p, float *restrict dst, int row, int rows, int l,
                      int depth)
{
    const int m = p->product->m, k = p->product->k, depth8 = depth / 8 * 8;
    for (int i = 0; i < rows; i += TILE_ROWS, dst += (size_t)depth * TILE_ROWS) {
        const int n = min_int(TILE_ROWS, rows - i);
        if (n < TILE_ROWS)
            memset(dst, 0, sizeof(float) * TILE_ROWS * depth);
        if (p->product->trans_a) {
            const float *restrict src = p->a + (size_t)l * m + row + i;
            for (int d = 0; d < depth; d++)
                for (int r = 0; r < n; r++)
                    dst[d * TILE_ROWS + r] = src[(size_t)d * m + r];
            continue;
        }
        const float *restrict src = p->a + (size_t)(row + i) * k + l;
        const int whole = n == TILE_ROWS ? depth8 : 0;
        for (int d = 0; d < whole; d += 8)
            transpose_8x8(dst + d * TILE_ROWS, TILE_ROWS, src + d, (size_t)k);
        for (int r = 0; r < n; r++)
            for (int d = whole; d < depth; d++)
                dst[d * TILE_ROWS + r] = src[(size_t)r * k + d];
    }
}

/* A tile that reaches over c's last row or column, by way of a whole one. */
ZF_INLINE void edge_tile(float *c, size_t ldc, int rows, int cols, const float *a, const float *b,
                         int depth, bool accumulate)
{
    float tile[TILE_ROWS * TILE_COLS] = {0};
    if (accumulate)
        for (int i = 0; i < rows; i++)
            memcpy(tile + i * TILE_COLS, c + i * ldc, sizeof(float) * cols);
    tile_multiply(tile, TILE_COLS, a, 1, TILE_ROWS, b, TILE_COLS, depth, true);
    for (int i = 0; i < rows; i++)
        memcpy(c + i * ldc, tile + i * TILE_COLS, sizeof(float) * cols);
}

/* Rows [row, row + rows), columns [from, to) of c, where b's columns [first, end) are packed.
 * packed_a: room for (rows, depth). */
ZF_SIMD
static void multiply_block(const struct plan *p, float *restrict packed_a, int row, int rows,
                           int first, int end, int from, int to)
{
    const int n = p->product->n, k = p->product->k, width = round_up(end - first, TILE_COLS);
    for (int l = 0; l < k; l += p->depth) {
        const int depth = min_int(p->depth, k - l);
        const bool last = l + depth == k, add = l > 0 || p->accumulate;
        pack_a(p, packed_a, row, rows, l, depth);
        for (int j = from; j < to; j += TILE_COLS) {
            const float *b = p->packed_b + (size_t)l * width + (size_t)(j - first) * depth;
            const int cols = min_int(TILE_COLS, to - j), done = j + cols;
            for (int i = 0; i < rows; i += TILE_ROWS) {
                float *c = p->c + (size_t)(row + i) * n + j;
                const float *a = packed_a + (size_t)i * depth;
                if (cols == TILE_COLS && i + TILE_ROWS <= rows)
                    tile_multiply(c, (size_t)n, a, 1, TILE_ROWS, b, TILE_COLS, depth, add);
                else
                    edge_tile(c, (size_t)n, min_int(TILE_ROWS, rows - i), cols, a, b, depth, add);
            }
            if (last && p->finish && ((done - from) % FINISH_COLS == 0 || done == to))
                cpu_finish_product(p->c, p->product, row, row + rows,
                                   from + (done - from - 1) / FINISH_COLS * FINISH_COLS, done);
        }
    }
}

/* c = 0 (or what it was) where there is nothing to sum, and what follows. */
static void finish_empty(const struct plan *p)
{
    const struct matmul *product = p->product;
    if (!p->accumulate)
        memset(p->c, 0, sizeof(float) * product->m * product->n);
    if (p->finish)
        cpu_finish_product(p->c, product, 0, product->m, 0, product->n);
}

void cpu_blocked_product(struct stream *s, float *c, const float *a, const float *b,
                         const struct matmul *product, bool accumulate)
{
    struct plan p = plan_product(c, a, b, product, accumulate);
    const int m = product->m, n = product->n, k = product->k;
    if (k == 0) {
        finish_empty(&p);
        return;
    }
    const size_t a_length = (size_t)p.rows * p.depth;
    const int n_depths = divide_up(k, p.depth), n_rows = divide_up(m, p.rows);
    p.packed_b = cpu_scratch(s, (size_t)p.columns * k + a_length * p.n_threads);
    float *packed_a = p.packed_b + (size_t)p.columns * k;
#pragma omp parallel num_threads(p.n_threads)
    for (int first = 0; first < n; first += p.columns) {
        const int end = min_int(n, first + p.columns), panels = divide_up(end - first, TILE_COLS);
#pragma omp for schedule(static)
        for (int i = 0; i < panels * n_depths; i++) {
            const int l = i / panels * p.depth, depth = min_int(p.depth, k - l), panel = i % panels;
            pack_b(&p, p.packed_b + ((size_t)l * panels + (size_t)panel * depth) * TILE_COLS, l,
                   depth, first + panel * TILE_COLS);
        }
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < n_rows * divide_up(end - first, BLOCK_COLS); i++) {
            const int row = i % n_rows * p.rows, from = first + i / n_rows * BLOCK_COLS;
            multiply_block(&p, packed_a + a_length * omp_get_thread_num(), row,
                           min_int(p.rows, m - row), first, end, from,
                           min_int(end, from + BLOCK_COLS));
        }
    }
}
