/* data/batch's order and slices: every example once an epoch, on any number of ranks. */
#include "tests/testing.h"

#include "data/batch.h"
#include "data/rng.h"

static void assert_permutation(const int *order, int n)
{
    char *seen = calloc((size_t)n + 1, 1);
    for (int i = 0; i < n; i++) {
        assert_in_range(order[i], 0, n - 1);
        assert_int_equal(seen[order[i]]++, 0);
    }
    free(seen);
}

static void shuffles_by_seed_and_epoch(void **state)
{
    (void)state;
    enum { N = 1000 };
    int a[N], b[N], c[N], d[N];
    sampler_shuffle(a, N, 42, 3);
    sampler_shuffle(b, N, 42, 3);
    assert_memory_equal(a, b, sizeof a);
    sampler_shuffle(b, N, 42, 4);
    sampler_shuffle(c, N, 43, 3);
    sampler_shuffle(d, N, 42 + ((uint64_t)1 << 32), 3);
    assert_permutation(a, N);
    assert_permutation(b, N);
    assert_memory_not_equal(a, b, sizeof a);
    assert_memory_not_equal(a, c, sizeof a);
    assert_memory_not_equal(a, d, sizeof a);
    for (int n = 0; n < 20; n++) {
        sampler_shuffle(a, n, 1, 0);
        assert_permutation(a, n);
    }
}

/* The order is part of a run's result: a change would change every run. */
static void shuffles_as_ever(void **state)
{
    (void)state;
    static const int expected[] = {9, 6, 8, 1, 5, 3, 7, 4, 0, 2};
    int order[10];
    sampler_shuffle(order, 10, 1234, 0);
    assert_memory_equal(order, expected, sizeof order);
}

/* Each of the 24 orders of four examples comes up equally often: chi-square with 23 degrees of
 * freedom stays below 49.7 in 999 of 1000 cases, and the seeds here are fixed. */
static void shuffles_without_bias(void **state)
{
    (void)state;
    enum { TRIALS = 24000 };
    int count[256] = {0};
    double chi_square = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        int o[4];
        sampler_shuffle(o, 4, 7, trial);
        count[o[0] << 6 | o[1] << 4 | o[2] << 2 | o[3]]++;
    }
    for (int i = 0; i < 256; i++) {
        double expected = TRIALS / 24.0, difference = count[i] - expected;
        chi_square += count[i] ? difference * difference / expected : 0;
    }
    assert_true(chi_square < 49.7);
}

/* Marks what all ranks take in an epoch of n examples, and checks that each example is taken once,
 * and that a step takes the same ones whatever the number of ranks. */
static void check_epoch(int n, int micro_batch, int accumulation, int ranks)
{
    int step_size = micro_batch * accumulation * ranks;
    char *taken = calloc((size_t)n + 1, 1);
    for (int start = 0; start < n; start += step_size) {
        int step_examples = n - start < step_size ? n - start : step_size, sum = 0;
        for (int m = 0; m < accumulation; m++) {
            for (int rank = 0; rank < ranks; rank++) {
                struct slice s = sampler_slice(step_examples, micro_batch, ranks, rank, m);
                assert_in_range(s.count, 0, micro_batch);
                assert_true(s.count == 0 || s.first == (m * ranks + rank) * micro_batch);
                assert_true(s.first + s.count <= step_examples);
                sum += s.count;
                for (int i = 0; i < s.count; i++)
                    taken[start + s.first + i]++;
            }
        }
        assert_int_equal(sum, step_examples);
    }
    for (int i = 0; i < n; i++)
        assert_int_equal(taken[i], 1);
    free(taken);
}

static void takes_every_example_once(void **state)
{
    (void)state;
    for (uint32_t trial = 0; trial < 2000; trial++) {
        struct philox r = philox4x32((struct philox){{trial}}, 1, 2);
        check_epoch((int)(r.v[0] % 300), 1 + (int)(r.v[1] % 9), 1 + (int)(r.v[2] % 4),
                    1 + (int)(r.v[3] % 8));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shuffles_by_seed_and_epoch),
        cmocka_unit_test(shuffles_as_ever),
        cmocka_unit_test(shuffles_without_bias),
        cmocka_unit_test(takes_every_example_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
