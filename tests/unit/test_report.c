/* What the report is made of: curves, the page, mistakes; event files beside TensorBoard's own. */
#include "cmd/report/curves.h"
#include "cmd/report/events.h"
#include "cmd/report/mistakes.h"
#include "cmd/report/page.h"
#include "data/alloc.h"

#include "tests/unit/byte_tokenizer.h"

#include "tests/folder.h"

#include <math.h>

/* As fixtures/make_tensorboard.py has it from TensorBoard's writer, byte for byte. */
static void events_are_tensorboards(void **state)
{
    (void)state;
    const double wall = 1700000000.25;
    struct zf_error err = {0};
    char *path = zf_format("%s/events", folder), *ours, *theirs, text[400];
    size_t n, m;
    snprintf(text, sizeof text, "{\"learning_rate\": 1e-05, \"name\": \"é\"}%300s", "");
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    events_begin(file, wall, 7);
    events_scalar(file, wall, 0, "train/loss", 0.5);
    events_scalar(file, wall, 7, "train/loss", 0);
    events_scalar(file, wall, 300, "train/grad_norm", -1.25e-3);
    events_scalar(file, wall, (1L << 33) + 1, "eval/accuracy", 0.8125);
    events_text(file, wall, 0, "args", text);
    assert_int_equal(fclose(file), 0);
    assert_works(file_read(path, &ours, &n, &err), err);
    assert_works(file_read(ZF_TESTS_DIR "/fixtures/tensorboard/events.bin", &theirs, &m, &err),
                 err);
    assert_int_equal(n, m);
    assert_memory_equal(ours, theirs, n);
    free(ours);
    free(theirs);
    free(path);
}

/* TensorBoard reads them in this order. */
static void files_of_a_folder_are_in_order(void **state)
{
    (void)state;
    struct zf_error err = {0};
    struct events files[3];
    struct file_names names;
    for (int i = 0; i < 3; i++)
        assert_works(events_create(&files[i], folder, i ? 5 : -1, &err), err);
    assert_works(file_list(folder, &names, &err), err);
    assert_int_equal(names.n, 3);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(files[i].path + strlen(folder) + 1, names.list[i]);
        events_close(&files[i]);
    }
    file_names_free(&names);
}

static json_t *entry(int step, double loss)
{
    return json_pack("{s:i, s:f, s:f, s:s}", "step", step, "epoch", 0.5, "loss", loss, "model",
                     "x");
}

static void add(struct curves *curves, int step, double loss)
{
    json_t *one = entry(step, loss);
    curves_add(curves, one);
    json_decref(one);
}

static double number(const json_t *curve, const char *key, size_t i)
{
    return json_number_value(json_array_get(json_object_get(curve, key), i));
}

static void a_short_curve_is_whole(void **state)
{
    (void)state;
    struct curves curves = {0};
    add(&curves, 1, 2);
    add(&curves, 3, 1);
    add(&curves, 2, 9); /* steps do not go back */
    json_t *json = curves_json(&curves), *loss = json_object_get(json, "loss");
    assert_int_equal(json_object_size(json), 1);
    assert_int_equal(json_array_size(json_object_get(loss, "value")), 2);
    assert_true(number(loss, "step", 1) == 3 && number(loss, "value", 1) == 1);
    assert_null(json_object_get(loss, "least"));
    json_decref(json);
    curves_free(&curves);
}

/* One for each number of an array that is one. */
static void an_array_is_several_curves(void **state)
{
    (void)state;
    struct curves curves = {0};
    for (int step = 1; step <= 2; step++) {
        json_t *one = json_pack("{s:i, s:[f, n, f]}", "step", step, "x", 0.5, 2.0 * step);
        curves_add(&curves, one);
        json_decref(one);
    }
    json_t *json = curves_json(&curves), *last = json_object_get(json, "x.2");
    assert_int_equal(json_object_size(json), 2);
    assert_true(number(json_object_get(json, "x.0"), "value", 1) == 0.5);
    assert_true(number(last, "value", 0) == 2 && number(last, "value", 1) == 4);
    json_decref(json);
    curves_free(&curves);
}

/* Many entries: few points, which have all of them. */
static void a_long_curve_is_bounded(void **state)
{
    (void)state;
    struct curves curves = {0};
    const int n = 20013;
    double sum = 0, all = 0;
    for (int step = 1; step <= n; step++) {
        const double loss = step == 7777 ? 50 : step % 10;
        add(&curves, step, loss);
        all += loss;
    }
    json_t *json = curves_json(&curves), *loss = json_object_get(json, "loss");
    const size_t points = json_array_size(json_object_get(loss, "step"));
    double greatest = 0, before = 0;
    assert_in_range(points, CURVE_POINTS / 2, CURVE_POINTS);
    for (size_t i = 0; i < points; i++) {
        const double last = number(loss, "step", i);
        sum += number(loss, "value", i) * (last - before);
        greatest = fmax(greatest, number(loss, "greatest", i));
        assert_true(number(loss, "least", i) == 0 && last > before);
        before = last;
    }
    assert_true(before == n && greatest == 50 && fabs(sum - all) < 1e-6 * all);
    json_decref(json);
    curves_free(&curves);
}

