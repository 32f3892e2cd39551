/* The engine's operators on rows of matrices: rows that gather gradients, leave for the host,
 * arrive from it, or are copied.
 *
 * Warps take pieces of rows in turn, and a lane has several packs of a piece in flight at once.
 * Rows outside the set cost a look at their group, which is arithmetic, and at most one byte of
 * memory. Whether a row allows wide packs is its matrix's affair: one launch has matrices of both
 * kinds. */
#include "model/cuda/batch.cuh"
#include "model/cuda/cuda_ops.h"

#include <assert.h>

#define BLOCK 256

/* The grid of operators that read or write the host's memory, beside the model's kernels, is
 * ROW_SIDE_BLOCKS. A link of 64 GB/s with a latency of 2 us needs 128 KB in flight; one pack of 16
 * bytes in each of these threads is that much, and most multiprocessors are left alone. */

/* Packs of W that a lane has in flight: all of its part of a piece, but no more than 4. */
template <int W> constexpr int BATCH = ROW_PIECE / (WARP * W) < 4 ? ROW_PIECE / (WARP * W) : 4;

/* A channel_set as kernels take it. It has no padding, so that every byte of it is defined. */
struct row_set {
    uint64_t groups;
    int n_groups, with_leaving;
};

static row_set kernel_set(const struct channel_set *set)
{
    return {set->groups, set->n_groups, set->with_leaving};
}

/* The groups of the matrix that a warp is in: found anew where it comes to another. */
struct group_walk {
    const matrix_rows *matrix;
    row_groups groups;
};

__device__ static inline int group_of(int n_groups, const row_piece &at, group_walk &walk)
{
    if (walk.matrix != at.matrix) {
        walk.matrix = at.matrix;
        walk.groups = row_groups_of(&at.matrix->part, n_groups);
    }
    return row_groups_group(&walk.groups, at.row);
}

__device__ static inline bool in_set(const row_set &set, const matrix_rows &m, int row, int group)
{
    if (!(set.groups >> group & 1))
        return false;
    const unsigned char place = m.place[row];
    return place == CHANNEL_DEFERRED || (place == CHANNEL_LEAVING && set.with_leaving);
}

/* Blocks whose warps take so many pieces, as many as `most`. */
static int blocks_for(int n_pieces, int most)
{
    const int blocks = divide_up(n_pieces, BLOCK / WARP);
    return blocks < most ? blocks : most;
}

/* sum = (keeps ? sum : 0) + factor x, columns [first, last) */
template <int W, typename From>
__device__ static inline void accumulate_piece(float *__restrict__ sum, const From *__restrict__ x,
                                               int first, int last, bool keeps, float factor)
{
    for (first += threadIdx.x % WARP * W; first < last; first += BATCH<W> * WARP * W) {
        pack<float, W> a[BATCH<W>] = {};
        pack<From, W> b[BATCH<W>];
        for (int i = 0; i < BATCH<W>; i++) {
            const int j = first + i * WARP * W;
            if (j < last && keeps)
                a[i] = load_pack<W>(sum + j);
            if (j < last)
                b[i] = load_pack<W>(x + j);
        }
        for (int i = 0; i < BATCH<W>; i++) {
            const int j = first + i * WARP * W;
            if (j >= last)
                continue;
            for (int e = 0; e < W; e++)
                a[i].v[e] = fmaf(factor, to_float(b[i].v[e]), a[i].v[e]);
            store_pack(sum + j, a[i]);
        }
    }
}

/* Limit: memory. Reads 6 bytes for each element of the set's rows (of bf16), 2 where the window is
 * fresh, and writes 4. */
