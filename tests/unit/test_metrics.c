/* data/metrics: values worked out by hand, and the cases in which a metric is undefined. */
#include "tests/testing.h"

#include "data/metrics.h"

#include <math.h>

/* Asserts that |got - expected| <= tolerance. */
#define assert_near(got, expected, tolerance) assert_true(fabs((got) - (expected)) <= (tolerance))

static void names_are_run_glue_s(void **state)
{
    (void)state;
    assert_string_equal(metric_name(METRIC_ACCURACY), "accuracy");
    assert_string_equal(metric_name(METRIC_F1), "f1");
    assert_string_equal(metric_name(METRIC_MATTHEWS), "matthews_correlation");
    assert_string_equal(metric_name(METRIC_PEARSON), "pearson");
    assert_string_equal(metric_name(METRIC_SPEARMAN), "spearmanr");
    assert_string_equal(metric_name(METRIC_MSE), "mse");
}

static void counts_labels(void **state)
{
    (void)state;
    const float prediction[] = {1, 1, 1, 0, 0}, truth[] = {1, 1, 0, 1, 0};
    assert_near(metric_compute(METRIC_ACCURACY, prediction, truth, 5), 0.6, 1e-12);
    assert_near(metric_compute(METRIC_F1, prediction, truth, 5), 2.0 / 3, 1e-12);
    assert_near(metric_compute(METRIC_MATTHEWS, prediction, truth, 5), 1.0 / 6, 1e-12);
}

static void correlates_scores(void **state)
{
    (void)state;
    const float prediction[] = {1, 2, 2, 9}, truth[] = {0, 1, 2, 3};
    /* Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5). */
    assert_near(metric_compute(METRIC_SPEARMAN, prediction, truth, 4), 0.948683298050514, 1e-12);
    assert_near(metric_compute(METRIC_PEARSON, prediction, truth, 4), 0.838116354923, 1e-10);
    assert_near(metric_compute(METRIC_MSE, prediction, truth, 4), (1 + 1 + 0 + 36) / 4.0, 1e-12);
}

static void undefined_is_zero(void **state)
{
    (void)state;
    const float same[] = {0.1f, 0.1f, 0.1f}, rising[] = {1, 2, 3}, ones[] = {1, 1, 1};
    for (enum metric m = METRIC_NONE; m <= METRIC_MSE; m++)
        assert_near(metric_compute(m, rising, rising, 0), 0, 0);
    assert_near(metric_compute(METRIC_PEARSON, same, rising, 3), 0, 0);
    assert_near(metric_compute(METRIC_SPEARMAN, rising, same, 3), 0, 0);
    assert_near(metric_compute(METRIC_PEARSON, rising, rising, 1), 0, 0);
    assert_near(metric_compute(METRIC_MATTHEWS, ones, ones, 3), 0, 0);
    assert_near(metric_compute(METRIC_F1, same, same, 3), 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_run_glue_s),
        cmocka_unit_test(counts_labels),
        cmocka_unit_test(correlates_scores),
        cmocka_unit_test(undefined_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
