/* What the tests of the engine's operators share: both devices, arrays on either side, and what
 * comparing the two allows. */
#ifndef ZF_TESTS_GPU_CUDA_ROWS_TESTING_H
#define ZF_TESTS_GPU_CUDA_ROWS_TESTING_H

#include "tests/gpu/cuda_testing.h"

#define ROUNDING 1e-6 /* relative: what an order of sums and fused multiply-adds may change */

static struct device *cuda, *cpu;

__attribute__((unused)) static int set_up(void **state)
{
    (void)state;
    cpu = device_cpu(2);
    cuda = cuda_device();
    return 0;
}

__attribute__((unused)) static uint32_t random_bits(size_t i, uint32_t key)
{
    return philox4x32((struct philox){{(uint32_t)i, 0, 0, 0}}, key, 3).v[0];
}

__attribute__((unused)) static float *random_array(size_t n, uint32_t key)
{
    float *x = zf_malloc_aligned(sizeof(float) * n);
    for (size_t i = 0; i < n; i++)
        x[i] = 2 * philox_uniform(random_bits(i, key)) - 1;
    return x;
}

__attribute__((unused)) static uint16_t *rounded(const float *x, size_t n)
{
    uint16_t *half = zf_malloc_aligned(sizeof *half * n);
    for (size_t i = 0; i < n; i++)
        half[i] = bf16_from_f32(x[i]);
    return half;
}

__attribute__((unused)) static void *copy_of(const void *x, size_t bytes)
{
    return memcpy(zf_malloc_aligned(bytes), x, bytes);
}

/* Reads it back into a new array and releases it. */
__attribute__((unused)) static void *off_device(void *memory, size_t bytes)
{
    void *x = zf_malloc_aligned(bytes);
    cuda->copy(cuda->compute, x, memory, bytes);
    cuda->release(memory);
    return x;
}

__attribute__((unused)) static void *pinned(const void *x, size_t bytes)
{
    return memcpy(cuda->allocate_host(bytes), x, bytes);
}

__attribute__((unused)) static void assert_close(const char *what, const float *x,
                                                 const float *expected, size_t n, double tolerance)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)x[i] - expected[i]) <= tolerance * (1 + fabs((double)expected[i]))))
            fail_msg("%s: element %zu is %.9g, on the CPU device %.9g", what, i, (double)x[i],
                     (double)expected[i]);
}

/* Runs the tests in every order of streams. */
#define run_in_every_order(name, tests)                                                            \
    int n_failed = 0;                                                                              \
    for (uint32_t order = 0; order < CUDA_ORDERS; order++) {                                       \
        cuda_order(order);                                                                         \
        n_failed += cmocka_run_group_tests_name(name, tests, set_up, NULL);                        \
    }                                                                                              \
    return n_failed

#endif
