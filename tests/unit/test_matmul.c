/* Matrix products of the CPU device: as fast as this processor's multiply-add units allow, and the
 * same bits on any number of threads. What small ones compute is tested in test_ops.c. */
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/rng.h"
#include "model/device/ops.h"

#include <math.h>
#include <omp.h>
#include <time.h>

static float *random_array(size_t n, uint32_t key)
{
    float *x = zf_malloc_aligned(sizeof(float) * n);
    for (size_t i = 0; i < n; i++) {
        struct philox r = philox4x32((struct philox){{(uint32_t)i, 0, 0, 0}}, key, 1);
        x[i] = 2 * philox_uniform(r.v[0]) - 1;
    }
    return x;
}

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* The rate of multiply-adds alone: twelve sums in registers hide the latency of two units. */
#define DEFINE_MULTIPLY_ADDS(name, reg, floats)                                                    \
    static double name(int n)                                                                      \
    {                                                                                              \
        const double flops = 2.0 * 12 * (floats)*n;                                                \
        __asm__ volatile(".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13\n\t"                              \
                         "vxorps %%xmm\\i, %%xmm\\i, %%xmm\\i\n\t"                                 \
                         ".endr\n"                                                                 \
                         "1:\n\t"                                                                  \
                         ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n\t"                                    \
                         "vfmadd231ps %%" reg "12, %%" reg "13, %%" reg "\\i\n\t"                  \
                         ".endr\n\t"                                                               \
                         "decl %0\n\t"                                                             \
                         "jnz 1b\n\t"                                                              \
                         "vzeroupper"                                                              \
                         : "+r"(n)                                                                 \
                         :                                                                         \
                         : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",   \
                           "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13");                    \
        return flops;                                                                              \
    }
DEFINE_MULTIPLY_ADDS(multiply_adds_512, "zmm", 16)
DEFINE_MULTIPLY_ADDS(multiply_adds_256, "ymm", 8)

typedef double multiply_adds(int n);

static multiply_adds *widest(void)
{
    return __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
               ? multiply_adds_512
           : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? multiply_adds_256
                                                                             : NULL;
}

/* Of the processor, in this thread: others may want it too. */
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Turns of a few milliseconds, of which the best counts. */
enum { TURNS = 40, ENOUGH_TURNS = 8 };

/* Whether the gradient of a layer's input, whose weights are read transposed, has nearly the rate of
 * a product with weights as they lie, measured by turns. */
static void transposed_is_as_fast(void **state)
{
    (void)state;
    if (!widest()) {
        print_message("skipped: this processor has neither AVX-512 nor AVX2\n");
        skip();
    }
    const struct matmul plain = {.m = 890, .n = 576, .k = 3072};
    struct matmul transposed = plain;
    transposed.trans_b = true;
    struct device *device = device_cpu(1);
    float *a = random_array((size_t)plain.m * plain.k, 1);
    float *b = random_array((size_t)plain.k * plain.n, 2);
    float *c = random_array((size_t)plain.m * plain.n, 3);
    double best_plain = INFINITY, best = INFINITY;
    for (int i = 0; i < TURNS && (i < ENOUGH_TURNS || best > best_plain / 0.85); i++) {
        double began = seconds();
        device->ops->matmul(device->compute, c, a, b, &plain);
        const double middle = seconds();
        device->ops->matmul(device->compute, c, a, b, &transposed);
        best_plain = fmin(best_plain, middle - began);
        best = fmin(best, seconds() - middle);
    }
    print_message("%.0f%% of the plain product's rate\n", 100 * best_plain / best);
    if (best > best_plain / 0.85)
        fail_msg("a transposed matrix costs the product more than 15%% of its rate");
    free(a);
    free(b);
    free(c);
}

/* Whether a product has half the rate of multiply-adds alone, measured by turns. */
static void check_rate(struct device *device, multiply_adds *peak, struct matmul p)
{
    float *a = random_array((size_t)p.m * p.k, 1), *b = random_array((size_t)p.k * p.n, 2);
    float *c = random_array((size_t)p.m * p.n, 3);
    double product_rate = 0, peak_rate = 0;
    for (int i = 0; i < TURNS && (i < ENOUGH_TURNS || product_rate < peak_rate / 2); i++) {
        double began = seconds();
        device->ops->matmul(device->compute, c, a, b, &p);
        double rate = 2.0 * p.m * p.n * p.k / (seconds() - began);
        product_rate = rate > product_rate ? rate : product_rate;
        began = seconds();
        const double flops = peak(800000);
        rate = flops / (seconds() - began);
        peak_rate = rate > peak_rate ? rate : peak_rate;
    }
    print_message("(%d, %d, %d)%s%s: %.0f of %.0f GFLOP/s\n", p.m, p.n, p.k,
                  p.trans_a ? " a^T" : "", p.trans_b ? " b^T" : "", 1e-9 * product_rate,
                  1e-9 * peak_rate);
    if (product_rate < peak_rate / 2)
        fail_msg("products have less than half the rate of multiply-adds alone");
    free(a);
    free(b);
    free(c);
}

