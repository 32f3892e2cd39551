/* offload/schedule and model/row_groups: the pure functions that every rank evaluates alike. */
#include "tests/testing.h"

#include "model/device/row_groups.h"
#include "offload/engine/schedule.h"

static void owned_ranges_share_out_all_channels(void **state)
{
    (void)state;
    for (int rows = 1; rows < 40; rows++)
        for (int ranks = 1; ranks <= 8; ranks++)
            for (int matrix = 0; matrix < 3; matrix++) {
                int owners[40] = {0};
                const int part = schedule_part(rows, ranks);
                assert_true(part * ranks >= rows && (part - 1) * ranks < rows);
                for (int r = 0; r < ranks; r++) {
                    struct range owned = schedule_owned(matrix, rows, ranks, r);
                    int n = owned.last - owned.first;
                    /* equal parts, one behind the other; a single row has none */
                    assert_true(n == 0 || rows == 1 || owned.first == r * part);
                    assert_true(n == part || owned.last == rows || n == 0);
                    for (int i = owned.first; i < owned.last; i++) {
                        owners[i]++;
                        assert_int_equal(schedule_owner(matrix, rows, ranks, i), r);
                    }
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

/* Matrices of models, and shapes that are hard to share out: (rows, cols). */
static const int shapes[][2] = {
    {768, 768},  {768, 2304}, {768, 3072}, {3072, 768},  {50257, 768}, {4096, 11008}, {1600, 4800},
    {8000, 96},  {512, 96},   {96, 288},   {96, 96},     {1, 1},       {3, 5000000},  {17, 3},
    {64, 16384}, {100, 1000}, {5, 100000}, {1000000, 1}, {128, 20000}};
enum { SHAPES = sizeof shapes / sizeof *shapes, MAX_GROUPS = 64 };

/* Every row is in one block, blocks follow each other, and are dealt to groups in turn; a part of
 * the matrix says the same of its rows. */
static void blocks_are_dealt_in_turn(void **state)
{
    (void)state;
    for (int k = 0; k < SHAPES; k++)
        for (int n = 1; n <= MAX_GROUPS; n += 1 + n / 5) {
            const int rows = shapes[k][0], index = k % 7, first = rows / 3;
            const struct matrix_part whole = {index, 0, rows, shapes[k][1]};
            const struct matrix_part part = {index, first, rows, shapes[k][1]};
            const struct row_groups g = row_groups_of(&whole, n), p = row_groups_of(&part, n);
            int block = 0, end = row_groups_end(&g, 0);
            for (int row = 0; row < rows; row++) {
                if (row == end) {
                    block++;
                    end = row_groups_end(&g, row);
                }
                assert_in_range(end, row + 1, rows);
                assert_int_equal(row_groups_group(&g, row), (block + index) % n);
                if (row >= first) {
                    assert_int_equal(row_groups_group(&p, row - first), (block + index) % n);
                    assert_int_equal(row_groups_end(&p, row - first), end - first);
                }
            }
            assert_int_equal(end, rows);
        }
}

/* Going through a group by runs finds its rows, all of them and no others. */
static void runs_are_a_groups_rows(void **state)
{
    (void)state;
    for (int k = 0; k < SHAPES; k++)
        for (int n = 1; n <= MAX_GROUPS; n += 1 + n / 3) {
            const int rows = shapes[k][0], first = rows / 5;
            const struct matrix_part part = {k, first, rows, shapes[k][1]};
            const struct row_groups g = row_groups_of(&part, n);
            for (int group = 0; group < n; group++) {
                int row = 0;
                for (int from = row_groups_next(&g, group, 0), to; from < rows - first;
                     from = row_groups_next(&g, group, to)) {
                    to = row_groups_end(&g, from);
                    for (; row < from; row++)
                        assert_int_not_equal(row_groups_group(&g, row), group);
                    for (; row < to; row++)
                        assert_int_equal(row_groups_group(&g, row), group);
                }
                for (; row < rows - first; row++)
                    assert_int_not_equal(row_groups_group(&g, row), group);
            }
        }
}

/* A row's position is what counting gives: a part's rows of one group lie packed without gaps. */
static void positions_are_counted(void **state)
{
    (void)state;
    for (int k = 0; k < SHAPES; k++)
        for (int n = 1; n <= MAX_GROUPS; n += 1 + n / 4)
            for (int third = 0; third < 3; third++) {
                const int rows = shapes[k][0], first = rows / 3 * third;
                const struct matrix_part part = {k, first, rows, shapes[k][1]};
                const struct row_groups g = row_groups_of(&part, n);
                int counts[MAX_GROUPS] = {0};
                for (int row = 0; row < rows - first; row++) {
                    const int group = row_groups_group(&g, row), other = (group + 1) % n;
                    assert_int_equal(row_groups_count(&g, group, row), counts[group]);
                    assert_int_equal(row_groups_count(&g, other, row), counts[other]);
                    counts[group]++;
                }
                for (int j = 0; j < n; j++)
                    assert_int_equal(row_groups_count(&g, j, rows - first), counts[j]);
            }
}

/* A block has 64 KiB or more wherever the matrix has four such blocks for each group; else there
 * are four blocks for each group, or as many as there are rows for. Groups' shares differ by one
 * row. */
static void blocks_are_long_and_shares_even(void **state)
{
    (void)state;
    for (int k = 0; k < SHAPES; k++)
        for (int n = 1; n <= MAX_GROUPS; n++) {
            const int rows = shapes[k][0], cols = shapes[k][1], least = (16384 + cols - 1) / cols;
            const struct matrix_part part = {0, 0, rows, cols};
            const struct row_groups g = row_groups_of(&part, n);
            int share[MAX_GROUPS] = {0}, shortest = rows, longest = 0, blocks = 0;
            for (int row = 0, end; row < rows; row = end, blocks++) {
                end = row_groups_end(&g, row);
                share[row_groups_group(&g, row)] += end - row;
                shortest = end - row < shortest ? end - row : shortest;
                longest = end - row > longest ? end - row : longest;
            }
            assert_in_range(longest, shortest, shortest + 1);
            for (int j = 0; j < n; j++)
                assert_in_range(share[j], rows / n, (rows + n - 1) / n);
            if (rows >= 4 * n * least)
                assert_in_range(shortest, least, 2 * least);
            else
                assert_int_equal(blocks, rows >= 4 * n ? 4 * n : rows >= n ? rows / n * n : rows);
        }
}

/* The elements of a step's group on one rank of so many, at most, over their mean: of GPT-2's
 * matrices in their places among the parameters. */
static double worst_step(int vocab, int positions, int width, int layers, int ranks, int n)
{
    const int layer[4][3] = {
        {2, width, 3 * width}, {4, width, width}, {8, width, 4 * width}, {10, 4 * width, width}};
    double worst = 0;
    for (int r = 0; r < ranks; r++) {
        double step[MAX_GROUPS] = {0}, sum = 0, most = 0;
        for (int i = 0; i < 2 + 4 * layers; i++) {
            const int *m = layer[(i + 2) % 4];
            const struct matrix_part matrix = {i < 2 ? i : 2 + (i - 2) / 4 * 12 + m[0], 0,
                                               i == 0   ? vocab
                                               : i == 1 ? positions
                                                        : m[1],
                                               i < 2 ? width : m[2]};
            const struct range owned = schedule_owned(matrix.index, matrix.rows, ranks, r);
            const struct row_groups g = row_groups_of(&matrix, n);
            for (int row = owned.first; row < owned.last; row++)
                step[row_groups_group(&g, row)] += matrix.cols;
        }
        for (int j = 0; j < n; j++) {
            sum += step[j];
            most = step[j] > most ? step[j] : most;
        }
        worst = most * n / sum > worst ? most * n / sum : worst;
    }
    return worst;
}

/* Every step has nearly the same work, on every rank. */
static void steps_are_even(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        double tiny = 0, small = 0;
        for (int n = 2; n <= 16; n++) {
            double a = worst_step(8000, 512, 96, 2, ranks, n);
            double b = worst_step(50257, 1024, 768, 12, ranks, n);
            tiny = a > tiny ? a : tiny;
            small = b > small ? b : small;
        }
        print_message("%d ranks: greatest step over the mean one, S = 2 to 16: %.3f of a model of "
                      "1 M parameters, %.3f of GPT-2 small\n",
                      ranks, tiny, small);
        assert_true(tiny < (ranks == 1 ? 1.01 : 1.05) && small < (ranks == 1 ? 1.001 : 1.03));
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

static void room_is_a_share_and_four_deviations(void **state)
{
    (void)state;
    assert_int_equal(schedule_room(100, 400, 400), 100);
    assert_int_equal(schedule_room(100, 100, 400), 25 + 20);
    assert_int_equal(schedule_room(100, 30, 400), 8 + 11); /* 7.5 + 4 sqrt(7.5) */
    assert_int_equal(schedule_room(3, 100, 400), 3);
    assert_int_equal(schedule_room(100, 10, 400), 9);
    assert_int_equal(schedule_room(0, 100, 400), 0);
}

static void least_interval_lets_the_host_keep_up(void **state)
{
    (void)state;
    assert_int_equal(schedule_least_interval(0, 0, 1, 64), 1);
    assert_int_equal(schedule_least_interval(0.9, 0, 1, 64), 1);
    assert_int_equal(schedule_least_interval(0.92, 0, 1, 64), 2); /* a tenth is to be spare */
    assert_int_equal(schedule_least_interval(1.25, 0, 1, 64), 2);
    assert_int_equal(schedule_least_interval(3, 0, 0.5, 64), 7);
    assert_int_equal(schedule_least_interval(3.25, 0, 0.5, 64), 8);
    assert_int_equal(schedule_least_interval(64, 0, 1, 64), 64);
    assert_int_equal(schedule_least_interval(1e300, 0, 1e-300, 64), 64);
    assert_int_equal(schedule_least_interval(1, 0, 0, 64), 64);
    assert_int_equal(schedule_least_interval(0, 0, 0, 64), 1);
    /* Beside what takes 0.5 and a twentieth in each step there are 0.45 for the rest. */
    assert_int_equal(schedule_least_interval(1.2, 0.5, 1, 64), 3);
    assert_int_equal(schedule_least_interval(1.25, 0.5, 1, 64), 4);
    /* Beside what takes longer than a step a tenth of that. */
    assert_int_equal(schedule_least_interval(0.5, 2, 1, 64), 3);
    assert_int_equal(schedule_least_interval(0.5, 0.94, 1, 64), 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owned_ranges_share_out_all_channels),
        cmocka_unit_test(blocks_are_dealt_in_turn),
        cmocka_unit_test(runs_are_a_groups_rows),
        cmocka_unit_test(positions_are_counted),
        cmocka_unit_test(blocks_are_long_and_shares_even),
        cmocka_unit_test(steps_are_even),
        cmocka_unit_test(every_group_closes_once_in_an_interval),
        cmocka_unit_test(counts_round_down_but_not_to_none),
        cmocka_unit_test(room_is_a_share_and_four_deviations),
        cmocka_unit_test(least_interval_lets_the_host_keep_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