template <typename From>
__global__ static void __launch_bounds__(BLOCK)
    accumulate_kernel(matrix_batch batch, row_set set, uint64_t fresh,
                      const float *__restrict__ scale)
{
    const float factor = *scale;
    if (factor == 0)
        return;
    piece_walk walk = {};
    group_walk groups = {};
    for (int piece = first_piece(); piece < batch.n_pieces; piece += piece_stride()) {
        const row_piece at = piece_at(batch, piece, walk);
        const matrix_rows &m = *at.matrix;
        const int group = group_of(set.n_groups, at, groups);
        if (!in_set(set, m, at.row, group))
            continue;
        const bool keeps = !(fresh >> group & 1);
        float *sum = m.window + (size_t)at.row * m.cols;
        const From *x = (const From *)m.deferred + (size_t)at.row * m.cols;
        if (fits_pack<4>(sum, 16, m.cols) && fits_pack<4>(x, 4 * sizeof *x, m.cols))
            accumulate_piece<4>(sum, x, at.first, at.last, keeps, factor);
        else
            accumulate_piece<1>(sum, x, at.first, at.last, keeps, factor);
    }
}

void cuda_accumulate_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                          const struct channel_set *set, uint64_t fresh, const float *scale)
{
    const int blocks = blocks_for(batch->n_pieces, 8 * cuda_multiprocessors());
    if (batch->n_pieces == 0 || set->groups == 0)
        return;
    if (dtype == DTYPE_F32)
        LAUNCH((accumulate_kernel<float>), blocks, BLOCK, 0, s, *batch, kernel_set(set), fresh,
               scale);
    else
        LAUNCH((accumulate_kernel<bf16>), blocks, BLOCK, 0, s, *batch, kernel_set(set), fresh,
               scale);
}

/* dst = src, divided on the way where `divides`; columns [first, last) */
template <int W, bool divides, typename To, typename From>
__device__ static inline void transfer_piece(To *__restrict__ dst, const From *__restrict__ src,
                                             int first, int last, float divisor)
{
    for (first += threadIdx.x % WARP * W; first < last; first += BATCH<W> * WARP * W) {
        pack<From, W> x[BATCH<W>];
        for (int i = 0; i < BATCH<W>; i++) {
            const int j = first + i * WARP * W;
            if (j < last)
                x[i] = load_pack<W>(src + j);
        }
        for (int i = 0; i < BATCH<W>; i++) {
            const int j = first + i * WARP * W;
            if (j >= last)
                continue;
            pack<To, W> y;
            for (int e = 0; e < W; e++) {
                if constexpr (divides)
                    convert(y.v[e], x[i].v[e] / divisor);
                else
                    convert(y.v[e], x[i].v[e]);
            }
            store_pack(dst + j, y);
        }
    }
}

/* W elements are 16 bytes. Limit: the link. Reads and writes each element of the set once. */
template <typename T, int W>
__global__ static void __launch_bounds__(BLOCK) stage_kernel(matrix_batch batch, row_set set)
{
    piece_walk walk = {};
    group_walk groups = {};
    for (int piece = first_piece(); piece < batch.n_pieces; piece += piece_stride()) {
        const row_piece at = piece_at(batch, piece, walk);
        const matrix_rows &m = *at.matrix;
        if (!in_set(set, m, at.row, group_of(set.n_groups, at, groups)))
            continue;
        const size_t row = (size_t)at.row * m.cols;
        T *dst = (T *)m.staged + row;
        const T *src = (const T *)m.deferred + row;
        if (fits_pack<W>(dst, 16, m.cols) && fits_pack<W>(src, 16, m.cols))
            transfer_piece<W, false>(dst, src, at.first, at.last, 1);
        else
            transfer_piece<1, false>(dst, src, at.first, at.last, 1);
    }
}

template <typename T, int W>
static void stage(struct stream *s, const struct matrix_batch *batch, const struct channel_set *set)
{
    if (batch->n_pieces > 0 && set->groups != 0)
        LAUNCH((stage_kernel<T, W>), blocks_for(batch->n_pieces, ROW_SIDE_BLOCKS), BLOCK, 0, s,
               *batch, kernel_set(set));
}

void cuda_stage_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                     const struct channel_set *set)
{
    if (dtype == DTYPE_F32)
        stage<float, 4>(s, batch, set);
    else
        stage<bf16, 8>(s, batch, set);
}

