/* What the tests of the engine's operators share: the CPU device, and numbers. */
#ifndef ZF_TESTS_UNIT_ROWS_TESTING_H
#define ZF_TESTS_UNIT_ROWS_TESTING_H

#include "tests/testing.h"

#include "data/alloc.h"
#include "data/rng.h"
#include "model/device/row_ops.h"

#include <math.h>

static struct device *device;
#define OPS     (device->ops)
#define ROW_OPS (device->row_ops)
#define COMPUTE (device->compute)

static inline int set_up(void **state)
{
    (void)state;
    device = device_cpu(2);
    return 0;
}

static inline uint32_t random_bits(size_t i, uint32_t key)
{
    return philox4x32((struct philox){{(uint32_t)i, 0, 0, 0}}, key, 2).v[0];
}

static inline float *random_array(size_t n, uint32_t key)
{
    float *x = zf_malloc_aligned(sizeof(float) * n);
    for (size_t i = 0; i < n; i++)
        x[i] = 2 * philox_uniform(random_bits(i, key)) - 1;
    return x;
}

static inline void *copy_of(const void *x, size_t bytes)
{
    return memcpy(zf_malloc_aligned(bytes), x, bytes);
}

static inline void assert_near(const char *what, float x, double expected, double tolerance)
{
    if (!(fabs(x - expected) <= tolerance * (1 + fabs(expected))))
        fail_msg("%s is %.9g, expected %.9g", what, x, expected);
}

#endif
