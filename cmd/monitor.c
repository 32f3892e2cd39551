#include "cmd/monitor.h"

#include "cmd/report/events.h"
#include "data/alloc.h"
#include "data/file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "Train/Samples/"

/* Of one name. */
struct csv {
    char *path;
    FILE *file;
};

struct monitor {
    int samples_of_step;
    bool continues;  /* what it writes takes the place of what is there */
    char *directory; /* of CSV files, or NULL */
    struct csv *files;
    int n_files;
    struct events events;
};

static char *folder_of(const struct config *c, const struct monitor_config *m)
{
    return zf_format("%s/%s", m->output_path ? m->output_path : c->output_dir, m->job_name);
}

static bool open_events(struct monitor *m, const struct config *c, long samples,
                        struct zf_error *err)
{
    char *folder = folder_of(c, &c->tensorboard);
    bool ok = events_create(&m->events, folder, m->continues ? samples + 1 : -1, err);
    free(folder);
    return ok;
}

bool monitor_create(struct monitor **monitor, const struct config *c, int first_step,
                    struct zf_error *err)
{
    if (!c->csv_monitor.enabled && !c->tensorboard.enabled)
        return true;
    struct monitor *m = zf_malloc(sizeof *m);
    *m = (struct monitor){
        .samples_of_step = c->train_batch_size,
        .continues = first_step > 0 || c->overwrite_output_dir,
        .directory = c->csv_monitor.enabled ? folder_of(c, &c->csv_monitor) : NULL,
    };
    bool ok =
        (!m->directory || file_make_directory(m->directory, err)) &&
        (!c->tensorboard.enabled || open_events(m, c, (long)first_step * c->train_batch_size, err));
    if (!ok) {
        monitor_destroy(m);
        return false;
    }
    *monitor = m;
    return true;
}

void monitor_destroy(struct monitor *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->n_files; i++) {
        free(m->files[i].path);
        fclose(m->files[i].file);
    }
    free(m->files);
    free(m->directory);
    events_close(&m->events);
    free(m);
}

/* Rows from this step on are dropped: they are written again. */
static bool keep_rows(const char *path, long step, struct zf_error *err)
{
    struct file_replace f;
    char *text;
    size_t n;
    if (!file_read_if_any(path, &text, &n, err))
        return false;
    if (!text)
        return true;
    bool ok = file_replace_begin(&f, path, err);
    for (char *line = text, *end; ok && (end = strchr(line, '\n')); line = end + 1)
        if (strncmp(line, "step,", 5) == 0 || strtol(line, NULL, 10) < step)
            fwrite(line, 1, (size_t)(end + 1 - line), f.stream);
    free(text);
    return ok && file_replace_end(&f, true, err);
}

static FILE *open_csv(const struct monitor *m, const char *path, const char *column, long step,
                      struct zf_error *err)
{
    if (m->continues && !keep_rows(path, step, err))
        return NULL;
    FILE *file = file_open_output(path, true, err);
    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    if (ftell(file) <= 0)
        fprintf(file, "step,%s\r\n", column);
    return file;
}

/* The file of this column, whose name is as DeepSpeed makes it of PREFIX and column. */
static FILE *find_csv(struct monitor *m, const char *column, long step, struct zf_error *err)
{
    char *path = zf_format("%s/Train_Samples_%s.csv", m->directory, column);
    FILE *file = NULL;
    for (int i = 0; i < m->n_files; i++)
        if (strcmp(m->files[i].path, path) == 0)
            file = m->files[i].file;
    if (file || !(file = open_csv(m, path, column, step, err))) {
        free(path);
        return file;
    }
    m->files = zf_realloc(m->files, (size_t)(m->n_files + 1) * sizeof *m->files);
    m->files[m->n_files++] = (struct csv){path, file};
    return file;
}

static bool write_csv(struct monitor *m, const char *column, long step, double value,
                      struct zf_error *err)
{
    FILE *file = find_csv(m, column, step, err);
    if (!file)
        return false;
    fprintf(file, "%ld,%.9g\r\n", step, value);
    return (fflush(file) == 0 && !ferror(file)) ||
           zf_fail(err, "%s/Train_Samples_%s.csv: cannot be written: %s", m->directory, column,
                   strerror(errno));
}

/* step: in samples */
static bool write_value(struct monitor *m, const char *column, long step, double value,
                        struct zf_error *err)
{
    if (m->events.file) {
        char *tag = zf_format(PREFIX "%s", column);
        events_scalar(m->events.file, events_now(), step, tag, value);
        free(tag);
        if (!events_flush(&m->events, err))
            return false;
    }
    return !m->directory || write_csv(m, column, step, value, err);
}

bool monitor_step(struct monitor *m, int step, double loss, double lr, struct zf_error *err)
{
    if (!m)
        return true;
    const long samples = (long)step * m->samples_of_step;
    return (!isfinite(loss) || write_value(m, "train_loss", samples, loss, err)) &&
           write_value(m, "lr", samples, lr, err);
}

bool monitor_evaluation(struct monitor *m, const json_t *entry, struct zf_error *err)
{
    const char *key;
    json_t *value;
    if (!m)
        return true;
    const long samples =
        (long)json_integer_value(json_object_get(entry, "step")) * m->samples_of_step;
    json_object_foreach((json_t *)entry, key, value)
    {
        if (strncmp(key, "eval_", 5) == 0 && json_is_number(value) &&
            !write_value(m, key, samples, json_number_value(value), err))
            return false;
    }
    return true;
}