/* packed_rows as kernels take it, without padding. */
struct row_places {
    void *memory;
    size_t first, n;
    int group, n_groups;
};

/* Whether a row is meant; then *at is its place, in elements of the memory. */
template <bool arrives>
__device__ static inline bool has_place(const row_places &p, const row_piece &piece,
                                        group_walk &walk, size_t *at)
{
    const matrix_rows &m = *piece.matrix;
    if (group_of(p.n_groups, piece, walk) != p.group)
        return false;
    const int position = row_groups_count(&walk.groups, p.group, piece.row);
    *at = m.packed + (size_t)position * m.cols - p.first; /* of one before, it is huge */
    if (*at >= p.n)
        return false;
    const unsigned char place = m.place[piece.row];
    return place == CHANNEL_DEFERRED || (!arrives && place == CHANNEL_ENTERING);
}

/* To and From are the types at either end; the wider pack is one of W elements: 16 bytes of the
 * narrower type. Limit: the link, or of device memory that. Reads and writes each element of the
 * rows that are meant once. */
template <typename To, typename From, int W, bool arrives>
__global__ static void __launch_bounds__(BLOCK)
    packed_kernel(matrix_batch batch, row_places places, float divisor)
{
    piece_walk walk = {};
    group_walk groups = {};
    for (int piece = first_piece(); piece < batch.n_pieces; piece += piece_stride()) {
        const row_piece at = piece_at(batch, piece, walk);
        const matrix_rows &m = *at.matrix;
        size_t place;
        if (!has_place<arrives>(places, at, groups, &place))
            continue;
        const size_t row = (size_t)at.row * m.cols;
        To *dst = arrives ? (To *)m.values + row : (To *)places.memory + place;
        const From *src =
            arrives ? (const From *)places.memory + place : (const From *)(void *)m.window + row;
        if (fits_pack<W>(dst, 16, m.cols) && fits_pack<W>(src, 16, m.cols))
            transfer_piece<W, !arrives>(dst, src, at.first, at.last, divisor);
        else
            transfer_piece<1, !arrives>(dst, src, at.first, at.last, divisor);
    }
}

/* Short work in device memory may use all multiprocessors; what waits for the link leaves most. */
template <typename To, typename From, int W, bool arrives>
static void transfer(struct stream *s, const struct matrix_batch *batch,
                     const struct packed_rows *packed, float divisor)
{
    const int most = packed->on_device ? 8 * cuda_multiprocessors() : ROW_SIDE_BLOCKS;
    const row_places places = {packed->memory, packed->first, packed->n, packed->group,
                               packed->n_groups};
    if (batch->n_pieces > 0)
        LAUNCH((packed_kernel<To, From, W, arrives>), blocks_for(batch->n_pieces, most), BLOCK, 0,
               s, *batch, places, divisor);
}

void cuda_send_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                    const struct packed_rows *to, float divisor)
{
    if (dtype == DTYPE_F32)
        transfer<float, float, 4, false>(s, batch, to, divisor);
    else
        transfer<bf16, float, 8, false>(s, batch, to, divisor);
}

void cuda_receive_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                       const struct packed_rows *from)
{
    if (dtype == DTYPE_F32)
        transfer<bf16, float, 8, true>(s, batch, from, 1);
    else
        transfer<bf16, bf16, 8, true>(s, batch, from, 1);
}

/* values = master rounded; columns [first, last) */
template <int W>
__device__ static inline void show_piece(bf16 *__restrict__ value, const float *__restrict__ master,
                                         int first, int last)
{
    for (first += threadIdx.x % WARP * W; first < last; first += WARP * W) {
        const pack<float, W> x = load_pack<W>(master + first);
        pack<bf16, W> y;
        for (int e = 0; e < W; e++)
            y.v[e] = to_bf16_parameter(x.v[e]);
        store_pack(value + first, y);
    }
}

