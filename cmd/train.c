#include "cmd/train.h"

#include "cmd/agree.h"
#include "cmd/checkpoint.h"
#include "cmd/checkpoint_folders.h"
#include "cmd/evaluate.h"
#include "cmd/interval_log.h"
#include "cmd/live.h"
#include "cmd/lr_schedule.h"
#include "cmd/manifest.h"
#include "cmd/model_card.h"
#include "cmd/progress.h"
#include "cmd/report/listeners.h"
#include "cmd/start.h"
#include "cmd/step.h"
#include "cmd/stop.h"
#include "data/alloc.h"
#include "data/clock.h"
#include "data/figures.h"
#include "data/file.h"
#include "data/log.h"
#include "offload/comm/place.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What to do where numbers are not finite. */
#define ADVICE " (a smaller learning_rate or max_grad_norm may help)"

struct trainer {
    struct run *run;
    struct stepper stepper;
    struct train_state state;
    struct progress *progress;   /* rank 0, else NULL */
    struct listeners *listeners; /* rank 0, else NULL */
    int *order;                  /* (n_sequences) the current epoch's order */
    int epoch;                   /* that `order` belongs to, -1: none yet */
    struct telemetry telemetry;  /* since the last log entry */
    bool offloads;               /* some state lives on the host */
    bool diverging;              /* the last step was skipped, or its loss */
    double most_loss;            /* was above this */
    bool is_best;                /* its evaluation is better than that of any checkpoint */
    struct saving *saving;       /* the checkpoint that is on its way to the disk, or NULL; */
    bool removing;               /* or older ones that are on theirs from it */
    int begun_step;              /* the last one of which a checkpoint was begun, */
    double stopped, went_on;     /* how long training stood still for it, and when it went on */
    int saved_step;              /* the last one whose checkpoint output_dir has, -1: none yet */
    int unproved;         /* the step of a checkpoint whose model has not done a step yet, or 0; */
    int unproved_best;    /* and its best_step */
    struct zf_error late; /* at the end a checkpoint could not be written, or read, or "" */
    double bytes_norms, bytes_gradients; /* that ranks have summed */
    struct interval_log interval_log;
    int first_step; /* where this run began, not the one that it resumes, */
    double start;   /* and when */
};

/* The examples of a step, as indices into the training set; how many into *n. */
static const int *examples_of_step(struct trainer *t, int step, int *n)
{
    const struct config *c = t->run->config;
    const struct dataset *d = &t->run->train;
    int epoch = step / c->steps_per_epoch, first = step % c->steps_per_epoch * c->train_batch_size;
    if (epoch != t->epoch)
        sampler_shuffle(t->order, d->n_sequences, (uint64_t)c->seed, epoch);
    t->epoch = epoch;
    *n =
        d->n_sequences - first < c->train_batch_size ? d->n_sequences - first : c->train_batch_size;
    return t->order + first;
}

static double epoch_of(const struct trainer *t, int step)
{
    return (double)step / t->run->config->steps_per_epoch;
}

/* A log entry that begins with step and epoch; NULL on ranks that do not log. */
static json_t *new_entry(const struct trainer *t, int step)
{
    if (!t->progress)
        return NULL;
    json_t *entry = json_object();
    json_object_set_new(entry, "step", json_integer(step));
    json_object_set_new(entry, "epoch", json_real(epoch_of(t, step)));
    return entry;
}

/* Tells all who want to know of it. Takes the reference. Only rank 0 logs, so its fault is nobody
 * else's to wait for. */
static void write_entry(struct trainer *t, json_t *entry)
{
    struct zf_error err;
    trainer_state_note(&t->state, entry);
    if (!listeners_log(t->listeners, entry, &err) || !progress_log(t->progress, entry, &err))
        comm_abort(t->run->comm, &err);
}

/* The same of a step. */
static void tell_step(struct trainer *t, const struct step_result *done, float lr)
{
    const int step = t->state.step;
    struct zf_error err;
    if (!t->progress)
        return;
    progress_step(t->progress, step, epoch_of(t, step), done->loss, lr,
                  t->offloads ? telemetry_stall(&t->telemetry) : -1, done->tokens);
    if (!listeners_step(t->listeners, step, done->report.skipped ? NAN : done->loss, lr, &err))
        comm_abort(t->run->comm, &err);
}

