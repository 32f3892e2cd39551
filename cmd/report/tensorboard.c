#include "cmd/report/tensorboard.h"

#include "cmd/report/events.h"
#include "data/alloc.h"
#include "data/file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct tensorboard {
    struct events events;
};

/* As in Transformers: "Nov22_08-40-12_host". */
static char *new_folder(const char *runs)
{
    char host[256] = "", date[32];
    const time_t now = time(NULL);
    struct tm local;
    gethostname(host, sizeof host - 1);
    strftime(date, sizeof date, "%b%d_%H-%M-%S", localtime_r(&now, &local));
    return zf_format("%s/%s_%s", runs, date, host);
}

static bool is_later(struct timespec a, struct timespec b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

/* The folder in `runs` that was written to last, into *found; NULL: there is none. */
static bool find_last(const char *runs, char **found, struct zf_error *err)
{
    struct file_names names = {0};
    struct timespec latest = {0};
    *found = NULL;
    if (file_is_directory(runs) && !file_list(runs, &names, err))
        return false;
    for (int i = 0; i < names.n; i++) {
        char *path = zf_format("%s/%s", runs, names.list[i]);
        struct stat info;
        const bool later = stat(path, &info) == 0 && S_ISDIR(info.st_mode) &&
                           (!*found || is_later(info.st_mtim, latest));
        if (later)
            latest = info.st_mtim;
        free(later ? *found : path);
        *found = later ? path : *found;
    }
    file_names_free(&names);
    return true;
}

/* A new string, or NULL and a sentence. */
static char *choose_folder(const struct config *c, int first_step, struct zf_error *err)
{
    const char *given = c->logging_dir ? c->logging_dir : getenv("TENSORBOARD_LOGGING_DIR");
    char *folder = NULL;
    if (given && *given)
        return zf_strdup(given);
    char *runs = zf_format("%s/runs", c->output_dir);
    if (first_step == 0 || find_last(runs, &folder, err))
        folder = folder ? folder : new_folder(runs);
    free(runs);
    return folder;
}

/* Takes the reference. */
static void write_json(struct tensorboard *t, const char *tag, json_t *json)
{
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
    events_text(t->events.file, events_now(), 0, tag, text);
    free(text);
    json_decref(json);
}

bool tensorboard_create(struct tensorboard **t, const struct run *run, int first_step,
                        struct zf_error *err)
{
    const struct config *c = run->config;
    const char *const *labels = run->task->n_labels > 1 ? run->task->names : NULL;
    struct events events = {0};
    if (!c->reports_to_tensorboard)
        return true;
    char *folder = choose_folder(c, first_step, err);
    bool ok = folder && events_create(&events, folder, first_step ? first_step + 1 : -1, err);
    free(folder);
    if (!ok)
        return false;
    *t = zf_malloc(sizeof **t);
    (*t)->events = events;
    write_json(*t, "args", config_json(c));
    write_json(*t, "model_config", gpt_config_json(&run->model_config, labels));
    return true;
}

void tensorboard_destroy(struct tensorboard *t)
{
    if (!t)
        return;
    events_close(&t->events);
    free(t);
}

bool tensorboard_log(struct tensorboard *t, const json_t *entry, struct zf_error *err)
{
    const long step = (long)json_integer_value(json_object_get(entry, "step"));
    const double now = events_now();
    const char *key;
    json_t *value;
    if (!t)
        return true;
    json_object_foreach((json_t *)entry, key, value)
    {
        const bool evaluation = strncmp(key, "eval_", 5) == 0;
        if (!json_is_number(value) || strcmp(key, "step") == 0)
            continue;
        char *tag = zf_format("%s%s", evaluation ? "eval/" : "train/", key + (evaluation ? 5 : 0));
        events_scalar(t->events.file, now, step, tag, json_number_value(value));
        free(tag);
    }
    return events_flush(&t->events, err);
}