/* Limit: memory. Reads 4 bytes for each element whose state is on the device and writes 2. */
__global__ static void __launch_bounds__(BLOCK) show_kernel(matrix_batch batch)
{
    piece_walk walk = {};
    for (int piece = first_piece(); piece < batch.n_pieces; piece += piece_stride()) {
        const row_piece at = piece_at(batch, piece, walk);
        const matrix_rows &m = *at.matrix;
        const unsigned char place = m.place[at.row];
        if ((place != CHANNEL_IMPORTANT && place != CHANNEL_RESIDENT) || m.visiting)
            continue;
        bf16 *value = (bf16 *)m.values + (size_t)at.row * m.cols;
        const float *master = m.master + (size_t)m.slot[at.row] * m.cols;
        if (fits_pack<4>(value, 8, m.cols) && fits_pack<4>(master, 16, m.cols))
            show_piece<4>(value, master, at.first, at.last);
        else
            show_piece<1>(value, master, at.first, at.last);
    }
}

void cuda_show_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype)
{
    assert(dtype == DTYPE_BF16);
    (void)dtype;
    if (batch->n_pieces > 0)
        LAUNCH(show_kernel, blocks_for(batch->n_pieces, 8 * cuda_multiprocessors()), BLOCK, 0, s,
               *batch);
}

void cuda_widen(struct stream *s, float *values, const uint16_t *parameters, size_t n)
{
    cuda_to_f32(s, values, parameters, n); /* the device's own type */
}

/* Limit: memory, or the link. Reads and writes each byte once. W halves of a word are a pack,
 * `cols` of them a row. */
template <int W>
__global__ static void __launch_bounds__(BLOCK)
    copy_kernel(uint16_t *__restrict__ dst, const int *__restrict__ dst_row,
                const uint16_t *__restrict__ src, const int *__restrict__ src_row, int n, int cols)
{
    const int per_row = (cols + ROW_PIECE - 1) / ROW_PIECE, n_pieces = n * per_row;
    for (int piece = first_piece(); piece < n_pieces; piece += piece_stride()) {
        const int row = piece / per_row, first = (piece - row * per_row) * ROW_PIECE;
        const uint16_t *from = src + (size_t)(src_row ? src_row[row] : row) * cols;
        uint16_t *to = dst + (size_t)(dst_row ? dst_row[row] : row) * cols;
        transfer_piece<W, false>(to, from, first,
                                 first + ROW_PIECE < cols ? first + ROW_PIECE : cols, 1);
    }
}

template <int W>
static void copy_rows(struct stream *s, void *dst, const int *dst_row, const void *src,
                      const int *src_row, int n, int cols)
{
    LAUNCH((copy_kernel<W>), blocks_for(n * divide_up(cols, ROW_PIECE), ROW_SIDE_BLOCKS), BLOCK, 0,
           s, (uint16_t *)dst, dst_row, (const uint16_t *)src, src_row, n, cols);
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

/* Limit: memory, or the link. Reads and writes each element of the state once. */
template <bool to_slots>
__global__ static void __launch_bounds__(BLOCK)
    carry_kernel(const matrix_rows *__restrict__ matrices, const carried_row *__restrict__ rows,
                 int n, float *state)
{
    for (int piece = first_piece(); piece < 3 * n; piece += piece_stride()) {
        const int which = piece / n;
        const carried_row &r = rows[piece - which * n];
        const matrix_rows &m = matrices[r.matrix];
        float *slot = (which == 0 ? m.master : which == 1 ? m.m : m.v) + (size_t)r.slot * m.cols;
        float *packed = state + r.at + (size_t)which * m.cols;
        float *to = to_slots ? slot : packed;
        const float *from = to_slots ? packed : slot;
        if (fits_pack<4>(to, 16, m.cols) && fits_pack<4>(from, 16, m.cols))
            transfer_piece<4, false>(to, from, 0, m.cols, 1);
        else
            transfer_piece<1, false>(to, from, 0, m.cols, 1);
    }
}

void cuda_carry_rows(struct stream *s, const struct matrix_batch *batch,
                     const struct carried_rows *carried, bool to_slots)
{
    const int most = carried->on_device ? 8 * cuda_multiprocessors() : ROW_SIDE_BLOCKS;
    const int blocks = blocks_for(3 * carried->n, most);
    if (carried->n == 0)
        return;
    if (to_slots)
        LAUNCH((carry_kernel<true>), blocks, BLOCK, 0, s, batch->matrices, carried->rows,
               carried->n, carried->state);
    else
        LAUNCH((carry_kernel<false>), blocks, BLOCK, 0, s, batch->matrices, carried->rows,
               carried->n, carried->state);
}

/* Limit: launching it. */
__global__ static void __launch_bounds__(BLOCK)
    change_kernel(unsigned char *__restrict__ place, int *__restrict__ slot,
                  const channel_change *__restrict__ changes, int n)
{
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < n; i += gridDim.x * BLOCK) {
        place[changes[i].channel] = (unsigned char)changes[i].place;
        slot[changes[i].channel] = changes[i].slot;
    }
}