/* Whether something that happens every so many steps, or at each epoch's end, happens now. */
static bool is_due(const struct config *c, enum config_strategy strategy, double every, int step)
{
    return (strategy == STRATEGY_STEPS && fmod(step, every) == 0) ||
           (strategy == STRATEGY_EPOCH && step % c->steps_per_epoch == 0);
}

static void log_step(struct trainer *t, float lr, const struct step_report *report)
{
    struct train_state *s = &t->state;
    const struct config *c = t->run->config;
    bool due = is_due(c, c->logging_strategy, c->logging_steps, s->step) ||
               (c->logging_first_step && s->step == 1);
    if (!due || s->loss_steps == 0)
        return;
    json_t *entry = new_entry(t, s->step);
    if (entry) {
        double loss = s->loss_sum / s->loss_steps;
        json_object_set_new(entry, "loss", json_real(loss));
        json_object_set_new(entry, "grad_norm", json_real(report->grad_norm));
        json_object_set_new(entry, "learning_rate", json_real(lr));
        json_object_set_new(entry, "tokens_per_second",
                            json_real(progress_tokens_per_second(t->progress)));
        json_object_set_new(entry, "step_seconds",
                            json_real(t->telemetry.step_seconds / t->telemetry.steps));
        if (t->offloads)
            telemetry_describe(&t->telemetry, gpt_params(t->run->model)->n_parameters, entry);
        if (s->skipped_steps)
            json_object_set_new(entry, "skipped_steps", json_integer(s->skipped_steps));
        write_entry(t, entry);
    }
    s->loss_sum = 0;
    s->loss_steps = 0;
    t->telemetry = (struct telemetry){0};
}

/* A choice of channels has an entry of its own: no checkpoint comes between it and the log. */
static void log_choice(struct trainer *t, const struct engine_choice *choice)
{
    json_t *entry = choice ? new_entry(t, t->state.step) : NULL;
    struct zf_error err;
    if (!entry)
        return;
    telemetry_describe_choice(choice, entry);
    if (!listeners_log(t->listeners, entry, &err) || !progress_note(t->progress, entry, &err))
        comm_abort(t->run->comm, &err);
}

static void set_string(char **string, const char *text)
{
    free(*string);
    *string = zf_strdup(text);
}

/* Whether the last step's model is evaluated and saved in any case: it may be the best one. */
static bool ends_with_best(const struct trainer *t)
{
    const struct config *c = t->run->config;
    return c->load_best_model_at_end && c->save_strategy == STRATEGY_STEPS &&
           t->state.step == c->total_steps;
}

/* Whether this step's model is saved. While training diverges there is none to go on from. */
static bool saves(const struct trainer *t)
{
    const struct config *c = t->run->config;
    if (t->diverging)
        return false;
    return c->save_strategy == STRATEGY_BEST
               ? t->is_best
               : is_due(c, c->save_strategy, c->save_steps, t->state.step) || ends_with_best(t);
}

/* Watches the metric, and remembers the best evaluation of a step that is saved. */
static void note_evaluation(struct trainer *t, const json_t *evaluation)
{
    const struct config *c = t->run->config;
    struct train_state *s = &t->state;
    if (!c->metric_for_best_model)
        return;
    char *key = zf_format("eval_%s", c->metric_for_best_model);
    const double value = json_number_value(json_object_get(evaluation, key));
    free(key);
    watch_take(&s->watch, value, c->greater_is_better, c->early_stopping_threshold);
    t->is_best = s->best_step == 0 || watch_is_better(value, s->best_metric, c->greater_is_better);
    if (t->is_best && saves(t)) {
        s->best_metric = value;
        s->best_step = s->step;
        set_string(&s->best_home, c->output_dir);
    }
}

/* Whether early stopping ends the run here. */
static bool stops_early(const struct trainer *t)
{
    const int patience = t->run->config->early_stopping_patience;
    return patience > 0 && t->state.watch.waited >= patience;
}

static bool is_over(const struct trainer *t)
{
    return t->state.step >= t->run->config->total_steps || stops_early(t);
}