/* Whatever a text holds, the page's script does not end within it. */
static void a_page_is_read_back(void **state)
{
    (void)state;
    struct zf_error err = {0};
    char *path = zf_format("%s/report.html", folder), *page;
    size_t n;
    const char *evil = "</script><script>alert(1)</script><!-- <b>\u00e9\u2028 \"quoted\" \\";
    json_t *runs = json_pack("[{s:s, s:f}]", "name", evil, "x", 0.1), *back;
    assert_works(page_write(path, runs, &err), err);
    assert_works(file_read(path, &page, &n, &err), err);
    assert_null(strstr(page, "alert(1)</script>"));
    assert_null(strstr(page, "<!-- <b>"));
    free(page);
    assert_works(back = page_read(path, &err), err);
    assert_string_equal(json_string_value(json_object_get(json_array_get(back, 0), "name")), evil);
    json_decref(back);
    json_decref(runs);
    assert_works(file_write(path, "<html></html>", 13, &err), err);
    assert_null(page_read(path, &err));
    assert_says(err, "report.html: this is no report of zf-train");
    free(path);
}

static const char *const three[] = {"no", "maybe", "y<e>s"};

/* Of a split whose examples are single letters. */
static json_t *mistakes(struct run *run, int n_labels, int n, const float *right, float *answers,
                        float *losses)
{
    static const struct glue_task of_labels = {.n_labels = 3, .labels = three, .names = three};
    static const struct glue_task of_scores = {.n_labels = 1};
    int *tokens = zf_malloc(sizeof(int) * (size_t)n);
    size_t *start = zf_malloc(sizeof(size_t) * (size_t)(n + 1));
    for (int i = 0; i <= n; i++) {
        start[i] = (size_t)i;
        if (i < n)
            tokens[i] = 'a' + i % 26;
    }
    run->task = n_labels > 1 ? &of_labels : &of_scores;
    const struct eval_split split = {
        .split = GLUE_DEV,
        .set = {.n_sequences = n, .tokens = tokens, .start = start, .label = (float *)right},
        .answers = answers,
        .losses = losses,
    };
    json_t *json = mistakes_json(run, &split);
    free(tokens);
    free(start);
    return json;
}

static void mistakes_of_labels(void **state)
{
    (void)state;
    struct run run = {.tokenizer = make_byte_tokenizer(folder)};
    const float right[6] = {0, 1, 2, 2, 1, 2};
    float answers[6] = {0, 2, 2, 0, 0, 0}, losses[6] = {0.1f, 3, 0.2f, 5, 1, 4};
    json_t *json = mistakes(&run, 3, 6, right, answers, losses);
    json_t *cells = json_object_get(json, "cells"), *worst = json_object_get(json, "wrongest");
    char *text = json_dumps(cells, JSON_COMPACT);
    assert_string_equal(text, "[[2,0,2],[0,0,1],[1,0,1],[1,2,1],[2,2,1]]");
    free(text);
    assert_int_equal(json_array_size(worst), 4);
    const char *const order[] = {"d", "f", "b", "e"};
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(json_string_value(json_object_get(json_array_get(worst, i), "text")),
                            order[i]);
    assert_string_equal(json_string_value(json_array_get(json_object_get(json, "labels"), 2)),
                        "y<e>s");
    assert_int_equal(json_integer_value(json_object_get(json, "left_out")), 0);
    json_decref(json);
    tokenizer_free(run.tokenizer);
}

/* The greatest losses, however many there are. */
static void the_wrongest_are_bounded(void **state)
{
    (void)state;
    enum { N = 5000 };
    struct run run = {.tokenizer = make_byte_tokenizer(folder)};
    static float right[N], answers[N], losses[N];
    for (int i = 0; i < N; i++) {
        right[i] = 1;
        losses[i] = (float)(i * 7919 % N);
    }
    json_t *json = mistakes(&run, 3, N, right, answers, losses), *one;
    json_t *worst = json_object_get(json, "wrongest");
    size_t i;
    assert_int_equal(json_array_size(worst), MISTAKES_WORST);
    json_array_foreach(worst, i, one)
    {
        assert_true(json_number_value(json_object_get(one, "loss")) == (double)(N - 1 - (int)i));
    }
    json_decref(json);
    json = mistakes(&run, 1, N, right, answers, NULL);
    assert_int_equal(json_array_size(json_object_get(json, "points")), MISTAKES_POINTS);
    assert_null(json_object_get(json, "cells"));
    json_decref(json);
    assert_null(mistakes(&run, 1, N, right, NULL, NULL));
    tokenizer_free(run.tokenizer);
}

#define IN_A_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(events_are_tensorboards),      IN_A_FOLDER(files_of_a_folder_are_in_order),
        cmocka_unit_test(a_short_curve_is_whole),  cmocka_unit_test(an_array_is_several_curves),
        cmocka_unit_test(a_long_curve_is_bounded), IN_A_FOLDER(a_page_is_read_back),
        IN_A_FOLDER(mistakes_of_labels),           IN_A_FOLDER(the_wrongest_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
