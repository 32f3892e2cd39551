/* offload/schedule and offload/select: the pure functions that every rank evaluates alike. */
#include "tests/testing.h"

#include "offload/schedule.h"

static void owned_ranges_share_out_all_channels(void **state)
{
    (void)state;
    for (int rows = 1; rows < 40; rows++)
        for (int ranks = 1; ranks <= 8; ranks++)
            for (int matrix = 0; matrix < 3; matrix++) {
                int owners[40] = {0};
                for (int r = 0; r < ranks; r++) {
                    struct range owned = schedule_owned(matrix, rows, ranks, r);
                    int n = owned.last - owned.first;
                    assert_true(n == rows / ranks || n == rows / ranks + 1);
                    for (int i = owned.first; i < owned.last; i++)
                        owners[i]++;
                }
                for (int i = 0; i < rows; i++)
                    assert_int_equal(owners[i], 1);
            }
    /* Matrices of one channel belong to one rank after the other. */
    for (int matrix = 0; matrix < 4; matrix++) {
        int owner = -1;
        for (int r = 0; r < 4; r++) {
            struct range owned = schedule_owned(matrix, 1, 4, r);
            if (owned.last > owned.first)
                owner = r;
        }
        assert_int_equal(owner, 3 - matrix);
    }
}

static void each_channel_is_in_one_group(void **state)
{
    (void)state;
    for (int interval = 1; interval <= 6; interval++)
        for (int matrix = 0; matrix < 4; matrix++)
            for (int from = 0; from < 9; from++) {
                int groups[32] = {0};
                for (int g = 0; g < interval; g++)
                    for (int i = schedule_first_of_group(matrix, from, g, interval); i < 32;
                         i += interval) {
                        assert_true(i >= from);
                        assert_int_equal((i + matrix) % interval, g);
                        groups[i]++;
                    }
                for (int i = 0; i < 32; i++)
                    assert_int_equal(groups[i], i >= from);
            }
}

static void every_group_closes_once_in_an_interval(void **state)
{
    (void)state;
    for (int interval = 1; interval <= 6; interval++)
        for (int start = 0; start < 20; start++)
            for (int g = 0; g < interval; g++) {
                int staggered = 0, burst = 0;
                for (int t = start; t < start + interval; t++) {
                    staggered += schedule_closes(g, t, interval, true);
                    burst += schedule_closes(g, t, interval, false);
                }
                assert_int_equal(staggered, 1);
                assert_int_equal(burst, 1);
                assert_true(schedule_closes(g, g, interval, true));
                assert_true(schedule_closes(g, interval - 1, interval, false));
            }
}

static void counts_round_down_but_not_to_none(void **state)
{
    (void)state;
    assert_int_equal(schedule_important(0.29, 100), 29); /* 0.29 * 100 is below 29 in binary */
    assert_int_equal(schedule_important(0.05, 768), 38);
    assert_int_equal(schedule_important(0.05, 3), 1);
    assert_int_equal(schedule_important(0, 768), 0);
    assert_int_equal(schedule_important(1, 768), 768);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owned_ranges_share_out_all_channels),
        cmocka_unit_test(each_channel_is_in_one_group),
        cmocka_unit_test(every_group_closes_once_in_an_interval),
        cmocka_unit_test(counts_round_down_but_not_to_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