/* Evaluates the model as it is, after so many steps. Adds to `evaluation`. */
static bool evaluate(struct trainer *t, int step, json_t *evaluation, struct zf_error *err)
{
    struct run *run = t->run;
    struct zf_error why;
    engine_settle(run->engine);
    for (int i = 0; i < run->n_dev; i++)
        if (!evaluate_split(run, &run->dev[i], evaluation, &why))
            return zf_fail(err, "step %d: %.800s, so training has diverged" ADVICE, step, why.text);
    return true;
}

/* model: "final" or "best" where it is what the run leaves; NULL on the way, where windows are
 * open. */
static void log_evaluation(struct trainer *t, int step, const char *model, json_t *evaluation)
{
    json_t *entry = new_entry(t, step);
    if (!entry)
        return;
    if (model)
        json_object_set_new(entry, "model", json_string(model));
    json_object_update(entry, evaluation);
    write_entry(t, entry);
}

/* Where the run is stopped in it, it counts for nothing, and is the first that comes when the run
 * goes on. */
static bool evaluate_on_the_way(struct trainer *t, struct zf_error *err)
{
    json_t *evaluation = json_object();
    t->run->stoppable = true;
    bool ok = evaluate(t, t->state.step, evaluation, err);
    t->state.unevaluated = t->run->stopped;
    if (ok && !t->run->stopped) {
        log_evaluation(t, t->state.step, NULL, evaluation);
        note_evaluation(t, evaluation);
    }
    json_decref(evaluation);
    return ok;
}

/* Of the last step the model that the run leaves is evaluated in any case, and this one only to
 * find the best. */
static bool evaluation_is_due(const struct trainer *t)
{
    const struct config *c = t->run->config;
    const int step = t->state.step;
    const double delayed = c->eval_strategy == STRATEGY_EPOCH ? epoch_of(t, step) : step;
    const bool seeks = c->load_best_model_at_end || c->save_strategy == STRATEGY_BEST;
    const bool due = is_due(c, c->eval_strategy, c->eval_steps, step) || ends_with_best(t);
    return t->run->n_dev && due && delayed >= c->eval_delay && (step < c->total_steps || seeks);
}

/* Above it a loss is no honest model's, however small its batches and however hard its data are: a
 * cross-entropy of 100 says that what is right had odds of one to e^100, in the mean of a step,
 * where whoever guesses among 100,000 tokens has 12; and a mean square 100 times that of the
 * greatest score is one of answers nine times as great. */
static double most_loss(const struct run *run)
{
    double greatest = 1;
    for (int i = 0; run->task->n_labels == 1 && i < run->train.n_sequences; i++)
        greatest = fmax(greatest, (double)run->train.label[i] * run->train.label[i]);
    return 100 * greatest;
}

/* While it lasts nothing is saved that could pass for a good model, and nothing older goes. */
static void note_divergence(struct trainer *t, const struct step_result *done)
{
    const bool before = t->diverging, beyond = done->loss > t->most_loss;
    t->diverging = done->report.skipped || beyond;
    if (beyond && !done->report.skipped && !before)
        log_warn("step %d: the loss is %g: training diverges" ADVICE
                 "; while it is above %g no checkpoint is made, and none is removed",
                 t->state.step, done->loss, t->most_loss);
}

/* A step that counts has a loss; and the last step's is that of the model, if it was skipped. */
static bool check_loss(const struct trainer *t, const struct step_result *done,
                       struct zf_error *err)
{
    int step = t->state.step;
    return isfinite(done->loss) || (done->report.skipped && step < t->run->config->total_steps) ||
           zf_fail(err, "step %d: the loss is not finite, so training has diverged" ADVICE, step);
}

/* Older checkpoints go once the newest is on the disk and its model has done a step without
 * diverging, or is what the run leaves: a run that diverges keeps those from before. */
static void drop_oldest(struct trainer *t, int last)
{
    if (t->saving || t->unproved == 0 || t->unproved > last)
        return;
    if (t->run->config->save_total_limit > 0) {
        t->saving = saving_remove_oldest(t->run, t->unproved, t->unproved_best);
        t->removing = true;
    }
    t->unproved = 0;
}

