/* trainer_log.jsonl, what a resumed run keeps of it, what is printed, and the live line. */
#include "cmd/line.h"
#include "cmd/live.h"
#include "cmd/progress.h"
#include "data/alloc.h"
#include "data/file.h"
#include "data/log.h"

#include "tests/testing.h"

#include <fcntl.h>
#include <unistd.h>

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

static struct progress *start(int first_step)
{
    struct zf_error err = {0};
    struct progress *p = progress_create(folder, first_step, 10, &err);
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
    struct progress *p = start(0);
    log_loss(p, 1, 0.5);
    log_loss(p, 2, 1.0 / 3);
    progress_destroy(p);
    release(stdout, kept);
    assert_log("{\"step\": 1, \"loss\": 0.5}\n{\"step\": 2, \"loss\": 0.333333333}\n");
    free(read_file("out"));
}

/* An entry is in the file as soon as it is logged: a run that is killed loses none. */
static void entries_are_written_at_once(void **state)
{
    (void)state;
    struct progress *p = start(0);
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
    struct progress *p = start(4);
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
    progress_destroy(start(4));
    assert_log("{\"step\": 2, \"eval_loss\": 0.5}\n{\"step\": 4, \"loss\": 0.4}\n");
}

static void a_resumed_run_without_a_log_begins_one(void **state)
{
    (void)state;
    struct progress *p = start(4);
    log_loss(p, 5, 0.5);
    progress_destroy(p);
    assert_log("{\"step\": 5, \"loss\": 0.5}\n");
}

/* For people on standard error, above the live line if there is one. */
static void a_checkpoint_that_is_on_the_disk_is_told(void **state)
{
    (void)state;
    struct zf_error err;
    int kept[] = {capture(stdout, "out"), capture(stderr, "messages")};
    struct progress *p = start(0);
    assert_works(progress_saved(p, 4, 0.5, 0.375, 6.125, &err), err);
    progress_destroy(p);
    release(stdout, kept[0]);
    release(stderr, kept[1]);
    assert_log("{\"step\": 4, \"epoch\": 0.5, \"checkpoint\": \"checkpoint-4\", "
               "\"save_seconds\": 0.375, \"disk_seconds\": 6.125}\n");
    char *printed = read_file("out"), *said = read_file("messages");
    assert_string_equal(printed, "");
    assert_string_equal(said,
                        "checkpoint 4: training stopped for 0.38 s; on the disk 6.12 s later\n");
    free(printed);
    free(said);
}

static void a_log_that_cannot_be_written_is_a_fault(void **state)
{
    (void)state;
    struct zf_error err = {0};
    char *path = zf_format("%s/nowhere", folder);
    assert_null(progress_create(path, 0, 10, &err));
    assert_says(err, "nowhere/trainer_log.jsonl: cannot be written");
    free(path);
}

/* What an entry is printed as, without a terminal. */
static char *printed_as(struct progress *p, json_t *entry)
{
    struct zf_error err;
    int kept = capture(stdout, "out");
    assert_works(progress_log(p, entry, &err), err);
    release(stdout, kept);
    return read_file("out");
}

static void assert_printed(struct progress *p, json_t *entry, const char *expected)
{
    char *printed = printed_as(p, entry);
    assert_string_equal(printed, expected);
    free(printed);
}

static void a_line_of_training(void **state)
{
    (void)state;
    struct progress *p = start(0);
    json_t *entry = json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i}", "step", 5,
                              "epoch", 0.5, "loss", 0.693147, "grad_norm", 12.3456, "learning_rate",
                              1e-4, "tokens_per_second", 24960.0, "step_seconds", 0.1, "stall",
                              0.027, "bytes_down", 1e9, "skipped_steps", 2);
    char *printed = printed_as(p, entry);
    assert_memory_equal(printed,
                        "step 5/10  epoch 0.50  loss 0.6931  lr 1.00e-04  grad norm 12.35  "
                        "2 skipped  0 tokens/s  97.3% computing  ",
                        102);
    assert_non_null(strstr(printed, "computing  0:0"));
    assert_non_null(strstr(printed, " left\n")); /* and nothing behind it */
    free(printed);
    progress_destroy(p);
}

