/* The engine's operators on rows of a matrix: rows that gather gradients, leave for the host,
 * arrive from it, or are copied.
 *
 * A row is cut into pieces, and warps take pieces in turn: a lane has BATCH packs of a piece in
 * flight at once. Rows outside the set cost a look at their group, which is arithmetic, and at most
 * one byte of memory. */
#include "model/cuda/cuda_ops.h"
#include "model/cuda/pack.cuh"

#define BLOCK 256
#define BATCH 4

/* The grid of operators that run on side streams, beside the model's kernels. A link of 64 GB/s
 * with a latency of 2 us needs 128 KB in flight; one pack of 16 bytes in each of these threads is
 * that much, and most multiprocessors are left alone. */
#define SIDE_BLOCKS 32

/* So many elements are a piece, in packs of W. */
template <int W> constexpr int PIECE = BATCH *WARP *W;

/* Which piece a warp works on: columns from `first` of a row. Pieces are numbered row by row. */
struct place_in_rows {
    int row, first;
};

template <int W> __device__ static inline int pieces_of(int cols)
{
    return (cols + PIECE<W> - 1) / PIECE<W>;
}

template <int W> __device__ static inline place_in_rows piece_at(unsigned piece, unsigned per_row)
{
    const unsigned row = piece / per_row;
    return {(int)row, (int)(piece - row * per_row) * PIECE<W>};
}