static void log_saved(struct trainer *t)
{
    json_t *entry = new_entry(t, t->begun_step);
    struct zf_error err;
    if (!entry)
        return;
    json_object_set_new(entry, "checkpoint", json_sprintf("checkpoint-%d", t->begun_step));
    json_object_set_new(entry, "save_seconds", json_real(t->stopped));
    json_object_set_new(entry, "disk_seconds", json_real(clock_seconds() - t->went_on));
    if (!listeners_log(t->listeners, entry, &err) || !progress_saved(t->progress, entry, &err))
        comm_abort(t->run->comm, &err);
}

/* How far that is which is on its way, if anything is; wait: until it is there. */
static bool follow_saving(struct trainer *t, bool wait, struct zf_error *err)
{
    bool done = false;
    if (!t->saving)
        return true;
    if (wait)
        live_stage("saving a checkpoint", 0);
    const bool ok = saving_go_on(t->saving, wait, &done, err);
    if (wait)
        live_stage_end();
    if (ok && !done)
        return true;
    saving_free(t->saving);
    t->saving = NULL;
    if (ok && !t->removing) {
        t->saved_step = t->begun_step;
        log_saved(t);
    }
    t->removing = false;
    return ok;
}

/* There is one on its way at a time: the next one waits. */
static bool await_saving(struct trainer *t, struct zf_error *err)
{
    if (!follow_saving(t, false, err))
        return false;
    if (t->saving && !t->removing)
        log_info("checkpoint %d waits: checkpoint %d is not on the disk yet", t->state.step,
                 t->begun_step);
    if (!follow_saving(t, true, err))
        return false;
    if (!t->diverging)
        drop_oldest(t, t->state.step - 1);
    return follow_saving(t, true, err);
}

/* Training goes on when the checkpoint is written; it is on the disk later. */
static bool save(struct trainer *t, struct zf_error *err)
{
    struct train_state *s = &t->state;
    const double start = clock_seconds();
    trace_begin(t->run->trace, TRACE_HOST, "save");
    if (await_saving(t, err)) {
        engine_settle(t->run->engine);
        live_stage("saving a checkpoint", 0);
        t->begun_step = s->step;
        t->saving = checkpoint_save(t->run, s, err);
        live_stage_end();
    }
    trace_end(t->run->trace, TRACE_HOST, 0);
    if (!t->saving)
        return false;
    t->unproved = s->step;
    t->unproved_best = s->best_step;
    t->went_on = clock_seconds();
    t->stopped = t->went_on - start;
    return true;
}

/* A checkpoint, where one is due. If the last step's cannot be written, the model comes first. */
static bool save_if_due(struct trainer *t, struct zf_error *err)
{
    if (!saves(t) || save(t, err))
        return true;
    if (!is_over(t))
        return false;
    t->late = *err;
    return true;
}

static bool train_step(struct trainer *t, struct zf_error *err)
{
    struct train_state *s = &t->state;
    const struct config *c = t->run->config;
    struct step_result done;
    if (!follow_saving(t, false, err))
        return false;
    float lr = lr_at_step(c, s->step);
    double start = clock_seconds();
    int n;
    const int *examples = examples_of_step(t, s->step, &n);
    if (!step_run(&t->stepper, examples, n, s->step, lr, &done, err))
        return false;
    if (s->step == t->first_step) {
        start_part("the step itself");
        start_tell();
    }
    telemetry_add(&t->telemetry, &done.report, clock_seconds() - start);
    t->bytes_norms += (double)done.report.bytes_norms;
    t->bytes_gradients += (double)done.report.bytes_gradients;
    s->step++;
    s->tokens += done.tokens;
    t->is_best = false;
    note_divergence(t, &done);
    interval_log_step(&t->interval_log, c, s->step, &done.report);
    if (done.report.skipped) {
        s->skipped_steps++;
        log_warn("step %d: the gradient is not finite; the step is skipped", s->step);
    } else {
        s->loss_sum += done.loss;
        s->total_loss_sum += done.loss;
        s->loss_steps++;
    }
    if (!check_loss(t, &done, err))
        return false;
    if (!t->diverging)
        drop_oldest(t, s->step - 1);
    tell_step(t, &done, lr);
    if (c->logging_strategy != STRATEGY_NO)
        log_choice(t, done.report.choice);
    log_step(t, lr, &done.report);
    if (evaluation_is_due(t) && !evaluate_on_the_way(t, err))
        return false;
    t->run->stopped |= done.stop;
    return save_if_due(t, err);
}

