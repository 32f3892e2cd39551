#include "cmd/trainer_state.h"

#include "cmd/checkpoint_folders.h"
#include "data/alloc.h"
#include "data/file.h"
#include "data/json.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OURS "stateful_callbacks.zf-train.attributes."

void trainer_state_free(struct train_state *s)
{
    free(s->best_home);
    json_decref(s->history);
    s->best_home = NULL;
    s->history = NULL;
}

double trainer_state_flos(const struct run *run, const struct train_state *s)
{
    const struct gpt_config *m = &run->model_config;
    const double positions = m->parts.learned_positions ? m->n_positions : 0;
    const double embeddings = (m->vocab_size + positions) * m->n_embd;
    return 6 * (double)s->tokens * ((double)gpt_params(run->model)->n_parameters - embeddings);
}

/* ---- the history ---- */

static bool begins_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static bool is_time(const char *key)
{
    return strstr(key, "_runtime") || strstr(key, "_per_second");
}

/* Whether Transformers' own entries have such a key. */
static bool is_known(const char *key)
{
    static const char *const known[] = {"step",      "epoch",         "loss",
                                        "grad_norm", "learning_rate", "total_flos"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(key, known[i]) == 0)
            return true;
    return (begins_with(key, "eval_") || begins_with(key, "train_")) &&
           !strstr(key, "_samples_mm") && strcmp(key, "eval_samples") != 0 &&
           strcmp(key, "train_samples") != 0;
}

void trainer_state_note(struct train_state *s, const json_t *entry)
{
    const char *key;
    json_t *value, *noted = json_object();
    json_object_foreach((json_t *)entry, key, value)
    {
        if (is_known(key))
            json_object_set(noted, key, value);
    }
    if (!s->history)
        s->history = json_array();
    json_array_append_new(s->history, noted);
}

static json_t *history_json(const struct train_state *s, bool with_times)
{
    json_t *history = s->history ? json_deep_copy(s->history) : json_array(), *entry, *value;
    const char *key;
    size_t i;
    void *next;
    json_array_foreach(history, i, entry)
    {
        json_object_foreach_safe(entry, next, key, value)
        {
            if (!with_times && is_time(key))
                json_object_del(entry, key);
        }
    }
    return history;
}

/* ---- writing ---- */

static json_t *steps_json(double steps)
{
    return steps == CONFIG_AUTO ? json_null() : json_integer((json_int_t)steps);
}

static json_t *best_folder_json(const struct train_state *s)
{
    if (s->best_step == 0)
        return json_null();
    char *path = checkpoint_path(s->best_home, s->best_step);
    json_t *folder = json_string(path);
    free(path);
    return folder ? folder : json_null(); /* a path that is not UTF-8 */
}

/* What Transformers' EarlyStoppingCallback keeps. */
static json_t *early_stopping_json(const struct config *c, const struct train_state *s)
{
    return json_pack("{s: {s: i, s: f}, s: {s: i}}", "args", "early_stopping_patience",
                     c->early_stopping_patience, "early_stopping_threshold",
                     c->early_stopping_threshold, "attributes", "early_stopping_patience_counter",
                     s->watch.waited);
}

static json_t *own_json(const struct run *run, const struct train_state *s)
{
    const struct config *c = run->config;
    char data[CHECKSUM_TEXT];
    json_t *o = json_object();
    json_object_set_new(o, "loss_sum", json_real(s->loss_sum));
    json_object_set_new(o, "loss_steps", json_integer(s->loss_steps));
    json_object_set_new(o, "skipped_steps", json_integer(s->skipped_steps));
    json_object_set_new(o, "total_loss_sum", json_real(s->total_loss_sum));
    if (s->watch.any) {
        json_object_set_new(o, "metric_for_best_model", json_string(c->metric_for_best_model));
        json_object_set_new(o, "greater_is_better", json_boolean(c->greater_is_better));
        checksum_text(run->dev_sum, data);
        json_object_set_new(o, "watched_data",
                            json_string(run->n_dev > 0 ? data : s->watched_data));
        json_object_set_new(o, "watched_best", json_real(s->watch.best));
        json_object_set_new(o, "watched_evaluations_since", json_integer(s->watch.waited));
    }
    if (s->unevaluated)
        json_object_set_new(o, "unevaluated", json_true());
    return json_pack("{s: {}, s: o}", "args", "attributes", o);
}

