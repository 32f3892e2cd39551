/* trainer_log.jsonl, what is printed, and what a resumed run keeps. */
#include "cmd/progress.h"
#include "data/alloc.h"
#include "data/file.h"

#include "tests/testing.h"

#include <fcntl.h>

static char *folder; /* of one test */

static int make_folder(void **state)
{
    (void)state;
    folder = strdup("/tmp/zf-progress-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    struct zf_error err = {0};
    bool ok = file_remove_directory(folder, &err);
    free(folder);
    return ok ? 0 : -1;
}

static char *read_file(const char *name)
{
    struct zf_error err = {0};
    char *path = zf_format("%s/%s", folder, name), *text;
    size_t n;
    assert_works(file_read(path, &text, &n, &err), err);
    free(path);
    return text;
}

static void write_log(const char *text)
{
    char *path = zf_format("%s/trainer_log.jsonl", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    free(path);
}

static void assert_log(const char *expected)
{
    char *text = read_file("trainer_log.jsonl");
    assert_string_equal(text, expected);
    free(text);
}

/* Sends a stream's output to a file in `folder` until release(). */
static int capture(FILE *stream, const char *name)
{
    char *path = zf_format("%s/%s", folder, name);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    fflush(stream);
    int kept = dup(fileno(stream));
    assert_true(file >= 0 && kept >= 0 && dup2(file, fileno(stream)) >= 0);
    close(file);
    free(path);
    return kept;
}

static void release(FILE *stream, int kept)
{
    fflush(stream);
    dup2(kept, fileno(stream));
    close(kept);
}

static struct progress *start(int first_step, bool live)
{
    struct zf_error err = {0};
    struct progress *p = progress_create(folder, first_step, 10, live, &err);
    if (!p)
        fail_msg("%s", err.text);
    return p;
}

static void log_loss(struct progress *p, int step, double loss)
{
    struct zf_error err;
    assert_works(progress_log(p, json_pack("{s:i, s:f}", "step", step, "loss", loss), &err), err);
}

static void a_new_run_begins_a_new_log(void **state)
{
    (void)state;
    write_log("{\"step\": 1, \"loss\": 9.0}\n");
    int kept = capture(stdout, "out");
    struct progress *p = start(0, false);
    log_loss(p, 1, 0.5);
    log_loss(p, 2, 1.0 / 3);
    progress_destroy(p);
    release(stdout, kept);
    assert_log("{\"step\": 1, \"loss\": 0.5}\n{\"step\": 2, \"loss\": 0.333333333}\n");
    char *printed = read_file("out");
    assert_string_equal(printed, "step 1  loss 0.5  \nstep 2  loss 0.3333  \n");
    free(printed);
}

/* An entry is in the file as soon as it is logged: a run that is killed loses none. */
static void entries_are_written_at_once(void **state)
{
    (void)state;
    struct progress *p = start(0, true);
    log_loss(p, 1, 0.25);
    assert_log("{\"step\": 1, \"loss\": 0.25}\n");
    progress_destroy(p);
}

static void a_resumed_run_keeps_the_entries_before_it(void **state)
{
    (void)state;
    write_log("{\"step\": 2, \"loss\": 0.5}\n{\"step\": 4, \"loss\": 0.4}\n"
              "{\"step\": 4, \"eval_loss\": 0.45}\n{\"step\": 6, \"loss\": 0.3}\n"
              "not JSON\n{\"step\": 8, \"lo");
    struct progress *p = start(4, true);
    log_loss(p, 6, 0.25);
    progress_destroy(p);
    assert_log("{\"step\": 2, \"loss\": 0.5}\n{\"step\": 4, \"loss\": 0.4}\n"
               "{\"step\": 4, \"eval_loss\": 0.45}\n{\"step\": 6, \"loss\": 0.25}\n");
}

/* What the run left is for its end to say again. */
static void a_resumed_run_drops_what_the_last_one_left(void **state)
{
    (void)state;
    write_log("{\"step\": 2, \"eval_loss\": 0.5}\n{\"step\": 4, \"loss\": 0.4}\n"
              "{\"step\": 2, \"model\": \"best\", \"eval_loss\": 0.5}\n"
              "{\"step\": 4, \"model\": \"final\", \"eval_loss\": 0.6}\n");
    progress_destroy(start(4, true));
    assert_log("{\"step\": 2, \"eval_loss\": 0.5}\n{\"step\": 4, \"loss\": 0.4}\n");
}

static void a_plain_line_says_of_which_model(void **state)
{
    (void)state;
    struct zf_error err;
    int kept = capture(stdout, "out");
    struct progress *p = start(0, false);
    json_t *entry = json_pack("{s:i, s:s, s:f}", "step", 4, "model", "best", "eval_loss", 0.5);
    assert_works(progress_log(p, entry, &err), err);
    progress_destroy(p);
    release(stdout, kept);
    char *printed = read_file("out");
    assert_string_equal(printed, "step 4  model best  eval_loss 0.5  \n");
    free(printed);
}

static void a_resumed_run_without_a_log_begins_one(void **state)
{
    (void)state;
    struct progress *p = start(4, true);
    log_loss(p, 5, 0.5);
    progress_destroy(p);
    assert_log("{\"step\": 5, \"loss\": 0.5}\n");
}

static void a_log_that_cannot_be_written_is_a_fault(void **state)
{
    (void)state;
    struct zf_error err = {0};
    char *path = zf_format("%s/nowhere", folder);
    assert_null(progress_create(path, 0, 10, false, &err));
    assert_says(err, "nowhere/trainer_log.jsonl: cannot be written");
    free(path);
}

/* The live line is redrawn in place, the last step's for certain, and cleared at the end. */
static void the_live_line(void **state)
{
    (void)state;
    int kept = capture(stderr, "err");
    struct progress *p = start(0, true);
    progress_step(p, 1, 0.1, 0.5, 1e-3, 0.004, 100);
    progress_step(p, 2, 0.2, 0.5, 1e-3, 0.004, 100);
    progress_step(p, 10, 1.0, 0.25, 0, -1, 100);
    assert_true(progress_tokens_per_second(p) > 0);
    progress_destroy(p);
    release(stderr, kept);
    char *shown = read_file("err");
    assert_memory_equal(shown, "\rstep 1/10  epoch 0.10  loss 0.5000  lr 1.00e-03  ", 50);
    assert_null(strstr(shown, "step 2/10"));
    assert_non_null(strstr(shown, "\rstep 10/10  epoch 1.00  loss 0.2500  lr 0.00e+00  "));
    assert_null(strchr(shown, '\n'));
    size_t n = strlen(shown);
    assert_true(n > 4);
    assert_string_equal(shown + n - 4, "\r\033[K");
    free(shown);
}

static void without_a_live_line_nothing_is_drawn(void **state)
{
    (void)state;
    int kept = capture(stderr, "err");
    struct progress *p = start(0, false);
    progress_step(p, 10, 1.0, 0.25, 0, -1, 100);
    progress_destroy(p);
    release(stderr, kept);
    char *shown = read_file("err");
    assert_string_equal(shown, "");
    free(shown);
}

static void the_table_has_a_row_per_result(void **state)
{
    (void)state;
    json_t *results = json_pack("{s:f, s:i}", "eval_accuracy", 0.875, "eval_samples", 400);
    int kept = capture(stdout, "out");
    progress_results_table("SST-2", results);
    release(stdout, kept);
    json_decref(results);
    char *printed = read_file("out");
    assert_string_equal(printed, "\nSST-2        \n"
                                 "---------------------------\n"
                                 "eval_accuracy        0.8750\n"
                                 "eval_samples            400\n");
    free(printed);
}

#define IN_A_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(a_new_run_begins_a_new_log),
        IN_A_FOLDER(entries_are_written_at_once),
        IN_A_FOLDER(a_resumed_run_keeps_the_entries_before_it),
        IN_A_FOLDER(a_resumed_run_drops_what_the_last_one_left),
        IN_A_FOLDER(a_plain_line_says_of_which_model),
        IN_A_FOLDER(a_resumed_run_without_a_log_begins_one),
        IN_A_FOLDER(a_log_that_cannot_be_written_is_a_fault),
        IN_A_FOLDER(the_live_line),
        IN_A_FOLDER(without_a_live_line_nothing_is_drawn),
        IN_A_FOLDER(the_table_has_a_row_per_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
