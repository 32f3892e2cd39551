#include "cmd/progress.h"

#include "cmd/live.h"
#include "data/alloc.h"
#include "data/clock.h"
#include "data/figures.h"
#include "data/file.h"
#include "data/log.h"
#include "data/terminal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEAST_COLUMNS 80 /* for which lines that stay are made */

struct progress {
    FILE *log; /* trainer_log.jsonl */
    char *path;
    int first_step, total_steps;
    double start;
    long tokens;
};

/* Entries of steps that a resumed run will do again are dropped, and those of the model that the
 * run before left. */
static bool keep_entries(const char *path, int last_step, struct zf_error *err)
{
    struct file_replace f;
    char *text;
    size_t n;
    if (!file_read_if_any(path, &text, &n, err))
        return false;
    if (!text)
        return true;
    if (!file_replace_begin(&f, path, err)) {
        free(text);
        return false;
    }
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        json_t *entry = json_loadb(line, (size_t)(end - line), 0, NULL);
        if (entry && json_integer_value(json_object_get(entry, "step")) <= last_step &&
            !json_object_get(entry, "model"))
            fwrite(line, 1, (size_t)(end + 1 - line), f.stream);
        json_decref(entry);
    }
    free(text);
    return file_replace_end(&f, true, err);
}

/* What stays longest of a line where there is little room. */
enum { STEP, MODEL, LOSS, METRIC, RATE, LEFT, SKIPPED, COMPUTING, EPOCH, LEARNING_RATE, NORM };

static void add_step(const struct progress *p, struct line *line, int step)
{
    line_add(line, STEP, "step %s/%s", figure_count(step).text, figure_count(p->total_steps).text);
}

static void add_rate(const struct progress *p, struct line *line)
{
    line_add(line, RATE, "%s tokens/s", figure_count(progress_tokens_per_second(p)).text);
}

/* The device computes where it does not wait for the host. */
static void add_computing(struct line *line, double stall)
{
    if (stall >= 0)
        line_add(line, COMPUTING, "%s computing", figure_share(1 - stall).text);
}

/* As fast as until now, evaluations and checkpoints included. */
static void add_left(const struct progress *p, struct line *line, int step)
{
    const int done = step - p->first_step, left = p->total_steps - step;
    if (done > 0 && left > 0)
        line_add(line, LEFT, "%s left",
                 figure_time((clock_seconds() - p->start) / done * left).text);
}

struct progress *progress_create(const char *output_dir, int first_step, int total_steps,
                                 struct zf_error *err)
{
    char *path = zf_format("%s/trainer_log.jsonl", output_dir);
    FILE *log = NULL;
    if (first_step == 0 || keep_entries(path, first_step, err))
        log = file_open_output(path, first_step > 0, err);
    if (!log) {
        free(path);
        return NULL;
    }
    struct progress *p = zf_malloc(sizeof *p);
    *p = (struct progress){
        .log = log,
        .path = path,
        .first_step = first_step,
        .total_steps = total_steps,
        .start = clock_seconds(),
    };
    struct line line = {0};
    add_step(p, &line, first_step);
    live_stage_end();
    live_step(&line);
    return p;
}

void progress_destroy(struct progress *p)
{
    if (!p)
        return;
    fclose(p->log);
    free(p->path);
    free(p);
}

double progress_tokens_per_second(const struct progress *p)
{
    double elapsed = clock_seconds() - p->start;
    return elapsed > 0 ? (double)p->tokens / elapsed : 0;
}

