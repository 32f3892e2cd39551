/* data/metrics against scikit-learn and SciPy, on tests/fixtures/metrics/metrics.json. */
#include "tests/testing.h"

#include "data/json.h"
#include "data/metrics.h"

#include <math.h>

static float *read_floats(const json_t *array)
{
    float *x = malloc((json_array_size(array) + 1) * sizeof *x);
    for (size_t i = 0; i < json_array_size(array); i++)
        x[i] = (float)json_number_value(json_array_get(array, i));
    return x;
}

/* Checks every metric that the case has a value of; returns how many. */
static int check_case(const json_t *c, size_t number)
{
    int n = (int)json_array_size(json_object_get(c, "truth")), checked = 0;
    float *prediction = read_floats(json_object_get(c, "prediction"));
    float *truth = read_floats(json_object_get(c, "truth"));
    for (enum metric m = METRIC_ACCURACY; m <= METRIC_SPEARMAN; m++) {
        const json_t *expected = json_object_get(json_object_get(c, "metrics"), metric_name(m));
        if (!expected)
            continue;
        double got = metric_compute(m, prediction, truth, n);
        if (!(fabs(got - json_number_value(expected)) < 1e-9))
            fail_msg("case %zu: %s is %.12g, expected %.12g", number, metric_name(m), got,
                     json_number_value(expected));
        checked++;
    }
    free(prediction);
    free(truth);
    return checked;
}

static void equals_scikit_learn_and_scipy(void **state)
{
    (void)state;
    struct json_file f;
    struct zf_error err;
    int checked = 0;
    assert_works(json_load(&f, ZF_TESTS_DIR "/fixtures/metrics/metrics.json", &err), err);
    const json_t *cases = json_find(&f, "cases");
    for (size_t i = 0; i < json_array_size(cases); i++)
        checked += check_case(json_array_get(cases, i), i);
    assert_int_equal(json_array_size(cases), 39);
    assert_int_equal(checked, 91);
    json_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_scikit_learn_and_scipy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
