#include "cmd/checkpoint.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/json.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char PREFIX[] = "checkpoint-";
static const char UNFINISHED[] = "tmp-"; /* before the name of one that is being written */

bool checkpoint_export(struct run *run, const char *directory, struct zf_error *err)
{
    bool ok = true;
    if (comm_rank(run->comm) == 0)
        ok = gpt_save(run->model, directory, run->task->n_labels > 1 ? run->task->names : NULL,
                      err) &&
             tokenizer_save(run->tokenizer, directory, err);
    return comm_all_ok(run->comm, ok, err);
}

/* What must be the same for a run to go on exactly. */
static void run_identity(const struct run *run, json_t *root)
{
    const struct config *c = run->config;
    json_object_set_new(root, "train_batch_size", json_integer(c->train_batch_size));
    json_object_set_new(root, "train_samples", json_integer(run->train.n_sequences));
    json_object_set_new(root, "seed", json_integer(c->seed));
}

static bool write_state(const struct run *run, const struct train_state *s, const char *directory,
                        struct zf_error *err)
{
    char *path = zf_format("%s/trainer_state.json", directory);
    json_t *root = json_object();
    json_object_set_new(root, "global_step", json_integer(s->step));
    json_object_set_new(root, "epoch", json_real((double)s->step / run->config->steps_per_epoch));
    json_object_set_new(root, "max_steps", json_integer(run->config->total_steps));
    run_identity(run, root);
    json_object_set_new(root, "loss_sum", json_real(s->loss_sum));
    json_object_set_new(root, "loss_steps", json_integer(s->loss_steps));
    json_object_set_new(root, "total_loss_sum", json_real(s->total_loss_sum));
    json_object_set_new(root, "skipped_steps", json_integer(s->skipped_steps));
    json_object_set_new(root, "best_global_step", json_integer(s->best_step));
    json_object_set_new(root, "best_metric", json_real(s->best_metric));
    if (run->config->load_best_model_at_end) {
        json_object_set_new(root, "metric_for_best_model",
                            json_string(run->config->metric_for_best_model));
        json_object_set_new(root, "greater_is_better",
                            json_boolean(run->config->greater_is_better));
    }
    bool ok = json_write(path, root, 17, err);
    json_decref(root);
    free(path);
    return ok;
}

/* The step of a folder named checkpoint-<step>, or -1. */
static int checkpoint_step(const char *name)
{
    char *end;
    if (strncmp(name, PREFIX, sizeof PREFIX - 1) != 0)
        return -1;
    long step = strtol(name + sizeof PREFIX - 1, &end, 10);
    return *end || end == name + sizeof PREFIX - 1 || step < 0 || step > INT_MAX ? -1 : (int)step;
}

static bool is_folder(const char *directory, const char *name)
{
    char *path = zf_format("%s/%s", directory, name);
    bool is = file_is_directory(path);
    free(path);
    return is;
}

/* Counts the checkpoints other than that of step `except`, and finds the first and last of them. */
static int scan(const char *output_dir, int except, int *first, int *last)
{
    int count = 0;
    DIR *d = opendir(output_dir);
    *first = INT_MAX;
    *last = -1;
    if (!d)
        return 0;
    for (struct dirent *entry; (entry = readdir(d));) {
        int step = checkpoint_step(entry->d_name);
        if (step < 0 || step == except || !is_folder(output_dir, entry->d_name))
            continue;
        count++;
        *first = step < *first ? step : *first;
        *last = step > *last ? step : *last;
    }
    closedir(d);
    return count;
}

char *checkpoint_path(const char *output_dir, int step)
{
    return zf_format("%s/%s%d", output_dir, PREFIX, step);
}

char *checkpoint_find_last(const char *output_dir)
{
    int first, last;
    return scan(output_dir, -1, &first, &last) ? checkpoint_path(output_dir, last) : NULL;
}

char *checkpoint_home(const char *directory)
{
    char *path = realpath(directory, NULL);
    if (path)
        *strrchr(path, '/') = 0;
    return path;
}

bool checkpoint_is_in(const char *directory, const char *output_dir)
{
    char *home = checkpoint_home(directory);
    bool same = home && file_is_same(home, output_dir);
    free(home);
    return same;
}

bool checkpoint_remove_after(const char *output_dir, int last, struct zf_error *err)
{
    const size_t n = sizeof UNFINISHED - 1;
    bool ok = true;
    DIR *d = opendir(output_dir);
    if (!d)
        return true;
    for (struct dirent *entry; ok && (entry = readdir(d));) {
        const char *name = entry->d_name;
        bool unfinished = strncmp(name, UNFINISHED, n) == 0 && checkpoint_step(name + n) >= 0;
        if ((!unfinished && checkpoint_step(name) <= last) || !is_folder(output_dir, name))
            continue;
        char *path = zf_format("%s/%s", output_dir, name);
        ok = file_remove_directory(path, err);
        free(path);
    }
    closedir(d);
    return ok;
}

/* Keeps `limit` checkpoints (CONFIG_AUTO: all), the newest and the best among them. */
static bool remove_oldest(const char *output_dir, int limit, int best_step, struct zf_error *err)
{
    int first, last;
    bool ok = true;
    int others = best_step > 0 ? limit - 1 : limit;
    while (ok && limit > 0 &&
           scan(output_dir, best_step, &first, &last) > (others > 0 ? others : 1)) {
        char *path = checkpoint_path(output_dir, first);
        ok = file_remove_directory(path, err);
        free(path);
    }
    return ok;
}

