/* cmd/watch: the decisions of Transformers' EarlyStoppingCallback and Trainer, to the bit. */
#include "tests/testing.h"

#include "cmd/watch.h"
#include "data/file.h"

/* Each row of early_stopping.tsv, which fixtures/make_trainer.py makes: a case's number, what it
 * asks for, the next evaluation, and what comes of it. */
static void decides_as_transformers(void **state)
{
    (void)state;
    struct zf_error err = {.text = ""};
    struct watch w = {0};
    char *text, *rest, *line;
    size_t n;
    int rows = 0, last = -1, stopped = 0;
    assert_works(file_read(ZF_TESTS_DIR "/fixtures/trainer/early_stopping.tsv", &text, &n, &err),
                 err);
    rest = text;
    while ((line = strsep(&rest, "\n")) && *line) {
        int number, greater, patience, waited, stops;
        double threshold, value, best;
        if (*line == '#')
            continue;
        assert_int_equal(sscanf(line, "%d %d %d %lf %lf %lf %d %d", &number, &greater, &patience,
                                &threshold, &value, &best, &waited, &stops),
                         8);
        if (number != last)
            w = (struct watch){0};
        last = number;
        watch_take(&w, value, greater, threshold);
        if (w.best != best || w.waited != waited || (w.waited >= patience) != stops)
            fail_msg("%s: best %g, waited %d", line, w.best, w.waited);
        stopped += stops;
        rows++;
    }
    assert_in_range(rows, 500, 5000);
    assert_in_range(stopped, 50, rows - 50); /* else nothing is shown */
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(decides_as_transformers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