/* What the run was stopped in: the last step's evaluation, and what it decides. */
static bool catch_up(struct trainer *t, struct zf_error *err)
{
    if (!t->state.unevaluated)
        return true;
    t->state.unevaluated = false;
    return !evaluation_is_due(t) ||
           (evaluate_on_the_way(t, err) && (t->run->stopped || save_if_due(t, err)));
}

/* The run was asked to stop: what it has done is saved, even where its last step was skipped, and
 * it says so. Nothing older goes for it. */
static bool leave(struct trainer *t, struct zf_error *err)
{
    const struct config *c = t->run->config;
    const char *reason = stop_reason(t->run->comm);
    int step = t->state.step;
    log_info("%s: stopping after step %s of %s", reason, figure_count(step).text,
             figure_count(c->total_steps).text);
    if (!follow_saving(t, true, err) ||
        (t->saved_step != step && !(save(t, err) && follow_saving(t, true, err))))
        return false;
    stop_finish(STOP_STATUS);
    log_info("stopped by %s; %s/checkpoint-%d is written: --resume_from_checkpoint latest goes on "
             "from it (exit status %d)",
             reason, c->output_dir, step, STOP_STATUS);
    return true;
}

/* Whether the best model's checkpoint is there, and as it was written. Collective. */
static bool check_best(const struct trainer *t, struct zf_error *err)
{
    const struct train_state *s = &t->state;
    char *best = checkpoint_path(s->best_home, s->best_step);
    const bool there = comm_max(t->run->comm, !file_is_directory(best)) == 0;
    const bool ok =
        there ? manifest_check(t->run->comm, best, err) : zf_fail(err, "%s is not there", best);
    free(best);
    return ok;
}

/* As run_glue.py: an output_dir that holds checkpoints is gone on with, unless it may be
 * overwritten. "latest" where there is none is no fault, so that a job says the same on its first
 * start and on its tenth. The folder to resume from, which has been checked, as a new string; NULL:
 * none. */
static bool find_checkpoint(struct run *run, char **from, struct zf_error *err)
{
    const struct config *c = run->config;
    const char *asked = c->resume_from_checkpoint;
    *from = NULL;
    if (asked && strcmp(asked, "latest") != 0) {
        *from = zf_strdup(asked);
        return checkpoint_check(run, asked, err);
    }
    if ((asked || !c->overwrite_output_dir) &&
        !checkpoint_find_last(run->comm, c->output_dir, from, err))
        return false;
    if (asked && !*from)
        log_info("resume_from_checkpoint: %s holds no checkpoint yet; the run starts anew",
                 c->output_dir);
    return true;
}

/* The best model so far must be there, and whole: at the end it would be too late to say so. Who
 * can do without it leaves load_best_model_at_end out. `from` itself has been checked. Collective.
 */
static bool find_best(const struct trainer *t, const char *from, struct zf_error *err)
{
    const struct train_state *s = &t->state;
    struct zf_error why;
    if (!t->run->config->load_best_model_at_end || s->best_step == 0)
        return true;
    char *best = checkpoint_path(s->best_home, s->best_step);
    const bool checked = comm_max(t->run->comm, !file_is_same(best, from)) == 0;
    free(best);
    return checked || check_best(t, &why) ||
           zf_fail(err,
                   "%s: the best model so far is that of step %d, for load_best_model_at_end, but "
                   "%.800s",
                   from, s->best_step, why.text);
}

/* *kept: output_dir's checkpoints up to this step are this run's past; -1: none is. */
static bool resume(struct trainer *t, int *kept, struct zf_error *err)
{
    const struct config *c = t->run->config;
    char *from;
    *kept = -1;
    live_stage("loading a checkpoint", 0);
    bool ok = find_checkpoint(t->run, &from, err);
    if (ok && from) {
        log_info("resuming from %s%s", from,
                 c->resume_from_checkpoint ? "" : " (--overwrite_output_dir starts anew)");
        ok = checkpoint_load(t->run, from, &t->state, err);
        if (ok && t->state.step >= c->total_steps)
            log_info("nothing is left to train: the checkpoint is of step %s, and the run has %s",
                     figure_count(t->state.step).text, figure_count(c->total_steps).text);
        *kept = ok && checkpoint_is_in(from, c->output_dir) ? t->state.step : -1;
        t->saved_step = *kept;
        t->unproved = *kept > 0 ? *kept : 0;
        t->unproved_best = t->state.best_step;
        ok = comm_all_ok(t->run->comm, ok, err) && find_best(t, from, err) &&
             agree_on_weights(t->run, from, err);
    }
    free(from);
    return ok;
}