__device__ static inline unsigned first_piece(void)
{
    return (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
}

__device__ static inline unsigned piece_stride(void)
{
    return gridDim.x * blockDim.x / WARP;
}

/* A channel_set as kernels take it. It has no padding, so that every byte of it is defined. */
struct row_set {
    const unsigned char *place;
    uint64_t groups;
    int n_rows, shift, n_groups, with_leaving;
};

static row_set kernel_set(const struct channel_set *set)
{
    return {set->place, set->groups, set->n_rows, set->shift, set->n_groups, set->with_leaving};
}

__device__ static inline int group_of(const row_set &set, int row)
{
    return (int)((unsigned)(row + set.shift) % (unsigned)set.n_groups);
}

__device__ static inline bool in_set(const row_set &set, int row, int group)
{
    if (!(set.groups >> group & 1))
        return false;
    const unsigned char place = set.place[row];
    return place == CHANNEL_DEFERRED || (place == CHANNEL_LEAVING && set.with_leaving);
}

/* Blocks for so many rows, as many as `most`. */
template <int W> static int blocks_for(int n_rows, int cols, int most)
{
    const int blocks = divide_up((size_t)n_rows * divide_up(cols, PIECE<W>), BLOCK / WARP);
    return blocks < most ? blocks : most;
}

/* Limit: memory. Reads 8 bytes for each element of the set's rows, 4 where the window is fresh, and
 * writes 4. */
template <int W>
__global__ static void __launch_bounds__(BLOCK)
    accumulate_kernel(float *__restrict__ window, const float *__restrict__ gradient, row_set set,
                      uint64_t fresh, int cols, const float *__restrict__ scale)
{
    const float factor = *scale;
    if (factor == 0)
        return;
    const unsigned per_row = pieces_of<W>(cols), n_pieces = set.n_rows * per_row;
    for (unsigned piece = first_piece(); piece < n_pieces; piece += piece_stride()) {
        const place_in_rows at = piece_at<W>(piece, per_row);
        const int group = group_of(set, at.row);
        if (!in_set(set, at.row, group))
            continue;
        const bool keeps = !(fresh >> group & 1);
        float *sum = window + (size_t)at.row * cols;
        const float *x = gradient + (size_t)at.row * cols;
        pack<float, W> a[BATCH] = {}, b[BATCH];
        for (int i = 0; i < BATCH; i++) {
            const int j = at.first + (i * WARP + threadIdx.x % WARP) * W;
            if (j < cols && keeps)
                a[i] = load_pack<W>(sum + j);
            if (j < cols)
                b[i] = load_pack<W>(x + j);
        }
        for (int i = 0; i < BATCH; i++) {
            const int j = at.first + (i * WARP + threadIdx.x % WARP) * W;
            if (j >= cols)
                continue;
            for (int e = 0; e < W; e++)
                a[i].v[e] += factor * b[i].v[e];
            store_pack(sum + j, a[i]);
        }
    }
}

void cuda_accumulate_rows(struct stream *s, float *window, const float *gradient,
                          const struct channel_set *set, uint64_t fresh, int cols,
                          const float *scale)
{
    const int most = 8 * cuda_multiprocessors();
    if (set->n_rows == 0 || cols == 0 || set->groups == 0)
        return;
    if (cols % 4 == 0 && is_multiple(window, 16) && is_multiple(gradient, 16))
        LAUNCH((accumulate_kernel<4>), blocks_for<4>(set->n_rows, cols, most), BLOCK, 0, s, window,
               gradient, kernel_set(set), fresh, cols, scale);
    else
        LAUNCH((accumulate_kernel<1>), blocks_for<1>(set->n_rows, cols, most), BLOCK, 0, s, window,
               gradient, kernel_set(set), fresh, cols, scale);
}

/* dst = src for the rows of the set, divided on the way where `divides`. Limit: the link.
 * Reads and writes each element of the set's rows once. */
template <typename To, typename From, int W, bool divides>
__global__ static void __launch_bounds__(BLOCK)
    transfer_kernel(To *__restrict__ dst, const From *__restrict__ src, row_set set, int cols,
                    float divisor)
{
    const unsigned per_row = pieces_of<W>(cols), n_pieces = set.n_rows * per_row;
    for (unsigned piece = first_piece(); piece < n_pieces; piece += piece_stride()) {
        const place_in_rows at = piece_at<W>(piece, per_row);
        if (!in_set(set, at.row, group_of(set, at.row)))
            continue;
        const size_t row = (size_t)at.row * cols;
        pack<From, W> x[BATCH];
        for (int i = 0; i < BATCH; i++) {
            const int j = at.first + (i * WARP + threadIdx.x % WARP) * W;
            if (j < cols)
                x[i] = load_pack<W>(src + row + j);
        }
        for (int i = 0; i < BATCH; i++) {
            const int j = at.first + (i * WARP + threadIdx.x % WARP) * W;
            if (j >= cols)
                continue;
            pack<To, W> y;
            for (int e = 0; e < W; e++) {
                if constexpr (divides)
                    convert(y.v[e], x[i].v[e] / divisor);
                else
                    convert(y.v[e], x[i].v[e]);
            }
            store_pack(dst + row + j, y);
        }
    }
}

/* The wider pack is one of W elements: 16 bytes of the narrower type. */
template <typename To, typename From, int W, bool divides>
static void transfer(struct stream *s, To *dst, const From *src, const struct channel_set *set,
                     int cols, float divisor)
{
    if (set->n_rows == 0 || cols == 0 || set->groups == 0)
        return;
    if (cols % W == 0 && is_multiple(dst, 16) && is_multiple(src, 16))
        LAUNCH((transfer_kernel<To, From, W, divides>),
               blocks_for<W>(set->n_rows, cols, SIDE_BLOCKS), BLOCK, 0, s, dst, src,
               kernel_set(set), cols, divisor);
    else
        LAUNCH((transfer_kernel<To, From, 1, divides>),
               blocks_for<1>(set->n_rows, cols, SIDE_BLOCKS), BLOCK, 0, s, dst, src,
               kernel_set(set), cols, divisor);
}

void cuda_send_rows(struct stream *s, void *dst, enum dtype dtype, const float *src,
                    const struct channel_set *set, int cols, float divisor)
{
    if (dtype == DTYPE_F32)
        transfer<float, float, 4, true>(s, (float *)dst, src, set, cols, divisor);
    else
        transfer<bf16, float, 8, true>(s, (bf16 *)dst, src, set, cols, divisor);
}

void cuda_receive_rows(struct stream *s, void *param, const void *src, enum dtype dtype,
                       const struct channel_set *set, int cols)
{
    if (dtype == DTYPE_F32)
        transfer<bf16, float, 8, false>(s, (bf16 *)param, (const float *)src, set, cols, 1);
    else
        transfer<bf16, bf16, 8, false>(s, (bf16 *)param, (const bf16 *)src, set, cols, 1);
}

/* Limit: memory, or the link. Reads and writes each byte once. W halves of a word are a pack,
 * `cols` of them a row. */
template <int W>
__global__ static void __launch_bounds__(BLOCK)
    copy_kernel(uint16_t *__restrict__ dst, const int *__restrict__ dst_row,
                const uint16_t *__restrict__ src, const int *__restrict__ src_row, int n, int cols)
{
    const unsigned per_row = pieces_of<W>(cols), n_pieces = n * per_row;
    for (unsigned piece = first_piece(); piece < n_pieces; piece += piece_stride()) {
        const place_in_rows at = piece_at<W>(piece, per_row);
        const uint16_t *from = src + (size_t)(src_row ? src_row[at.row] : at.row) * cols;
        uint16_t *to = dst + (size_t)(dst_row ? dst_row[at.row] : at.row) * cols;
        pack<uint16_t, W> x[BATCH];
        for (int i = 0; i < BATCH; i++) {
            const int j = at.first + (i * WARP + threadIdx.x % WARP) * W;
            if (j < cols)
                x[i] = load_pack<W>(from + j);
        }
        for (int i = 0; i < BATCH; i++) {
            const int j = at.first + (i * WARP + threadIdx.x % WARP) * W;
            if (j < cols)
                store_pack(to + j, x[i]);
        }
    }
}

template <int W>
static void copy_rows(struct stream *s, void *dst, const int *dst_row, const void *src,
                      const int *src_row, int n, int cols)
{
    LAUNCH((copy_kernel<W>), blocks_for<W>(n, cols, SIDE_BLOCKS), BLOCK, 0, s, (uint16_t *)dst,
           dst_row, (const uint16_t *)src, src_row, n, cols);
}

void cuda_copy_rows(struct stream *s, void *dst, const int *dst_row, const void *src,
                    const int *src_row, int n, size_t row_bytes)
{
    const uintptr_t both = (uintptr_t)dst | (uintptr_t)src | row_bytes;
    const int cols = (int)(row_bytes / sizeof(uint16_t));
    if (n == 0 || cols == 0)
        return;
    if (both % 16 == 0)
        copy_rows<8>(s, dst, dst_row, src, src_row, n, cols);
    else if (both % 8 == 0)
        copy_rows<4>(s, dst, dst_row, src, src_row, n, cols);
    else if (both % 4 == 0)
        copy_rows<2>(s, dst, dst_row, src, src_row, n, cols);
    else
        copy_rows<1>(s, dst, dst_row, src, src_row, n, cols);
}