/* Where nothing is offloaded, there is nothing to wait for; and after the last step no time is
 * left. */
static void a_line_says_no_more_than_there_is(void **state)
{
    (void)state;
    struct progress *p = start(0);
    assert_printed(
        p,
        json_pack("{s:i, s:f, s:f, s:f, s:f}", "step", 10, "epoch", 1.0, "loss", 0.5, "grad_norm",
                  1.0, "learning_rate", 0.0),
        "step 10/10  epoch 1.00  loss 0.5000  lr 0.00e+00  grad norm 1.00  0 tokens/s\n");
    progress_destroy(p);
}

static void a_line_of_an_evaluation(void **state)
{
    (void)state;
    struct progress *p = start(0);
    assert_printed(p,
                   json_pack("{s:i, s:f, s:f, s:f, s:i, s:f, s:f, s:f}", "step", 4, "epoch", 0.4,
                             "eval_loss", 0.5, "eval_matthews_correlation", -0.0207, "eval_samples",
                             400, "eval_runtime", 1.5, "eval_samples_per_second", 266.7,
                             "eval_steps_per_second", 33.3),
                   "step 4/10  eval_loss 0.5000  eval_matthews_correlation -0.0207\n");
    assert_printed(p,
                   json_pack("{s:i, s:s, s:f}", "step", 10, "model", "best", "eval_loss", 0.00004),
                   "step 10/10  best model  eval_loss 4.00e-05\n");
    progress_destroy(p);
}

static void numbers_are_grouped(void **state)
{
    (void)state;
    struct zf_error err = {0};
    struct progress *p = progress_create(folder, 0, 12345, &err);
    assert_non_null(p);
    assert_printed(p, json_pack("{s:i, s:f}", "step", 1234, "eval_loss", 0.5),
                   "step 1,234/12,345  eval_loss 0.5000\n");
    progress_destroy(p);
}

/* What the live line shows while `act` is done, as it was sent to the terminal. */
static char *drawn_by(void (*act)(void))
{
    int kept = capture(stderr, "err");
    live_begin(true);
    act();
    live_end();
    release(stderr, kept);
    return read_file("err");
}

static void ten_steps(void)
{
    struct progress *p = start(0);
    for (int step = 1; step <= 10; step++) {
        progress_step(p, step, step / 10.0, 0.25, 1e-3, 0.004, 100);
        usleep(30000);
    }
    assert_true(progress_tokens_per_second(p) > 0);
    usleep(200000);
    progress_destroy(p);
}

/* It is redrawn in place, a few times a second, the last step's too, and cleared at the end. */
static void the_live_line(void **state)
{
    (void)state;
    char *shown = drawn_by(ten_steps);
    int n = 0;
    for (char *p = shown; (p = strstr(p, "step ")); p++)
        n++;
    assert_in_range(n, 2, 8);
    assert_non_null(strstr(shown, "step 10/10  epoch 1.00  loss 0.2500  "));
    assert_non_null(strstr(shown, "99.6% computing"));
    assert_null(strchr(shown, '\n'));
    const size_t length = strlen(shown);
    assert_true(length > 4);
    assert_string_equal(shown + length - 4, "\r\033[J");
    free(shown);
}

static void a_message(void)
{
    struct progress *p = start(0);
    progress_step(p, 5, 0.5, 0.25, 1e-3, -1, 100);
    usleep(200000);
    log_info("a message");
    usleep(300000); /* standard output is no terminal, so the line waits a moment */
    progress_destroy(p);
}

/* What is printed clears it first, stays, and has it below itself. */
static void a_message_stays_above_the_live_line(void **state)
{
    (void)state;
    char *shown = drawn_by(a_message);
    char *message = strstr(shown, "\r\033[Ja message\n\r");
    assert_non_null(message);
    assert_non_null(strstr(message, "step 5/10 "));
    free(shown);
}