static bool open_reports(struct trainer *t, struct zf_error *err)
{
    const struct config *c = t->run->config;
    bool ok = true;
    if (comm_rank(t->run->comm) == 0) {
        t->listeners = listeners_create(t->run, t->state.step, err);
        if (t->listeners) /* last: it begins the log anew */
            t->progress = progress_create(c->output_dir, t->state.step, c->total_steps, err);
        ok = t->progress != NULL;
    }
    return comm_all_ok(t->run->comm, ok, err);
}

/* The last that is told, also of a run that has failed. */
static bool close_reports(struct trainer *t, bool ok, const json_t *results, struct zf_error *err)
{
    const bool stopped = t->run->stopped;
    const char *state = !ok ? "failed" : stopped ? "stopped" : "done";
    struct zf_error late;
    bool told = !t->listeners || listeners_finish(t->listeners, t->state.step, state,
                                                  ok ? NULL : err->text, results, &late);
    listeners_destroy(t->listeners);
    progress_destroy(t->progress);
    if (!told && (!ok || stopped))
        log_warn("%s", late.text);
    if (!ok || stopped)
        return ok;
    if (!told)
        *err = late;
    return comm_all_ok(t->run->comm, told, err);
}

/* Any step may be saved: the run may be stopped after it. */
static bool check_names(const struct trainer *t, struct zf_error *err)
{
    const struct config *c = t->run->config;
    bool ok = comm_rank(t->run->comm) != 0 ||
              checkpoint_check_names(c->output_dir, t->state.step, c->total_steps, err);
    return comm_all_ok(t->run->comm, ok, err);
}

/* Now that nothing is left to fail, what dead runs have left unfinished goes; and, with
 * overwrite_output_dir, what other runs have left. */
static bool start_clean(struct trainer *t, int kept, struct zf_error *err)
{
    const struct config *c = t->run->config;
    bool ok = true;
    if (comm_rank(t->run->comm) == 0)
        ok = checkpoint_clean(c->output_dir, err) &&
             (!c->overwrite_output_dir || checkpoint_remove_after(c->output_dir, kept, err));
    return comm_all_ok(t->run->comm, ok, err);
}

/* The best model's checkpoint has been damaged or removed meanwhile: training is not lost for it.
 * The run leaves the last step's model, and ends with this sentence. Collective. */
static bool best_is_lost(struct trainer *t)
{
    struct zf_error why;
    if (check_best(t, &why))
        return false;
    if (!*t->late.text)
        zf_fail(&t->late, "it is the last step's, since of the best one %.800s", why.text);
    return true;
}

/* Makes the model what the run leaves: the best one's checkpoint, to the bit, or the last step's
 * with all windows closed. */
static bool settle_on_model(struct trainer *t, bool best, struct zf_error *err)
{
    struct train_state ignored = {0};
    if (!best) {
        trace_begin(t->run->trace, TRACE_HOST, "finish");
        engine_finish(t->run->engine);
        trace_end(t->run->trace, TRACE_HOST, 0);
        return true;
    }
    char *path = checkpoint_path(t->state.best_home, t->state.best_step);
    log_info("loading the best model, of step %d: %s %g", t->state.best_step,
             t->run->config->metric_for_best_model, t->state.best_metric);
    live_stage("loading the best model", 0);
    bool ok = checkpoint_load(t->run, path, &ignored, err);
    live_stage_end();
    trainer_state_free(&ignored);
    free(path);
    return ok;
}