/* GPT-2 small's shapes on one thread: forward, backward to x and to W, the head, few tokens. */
static void half_of_the_peak(void **state)
{
    (void)state;
    multiply_adds *peak = widest();
    if (!peak) {
        print_message("skipped: this processor has neither AVX-512 nor AVX2\n");
        skip();
    }
    static const struct matmul products[] = {
        {.m = 512, .n = 3072, .k = 768},
        {.m = 512, .n = 768, .k = 3072, .trans_b = true},
        {.m = 768, .n = 3072, .k = 512, .trans_a = true, .accumulate = true},
        {.m = 128, .n = 8192, .k = 768, .trans_b = true},
        {.m = 50, .n = 2304, .k = 768},
    };
    struct device *device = device_cpu(1);
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        check_rate(device, peak, products[i]);
}
#else
static void half_of_the_peak(void **state)
{
    (void)state;
    print_message("skipped: rates are measured on x86-64 without sanitizers\n");
    skip();
}

static void transposed_is_as_fast(void **state)
{
    half_of_the_peak(state);
}
#endif

static float *multiply(int n_threads, const float *a, const float *b, const struct matmul *p)
{
    struct device *device = device_cpu(n_threads);
    float *c = random_array((size_t)p->m * p->n, 3);
    device->ops->matmul(device->compute, c, a, b, p);
    assert_int_equal(omp_get_max_threads(), n_threads); /* as before */
    return c;
}

static void check_bits(const struct matmul *p)
{
    float *a = random_array((size_t)p->m * p->k, 1), *b = random_array((size_t)p->k * p->n, 2);
    float *one = multiply(1, a, b, p);
    static const int n_threads[] = {2, 3, 8};
    for (size_t i = 0; i < sizeof n_threads / sizeof *n_threads; i++) {
        float *more = multiply(n_threads[i], a, b, p);
        if (memcmp(one, more, sizeof *one * (size_t)p->m * p->n) != 0)
            fail_msg("(%d, %d, %d), transposed %d %d, accumulated %d: other bits on %d threads",
                     p->m, p->n, p->k, p->trans_a, p->trans_b, p->accumulate, n_threads[i]);
        free(more);
    }
    free(a);
    free(b);
    free(one);
}

/* A length from 1 to `most`, short ones as likely as long ones. */
static int random_length(uint32_t shape, uint32_t which, int most)
{
    struct philox r = philox4x32((struct philox){{shape, which, 0, 0}}, 7, 1);
    return 1 + (int)(philox_uniform(r.v[0]) * philox_uniform(r.v[1]) * (float)most);
}

static void same_bits_on_any_threads(void **state)
{
    (void)state;
    for (uint32_t shape = 0; shape < 48; shape++)
        check_bits(&(struct matmul){.m = random_length(shape, 0, 1200),
                                    .n = random_length(shape, 1, 1600),
                                    .k = random_length(shape, 2, 800),
                                    .trans_a = shape & 1,
                                    .trans_b = shape & 2,
                                    .accumulate = shape & 4});
    check_bits(&(struct matmul){.m = 1024, .n = 768, .k = 768});
    check_bits(&(struct matmul){.m = 2, .n = 768, .k = 3000, .trans_a = true});
    check_bits(&(struct matmul){.m = 64, .n = 48, .k = 20000, .trans_a = true, .accumulate = true});
}

/* One element of op(a) op(b). */
static double element(const struct matmul *p, const float *a, const float *b, int i, int j)
{
    double sum = 0;
    for (int l = 0; l < p->k; l++)
        sum += (double)(p->trans_a ? a[(size_t)l * p->m + i] : a[(size_t)i * p->k + l]) *
               (double)(p->trans_b ? b[(size_t)j * p->k + l] : b[(size_t)l * p->n + j]);
    return sum;
}

/* What follows i of 0, step, 2 step, ..., n - 1. */
static int next_sample(int i, int step, int n)
{
    return i + step < n || i == n - 1 ? i + step : n - 1;
}

/* Of every 97th row and the last one, every 13th element and the last one. */
static void check_values(const struct matmul *p)
{
    float *a = random_array((size_t)p->m * p->k, 1), *b = random_array((size_t)p->k * p->n, 2);
    float *c = multiply(2, a, b, p), *before = random_array((size_t)p->m * p->n, 3);
    for (int i = 0; i < p->m; i = next_sample(i, 97, p->m))
        for (int j = 0; j < p->n; j = next_sample(j, 13, p->n)) {
            const size_t at = (size_t)i * p->n + j;
            const double sum = element(p, a, b, i, j) + (p->accumulate ? (double)before[at] : 0);
            if (fabs(sum - (double)c[at]) > 1e-5 * sqrt(p->k))
                fail_msg("(%d, %d, %d): element (%d, %d) is %g and not %g", p->m, p->n, p->k, i, j,
                         (double)c[at], sum);
        }
    free(a);
    free(b);
    free(c);
    free(before);
}

/* A b that is moved first: turned, whole and in panels, or copied, with lengths that end within what
 * is done at a time. */
static void moved_operands(void **state)
{
    (void)state;
    static const struct matmul products[] = {
        {.m = 890, .n = 576, .k = 960, .trans_b = true},
        {.m = 333, .n = 707, .k = 101, .trans_b = true, .accumulate = true},
        {.m = 300, .n = 1111, .k = 4099, .trans_b = true},
        {.m = 400, .n = 500, .k = 777, .trans_a = true, .trans_b = true},
        {.m = 320, .n = 2048, .k = 1000},
        {.m = 320, .n = 2048, .k = 3000, .accumulate = true},
        {.m = 576, .n = 3072, .k = 890, .trans_a = true},
        {.m = 576, .n = 1024, .k = 401, .trans_a = true, .accumulate = true},
    };
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        check_values(&products[i]);
        check_bits(&products[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_of_the_peak),
        cmocka_unit_test(transposed_is_as_fast),
        cmocka_unit_test(moved_operands),
        cmocka_unit_test(same_bits_on_any_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