/* Rank 0 makes the finished folder appear at once, in place of one of the same step. */
static bool publish(const char *temporary, const char *directory, struct zf_error *err)
{
    if (file_exists(directory) && !file_remove_directory(directory, err))
        return false;
    if (rename(temporary, directory) != 0)
        return zf_fail(err, "%s: cannot be written: %s", directory, strerror(errno));
    return true;
}

bool checkpoint_save(struct run *run, const struct train_state *state, struct zf_error *err)
{
    const struct config *c = run->config;
    struct zf_error ignored;
    bool first = comm_rank(run->comm) == 0, ok = true;
    char *directory = checkpoint_path(c->output_dir, state->step);
    char *temporary = zf_format("%s/%s%s%d", c->output_dir, UNFINISHED, PREFIX, state->step);
    if (first)
        ok = (!file_exists(temporary) || file_remove_directory(temporary, err)) &&
             file_make_directory(temporary, err) && write_state(run, state, temporary, err);
    ok = comm_all_ok(run->comm, ok, err) && checkpoint_export(run, temporary, err) &&
         engine_save(run->engine, temporary, err);
    if (ok && first)
        ok = publish(temporary, directory, err) &&
             remove_oldest(c->output_dir, c->save_total_limit, state->best_step, err);
    ok = comm_all_ok(run->comm, ok, err);
    if (!ok && first && file_exists(temporary))
        file_remove_directory(temporary, &ignored);
    free(temporary);
    free(directory);
    return ok;
}

static bool get_double(const struct json_file *f, const char *key, double *value,
                       struct zf_error *err)
{
    json_t *v = json_find(f, key);
    if (!json_is_number(v))
        return json_fail(f, key, "a number", err);
    *value = json_number_value(v);
    return true;
}

static bool same_identity(const struct run *run, const struct json_file *f, struct zf_error *err)
{
    json_t *ours = json_object();
    const char *key;
    json_t *value;
    bool ok = true;
    run_identity(run, ours);
    json_object_foreach(ours, key, value)
    {
        json_t *theirs = json_find(f, key);
        if (ok && !json_equal(value, theirs))
            ok = zf_fail(err,
                         "%s:%d: this checkpoint was made with %s %lld, but this run has %lld, so "
                         "it could not go on exactly",
                         f->path, json_line(f, key), key, (long long)json_integer_value(theirs),
                         (long long)json_integer_value(value));
    }
    json_decref(ours);
    return ok;
}

/* The best model so far is only then the best of the whole run. */
static bool same_best(const struct run *run, const struct train_state *s, const struct json_file *f,
                      struct zf_error *err)
{
    const struct config *c = run->config;
    const char *metric = NULL;
    bool greater = c->greater_is_better;
    if (!c->load_best_model_at_end || s->best_step == 0)
        return true;
    if (!json_get_string(f, "metric_for_best_model", &metric, err) ||
        !json_get_bool(f, "greater_is_better", &greater, err))
        return false;
    return (metric && strcmp(metric, c->metric_for_best_model) == 0 &&
            greater == c->greater_is_better) ||
           zf_fail(err,
                   "%s:%d: the best model so far is that of %s %s, but this run looks for that of "
                   "%s %s (metric_for_best_model, greater_is_better)",
                   f->path, json_line(f, "metric_for_best_model"), greater ? "greatest" : "least",
                   metric ? metric : "another metric", c->greater_is_better ? "greatest" : "least",
                   c->metric_for_best_model);
}

static bool read_state(const struct run *run, struct train_state *s, const char *directory,
                       struct zf_error *err)
{
    char *path = zf_format("%s/trainer_state.json", directory);
    struct json_file f;
    bool ok = json_load(&f, path, err);
    *s = (struct train_state){.step = -1};
    if (ok) {
        ok = json_get_int(&f, "global_step", &s->step, err) && same_identity(run, &f, err) &&
             (s->step >= 0 || json_fail(&f, "global_step", "a step", err)) &&
             json_get_int(&f, "loss_steps", &s->loss_steps, err) &&
             json_get_int(&f, "skipped_steps", &s->skipped_steps, err) &&
             json_get_int(&f, "best_global_step", &s->best_step, err) &&
             get_double(&f, "best_metric", &s->best_metric, err) && same_best(run, s, &f, err) &&
             get_double(&f, "loss_sum", &s->loss_sum, err) &&
             get_double(&f, "total_loss_sum", &s->total_loss_sum, err);
        json_free(&f);
    }
    free(path);
    return ok;
}

bool checkpoint_load(struct run *run, const char *directory, struct train_state *state,
                     struct zf_error *err)
{
    bool head_is_new;
    engine_settle(run->engine); /* parameters that are on their way come before the loaded ones */
    bool ok = file_is_directory(directory) ||
              zf_fail(err, "resume_from_checkpoint: %s is not a folder", directory);
    ok = ok && read_state(run, state, directory, err) &&
         gpt_load_weights(run->model, directory, 0, &head_is_new, err);
    return comm_all_ok(run->comm, ok, err) && engine_load(run->engine, directory, err) &&
           (engine_steps(run->engine) + state->skipped_steps == state->step ||
            zf_fail(err, "%s/trainer_state.json: global_step is %d, but the optimizer has done %d",
                    directory, state->step, engine_steps(run->engine) + state->skipped_steps));
}