static void add_results(const struct trainer *t, json_t *results)
{
    const struct train_state *s = &t->state;
    int steps = s->step - t->first_step, counted = s->step - s->skipped_steps;
    double runtime = clock_seconds() - t->start;
    double samples = (double)t->run->train.n_sequences * steps / t->run->config->steps_per_epoch;
    json_object_set_new(results, "epoch", json_real(epoch_of(t, s->step)));
    json_object_set_new(results, "global_step", json_integer(s->step));
    json_object_set_new(results, "skipped_steps", json_integer(s->skipped_steps));
    json_object_set_new(results, "total_flos", json_real(trainer_state_flos(t->run, s)));
    json_object_set_new(results, "train_loss", json_real(s->total_loss_sum / counted));
    json_object_set_new(results, "train_runtime", json_real(runtime));
    json_object_set_new(results, "train_samples", json_integer(t->run->train.n_sequences));
    if (runtime > 0) {
        json_object_set_new(results, "train_samples_per_second", json_real(samples / runtime));
        json_object_set_new(results, "train_steps_per_second", json_real(steps / runtime));
    }
}

/* What Transformers' Trainer logs when training has ended. */
static void note_training(struct trainer *t, const json_t *results)
{
    json_t *entry = json_copy((json_t *)results);
    json_object_set_new(entry, "step", json_integer(t->state.step));
    trainer_state_note(&t->state, entry);
    json_decref(entry);
}

static bool write_reports(const struct trainer *t, const json_t *results, struct zf_error *err)
{
    bool ok = true;
    if (t->progress)
        ok = trainer_state_write(t->run, &t->state, t->run->config->output_dir, false, err) &&
             model_card_write(t->run, t->state.history, results, err);
    return comm_all_ok(t->run->comm, ok, err);
}

static void tell_of_early_stop(const struct trainer *t)
{
    const struct config *c = t->run->config;
    log_info("early stopping after step %d of %d: eval_%s, at best %g, has not been better by more "
             "than %g for %d evaluation(s)",
             t->state.step, c->total_steps, c->metric_for_best_model, t->state.watch.best,
             c->early_stopping_threshold, t->state.watch.waited);
}

/* What choosing channels has cost between ranks, beside what it would by whole gradients. */
static void tell_of_choosing(const struct trainer *t)
{
    const struct zenflow_config *z = &t->run->config->zenflow;
    const struct param_table *table = gpt_params(t->run->model);
    if (!z->enabled || z->topk_ratio <= 0 || z->topk_ratio >= 1 || t->state.step == t->first_step)
        return;
    if (comm_size(t->run->comm) > 1) {
        log_info(
            "to choose channels, ranks summed %s bytes of norms, beside %s bytes of gradients: "
            "1/%.0f of them",
            figure_count(t->bytes_norms).text, figure_count(t->bytes_gradients).text,
            t->bytes_gradients / t->bytes_norms);
        return;
    }
    double channels = 0;
    for (int i = 0; i < table->n_params; i++)
        channels += table->params[i].rows;
    const double elements = (double)table->n_parameters;
    log_info(
        "to choose channels, several ranks would sum %s bytes of norms in each step, beside %s "
        "bytes of gradients: 1/%.0f of them; one rank sends none",
        figure_count(channels * sizeof(float)).text, figure_count(elements * sizeof(float)).text,
        elements / channels);
}

/* After the last step, and its checkpoint: what the run leaves, and what is reported of it. The
 * model is written before all else, and as soon as it is known to be one: a disk that is full does
 * not cost it. */
