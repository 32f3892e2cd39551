#include "cmd/checkpoint.h"

#include "cmd/checkpoint_folders.h"
#include "cmd/manifest.h"
#include "data/alloc.h"
#include "data/file.h"
#include "data/json.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool checkpoint_export(struct run *run, const char *directory, struct zf_error *err)
{
    bool ok = true;
    if (comm_rank(run->comm) == 0)
        ok = gpt_save(run->model, directory, run->task->n_labels > 1 ? run->task->names : NULL,
                      err) &&
             tokenizer_save(run->tokenizer, directory, err);
    else
        gpt_pass_by(run->model);
    return comm_all_ok(run->comm, ok, err);
}

static bool write_state(const struct run *run, const struct train_state *s, const char *directory,
                        struct zf_error *err)
{
    char *path = zf_format("%s/trainer_state.json", directory);
    json_t *root = json_object();
    json_object_set_new(root, "global_step", json_integer(s->step));
    json_object_set_new(root, "epoch", json_real((double)s->step / run->config->steps_per_epoch));
    json_object_set_new(root, "max_steps", json_integer(run->config->total_steps));
    json_object_set_new(root, "loss_sum", json_real(s->loss_sum));
    json_object_set_new(root, "loss_steps", json_integer(s->loss_steps));
    json_object_set_new(root, "total_loss_sum", json_real(s->total_loss_sum));
    json_object_set_new(root, "skipped_steps", json_integer(s->skipped_steps));
    json_object_set_new(root, "best_global_step", json_integer(s->best_step));
    json_object_set_new(root, "best_metric", json_real(s->best_metric));
    if (s->best_step > 0) /* its folder, where that is not output_dir */
        json_object_set_new(root, "best_model_home",
                            file_is_same(s->best_home, run->config->output_dir)
                                ? json_null()
                                : json_string(s->best_home));
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

/* All files but the manifest. */
static bool write_all(struct run *run, const struct train_state *state, const char *directory,
                      struct zf_error *err)
{
    bool ok = true;
    if (comm_rank(run->comm) == 0)
        ok = (!file_exists(directory) || file_remove_directory(directory, err)) &&
             file_make_directory(directory, err) && write_state(run, state, directory, err);
    return comm_all_ok(run->comm, ok, err) && checkpoint_export(run, directory, err) &&
           engine_save(run->engine, directory, err);
}

struct saving *checkpoint_save(struct run *run, const struct train_state *state,
                               struct zf_error *err)
{
    struct zf_error ignored;
    struct file_batch files;
    char *temporary = checkpoint_temporary_path(run->config->output_dir, state->step);
    file_batch_begin(&files);
    const bool ok = write_all(run, state, temporary, err);
    file_batch_end();
    if (!ok) {
        file_batch_sync(&files, false, &ignored);
        if (comm_rank(run->comm) == 0 && file_exists(temporary))
            file_remove_directory(temporary, &ignored);
    }
    free(temporary);
    return ok ? saving_begin(run, state->step, files) : NULL;
}

bool checkpoint_check(struct run *run, const char *directory, struct zf_error *err)
{
    bool ok = file_is_directory(directory) ||
              zf_fail(err, "resume_from_checkpoint: %s is not a folder", directory);
    return comm_all_ok(run->comm, ok, err) && manifest_check(run->comm, directory, err);
}

static bool get_double(const struct json_file *f, const char *key, double *value,
                       struct zf_error *err)
{
    json_t *v = json_find(f, key);
    if (!json_is_number(v) || !isfinite(json_number_value(v)))
        return json_fail(f, key, "a number", err);
    *value = json_number_value(v);
    return true;
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

static bool get_steps(const struct json_file *f, const char *key, int most, int *value,
                      struct zf_error *err)
{
    *value = -1;
    return json_get_int(f, key, value, err) &&
           ((*value >= 0 && *value <= most) || json_fail(f, key, "a number of steps", err));
}

/* The best model's checkpoint lies beside this one, or where this one's run found it. */
static bool read_best(const struct run *run, struct train_state *s, const struct json_file *f,
                      const char *directory, struct zf_error *err)
{
    const char *elsewhere = NULL;
    if (!get_steps(f, "best_global_step", s->step, &s->best_step, err) ||
        !get_double(f, "best_metric", &s->best_metric, err) || !same_best(run, s, f, err) ||
        !json_get_string(f, "best_model_home", &elsewhere, err))
        return false;
    if (s->best_step == 0)
        return true;
    char *here = checkpoint_home(directory);
    if (!here)
        return zf_fail(err, "%s: the folder that it lies in cannot be found", directory);
    char *beside = checkpoint_path(here, s->best_step);
    const bool is_here = file_is_directory(beside) || !elsewhere;
    s->best_home = is_here ? here : zf_strdup(elsewhere);
    if (!is_here)
        free(here);
    free(beside);
    return true;
}

static bool read_state(const struct run *run, struct train_state *s, const char *directory,
                       struct zf_error *err)
{
    char *path = zf_format("%s/trainer_state.json", directory);
    struct json_file f;
    bool ok = json_load(&f, path, err);
    *s = (struct train_state){.step = -1};
    if (ok) {
        ok = get_steps(&f, "global_step", INT_MAX, &s->step, err) &&
             get_steps(&f, "loss_steps", s->step, &s->loss_steps, err) &&
             get_steps(&f, "skipped_steps", s->step, &s->skipped_steps, err) &&
             get_double(&f, "loss_sum", &s->loss_sum, err) &&
             get_double(&f, "total_loss_sum", &s->total_loss_sum, err) &&
             read_best(run, s, &f, directory, err);
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
    bool ok = read_state(run, state, directory, err) &&
              manifest_matches(run, directory, state->step, err) &&
              gpt_load_weights(run->model, directory, 0, &head_is_new, err);
    return comm_all_ok(run->comm, ok, err) && engine_load(run->engine, directory, err) &&
           (engine_steps(run->engine) + state->skipped_steps == state->step ||
            zf_fail(err, "%s/trainer_state.json: global_step is %d, but the optimizer has done %d",
                    directory, state->step, engine_steps(run->engine) + state->skipped_steps));
}
