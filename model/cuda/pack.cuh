/* Rows of bf16 and fp32 in packs, neighbouring elements that one instruction loads or stores;
 * dropout of them; sums over a block. */
#ifndef ZF_MODEL_CUDA_PACK_CUH
#define ZF_MODEL_CUDA_PACK_CUH

#include "model/cuda/dropout.cuh"
#include "model/cuda/intrinsics.cuh"

/* W elements; two instructions where they are 32 bytes. */
template <typename T, int W> struct alignas(sizeof(T) * W < 16 ? sizeof(T) * W : 16) pack {
    T v[W];
};

template <int W, typename T> __device__ static inline pack<T, W> load_pack(const T *from)
{
    return *(const pack<T, W> *)from;
}

template <int W, typename T> __device__ static inline void store_pack(T *to, const pack<T, W> &x)
{
    *(pack<T, W> *)to = x;
}

__device__ static inline float to_float(float x)
{
    return x;
}

__device__ static inline void convert(float &to, float x)
{
    to = x;
}

__device__ static inline void convert(bf16 &to, float x)
{
    to = to_bf16(x);
}

__device__ static inline void convert(bf16 &to, bf16 x)
{
    to = x;
}

/* Rows are read and written `width` elements at a time: VECTOR, in accesses of 16 bytes, where the
 * row length and all pointers allow it, else 1. */
#define VECTOR 8

/* Loops over rows are unrolled so that several loads are under way at once. */
#ifdef __CUDACC__
#define UNROLL_ROWS _Pragma("unroll 8")
#else
#define UNROLL_ROWS
#endif

/* Whether rows of C elements may be accessed in vectors;
 * `pointers`: the addresses or-ed together. */
static inline bool rows_are_vectors(int C, uintptr_t pointers)
{
    return C % VECTOR == 0 && pointers % 16 == 0;
}

template <int width, typename T>
__device__ static inline void unpack(float (&x)[width], const pack<T, width> &raw)
{
    for (int i = 0; i < width; i++)
        x[i] = to_float(raw.v[i]);
}

template <int width, typename T>
__device__ static inline void load(float (&x)[width], const T *from)
{
    unpack<width>(x, load_pack<width>(from));
}

template <int width, typename T> __device__ static inline void store(T *to, const float (&x)[width])
{
    pack<T, width> raw;
    for (int i = 0; i < width; i++)
        convert(raw.v[i], x[i]);
    store_pack<width>(to, raw);
}

/* x[i] *= the dropout factor of column + i of a token's row; column is a multiple of the width. */
template <int width>
__device__ static inline void apply_dropout(float (&x)[width], const struct dropout &drop,
                                            const struct token_rows &rows, int token, int column)
{
    if (drop.p == 0)
        return;
    const uint32_t sequence = rows.token_seq[token], position = (uint32_t)rows.position[token];
    float factor[4];
    if constexpr (width == 1) {
        dropout_quad(factor, drop, drop.site, sequence, position, (uint32_t)column / 4);
        const int i = column % 4; /* compared, not indexed with: an index would leave registers */
        x[0] *= i < 2 ? (i == 0 ? factor[0] : factor[1]) : (i == 2 ? factor[2] : factor[3]);
    } else {
        for (int i = 0; i < width; i += 4) {
            dropout_quad(factor, drop, drop.site, sequence, position, (uint32_t)(column + i) / 4);
            for (int j = 0; j < 4; j++)
                x[i + j] *= factor[j];
        }
    }
}

/* The sum over the block, the same bits in every thread. Ends with all threads reading `shared`,
 * so the next use of it needs a barrier in between. */
__device__ static inline float block_sum(float x, float (&shared)[WARP])
{
    x = warp_sum(x);
    if (blockDim.x == WARP)
        return x;
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = x;
    __syncthreads();
    float sum = 0;
    for (unsigned i = 0; i < blockDim.x / WARP; i++)
        sum += shared[i];
    return sum;
}

#endif
