/* data/figures: numbers as people write them. */
#include "data/figures.h"

#include "tests/testing.h"

#include <math.h>

static void counts(void **state)
{
    (void)state;
    assert_string_equal(figure_count(0).text, "0");
    assert_string_equal(figure_count(999.4).text, "999");
    assert_string_equal(figure_count(999.5).text, "1,000");
    assert_string_equal(figure_count(24960).text, "24,960");
    assert_string_equal(figure_count(-1234567).text, "-1,234,567");
    assert_string_equal(figure_count(-0.2).text, "0");
    assert_string_equal(figure_count(999999999999999).text, "999,999,999,999,999");
    assert_string_equal(figure_count(1e300).text, "1e+300");
    assert_string_equal(figure_count(INFINITY).text, "inf");
}

static void shares(void **state)
{
    (void)state;
    assert_string_equal(figure_share(0.973).text, "97.3%");
    assert_string_equal(figure_share(0).text, "0.0%");
    assert_string_equal(figure_share(1).text, "100.0%");
}

static void times(void **state)
{
    (void)state;
    assert_string_equal(figure_time(-1).text, "0:00");
    assert_string_equal(figure_time(4.4).text, "0:04");
    assert_string_equal(figure_time(59.6).text, "1:00");
    assert_string_equal(figure_time(133).text, "2:13");
    assert_string_equal(figure_time(3599).text, "59:59");
    assert_string_equal(figure_time(18764).text, "5:12:44");
    assert_string_equal(figure_time(86399.5).text, "1 d 0 h");
    assert_string_equal(figure_time(2 * 86400 + 5 * 3600 + 1).text, "2 d 5 h");
    assert_string_equal(figure_time(INFINITY).text, "inf");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),
        cmocka_unit_test(shares),
        cmocka_unit_test(times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