static json_t *callbacks_json(const struct run *run, const struct train_state *s)
{
    const struct config *c = run->config;
    json_t *o = json_object();
    if (c->early_stopping_patience > 0)
        json_object_set_new(o, "EarlyStoppingCallback", early_stopping_json(c, s));
    json_object_set_new(o, "zf-train", own_json(run, s));
    return o;
}

/* Keys in the order of Transformers' file. */
static json_t *state_json(const struct run *run, const struct train_state *s, bool is_checkpoint)
{
    const struct config *c = run->config;
    const bool best = s->best_step > 0;
    const double epochs = ceil((double)c->total_steps / c->steps_per_epoch);
    json_t *o = json_object();
    json_object_set_new(o, "best_global_step", best ? json_integer(s->best_step) : json_null());
    json_object_set_new(o, "best_metric", best ? json_real(s->best_metric) : json_null());
    json_object_set_new(o, "best_model_checkpoint", best_folder_json(s));
    json_object_set_new(o, "epoch", json_real((double)s->step / c->steps_per_epoch));
    json_object_set_new(o, "eval_steps", steps_json(c->eval_steps));
    json_object_set_new(o, "global_step", json_integer(s->step));
    json_object_set_new(o, "is_hyper_param_search", json_false());
    json_object_set_new(o, "is_local_process_zero", json_true());
    json_object_set_new(o, "is_world_process_zero", json_true());
    json_object_set_new(o, "log_history", history_json(s, !is_checkpoint));
    json_object_set_new(o, "logging_steps", steps_json(c->logging_steps));
    json_object_set_new(o, "max_steps", json_integer(c->total_steps));
    json_object_set_new(o, "num_input_tokens_seen", json_integer(s->tokens));
    json_object_set_new(o, "num_train_epochs", json_integer((json_int_t)epochs));
    json_object_set_new(o, "save_steps", steps_json(c->save_steps));
    json_object_set_new(o, "stateful_callbacks", callbacks_json(run, s));
    json_object_set_new(o, "total_flos", json_real(trainer_state_flos(run, s)));
    json_object_set_new(o, "train_batch_size", json_integer(c->per_device_train_batch_size));
    json_object_set_new(o, "trial_name", json_null());
    json_object_set_new(o, "trial_params", json_null());
    return o;
}

bool trainer_state_write(const struct run *run, const struct train_state *s, const char *directory,
                         bool is_checkpoint, struct zf_error *err)
{
    char *path = zf_format("%s/trainer_state.json", directory);
    json_t *root = state_json(run, s, is_checkpoint);
    bool ok = json_write(path, root, 17, err);
    json_decref(root);
    free(path);
    return ok;
}

/* ---- reading ---- */

static bool get_double(const struct json_file *f, const char *key, double *value,
                       struct zf_error *err)
{
    json_t *v = json_find(f, key);
    if (!json_is_number(v) || !isfinite(json_number_value(v)))
        return json_fail(f, key, "a number", err);
    *value = json_number_value(v);
    return true;
}

static bool get_steps(const struct json_file *f, const char *key, int most, int *value,
                      struct zf_error *err)
{
    *value = -1;
    return json_get_int(f, key, value, err) &&
           ((*value >= 0 && *value <= most) || json_fail(f, key, "a number of steps", err));
}

/* What was the best so far is only then that of the whole run. */
static bool same_measure(const struct run *run, const struct json_file *f, const char *metric,
                         struct zf_error *err)
{
    const struct config *c = run->config;
    bool greater = c->greater_is_better;
    if (!json_get_bool(f, OURS "greater_is_better", &greater, err))
        return false;
    return (strcmp(metric, c->metric_for_best_model) == 0 && greater == c->greater_is_better) ||
           zf_fail(err,
                   "%s:%d: the best model so far is that of %s %s, but this run looks for that of "
                   "%s %s (metric_for_best_model, greater_is_better)",
                   f->path, json_line(f, OURS "metric_for_best_model"),
                   greater ? "greatest" : "least", metric,
                   c->greater_is_better ? "greatest" : "least", c->metric_for_best_model);
}