static void a_stage(void)
{
    struct progress *p = start(0);
    live_stage("evaluating", 2000);
    usleep(300000);
    live_stage_done(1000);
    usleep(900000);
    live_stage("saving", 0);
    usleep(1300000);
    live_stage_end();
    progress_destroy(p);
}

static void a_long_stage_is_told(void **state)
{
    (void)state;
    char *shown = drawn_by(a_stage);
    assert_non_null(strstr(shown, "step 0/10  evaluating  1,000 of 2,000  50.0%  0:01 left"));
    assert_non_null(strstr(shown, "step 0/10  saving  0:01"));
    assert_null(strstr(shown, "evaluating  0 of")); /* as long as it is not long */
    free(shown);
}

static void without_a_live_line_nothing_is_drawn(void **state)
{
    (void)state;
    int kept = capture(stderr, "err");
    ten_steps();
    live_begin(false);
    ten_steps();
    live_end();
    release(stderr, kept);
    char *shown = read_file("err");
    assert_string_equal(shown, "");
    free(shown);
}

static void assert_line(const struct line *line, int columns, const char *expected)
{
    char text[LINE_BYTES];
    line_write(line, columns, text);
    assert_string_equal(text, expected);
}

/* What matters least is left out first, and the order stays. */
static void a_line_fits(void **state)
{
    (void)state;
    struct line line = {0};
    line_add(&line, 0, "step 1");
    line_add(&line, 3, "lr 1");
    line_add(&line, 1, "loss 2");
    line_add(&line, 1, "left");
    line_add(&line, 2, "%d%%", 50);
    assert_line(&line, 0, "step 1  lr 1  loss 2  left  50%");
    assert_line(&line, 31, "step 1  lr 1  loss 2  left  50%");
    assert_line(&line, 30, "step 1  loss 2  left  50%");
    assert_line(&line, 24, "step 1  loss 2  left");
    assert_line(&line, 19, "step 1  loss 2");
    assert_line(&line, 13, "step 1");
    assert_line(&line, 4, "step");
    assert_line(&line, 1, "s");
}

static void a_line_has_an_end(void **state)
{
    (void)state;
    struct line line = {0};
    char text[LINE_BYTES];
    for (int i = 0; i < 3 * LINE_PARTS; i++)
        line_add(&line, i, "%0200d", i);
    assert_int_equal(line.n, LINE_PARTS);
    line_write(&line, 0, text);
    assert_in_range(strlen(text), 100, LINE_BYTES - 1);
}

static void the_table_has_a_row_per_result(void **state)
{
    (void)state;
    json_t *results = json_pack("{s:f, s:i, s:f}", "eval_accuracy", 0.875, "eval_samples", 40000,
                                "train_samples_per_second", 12345.678);
    int kept = capture(stdout, "out");
    progress_results_table("SST-2", results);
    release(stdout, kept);
    json_decref(results);
    char *printed = read_file("out");
    assert_string_equal(printed, "\nSST-2\n"
                                 "--------------------------------------\n"
                                 "eval_accuracy                   0.8750\n"
                                 "eval_samples                    40,000\n"
                                 "train_samples_per_second        12,346\n");
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
        IN_A_FOLDER(a_resumed_run_without_a_log_begins_one),
        IN_A_FOLDER(a_checkpoint_that_is_on_the_disk_is_told),
        IN_A_FOLDER(a_log_that_cannot_be_written_is_a_fault),
        IN_A_FOLDER(a_line_of_training),
        IN_A_FOLDER(a_line_says_no_more_than_there_is),
        IN_A_FOLDER(a_line_of_an_evaluation),
        IN_A_FOLDER(numbers_are_grouped),
        IN_A_FOLDER(the_live_line),
        IN_A_FOLDER(a_message_stays_above_the_live_line),
        IN_A_FOLDER(a_long_stage_is_told),
        IN_A_FOLDER(without_a_live_line_nothing_is_drawn),
        cmocka_unit_test(a_line_fits),
        cmocka_unit_test(a_line_has_an_end),
        IN_A_FOLDER(the_table_has_a_row_per_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