void progress_step(struct progress *p, int step, double epoch, double loss, double lr, double stall,
                   long tokens)
{
    struct line line = {0};
    p->tokens += tokens;
    add_step(p, &line, step);
    line_add(&line, EPOCH, "epoch %.2f", epoch);
    line_add(&line, LOSS, "loss %.4f", loss);
    line_add(&line, LEARNING_RATE, "lr %.2e", lr);
    add_rate(p, &line);
    add_computing(&line, stall);
    add_left(p, &line, step);
    live_step(&line);
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Of an evaluation the loss and the metrics: what it took is in the file. */
static void add_metric(struct line *line, const char *key, const json_t *value)
{
    const double x = json_number_value(value);
    const bool counts = json_is_integer(value) || strncmp(key, "eval_runtime", 12) == 0 ||
                        ends_with(key, "per_second") || ends_with(key, "per_second_mm");
    if (strncmp(key, "eval_", 5) == 0 && json_is_number(value) && !counts)
        line_add(line, METRIC, x != 0 && fabs(x) < 1e-3 ? "%s %.2e" : "%s %.4f", key, x);
}

/* In the order in which they are told, whatever the entry's. */
static void describe_entry(const struct progress *p, const json_t *entry, struct line *line)
{
    const json_t *model = json_object_get(entry, "model"), *loss = json_object_get(entry, "loss");
    const json_t *stall = json_object_get(entry, "stall");
    const int step = (int)json_integer_value(json_object_get(entry, "step"));
    const char *key;
    json_t *value;
    add_step(p, line, step);
    if (model)
        line_add(line, MODEL, "%s model", json_string_value(model));
    json_object_foreach((json_t *)entry, key, value) add_metric(line, key, value);
    if (!loss)
        return;
    line_add(line, EPOCH, "epoch %.2f", json_number_value(json_object_get(entry, "epoch")));
    line_add(line, LOSS, "loss %.4f", json_number_value(loss));
    line_add(line, LEARNING_RATE, "lr %.2e",
             json_number_value(json_object_get(entry, "learning_rate")));
    const double norm = json_number_value(json_object_get(entry, "grad_norm"));
    line_add(line, NORM, norm != 0 && norm < 1e-2 ? "grad norm %.2e" : "grad norm %.2f", norm);
    if ((value = json_object_get(entry, "skipped_steps")))
        line_add(line, SKIPPED, "%s skipped", figure_count(json_number_value(value)).text);
    add_rate(p, line);
    add_computing(line, stall ? json_number_value(stall) : -1);
    add_left(p, line, step);
}

/* For lines that stay: where it is narrow, they may as well break. */
static int room_of_terminal(void)
{
    const int columns = terminal_columns(STDOUT_FILENO);
    return (columns < LEAST_COLUMNS ? LEAST_COLUMNS : columns) - 1;
}

static void print_entry(const struct progress *p, const json_t *entry)
{
    const bool terminal = live_is_drawn() && terminal_is_at(STDOUT_FILENO);
    const bool evaluation = !json_object_get(entry, "loss");
    const char *colour = terminal && live_has_colour() && evaluation ? TERMINAL_CYAN : "";
    char text[LINE_BYTES];
    struct line line = {0};
    describe_entry(p, entry, &line);
    line_write(&line, terminal ? room_of_terminal() : 0, text);
    live_give_way();
    printf("%s%s%s\n", colour, text, *colour ? TERMINAL_PLAIN : "");
    fflush(stdout);
    live_come_back();
}

/* One line of trainer_log.jsonl. */
static bool write_line(struct progress *p, const json_t *entry, struct zf_error *err)
{
    json_dumpf(entry, p->log, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
    fputc('\n', p->log);
    return (fflush(p->log) == 0 && !ferror(p->log)) ||
           zf_fail(err, "%s: cannot be written: %s", p->path, strerror(errno));
}

bool progress_log(struct progress *p, json_t *entry, struct zf_error *err)
{
    bool written = write_line(p, entry, err);
    if (log_is_taken(stdout))
        print_entry(p, entry);
    json_decref(entry);
    return written;
}

bool progress_note(struct progress *p, json_t *entry, struct zf_error *err)
{
    bool written = write_line(p, entry, err);
    json_decref(entry);
    return written;
}

bool progress_saved(struct progress *p, json_t *entry, struct zf_error *err)
{
    log_info("checkpoint %d: training stopped for %.2f s; on the disk %.2f s later",
             (int)json_integer_value(json_object_get(entry, "step")),
             json_number_value(json_object_get(entry, "save_seconds")),
             json_number_value(json_object_get(entry, "disk_seconds")));
    return progress_note(p, entry, err);
}

static struct figure value_text(const json_t *value)
{
    const double x = json_number_value(value);
    struct figure f;
    if (json_is_integer(value) || fabs(x) >= 1e3)
        return figure_count(x);
    snprintf(f.text, sizeof f.text, "%.4f", x);
    return f;
}

void progress_results_table(const char *title, const json_t *results)
{
    const bool colour = live_has_colour() && terminal_is_at(STDOUT_FILENO);
    const char *key;
    json_t *value;
    int width = (int)strlen(title), digits = 12;
    json_object_foreach((json_t *)results, key, value)
    {
        const int n = (int)strlen(value_text(value).text);
        width = (int)strlen(key) > width ? (int)strlen(key) : width;
        digits = n > digits ? n : digits;
    }
    live_give_way();
    printf("\n%s%s%s\n", colour ? TERMINAL_BOLD : "", title, colour ? TERMINAL_PLAIN : "");
    for (int i = 0; i < width + 2 + digits; i++)
        putchar('-');
    putchar('\n');
    json_object_foreach((json_t *)results, key, value)
        printf("%-*s  %*s\n", width, key, digits, value_text(value).text);
    live_come_back();
}
