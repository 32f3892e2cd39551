/* The CPU device's operators: one function for each of ops.h and row_ops.h, and what they share.
 *
 * An operator cuts its rows into pieces, and a ZF_SIMD leaf function works on one piece. How sums
 * are cut depends on their length alone, never on the number of threads. */
#ifndef ZF_MODEL_CPU_CPU_H
#define ZF_MODEL_CPU_CPU_H

#include "model/device/ops.h"
#include "model/device/row_ops.h"

/* An operator on fewer elements than this runs on one thread: waking the others costs more. */
#define PARALLEL_ELEMENTS 16384

/* The CPU's stream: work runs inline, so all it has is memory that operators may use while they
 * run, kept from one to the next. */
struct stream {
    float *scratch;
    size_t scratch_length; /* floats */
};

/* Device memory: 256-byte aligned, not initialised. */
void *cpu_allocate(size_t bytes);

/* Scratch of at least n floats, aligned to 64 bytes, not initialised; it is the stream's, and the
 * next call may move it. */
float *cpu_scratch(struct stream *s, size_t n);

/* Rows are handed to threads in pieces of about this many elements. */
#define PIECE_ELEMENTS 8192

static inline int min_int(int a, int b)
{
    return a < b ? a : b;
}

static inline int divide_up(int a, int b)
{
    return (a + b - 1) / b;
}

/* How many rows of `width` elements one piece takes. */
static inline int piece_rows(int width)
{
    return width >= PIECE_ELEMENTS ? 1 : PIECE_ELEMENTS / width;
}

/* Sums over rows are made in chunks, at most SUM_CHUNKS of them, and the chunks' sums are added in
 * order. */
#define SUM_CHUNKS 64
static inline int sum_chunk_rows(int n)
{
    int rows = divide_up(n, SUM_CHUNKS);
    return rows < 16 ? 16 : rows;
}

/* out[j] = the sum of chunks[i][j], added to what is there if `accumulate`.  out: (n);
 * chunks: (n_chunks, n), rows at distance stride */
static inline void add_chunks(float *restrict out, const float *restrict chunks, size_t stride,
                              int n_chunks, int n, bool accumulate)
{
    if (!accumulate)
        for (int j = 0; j < n; j++)
            out[j] = 0;
    for (int i = 0; i < n_chunks; i++)
        for (int j = 0; j < n; j++)
            out[j] += chunks[i * stride + j];
}

#define X(name) op_##name cpu_##name;
MODEL_OPERATORS(X)
ROW_OPERATORS(X)
#undef X

op_attention_cached cpu_attention_cached;

/* What follows a product (bias, pre, activation or its slope), on rows [row, row_end) and columns
 * [col, col_end) of c. */
void cpu_finish_product(float *c, const struct matmul *product, int row, int row_end, int col,
                        int col_end);

/* dst[0..bytes) = src, or zeros if src is NULL, on all threads. */
void cpu_copy_bytes(void *dst, const void *src, size_t bytes);

#endif
