#include "cmd/progress.h"

#include "data/alloc.h"
#include "data/clock.h"
#include "data/file.h"
#include "data/log.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REDRAW_SECONDS 0.1

struct progress {
    FILE *log; /* trainer_log.jsonl */
    char *path;
    bool live;
    int first_step, total_steps;
    double start, drawn;
    long tokens;
};

static bool line_is_shown; /* a live line stands on the terminal */

static void clear_line(void)
{
    if (line_is_shown)
        fputs("\r\033[K", stderr);
    line_is_shown = false;
}

/* Entries of steps that a resumed run will do again are dropped, and those of the model that the
 * run before left. */
static bool keep_entries(const char *path, int last_step, struct zf_error *err)
{
    struct file_replace f;
    char *text;
    size_t n;
    if (!file_exists(path))
        return true;
    if (!file_read(path, &text, &n, err))
        return false;
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

struct progress *progress_create(const char *output_dir, int first_step, int total_steps, bool live,
                                 struct zf_error *err)
{
    char *path = zf_format("%s/trainer_log.jsonl", output_dir);
    FILE *log = NULL;
    if (first_step == 0 || keep_entries(path, first_step, err)) {
        log = fopen(path, first_step ? "a" : "w");
        if (!log)
            zf_fail(err, "%s: cannot be written: %s", path, strerror(errno));
    }
    if (!log) {
        free(path);
        return NULL;
    }
    struct progress *p = zf_malloc(sizeof *p);
    *p = (struct progress){
        .log = log,
        .path = path,
        .live = live,
        .first_step = first_step,
        .total_steps = total_steps,
        .start = clock_seconds(),
    };
    log_set_before(clear_line);
    return p;
}

void progress_destroy(struct progress *p)
{
    if (!p)
        return;
    clear_line();
    log_set_before(NULL);
    fclose(p->log);
    free(p->path);
    free(p);
}

double progress_tokens_per_second(const struct progress *p)
{
    double elapsed = clock_seconds() - p->start;
    return elapsed > 0 ? (double)p->tokens / elapsed : 0;
}

static int terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}

void progress_step(struct progress *p, int step, double epoch, double loss, double lr, double stall,
                   long tokens)
{
    double now = clock_seconds();
    p->tokens += tokens;
    if (!p->live || (now - p->drawn < REDRAW_SECONDS && step < p->total_steps))
        return;
    p->drawn = now;
    int done = step - p->first_step;
    long left = lround((now - p->start) / (done ? done : 1) * (p->total_steps - step));
    char line[160], waited[32] = "";
    if (stall >= 0)
        snprintf(waited, sizeof waited, "  stall %.1f%%", 100 * stall);
    int n = snprintf(line, sizeof line,
                     "step %d/%d  epoch %.2f  loss %.4f  lr %.2e  %.0f tokens/s%s  left %ld:%02ld",
                     step, p->total_steps, epoch, loss, lr, progress_tokens_per_second(p), waited,
                     left / 60, left % 60);
    int columns = terminal_columns() - 1;
    fprintf(stderr, "\r%.*s\033[K", columns < n ? columns : n, line);
    fflush(stderr);
    line_is_shown = true;
}

/* What is for programs to read in trainer_log.jsonl and would make a line too long for people. */
static bool is_detail(const char *key)
{
    const char *unit = strrchr(key, '_');
    return strncmp(key, "bytes_", 6) == 0 || (unit && strcmp(unit, "_seconds") == 0);
}

static void print_plainly(const json_t *entry)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)entry, key, value)
    {
        if (is_detail(key))
            continue;
        if (json_is_integer(value))
            printf("%s %lld  ", key, (long long)json_integer_value(value));
        else if (json_is_number(value))
            printf("%s %.4g  ", key, json_number_value(value));
        else if (json_is_string(value))
            printf("%s %s  ", key, json_string_value(value));
    }
    putchar('\n');
    fflush(stdout);
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
    if (!p->live)
        print_plainly(entry);
    json_decref(entry);
    return written;
}

bool progress_saved(struct progress *p, int step, double epoch, double stopped, double later,
                    struct zf_error *err)
{
    json_t *entry = json_object();
    json_object_set_new(entry, "step", json_integer(step));
    json_object_set_new(entry, "epoch", json_real(epoch));
    json_object_set_new(entry, "checkpoint", json_sprintf("checkpoint-%d", step));
    json_object_set_new(entry, "save_seconds", json_real(stopped));
    json_object_set_new(entry, "disk_seconds", json_real(later));
    log_info("checkpoint %d: training stopped for %.2f s; on the disk %.2f s later", step, stopped,
             later);
    bool written = write_line(p, entry, err);
    json_decref(entry);
    return written;
}

void progress_results_table(const char *title, const json_t *results)
{
    const char *key;
    json_t *value;
    int width = (int)strlen(title);
    json_object_foreach((json_t *)results, key, value)
    {
        if ((int)strlen(key) > width)
            width = (int)strlen(key);
    }
    printf("\n%-*s\n", width, title);
    for (int i = 0; i < width + 14; i++)
        putchar('-');
    putchar('\n');
    json_object_foreach((json_t *)results, key, value)
    {
        if (json_is_integer(value))
            printf("%-*s  %12lld\n", width, key, (long long)json_integer_value(value));
        else
            printf("%-*s  %12.4f\n", width, key, json_number_value(value));
    }
}
