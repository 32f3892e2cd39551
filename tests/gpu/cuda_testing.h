/* What tests of the CUDA device share: opening it or skipping, orders of streams, arrays in its
 * memory, and what bf16 allows. The same tests run on a GPU and under tests/cuda_emulator/. */
#ifndef ZF_TESTS_GPU_CUDA_TESTING_H
#define ZF_TESTS_GPU_CUDA_TESTING_H

#include "tests/seed.h"
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/bf16.h"
#include "data/rng.h"
#include "model/device/ops.h"
#include "model/device/row_ops.h"

#include <math.h>

/* The emulator's: decides the order in which streams, blocks and threads run. Absent on a GPU. */
extern void emulator_seed(uint32_t seed) __attribute__((weak));

/* CTest reports a program that ends so as skipped. */
#define SKIPPED 77

/* How many orders of streams a test goes through, and the one that follows. */
#define CUDA_ORDERS (emulator_seed ? test_repeats(20) : 1u)

__attribute__((unused)) static void cuda_order(uint32_t order)
{
    if (emulator_seed)
        emulator_seed(order);
}

/* The CUDA device; ends the program as skipped, saying why, where there is none. */
__attribute__((unused)) static struct device *cuda_device(void)
{
    static bool printed;
    struct zf_error err;
    if (emulator_seed && !printed)
        test_print_seed();
    printed = true;
    struct device *device = device_cuda(0, &err);
    if (device)
        return device;
    print_message("skipped: %s\n", err.text);
    exit(device_cuda_count() == 0 ? SKIPPED : 1);
}

/* n values, uniform in [-scale, scale), which bf16 holds exactly: so that the CPU device computes
 * with the same. The caller frees them. */
__attribute__((unused)) static float *cuda_random(size_t n, float scale, uint32_t key)
{
    float *x = zf_malloc_aligned(sizeof(float) * n);
    for (size_t i = 0; i < n; i++) {
        struct philox p = philox4x32((struct philox){{(uint32_t)i, 0, 0, 0}}, key, 7);
        x[i] = bf16_to_f32(bf16_from_f32(scale * (2 * philox_uniform(p.v[0]) - 1)));
    }
    return x;
}

/* A whole number in [low, high]. */
__attribute__((unused)) static int cuda_random_int(int low, int high, uint32_t i, uint32_t key)
{
    struct philox p = philox4x32((struct philox){{i, 1, 0, 0}}, key, 7);
    return low + (int)(p.v[0] % (uint32_t)(high - low + 1));
}

/* Copies to new device memory, on the compute stream: bytes as they are, or n floats in a dtype. */
__attribute__((unused)) static void *cuda_upload(struct device *d, const void *x, size_t bytes)
{
    void *memory = d->allocate(bytes);
    d->copy(d->compute, memory, x, bytes);
    return memory;
}

__attribute__((unused)) static void *cuda_upload_floats(struct device *d, const float *x, size_t n,
                                                        enum dtype dtype)
{
    if (dtype == DTYPE_F32)
        return cuda_upload(d, x, sizeof(float) * n);
    uint16_t *half = zf_malloc_aligned(sizeof *half * n);
    for (size_t i = 0; i < n; i++)
        half[i] = bf16_from_f32(x[i]);
    void *memory = cuda_upload(d, half, sizeof *half * n);
    free(half);
    return memory;
}

/* Reads n values back when the compute stream gets there, as new floats; the memory stays. */
__attribute__((unused)) static float *cuda_download(struct device *d, const void *memory, size_t n,
                                                    enum dtype dtype)
{
    float *x = zf_malloc_aligned(sizeof(float) * n);
    d->copy(d->compute, x, memory, dtype_size(dtype) * n);
    if (dtype == DTYPE_BF16)
        for (size_t i = n; i-- > 0;) { /* from the end: in place */
            uint16_t half;
            memcpy(&half, (const char *)x + sizeof half * i, sizeof half);
            x[i] = bf16_to_f32(half);
        }
    return x;
}

/* Sequences of these lengths one after the other: fills in each token's position and sequence
 * (`first` and on), and where sequences start. Returns how many tokens there are. */
__attribute__((unused)) static int cuda_lay_sequences(const int *length, int n_seqs, uint32_t first,
                                                      int *position, uint32_t *token_seq,
                                                      int *seq_start)
{
    int n = 0;
    for (int i = 0; i < n_seqs; i++) {
        seq_start[i] = n;
        for (int t = 0; t < length[i]; t++, n++) {
            position[n] = t;
            token_seq[n] = first + (uint32_t)i;
        }
    }
    return seq_start[n_seqs] = n;
}

/* norm(x - expected) / norm(expected), of `rows` rows of n columns at distance `stride`; infinite
 * where a value is not finite. */
__attribute__((unused)) static double cuda_rows_error(const float *x, const float *expected,
                                                      size_t rows, size_t n, size_t stride)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < rows * n; i++) {
        const size_t at = i / n * stride + i % n;
        const double d = (double)x[at] - (double)expected[at];
        difference += d * d;
        size += (double)expected[at] * (double)expected[at];
    }
    if (!isfinite(difference))
        return INFINITY;
    return difference == 0 ? 0 : sqrt(difference / (size > 0 ? size : 1e-30));
}

__attribute__((unused)) static double cuda_relative_error(const float *x, const float *expected,
                                                          size_t n)
{
    return cuda_rows_error(x, expected, 1, n, n);
}

/* Fails where the relative error is above the bound, naming what it was. */
#define assert_relative_error(what, x, expected, n, bound)                                         \
    do {                                                                                           \
        const double error_ = cuda_relative_error(x, expected, n);                                 \
        if (!(error_ <= (bound)))                                                                  \
            fail_msg("%s: relative error %.3g, above %.3g", what, error_, (double)(bound));        \
    } while (0)

#endif
