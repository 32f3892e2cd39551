/* How kernels find their way in a batch of matrices (model/device/matrix_batch.h).
 *
 * A launch works on all matrices of its batch: its warps, or for norms its thread blocks, take the
 * batch's pieces by their numbers through all matrices, and find the matrix by a search. A second
 * dimension of the grid, for the matrix, would need no search; but it has to be as large for a
 * vector of 768, one row, as for the token embeddings' 50,000, and of its blocks nearly all would
 * begin only to find that they have nothing to do, or, were there fewer, those of the largest
 * matrix would still work when all others have ended. Numbers go round the warps evenly, whatever
 * the shapes are. */
#ifndef ZF_MODEL_CUDA_BATCH_CUH
#define ZF_MODEL_CUDA_BATCH_CUH

#include "model/cuda/pack.cuh"

extern "C" {
#include "model/device/row_ops.h"
}

/* The matrix that a number belongs to: the last of those whose `first` is not greater, which has
 * some, since one without has the `first` of the next. A warp looks at 32 at a time: two rounds do
 * for a thousand matrices. All lanes call it, with the same number. */
template <int matrix_rows::*first>
__device__ static inline const matrix_rows *matrix_of(const matrix_batch &batch, int number)
{
    int low = 0, high = batch.n;
    while (high - low > 1) {
        const int step = (high - low + WARP - 1) / WARP, probe = low + threadIdx.x % WARP * step;
        const bool reached = probe < high && batch.matrices[probe].*first <= number;
        low += (count_bits(ballot(FULL_MASK, reached)) - 1) * step;
        high = low + step < high ? low + step : high;
    }
    return &batch.matrices[low];
}

/* A warp's way through the pieces of a batch. */
struct piece_walk {
    const matrix_rows *matrix; /* of the last piece */
    int end, per_row;          /* its pieces' end, and how many a row has */
};

/* Columns [first, last) of a row. */
struct row_piece {
    const matrix_rows *matrix;
    int row, first, last;
};

/* `piece` counts from the batch's first, and grows from call to call. */
__device__ static inline row_piece piece_at(const matrix_batch &batch, int piece, piece_walk &walk)
{
    const int number = batch.first_piece + piece;
    if (number >= walk.end) {
        walk.matrix = matrix_of<&matrix_rows::first_piece>(batch, number);
        walk.per_row = (walk.matrix->cols + ROW_PIECE - 1) / ROW_PIECE;
        walk.end = walk.matrix->first_piece + walk.matrix->n_rows * walk.per_row;
    }
    const unsigned at = number - walk.matrix->first_piece, row = at / walk.per_row;
    const int first = (int)(at - row * walk.per_row) * ROW_PIECE, cols = walk.matrix->cols;
    return {walk.matrix, (int)row, first, first + ROW_PIECE < cols ? first + ROW_PIECE : cols};
}

/* Warps take pieces in turn. */
__device__ static inline int first_piece(void)
{
    return (int)(blockIdx.x * blockDim.x + threadIdx.x) / WARP;
}

__device__ static inline int piece_stride(void)
{
    return (int)(gridDim.x * blockDim.x) / WARP;
}

/* May packs of `bytes` be used in a row of `cols` elements, W to the pack, that begins there? */
template <int W> __device__ static inline bool fits_pack(const void *array, size_t bytes, int cols)
{
    return cols % W == 0 && (uintptr_t)array % bytes == 0;
}

#endif