/* A run that does not evaluate passes it on. */
static bool same_data(const struct run *run, struct train_state *s, const struct json_file *f,
                      struct zf_error *err)
{
    const char *data = NULL;
    char own[CHECKSUM_TEXT];
    checksum_text(run->dev_sum, own);
    if (!json_get_string(f, OURS "watched_data", &data, err))
        return false;
    snprintf(s->watched_data, sizeof s->watched_data, "%s", data ? data : "");
    return !*s->watched_data || run->n_dev == 0 || strcmp(s->watched_data, own) == 0 ||
           zf_fail(err,
                   "%s:%d: the best model so far is the best on other evaluation data than this "
                   "run's (validation_file, data_dir, max_eval_samples)",
                   f->path, json_line(f, OURS "watched_data"));
}

/* Of a run that looks for the best; for others what was watched means nothing. */
static bool read_watch(const struct run *run, struct train_state *s, const struct json_file *f,
                       struct zf_error *err)
{
    const char *metric = NULL;
    if (!json_get_string(f, OURS "metric_for_best_model", &metric, err))
        return false;
    if (!metric || !run->config->metric_for_best_model)
        return true;
    s->watch.any = true;
    return same_measure(run, f, metric, err) && same_data(run, s, f, err) &&
           get_double(f, OURS "watched_best", &s->watch.best, err) &&
           get_steps(f, OURS "watched_evaluations_since", s->step, &s->watch.waited, err);
}

/* The folder that the best model's checkpoint lies in: that of this checkpoint, or where this one's
 * run found it. */
static bool find_best_home(struct train_state *s, const struct json_file *f, const char *directory,
                           struct zf_error *err)
{
    const char *recorded = NULL;
    if (!json_get_string(f, "best_model_checkpoint", &recorded, err))
        return false;
    char *here = checkpoint_home(directory);
    if (!here)
        return zf_fail(err, "%s: the folder that it lies in cannot be found", directory);
    char *beside = checkpoint_path(here, s->best_step);
    const char *slash = recorded ? strrchr(recorded, '/') : NULL;
    if (file_is_directory(beside) || !slash) {
        s->best_home = here;
    } else {
        s->best_home = zf_format("%.*s", (int)(slash - recorded), recorded);
        free(here);
    }
    free(beside);
    return true;
}

static bool read_best(struct train_state *s, const struct json_file *f, const char *directory,
                      struct zf_error *err)
{
    if (!json_get_int(f, "best_global_step", &s->best_step, err))
        return false;
    if (s->best_step == 0)
        return true;
    if (s->best_step < 0 || s->best_step > s->step)
        return json_fail(f, "best_global_step", "a step of this run, or null", err);
    return get_double(f, "best_metric", &s->best_metric, err) &&
           find_best_home(s, f, directory, err);
}

static bool read_history(struct train_state *s, const struct json_file *f, struct zf_error *err)
{
    const json_t *history = json_find(f, "log_history"), *entry;
    size_t i;
    if (!json_is_array(history))
        return json_fail(f, "log_history", "a list of entries", err);
    json_array_foreach(history, i, entry)
    {
        if (!json_is_object(entry))
            return json_fail(f, "log_history", "a list of entries, each an object", err);
    }
    s->history = json_deep_copy(history);
    return true;
}

static bool read_tokens(struct train_state *s, const struct json_file *f, struct zf_error *err)
{
    const json_t *tokens = json_find(f, "num_input_tokens_seen");
    if (!json_is_integer(tokens) || json_integer_value(tokens) < 0)
        return json_fail(f, "num_input_tokens_seen", "a number of tokens", err);
    s->tokens = json_integer_value(tokens);
    return true;
}

bool trainer_state_read(const struct run *run, struct train_state *s, const char *directory,
                        struct zf_error *err)
{
    char *path = zf_format("%s/trainer_state.json", directory);
    struct json_file f;
    bool ok = json_load(&f, path, err);
    *s = (struct train_state){.step = -1};
    if (ok) {
        ok = get_steps(&f, "global_step", INT_MAX, &s->step, err) &&
             get_steps(&f, OURS "loss_steps", s->step, &s->loss_steps, err) &&
             get_steps(&f, OURS "skipped_steps", s->step, &s->skipped_steps, err) &&
             get_double(&f, OURS "loss_sum", &s->loss_sum, err) &&
             get_double(&f, OURS "total_loss_sum", &s->total_loss_sum, err) &&
             json_get_bool(&f, OURS "unevaluated", &s->unevaluated, err) &&
             read_tokens(s, &f, err) && read_watch(run, s, &f, err) &&
             read_best(s, &f, directory, err) && read_history(s, &f, err);
        json_free(&f);
    }
    free(path);
    return ok;
}
