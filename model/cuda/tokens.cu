/* Each sequence's last row, taken out and put back. Limit: memory; gather 4 n_seqs C bytes, scatter
 * 2 n C written besides. */
#include "model/cuda/pack.cuh"

extern "C" {
#include "model/cuda/cuda_ops.h"
}

#define THREADS 256

/* Copies a row for each sequence, between its place among the sequences and that
 * of its last token. */
template <int width, bool gather>
__global__ static void copy_last(bf16 *dst, const bf16 *src, struct token_rows rows, int C)
{
    const int per_row = C / width, i = blockIdx.x * blockDim.x + threadIdx.x, seq = i / per_row;
    if (seq >= rows.n_seqs)
        return;
    const int column = i % per_row * width;
    const size_t by_token = (size_t)(rows.seq_start[seq + 1] - 1) * C + column;
    const size_t by_seq = (size_t)seq * C + column;
    store_pack<width>(dst + (gather ? by_seq : by_token),
                      load_pack<width>(src + (gather ? by_token : by_seq)));
}

template <bool gather>
static void launch_copy(struct stream *s, void *dst, const void *src, const struct token_rows *rows,
                        int C)
{
    bf16 *to = (bf16 *)dst;
    const bf16 *from = (const bf16 *)src;
    const size_t n = (size_t)rows->n_seqs * C;
    if (n == 0)
        return;
    if (rows_are_vectors(C, (uintptr_t)dst | (uintptr_t)src))
        LAUNCH((copy_last<VECTOR, gather>), divide_up(n / VECTOR, THREADS), THREADS, 0, s, to, from,
               *rows, C);
    else
        LAUNCH((copy_last<1, gather>), divide_up(n, THREADS), THREADS, 0, s, to, from, *rows, C);
}

void cuda_gather_last(struct stream *s, void *y, const void *x, const struct token_rows *rows,
                      int C)
{
    launch_copy<true>(s, y, x, rows, C);
}

void cuda_scatter_last(struct stream *s, void *dx, const void *dy, const struct token_rows *rows,
                       int C)
{
    if (rows->n_tokens > 0)
        check_cuda(cudaMemsetAsync(dx, 0, sizeof(bf16) * (size_t)rows->n_tokens * C, s->cuda));
    launch_copy<false>(s, dx, dy, rows, C);
}