void cuda_change_places(struct stream *s, unsigned char *place, int *slot,
                        const struct channel_change *changes, int n)
{
    if (n > 0)
        LAUNCH(change_kernel, divide_up(n, BLOCK), BLOCK, 0, s, place, slot, changes, n);
}

/* The run that a piece is in: the last of those that do not begin behind it. */
__device__ static inline const shared_run &run_of(const shared_run *runs, int n, int piece)
{
    int low = 0;
    while (n - low > 1) {
        const int middle = (low + n) / 2;
        if (runs[middle].first_piece <= piece)
            low = middle;
        else
            n = middle;
    }
    return runs[low];
}

/* Limit: memory. Reads and writes each element once. */
template <bool packs>
__global__ static void __launch_bounds__(BLOCK)
    share_kernel(const matrix_rows *__restrict__ matrices, const shared_run *__restrict__ runs,
                 int n_runs, const int *__restrict__ rows, int first, int n_pieces, bf16 *memory)
{
    for (int piece = first_piece(); piece < n_pieces; piece += piece_stride()) {
        const shared_run &run = run_of(runs, n_runs, first + piece);
        const matrix_rows &m = matrices[run.matrix];
        const int per_row = (m.cols + ROW_PIECE - 1) / ROW_PIECE;
        const int at = first + piece - run.first_piece, k = at / per_row;
        const int begin = (at - k * per_row) * ROW_PIECE;
        const int end = begin + ROW_PIECE < m.cols ? begin + ROW_PIECE : m.cols;
        bf16 *packed = memory + run.at + (size_t)k * m.cols;
        bf16 *value = (bf16 *)m.values + (long)(rows[run.first + k] - m.part.first) * m.cols;
        bf16 *to = packs ? packed : value;
        const bf16 *from = packs ? value : packed;
        if (fits_pack<8>(to, 16, m.cols) && fits_pack<8>(from, 16, m.cols))
            transfer_piece<8, false>(to, from, begin, end, 1);
        else
            transfer_piece<1, false>(to, from, begin, end, 1);
    }
}

void cuda_share_rows(struct stream *s, const struct matrix_batch *batch,
                     const struct shared_rows *shared, bool pack)
{
    const int blocks = blocks_for(shared->n_pieces, 8 * cuda_multiprocessors());
    if (shared->n_pieces == 0)
        return;
    if (pack)
        LAUNCH((share_kernel<true>), blocks, BLOCK, 0, s, batch->matrices, shared->runs,
               shared->n_runs, shared->rows, shared->first_piece, shared->n_pieces,
               (bf16 *)shared->memory);
    else
        LAUNCH((share_kernel<false>), blocks, BLOCK, 0, s, batch->matrices, shared->runs,
               shared->n_runs, shared->rows, shared->first_piece, shared->n_pieces,
               (bf16 *)shared->memory);
}