static bool conclude(struct trainer *t, json_t *results, struct zf_error *err)
{
    const struct train_state *s = &t->state;
    if (!*t->late.text)
        follow_saving(t, true, &t->late);
    const bool lost = *t->late.text && s->best_step >= t->begun_step &&
                      s->best_step > t->saved_step; /* it has no checkpoint */
    bool best =
        t->run->config->load_best_model_at_end && s->best_step > 0 && !lost && !best_is_lost(t);
    if (stops_early(t))
        tell_of_early_stop(t);
    tell_of_choosing(t);
    if (t->state.step > t->first_step)
        interval_log_end(&t->interval_log, t->run->config, t->first_step > 0);
    if (s->skipped_steps == s->step)
        return zf_fail(err, "the gradient was not finite in any of the %d steps" ADVICE, s->step);
    t->run->stoppable = !best || t->saved_step == s->step; /* where what is to be saved is there */
    if (!settle_on_model(t, best, err))
        return false;
    add_results(t, results);
    if (best) {
        json_object_set_new(results, "best_global_step", json_integer(s->best_step));
        json_object_set_new(results, "best_metric", json_real(s->best_metric));
    }
    json_t *evaluation = json_object();
    const int step = best ? s->best_step : s->step;
    bool ok = evaluate(t, step, evaluation, err);
    live_stage("writing the model", 0);
    ok = ok && (t->run->stopped || checkpoint_export(t->run, t->run->config->output_dir, err));
    live_stage_end();
    if (ok && !t->run->stopped) {
        note_training(t, results);
        if (t->run->n_dev > 0)
            log_evaluation(t, step, best ? "best" : "final", evaluation);
    }
    json_object_update(results, evaluation);
    json_decref(evaluation);
    if (!ok || t->run->stopped)
        return ok;
    if (*t->late.text)
        return zf_fail(err, "the model is written, but %.900s", t->late.text);
    if (!write_reports(t, results, err))
        return false;
    if (!t->diverging)
        drop_oldest(t, s->step);
    return follow_saving(t, true, err);
}

static bool write_config(const struct run *run, struct zf_error *err)
{
    bool ok = true;
    if (comm_rank(run->comm) == 0) {
        char *path = zf_format("%s/zf_train_config.json", run->config->output_dir);
        ok = config_write(run->config, path, err);
        free(path);
    }
    return comm_all_ok(run->comm, ok, err);
}

static struct stepper stepper_of(struct run *run)
{
    const struct config *c = run->config;
    return (struct stepper){
        .model = run->model,
        .engine = run->engine,
        .comm = run->comm,
        .trace = run->trace,
        .set = &run->train,
        .batches = run->batches,
        .n_labels = run->task->n_labels,
        .micro_batch = c->per_device_train_batch_size,
        .micro_batches = c->gradient_accumulation_steps,
        .together = run->size.micro_batches,
        .seed = (uint32_t)c->seed,
    };
}

bool train_plan(struct run *run, int warm_up, int steps, struct plan_report *report,
                struct zf_error *err)
{
    struct trainer t = {.run = run, .stepper = stepper_of(run), .epoch = -1};
    bool ok = true;
    t.order = zf_malloc(sizeof(int) * (size_t)run->train.n_sequences);
    for (int step = 0; ok && step < warm_up + steps; step++) {
        struct step_result done;
        int n;
        const int *examples = examples_of_step(&t, step, &n);
        ok = step_run(&t.stepper, examples, n, step, lr_at_step(run->config, 0), &done, err);
        if (step + 1 == warm_up)
            plan_report_restart(report);
        else if (ok && step >= warm_up)
            plan_report_step(report, &done.report);
        live_stage_done(step + 1);
    }
    free(t.order);
    return ok;
}

bool train(struct run *run, json_t *results, struct zf_error *err)
{
    struct trainer t = {
        .run = run,
        .stepper = stepper_of(run),
        .epoch = -1,
        .saved_step = -1,
        .most_loss = most_loss(run),
        .offloads = engine_memory(run->engine).host_elements > 0,
    };
    struct zf_error ignored;
    int kept;
    t.order = zf_malloc(sizeof(int) * (size_t)run->train.n_sequences);
    bool ok = resume(&t, &kept, err);
    stop_after(run->config->max_seconds);
    stop_defer();
    ok = ok && check_names(&t, err) && open_reports(&t, err) && start_clean(&t, kept, err) &&
         write_config(run, err);
    start_part("checkpoint and reports");
    t.first_step = t.state.step;
    t.interval_log.interval = engine_update_interval(run->engine);
    t.start = clock_seconds();
    ok = ok && catch_up(&t, err);
    while (ok && !run->stopped && !is_over(&t))
        ok = train_step(&t, err);
    ok = ok && (run->stopped || conclude(&t, results, err));
    if (ok && run->stopped)
        ok = leave(&t, err);
    if (!ok) /* what was saved before the fault is worth having */
        follow_saving(&t, true, &ignored);
    ok = close_reports(&t, ok, results, err);
    trainer_state_free(&t.state);
    free(t.order);
    return ok;
}
